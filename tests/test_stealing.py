"""Work stealing between two pools in closed form, against the linear program it is the dual of."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from dse.model.routing import exact_rate, stealing_flows_lp
from dse.model.stealing import stealing_flows, stealing_plans, stealing_rate

Floats = NDArray[np.float64]


def greedy_rate(n_a: float, n_b: float, work_a: Floats, work_b: Floats) -> float:
    """The textbook answer without a link limit: fill A in the order of its speed advantage, and balance."""
    order = np.argsort(work_a / np.maximum(work_b, 1e-300))
    best = 0.0
    for split in range(len(order)):
        on_a, on_b, k = order[:split], order[split + 1 :], order[split]
        # share f of piece k on A: (A + f a)/n_a = (B + (1 - f) b)/n_b
        a, b = work_a[on_a].sum(), work_b[on_b].sum()
        f = np.clip((n_a * (b + work_b[k]) - n_b * a) / (n_b * work_a[k] + n_a * work_b[k]), 0.0, 1.0)
        best = max(best, 1.0 / max((a + f * work_a[k]) / n_a, (b + (1 - f) * work_b[k]) / n_b))
    return best


@pytest.mark.parametrize("n_classes", [1, 2, 5])
@pytest.mark.parametrize("seed", range(12))
def test_equals_the_program_and_its_flows_attain_it(n_classes: int, seed: int) -> None:
    rng = np.random.default_rng(1000 * n_classes + seed)
    share = rng.dirichlet(np.ones(n_classes))
    prefill = (rng.uniform(0.02, 0.2, n_classes), rng.uniform(0.01, 0.3, n_classes))
    decode = (rng.uniform(0.5, 4.0, n_classes), rng.uniform(0.005, 0.05, n_classes))
    if seed % 3 == 0:
        decode[0][rng.integers(n_classes)] = np.inf
    if seed % 4 == 0:
        decode[1][rng.integers(n_classes)] = 0.0
    kv = rng.uniform(1e8, 2e9, n_classes)
    plans = stealing_plans(prefill, decode, share, kv)
    n = rng.integers(1, 60, (40, 2)).astype(float)
    byte_s = 10 ** rng.uniform(7, 12, 40)
    rate, flows, ok = stealing_flows(plans, (prefill, decode), share, kv, n[:, 0], n[:, 1], byte_s)
    assert ok.mean() > 0.8  # the rest is left to the program
    both_prefill, both_decode = np.stack(prefill), np.stack(decode)
    for i in range(40):
        expected, _ = stealing_flows_lp(n[i], both_prefill, both_decode, share, kv, float(byte_s[i]))
        assert rate[i] >= expected * (1 - 1e-9)
        bound = stealing_rate(plans, n[i, :1], n[i, 1:], float(byte_s[i]))
        assert bound[0] == pytest.approx(rate[i], rel=1e-12)
        if ok[i]:
            assert rate[i] == pytest.approx(expected, rel=1e-9)
            assert flows[i].sum(axis=(0, 1)) == pytest.approx(share)
            attained = exact_rate(n[i], both_prefill, both_decode, kv, float(byte_s[i]), flows[i])
            assert attained == pytest.approx(expected, rel=2e-9)


@pytest.mark.parametrize("seed", range(8))
def test_with_a_free_link_it_is_greedy_by_speed_ratio(seed: int) -> None:
    rng = np.random.default_rng(seed)
    share = rng.dirichlet(np.ones(4))
    prefill = (rng.uniform(0.02, 0.2, 4), rng.uniform(0.01, 0.3, 4))
    decode = (rng.uniform(0.5, 4.0, 4), rng.uniform(0.005, 0.05, 4))
    plans = stealing_plans(prefill, decode, share, np.ones(4))
    work_a, work_b = (np.concatenate([prefill[p] * share, decode[p] * share]) for p in (0, 1))
    for n_a, n_b in ((1.0, 1.0), (30.0, 2.0), (2.0, 9.0)):
        rate = stealing_rate(plans, np.array([n_a]), np.array([n_b]), float("inf"))[0]
        assert rate == pytest.approx(greedy_rate(n_a, n_b, work_a, work_b), rel=1e-9)


def test_a_class_that_fits_nowhere_stops_everything() -> None:
    nowhere = np.array([1.0, np.inf])
    plans = stealing_plans((nowhere, nowhere), (np.ones(2), np.ones(2)), np.array([0.5, 0.5]), np.ones(2))
    assert stealing_rate(plans, np.array([5.0]), np.array([5.0]), 1e9)[0] == 0.0


def test_large_blocks_equal_small_ones() -> None:
    rng = np.random.default_rng(5)
    share = rng.dirichlet(np.ones(6))
    prefill = (rng.uniform(0.02, 0.2, 6), rng.uniform(0.01, 0.3, 6))
    decode = (rng.uniform(0.5, 4.0, 6), rng.uniform(0.005, 0.05, 6))
    plans = stealing_plans(prefill, decode, share, np.full(6, 1e9))
    n_a, n_b = np.arange(1.0, 301.0)[:, None], np.arange(1.0, 101.0)[None, :]
    block = stealing_rate(plans, n_a, n_b, 2e11)
    few = stealing_rate(plans, n_a[:7], n_b[:, :5], 2e11)
    assert block[:7, :5] == pytest.approx(few, rel=1e-12)
