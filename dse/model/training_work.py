"""What one training sequence costs in arithmetic and messages (docs/training.md).

Sources: Narayanan et al., arXiv 2104.04473 (backward is twice the forward); Korthikanti et al., arXiv 2205.05198
(selective recomputation repeats the attention scores only).
"""

from __future__ import annotations

from dataclasses import dataclass

from dse.model.training_memory import Recompute, feed_forward_entries
from dse.model.transformer import arithmetic, causal_pairs
from dse.workload import Transformer

ACTIVATION_BYTE = 2.0
"""Activations, weights and gradients travel in 16 bit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingWork:
    """One sequence of a model under one recompute mode; layers are averaged where they differ."""

    layers: int
    hidden: int
    heads: int
    sequence_tokens: float
    recompute: Recompute
    parameters: float
    """Of the whole model."""
    layer_parameters: float
    embedding_parameters: float
    """Input embedding: held by the first stage of a pipeline."""
    head_parameters: float
    """Output head and last norm: held by the last stage (also where the model ties it to the embedding)."""
    tied: bool
    """The head is the embedding: a stage that has both holds it once."""
    feed_forward_entries: float
    """Feed-forward activations kept per token and layer."""
    layer_flop: float
    """Forward of one sequence through one layer."""
    layer_score_flop: float
    """Attention scores in it."""
    head_flop: float
    """Forward of one sequence through the output head, a logit per token."""

    @property
    def forwards(self) -> float:
        """Passes through every layer, in units of a forward: forward 1, backward 2, full recomputation 1."""
        return 4.0 if self.recompute == "full" else 3.0

    @property
    def allreduces(self) -> float:
        """Tensor-parallel all-reduces per layer and micro-step: two a forward, two a backward."""
        return 6.0 if self.recompute == "full" else 4.0

    @property
    def layer_backward_flop(self) -> float:
        """Backward of one sequence through one layer, recomputation included."""
        again = {"none": 0.0, "selective": self.layer_score_flop, "full": self.layer_flop}[self.recompute]
        return 2.0 * self.layer_flop + again

    @property
    def head_backward_flop(self) -> float:
        """Backward through the head; full recomputation repeats the head too."""
        return (3.0 if self.recompute == "full" else 2.0) * self.head_flop

    @property
    def train_flop(self) -> float:
        """All passes of one sequence through the whole model: what the hardware does."""
        layers = self.layers * (self.layer_flop + self.layer_backward_flop)
        return layers + self.head_flop + self.head_backward_flop

    @property
    def model_flop(self) -> float:
        """The same without recomputation: what counts for MFU."""
        return 3.0 * (self.layers * self.layer_flop + self.head_flop)

    @property
    def boundary_byte(self) -> float:
        """Activations of one sequence between two layers [byte]."""
        return self.sequence_tokens * self.hidden * ACTIVATION_BYTE


def training_work(model: Transformer, sequence_tokens: float, recompute: Recompute) -> TrainingWork:
    """Arithmetic of one sequence of n tokens.

    Forward F(n) = 2 N_lin n + 2 L a d n^2 + 2 N_head n: causal attention, a logit for every token.

    >>> from dse.catalog import load_catalog
    >>> work = training_work(load_catalog().model("llama-2-7b"), 2048, "none")
    >>> n = 2048
    >>> work.train_flop == 3 * (2 * 6476005376 * n + 2 * 32 * 4096 * n**2 + 2 * 32000 * 4096 * n)
    True
    """
    a = arithmetic(model)
    pairs = float(causal_pairs(sequence_tokens, a.sliding_window, a.window_layer_frac))
    score = a.prefill_score_flop * pairs / a.layers
    embedding = float(a.head_parameters)
    outside = embedding + (0.0 if model.tied_embedding else a.head_parameters) + model.hidden
    return TrainingWork(
        layers=a.layers,
        hidden=a.hidden,
        heads=model.heads,
        sequence_tokens=sequence_tokens,
        recompute=recompute,
        parameters=a.total_parameters,
        layer_parameters=(a.total_parameters - outside) / a.layers,
        embedding_parameters=embedding,
        head_parameters=a.head_parameters + model.hidden,
        tied=model.tied_embedding,
        feed_forward_entries=feed_forward_entries(model),
        layer_flop=2.0 * a.linear_parameters / a.layers * sequence_tokens + score,
        layer_score_flop=score,
        head_flop=2.0 * a.head_parameters * sequence_tokens,
    )
