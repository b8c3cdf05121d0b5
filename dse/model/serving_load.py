"""Latencies under load: how long requests take while others are served beside them (docs/model.md, section 6).

`pd_serving` gives the step time at the largest decode batch; here the batch is the one that settles at a given rate
(`decode_load`), and TTFT (`first_token`) and TPOT spread over requests:

TPOT        t(s)/(1 - phi) + (half a step until it joins + wait for room)/steps, s as it spreads about its mean
Goodput     share of requests with TTFT <= ttft_s and TPOT <= tpot_s, taken as independent
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dse.model.decode_load import DecodeLoad, decode_load
from dse.model.first_token import FirstToken, first_token, least
from dse.model.fleet import share_of
from dse.model.phases import n_chunks
from dse.model.serving_flow import Flow, prefill_queues
from dse.model.serving_system import System, weighted

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

LOAD_COLUMNS: Final = (
    "load_requests_s", "ttft_load_mean_s", "ttft_load_p50_s", "ttft_load_p99_s", "tpot_load_mean_s",
    "tpot_load_p99_s", "decode_stall_s", "goodput_frac", "goodput_requests_s",
)  # fmt: skip
BLOCK: Final = 2048
"""Designs at a time: arrays of a block stay in the cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """Designs at a load (N,): their queues, how they decode, and TTFT as a mixture."""

    flow: Flow
    rate: Floats
    first: FirstToken
    mean_first_s: Floats
    decodes: list[DecodeLoad]
    wait_s: Floats
    """Of a sequence after its first token, over all its steps: to join, and for room (N, P)."""
    decoding: Floats
    """Share of all requests that decode, by pool and class (N, P, C)."""
    steps: Floats

    def tpot_mean_s(self) -> Floats:
        """Time per output token, averaged over requests that decode (N,)."""
        step_s = np.stack([d.step_s for d in self.decodes], axis=1)
        each = step_s[:, :, None] + self.wait_s[:, :, None] / self.steps
        return share_of(weighted(self.decoding, each).sum(axis=(1, 2)), self.decoding.sum(axis=(1, 2)))

    def tpot_below(self, limit_s: Floats) -> Floats:
        """Probability that a request of a pool and class takes at most so long per token (N, P, C); limit (N,)."""
        kept = np.ones_like(self.decoding)
        for p, load in enumerate(self.decodes):
            wait_s = np.where(np.isfinite(self.wait_s[:, p]), self.wait_s[:, p], 0.0)
            kept[:, p] = load.within(limit_s[:, None] - wait_s[:, None] / self.steps)
        return kept

    def tpot_percentile(self, part: float) -> Floats:
        """TPOT that a share `part` of the requests that decode does not exceed (N,)."""
        mean = self.tpot_mean_s()
        stable, weight = np.isfinite(mean), share_of(self.decoding, self.decoding.sum(axis=(1, 2), keepdims=True))
        slowest = np.stack([d.grid_s[:, -1] + w for d, w in zip(self.decodes, self.wait_s.T, strict=True)], axis=1)
        high = np.where(stable, np.where(np.isfinite(slowest), slowest, 0.0).max(axis=1), 0.0) * 1.01

        def enough(limit_s: Floats) -> Bools:
            return np.asarray((weight * self.tpot_below(limit_s)).sum(axis=(1, 2)) >= part)

        return np.where(stable, least(enough, high), np.inf)


def loaded(system: System, rows: Ints, link: Ints, flow: Flow, rate: Floats) -> Loaded:
    """N designs at these rates [requests/s]; rows (P, N), link (N,)."""
    mix, tables = system.mix, system.tables
    queues = prefill_queues(system, rows, flow)
    prefilling = rate[:, None] * queues.share * queues.mean_s / np.maximum(queues.servers, 1e-9)
    in_prefill = np.where(flow.combined, np.minimum(prefilling, 1.0), 0.0)
    decodes = [decode_load(system, p, rows, flow, rate, in_prefill[:, p]) for p in range(len(tables))]
    passes = np.stack([_chunks_between(system, p, rows) for p in range(len(tables))], axis=1)
    first, mean = first_token(system, link, flow, rate, queues, decodes, passes * flow.combined[:, :, None])
    room = np.stack([d.room_s for d in decodes], axis=1)
    return Loaded(
        flow=flow,
        rate=rate,
        first=first,
        mean_first_s=mean,
        decodes=decodes,
        wait_s=np.stack([d.join_s for d in decodes], axis=1) + np.where(flow.combined, 0.0, room),
        decoding=np.where(mix.steps > 0, flow.decoded, 0.0),
        steps=np.maximum(mix.steps, 1.0),
    )


def latency_at_load(system: System, rows: Ints, link: Ints, flow: Flow) -> dict[str, Floats]:
    """`LOAD_COLUMNS` of N designs, at the demand or at a share of their capacity; rows (P, N), link (N,).

    Those of goodput only where the study has limits for it.
    """
    parts = []
    for start in range(0, max(rows.shape[1], 1), BLOCK):
        at = slice(start, start + BLOCK)
        piece = Flow(rate=flow.rate[at], z=flow.z[at], combined=flow.combined[at])
        parts.append(_of_block(system, rows[:, at], link[at], piece))
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _of_block(system: System, rows: Ints, link: Ints, flow: Flow) -> dict[str, Floats]:
    demand = system.demand_requests_s
    rate = system.load.load_frac * flow.rate if demand is None else np.full_like(flow.rate, demand)
    serves = flow.rate > 0
    load = loaded(system, rows, link, flow, np.where(serves, rate, 0.0))
    columns = {
        "load_requests_s": load.rate,
        "ttft_load_mean_s": load.mean_first_s,
        "ttft_load_p50_s": load.first.percentile(0.5),
        "ttft_load_p99_s": load.first.percentile(0.99),
        "tpot_load_mean_s": load.tpot_mean_s(),
        "tpot_load_p99_s": load.tpot_percentile(0.99),
        "decode_stall_s": _stall_s(system, rows, flow, load.decodes),
    }
    endless = {name: np.where(serves, values, np.inf) for name, values in columns.items() if name != "load_requests_s"}
    if system.load.limits is None:
        return {**columns, **endless}
    good = np.where(serves, _good_share(system, load), 0.0)
    return {**columns, **endless, "goodput_frac": good, "goodput_requests_s": good * load.rate}


@dataclass(frozen=True, slots=True, kw_only=True)
class Latencies:
    """Latencies of all requests of one stream [s]."""

    ttft_mean_s: float
    ttft_p50_s: float
    ttft_p99_s: float
    tpot_mean_s: float
    tpot_p99_s: float


def latencies_of_stream(system: System, rows: Ints, link: Ints, flow: Flow, rate: Floats, weight: Floats) -> Latencies:
    """One design under a stream whose rate changes: W rates, and the share of requests that come at each (W,).

    Each rate is taken as if it lasted: queues settle within it. rows (P, 1), link (1,).
    """
    n = len(rate)
    many = Flow(
        rate=np.repeat(flow.rate, n), z=np.repeat(flow.z, n, axis=0), combined=np.repeat(flow.combined, n, axis=0)
    )
    load = loaded(system, np.repeat(rows, n, axis=1), np.repeat(link, n), many, rate)
    first = replace(load.first, share=load.first.share * weight[:, None])
    decoding = load.decoding.sum(axis=(1, 2)) * weight
    tpot = load.tpot_mean_s()
    tail = np.array([load.tpot_percentile(0.99).max()])
    share = load.decoding * weight[:, None, None] / max(float(decoding.sum()), 1e-300)

    def slow(limit_s: Floats) -> Bools:
        return np.asarray([(share * load.tpot_below(np.full(n, limit_s[0]))).sum() >= 0.99])

    return Latencies(
        ttft_mean_s=float((load.mean_first_s * weight).sum()),
        ttft_p50_s=_percentile_of_all(first, 0.5),
        ttft_p99_s=_percentile_of_all(first, 0.99),
        tpot_mean_s=float(weighted(decoding, tpot).sum() / max(float(decoding.sum()), 1e-300)),
        tpot_p99_s=float(least(slow, tail)[0]) if np.isfinite(tail[0]) else np.inf,
    )


def _percentile_of_all(first: FirstToken, part: float) -> float:
    """TTFT that a share `part` of the requests of all rates together does not exceed [s]."""
    high = np.array([first.percentile(part).max()])
    if not np.isfinite(high[0]):
        return float("inf")

    def enough(limit_s: Floats) -> Bools:
        return np.asarray([(first.share * first.below(np.full(len(first.share), limit_s[0]))).sum() >= part])

    return float(least(enough, high)[0])


def _chunks_between(system: System, p: int, rows: Ints) -> Floats:
    """Decode steps between the chunks of a prompt, on an instance that does both (N, C)."""
    pool, batch = system.pools[p], system.tables[p].settings.prefill_batch[rows[p]].astype(np.float64)
    fresh = pool.mix.input_tokens * (1.0 - pool.hit_frac)
    return n_chunks(batch[:, None] * fresh, pool.chunk_tokens) - 1.0


def _stall_s(system: System, rows: Ints, flow: Flow, decodes: list[DecodeLoad]) -> Floats:
    """Longest pause between two tokens: a step, and the longest pass of a prompt that gets in between (N,)."""
    worst = np.zeros(len(flow.rate))
    for p, (pool, table, load) in enumerate(zip(system.pools, system.tables, decodes, strict=True)):
        at = table.config[rows[p]]
        passes = _chunks_between(system, p, rows) + 1.0
        pass_s = table.prefill.time.occupancy_s[at] / passes
        counted = (flow.prefilled[:, p] > 0) & pool.mix.counted
        interrupting = np.where(counted & flow.combined[:, p][:, None], pass_s, 0.0).max(axis=1)
        decodes_here = flow.decoded[:, p].sum(axis=1) > 0
        worst = np.maximum(worst, np.where(decodes_here, load.step_s + interrupting, 0.0))
    return worst


def _good_share(system: System, load: Loaded) -> Floats:
    """Share of requests that keep both limits (N,)."""
    n = len(load.rate)
    ttft_s, tpot_s = system.load.limits or (np.inf, np.inf)
    first = load.first.below(np.full(n, ttft_s)) if np.isfinite(ttft_s) else np.ones_like(load.first.share)
    kept = np.ones_like(load.decoding)
    if np.isfinite(tpot_s):
        kept = np.where(system.mix.steps > 0, load.tpot_below(np.full(n, tpot_s)), 1.0)
    z = load.flow.z
    return np.asarray((z * first.reshape(z.shape) * kept[:, None]).sum(axis=(1, 2, 3)))
