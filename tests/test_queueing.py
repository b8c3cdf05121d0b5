"""Section 6: waiting for prefill, against the Erlang recurrence and textbook queues."""

from __future__ import annotations

import math

import numpy as np
import plain_model as plain
import pytest

from dse.model.queueing import erlang_c, largest_rate, mean_wait_s, tail_wait_s


@pytest.mark.parametrize("servers", [1, 2, 3, 8, 64, 500, 3000])
@pytest.mark.parametrize("load", [1e-3, 0.1, 0.5, 0.9, 0.999])
def test_erlang_c_is_its_recurrence(servers: int, load: float) -> None:
    want = plain.erlang_c_plain(servers, load * servers)
    assert float(erlang_c(servers, load * servers)) == pytest.approx(want, rel=1e-9, abs=1e-250)


def test_erlang_c_by_hand() -> None:
    # two servers, one erlang: C = (1/2 * 2) / (1 + 1 + 1/2 * 2) = 1/3
    assert float(erlang_c(2, 1.0)) == pytest.approx(1 / 3, rel=1e-12)
    assert float(erlang_c(1, 0.7)) == pytest.approx(0.7, rel=1e-12)
    assert [float(erlang_c(4, a)) for a in (0.0, 4.0, 9.0)] == [0.0, 1.0, 1.0]


def test_m_m_1_and_m_d_1() -> None:
    for rho in (0.1, 0.5, 0.9):
        assert float(mean_wait_s(rho / 2.0, 1, 2.0, 1.0)) == pytest.approx(2.0 * rho / (1 - rho), rel=1e-9)
        assert float(mean_wait_s(rho / 2.0, 1, 2.0, 0.0)) == pytest.approx(rho / (1 - rho), rel=1e-9)


def test_three_servers_by_hand() -> None:
    lam, c, s, cv2 = 10.0, 3, 0.2, 0.5  # load 2 erlang
    b = 1.0
    for k in (1, 2, 3):
        b = 2.0 * b / (k + 2.0 * b)
    waiting = 3 * b / (3 - 2.0 * (1 - b))
    wq = waiting / (c / s - lam) * (1 + cv2) / 2
    assert float(mean_wait_s(lam, c, s, cv2)) == pytest.approx(wq, rel=1e-9)
    t = float(tail_wait_s(lam, c, s, cv2))
    assert waiting * math.exp(-t * waiting / wq) == pytest.approx(0.01, rel=1e-9)


def test_rare_waits_have_no_tail() -> None:
    assert float(tail_wait_s(0.001, 1, 1.0, 1.0)) == 0.0
    assert float(mean_wait_s(0.0, 5, 1.0, 1.0)) == 0.0


def test_full_is_infinite() -> None:
    assert float(mean_wait_s(1.0, 1, 1.0, 1.0)) == math.inf
    assert float(tail_wait_s(2.0, 1, 1.0, 1.0)) == math.inf


def test_full_up_to_rounding_is_infinite_too() -> None:
    """The capacity of a prefill pool computed another way, n * (1/s): utilisation 1, hence no finite wait."""
    for servers in (1, 10, 113):
        rate = float(np.nextafter(servers / 0.3, 0.0))
        assert float(mean_wait_s(rate, servers, 0.3, 0.5)) == math.inf
        assert float(tail_wait_s(rate, servers, 0.3, 0.5)) == math.inf


def test_largest_rate_meets_its_limit() -> None:
    found = largest_rate(lambda r: r * r <= 2.0, np.array([1.0, 5.0]))
    assert found[0] == 1.0
    assert found[1] == pytest.approx(math.sqrt(2.0), rel=1e-12)
    assert found[1] ** 2 <= 2.0
    assert float(largest_rate(lambda r: r < 0, 5.0)) == 0.0


def test_arrays_equal_scalars() -> None:
    c, a = [1, 2, 40], [0.5, 1.9, 39.0]
    assert erlang_c(c, a).tolist() == [float(erlang_c(x, y)) for x, y in zip(c, a, strict=True)]
    lam = [0.1, 0.5, 2.0]
    assert mean_wait_s(lam, 1, 1.0, 0.3).tolist() == [float(mean_wait_s(x, 1, 1.0, 0.3)) for x in lam]
    assert tail_wait_s(lam, 1, 1.0, 0.3).tolist() == [float(tail_wait_s(x, 1, 1.0, 0.3)) for x in lam]
