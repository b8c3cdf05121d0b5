"""An instance under a fixed number of users, against Little's law, its limits and a run by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dse.model.closed_loop import ClosedLoop, closed_loop

USERS = np.array([1, 2, 3, 5, 8, 16, 40, 100, 1000], dtype=float)
GIVEN: dict[str, Any] = {"slots": 1e9, "prefill_s": 0.2, "step_s": 0.01, "output_tokens": 101}


def loop(users: Any = USERS, **changes: Any) -> ClosedLoop:
    return closed_loop(users=users, **(GIVEN | changes))


def test_one_user_is_exact() -> None:
    """Alone: the prompt, then a hundred steps; nothing to wait for, and no running step."""
    one = loop(1)
    assert float(one.ttft_s) == pytest.approx(0.2, rel=1e-12)
    assert float(one.tpot_s) == pytest.approx(0.01, rel=1e-12)
    assert float(one.requests_s) == pytest.approx(1 / 1.2, rel=1e-12)


def test_two_users_solve_their_quadratic() -> None:
    """c = r (TTFT + (o - 1) TPOT) with rho = r t_p/2, solved on a fine grid instead of by bisection."""
    rate = np.linspace(1e-6, 5 - 1e-6, 4_000_001)
    rho = rate * 0.2 / 2
    ttft, tpot = 0.2 + rho * 0.2 / (2 * (1 - rho)) + 0.005, 0.01 / (1 - rho)
    at = np.abs(rate * (ttft + 100 * tpot) - 2).argmin()
    two = loop(2)
    assert float(two.requests_s) == pytest.approx(rate[at], rel=1e-5)
    assert float(two.ttft_s) == pytest.approx(ttft[at], rel=1e-5)
    assert float(two.tpot_s) == pytest.approx(tpot[at], rel=1e-5)


@pytest.mark.parametrize("changes", [{}, {"prefill_s": 1e-4}, {"step_s": 1e-6}, {"output_tokens": 2},
                                     {"held_steps": 5.0}])  # fmt: skip
def test_littles_law_holds(changes: dict[str, Any]) -> None:
    found, o = loop(**changes), (GIVEN | changes)["output_tokens"]
    inside = found.requests_s * (found.ttft_s + (o - 1) * found.tpot_s)
    assert inside == pytest.approx(USERS, rel=1e-9)


def test_littles_law_counts_those_who_wait_for_a_slot() -> None:
    found = loop(slots=6.0)
    inside = found.requests_s * (found.ttft_s + 100 * found.tpot_s)
    assert inside == pytest.approx(USERS, rel=1e-9)


@pytest.mark.parametrize("changes", [{}, {"output_tokens": 1}, {"prefill_s": 1e-5}, {"slots": 7.0},
                                     {"held_steps": 20.0}])  # fmt: skip
def test_throughput_never_falls_with_users_and_waits_never_shrink(changes: dict[str, Any]) -> None:
    found = loop(np.arange(1.0, 200.0), **changes)
    assert (np.diff(found.requests_s) >= -1e-9 * found.requests_s[1:]).all()
    assert (np.diff(found.ttft_s) >= -1e-9).all()
    assert (np.diff(found.tpot_s) >= -1e-9).all()


def test_prefill_alone_saturates_at_its_own_rate() -> None:
    """Of answers of one token nothing but prefill is left: 1/t_p is a bound, and many users reach it."""
    found = loop(output_tokens=1)
    assert (found.requests_s <= 1 / 0.2 * (1 + 1e-9)).all()
    assert float(found.requests_s[-1]) > 0.99 / 0.2
    assert float(loop(1, output_tokens=1).requests_s) == pytest.approx(5.0)


def test_rate_stays_below_what_prefill_allows() -> None:
    """rho < 1: no more prompts than the instance has time for, however many users."""
    found = loop()
    assert (found.requests_s * 0.2 * (USERS - 1) / USERS < 1).all()
    assert float(found.requests_s[-1]) > 0.9 / 0.2


def test_slots_cap_who_is_served_at_once() -> None:
    few, all_of_them = loop(slots=8.0), loop(8.0)
    beyond = USERS >= 8
    assert few.requests_s[beyond] == pytest.approx(np.full(beyond.sum(), float(all_of_them.requests_s)))
    assert few.tpot_s[beyond] == pytest.approx(np.full(beyond.sum(), float(all_of_them.tpot_s)))
    waited = few.ttft_s[beyond] - float(all_of_them.ttft_s)
    assert waited == pytest.approx((USERS[beyond] - 8) / few.requests_s[beyond])
    free = loop()
    assert few.ttft_s[~beyond] == pytest.approx(free.ttft_s[~beyond])
    none = loop(4.0, slots=0.0)  # memory for none: one at a time all the same
    assert float(none.tpot_s) == pytest.approx(0.01)


def test_held_steps_delay_the_first_token() -> None:
    assert float(loop(1, held_steps=4.5).ttft_s) == pytest.approx(0.2 + 4.5 * 0.01)
    assert float(loop(1, held_steps=4.5).tpot_s) == pytest.approx(0.01)
    free, held = loop(), loop(held_steps=20.0)
    assert (held.ttft_s > free.ttft_s).all()
    assert (held.requests_s < free.requests_s).all()
    assert (held.tpot_s[1:] < free.tpot_s[1:]).all()  # fewer prompts interrupt


def test_first_wave_is_shared_by_all_requests_of_a_user() -> None:
    """All start at once: (c - 1)/2 prompts before one, in one request of ten."""
    endless, ten = loop(), loop(requests_per_user=10.0)
    assert ten.ttft_s - endless.ttft_s == pytest.approx((USERS - 1) / 2 * 0.2 / 10)
    assert ten.requests_s == pytest.approx(endless.requests_s)
    capped = loop(slots=8.0, requests_per_user=10.0).ttft_s - loop(slots=8.0).ttft_s
    assert capped == pytest.approx((np.minimum(USERS, 8) - 1) / 2 * 0.2 / 10)


def test_arrays_equal_scalars() -> None:
    prefill, steps = np.array([1e-3, 0.2, 3.0]), np.array([1e-4, 0.01])
    held = np.array([0.0, 4.5])
    table = closed_loop(
        users=USERS[:, None, None], slots=12.0, prefill_s=prefill[None, :, None], step_s=steps[None, None, :],
        output_tokens=64, held_steps=held[None, None, :], requests_per_user=10.0,
    )  # fmt: skip
    for i, c in enumerate(USERS):
        for j, t in enumerate(prefill):
            for k, step in enumerate(steps):
                one = closed_loop(users=c, slots=12.0, prefill_s=t, step_s=step, output_tokens=64,
                                  held_steps=held[k], requests_per_user=10.0)  # fmt: skip
                for name in ("requests_s", "ttft_s", "tpot_s"):
                    assert getattr(table, name)[i, j, k] == pytest.approx(float(getattr(one, name)), rel=1e-12)


def test_slower_parts_never_help() -> None:
    base = loop()
    for slower in (loop(prefill_s=0.25), loop(step_s=0.013), loop(output_tokens=120)):
        assert (slower.requests_s <= base.requests_s).all()
