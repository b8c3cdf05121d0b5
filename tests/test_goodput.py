"""Training with failures: limits, the optimum, and the closed form against a simulation."""

from __future__ import annotations

import math
from decimal import Decimal, getcontext

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dse.model.goodput import goodput_frac, optimal_interval_s, system_mtbf_s

HOUR_S = 3600.0
MTBF_S = st.floats(1e-3, 1e12)
COST_S = st.floats(1e-6, 1e6)


def interval_to_40_digits(mtbf: float, checkpoint: float) -> float:
    """Root u of -ln(1 - u) - u = delta/M by bisection, times M."""
    getcontext().prec = 60
    x = Decimal(checkpoint) / Decimal(mtbf)
    low, high = Decimal(0), Decimal(1)
    for _ in range(180):
        u = (low + high) / 2
        low, high = (u, high) if -(1 - u).ln() - u < x else (low, u)
    return float(low * Decimal(mtbf))


@pytest.mark.parametrize("ratio", [1e-14, 1e-8, 1e-5, 9.9e-5, 1.01e-4, 1e-3, 0.1, 1.0, 30.0])
def test_optimum_is_exact(ratio: float) -> None:
    got = float(optimal_interval_s(7.0, 7.0 * ratio))
    assert got == pytest.approx(interval_to_40_digits(7.0, 7.0 * ratio), rel=3e-12)


@pytest.mark.parametrize(("mtbf_min", "published_min"), [(24 * 60.0, 117.0), (6 * 60.0, 57.0), (15.0, 9.1)])
def test_optimum_as_daly_prints_it(mtbf_min: float, published_min: float) -> None:
    """Captions of figures 3 to 5 in doi:10.1016/j.future.2004.11.016: delta = 5 min, R = 10 min, by his expansion."""
    got = float(optimal_interval_s(mtbf_min * 60.0, 300.0)) / 60.0
    print(f"M = {mtbf_min} min: {got:.3f} min, printed {published_min}, error {got / published_min - 1:+.2%}")
    assert got == pytest.approx(published_min, rel=0.01)


def test_by_hand() -> None:
    m, delta, restart, tau = 100.0, 2.0, 5.0, 20.0
    wall_per_useful = m * math.exp(restart / m) * (math.exp((tau + delta) / m) - 1) / tau
    assert float(goodput_frac(m, delta, restart, tau)) == pytest.approx(1 / wall_per_useful, rel=1e-14)


def simulated_goodput(rng: np.random.Generator, mtbf: float, delta: float, restart: float, tau: float) -> float:
    """Plain replay: work tau, save for delta; a failure at any moment costs a restart and the segment."""
    wall, segments = 0.0, 20_000
    for _ in range(segments):
        while (failure := rng.exponential(mtbf)) < tau + delta:
            wall += failure
            while (failure := rng.exponential(mtbf)) < restart:
                wall += failure
            wall += restart
        wall += tau + delta
    return segments * tau / wall


@pytest.mark.parametrize(
    ("mtbf", "delta", "restart", "tau"), [(10.0, 0.5, 1.0, 3.0), (10.0, 2.0, 8.0, 9.0), (100.0, 1.0, 0.0, 12.0)]
)
def test_closed_form_is_what_a_simulation_gives(mtbf: float, delta: float, restart: float, tau: float) -> None:
    got = simulated_goodput(np.random.default_rng(7), mtbf, delta, restart, tau)
    assert float(goodput_frac(mtbf, delta, restart, tau)) == pytest.approx(got, rel=0.015)


def test_free_checkpoints_leave_only_the_restart() -> None:
    assert float(optimal_interval_s(50.0, 0.0)) == 0.0
    assert float(goodput_frac(50.0, 0.0, 5.0)) == pytest.approx(math.exp(-0.1), rel=1e-15)
    assert float(goodput_frac(50.0, 0.0, 5.0, 0.0)) == pytest.approx(math.exp(-0.1), rel=1e-15)
    assert float(goodput_frac(50.0, 1e-12, 5.0)) == pytest.approx(math.exp(-0.1), rel=1e-6)


def test_no_failures() -> None:
    assert float(optimal_interval_s(np.inf, 10.0)) == np.inf
    assert float(goodput_frac(np.inf, 10.0, 600.0)) == 1.0
    assert float(goodput_frac(np.inf, 10.0, 600.0, 90.0)) == pytest.approx(0.9, rel=1e-15)
    assert float(goodput_frac(np.inf, 0.0, 600.0)) == 1.0
    assert float(goodput_frac(np.inf, 10.0, 600.0, np.inf)) == 1.0
    assert float(goodput_frac(1e200, 10.0, 600.0)) == 1.0
    assert float(goodput_frac(1e200, 10.0, 600.0, 90.0)) == pytest.approx(0.9, rel=1e-15)


def test_hopeless_is_zero_not_an_overflow() -> None:
    assert float(goodput_frac(1.0, 1e5, 0.0)) == 0.0
    assert float(goodput_frac(1.0, 1.0, 1e5)) == 0.0
    assert float(goodput_frac(1.0, 1.0, 0.0, 1e9)) == 0.0
    assert float(goodput_frac(1.0, 1.0, 0.0, np.inf)) == 0.0
    assert float(goodput_frac(100.0, 1.0, 1.0, 0.0)) == 0.0
    assert float(goodput_frac(1e-300, 1e300, 1e300)) == 0.0
    assert float(optimal_interval_s(2.0, 1e5)) == 2.0


@given(MTBF_S, COST_S, st.floats(0.0, 1e6), st.floats(1.0, 1e3))
def test_monotone_and_a_share(mtbf: float, delta: float, restart: float, more: float) -> None:
    here = float(goodput_frac(mtbf, delta, restart))
    assert 0.0 <= here <= 1.0
    slack = 1e-11 * here
    assert float(goodput_frac(mtbf * more, delta, restart)) >= here - slack
    assert float(goodput_frac(mtbf, delta * more, restart)) <= here + slack
    assert float(goodput_frac(mtbf, delta, restart * more)) <= here + slack
    assert float(optimal_interval_s(mtbf * more, delta)) >= float(optimal_interval_s(mtbf, delta)) * (1 - 1e-11)
    assert float(optimal_interval_s(mtbf, delta * more)) >= float(optimal_interval_s(mtbf, delta)) * (1 - 1e-11)


@given(MTBF_S, COST_S, st.floats(0.0, 1e6), st.floats(1e-3, 1e3))
def test_no_other_interval_is_better(mtbf: float, delta: float, restart: float, factor: float) -> None:
    tau = float(optimal_interval_s(mtbf, delta))
    best = float(goodput_frac(mtbf, delta, restart))
    assert best == float(goodput_frac(mtbf, delta, restart, tau))
    assert float(goodput_frac(mtbf, delta, restart, tau * factor)) <= best * (1 + 1e-12)


@pytest.mark.parametrize("factor", [0.5, 0.9, 1.1, 2.0])
def test_the_neighbours_are_worse(factor: float) -> None:
    tau = optimal_interval_s(3 * HOUR_S, 60.0)
    assert goodput_frac(3 * HOUR_S, 60.0, 600.0, tau * factor) < goodput_frac(3 * HOUR_S, 60.0, 600.0)


@given(st.floats(1.0, 1e9), st.floats(1e-3, 10.0), st.floats(0.0, 10.0))
def test_best_share_in_closed_form(mtbf: float, checkpoint_mtbf: float, restart_mtbf: float) -> None:
    """At the optimum the whole expression is (1 - tau/M) e^(-R/M)."""
    delta, restart = checkpoint_mtbf * mtbf, restart_mtbf * mtbf
    share = 1.0 - float(optimal_interval_s(mtbf, delta)) / mtbf
    assert float(goodput_frac(mtbf, delta, restart)) == pytest.approx(share * math.exp(-restart_mtbf), rel=1e-9)


def test_arrays_equal_scalars() -> None:
    mtbf, delta = np.array([[1e3], [1e5], [np.inf]]), np.array([0.0, 10.0, 100.0])
    for tau in (None, 500.0):
        got = goodput_frac(mtbf, delta, 60.0, tau)
        assert got.shape == (3, 3)
        assert got.tolist() == [[float(goodput_frac(m, d, 60.0, tau)) for d in delta] for m in (1e3, 1e5, np.inf)]


def test_system_of_pools() -> None:
    # 100 devices of 1e6 s and 4 of 2e5 s: 1e-4 + 2e-5 failures a second
    assert float(system_mtbf_s([100, 4], [1e6, 2e5])) == pytest.approx(1 / 1.2e-4, rel=1e-12)
    n = [[100, 4], [100, 0], [0, 4], [0, 0]]
    got = system_mtbf_s(n, [1e6, 2e5])
    assert got.shape == (4,)
    assert got.tolist() == [float(system_mtbf_s(row, [1e6, 2e5])) for row in n]
    assert got[3] == np.inf
    assert float(system_mtbf_s([1000, 7], [np.inf, 70.0])) == pytest.approx(10.0, rel=1e-12)
    assert float(system_mtbf_s([1000], [np.inf])) == np.inf


def test_a_published_failure_rate() -> None:
    """Llama 3 405B, arXiv 2407.21783, section 3.3.4: 419 unexpected stops in 54 days on 16,384 GPUs, about 3.1 h."""
    device_s = 16_384 * 54 * 24 * HOUR_S / 419
    assert float(system_mtbf_s([16_384], [device_s])) / HOUR_S == pytest.approx(3.1, abs=0.05)
    assert device_s / (365.25 * 24 * HOUR_S) == pytest.approx(5.8, abs=0.05)
