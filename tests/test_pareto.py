"""Dominance, ties, NaN, and the running front's quick test."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dse.pareto import RunningFront, hypervolume, minimised, nondominated


def by_pairs(points: np.ndarray) -> list[bool]:
    return [not any((q <= p).all() and (q < p).any() for q in points) for p in points]


@given(st.integers(1, 4), st.integers(0, 2**32 - 1), st.integers(1, 60))
@settings(max_examples=60, deadline=None)
def test_nondominated_is_what_pairs_say(n_objectives: int, seed: int, n: int) -> None:
    points = np.random.default_rng(seed).integers(0, 6, (n, n_objectives)).astype(float)
    assert nondominated(points).tolist() == by_pairs(points)


@given(st.integers(1, 4), st.integers(0, 2**32 - 1))
@settings(max_examples=40, deadline=None)
def test_running_front_keeps_exactly_the_front(n_objectives: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    points = np.round(rng.normal(size=(400, n_objectives)), 1)
    front = RunningFront(n_objectives)
    for start in range(0, 400, 50):
        block = points[start : start + 50]
        keep = front.may_improve([block[:, i] for i in range(n_objectives)])
        front.merge(block[keep], np.arange(start, start + 50)[keep])
    assert sorted(front.index.tolist()) == np.flatnonzero(by_pairs(points)).tolist()


def test_ties_stay_and_nan_never_does() -> None:
    points = np.array([[1.0, 1.0], [1.0, 1.0], [np.nan, 0.0], [2.0, 0.5]])
    assert nondominated(points).tolist() == [True, True, False, True]


def test_rounding_noise_is_a_tie() -> None:
    noisy = minimised(
        {"throughput_tok_s": np.array([0.1 + 0.2, 0.3]), "power_w": np.array([2.0, 1.0])},
        ["throughput_tok_s", "power_w"],
    )
    assert nondominated(noisy).tolist() == [False, True]


def test_senses_come_from_the_schema() -> None:
    matrix = minimised(
        {"throughput_tok_s": np.array([5.0]), "cost_usd_per_h": np.array([2.0])},
        ["throughput_tok_s", "cost_usd_per_h"],
    )
    assert matrix.tolist() == [[-5.0, 2.0]]


def test_hypervolume_of_a_box() -> None:
    assert hypervolume(np.array([[1.0, 1.0, 1.0]]), np.array([2.0, 3.0, 4.0])) == pytest.approx(6.0)
    assert hypervolume(np.array([[5.0, 1.0]]), np.array([2.0, 3.0])) == 0.0
