"""What is computed: a decoder-only transformer, and the requests it serves."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Transformer:
    """Shape of a decoder (docs/model.md, section 3). Fields that a model does not use are 0."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    feed_forward: int
    vocabulary: int
    gated: bool = True
    """SwiGLU: three matrices of hidden x feed_forward instead of two."""
    tied_embedding: bool = False
    attention_bias: bool = False
    """Biases on the query, key and value projections (Qwen2.5)."""
    sliding_window: int = 0
    """Tokens that a window layer attends to; 0 if none."""
    n_window_layers: int = 0
    experts: int = 0
    experts_per_token: int = 0
    expert_feed_forward: int = 0
    shared_experts: int = 0
    n_dense_layers: int = 0
    """The first layers of a mixture of experts that are dense."""
    q_rank: int = 0
    kv_rank: int = 0
    """Above 0: multi-head latent attention."""
    head_nope: int = 0
    head_rope: int = 0
    head_v: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestClass:
    """Requests of one shape. Means over a bin of a trace need not be whole numbers of tokens."""

    name: str
    share: float
    """Of all requests; the shares of a mix sum to 1."""
    input_tokens: float
    output_tokens: float
