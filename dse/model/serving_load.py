"""Latencies under load: how long requests take while others are served beside them (docs/model.md, section 6).

`pd_serving` gives the step time at the largest decode batch; this module asks which batch settles at a given rate, and
how TTFT and TPOT spread over requests.

Prefill     the wait W of each pool is that of G/G/c with the two moments of Allen and Cunneen,
            Wq = C/(c mu - lambda) (ca2 + cs2)/2,  P(W > t) = C exp(-t C/Wq); ca2 of the trace's gaps, 1 for Poisson
TTFT        W + prefill latency + transfer + wait for the link (M/G/1); its percentiles are those of the mixture over
            pools, routes and classes. On an instance that also decodes half a step is added, and with chunks a step
            between two of them.
Batch       the sequences b of one instance settle where they are as many as arrive while they are served (Little):
            b = Lambda t(s)/(1 - phi), Lambda the instance's steps/s, phi its share of time in prefill, and
            s = b + 1/I the batch that a sequence sees with itself, of I instances among which the pool balances
TPOT        t(s)/(1 - phi) + (half a step until it joins + wait for room)/steps; room is for I b_max sequences, an
            Erlang queue. The batch spreads about its mean with the variance of a state-dependent M/G/infinity,
            (b/I)/(1 - dln t/dln b), which gives p99.
Goodput     share of requests with W + ... <= ttft_s and TPOT <= tpot_s, taken as independent

Sources: Allen, Probability, Statistics and Queueing Theory (2nd ed., 1990), section 5.3; processor sharing with
state-dependent rates and its insensitivity: Cohen, Acta Informatica 12 (1979), doi:10.1007/BF00264581.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from dse.model.fleet import share_of
from dse.model.phases import n_chunks
from dse.model.queueing import erlang_c, mean_wait_s
from dse.model.serving_flow import Flow, Queues, between_pools, prefill_queues, transfer_s
from dse.model.serving_pool import PoolPhysics
from dse.model.serving_system import System, pair_byte_s, weighted

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

LOAD_COLUMNS: Final = (
    "load_requests_s", "ttft_load_mean_s", "ttft_load_p50_s", "ttft_load_p99_s", "tpot_load_mean_s",
    "tpot_load_p99_s", "decode_stall_s", "goodput_frac", "goodput_requests_s",
)  # fmt: skip
GRID: Final = 40
"""Batches at which step times are tabulated, between 1 and the largest."""
HALVINGS: Final = 28
"""Of the bracket of a percentile."""
BLOCK: Final = 2048
"""Designs at a time: arrays of a block stay in the cache."""
NORMAL_P99: Final = 2.3263478740408408
"""Standard deviations that a normal value exceeds once in a hundred."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeLoad:
    """How one pool decodes at a load (N,)."""

    step_s: Floats
    """Time of a step at the batch that settles, prefill's share of the time included; infinite beyond capacity."""
    join_s: Floats
    """Until a sequence takes part: half a step, and the wait for room."""
    seen: Floats
    spread: Floats
    """Batch that a sequence sees, and its standard deviation."""
    active: Floats
    """Share of an instance's time in which it decodes at all."""
    most: Floats
    """Largest batch, of this mix."""
    grid: Floats
    """Batches (G,), and the time of a step at each, as `step_s` (N, G)."""
    grid_s: Floats

    def step_at(self, batch: Floats) -> Floats:
        """Time of a step at a batch a design (N,)."""
        return _between(self.grid, self.grid_s, np.minimum(batch, self.most))

    def within(self, limit_s: Floats) -> Floats:
        """Probability that the batch is one whose step takes at most so long; limit (N, C)."""
        fast = (self.grid_s[:, None, :] <= limit_s[:, :, None] * (1 + 1e-12)).sum(axis=2)
        low = np.clip(fast - 1, 0, len(self.grid) - 2)
        rows = np.arange(len(self.grid_s))[:, None]
        t0, t1 = self.grid_s[rows, low], self.grid_s[rows, low + 1]
        part = np.clip(np.divide(limit_s - t0, t1 - t0, out=np.ones_like(t0), where=t1 > t0), 0.0, 1.0)
        batch = self.grid[low] + part * (self.grid[low + 1] - self.grid[low])
        sure = (fast > 0) & (batch >= self.most[:, None])
        chance = ndtr((batch - self.seen[:, None]) / np.maximum(self.spread, 1e-9)[:, None])
        return np.where(sure, 1.0, np.where(fast > 0, chance, 0.0)) * np.isfinite(self.step_s)[:, None]


def _between(grid: Floats, values: Floats, at: Floats) -> Floats:
    """Linear between grid points: values (N, G) at `at` (N,)."""
    low = np.clip(np.searchsorted(grid, at, side="right") - 1, 0, len(grid) - 2)
    rows = np.arange(len(values))
    part = np.clip((at - grid[low]) / (grid[low + 1] - grid[low]), 0.0, 1.0)
    return np.asarray(values[rows, low] * (1.0 - part) + values[rows, low + 1] * part)


def step_grid(pool: PoolPhysics, g: Floats, most: float) -> tuple[Floats, Floats]:
    """Batches from 1 to `most` (G,), and the decode step of every class at each (J, G, C) [s]."""
    grid = np.unique(np.concatenate([np.geomspace(1.0, max(most, 2.0), GRID), [1.0, 2.0]]))
    times = [pool.decode(g, np.full_like(g, b)).occupancy_s for b in grid]
    return grid, np.stack(np.broadcast_arrays(*times), axis=1)


def _decode_load(system: System, p: int, rows: Ints, flow: Flow, rate: Floats, busy_prefill: Floats) -> DecodeLoad:
    """Pool p of N designs; `busy_prefill` is the share of a decoding instance's time that prefill takes (N,)."""
    table, mix = system.tables[p], system.mix
    config = table.config[rows[p]]
    combined = flow.combined[:, p]
    caps = np.where(combined[:, None], table.combined.batch[config], table.decode.batch[config])
    tokens = flow.decoded[:, p] * mix.steps
    total = tokens.sum(axis=1)
    even = np.full_like(tokens, 1.0 / len(mix.share))
    weight = np.divide(tokens, total[:, None], out=even, where=total[:, None] > 0)
    most = np.maximum(share_of(np.ones_like(total), weighted(weight, 1.0 / np.maximum(caps, 1.0)).sum(axis=1)), 1.0)
    first, inverse = np.unique(config, return_inverse=True)
    first_row = np.array([int(np.flatnonzero(table.config == c)[0]) for c in first], dtype=np.int64)
    size = table.settings.g[first_row].astype(np.float64)[:, None]
    grid, by_class = step_grid(system.pools[p], size, float(caps.max(initial=1.0)))
    spare = np.maximum(1.0 - busy_prefill, 1e-12)
    grid_s = np.einsum("nc,ngc->ng", weight, by_class[inverse.reshape(-1)]) / spare[:, None]
    instances = _decoders(system, p, rows, flow)
    per_instance = np.divide(rate * total, instances, out=np.zeros_like(total), where=instances > 0)
    alone = 1.0 / np.maximum(instances, 1.0)
    return _settled(grid, grid_s, per_instance, alone, most, _steps_cv2(flow.decoded[:, p], mix.steps), flow, p, rate)


def _settled(
    grid: Floats, grid_s: Floats, steps_s: Floats, alone: Floats, most: Floats, cv2: Floats, flow: Flow, p: int,
    rate: Floats,
) -> DecodeLoad:  # fmt: skip
    """Where the batch settles: (s - 1/I)/t(s) = Lambda, on the grid."""
    served = (grid - alone[:, None]) / grid_s
    found = np.clip((served < steps_s[:, None]).sum(axis=1), 1, len(grid) - 1)
    at = np.arange(len(grid_s))
    s0, s1 = served[at, found - 1], served[at, found]
    part = np.clip(np.divide(steps_s - s0, s1 - s0, out=np.zeros_like(s0), where=s1 > s0), 0.0, 1.0)
    seen = np.maximum(grid[found - 1] + part * (grid[found] - grid[found - 1]), 1.0)
    seen = np.minimum(seen, most)
    step_s = _between(grid, grid_s, seen)
    full_s = _between(grid, grid_s, most)
    slope = np.log(_between(grid, grid_s, seen * 1.1) / step_s) / np.log(1.1)
    mean = np.maximum(steps_s * step_s, 0.0)
    spread = np.sqrt(mean * alone / np.clip(1.0 - slope, 0.05, 1.0))
    # sequences/s of one instance, each for its steps at the full batch, in room for b_max of them
    sequences_s = rate * np.where(flow.decoded[:, p].sum(axis=1) > 0, flow.decoded[:, p].sum(axis=1), 0.0)
    hold_s = np.divide(
        steps_s / alone * full_s, sequences_s, out=np.zeros_like(step_s), where=sequences_s > 0
    )  # mean steps times the full step
    wait_s = np.where(
        hold_s > 0, mean_wait_s(sequences_s, np.maximum(most / alone, 1.0), np.maximum(hold_s, 1e-12), cv2), 0.0
    )
    stable = steps_s * full_s < most * (1 - 1e-9)
    return DecodeLoad(
        step_s=np.where(stable | (steps_s == 0), step_s, np.inf),
        join_s=0.5 * step_s * np.minimum(mean, 1.0) + np.where(stable, wait_s, np.inf),
        seen=seen,
        spread=spread,
        active=np.minimum(mean, 1.0),
        most=most,
        grid=grid,
        grid_s=grid_s,
    )


def _steps_cv2(decoded: Floats, steps: Floats) -> Floats:
    """Squared variation of the steps of a sequence, over classes (N,)."""
    total = decoded.sum(axis=1)
    mean = share_of((decoded * steps).sum(axis=1), total)
    second = share_of((decoded * steps**2).sum(axis=1), total)
    return np.maximum(share_of(second, mean**2) - 1.0, 0.0)


def _decoders(system: System, p: int, rows: Ints, flow: Flow) -> Floats:
    """Instances that decode: all of a pool, and under work stealing the share of its time that decoding takes (N,)."""
    table = system.tables[p]
    instances, config = table.instances[rows[p]], table.config[rows[p]]
    if not system.stealing:
        return instances
    prefill_s = weighted(flow.prefilled[:, p], table.prefill.request_s[config]).sum(axis=1)
    decode_s = weighted(flow.decoded[:, p], table.decode.request_s[config]).sum(axis=1)
    frac = np.divide(decode_s, prefill_s + decode_s, out=np.ones_like(decode_s), where=decode_s > 0)
    return np.where(flow.combined[:, p], instances, instances * frac)


@dataclass(frozen=True, slots=True, kw_only=True)
class _FirstToken:
    """TTFT as a mixture: per part (pool, route, class) its share, what it takes without a wait, and the wait's tail."""

    share: Floats
    fixed_s: Floats
    waits: Floats
    """Probability of waiting at all."""
    decay_s: Floats
    """All (N, M); infinite where the queue is not stable."""

    def below(self, limit_s: Floats) -> Floats:
        """Probability that a part's TTFT is at most so long (N, M); limit (N,)."""
        left = limit_s[:, None] - self.fixed_s
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            over = self.waits * np.exp(-np.maximum(left, 0.0) / np.maximum(self.decay_s, 1e-300))
        return np.where((left >= 0) & np.isfinite(self.decay_s), 1.0 - over, 0.0)

    def percentile(self, part: float) -> Floats:
        """TTFT that a share `part` of requests does not exceed (N,)."""
        used = self.share > 0
        slowest = np.where(used, self.fixed_s, 0.0).max(axis=1)
        decay = np.where(used, self.decay_s, 0.0).max(axis=1)
        stable = np.isfinite(decay) & used.any(axis=1)
        low, high = np.zeros(len(slowest)), slowest + np.where(stable, decay, 0.0) * np.log(1.0 / (1.0 - part)) + 1e-12
        for _ in range(HALVINGS):
            middle = 0.5 * (low + high)
            enough = (self.share * self.below(middle)).sum(axis=1) >= part
            low, high = np.where(enough, low, middle), np.where(enough, middle, high)
        return np.where(stable, high, np.inf)


def _first_token(
    system: System, link: Ints, flow: Flow, rate: Floats, queues: Queues, decodes: list[DecodeLoad], between: Floats
) -> tuple[_FirstToken, Floats]:
    """The mixture, and the mean TTFT (N,); `between` is what chunks add, decode steps (N, P, C)."""
    n, n_pools, _, n_classes = flow.z.shape
    arrivals = rate[:, None] * queues.share
    cv2 = queues.cv2 + system.load.arrival_cv2 - 1.0
    wait_s = mean_wait_s(arrivals, queues.servers, queues.mean_s, cv2)
    waits = erlang_c(queues.servers, arrivals * queues.mean_s)
    decay_s = np.where(np.isfinite(wait_s), share_of(np.where(np.isfinite(wait_s), wait_s, 0.0), waits), np.inf)
    step_s = np.where(flow.combined, np.stack([d.step_s for d in decodes], axis=1), 0.0)
    step_s = np.where(np.isfinite(step_s), step_s, 0.0)  # beyond capacity the wait is infinite as it is
    active = np.stack([d.active for d in decodes], axis=1)
    own_s = queues.latency_s + (0.5 * active * step_s)[:, :, None] + between * (active * step_s)[:, :, None]
    moved_s = transfer_s(system, link) + _link_wait_s(system, link, flow, rate)[:, :, :, None]
    crosses = ~np.eye(n_pools, dtype=np.bool_)[None, :, :, None]
    fixed = own_s[:, :, None, :] + np.where(crosses, moved_s, 0.0)
    shape = (n, n_pools * n_pools * n_classes)

    def parts(values: Floats) -> Floats:
        return np.broadcast_to(values, flow.z.shape).reshape(shape)

    mixture = _FirstToken(
        share=parts(flow.z),
        fixed_s=parts(fixed),
        waits=parts(waits[:, :, None, None]),
        decay_s=parts(decay_s[:, :, None, None]),
    )
    mean = weighted(queues.share, wait_s).sum(axis=1) + weighted(flow.z, fixed).sum(axis=(1, 2, 3))
    return mixture, mean


def _link_wait_s(system: System, link: Ints, flow: Flow, rate: Floats) -> Floats:
    """Mean wait for the link of each ordered pair, one transfer after the other: M/G/1 (N, P, P) [s]."""
    z, byte_s = between_pools(flow.z), pair_byte_s(system, link)
    share = z.sum(axis=3)
    each_s = system.class_kv_byte / byte_s[:, :, :, None]
    mean_s = share_of(weighted(z, each_s).sum(axis=3), share)
    second = share_of(weighted(z, each_s**2).sum(axis=3), share)
    cv2 = np.maximum(share_of(second, mean_s**2) - 1.0, 0.0)
    busy = (share > 0) & (mean_s > 0)
    wait = mean_wait_s(rate[:, None, None] * share, 1.0, np.where(busy, mean_s, 1.0), cv2)
    return np.where(busy, wait, 0.0)


def latency_at_load(system: System, rows: Ints, link: Ints, flow: Flow) -> dict[str, Floats]:
    """`LOAD_COLUMNS` of N designs, at the demand or at a share of their capacity; rows (P, N), link (N,)."""
    n = rows.shape[1]
    parts = []
    for start in range(0, n, BLOCK):
        at = slice(start, min(start + BLOCK, n))
        piece = Flow(rate=flow.rate[at], z=flow.z[at], combined=flow.combined[at])
        parts.append(_of_block(system, rows[:, at], link[at], piece))
    return {name: np.concatenate([part[name] for part in parts]) for name in LOAD_COLUMNS} if parts else {}


def _of_block(system: System, rows: Ints, link: Ints, flow: Flow) -> dict[str, Floats]:
    mix, tables = system.mix, system.tables
    demand = system.demand_requests_s
    rate = system.load.load_frac * flow.rate if demand is None else np.full_like(flow.rate, demand)
    rate = np.where(flow.rate > 0, rate, 0.0)
    queues = prefill_queues(system, rows, flow)
    prefilling = rate[:, None] * queues.share * queues.mean_s / np.maximum(queues.servers, 1e-9)
    in_prefill = np.where(flow.combined, np.minimum(prefilling, 1.0), 0.0)
    decodes = [_decode_load(system, p, rows, flow, rate, in_prefill[:, p]) for p in range(len(tables))]
    passes = np.stack([_chunks_between(system, p, rows) for p in range(len(tables))], axis=1)
    mixture, mean = _first_token(system, link, flow, rate, queues, decodes, passes * flow.combined[:, :, None])
    steps = np.maximum(mix.steps, 1.0)
    tpot = np.stack([d.step_s[:, None] + d.join_s[:, None] / steps for d in decodes], axis=1)
    decoding = np.where(mix.steps > 0, flow.decoded, 0.0)
    decoded = decoding.sum(axis=(1, 2))
    slow = [d.step_at(d.seen + NORMAL_P99 * d.spread) + d.join_s / steps.max() for d in decodes]
    tail = np.where(decoding.sum(axis=2) > 0, np.stack(slow, axis=1), 0.0).max(axis=1)
    serves, nothing = flow.rate > 0, np.zeros_like(rate)
    good = _good_share(system, flow, mixture, decodes)
    return {
        "load_requests_s": rate,
        "ttft_load_mean_s": np.where(serves, mean, np.inf),
        "ttft_load_p50_s": np.where(serves, mixture.percentile(0.5), np.inf),
        "ttft_load_p99_s": np.where(serves, mixture.percentile(0.99), np.inf),
        "tpot_load_mean_s": np.where(serves, share_of(weighted(decoding, tpot).sum(axis=(1, 2)), decoded), np.inf),
        "tpot_load_p99_s": np.where(serves, tail, np.inf),
        "decode_stall_s": np.where(serves, _stall_s(system, rows, flow, decodes), np.inf),
        "goodput_frac": np.where(serves, good, nothing),
        "goodput_requests_s": np.where(serves, good * rate, nothing),
    }


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


def _good_share(system: System, flow: Flow, mixture: _FirstToken, decodes: list[DecodeLoad]) -> Floats:
    """Share of requests that keep both limits (N,); NaN where the study has none."""
    if system.load.limits is None:
        return np.full(len(flow.rate), np.nan)
    ttft_s, tpot_s = system.load.limits
    n, n_pools, _, n_classes = flow.z.shape
    first = mixture.below(np.full(n, ttft_s)) if np.isfinite(ttft_s) else np.ones_like(mixture.share)
    steps = np.maximum(system.mix.steps, 1.0)
    kept = np.ones((n, 1, n_pools, n_classes))
    if np.isfinite(tpot_s):
        for p, load in enumerate(decodes):
            join_s = np.where(np.isfinite(load.join_s), load.join_s, 0.0)
            in_time = load.within(tpot_s - join_s[:, None] / steps)
            kept[:, 0, p] = np.where(system.mix.steps > 0, in_time, 1.0)
    return np.asarray((flow.z * first.reshape(flow.z.shape) * kept).sum(axis=(1, 2, 3)))
