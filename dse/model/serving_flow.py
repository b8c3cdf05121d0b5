"""Where requests flow in serving designs, and how long they wait (docs/model.md, section 6, routing and latency)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dse.model.fleet import gathered, share_of, total_of
from dse.model.queueing import largest_rate, mean_wait_s, tail_wait_s
from dse.model.routing import split_rate, stealing_flows_lp
from dse.model.serving_pool import BOTH, half_step_s, whole_servers
from dse.model.serving_system import (
    System,
    held_by_ttft,
    pair_byte_s,
    plans_of,
    seconds_of,
    stacked,
    weighted,
)
from dse.model.stealing import stealing_flows

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


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


def crossing_byte(system: System, flow: Flow) -> Floats:
    """KV cache that leaves pool p for pool p', per request of the mix [byte] (N, P, P)."""
    crossing: Floats = (flow.z * system.class_kv_byte).sum(axis=3)
    own = np.arange(len(system.tables))
    crossing[:, own, own] = 0.0
    return crossing


def flows(system: System, rows: Ints, link: Ints) -> Flow:
    """Flows and capacity of N designs; rows (P, N), link (N,)."""
    active = gathered([t.active for t in system.tables], rows).T
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
        held = held_by_ttft(system, list(rows), system.wiring.option[link])
    byte_s = np.moveaxis(pair_byte_s(system, link), 0, -1)
    part = split_rate(prefill, decode, byte_s, system.request_kv_byte, held)
    rate = part + total_of(both)
    n_pools = len(tables)
    z = np.zeros((rows.shape[1], n_pools, n_pools, len(q)))
    split_frac = share_of(part, rate)
    shares_in = [share_of(r, total_of(prefill)) for r in prefill]
    shares_out = [share_of(d, total_of(decode)) for d in decode]
    for p in range(n_pools):
        for o in range(n_pools):
            z[:, p, o] += (split_frac * shares_in[p] * shares_out[o])[:, None] * q
        z[:, p, p] += share_of(both[p], rate)[:, None] * q
    roles = gathered([t.settings.role for t in tables], rows)
    return Flow(rate=rate, z=z, combined=(roles == BOTH) | alone.T)


def _stealing_flows(system: System, rows: Ints, link: Ints, skip: Bools) -> Flow:
    """Best flows: in closed form for two pools, else a small linear program a design.

    With a TTFT limit, routes that miss it even without waiting are closed, and the rate of the best flows
    over what is left is scaled down until p99 meets the limit.
    """
    n, n_pools, q, kv = rows.shape[1], len(system.tables), system.mix.share, system.class_kv_byte
    rate, z = np.zeros(n), np.zeros((n, n_pools, n_pools, len(q)))
    todo, link_byte_s = ~skip, pair_byte_s(system, link)
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
        rate[i], z[i] = stealing_flows_lp(instances, prefill_s, decode_s, q, kv, link_byte_s[i], allowed[i])
    flow = Flow(rate=rate, z=z, combined=np.zeros((n, n_pools), dtype=np.bool_))
    if not limited:
        return flow

    def meets(trial: Floats) -> Bools:
        return np.asarray(time_to_first_token(system, rows, link, flow, trial)[1] <= system.limits.ttft_p99_s)

    return Flow(rate=largest_rate(meets, rate), z=z, combined=flow.combined)


def _routes_in_time(system: System, rows: Ints, link: Ints) -> Bools:
    """Routes p to p' of a class whose prefill and transfer alone meet the TTFT limit (N, P, P, C)."""
    latency = stacked(system.tables, rows, "prefill", "latency_s")[:, :, None, :]
    crosses = ~np.eye(len(system.tables), dtype=np.bool_)[None, :, :, None]
    unqueued = latency + np.where(crosses, transfer_s(system, link), 0.0)
    return np.asarray((unqueued <= system.limits.ttft_p99_s) | ~system.mix.counted)


def transfer_s(system: System, link: Ints) -> Floats:
    """Time to move a request's KV cache from one pool to another (N, P, P, C)."""
    option = system.wiring.option[link][:, :, :, None]
    return np.asarray(system.class_kv_byte / system.links.byte_s[option] + system.links.latency_s[option])


def _two_pool_flows(system: System, rows: Ints, link: Ints) -> tuple[Floats, Floats, Bools]:
    """Rate and flows of two pools, and whether they pass their check (N,), (N, 2, 2, C), (N,)."""
    (table_a, table_b), n, q = system.tables, rows.shape[1], system.mix.share
    rate, z, planned = np.zeros(n), np.zeros((n, 2, 2, len(q))), np.zeros(n, dtype=np.bool_)
    configs = np.stack([table_a.config[rows[0]], table_b.config[rows[1]]], axis=1)
    for a, b in np.unique(configs, axis=0):
        at = np.flatnonzero((configs == (a, b)).all(axis=1))
        plans = plans_of(system, int(a), int(b))
        n_a, n_b = table_a.instances[rows[0, at]], table_b.instances[rows[1, at]]
        byte_s = pair_byte_s(system, link[at])[:, 0, 1]
        rate[at], z[at], planned[at] = stealing_flows(
            plans, seconds_of(system, int(a), int(b)), q, system.class_kv_byte, n_a, n_b, byte_s
        )
    return rate, z, planned


def _prefill_servers(system: System, rows: Ints, flow: Flow, instances: Floats) -> Floats:
    """Instances that prefill, for the queue (N, P).

    All of a pool, except under work stealing: there instances divide between the phases as the flows do, in
    whole instances, so that decoding is not interrupted.
    """
    if not system.stealing:
        return np.maximum(instances, 1e-9)
    tables = system.tables
    prefill_s = weighted(flow.prefilled, stacked(tables, rows, "prefill", "request_s")).sum(axis=2)
    decode_s = weighted(flow.decoded, stacked(tables, rows, "decode", "request_s")).sum(axis=2)
    whole = whole_servers(share_of(prefill_s, prefill_s + decode_s), instances)
    return np.where(flow.combined, np.maximum(instances, 1e-9), whole)


def between_pools(z: Floats) -> Floats:
    """Flows without what stays on its pool (N, P, P, C)."""
    return np.where(np.eye(z.shape[1], dtype=np.bool_)[None, :, :, None], 0.0, z)


def _mean_transfer_s(system: System, link: Ints, flow: Flow, crosses: Floats) -> Floats:
    """Time to move KV cache between pools, averaged over all requests (N,); `crosses` is what leaves a pool (N, P, C).

    Everything takes the time of the link to the next pool, and what goes elsewhere the difference: exactly 0
    where all links are alike.
    """
    transfer, pools = transfer_s(system, link), np.arange(len(system.tables))
    following = transfer[:, pools, (pools + 1) % len(pools)]
    more = between_pools(flow.z) * (transfer - following[:, :, None, :])
    return np.asarray((crosses * following).sum(axis=(1, 2)) + more.sum(axis=(1, 2, 3)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Queues:
    """Every pool's queue for prefill: M/G/c over the classes that flow to it (N, P)."""

    share: Floats
    """Of all requests, what the pool prefills."""
    servers: Floats
    mean_s: Floats
    cv2: Floats
    """Mean and squared variation of the service time occupancy/b."""
    latency_s: Floats
    """Of a prefill pass, by class (N, P, C)."""


def prefill_queues(system: System, rows: Ints, flow: Flow) -> Queues:
    """The queues of N designs."""
    x = flow.prefilled
    service = stacked(system.tables, rows, "prefill", "service_s")
    instances = gathered([t.instances for t in system.tables], rows)
    pool_share = x.sum(axis=2)
    used = pool_share > 0
    safe = np.where(used, pool_share, 1.0)
    mean_s = np.where(used, weighted(x, service).sum(axis=2) / safe, 1.0)
    second = np.where(used, weighted(x, service**2).sum(axis=2) / safe, 1.0)
    return Queues(
        share=pool_share,
        servers=_prefill_servers(system, rows, flow, instances),
        mean_s=mean_s,
        cv2=np.maximum(second / mean_s**2 - 1.0, 0.0),
        latency_s=stacked(system.tables, rows, "prefill", "latency_s"),
    )


def time_to_first_token(system: System, rows: Ints, link: Ints, flow: Flow, rate: Floats) -> tuple[Floats, Floats]:
    """Mean and p99 of the time to first token at a given rate (N,).

    TTFT = wait + prefill latency + KV transfer; each prefilling pool is its own M/G/c with service
    occupancy/b; the mean is weighted by flow, p99 takes the worst pool and there the class of at
    least 1 % share with the longest prefill, with the slowest link that this class takes. Where one
    instance does both, half a decode step is added.
    """
    tables, mix = system.tables, system.mix
    x = flow.prefilled
    queues = prefill_queues(system, rows, flow)
    arrivals, latency = rate[:, None] * queues.share, queues.latency_s
    half = gathered([half_step_s(mix, t.combined)[t.config] for t in tables], rows) * flow.combined
    own = np.arange(len(tables))
    stays = flow.z[:, own, own]
    crosses = np.maximum(x - stays, 0.0)
    wait = mean_wait_s(arrivals, queues.servers, queues.mean_s, queues.cv2) + half
    mean = (weighted(queues.share, wait)).sum(axis=1) + (weighted(x, latency)).sum(axis=2).sum(axis=1)
    mean = mean + _mean_transfer_s(system, link, flow, crosses)
    slow = np.where((x > 0) & mix.counted, latency, -np.inf).argmax(axis=2)[:, :, None]
    slow_latency = np.take_along_axis(latency, slow, axis=2)[:, :, 0]
    sent = np.where(crosses[:, :, None, :] > 0, between_pools(flow.z), 0.0)
    slowest = np.where(sent > 0, transfer_s(system, link), 0.0).max(axis=2)
    slow_transfer = np.take_along_axis(slowest, slow, axis=2)[:, :, 0]
    tail = tail_wait_s(arrivals, queues.servers, queues.mean_s, queues.cv2) + half + slow_latency + slow_transfer
    return mean, np.where(queues.share > 0, tail, -np.inf).max(axis=1)
