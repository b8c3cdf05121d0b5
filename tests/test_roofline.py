"""Sections 2 and 5: the utilisation law, tables, the binding term, and eq. (3)'s minimum."""

from __future__ import annotations

import numpy as np
import pytest

from dse.model.roofline import TERMS, binding_term, binding_utilisation, table_time_s, term_s, utilisation


def test_term_by_hand() -> None:
    assert float(term_s(6e14, 2, 3e14, 0.5)) == pytest.approx(2.0, rel=1e-12)
    assert float(term_s(0.0, 2, 3e14, 0.5)) == 0.0
    assert term_s([1e14, 2e14], [1, 2], 1e14, 0.5).tolist() == [2.0, 2.0]


def test_utilisation_is_work_over_time() -> None:
    fixed, rate = 0.145, 33.2
    for w in (1.0, 32.0, 1000.0):
        assert float(utilisation(w, fixed, rate)) == pytest.approx(w / rate / (fixed + w / rate), rel=1e-12)
    assert float(utilisation(32, fixed, rate)) == pytest.approx(0.87, abs=0.005)
    assert float(utilisation(0.0, fixed, rate)) == 0.0
    assert float(utilisation(1e12, fixed, rate, 0.3)) == pytest.approx(0.3, rel=1e-6)
    assert float(utilisation(5.0, 0.0, rate, 0.3)) == pytest.approx(0.3, rel=1e-12)
    small = float(utilisation(1e-6, fixed, rate))
    assert float(utilisation(2e-6, fixed, rate)) == pytest.approx(2 * small, rel=1e-5)


def test_table_is_linear_between_points_and_beyond() -> None:
    x, y = [1.0, 2.0, 4.0], [1.0, 3.0, 4.0]
    assert table_time_s([1.0, 1.5, 2.0, 3.0, 4.0, 8.0], x, y).tolist() == [1.0, 2.0, 3.0, 3.5, 4.0, 6.0]


def test_binding_term_is_the_largest() -> None:
    assert [TERMS[binding_term(*row)] for row in np.eye(4)] == ["compute", "memory", "communication", "fixed"]
    assert binding_term([2, 1], [1, 2], [0, 0], [0, 0]).tolist() == [0, 1]


@pytest.mark.parametrize(("compute", "memory", "comm", "fixed"), [(2, 1, 0.5, 1), (1, 2, 0.5, 0), (0.1, 0.2, 3, 1)])
def test_minimum_of_eq_3_is_work_over_time(compute: float, memory: float, comm: float, fixed: float) -> None:
    """g = min(u_P P, u_B B F/Q, u_L L) with u_P = e_c s, u_B = e_m s, u_L = s, is F/t."""
    flop, byte, link_byte = 5e14, 3e12, 1e9
    total = max(compute, memory) + comm + fixed
    peak_ec, bandwidth_em, link = flop / compute, byte / memory, link_byte / comm
    s = float(binding_utilisation(compute, memory, comm, total))
    g = min(s * peak_ec, s * bandwidth_em * flop / byte, s * link * flop / link_byte)
    assert g == pytest.approx(flop / total, rel=1e-12)


def test_no_time_no_use() -> None:
    assert float(binding_utilisation(0.0, 0.0, 0.0, 0.0)) == 0.0
    assert binding_utilisation([2.0, 1.0], 1.0, 0.0, [4.0, 1.0]).tolist() == [0.5, 1.0]
