"""One step of pipeline designs: what it takes, what fits, what each pool does in it (docs/training.md).

The all-reduce of gradients over the R pipelines follows the schedule. What the link between pools carries in a step
takes at least its bytes over S: no schedule is faster than that.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dse.model.dp_pool import margin_byte, samples_byte
from dse.model.pp_chain import Chain, Placement, PpSystem, by_stage, chain_of
from dse.model.pp_memory import chain_margin_byte, server_outside_byte
from dse.model.pp_server import Server, scheduled_s, server_of
from dse.model.training_pool import TrainingSettings

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

MOST_CODES = 2**62
"""Beyond, codes of chains are numbered anew so that none overflows."""

FAULTS = ("stages", "servers", "chain", "micro_batches", "layers", "sharing", "interleaving")
"""Structural: no pool for stages; layers handed over to no pool, or to several; pools that do not make as many
pipelines of one micro-batch; N is no whole number; fewer layers than stages; wafers, pipelines and calls do not divide;
interleaved pieces without a layer, or N no multiple of K."""


@dataclass(slots=True, kw_only=True)
class Steps:
    """What a step of N designs comes to; pools in (N, P)."""

    step_s: Floats
    path_s: Floats
    """One micro-batch through all stages, there and back."""
    n_micro: Floats
    gradient_s: Floats
    total_s: Floats
    """Busy time of each pool's instances."""
    compute_s: Floats
    communication_s: Floats
    fixed_s: Floats
    flop: Floats
    model_flop: Floats
    """Without recomputation."""
    margin_byte: Floats
    """Left on the tightest device of each pool; infinite for a pool that is not bought."""
    outside_byte: Floats
    """Of this, what is left of a streaming pool's memory outside; infinite for others."""
    crossing_byte: Floats
    """Carried by the busiest direction of a link."""
    fault: dict[str, Bools]
    kept: Ints
    """Layers that each stage computes itself; 0 beyond the last (N, most stages)."""
    whole: Bools
    """One pool of streaming devices that each hold the whole model."""

    @property
    def possible(self) -> Bools:
        """Whether the structure is sound and everything fits."""
        broken = np.logical_or.reduce(list(self.fault.values()))
        return np.asarray(~broken & (self.margin_byte >= 0).all(axis=1) & np.isfinite(self.step_s))


def _empty(n: int, n_pools: int, most_stages: int) -> Steps:
    def pools() -> Floats:
        return np.zeros((n, n_pools))

    return Steps(
        step_s=np.full(n, np.inf),
        path_s=np.full(n, np.inf),
        n_micro=np.ones(n),
        gradient_s=np.zeros(n),
        total_s=pools(),
        compute_s=pools(),
        communication_s=pools(),
        fixed_s=pools(),
        flop=pools(),
        model_flop=pools(),
        outside_byte=np.full((n, n_pools), np.inf),
        margin_byte=np.full((n, n_pools), np.inf),
        crossing_byte=np.zeros(n),
        fault={name: np.zeros(n, dtype=np.bool_) for name in FAULTS},
        kept=np.zeros((n, most_stages), dtype=np.int64),
        whole=np.zeros(n, dtype=np.bool_),
    )


def steps_of(system: PpSystem, place: Placement, rows: Ints, link: Ints, *, screening: bool = False) -> Steps:
    """Steps of N designs; rows (P, N), link (N,).

    Screening, the 1F1B step is its lower bound, and of each pool only its busy time and memory are filled in.
    """
    n_stages = place.n_stages
    most = int(n_stages.max(initial=1))
    found = _empty(rows.shape[1], rows.shape[0], most)
    code = link.astype(np.int64)
    for config, r in zip(system.configs, rows, strict=True):
        radix = int(config.max(initial=0)) + 1
        if (int(code.max(initial=0)) + 1) * radix > MOST_CODES:
            code = np.unique(code, return_inverse=True)[1].reshape(-1)
        code = code * radix + config[r]
    for k in np.unique(n_stages):
        designs = np.flatnonzero((n_stages == k) & place.same_replicas)
        if not k or not len(designs):
            continue
        _, first, which = np.unique(code[designs], return_index=True, return_inverse=True)
        distinct = chain_of(system, place, designs[first], link[designs[first]])
        _step(system, place, distinct, which.reshape(-1), designs, link[designs], found, screening=screening)
    bare = np.asarray(~place.chain.any(axis=1), dtype=np.bool_)
    found.fault["stages"] = bare
    found.fault["chain"] = ~place.same_replicas & ~bare
    if system.offload_layers:
        found.fault["servers"] = np.asarray(place.server.sum(axis=1) != 1, dtype=np.bool_)
    _whole_models(system, place, rows, found)
    return found


def _step(
    system: PpSystem,
    place: Placement,
    chain: Chain,
    which: Ints,
    designs: Ints,
    link: Ints,
    found: Steps,
    *,
    screening: bool,
) -> None:
    """Fills in the designs of one number of stages; `which` of the distinct chains each has."""
    work, batch = system.fleet.pools[0].work, float(system.fleet.global_batch)
    m, r = place.micro_batch[designs].astype(np.float64), place.replicas[designs]
    n_stages = chain.pool.shape[1]
    n_micro = batch / (r * m)
    whole_n = np.maximum(np.floor(n_micro), 1.0)
    wafers = place.wafers[designs]
    pipelines = np.divide(r, wafers, out=np.zeros(len(r)), where=wafers > 0)
    found.n_micro[designs] = whole_n
    found.fault["micro_batches"][designs] = (n_micro != whole_n) | (n_micro < 1)
    found.fault["layers"][designs] = chain.too_few[which]
    if system.offload_layers:
        per_call = pipelines / system.collect
        found.fault["sharing"][designs] = (pipelines != np.floor(pipelines)) | (per_call != np.floor(per_call))
    if system.schedule == "interleaved":
        small = np.asarray((chain.kept < system.chunks).any(axis=1))[which]
        found.fault["interleaving"][designs] = (whole_n % n_stages != 0) | small
    _memory(system, place, chain, which, designs, whole_n, found)
    crossing = _crossing_byte(system, place, designs, batch * work.boundary_byte)
    found.crossing_byte[designs] = crossing
    server = server_of(system, place, designs)
    with np.errstate(invalid="ignore"):
        step = scheduled_s(system, chain, which, whole_n, server, link, m, screening=screening)
    step = np.maximum(step, crossing / system.fleet.links.byte_s[link])
    gradient = _gradient_s(system, place, chain, which, designs)
    found.gradient_s[designs] = gradient
    found.step_s[designs] = step + gradient
    _pool_times(system, chain, which, designs, whole_n, server, found, screening=screening)
    if not screening:
        found.path_s[designs] = chain.both_s.sum(axis=1)[which] + (server.call_s if server else 0.0)
        found.kept[designs, :n_stages] = chain.kept[which]


def _crossing_byte(system: PpSystem, place: Placement, designs: Ints, batch_byte: float) -> Floats:
    """Activations through the busiest direction of a link in one step, of the whole batch.

    Between two pools of a chain they cross once each way. With offload every stage of a pool exchanges with the
    wafers: K_p forward and K_p back, less one where the pool holds both ends of the chain.
    """
    stages = place.stages[designs]
    if not system.offload_layers:
        return np.where((stages > 0).sum(axis=1) > 1, batch_byte, 0.0)
    ends_only = (stages > 0).sum(axis=1) == 1
    return (2.0 * stages.max(axis=1) - ends_only) * batch_byte


def _gradient_s(system: PpSystem, place: Placement, chain: Chain, which: Ints, designs: Ints) -> Floats:
    """All-reduce of gradients over the pipelines, of the stage that takes longest; of wafers over each other."""
    longest = np.zeros(len(designs))
    for p, pool in enumerate(system.fleet.pools):
        serves = place.server[designs, p]
        parameters = np.where(chain.pool == p, chain.parameters, 0.0).max(axis=1)[which]
        if system.offload_layers:
            held = place.n_stages[designs] * system.offload_layers * pool.work.layer_parameters
            parameters = np.where(serves, held, parameters)
        if not parameters.any():
            continue
        group = TrainingSettings(
            n=place.n[designs, p],
            g=place.g[designs, p],
            stages=np.maximum(place.stages[designs, p], 1),
            micro_batch=place.micro_batch[designs],
            zero_stage=place.zero_stage[designs, p],
        )
        longest = np.maximum(longest, np.where(parameters > 0, pool.gradient_allreduce_s(parameters, group), 0.0))
    return longest


def _memory(
    system: PpSystem, place: Placement, chain: Chain, which: Ints, designs: Ints, n_micro: Floats, found: Steps
) -> None:
    margin, outside = chain_margin_byte(system, place, chain, which, designs, n_micro)
    for p, pool in enumerate(system.fleet.pools):
        serves = np.flatnonzero(place.server[designs, p])
        if len(serves):
            outside[serves, p] = server_outside_byte(system, pool, place, p, designs[serves], n_micro[serves])
            margin[serves, p] = np.minimum(pool.usable - pool.one_layer_byte, outside[serves, p])
        if not pool.computes:
            margin[np.isfinite(margin[:, p]), p] = -np.inf
    found.margin_byte[designs], found.outside_byte[designs] = margin, outside


def _pool_times(
    system: PpSystem,
    chain: Chain,
    which: Ints,
    designs: Ints,
    n_micro: Floats,
    server: Server | None,
    found: Steps,
    *,
    screening: bool,
) -> None:
    """Busy time of an instance of each pool and its parts, averaged over the pool's stages."""
    work, batch = system.fleet.pools[0].work, float(system.fleet.global_batch)
    n_pools, n_stages = len(system.fleet.pools), chain.pool.shape[1]
    micro_batches = n_micro[:, None] / np.maximum(chain.pool_sums(np.ones(chain.pool.shape), n_pools)[which], 1.0)
    parts = [(found.total_s, chain.both_s, server.call_s if server else None)]
    if not screening:
        other_s = chain.both_s - chain.compute_s - chain.fixed_s
        parts += [
            (found.compute_s, chain.compute_s, server.compute_s if server else None),
            (found.fixed_s, chain.fixed_s, server.fixed_s if server else None),
            (found.communication_s, other_s, None),
        ]
    for part, values, of_server in parts:
        part[designs] = chain.pool_sums(values, n_pools)[which] * micro_batches
        if server is not None and of_server is not None:
            part[designs, server.pool] = n_micro * server.calls * of_server
    if screening:
        return
    layer_flop = by_stage(system, lambda w: w.layer_flop + w.layer_backward_flop)
    head_flop = np.broadcast_to(by_stage(system, lambda w: w.head_flop + w.head_backward_flop), n_stages)
    for part, of_layer, of_head, on_server in (
        (found.flop, layer_flop, head_flop[-1], work.layer_flop + work.layer_backward_flop),
        (found.model_flop, 3.0 * work.layer_flop, 3.0 * work.head_flop, 3.0 * work.layer_flop),
    ):
        flop = np.asarray(chain.kept * of_layer, dtype=np.float64)
        flop[:, -1] += of_head
        part[designs] = batch * chain.pool_sums(flop, n_pools)[which]
        if server is not None:
            part[designs, server.pool] = batch * server.layers * on_server


def _whole_models(system: PpSystem, place: Placement, rows: Ints, found: Steps) -> None:
    """A pool of streaming devices alone, one stage: each wafer runs the whole model, its share as one batch."""
    if system.offload_layers:
        return
    for p, (pool, table) in enumerate(zip(system.fleet.pools, system.whole_models, strict=True)):
        if table is None:
            continue
        at = np.flatnonzero((place.stages[:, p] == 1) & (place.chain.sum(axis=1) == 1) & place.chain[:, p])
        if not len(at):
            continue
        r, batch = rows[p, at], float(system.fleet.global_batch)
        share = table.share.rows(r)
        time_s = share.time_s(batch)
        found.whole[at] = True
        for fault in found.fault.values():
            fault[at] = False
        found.n_micro[at] = 1.0
        found.step_s[at] = found.path_s[at] = time_s
        works = np.isfinite(time_s)
        found.total_s[at, p] = np.where(works, time_s, 0.0)
        found.fixed_s[at, p] = np.where(works, table.fixed_step_s[r], 0.0)
        found.communication_s[at, p] = found.gradient_s[at] = np.where(works, table.gradient_s[r], 0.0)
        parts = found.fixed_s[at, p] + found.communication_s[at, p]
        found.compute_s[at, p] = np.maximum(found.total_s[at, p] - parts, 0.0)
        every = np.full(len(at), batch)
        found.margin_byte[at, p] = margin_byte(table, r, every)
        found.outside_byte[at, p] = table.outside_byte[r] - samples_byte(table, r, every)
        works = np.where(works, batch, 0.0)
        found.flop[at, p], found.model_flop[at, p] = works * pool.work.train_flop, works * pool.work.model_flop
