"""Prefill/decode serving on several pools: rate, latency, cost, power, and why (MODEL sections 5-7).

`screen` gives only what a search needs, at memory speed; `evaluate` gives every column of a result
row; both read the same pool tables. Arrays hold one entry a design; a design names, per pool, a row
of that pool's table, and one link.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dse.model.cost import usd_per_mtok
from dse.model.pool_table import PoolTable
from dse.model.queueing import largest_rate, mean_wait_s, tail_wait_s
from dse.model.routing import split_rate, stealing_flows_lp
from dse.model.serving_pool import (
    BOTH,
    DECODE,
    P99_SHARE,
    PREFILL,
    Mix,
    PhaseTable,
    PoolPhysics,
    ServingLimits,
    half_step_s,
)
from dse.model.stealing import StealingPlans, stealing_flows, stealing_plans, stealing_rate
from dse.study import Site

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

SATURATED = 1.0 - 1e-9
"""A pool or link busier than this is what binds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkTable:
    """The links on offer, each as bought for one pair of pools (L,). Power before PUE."""

    byte_s: Floats
    latency_s: Floats
    usd_per_h: Floats
    power_w: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """One regime of a study: pools with their tables, one routing, one precision."""

    pools: tuple[PoolPhysics, ...]
    tables: tuple[PoolTable, ...]
    stealing: bool
    """Work stealing instead of split."""
    links: LinkTable
    mix: Mix
    limits: ServingLimits
    demand_requests_s: float | None
    site: Site
    plans: dict[tuple[int, int], StealingPlans] = field(default_factory=dict)
    """Work stealing between two pools: the plans of each pair of configurations, made when first needed."""

    @property
    def output_tok(self) -> float:
        """Mean output tokens per request."""
        return float((self.mix.share * self.mix.output_tokens).sum())

    @property
    def input_tok(self) -> float:
        """Mean input tokens per request."""
        return float((self.mix.share * self.mix.input_tokens).sum())

    @property
    def class_kv_byte(self) -> Floats:
        """KV cache that a request of each class hands from prefill to decode [byte] (C,)."""
        return self.pools[0].kv(self.mix.input_tokens)

    @property
    def request_kv_byte(self) -> float:
        """The same, averaged over the mix [byte]."""
        return float((self.mix.share * self.class_kv_byte).sum())


def plans_of(system: System, config_a: int, config_b: int) -> StealingPlans:
    """Plans of work stealing for one configuration of each of two pools."""
    key = (config_a, config_b)
    if key not in system.plans:
        prefill, decode = _seconds(system, *key)
        system.plans[key] = stealing_plans(prefill, decode, system.mix.share, system.class_kv_byte)
    return system.plans[key]


def _seconds(system: System, *configs: int) -> tuple[tuple[Floats, Floats], tuple[Floats, Floats]]:
    """Seconds of one instance per request, prefill and decode, of one configuration of each of two pools (C,)."""
    (a, b), (config_a, config_b) = system.tables, configs
    return (
        (a.prefill.request_s[config_a], b.prefill.request_s[config_b]),
        (a.decode.request_s[config_a], b.decode.request_s[config_b]),
    )


def _total(parts: Sequence[Floats]) -> Floats:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def link_pairs(system: System, rows: Sequence[Ints]) -> Floats:
    """Connections to buy: pairs of active pools between which KV cache may flow."""
    active = [t.active[r] for t, r in zip(system.tables, rows, strict=True)]
    roles = [t.settings.role[r] for t, r in zip(system.tables, rows, strict=True)]
    pairs = np.zeros(np.broadcast_shapes(*(a.shape for a in active)))
    for p in range(len(rows)):
        for q in range(p + 1, len(rows)):
            used = active[p] & active[q]
            if not system.stealing:
                forward = (roles[p] == PREFILL) & (roles[q] == DECODE)
                used = used & (forward | ((roles[p] == DECODE) & (roles[q] == PREFILL)))
            pairs = pairs + used
    return pairs


@dataclass(frozen=True, slots=True, kw_only=True)
class Screen:
    """What a search needs of each design, broadcast over a block."""

    columns: dict[str, Floats]
    feasible: Bools
    """Fits, and serves something under the service limits; demand and user limits are not looked at here."""
    exact: bool
    """False: maximised columns are upper and minimised ones lower bounds."""


def screen(system: System, rows: Sequence[Ints], link: int) -> Screen:
    """Rate, cost and power of a block of designs that share a link.

    `rows` holds, per pool, rows of its table in shapes that broadcast together, so that a block of
    a grid costs one pass over its product. Under work stealing the rate is an upper bound.
    """
    tables, links = system.tables, system.links
    n_active = _total([t.active[r].astype(np.float64) for t, r in zip(tables, rows, strict=True)])
    feasible = np.ones(n_active.shape, dtype=np.bool_)
    for t, r in zip(tables, rows, strict=True):
        feasible = feasible & t.feasible[r]
    pairs = link_pairs(system, rows)
    busy_usd = any(bool(t.bill.busy_usd_per_h.any()) for t in tables) or system.site.cost_basis == "ownership"
    cost = _total([t.bill.idle_usd_per_h[r] for t, r in zip(tables, rows, strict=True)])
    if system.stealing:
        rate, exact = _stealing_bound(system, rows, link, n_active), False
    else:
        prefill = [t.prefill_rate[r] for t, r in zip(tables, rows, strict=True)]
        decode = [t.decode_rate[r] for t, r in zip(tables, rows, strict=True)]
        held = None
        if np.isfinite(system.limits.ttft_p99_s):
            held = [t.prefill_rate_ttft[r, link] for t, r in zip(tables, rows, strict=True)]
        part = split_rate(prefill, decode, float(links.byte_s[link]), system.request_kv_byte, held)
        rate = part + _total([t.both_rate[r] for t, r in zip(tables, rows, strict=True)])
        exact = True
        if busy_usd:
            u_prefill, u_decode = _share_of(part, _total(prefill)), _share_of(part, _total(decode))
            for t, r in zip(tables, rows, strict=True):
                role = t.settings.role[r]
                busy = np.where(role == PREFILL, u_prefill, np.where(role == DECODE, u_decode, t.alone_busy[r]))
                cost = cost + t.bill.busy_usd_per_h[r] * busy
    feasible = feasible & (rate > 0)
    power = _total([t.bill.provisioned_w[r] for t, r in zip(tables, rows, strict=True)])
    return Screen(
        columns={
            "requests_s": rate,
            "throughput_tok_s": rate * system.output_tok,
            "input_tok_s": rate * system.input_tok,
            "cost_usd_per_h": cost + pairs * links.usd_per_h[link],
            "power_w": power + pairs * (links.power_w[link] * system.site.pue),
        },
        feasible=feasible,
        exact=exact,
    )


SCREENED = ("requests_s", "throughput_tok_s", "input_tok_s", "cost_usd_per_h", "power_w")
"""Columns that `screen` gives."""


def _share_of(part: Floats, whole: Floats) -> Floats:
    return np.divide(part, whole, out=np.zeros(np.broadcast(part, whole).shape), where=whole > 0)


def _stealing_bound(system: System, rows: Sequence[Ints], link: int, n_active: Floats) -> Floats:
    """Upper bound on the rate of work stealing, nearly always attained; one active pool alone does both phases."""
    tables = system.tables
    alone = _total([np.where(t.active[r], t.alone_rate[r], 0.0) for t, r in zip(tables, rows, strict=True)])
    if len(tables) == 2:
        capacity = _two_pool_bound(system, rows, float(system.links.byte_s[link]))
    else:
        # more than two pools: every piece of work at its best pool bounds the rate from above
        capacity = _total([_best_case_rate(t)[r] for t, r in zip(tables, rows, strict=True)])
    return np.where(n_active > 1, capacity, alone)


def _two_pool_bound(system: System, rows: Sequence[Ints], link_byte_s: float) -> Floats:
    """The bound of `stealing_rate` over a block of rows (R, 1) by (1, K), configuration pair by pair."""
    (table_a, table_b), (rows_a, rows_b) = system.tables, rows
    n_a, n_b = table_a.instances[rows_a].reshape(-1), table_b.instances[rows_b].reshape(-1)
    config_a, config_b = table_a.config[rows_a].reshape(-1), table_b.config[rows_b].reshape(-1)
    rate = np.zeros((len(n_a), len(n_b)))
    for a in np.unique(config_a):
        for b in np.unique(config_b):
            at_a, at_b = np.flatnonzero(config_a == a), np.flatnonzero(config_b == b)
            plans = plans_of(system, int(a), int(b))
            rate[np.ix_(at_a, at_b)] = stealing_rate(plans, n_a[at_a, None], n_b[None, at_b], link_byte_s)
    return rate


def _best_case_rate(table: PoolTable) -> Floats:
    """Requests/s of a pool if it only ever did its cheapest phase of every request (K,); an upper bound."""
    cheapest = np.minimum(table.prefill.request_s.min(axis=1), table.decode.request_s.min(axis=1))[table.config]
    return np.divide(table.instances, cheapest, out=np.zeros_like(cheapest), where=cheapest > 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """Where requests go: capacity (N,), flows z[p, p', c] per request of the mix (N, P, P, C)."""

    rate: Floats
    z: Floats
    combined: Bools
    """(N, P): the pool does both phases on one instance, so prefill interrupts decode."""

    @property
    def prefilled(self) -> Floats:
        """Share of all requests that pool p prefills, per class (N, P, C)."""
        return self.z.sum(axis=2)

    @property
    def decoded(self) -> Floats:
        """Share of all requests that pool p decodes, per class (N, P, C)."""
        return self.z.sum(axis=1)


def flows(system: System, rows: Ints, link: Ints) -> Flow:
    """Flows and capacity of N designs; rows (P, N), link (N,)."""
    active = np.stack([t.active[r] for t, r in zip(system.tables, rows, strict=True)])
    single = active.sum(axis=0) == 1
    split = _split_flows(system, rows, link, active & single)
    if not system.stealing:
        return split
    stealing = _stealing_flows(system, rows, link, single)
    return Flow(
        rate=np.where(single, split.rate, stealing.rate),
        z=np.where(single[:, None, None, None], split.z, stealing.z),
        combined=np.where(single[:, None], split.combined, stealing.combined),
    )


def _split_flows(system: System, rows: Ints, link: Ints, alone: Bools) -> Flow:
    tables, q = system.tables, system.mix.share
    prefill = [t.prefill_rate[r] for t, r in zip(tables, rows, strict=True)]
    decode = [t.decode_rate[r] for t, r in zip(tables, rows, strict=True)]
    both = [np.where(a, t.alone_rate[r], t.both_rate[r]) for t, r, a in zip(tables, rows, alone, strict=True)]
    held = None
    if np.isfinite(system.limits.ttft_p99_s):
        held = [t.prefill_rate_ttft[r, link] for t, r in zip(tables, rows, strict=True)]
    part = split_rate(prefill, decode, system.links.byte_s[link], system.request_kv_byte, held)
    rate = part + _total(both)
    n_pools = len(tables)
    z = np.zeros((rows.shape[1], n_pools, n_pools, len(q)))
    split_frac = _share_of(part, rate)
    shares_in = [_share_of(r, _total(prefill)) for r in prefill]
    shares_out = [_share_of(d, _total(decode)) for d in decode]
    for p in range(n_pools):
        for o in range(n_pools):
            z[:, p, o] += (split_frac * shares_in[p] * shares_out[o])[:, None] * q
        z[:, p, p] += _share_of(both[p], rate)[:, None] * q
    roles = np.stack([t.settings.role[r] for t, r in zip(tables, rows, strict=True)])
    return Flow(rate=rate, z=z, combined=((roles == BOTH) | alone).T)


def _stealing_flows(system: System, rows: Ints, link: Ints, skip: Bools) -> Flow:
    """Best flows: in closed form for two pools, else a small linear program a design.

    With a TTFT limit, routes that miss it even without waiting are closed, and the rate of the best flows
    over what is left is scaled down until p99 meets the limit.
    """
    n, n_pools, q, kv = rows.shape[1], len(system.tables), system.mix.share, system.class_kv_byte
    rate, z = np.zeros(n), np.zeros((n, n_pools, n_pools, len(q)))
    todo = ~skip
    limited = bool(np.isfinite(system.limits.ttft_p99_s))
    allowed = _routes_in_time(system, rows, link) if limited else np.ones_like(z, dtype=np.bool_)
    if n_pools == 2:
        at = np.flatnonzero(todo & allowed.all(axis=(1, 2, 3)))
        rate[at], z[at], planned = _two_pool_flows(system, rows[:, at], link[at])
        todo[at[planned]] = False
    for i in np.flatnonzero(todo):
        instances = np.array([t.instances[r[i]] for t, r in zip(system.tables, rows, strict=True)])
        configs = [t.config[r[i]] for t, r in zip(system.tables, rows, strict=True)]
        prefill_s = np.stack([t.prefill.request_s[c] for t, c in zip(system.tables, configs, strict=True)])
        decode_s = np.stack([t.decode.request_s[c] for t, c in zip(system.tables, configs, strict=True)])
        byte_s = float(system.links.byte_s[link[i]])
        rate[i], z[i] = stealing_flows_lp(instances, prefill_s, decode_s, q, kv, byte_s, allowed[i])
    flow = Flow(rate=rate, z=z, combined=np.zeros((n, n_pools), dtype=np.bool_))
    if not limited:
        return flow

    def meets(trial: Floats) -> Bools:
        return np.asarray(_ttft(system, rows, link, flow, trial)[1] <= system.limits.ttft_p99_s)

    return Flow(rate=largest_rate(meets, rate), z=z, combined=flow.combined)


def _counted(mix: Mix) -> Bools:
    """Classes that p99 looks at: those of at least 1 % share, or all if none is (C,)."""
    return mix.share >= P99_SHARE if (mix.share >= P99_SHARE).any() else mix.share > 0


def _routes_in_time(system: System, rows: Ints, link: Ints) -> Bools:
    """Routes p to p' of a class whose prefill and transfer alone meet the TTFT limit (N, P, P, C)."""
    latency = _stack(system.tables, rows, "prefill", "latency_s")[:, :, None, :]
    crosses = ~np.eye(len(system.tables), dtype=np.bool_)[None, :, :, None]
    transfer = _transfer_s(system, link)[:, None, None, :]
    unqueued = latency + np.where(crosses, transfer, 0.0)
    return np.asarray((unqueued <= system.limits.ttft_p99_s) | ~_counted(system.mix))


def _transfer_s(system: System, link: Ints) -> Floats:
    """Time to move a request's KV cache from one pool to another (N, C)."""
    return np.asarray(system.class_kv_byte / system.links.byte_s[link][:, None] + system.links.latency_s[link][:, None])


def _two_pool_flows(system: System, rows: Ints, link: Ints) -> tuple[Floats, Floats, Bools]:
    """Rate and flows of two pools, and whether they pass their check (N,), (N, 2, 2, C), (N,)."""
    (table_a, table_b), n, q = system.tables, rows.shape[1], system.mix.share
    rate, z, planned = np.zeros(n), np.zeros((n, 2, 2, len(q))), np.zeros(n, dtype=np.bool_)
    configs = np.stack([table_a.config[rows[0]], table_b.config[rows[1]]], axis=1)
    for a, b in np.unique(configs, axis=0):
        at = np.flatnonzero((configs == (a, b)).all(axis=1))
        plans = plans_of(system, int(a), int(b))
        n_a, n_b = table_a.instances[rows[0, at]], table_b.instances[rows[1, at]]
        byte_s = system.links.byte_s[link[at]]
        rate[at], z[at], planned[at] = stealing_flows(
            plans, _seconds(system, int(a), int(b)), q, system.class_kv_byte, n_a, n_b, byte_s
        )
    return rate, z, planned


def _stack(tables: Sequence[PoolTable], rows: Ints, name: str, field: str) -> Floats:
    """One (J, C) array of a phase of every pool, gathered to (N, P, C)."""
    phases: list[PhaseTable] = [getattr(t, name) for t in tables]
    arrays = [getattr(f, field) if hasattr(f, field) else getattr(f.time, field) for f in phases]
    full = [np.broadcast_to(a, f.fits.shape) for a, f in zip(arrays, phases, strict=True)]
    return np.stack([a[t.config[r]] for a, t, r in zip(full, tables, rows, strict=True)], axis=1)


def _weighted(weight: Floats, value: Floats) -> Floats:
    """Product that reads nothing where the weight is 0 (a phase that cannot run takes infinite time)."""
    return np.multiply(weight, value, out=np.zeros(np.broadcast(weight, value).shape), where=weight > 0)


def _prefill_servers(system: System, rows: Ints, flow: Flow, instances: Floats) -> Floats:
    """Instances that prefill, for the queue (N, P).

    All of a pool, except under work stealing: there instances divide between the phases as the flows do, in
    whole instances, so that decoding is not interrupted.
    """
    if not system.stealing:
        return np.maximum(instances, 1e-9)
    tables = system.tables
    prefill_s = _weighted(flow.prefilled, _stack(tables, rows, "prefill", "request_s")).sum(axis=2)
    decode_s = _weighted(flow.decoded, _stack(tables, rows, "decode", "request_s")).sum(axis=2)
    part = _share_of(prefill_s, prefill_s + decode_s)
    whole = np.clip(np.ceil(part * instances - 1e-9), 1.0, np.maximum(instances, 1.0))
    return np.where(flow.combined, np.maximum(instances, 1e-9), whole)


def _ttft(system: System, rows: Ints, link: Ints, flow: Flow, rate: Floats) -> tuple[Floats, Floats]:
    """Mean and p99 of the time to first token at a given rate (N,).

    TTFT = wait + prefill latency + KV transfer; each prefilling pool is its own M/G/c with service
    occupancy/b; the mean is weighted by flow, p99 takes the worst pool and there the class of at
    least 1 % share with the longest prefill. Where one instance does both, half a decode step is added.
    """
    tables, mix = system.tables, system.mix
    x = flow.prefilled
    latency = _stack(tables, rows, "prefill", "latency_s")
    service = _stack(tables, rows, "prefill", "occupancy_s") / _stack(tables, rows, "prefill", "batch")
    instances = np.stack([t.instances[r] for t, r in zip(tables, rows, strict=True)], axis=1)
    pool_share = x.sum(axis=2)
    used = pool_share > 0
    safe = np.where(used, pool_share, 1.0)
    mean_s = np.where(used, _weighted(x, service).sum(axis=2) / safe, 1.0)
    second = np.where(used, _weighted(x, service**2).sum(axis=2) / safe, 1.0)
    cv2 = np.maximum(second / mean_s**2 - 1.0, 0.0)
    arrivals = rate[:, None] * pool_share
    servers = _prefill_servers(system, rows, flow, instances)
    half = (
        np.stack([half_step_s(mix, t.combined)[t.config[r]] for t, r in zip(tables, rows, strict=True)], axis=1)
        * flow.combined
    )
    own = np.arange(len(tables))
    stays = flow.z[:, own, own]
    transfer = _transfer_s(system, link)
    crosses = np.maximum(x - stays, 0.0)
    wait = mean_wait_s(arrivals, servers, mean_s, cv2) + half
    mean = (_weighted(pool_share, wait)).sum(axis=1) + (_weighted(x, latency)).sum(axis=2).sum(axis=1)
    mean = mean + (crosses * transfer[:, None, :]).sum(axis=(1, 2))
    slow = np.where((x > 0) & _counted(mix), latency, -np.inf).argmax(axis=2)[:, :, None]
    slow_latency = np.take_along_axis(latency, slow, axis=2)[:, :, 0]
    slow_transfer = np.where(
        np.take_along_axis(crosses, slow, axis=2)[:, :, 0] > 0,
        np.take_along_axis(np.broadcast_to(transfer[:, None, :], x.shape), slow, axis=2)[:, :, 0],
        0.0,
    )
    tail = tail_wait_s(arrivals, servers, mean_s, cv2) + half + slow_latency + slow_transfer
    return mean, np.where(used, tail, -np.inf).max(axis=1)


def _tpot(system: System, rows: Ints, flow: Flow, rate: Floats, decode: PoolParts) -> Floats:
    """Time per output token at a given rate, averaged over requests that decode (N,)."""
    tables = system.tables
    instances = np.stack([t.instances[r] for t, r in zip(tables, rows, strict=True)], axis=1)
    service = _stack(tables, rows, "prefill", "occupancy_s") / _stack(tables, rows, "prefill", "batch")
    prefilling = rate[:, None] * _weighted(flow.prefilled, service).sum(axis=2) / np.maximum(instances, 1e-9)
    spare = np.where(flow.combined, 1.0 - prefilling, 1.0)[:, :, None]
    step = np.divide(decode.occupancy_s, spare, out=np.full(decode.occupancy_s.shape, np.inf), where=spare > 1e-12)
    weight = np.where(system.mix.steps > 0, flow.decoded, 0.0)
    total = weight.sum(axis=(1, 2))
    return np.divide(_weighted(weight, step).sum(axis=(1, 2)), total, out=np.zeros_like(total), where=total > 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolParts:
    """One phase as it runs in N designs (N, P, C): batch, pass time and its parts."""

    batch: Floats
    occupancy_s: Floats
    latency_s: Floats
    compute_s: Floats
    memory_s: Floats
    communication_s: Floats
    fixed_s: Floats
    flop: Floats
    moved_byte: Floats
    request_s: Floats
    passes: Floats
    """Passes that one request takes part in, over the batch: 1/b, or steps/b."""


_PARTS = (
    "batch", "occupancy_s", "latency_s", "compute_s", "memory_s", "communication_s", "fixed_s",
    "flop", "moved_byte", "request_s",
)  # fmt: skip


def phase_parts(system: System, rows: Ints, flow: Flow) -> tuple[PoolParts, PoolParts]:
    """Prefill and decode of N designs; decode is the combined table where one instance does both."""
    tables = system.tables
    prefill = {f: _stack(tables, rows, "prefill", f) for f in _PARTS}
    alone = flow.combined[:, :, None]
    decode = {
        f: np.where(alone, _stack(tables, rows, "combined", f), _stack(tables, rows, "decode", f)) for f in _PARTS
    }
    return (
        PoolParts(**prefill, passes=1.0 / prefill["batch"]),
        PoolParts(**decode, passes=system.mix.steps / np.maximum(decode["batch"], 1.0)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolUse:
    """What each pool does per request of the mix, in seconds of one instance (N, P); eq. (3)-(4)."""

    busy_frac: Floats
    total_s: Floats
    compute_s: Floats
    memory_s: Floats
    communication_s: Floats
    fixed_s: Floats
    flop: Floats
    moved_byte: Floats
    u_ho: Floats
    """Utilisation of the binding resource when the pool is never idle."""
    eta: Floats
    u: Floats


def pool_use(system: System, rows: Ints, flow: Flow, prefill: PoolParts, decode: PoolParts) -> PoolUse:
    """Sum both phases over what flows to each pool, and read u_HO, eta and u off the sums.

    1 + eta = 1/busy: in serving eta is what the matched flow leaves unused.
    """
    x, w = flow.prefilled, flow.decoded

    def per_request(field: str) -> Floats:
        in_prefill = _weighted(x * prefill.passes, getattr(prefill, field))
        in_decode = _weighted(w * decode.passes, getattr(decode, field))
        return (in_prefill + in_decode).sum(axis=2)

    instances = np.stack([t.instances[r] for t, r in zip(system.tables, rows, strict=True)], axis=1)
    g = np.stack([t.settings.g[r] for t, r in zip(system.tables, rows, strict=True)], axis=1)
    total = per_request("occupancy_s")
    busy = np.divide(flow.rate[:, None] * total, instances, out=np.zeros_like(total), where=instances > 0)
    compute, memory = per_request("compute_s"), per_request("memory_s")
    comm, fixed = per_request("communication_s"), per_request("fixed_s")
    flop, moved = per_request("flop"), per_request("moved_byte")
    peak = np.array([p.device.peak(p.precision.compute) or np.inf for p in system.pools])
    bandwidth = np.array([p.device.memory_bandwidth_byte_s for p in system.pools])
    ideal = np.stack([flop / (g * peak), moved / (g * bandwidth), comm])
    binding = np.stack([compute, memory, comm]).argmax(axis=0)
    used = np.take_along_axis(ideal, binding[None], axis=0)[0]
    u_ho = np.divide(used, total, out=np.zeros_like(total), where=total > 0)
    with np.errstate(divide="ignore"):
        eta = np.where(busy > 0, np.maximum(1.0 / np.where(busy > 0, busy, 1.0) - 1.0, 0.0), np.inf)
    return PoolUse(
        busy_frac=busy,
        total_s=total,
        compute_s=compute,
        memory_s=memory,
        communication_s=comm,
        fixed_s=fixed,
        flop=flop,
        moved_byte=moved,
        u_ho=u_ho,
        eta=eta,
        u=u_ho / (1.0 + eta),
    )


def _margin(system: System, rows: Ints, flow: Flow) -> Floats:
    """Usable bytes left on the tightest device of a design; where something does not fit, minus the missing."""
    margins = []
    for p, (table, r) in enumerate(zip(system.tables, rows, strict=True)):
        role, config = table.settings.role[r], table.config[r]
        prefill, decode = table.prefill.margin_byte.min(axis=1), table.decode.margin_byte.min(axis=1)
        if system.stealing:
            margin = _loosest_margin(table)[config]
        else:
            margin = np.where(role == PREFILL, prefill[config], np.where(role == DECODE, decode[config], np.inf))
        together = (role == BOTH) | flow.combined[:, p]
        margin = np.where(together, table.combined_margin_byte[config], margin)
        margins.append(np.where(table.active[r], margin, np.inf))
    return np.stack(margins).min(axis=0)


def _loosest_margin(table: PoolTable) -> Floats:
    """Under work stealing: the tightest of what a pool can run; if it can run nothing, the least missing (J,)."""
    prefill, decode = table.prefill, table.decode
    runs = np.minimum(
        np.where(prefill.fits, prefill.margin_byte, np.inf).min(axis=1),
        np.where(decode.fits, decode.margin_byte, np.inf).min(axis=1),
    )
    least = np.maximum(prefill.margin_byte.max(axis=1), decode.margin_byte.max(axis=1))
    return np.where(np.isfinite(runs), runs, least)


def _optimal_ratio(system: System, rows: Ints) -> Floats:
    """GPUs that feed one wafer: requests/s decoded per wafer over requests/s prefilled per GPU (N,)."""
    decoded, wafers = np.zeros(rows.shape[1]), np.zeros(rows.shape[1])
    prefilled, gpus = np.zeros(rows.shape[1]), np.zeros(rows.shape[1])
    for pool, table, r in zip(system.pools, system.tables, rows, strict=True):
        n = table.settings.n[r].astype(np.float64)
        if pool.device.kind == "wse":
            seconds = (system.mix.share * table.decode.request_s).sum(axis=1)[table.config[r]]
            free = (n > 0) & (seconds == 0)  # nothing to decode: a wafer keeps up with any number of GPUs
            decoded += np.where(free, np.inf, _share_of(table.instances[r], seconds))
            wafers += n
        elif pool.device.kind == "gpu":
            seconds = (system.mix.share * table.prefill.request_s).sum(axis=1)[table.config[r]]
            prefilled += _share_of(table.instances[r], seconds)
            gpus += n
    per_gpu = np.divide(prefilled, gpus, out=np.full(gpus.shape, np.nan), where=gpus > 0)
    per_wafer = np.divide(decoded, wafers, out=np.full(gpus.shape, np.nan), where=wafers > 0)
    return np.divide(per_wafer, per_gpu, out=np.full(gpus.shape, np.nan), where=per_gpu > 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Every number of N designs: columns of the result frame, and what explains them."""

    columns: dict[str, Floats]
    pool_columns: dict[str, Floats]
    """Columns that exist per pool, each (N, P): n, busy, u, eta, kv_out_byte_s, decode_batch."""
    flow: Flow
    prefill: PoolParts
    decode: PoolParts
    use: PoolUse
    pairs: Floats


def evaluate(system: System, rows: Ints, link: Ints) -> Evaluation:
    """Score N designs in full; rows (P, N) of the pool tables, link (N,)."""
    tables, site = system.tables, system.site
    flow = flows(system, rows, link)
    prefill, decode = phase_parts(system, rows, flow)
    use = pool_use(system, rows, flow, prefill, decode)
    rate, tok = flow.rate, flow.rate * system.output_tok
    asked = rate if system.demand_requests_s is None else np.full_like(rate, system.demand_requests_s)
    ttft_mean, ttft_p99 = _ttft(system, rows, link, flow, asked)
    tpot = _tpot(system, rows, flow, asked, decode)
    served = rate > 0
    ttft_mean, ttft_p99 = np.where(served, ttft_mean, np.inf), np.where(served, ttft_p99, np.inf)
    tpot = np.where(served, tpot, np.inf)

    def bill(field: str) -> Floats:
        return np.stack([getattr(t.bill, field)[r] for t, r in zip(tables, rows, strict=True)], axis=1)

    pairs = link_pairs(system, list(rows))
    link_usd = pairs * system.links.usd_per_h[link]
    link_w = pairs * system.links.power_w[link] * site.pue
    cost = (bill("idle_usd_per_h") + bill("busy_usd_per_h") * use.busy_frac).sum(axis=1) + link_usd
    power_mean = (bill("idle_w") + bill("busy_w") * use.busy_frac).sum(axis=1) + link_w
    crossing = (flow.z * system.class_kv_byte).sum(axis=3)
    own = np.arange(len(tables))
    kv_out = rate[:, None] * (flow.prefilled * system.class_kv_byte).sum(axis=2)
    crossing[:, own, own] = 0.0
    moved = rate * crossing.sum(axis=(1, 2))
    alone = np.stack([t.alone_rate[r] for t, r in zip(tables, rows, strict=True)]) * system.output_tok
    alone = np.where(np.stack([t.active[r] for t, r in zip(tables, rows, strict=True)]), alone, 0.0)
    aggregate, best = alone.sum(axis=0), alone.max(axis=0)

    def ratio(base: Floats) -> Floats:
        out = np.where(tok > 0, np.inf, np.nan)
        return np.divide(tok, base, out=out, where=base > 0)

    energy = np.divide(power_mean, tok, out=np.full_like(tok, np.inf), where=tok > 0)
    n = np.stack([t.settings.n[r] for t, r in zip(tables, rows, strict=True)], axis=1).astype(np.float64)
    kinds = np.array([p.device.kind for p in system.pools])
    gpus, wafers = n[:, kinds == "gpu"].sum(axis=1), n[:, kinds == "wse"].sum(axis=1)
    columns = {
        "gpu_wse_ratio": np.divide(gpus, wafers, out=np.where(gpus > 0, np.inf, np.nan), where=wafers > 0),
        "throughput_tok_s": tok,
        "requests_s": rate,
        "input_tok_s": rate * system.input_tok,
        "ttft_mean_s": ttft_mean,
        "ttft_p99_s": ttft_p99,
        "tpot_s": tpot,
        "tok_s_per_user": np.divide(1.0, tpot, out=np.full_like(tpot, np.inf), where=tpot > 0),
        "cost_usd_per_h": cost,
        "usd_per_mtok": usd_per_mtok(cost, tok),
        "power_w": bill("provisioned_w").sum(axis=1) + link_w,
        "power_mean_w": power_mean,
        "energy_j_per_tok": energy,
        "co2_g_per_mtok": energy * 1e6 / 3.6e6 * site.carbon_g_per_kwh,
        "link_cost_usd_per_h": link_usd,
        "link_use_frac": rate * crossing.max(axis=(1, 2), initial=0.0) / system.links.byte_s[link],
        "kv_transfer_byte_s": moved,
        "mem_margin_byte": _margin(system, rows, flow),
        "optimal_gpu_wse_ratio": _optimal_ratio(system, rows),
        "aggregate_tok_s": aggregate,
        "best_single_tok_s": best,
        "complementarity": ratio(aggregate),
        "gain": ratio(best),
    }
    weight = np.where(system.mix.steps > 0, flow.decoded, 0.0)
    decoded = weight.sum(axis=2)
    decode_batch = np.divide(
        _weighted(weight, decode.batch).sum(axis=2), decoded, out=np.zeros_like(decoded), where=decoded > 0
    )
    return Evaluation(
        columns=columns,
        pool_columns={
            "busy": use.busy_frac,
            "u": use.u,
            "eta": use.eta,
            "kv_out_byte_s": kv_out,
            "decode_batch": decode_batch,
            "prefill_frac": flow.prefilled.sum(axis=2),
            "decode_frac": flow.decoded.sum(axis=2),
        },
        flow=flow,
        prefill=prefill,
        decode=decode,
        use=use,
        pairs=pairs,
    )
