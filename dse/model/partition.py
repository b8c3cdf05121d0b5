"""Shares of one training batch: which pools work, and how many samples each takes (docs/training.md).

Sets        i in the pools, A the active ones
Parameters  T_i(b) [s] time of pool i for b samples, non-decreasing, T_i(0) = 0, infinite beyond its memory;
            G samples in the global batch; S(n) [s] exposed synchronisation of n active pools, non-decreasing
Variables   A, and integers b_i >= 1 for i in A
Minimise    max_i T_i(b_i) + S(|A|)
Subject to  sum_i b_i = G

Exact. For a fixed A, any b with sum b >= G bounds the best time from above by max T_i(b_i), and any b with
sum b < G bounds it from below by min T_i(b_i + 1), since some pool must take more. Both bounds are times that
some T_i takes, so a bisection on the time that moves to them ends where they meet. All designs at once.

Source: Ibaraki, Katoh, "Resource Allocation Problems: Algorithmic Approaches", MIT Press, 1988.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import combinations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dse.model.share_time import ShareTime

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Rows = NDArray[np.intp]

TIE_FRAC = 1e-15
"""More pools must be faster by more than this share: less is rounding."""
MOST_ROUNDS = 200
"""Bisections of the time: each halves the gap, so these leave only rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """The fastest shares, one row per design. Where no pools hold the batch: no samples, infinite time."""

    samples: Integers
    """b_i, (designs, pools)."""
    busy_s: Floats
    """T_i(b_i), (designs, pools) [s]."""
    compute_s: Floats
    """max_i T_i(b_i) [s]."""
    sync_s: Floats
    """What the step waits for besides: S, or what arithmetic cannot hide of the whole exchange [s]."""
    step_s: Floats
    """Time of the whole step [s]."""
    n_active: Integers
    """Pools with a share."""


def best_partition(
    pools: Sequence[ShareTime], global_batch: ArrayLike, sync_s: ArrayLike, whole_s: ArrayLike = 0.0
) -> Partition:
    """Fastest partition of the global batch over any subset of the pools.

    `sync_s` is S by number of active pools, (pools + 1,) or (pools + 1, designs); `whole_s` is the exchange with
    what of it hides behind arithmetic: no step is shorter than it. Ties go to fewer pools, then to the subset that
    comes first. Pools are filled in order; the last takes what is left.

    >>> from dse.model.share_time import Staircase
    >>> one = np.ones(1)
    >>> fast, slow = (Staircase(replicas=one, micro_batch=one, once_s=0 * one, step_s=0 * one,
    ...                         sample_s=t * one, most=99 * one) for t in (1.0, 3.0))
    >>> best = best_partition([fast, slow], 8, [0.0, 0.0, 1.0])
    >>> best.samples.tolist(), best.step_s.tolist()
    ([[6, 2]], [7.0])
    """
    n, n_pools = len(pools[0].replicas), len(pools)
    batch = np.broadcast_to(np.asarray(global_batch, dtype=np.float64), (n,))
    sync, whole = (_by_number(value, n_pools, n) for value in (sync_s, whole_s))
    total_s, common_s, member = np.full(n, np.inf), np.full(n, np.inf), np.zeros((n_pools, n), dtype=bool)
    for size in range(1, n_pools + 1):
        for subset in combinations(range(n_pools), size):
            rows, t = _faster(tuple(pools[i] for i in subset), batch, total_s, sync[size])
            step_s = np.maximum(t + sync[size][rows], whole[size][rows])
            better = step_s < total_s[rows]
            rows = rows[better]
            total_s[rows], common_s[rows] = step_s[better], t[better]
            member[:, rows] = np.isin(np.arange(n_pools), subset)[:, None]
    return _handed_out(pools, np.where(np.isfinite(total_s), batch, 0.0), common_s, member, sync, whole)


def _by_number(value: ArrayLike, n_pools: int, n: int) -> Floats:
    """Something by number of active pools, for every design (pools + 1, designs)."""
    given = np.asarray(value, dtype=np.float64)
    return np.broadcast_to(given[:, None] if given.ndim == 1 else given, (n_pools + 1, n))


def _handed_out(
    pools: Sequence[ShareTime],
    batch: Floats,
    common_s: Floats,
    member: NDArray[np.bool_],
    sync_s: Floats,
    whole_s: Floats,
) -> Partition:
    """Give each member in turn what it can do in the common time, until the batch is out."""
    shares, left = [], batch
    for pool, chosen in zip(pools, member, strict=True):
        shares.append(np.where(chosen, pool.most_within(common_s, left), 0.0))
        left = left - shares[-1]
    busy_s = np.stack([pool.time_s(b) for pool, b in zip(pools, shares, strict=True)], axis=1)
    compute_s = np.where(np.isfinite(common_s), busy_s.max(axis=1), np.inf)
    n_active = np.count_nonzero(shares, axis=0)
    at = np.arange(len(batch))
    step_s = np.maximum(compute_s + sync_s[n_active, at], whole_s[n_active, at])
    hidden = whole_s[n_active, at] > compute_s + sync_s[n_active, at]
    return Partition(
        samples=np.stack(shares, axis=1).astype(np.int64),
        busy_s=busy_s,
        compute_s=compute_s,
        sync_s=np.where(hidden, whole_s[n_active, at] - np.where(hidden, compute_s, 0.0), sync_s[n_active, at]),
        step_s=step_s,
        n_active=n_active.astype(np.int64),
    )


def _faster(pools: tuple[ShareTime, ...], batch: Floats, total_s: Floats, sync_s: Floats) -> tuple[Rows, Floats]:
    """Rows in which these pools, all active, beat `total_s`; their max_i T_i [s].

    What each pool can do in the time to beat rules out most rows and brackets the shares of the rest.
    """
    if len(pools) == 1:
        time_s = pools[0].time_s(batch)
        rows = np.flatnonzero(time_s + sync_s < total_s)
        return rows, time_s[rows]
    with np.errstate(invalid="ignore"):
        beat_s = np.where(np.isfinite(sync_s), (total_s - sync_s) * (1.0 - TIE_FRAC), 0.0)
    most = np.stack([pool.most_within(beat_s, batch) for pool in pools])
    rows = np.flatnonzero((most.sum(axis=0) >= batch) & (most.min(axis=0) > 0.0))
    solve_s = _pair_s if len(pools) == 2 else _common_s
    time_s = solve_s(tuple(pool.rows(rows) for pool in pools), batch[rows], most[:, rows])
    better = time_s + sync_s[rows] < total_s[rows]
    return rows[better], time_s[better]


def _pair_s(pools: tuple[ShareTime, ...], batch: Floats, most: Floats) -> Floats:
    """Best max T_i of two pools [s]: binary search on the samples per replica of the first.

    T_1(b) rises with its share b and T_2(G - b) falls: the best b is the last at which T_1 < T_2, or the
    next. All the b that give every replica p samples at most cost the same, so only b = p r is tried.
    """
    first, second = pools
    r = first.replicas
    b_min, b_max = np.maximum(batch - most[1], 1.0), np.minimum(most[0], batch - 1.0)
    p = np.ceil(b_min / r) - 1.0
    for bit in reversed(range(int((np.ceil(b_max / r) - p).max(initial=0.0)).bit_length())):
        b = np.minimum((p + 2.0**bit) * r, b_max)
        p += 2.0**bit * (first.time_s(b) < second.time_s(batch - b))
    shares = (np.minimum(np.maximum(q * r, b_min), b_max) for q in (p, p + 1.0))
    return np.minimum(*(np.maximum(first.time_s(b), second.time_s(batch - b)) for b in shares))


def _common_s(pools: tuple[ShareTime, ...], batch: Floats, most: Floats) -> Floats:
    """Best max T_i of three or more pools [s]: bisection on the time, between two roundings of fair shares."""
    fair = most * (batch / most.sum(axis=0))
    low = reduce(np.minimum, (pool.time_s(np.floor(b) + 1.0) for pool, b in zip(pools, fair, strict=True)))
    high = reduce(np.maximum, (pool.time_s(np.ceil(b)) for pool, b in zip(pools, fair, strict=True)))
    best_s, rows = high.copy(), np.arange(len(batch))
    for _ in range(MOST_ROUNDS):
        unfinished = np.flatnonzero(low < high)
        if len(unfinished) < 0.75 * len(rows):
            best_s[rows] = high
            rows, batch, low, high = rows[unfinished], batch[unfinished], low[unfinished], high[unfinished]
            pools = tuple(pool.rows(unfinished) for pool in pools)
        if len(unfinished) == 0:
            break
        middle = 0.5 * (low + high)
        middle = np.where(middle < high, middle, np.minimum(low, high))
        shares = [pool.most_within(middle, batch) for pool in pools]
        enough = reduce(np.add, shares) >= batch
        times = [pool.time_s(b + ~enough) for pool, b in zip(pools, shares, strict=True)]
        low = np.where(enough, low, reduce(np.minimum, times))
        high = np.where(enough, reduce(np.maximum, times), high)
    best_s[rows] = high
    return best_s
