"""Section 6: shares of a training batch, against brute force over every subset and every integer split."""

from __future__ import annotations

from dataclasses import fields
from itertools import product
from math import ceil, inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from dse.model.partition import Partition, best_partition
from dse.model.share_time import MeasuredStaircase, ShareTime, Staircase

Floats = NDArray[np.float64]

TABLE_FLOP, TABLE_S = np.array([1e12, 2e12, 4e12, 8e12]), np.array([0.5, 0.55, 0.9, 2.0])
ONE_BATCH = 2.0**40


def drawn(rng: np.random.Generator, low: float, high: float, n: int) -> Floats:
    """Half of them round numbers, so that times of different pools coincide."""
    return np.where(rng.random(n) < 0.5, rng.uniform(low, high, n), np.ceil(rng.uniform(low, high, n) * 4.0) / 4.0)


def random_pool(rng: np.random.Generator, n: int) -> Staircase:
    return Staircase(
        replicas=rng.integers(0, 7, n).astype(float),
        micro_batch=np.where(rng.random(n) < 0.2, ONE_BATCH, rng.integers(1, 6, n)),
        once_s=drawn(rng, 0.0, 2.0, n) * (rng.random(n) < 0.7),
        step_s=drawn(rng, 0.0, 1.0, n) * (rng.random(n) < 0.7),
        sample_s=drawn(rng, 0.1, 2.0, n),
        most=np.where(rng.random(n) < 0.5, inf, rng.integers(0, 30, n)),
    )


def random_measured_pool(rng: np.random.Generator, n: int) -> MeasuredStaircase:
    return MeasuredStaircase(
        replicas=rng.integers(0, 5, n).astype(float),
        micro_batch=np.where(rng.random(n) < 0.2, ONE_BATCH, rng.integers(1, 6, n)),
        once_s=drawn(rng, 0.0, 2.0, n),
        step_s=drawn(rng, 0.0, 1.0, n) * (rng.random(n) < 0.7),
        sample_flop=rng.uniform(0.7e12, 3e12, n),
        table_flop=TABLE_FLOP,
        table_s=TABLE_S,
        most=np.where(rng.random(n) < 0.5, inf, rng.integers(0, 30, n)),
    )


def random_sync_s(rng: np.random.Generator, n_pools: int, n: int) -> Floats:
    more = rng.uniform(0.0, 1.0, (n_pools - 1, n)) * (rng.random(n) < 0.7)
    return np.vstack([np.zeros((2, n)), np.cumsum(more, axis=0)])


def micro_s(samples: float, sample_flop: float) -> float:
    """Table with its first and last slope carried on."""
    x = samples * sample_flop
    i = 0
    while i < len(TABLE_FLOP) - 2 and x > TABLE_FLOP[i + 1]:
        i += 1
    slope = (TABLE_S[i + 1] - TABLE_S[i]) / (TABLE_FLOP[i + 1] - TABLE_FLOP[i])
    return float(TABLE_S[i] + (x - TABLE_FLOP[i]) * slope)


def by_hand_s(pool: ShareTime, row: int, b: int) -> float:
    assert isinstance(pool, Staircase | MeasuredStaircase)
    r, m = float(pool.replicas[row]), float(pool.micro_batch[row])
    if b == 0:
        return 0.0
    if r == 0 or b > pool.most[row]:
        return inf
    p = ceil(b / r)
    k = ceil(p / m)
    t = float(pool.once_s[row] + k * pool.step_s[row])
    if isinstance(pool, Staircase):
        return t + p * float(pool.sample_s[row])
    flop = float(pool.sample_flop[row])
    return t + ((k - 1) * micro_s(m, flop) if k > 1 else 0.0) + micro_s(p - (k - 1) * m, flop)


def brute_force_s(pools: list[ShareTime], row: int, batch: int, sync_s: Floats) -> float:
    times = [np.array([by_hand_s(pool, row, b) for b in range(batch + 1)]) for pool in pools]
    splits = np.array([s for s in product(range(batch + 1), repeat=len(pools) - 1) if sum(s) <= batch], np.int64)
    splits = np.column_stack([splits, batch - splits.sum(axis=1)])
    slowest = np.max([t[splits[:, i]] for i, t in enumerate(times)], axis=0)
    return float((slowest + sync_s[np.count_nonzero(splits, axis=1)]).min())


def check_shares(pools: list[ShareTime], batch: NDArray[np.int64], sync_s: Floats, got: Partition) -> None:
    """The shares are legal and have the times reported."""
    held = np.isfinite(got.step_s)
    assert np.array_equal(got.samples.sum(axis=1), np.where(held, batch, 0))
    assert got.samples.min() >= 0
    assert np.array_equal(got.n_active, (got.samples > 0).sum(axis=1))
    for i, pool in enumerate(pools):
        assert isinstance(pool, Staircase | MeasuredStaircase)
        assert (got.samples[:, i] <= np.where(pool.replicas > 0, pool.most, 0)).all()
        by_hand = [by_hand_s(pool, row, int(b)) for row, b in enumerate(got.samples[:, i])]
        assert got.busy_s[:, i] == pytest.approx(by_hand, rel=1e-12)
    assert np.array_equal(got.compute_s[held], got.busy_s.max(axis=1)[held])
    assert np.array_equal(got.sync_s, sync_s[got.n_active, np.arange(len(batch))])
    assert np.array_equal(got.step_s, got.compute_s + got.sync_s)


def check_against_brute_force(pools: list[ShareTime], batch: NDArray[np.int64], sync_s: Floats) -> Partition:
    got = best_partition(pools, batch, sync_s)
    want = [brute_force_s(pools, row, int(g), sync_s[:, row]) for row, g in enumerate(batch)]
    assert got.step_s == pytest.approx(want, rel=1e-12, abs=0.0)
    check_shares(pools, batch, sync_s, got)
    return got


@pytest.mark.parametrize(("n_pools", "n", "largest"), [(1, 200, 40), (2, 1000, 40), (3, 1000, 40), (4, 200, 16)])
def test_equals_brute_force(n_pools: int, n: int, largest: int) -> None:
    rng = np.random.default_rng(n_pools)
    pools: list[ShareTime] = [random_pool(rng, n) for _ in range(n_pools)]
    got = check_against_brute_force(pools, rng.integers(1, largest + 1, n), random_sync_s(rng, n_pools, n))
    assert set(got.n_active) == set(range(n_pools + 1))  # every number of pools wins somewhere, 0: none can hold it


@pytest.mark.parametrize(("n_pools", "n", "largest"), [(2, 300, 40), (3, 300, 24)])
def test_measured_tables_equal_brute_force(n_pools: int, n: int, largest: int) -> None:
    rng = np.random.default_rng(10 + n_pools)
    pools: list[ShareTime] = [random_measured_pool(rng, n), *(random_pool(rng, n) for _ in range(n_pools - 1))]
    check_against_brute_force(pools, rng.integers(1, largest + 1, n), random_sync_s(rng, n_pools, n))


def test_many_pools_large_batch_lie_above_the_fluid_bound() -> None:
    # eight pools at once; the fluid time is G / sum of rates, whole samples cost at most one more per replica
    n = 50
    rng = np.random.default_rng(8)
    rate = rng.uniform(1.0, 50.0, (8, n))
    pools = [
        Staircase(
            replicas=np.ones(n),
            micro_batch=np.ones(n),
            once_s=np.zeros(n),
            step_s=np.zeros(n),
            sample_s=1.0 / r,
            most=np.full(n, inf),
        )
        for r in rate
    ]
    got = best_partition(pools, 100_000, np.zeros(9))
    fluid_s = 100_000 / rate.sum(axis=0)
    assert (got.step_s >= fluid_s * (1 - 1e-12)).all()
    assert (got.step_s <= fluid_s + (1.0 / rate).max(axis=0)).all()
    assert (got.samples.sum(axis=1) == 100_000).all()


def one_pool(replicas: float = 1.0, sample_s: float = 1.0, **other: float) -> Staircase:
    values = {"micro_batch": 1.0, "once_s": 0.0, "step_s": 0.0, "most": inf} | other
    values |= {"replicas": replicas, "sample_s": sample_s}
    return Staircase(**{name: np.array([value]) for name, value in values.items()})


def test_ties_go_to_fewer_pools_then_to_the_first() -> None:
    twins = [one_pool(4.0), one_pool(4.0), one_pool(4.0)]
    assert best_partition(twins, 4, np.zeros(4)).samples.tolist() == [[4, 0, 0]]
    assert best_partition(twins, 8, np.zeros(4)).samples.tolist() == [[4, 4, 0]]
    assert best_partition(twins, 9, np.zeros(4)).samples.tolist() == [[4, 4, 1]]


def test_synchronisation_decides_how_many_pools_work() -> None:
    pools = [one_pool(), one_pool(), one_pool()]
    for sync_s, n_active, step_s in (([0, 0, 1, 1], 3, 5.0), ([0, 0, 1, 4], 2, 7.0), ([0, 0, 7, 9], 1, 12.0)):
        best = best_partition(pools, 12, sync_s)
        assert (best.n_active.tolist(), best.step_s.tolist()) == ([n_active], [step_s])
    assert best_partition(pools, 12, [0, 0, inf, inf]).n_active.tolist() == [1]
    # 12 s alone against 6 s and synchronisation: a tie goes to one pool, the smallest gain to two
    assert best_partition(pools[:2], 12, [0, 0, 6]).n_active.tolist() == [1]
    assert best_partition(pools[:2], 12, [0, 0, 6 - 1e-12]).n_active.tolist() == [2]


def test_a_batch_that_no_pools_hold() -> None:
    pools = [one_pool(most=5.0), one_pool(replicas=0.0), one_pool(most=6.0)]
    assert best_partition(pools, 11, np.zeros(4)).samples.tolist() == [[5, 0, 6]]
    none = best_partition(pools, 12, np.zeros(4))
    assert (none.samples.tolist(), none.step_s.tolist(), none.n_active.tolist()) == ([[0, 0, 0]], [inf], [0])
    assert best_partition([pools[0], pools[2]], 11, [0, 0, inf]).step_s.tolist() == [inf]
    assert best_partition(pools, 0, np.zeros(4)).step_s.tolist() == [0.0]


def test_rows_are_independent() -> None:
    n = 40
    rng = np.random.default_rng(5)
    pools: list[ShareTime] = [random_pool(rng, n), random_measured_pool(rng, n), random_pool(rng, n)]
    batch, sync_s = rng.integers(1, 200, n), random_sync_s(rng, 3, n)
    together = best_partition(pools, batch, sync_s)
    for row in range(n):
        alone = best_partition([pool.rows(np.array([row])) for pool in pools], int(batch[row]), sync_s[:, row])
        for field in fields(Partition):
            assert getattr(alone, field.name)[0].tolist() == getattr(together, field.name)[row].tolist(), field.name


def test_arrays_equal_scalars() -> None:
    rng = np.random.default_rng(6)
    for pool in (random_pool(rng, 8), random_measured_pool(rng, 8)):
        samples = np.arange(60.0)
        times = np.array([pool.time_s(b) for b in samples])
        assert np.array_equal(pool.time_s(samples[:, None]), times)
        assert np.array_equal(pool.most_within(times[:20]), [pool.most_within(t) for t in times[:20]])


SECONDS = st.one_of(st.floats(0.0, 10.0), st.integers(0, 40).map(lambda x: x / 10))
POSITIVE_S = st.one_of(st.floats(1e-4, 10.0), st.integers(1, 40).map(lambda x: x / 10))
REPLICAS, MICRO_BATCHES = st.integers(1, 64), st.one_of(st.integers(1, 16), st.just(2**40))
MOST = st.one_of(st.just(inf), st.integers(0, 500).map(float))


@st.composite
def staircases(draw: st.DrawFn) -> Staircase:
    return one_pool(
        float(draw(REPLICAS)),
        draw(POSITIVE_S),
        micro_batch=float(draw(MICRO_BATCHES)),
        once_s=draw(SECONDS),
        step_s=draw(SECONDS),
        most=draw(MOST),
    )


@st.composite
def measured_staircases(draw: st.DrawFn) -> MeasuredStaircase:
    law = draw(staircases())
    return MeasuredStaircase(
        **{f.name: getattr(law, f.name) for f in fields(law) if f.name != "sample_s"},
        sample_flop=np.array([draw(st.floats(0.1e12, 5e12))]),
        table_flop=TABLE_FLOP,
        table_s=TABLE_S,
    )


POOLS = st.one_of(staircases(), measured_staircases())


@settings(max_examples=300)
@given(pool=POOLS, samples=st.integers(0, 2000))
def test_time_never_falls(pool: ShareTime, samples: int) -> None:
    assert pool.time_s(samples)[0] <= pool.time_s(samples + 1)[0]


@settings(max_examples=500)
@given(pool=POOLS, samples=st.integers(1, 2000), limit=st.one_of(st.just(inf), st.integers(0, 2000)))
def test_most_within_inverts_time(pool: ShareTime, samples: int, limit: float) -> None:
    t = float(pool.time_s(samples)[0])
    assert isinstance(pool, Staircase | MeasuredStaircase)
    if t < inf:
        most = float(pool.most_within(t)[0])
        assert most >= samples
        assert pool.time_s(most)[0] <= t < pool.time_s(most + 1)[0]
        assert pool.most_within(t, limit).tolist() == [min(most, limit)]
        below = float(pool.most_within(np.nextafter(t, 0.0))[0])
        assert below < samples
        assert pool.time_s(below)[0] < t <= pool.time_s(below + 1)[0]
    else:
        assert samples > pool.most[0] == pool.most_within(t)[0]


def with_one_more_replica(pool: Staircase) -> Staircase:
    return Staircase(**{f.name: getattr(pool, f.name) + (f.name == "replicas") for f in fields(pool)})


def best_s(pools: list[Staircase], batch: int, link_s: float) -> float:
    return float(best_partition(pools, batch, [0.0, 0.0, *(link_s * n for n in range(2, len(pools) + 1))]).step_s[0])


@settings(max_examples=200)
@given(pools=st.lists(staircases(), min_size=1, max_size=4), batch=st.integers(1, 1500), link_s=st.floats(0.0, 2.0))
def test_more_replicas_smaller_batch_or_another_pool_never_slow_the_step(
    pools: list[Staircase], batch: int, link_s: float
) -> None:
    step_s = best_s(pools, batch, link_s)
    near = 1.0 + 1e-12
    assert best_s([with_one_more_replica(pools[0]), *pools[1:]], batch, link_s) <= step_s * near
    assert best_s(pools, batch - 1, link_s) <= step_s * near
    assert best_s([*pools, one_pool()], batch, link_s) <= step_s * near
    assert best_s(pools[::-1], batch, link_s) == pytest.approx(step_s, rel=1e-12)
    assert best_s(pools, batch, 0.5 * link_s) <= step_s * near
