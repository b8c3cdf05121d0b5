"""Section 6: how requests flow between pools, and the rate that follows."""

from __future__ import annotations

import random

import numpy as np
import pytest
from scipy.optimize import linprog

from dse.model.routing import (
    exact_rate,
    split_rate,
    stealing_flows_lp,
)


def of(*values: float) -> list[np.ndarray]:
    return [np.array(v) for v in values]


def test_split_is_the_slower_phase() -> None:
    assert float(split_rate(of(30, 0), of(0, 20), 1e18, 1e9)) == 20.0
    assert float(split_rate(of(10, 0), of(0, 20), 1e18, 1e9)) == 10.0


def test_split_through_a_thin_link() -> None:
    assert float(split_rate(of(30, 0), of(0, 20), 5e9, 1e9)) == pytest.approx(5.0, rel=1e-12)


def test_split_in_proportion_over_three_pools() -> None:
    # prefill 30 + 10, decode 20: the pair of the first pool carries 3/4 of all
    assert float(split_rate(of(30, 10, 0), of(0, 0, 20), 6e9, 1e9)) == pytest.approx(8.0, rel=1e-12)
    # two decode pools 5 + 15 behind one prefill pool
    assert float(split_rate(of(100, 0, 0), of(0, 5, 15), 6e9, 1e9)) == pytest.approx(8.0, rel=1e-12)


def test_split_with_a_pool_held_back_by_ttft() -> None:
    # the first pool may do 12 of its 30: with its share of 3/4 the system does 16
    assert float(split_rate(of(30, 10, 0), of(0, 0, 20), 1e18, 1e9, of(12, 10, 0))) == pytest.approx(16.0, rel=1e-12)


def test_no_role_no_rate() -> None:
    assert float(split_rate(of(30, 10), of(0, 0), 1e18, 1e9)) == 0.0
    assert float(split_rate(of(0, 0), of(30, 10), 1e18, 1e9)) == 0.0


def test_split_arrays_equal_scalars() -> None:
    p, d = [1.0, 5.0, 30.0], [2.0, 20.0, 3.0]
    zero = np.zeros(3)
    many = split_rate([np.array(p), zero], [zero, np.array(d)], 4e9, 1e9)
    assert many.tolist() == [float(split_rate(of(x, 0), of(0, y), 4e9, 1e9)) for x, y in zip(p, d, strict=True)]


def test_stealing_by_hand() -> None:
    """A prefills in 1 s and decodes in 4, B the other way round: together 1/s, alone 0.2 each."""
    r, z = stealing_flows_lp(
        np.array([1.0, 1.0]),
        np.array([[1.0], [4.0]]),
        np.array([[4.0], [1.0]]),
        np.array([1.0]),
        np.array([1e9]),
        1e12,
    )
    assert r == pytest.approx(1.0, rel=1e-9)
    assert z[0, 1, 0] == pytest.approx(1.0, rel=1e-9)


def test_stealing_over_a_dead_link_is_the_sum_of_the_pools() -> None:
    r, _ = stealing_flows_lp(
        np.array([2.0, 1.0]),
        np.array([[1.0], [4.0]]),
        np.array([[4.0], [1.0]]),
        np.array([1.0]),
        np.array([1e9]),
        1e-3,
    )
    assert r == pytest.approx(2 / 5 + 1 / 5, rel=1e-9)


def test_stealing_by_hand_through_a_thin_link() -> None:
    """0.1 request/s may cross; the rest stays: A and B keep 0.9 and 0.9 s of each second at 5 s a request."""
    r, _ = stealing_flows_lp(
        np.array([1.0, 1.0]),
        np.array([[1.0], [4.0]]),
        np.array([[4.0], [1.0]]),
        np.array([1.0]),
        np.array([1e9]),
        1e8,
    )
    assert r == pytest.approx(0.1 + 0.9 / 5 + 0.9 / 5, rel=1e-9)


def test_stealing_without_a_home_for_a_class() -> None:
    r, _ = stealing_flows_lp(
        np.array([1.0, 1.0]), np.array([[np.inf], [np.inf]]), np.array([[4.0], [1.0]]), np.array([1.0]),
        np.array([1e9]), 1e12,
    )  # fmt: skip
    assert r == 0.0


def rate_by_another_programme(
    n: list[float],
    pre: list[list[float]],
    dec: list[list[float]],
    q: list[float],
    kv: list[float],
    link: float,
) -> float:
    """Rates y[p, p', c] instead of shares; the objective is the total rate."""
    k, m = len(n), len(q)
    keys = [(i, j, c) for i in range(k) for j in range(k) for c in range(m)]
    rows, bound = [], []
    for p in range(k):
        rows.append([(pre[i][c] * (i == p) + dec[j][c] * (j == p)) / n[p] for i, j, c in keys] + [0.0])
        bound.append(1.0)
        for o in range(k):
            if o != p:
                rows.append([kv[c] * ((i, j) == (p, o)) / link for i, j, c in keys] + [0.0])
                bound.append(1.0)
    equal = [[float(key[2] == c) for key in keys] + [-q[c]] for c in range(m)]
    found = linprog(
        [0.0] * len(keys) + [-1.0],
        A_ub=rows,
        b_ub=bound,
        A_eq=equal,
        b_eq=[0.0] * m,
        method="highs-ds",
        options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
    )
    return float(found.x[-1])


@pytest.mark.parametrize("seed", range(20))
def test_stealing_against_another_programme(seed: int) -> None:
    rng = random.Random(seed)
    k, m = rng.choice([2, 3]), rng.choice([1, 2, 3])
    n = [float(rng.randint(1, 20)) for _ in range(k)]
    pre = [[rng.uniform(0.1, 3) for _ in range(m)] for _ in range(k)]
    dec = [[rng.uniform(0.1, 9) for _ in range(m)] for _ in range(k)]
    q = [rng.uniform(0.1, 1) for _ in range(m)]
    q = [x / sum(q) for x in q]
    kv = [rng.uniform(1e8, 2e9) for _ in range(m)]
    link = rng.choice([1e7, 1e9, 1e15])
    want = rate_by_another_programme(n, pre, dec, q, kv, link)
    got, z = stealing_flows_lp(np.array(n), np.array(pre), np.array(dec), np.array(q), np.array(kv), link)
    assert got == pytest.approx(want, rel=1e-8)
    # the flows carry every class, and no pool or link does more than it can at that rate
    for c in range(m):
        assert float(z[:, :, c].sum()) == pytest.approx(q[c], rel=1e-9)
    for p in range(k):
        load = sum(z[p, o, c] * pre[p][c] + z[o, p, c] * dec[p][c] for o in range(k) for c in range(m))
        assert got * load <= n[p] * (1 + 1e-9)
        for o in range(k):
            byte = sum(z[p, o, c] * kv[c] for c in range(m))
            assert o == p or got * byte <= link * (1 + 1e-9)
    assert exact_rate(np.array(n), np.array(pre), np.array(dec), np.array(kv), link, z) == got


def test_stealing_is_optimal_to_1e_9() -> None:
    """Prefill in tens of ms, decode in fractions of one: the solver's tolerance must not show.

    With all traffic between pools 0 and 1 limited to 0.5 GB/s (as drawn by seed 2000 of random_designs).
    """
    n = [53.0, 276.0, 36.0]
    pre = [[0.028414186509024844], [0.010266463596172979], [0.28849052896354277]]
    dec = [[0.00024700193097746515], [1.1532626117016214e-05], [0.0004195977978787871]]
    want = rate_by_another_programme(n, pre, dec, [1.0], [167772160.0], 0.5e9)
    got, _ = stealing_flows_lp(
        np.array(n), np.array(pre), np.array(dec), np.array([1.0]), np.array([167772160.0]), 0.5e9
    )
    assert got == pytest.approx(want, rel=1e-9)
