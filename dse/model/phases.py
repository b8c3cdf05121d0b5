"""Time of a prefill pass and of a decode step on one instance of g devices (docs/model.md, section 4).

Shapes broadcast: a caller gives settings down the rows (K, 1) and request classes across (C,).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dse.hardware import Accelerator, Efficiency, PassTimes
from dse.model.collectives import allreduce_s, hop_s
from dse.model.roofline import table_time_s, term_s
from dse.model.transformer import (
    Arithmetic,
    decode_flop,
    decode_score_flop,
    kv_byte,
    kv_share,
    prefill_flop,
    prefill_score_flop,
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """What one pass does."""

    flop: Floats
    score_flop: Floats
    """Attention scores among them."""
    moved_byte: Floats
    sequences: Floats


def _terms(
    device: Accelerator,
    e: Efficiency,
    dtype: str,
    work: _Work,
    n: ArrayLike,
    layers: ArrayLike,
) -> tuple[Floats, Floats, Floats]:
    """t_c = F / (n P e_c), t_m = Q / (n B e_m) and L tau + b sigma [s]; a measured table takes the place of all three.

    F counts a flop of attention scores as e_c/e_a.
    """
    shape = np.broadcast(work.flop, n).shape
    if e.table_flop:
        measured = e.slowdown * table_time_s(work.flop / np.asarray(n), e.table_flop, e.table_s)
        return np.broadcast_to(measured, shape), np.zeros(shape), np.zeros(shape)
    # a device without this arithmetic runs nothing; any peak keeps its times finite
    peak = device.peak(dtype) or max(device.peak_flop_s.values())
    charged = work.flop if e.attention is None else work.flop + (e.score_weight - 1.0) * work.score_flop
    return (
        e.slowdown * term_s(charged, n, peak, e.compute),
        e.slowdown * term_s(work.moved_byte, n, device.memory_bandwidth_byte_s, e.memory),
        np.broadcast_to(e.slowdown * (np.asarray(layers) * e.fixed_layer_s + work.sequences * e.sequence_s), shape),
    )


def _layer_allreduces_s(device: Accelerator, a: Arithmetic, message_byte: Floats, g: Floats) -> Floats:
    """Two all-reduces a layer over the instance [s]."""
    bandwidth, latency0 = _tier(device, g)
    return 2.0 * a.layers * allreduce_s(message_byte, g, bandwidth, device.link_efficiency, latency0)


def _measured(e: Efficiency, g: Floats, batch: Floats, tokens: Floats, work: _Work) -> PassTime:
    """A pass whose time was measured as a whole: all of it counts as compute."""
    times = cast("PassTimes", e.times)
    total = e.slowdown * times.pass_s(g, batch, tokens)
    nothing = np.zeros_like(total)
    return PassTime(
        flop=np.broadcast_to(work.flop, total.shape),
        moved_byte=np.broadcast_to(work.moved_byte, total.shape),
        compute_s=total,
        memory_s=nothing,
        communication_s=nothing,
        fixed_s=nothing,
        occupancy_s=total,
        latency_s=total,
    )


def n_chunks(tokens: ArrayLike, chunk_tokens: ArrayLike) -> Floats:
    """Passes that tokens take, at most so many at once.

    >>> n_chunks([512.0, 513.0, 1.0], 512.0).tolist(), float(n_chunks(1e6, np.inf))
    ([1.0, 2.0, 1.0], 1.0)
    """
    return np.maximum(np.ceil(np.asarray(tokens, dtype=np.float64) / np.asarray(chunk_tokens, dtype=np.float64)), 1.0)


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
    chunk_tokens: ArrayLike = np.inf,
) -> PassTime:
    """Prefill of b prompts of n tokens on one instance of g devices.

    F = b F(n); Q = weights + b n kv share g over all devices. Tensor:
    t = L tau + max(F/(g P e_c), Q/(g B e_m)) + 2 L allreduce(b n' h act, g), both latency and
    occupancy. Pipeline (share 1/g): latency L tau + max(F/(P e_c), Q/(B e_m)) + (g-1) hop, occupancy
    L tau/g + max(F/(g P e_c), Q/(g B e_m)) + [g>1] hop. A cached prefix (hit_frac) is read and kept
    but not computed or sent.

    In chunks, k = ceil(b n'/chunk) passes do the work of one: k L tau, k times the weights, (k + 1)/2 times the KV
    cache (a pass reads what those before have left), k times the latency of collectives. k = 1 changes nothing.
    """
    n_dev, b = np.asarray(g, dtype=np.float64), np.asarray(batch, dtype=np.float64)
    tokens = np.asarray(input_tokens, dtype=np.float64)
    e = device.efficiency["prefill"].at(compute_dtype)
    passes = n_chunks(b * tokens * (1.0 - hit_frac), chunk_tokens)
    kv = b * kv_byte(a, tokens, kv_dtype_byte) * (passes + 1.0) / 2.0
    weights = passes * weight_byte(a, weight_dtype_byte)
    tensor = device.arrangement == "tensor"
    work = _Work(
        flop=b * prefill_flop(a, tokens, hit_frac),
        score_flop=b * prefill_score_flop(a, tokens, hit_frac),
        moved_byte=weights + (kv * kv_share(a, n_dev) * n_dev if tensor else kv),
        sequences=b,
    )
    if e.times is not None:
        return _measured(e, n_dev, b, tokens, work)
    message = b * tokens * (1.0 - hit_frac) * a.hidden * ACTIVATION_BYTE / passes
    compute, memory, fixed = _terms(device, e, compute_dtype, work, n_dev, passes * a.layers)
    if tensor:
        comm = e.slowdown * passes * _layer_allreduces_s(device, a, message, n_dev)
        occupancy = fixed + np.maximum(compute, memory) + comm
        latency = occupancy
    else:
        hop = e.slowdown * passes * hop_s(message, device.link_byte_s, device.link_efficiency, device.link_latency_s)
        one_compute, one_memory, _ = _terms(device, e, compute_dtype, work, 1.0, passes * a.layers)
        latency = fixed + np.maximum(one_compute, one_memory) + (n_dev - 1.0) * hop
        fixed = fixed / n_dev
        comm = np.where(n_dev > 1.0, hop, 0.0)
        occupancy = fixed + np.maximum(compute, memory) + comm
    return PassTime(
        flop=work.flop,
        moved_byte=work.moved_byte,
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
    context = np.asarray(context_tokens, dtype=np.float64)
    e = device.efficiency["decode"].at(compute_dtype)
    kv = kv_byte(a, context, kv_dtype_byte)
    tensor = device.arrangement == "tensor"
    group = b if tensor else np.maximum(1.0, b / n_dev)
    work = _Work(
        flop=group * decode_flop(a, context),
        score_flop=group * decode_score_flop(a, context),
        moved_byte=touched_weight_byte(a, group, weight_dtype_byte)
        + group * kv * (kv_share(a, n_dev) * n_dev if tensor else 1.0),
        sequences=group,
    )
    if e.times is not None:
        whole = replace(work, flop=work.flop * (b / group), moved_byte=work.moved_byte * (b / group))
        return _measured(e, n_dev, b, context, whole)
    message = group * a.hidden * ACTIVATION_BYTE
    compute, memory, fixed = _terms(device, e, compute_dtype, work, n_dev if tensor else 1.0, a.layers)
    if tensor:
        comm = e.slowdown * _layer_allreduces_s(device, a, message, n_dev)
    else:
        hop = e.slowdown * hop_s(message, device.link_byte_s, device.link_efficiency, device.link_latency_s)
        comm = np.where(n_dev > 1.0, n_dev * hop, 0.0)
    step = fixed + np.maximum(compute, memory) + comm
    return PassTime(
        flop=work.flop * (b / group),
        moved_byte=work.moved_byte * (b / group),
        compute_s=compute,
        memory_s=memory,
        communication_s=comm,
        fixed_s=fixed,
        occupancy_s=step,
        latency_s=step,
    )
