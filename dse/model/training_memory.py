"""What fits in training: states, activations and what a streaming device holds (docs/training.md).

Sources: Rajbhandari et al., "ZeRO", SC20, doi:10.1109/SC41405.2020.00024 (states); Korthikanti et al.,
"Reducing Activation Recomputation in Large Transformer Models", arXiv 2205.05198 (activations).
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dse.errors import UnknownNameError, unknown_name
from dse.workload import Transformer

Floats = NDArray[np.float64]

Recompute = Literal["none", "selective", "full"]
RECOMPUTE: tuple[Recompute, ...] = ("none", "selective", "full")
"""What the backward pass computes again: nothing, the attention scores, or whole layers."""

WEIGHT_BYTE = 2.0
GRADIENT_BYTE = 2.0
OPTIMIZER_BYTE = 12.0
"""Per parameter: fp32 master weight and the two moments of Adam, 4 byte each."""

REPLICATED_BYTE = 10.0
"""Per token and hidden number, whole on every tensor-parallel device unless the sequence is split:
inputs of two layer norms (4), of the query-key-value product (2) and of the feed-forward (2), two dropout masks (2)."""

ATTENTION_BYTE = 8.0
"""Per token and hidden number, split by tensor parallelism: queries, keys, values (6), input of the projection (2)."""


def state_byte(parameters: ArrayLike, g: ArrayLike, replicas: ArrayLike, zero_stage: ArrayLike) -> Floats:
    """Weights, gradients and optimizer states that one device holds [byte].

    N/g (2/r3 + 2/r2 + 12/r1) for N parameters on g devices, where r_i is the number of replicas from ZeRO
    stage i on and 1 below: stage 1 shards the 12 bytes of optimizer states, 2 also the gradients, 3 also the weights.

    Assumes 16-bit weights and gradients and Adam in fp32, evenly split. A framework that accumulates gradients
    in fp32 (Megatron-LM with bf16: 18 byte per parameter) holds 2 bytes more; buffers and fragmentation are extra.

    Source: Rajbhandari et al., SC20, sections 3.1 and 5, figure 1.

    >>> state_byte(7.5e9, 1, 64, [0, 1, 2, 3]).tolist()
    [120000000000.0, 31406250000.0, 16640625000.0, 1875000000.0]
    """
    r, stage = np.asarray(replicas, dtype=np.float64), np.asarray(zero_stage)
    per_parameter = (
        WEIGHT_BYTE / np.where(stage >= 3, r, 1.0)
        + GRADIENT_BYTE / np.where(stage >= 2, r, 1.0)
        + OPTIMIZER_BYTE / np.where(stage >= 1, r, 1.0)
    )
    return np.asarray(parameters, dtype=np.float64) / np.asarray(g, dtype=np.float64) * per_parameter


def feed_forward_entries(model: Transformer) -> float:
    """Feed-forward numbers per token that the backward pass needs, mean over the layers: E.

    Plain 2 f (input and output of the nonlinearity); gated 3 f (gate, up and their product, with the
    nonlinearity of the gate computed again, as fused kernels do). A layer of experts counts those that a token
    activates, (top_k + E_s) f_e in place of f; its router and the copies that dispatch makes are left out.

    Source: Korthikanti et al., section 4.1, for plain; the rest follows by the same count.

    >>> from dse.catalog import load_catalog
    >>> feed_forward_entries(load_catalog().model("llama-2-7b")) == 3 * 11008
    True
    """
    m = model
    n_moe = m.layers - m.n_dense_layers if m.experts else 0
    expert_width = (m.experts_per_token + m.shared_experts) * m.expert_feed_forward
    width = (m.layers - n_moe) * m.feed_forward + n_moe * expert_width
    return (3.0 if m.gated else 2.0) * width / m.layers


def activation_byte(
    sequence_tokens: ArrayLike,
    micro_batch: ArrayLike,
    hidden: ArrayLike,
    heads: ArrayLike,
    feed_forward_entries: ArrayLike,
    g: ArrayLike,
    recompute: str,
    sequence_parallel: bool = True,
) -> Floats:
    """Activations of one layer and micro-batch that one of g tensor-parallel devices keeps [byte].

    With sequence parallelism s m h (18 + 2 E/h + 5 a s/h)/g, without it s m h (10 + (8 + 2 E/h + 5 a s/h)/g).
    Selective recomputation keeps no scores: the term 5 a s/h falls away. Full recomputation keeps only the
    layer's input, 2 s m h, whole on every device.

    The plain feed-forward of 4h has E = 8h (`feed_forward_entries`): 18 + 2 E/h is then the 34 of the source, and
    8 + 2 E/h its 24. Assumes multi-head attention with a d = h (grouped keys and values need up to 4 s m h/g less),
    scores held whole (a fused kernel that never holds them is "selective"), dropout masks counted (without dropout
    it is 2 s m h and a s^2 m less), 16-bit activations; embedding, last norm and logits are extra.

    Source: Korthikanti et al., arXiv 2205.05198, table 2.

    >>> [float(activation_byte(2048, 1, 12288, 96, 8 * 12288, 8, r)) for r in RECOMPUTE]
    [358612992.0, 106954752.0, 50331648.0]
    """
    if recompute not in RECOMPUTE:
        raise UnknownNameError(unknown_name("activation_byte", "recomputation", recompute, RECOMPUTE))
    s, m, h, a, entries, n = np.broadcast_arrays(
        *(
            np.asarray(v, dtype=np.float64)
            for v in (sequence_tokens, micro_batch, hidden, heads, feed_forward_entries, g)
        )
    )
    if recompute == "full":
        return 2.0 * s * m * h
    split = ATTENTION_BYTE + 2.0 * entries / h
    if recompute == "none":
        split = split + 5.0 * a * s / h
    per_number = (REPLICATED_BYTE + split) / n if sequence_parallel else REPLICATED_BYTE + split / n
    return s * m * h * per_number


def layer_activation_streaming_byte(
    sequence_tokens: ArrayLike, hidden: ArrayLike, heads: ArrayLike, feed_forward_entries: ArrayLike, recompute: str
) -> Floats:
    """What one layer of one sample takes on a streaming device while it is computed [byte].

    s h (18 + 2 E/h + 5 a s/h); selective: s h (18 + 2 E/h), the scores being made in tiles and never held whole.
    Full recomputation forgets a layer only once it is done, so it takes as much as none.

    Source: Korthikanti et al., arXiv 2205.05198, equation 1, with g = m = 1.

    >>> float(layer_activation_streaming_byte(2048, 12288, 96, 8 * 12288, "full")) == 2048 * 12288 * 114
    True
    """
    while_computed = "none" if recompute == "full" else recompute
    return activation_byte(sequence_tokens, 1.0, hidden, heads, feed_forward_entries, 1.0, while_computed)


def boundary_byte(sequence_tokens: ArrayLike, samples: ArrayLike, hidden: ArrayLike, layers: ArrayLike) -> Floats:
    """Inputs of L layers for b samples, 16 bit each, kept for the backward pass [byte]: 2 s b h L.

    Source: Korthikanti et al., arXiv 2205.05198, section 5 (full recomputation).

    >>> float(boundary_byte(2048, 4, 4096, 32))
    2147483648.0
    """
    s, b, h, n = (np.asarray(v, dtype=np.float64) for v in (sequence_tokens, samples, hidden, layers))
    return 2.0 * s * b * h * n
