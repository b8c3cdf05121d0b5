"""Eq. (5) in closed form: by hand, its limits, alpha found again. Against the derived eta: paper/test_eq5.py."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dse.errors import InputError
from dse.model.asymmetry import (
    asymmetry,
    eta_closed_form,
    fit_alpha,
    law_of_two,
    load_frac,
    pool_resources,
    residuals,
    shortfall,
)
from dse.model.roofline import idle_over_busy


def test_eq_5_by_hand() -> None:
    # 16 A100 and one wafer: P 4.992 and 12.5 PF, B 0.02488 and 21 PB/s, C 4.8 and 0.15 TB/s, M 0.64 and 0.044 TB
    gpus = pool_resources(16, 312e12, 1.555e12, 300e9, 40e9)
    wafer = pool_resources(1, 12.5e15, 21e15, 150e9, 44e9)
    asym = asymmetry(gpus, wafer)
    by_hand = [1 - 4.992 / 12.5, 1 - 0.02488 / 21, 1 - 0.15 / 4.8, 1 - 0.044 / 0.64]
    assert asym == pytest.approx(by_hand, rel=1e-12)
    # share 0.2 where 0.3 would balance: (0.3 - 0.2)/(0.2 * 0.7)
    phi = shortfall([0.2], [0.3])
    assert phi == pytest.approx([0.1 / 0.14])
    alpha = [0.1, 0.2, 0.3, 0.4]
    by_hand_eta = sum(a * x for a, x in zip(alpha, by_hand, strict=True)) * 0.1 / 0.14
    assert eta_closed_form(alpha, [asym], phi) == pytest.approx([by_hand_eta])


def test_several_features_add_up() -> None:
    alpha, asym, features = [[1.0, 0.0], [0.5, 2.0]], [[0.5, 0.25], [0.1, 0.0]], [[2.0, 1.0], [0.0, 3.0]]
    assert eta_closed_form(alpha, asym, features) == pytest.approx([2 * 0.5 + 0.25 + 0.5, 3 * 0.05])


def test_the_shortfall_is_the_idle_time_of_pools_whose_times_follow_the_law() -> None:
    rate, half, work = np.array([3.0, 10.0]), np.array([5.0, 40.0]), np.array([20.0, 44.0])
    time_s = (work + half) / rate
    other = [1, 0]
    share = load_frac(work, half, work[other], half[other])
    assert shortfall(share, rate / rate.sum()) == pytest.approx(idle_over_busy(time_s / time_s.max()))
    assert time_s[0] != time_s[1]


@given(st.floats(0.1, 1e4), st.floats(0.0, 1e4), st.floats(1.0, 1e3), st.floats(1.5, 10.0))
def test_two_times_give_the_law_again(rate: float, half: float, work: float, factor: float) -> None:
    times = [(w + half) / rate for w in (work, factor * work)]
    got_rate, got_half = law_of_two(work, times[0], factor * work, times[1])
    assert got_rate == pytest.approx(rate, rel=1e-6)
    assert got_half == pytest.approx(half, rel=1e-6, abs=1e-6 * (work + half))


def test_alpha_is_found_again() -> None:
    rng = np.random.default_rng(7)
    asym, features = rng.uniform(0.0, 1.0, (200, 4)), rng.uniform(0.0, 3.0, (200, 2))
    alpha = np.array([[0.5, 0.0, 0.25, 1.5], [0.0, 2.0, 0.0, 0.125]])
    fit = fit_alpha(asym, features, eta_closed_form(alpha, asym, features))
    assert fit.alpha == pytest.approx(alpha, abs=1e-9)
    assert fit.residuals.relative_p90 < 1e-9


def test_alpha_is_never_negative() -> None:
    asym = np.array([[1.0, 0.2], [0.2, 1.0], [0.5, 0.5]])
    fit = fit_alpha(asym, np.ones(3), np.array([1.0, 0.0, 0.2]))
    assert fit.alpha.min() == 0.0


def test_nothing_is_lost_without_asymmetry_or_at_balance() -> None:
    equal = asymmetry([1.0, 2.0, 0.0, 4.0], [1.0, 2.0, 0.0, 4.0])
    assert equal.tolist() == [0.0] * 4
    assert eta_closed_form([9.0] * 4, [equal], shortfall([0.1], [0.5])).tolist() == [0.0]
    balanced = np.array([0.1, 0.5, 0.9])
    assert eta_closed_form([9.0] * 4, np.ones((3, 4)), shortfall(balanced, balanced)).tolist() == [0.0] * 3


@given(st.floats(0.01, 0.99), st.floats(0.01, 0.99))
def test_only_the_pool_that_is_given_too_little_waits(share: float, balanced: float) -> None:
    own, other = shortfall(share, balanced), shortfall(1.0 - share, 1.0 - balanced)
    assert min(own, other) == pytest.approx(0.0, abs=1e-12)
    assert (own > 1e-9) <= (share < balanced)


def test_swapping_the_pools_swaps_eta() -> None:
    x, y = np.array([4.0, 1.0, 2.0, 3.0]), np.array([1.0, 9.0, 2.0, 5.0])
    alpha, share, balanced = [0.3, 0.1, 0.2, 0.4], np.array([0.2, 0.8]), np.array([0.6, 0.4])
    eta = eta_closed_form(alpha, np.stack([asymmetry(x, y)] * 2), shortfall(share, balanced))
    swapped = eta_closed_form(alpha, np.stack([asymmetry(y, x)] * 2), shortfall(share[::-1], balanced[::-1]))
    assert eta.tolist() == swapped[::-1].tolist()
    assert eta[0] > 0.0 == eta[1]


def test_faults_are_named_together() -> None:
    with pytest.raises(InputError) as caught:
        fit_alpha([[0.5, 0.5]], [np.inf, 1.0], [-1.0])
    assert len(caught.value.faults) == 3
    with pytest.raises(InputError, match="score at least one design"):
        fit_alpha(np.zeros((0, 4)), np.zeros(0), np.zeros(0))


def test_residuals_tell_eta_from_its_throughput() -> None:
    found = residuals([1.0, 1.0, 5.0], [1.0, 2.0, 3.0])
    assert (found.n, found.eta_median) == (3, 1.0)
    assert found.relative_median == pytest.approx(1 / 3)
