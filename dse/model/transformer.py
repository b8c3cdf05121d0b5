"""Transformer arithmetic: parameters, flop and KV bytes of a decoder (docs/model.md, section 3).

Sources: Kaplan et al., arXiv 2001.08361 (2 flop per parameter and token); Korthikanti et al.,
arXiv 2205.05198 (causal attention); DeepSeek-AI, arXiv 2405.04434 (latent attention, absorbed form).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dse.workload import Transformer

Floats = NDArray[np.float64]


def attention_parameters(hidden: int, heads: int, kv_heads: int, head_size: int) -> int:
    """Matmul parameters of grouped-query attention, per layer: h a d + 2 h k d + a d h.

    >>> attention_parameters(4096, 32, 32, 128) == 4 * 4096**2
    True
    """
    return hidden * heads * head_size + 2 * hidden * kv_heads * head_size + heads * head_size * hidden


def latent_attention_parameters(
    hidden: int, heads: int, q_rank: int, kv_rank: int, head_nope: int, head_rope: int, head_v: int
) -> int:
    """Matmul parameters of multi-head latent attention, per layer.

    h q_rank + q_rank a (d_nope + d_rope) + h (kv_rank + d_rope) + kv_rank a (d_nope + d_v) + a d_v h.
    Without query compression (q_rank 0) the query takes h a (d_nope + d_rope).

    >>> latent_attention_parameters(7168, 128, 1536, 512, 128, 64, 128)
    187105280
    """
    query = heads * (head_nope + head_rope)
    return (
        (hidden * q_rank + q_rank * query if q_rank else hidden * query)
        + hidden * (kv_rank + head_rope)
        + kv_rank * heads * (head_nope + head_v)
        + heads * head_v * hidden
    )


def feed_forward_parameters(hidden: int, feed_forward: int, *, gated: bool) -> int:
    """Matmul parameters of one feed-forward block: 3 h f gated, 2 h f plain.

    >>> feed_forward_parameters(4096, 11008, gated=True)
    135266304
    """
    return (3 if gated else 2) * hidden * feed_forward


@dataclass(frozen=True, slots=True, kw_only=True)
class Arithmetic:
    """The numbers that one model shape comes down to."""

    layers: int
    hidden: int
    linear_parameters: float
    """N_lin: matmul parameters of all layers that one token activates."""
    head_parameters: float
    """N_head = V h."""
    total_parameters: float
    routed_parameters: float
    """Parameters of all routed experts of all layers: read only where a token touches them."""
    experts: int
    experts_per_token: int
    prefill_score_flop: float
    """Causal attention-score flop per squared prompt token, all layers: 2 L a d (latent: other sizes)."""
    decode_score_flop: float
    """Attention-score flop per context token of one decode step, all layers: 4 L a d (latent: absorbed)."""
    kv_entries: float
    """Numbers cached per token, all layers: 2 L k d; latent L (kv_rank + d_rope)."""
    kv_heads: int
    latent: bool
    sliding_window: int
    window_layer_frac: float


def arithmetic(model: Transformer) -> Arithmetic:
    """Parameter counts and flop coefficients of a model shape.

    >>> from dse.catalog import load_catalog
    >>> llama = arithmetic(load_catalog().model("llama-2-7b"))
    >>> round(llama.total_parameters / 1e9, 3), int(llama.kv_entries * 2)
    (6.738, 524288)
    """
    m = model
    latent = m.kv_rank > 0
    if latent:
        attention = latent_attention_parameters(
            m.hidden, m.heads, m.q_rank, m.kv_rank, m.head_nope, m.head_rope, m.head_v
        )
        prefill_score = m.layers * m.heads * (m.head_nope + m.head_rope + m.head_v)
        decode_score = 2 * m.layers * m.heads * (2 * m.kv_rank + m.head_rope)
        kv_entries = m.layers * (m.kv_rank + m.head_rope)
    else:
        attention = attention_parameters(m.hidden, m.heads, m.kv_heads, m.head_size)
        prefill_score = 2 * m.layers * m.heads * m.head_size
        decode_score = 4 * m.layers * m.heads * m.head_size
        kv_entries = 2 * m.layers * m.kv_heads * m.head_size
    dense_block = feed_forward_parameters(m.hidden, m.feed_forward, gated=m.gated)
    expert = feed_forward_parameters(m.hidden, m.expert_feed_forward, gated=m.gated)
    n_moe = m.layers - m.n_dense_layers if m.experts else 0
    n_dense = m.layers - n_moe
    router = m.hidden * m.experts
    shared = m.shared_experts * expert
    linear = m.layers * attention + n_dense * dense_block + n_moe * (router + m.experts_per_token * expert + shared)
    routed = n_moe * m.experts * expert
    head = m.vocabulary * m.hidden
    norms = (2 * m.layers + 1) * m.hidden
    biases = m.layers * (m.heads + 2 * m.kv_heads) * m.head_size if m.attention_bias else 0
    total = (
        m.layers * attention
        + n_dense * dense_block
        + n_moe * (router + shared)
        + routed
        + head * (1 if m.tied_embedding else 2)
        + norms
        + biases
    )
    return Arithmetic(
        layers=m.layers,
        hidden=m.hidden,
        linear_parameters=float(linear),
        head_parameters=float(head),
        total_parameters=float(total),
        routed_parameters=float(routed),
        experts=m.experts,
        experts_per_token=m.experts_per_token,
        prefill_score_flop=float(prefill_score),
        decode_score_flop=float(decode_score),
        kv_entries=float(kv_entries),
        kv_heads=m.kv_heads,
        latent=latent,
        sliding_window=m.sliding_window,
        window_layer_frac=m.n_window_layers / m.layers if m.sliding_window else 0.0,
    )


def causal_pairs(tokens: ArrayLike, window: int, window_layer_frac: float) -> Floats:
    """Squared-token equivalent of causal attention: n^2, or 2 n w - w^2 in a window layer once n > w.

    >>> float(causal_pairs(8192, 4096, 1.0)) == 2 * 8192 * 4096 - 4096**2
    True
    """
    n = np.asarray(tokens, dtype=np.float64)
    full = n * n
    if not window_layer_frac:
        return full
    windowed = np.where(n <= window, full, 2.0 * n * window - float(window) ** 2)
    return window_layer_frac * windowed + (1.0 - window_layer_frac) * full


def attended_tokens(tokens: ArrayLike, window: int, window_layer_frac: float) -> Floats:
    """Tokens that a layer sees or keeps on average: n, capped at the window in a window layer.

    >>> float(attended_tokens(5000.0, 4096, 0.5))
    4548.0
    """
    n = np.asarray(tokens, dtype=np.float64)
    if not window_layer_frac:
        return n
    return window_layer_frac * np.minimum(n, float(window)) + (1.0 - window_layer_frac) * n


def prefill_flop(a: Arithmetic, tokens: ArrayLike, hit_frac: float = 0.0) -> Floats:
    """Forward flop of one prompt of n tokens, one logit.

    F = 2 N_lin n' + (2 L a d)(n^2 - (n - n')^2) + 2 N_head with n' = n (1 - hit): the cached
    prefix is attended to but not computed again.

    >>> from dse.catalog import load_catalog
    >>> a = arithmetic(load_catalog().model("llama-2-7b"))
    >>> float(prefill_flop(a, 1024)) == 2 * 6476005376 * 1024 + 2 * 32 * 4096 * 1024**2 + 2 * 32000 * 4096
    True
    """
    fresh = np.asarray(tokens, dtype=np.float64) * (1.0 - hit_frac)
    scores = prefill_score_flop(a, tokens, hit_frac)
    return 2.0 * a.linear_parameters * fresh + scores + 2.0 * a.head_parameters


def prefill_score_flop(a: Arithmetic, tokens: ArrayLike, hit_frac: float = 0.0) -> Floats:
    """Attention scores in the forward of one prompt: (2 L a d)(n^2 - (n - n')^2) [flop].

    >>> from dse.catalog import load_catalog
    >>> float(prefill_score_flop(arithmetic(load_catalog().model("llama-2-7b")), 1024)) == 2 * 32 * 4096 * 1024**2
    True
    """
    n = np.asarray(tokens, dtype=np.float64)
    pairs = causal_pairs(n, a.sliding_window, a.window_layer_frac)
    cached_pairs = causal_pairs(n * hit_frac, a.sliding_window, a.window_layer_frac)
    return np.asarray(a.prefill_score_flop * (pairs - cached_pairs), dtype=np.float64)


def decode_flop(a: Arithmetic, context: ArrayLike) -> Floats:
    """Flop of one token at context c: 2 (N_lin + N_head) + (4 L a d) c.

    >>> from dse.catalog import load_catalog
    >>> a = arithmetic(load_catalog().model("llama-2-7b"))
    >>> float(decode_flop(a, 1152)) == 2 * (6476005376 + 32000 * 4096) + 4 * 32 * 4096 * 1152
    True
    """
    return 2.0 * (a.linear_parameters + a.head_parameters) + decode_score_flop(a, context)


def decode_score_flop(a: Arithmetic, context: ArrayLike) -> Floats:
    """Attention scores of one token at context c: (4 L a d) c [flop].

    >>> from dse.catalog import load_catalog
    >>> float(decode_score_flop(arithmetic(load_catalog().model("llama-2-7b")), 1000)) == 4 * 32 * 4096 * 1000
    True
    """
    return np.asarray(a.decode_score_flop * attended_tokens(context, a.sliding_window, a.window_layer_frac))


def kv_byte(a: Arithmetic, tokens: ArrayLike, dtype_byte: float) -> Floats:
    """KV cache of one sequence of n tokens [byte]; a window layer keeps its window.

    >>> from dse.catalog import load_catalog
    >>> float(kv_byte(arithmetic(load_catalog().model("llama-2-7b")), 1, 2.0))
    524288.0
    """
    return a.kv_entries * dtype_byte * attended_tokens(tokens, a.sliding_window, a.window_layer_frac)


def kv_share(a: Arithmetic, g: ArrayLike) -> Floats:
    """Share of a sequence's KV cache that one of g tensor-parallel devices holds.

    max(1/g, 1/k): a KV head cannot be split. Latent attention: all of it.

    >>> from dse.catalog import load_catalog
    >>> float(kv_share(arithmetic(load_catalog().model("llama-2-70b")), 16))
    0.125
    """
    n = np.asarray(g, dtype=np.float64)
    if a.latent:
        return np.ones_like(n)
    return np.maximum(1.0 / n, 1.0 / a.kv_heads)


def weight_byte(a: Arithmetic, dtype_byte: float) -> float:
    """All weights [byte]."""
    return a.total_parameters * dtype_byte


def touched_weight_byte(a: Arithmetic, batch: ArrayLike, dtype_byte: float) -> Floats:
    """Weights that a decode step of b tokens reads [byte].

    Of E routed experts, E (1 - (1 - top_k/E)^b) are expected to be touched; the rest is always read.

    >>> from dse.catalog import load_catalog
    >>> a = arithmetic(load_catalog().model("mixtral-8x7b"))
    >>> float(touched_weight_byte(a, 1, 2.0) / weight_byte(a, 2.0)).__round__(3)
    0.276
    """
    b = np.asarray(batch, dtype=np.float64)
    if not a.experts:
        return np.full_like(b, a.total_parameters * dtype_byte)
    untouched_frac = (1.0 - a.experts_per_token / a.experts) ** b
    return (a.total_parameters - a.routed_parameters * untouched_frac) * dtype_byte
