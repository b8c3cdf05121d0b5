"""The chain of stages of pipeline designs: which pool each stage is on, its layers, its times.

A design's pipelines run through its pools in the study's order, or one that is given, R of them side by side. Where
layers are offloaded, a pool of streaming devices is no part of the chain: it serves every stage (docs/training.md).
Within a stage the wafer's layers come first: activations go stage -> wafer -> next stage, gradients the other way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dse.model.dp_pool import DpTable
from dse.model.fleet import gathered
from dse.model.pp_stage import balanced_layers, hop_in_pool_s, layer_time
from dse.model.training_memory import Recompute
from dse.model.training_pool import TrainingPool, TrainingSettings
from dse.model.training_run import TrainingFleet
from dse.model.training_work import TrainingWork

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class PpSystem:
    """One regime of a study: pools, schedule, and what is handed to wafers."""

    fleet: TrainingFleet
    schedule: str
    chunks: int
    """Interleaved: pieces that a stage's layers are dealt out in."""
    offload_layers: int
    """k: layers that every stage hands to the wafers; 0 for none."""
    collect: int
    """q: micro-batches that a wafer takes at once."""
    overlap_frac: float
    """Share of what crosses between pools that hides behind arithmetic."""
    layers: tuple[int, ...] = ()
    """Layers of each stage where the user fixes them; empty: balanced."""
    order: tuple[int, ...] = ()
    """Positions of the pools in the order in which a pipeline runs through them; empty: the study's."""
    stage_recompute: tuple[Recompute, ...] = ()
    """Recompute mode of each stage where the user fixes them; empty: the regime's."""
    whole_models: tuple[DpTable | None, ...]
    """Of each pool of streaming devices, its devices at work on the whole model each; None for others."""
    configs: tuple[Ints, ...]
    """Of each pool, a number for what its settings make of a chain: equal numbers, equal stages (K,)."""


def by_stage(system: PpSystem, value: Callable[[TrainingWork], Floats | float]) -> Floats:
    """Something of the work under each stage's recompute mode; `value` may have an entry for every stage (..., K)."""
    work = system.fleet.pools[0].work
    if not system.stage_recompute:
        return np.asarray(value(work), dtype=np.float64)
    modes = np.array(system.stage_recompute)
    result = np.zeros(len(modes))
    for mode in dict.fromkeys(system.stage_recompute):
        result = np.where(modes == mode, value(replace(work, recompute=mode)), result)
    return result


def configs_of(settings: Sequence[TrainingSettings]) -> tuple[Ints, ...]:
    """Numbers the distinct combinations of instance size, stages and micro-batch, and of being bought at all."""
    found = []
    for s in settings:
        top = int(s.micro_batch.max(initial=0)) + 1, int(s.stages.max(initial=0)) + 1
        code = ((s.g * top[1] + s.stages) * top[0] + s.micro_batch) * 2 + (s.n > 0)
        found.append(np.unique(code, return_inverse=True)[1].reshape(-1).astype(np.int64))
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Which pools of N designs hold stages, which serve them (N, P), and what is common to a pipeline (N,)."""

    n: Ints
    g: Ints
    zero_stage: Ints
    stages: Ints
    """Stages on each pool; 0 for a pool that holds none."""
    chain: Bools
    server: Bools
    replicas: Floats
    """R: pipelines side by side; that of the first pool of the chain."""
    same_replicas: Bools
    """Whether all pools of the chain form as many pipelines, of one micro-batch."""
    micro_batch: Ints

    @property
    def n_stages(self) -> Ints:
        """K."""
        return np.asarray(self.stages.sum(axis=1), dtype=np.int64)

    @property
    def wafers(self) -> Floats:
        """Instances that serve; 0 without offload."""
        return np.where(self.server, self.n / self.g, 0.0).sum(axis=1)


def placement(system: PpSystem, rows: Ints) -> Placement:
    """Reads designs (P, N) of table rows as pipelines."""
    pools, settings = system.fleet.pools, system.fleet.settings
    n, g, stages, micro, zero = (
        gathered([getattr(s, field) for s in settings], rows)
        for field in ("n", "g", "stages", "micro_batch", "zero_stage")
    )
    streams = np.array([p.device.streams for p in pools])
    active = n > 0
    server = active & streams & (system.offload_layers > 0)
    chain = active & ~server
    replicas = n / (g * stages)
    first = chain.argmax(axis=1)
    at = np.arange(len(first))
    r = replicas[at, first]
    sized = chain & ~streams
    lead = np.where(sized.any(axis=1), sized.argmax(axis=1), first)
    m = micro[at, lead]
    same = ((replicas == r[:, None]) | ~chain).all(axis=1) & ((micro == m[:, None]) | ~sized).all(axis=1)
    return Placement(
        n=n,
        g=g,
        zero_stage=zero,
        stages=np.where(chain, stages, 0),
        chain=chain,
        server=server,
        replicas=r,
        same_replicas=same & chain.any(axis=1),
        micro_batch=m,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """C chains of K stages each, for one micro-batch (C, K) [s]."""

    pool: Ints
    """Pool of each stage."""
    g: Ints
    """Instance size of each pool (C, P)."""
    micro_batch: Ints
    """(C,)"""
    kept: Ints
    """Layers that the stage computes itself."""
    too_few: Bools
    """Not a layer for every stage (C,)."""
    forward_s: Floats
    backward_s: Floats
    layer_compute_s: Floats
    """Arithmetic of one layer, forward and backward."""
    layer_fixed_s: Floats
    head_s: Floats
    """Output head, forward and backward; on the last stage only."""
    out_forward_s: Floats
    out_backward_s: Floats
    parameters: Floats

    @property
    def both_s(self) -> Floats:
        """Forward and backward of a stage."""
        return self.forward_s + self.backward_s

    @property
    def compute_s(self) -> Floats:
        """Arithmetic of a stage."""
        return self.kept * self.layer_compute_s + self.head_s

    @property
    def fixed_s(self) -> Floats:
        """What no batch removes of a stage."""
        return self.kept * self.layer_fixed_s

    def pool_sums(self, values: Floats, n_pools: int) -> Floats:
        """Sum of something over the stages of each pool (C, P)."""
        return np.stack([np.where(self.pool == p, values, 0.0).sum(axis=1) for p in range(n_pools)], axis=1)


def chain_of(system: PpSystem, place: Placement, designs: Ints, link: Ints) -> Chain:
    """The chains of some designs, all of the same number of stages K."""
    fleet, k = system.fleet, system.offload_layers
    work = fleet.pools[0].work
    stages, g, m = place.stages[designs], place.g[designs], place.micro_batch[designs]
    n_stages = int(stages[0].sum())
    pool = _pool_of_stages(stages, n_stages, system.order)
    last = np.arange(n_stages) == n_stages - 1
    layer_s, compute_s, fixed_s, forward_s, hop_s = by_stage(
        system, lambda work: _per_stage([replace(p, work=work) for p in fleet.pools], pool, g, m, stages)
    )
    across_s = across_pools_s(system, m, link)
    out_forward, out_backward = _outs(pool, hop_s, across_s, offloads=k > 0)
    rate = np.take_along_axis(g, pool, axis=1) * np.array([p.sustained_flop_s for p in fleet.pools])[pool]
    head_forward = np.where(last, m[:, None] * work.head_flop / rate, 0.0)
    head_backward = np.where(last, m[:, None] * by_stage(system, lambda w: w.head_backward_flop) / rate, 0.0)
    left = np.full(len(designs), work.layers - k * n_stages)
    inside = _outs(pool, hop_s, np.zeros(len(designs)), offloads=k > 0)
    other_s = head_forward + head_backward + inside[0] + inside[1]
    kept = np.tile(np.array(system.layers) - k, (len(designs), 1)) if system.layers else None
    if kept is None:
        kept = balanced_layers(left, layer_s, other_s)
    parameters = np.asarray(kept * work.layer_parameters + np.where(last, work.head_parameters, 0.0), dtype=np.float64)
    if n_stages > 1 or not work.tied:
        parameters[:, 0] += work.embedding_parameters
    return Chain(
        pool=pool,
        g=g,
        micro_batch=m,
        kept=kept,
        too_few=(left < n_stages) | (kept < 1).any(axis=1) | (kept.sum(axis=1) != left),
        forward_s=kept * forward_s + head_forward + out_forward,
        backward_s=kept * (layer_s - forward_s) + head_backward + out_backward,
        layer_compute_s=compute_s,
        layer_fixed_s=fixed_s,
        head_s=head_forward + head_backward,
        out_forward_s=out_forward,
        out_backward_s=out_backward,
        parameters=parameters,
    )


def across_pools_s(system: PpSystem, micro_batch: Ints | Floats, link: Ints) -> Floats:
    """Exposed transfer of a micro-batch's activations to another pool [s]: (1 - overlap) (l + m s h act/S)."""
    links, boundary = system.fleet.links, system.fleet.pools[0].work.boundary_byte
    return (1.0 - system.overlap_frac) * (links.latency_s[link] + micro_batch * boundary / links.byte_s[link])


def _pool_of_stages(stages: Ints, n_stages: int, order: tuple[int, ...]) -> Ints:
    """Which pool each stage is on (C, K), of the stages on each pool (C, P)."""
    ends = (stages[:, order] if order else stages).cumsum(axis=1)
    pool = (ends[:, None, :] <= np.arange(n_stages)[None, :, None]).sum(axis=2)
    return np.array(order)[pool] if order else pool


def _per_stage(pools: Sequence[TrainingPool], pool: Ints, g: Ints, micro_batch: Ints, stages: Ints) -> Floats:
    """Of each stage (5, C, K): a layer's time, its arithmetic, its fixed part, its forward; the hop inside its pool."""
    parts: list[list[Floats]] = [[], [], [], [], []]
    for p, one in enumerate(pools):
        t = layer_time(one, micro_batch, g[:, p])
        fixed = np.full(len(g), t.forwards * t.fixed_s)
        values = (t.both_s, t.forward_compute_s + t.backward_compute_s, fixed, t.forward_s)
        for part, value in zip(parts, (*values, hop_in_pool_s(one, micro_batch, g[:, p], stages[:, p])), strict=True):
            part.append(np.broadcast_to(value, (len(g),)))
    return np.stack([np.take_along_axis(np.stack(part, axis=1), pool, axis=1) for part in parts])


def _outs(pool: Ints, hop_s: Floats, across_s: Floats, *, offloads: bool) -> tuple[Floats, Floats]:
    """What each stage sends on, forward and backward [s]: inside its pool, or across the link between pools."""
    to_next = np.zeros(pool.shape)
    across = np.broadcast_to(across_s[:, None], pool.shape)
    if pool.shape[1] > 1:
        same = pool[:, 1:] == pool[:, :-1]
        inside = np.where(same, hop_s[:, :-1], across[:, :-1])
        to_next[:, :-1] = across[:, :-1] if offloads else inside
    to_previous = np.zeros(pool.shape)
    to_previous[:, 1:] = to_next[:, :-1]
    if offloads:
        to_previous[:, 0] = across_s
    return to_next, to_previous
