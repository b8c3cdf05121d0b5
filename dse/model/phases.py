"""Time of a prefill pass and of a decode step on one instance of g devices (docs/model.md, section 4).

Shapes broadcast: a caller gives settings down the rows (K, 1) and request classes across (C,).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dse.hardware import Accelerator, Phase
from dse.model.collectives import allreduce_s, hop_s
from dse.model.roofline import table_time_s, term_s
from dse.model.transformer import (
    Arithmetic,
    decode_flop,
    kv_byte,
    kv_share,
    prefill_flop,
    touched_weight_byte,
    weight_byte,
)

Floats = NDArray[np.float64]

ACTIVATION_BYTE = 2.0
"""Activations cross links in 16 bit whatever the weights are stored in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassTime:
    """One pass and its parts, all [s] for the whole instance; flop and byte count all its devices."""

    flop: Floats
    moved_byte: Floats
    compute_s: Floats
    memory_s: Floats
    communication_s: Floats
    fixed_s: Floats
    occupancy_s: Floats
    """How long the instance is taken."""
    latency_s: Floats
    """How long the pass takes from end to end."""


def _tier(device: Accelerator, g: Floats) -> tuple[Floats, Floats]:
    """Bandwidth [byte/s] and latency [s] of a collective over g devices: scale-out once it spans nodes."""
    inside = g <= device.node_size
    return (
        np.where(inside, device.link_byte_s, device.scale_out_byte_s),
        np.where(inside, device.link_latency_s, device.scale_out_latency_s),
    )


def _terms(
    device: Accelerator, phase: Phase, dtype: str, flop: Floats, moved: Floats, n: ArrayLike, layers: int
) -> tuple[Floats, Floats, Floats]:
    """t_c = F / (n P e_c), t_m = Q / (n B e_m) and L tau [s]; a measured table takes the place of all three."""
    e = device.efficiency[phase]
    shape = np.broadcast(flop, n).shape
    if e.table_flop:
        measured = table_time_s(flop / np.asarray(n), e.table_flop, e.table_s)
        return np.broadcast_to(measured, shape), np.zeros(shape), np.zeros(shape)
    # a device without this arithmetic runs nothing; any peak keeps its times finite
    peak = device.peak(dtype) or max(device.peak_flop_s.values())
    return (
        term_s(flop, n, peak, e.compute),
        term_s(moved, n, device.memory_bandwidth_byte_s, e.memory),
        np.full(shape, layers * e.fixed_layer_s),
    )


def prefill_time(
    device: Accelerator,
    a: Arithmetic,
    *,
    g: ArrayLike,
    batch: ArrayLike,
    input_tokens: ArrayLike,
    hit_frac: float,
    weight_dtype_byte: float,
    kv_dtype_byte: float,
    compute_dtype: str,
) -> PassTime:
    """Prefill of b prompts of n tokens on one instance of g devices.

    F = b F(n); Q = weights + b n kv share g over all devices. Tensor:
    t = L tau + max(F/(g P e_c), Q/(g B e_m)) + 2 L allreduce(b n' h act, g), both latency and
    occupancy. Pipeline (share 1/g): latency L tau + max(F/(P e_c), Q/(B e_m)) + (g-1) hop, occupancy
    L tau/g + max(F/(g P e_c), Q/(g B e_m)) + [g>1] hop. A cached prefix (hit_frac) is read and kept
    but not computed or sent.
    """
    n_dev, b = np.asarray(g, dtype=np.float64), np.asarray(batch, dtype=np.float64)
    tokens = np.asarray(input_tokens, dtype=np.float64)
    flop = b * prefill_flop(a, tokens, hit_frac)
    kv = b * kv_byte(a, tokens, kv_dtype_byte)
    message = b * tokens * (1.0 - hit_frac) * a.hidden * ACTIVATION_BYTE
    weights = weight_byte(a, weight_dtype_byte)
    if device.arrangement == "tensor":
        moved = weights + kv * kv_share(a, n_dev) * n_dev
        compute, memory, fixed = _terms(device, "prefill", compute_dtype, flop, moved, n_dev, a.layers)
        bandwidth, latency0 = _tier(device, n_dev)
        comm = 2.0 * a.layers * allreduce_s(message, n_dev, bandwidth, device.link_efficiency, latency0)
        occupancy = fixed + np.maximum(compute, memory) + comm
        latency = occupancy
    else:
        moved = weights + kv
        compute, memory, fixed = _terms(device, "prefill", compute_dtype, flop, moved, n_dev, a.layers)
        hop = hop_s(message, device.link_byte_s, device.link_efficiency, device.link_latency_s)
        one_compute, one_memory, _ = _terms(device, "prefill", compute_dtype, flop, moved, 1.0, a.layers)
        latency = fixed + np.maximum(one_compute, one_memory) + (n_dev - 1.0) * hop
        fixed = fixed / n_dev
        comm = np.where(n_dev > 1.0, hop, 0.0)
        occupancy = fixed + np.maximum(compute, memory) + comm
    return PassTime(
        flop=flop,
        moved_byte=moved,
        compute_s=compute,
        memory_s=memory,
        communication_s=comm,
        fixed_s=fixed,
        occupancy_s=occupancy,
        latency_s=latency,
    )


def decode_time(
    device: Accelerator,
    a: Arithmetic,
    *,
    g: ArrayLike,
    batch: ArrayLike,
    context_tokens: ArrayLike,
    weight_dtype_byte: float,
    kv_dtype_byte: float,
    compute_dtype: str,
) -> PassTime:
    """One decode step: b sequences of mean context c gain one token each.

    Tensor: t = L tau + max(b F_dec/(g P e_c), Q/(g B e_m)) + 2 L allreduce(b h act, g),
    Q = weights + b c kv share g. Pipeline: groups of b_g = max(1, b/g) keep all wafers busy,
    t = L tau + max(b_g F_dec/(P e_c), (weights + b_g c kv)/(B e_m)) + [g>1] g hop(b_g).
    Of a mixture of experts only the experts that a group is expected to touch are read.
    """
    n_dev, b = np.asarray(g, dtype=np.float64), np.asarray(batch, dtype=np.float64)
    token_flop = decode_flop(a, context_tokens)
    kv = kv_byte(a, context_tokens, kv_dtype_byte)
    flop = b * token_flop
    if device.arrangement == "tensor":
        moved = touched_weight_byte(a, b, weight_dtype_byte) + b * kv * kv_share(a, n_dev) * n_dev
        compute, memory, fixed = _terms(device, "decode", compute_dtype, flop, moved, n_dev, a.layers)
        bandwidth, latency0 = _tier(device, n_dev)
        message = b * a.hidden * ACTIVATION_BYTE
        comm = 2.0 * a.layers * allreduce_s(message, n_dev, bandwidth, device.link_efficiency, latency0)
    else:
        group = np.maximum(1.0, b / n_dev)
        group_moved = touched_weight_byte(a, group, weight_dtype_byte) + group * kv
        group_flop = group * token_flop
        compute, memory, fixed = _terms(device, "decode", compute_dtype, group_flop, group_moved, 1.0, a.layers)
        message = group * a.hidden * ACTIVATION_BYTE
        hop = hop_s(message, device.link_byte_s, device.link_efficiency, device.link_latency_s)
        comm = np.where(n_dev > 1.0, n_dev * hop, 0.0)
        moved = group_moved * (b / group)
    step = fixed + np.maximum(compute, memory) + comm
    return PassTime(
        flop=flop,
        moved_byte=moved,
        compute_s=compute,
        memory_s=memory,
        communication_s=comm,
        fixed_s=fixed,
        occupancy_s=step,
        latency_s=step,
    )
