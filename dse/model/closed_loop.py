"""An instance under a fixed number of users, as benchmarks load it (docs/calibration.md).

Each of c users sends a request, waits for its last token, and sends the next. One instance does both phases; prefill
interrupts decode as in `dse.model.serving_pool`. Arguments broadcast.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

ROUNDS = 60
"""Halvings of the rate: beyond double precision."""
NO_WORK = 1e-12
"""Share of time that prefill leaves at the least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedLoop:
    """What users see in the mean."""

    requests_s: Floats
    ttft_s: Floats
    tpot_s: Floats


def closed_loop(
    *,
    users: ArrayLike,
    slots: ArrayLike,
    prefill_s: ArrayLike,
    step_s: ArrayLike,
    output_tokens: ArrayLike,
    held_steps: ArrayLike = 0.0,
    requests_per_user: float = np.inf,
) -> ClosedLoop:
    """Mean time to first token and per output token of c users on one instance [s].

    With r requests/s, rho = r t_p (c-1)/c is the share of time in which the instance prefills for others. By the
    arrival theorem a request meets the system with one user less; its rate is taken as (c-1)/c of r (Bard, Schweitzer),
    exact for one user and for many:

        TPOT = t_d/(1 - rho)                                   prefill interrupts decode
        TTFT = t_p + rho t_p/(2 (1 - rho)) + (1/2 + held) t_d  a queue of equal services, the running step, steps held
        c    = r (TTFT + (o - 1) TPOT)                         Little's law, which gives r by bisection

    One user alone finds no running step. The instance prefills all of its time at most: where r = 1/t_p binds, what
    the queue of equal services lacks is added to TTFT, so that Little's law holds.

    Users beyond the slots (sequences that memory holds) wait (c - slots)/r more. All users start at once: the first
    request of each finds (c-1)/2 others before it, one request in `requests_per_user` is a first one. That start-up is
    added to the mean TTFT afterwards; Little's law holds without it.

    `held_steps`: decode steps that the server holds a request or its first token back, to batch prompts or to send
    tokens in bunches.

    Sources: Reiser, Lavenberg, "Mean-Value Analysis of Closed Multichain Queuing Networks", JACM 27(2), 1980,
    doi:10.1145/322186.322195 (arrival theorem); Schweitzer, "Approximate Analysis of Multiclass Closed Networks of
    Queues", Amsterdam, 1979.

    >>> one = closed_loop(users=1, slots=8, prefill_s=0.1, step_s=0.01, output_tokens=91)
    >>> round(float(one.ttft_s), 6), round(float(one.tpot_s), 6), round(float(one.requests_s), 4)
    (0.1, 0.01, 1.0)
    """
    c = np.asarray(users, dtype=np.float64)
    active = np.minimum(c, np.maximum(np.asarray(slots, dtype=np.float64), 1.0))
    t_p, t_d = np.asarray(prefill_s, dtype=np.float64), np.asarray(step_s, dtype=np.float64)
    steps = np.maximum(np.asarray(output_tokens, dtype=np.float64) - 1.0, 0.0)
    held_s = (np.where(active > 1.0, 0.5, 0.0) + np.asarray(held_steps, dtype=np.float64)) * t_d
    others = (active - 1.0) / active

    def at(rate: Floats) -> tuple[Floats, Floats]:
        rho = rate * t_p * others
        return t_p + rho * t_p / (2.0 * (1.0 - rho)) + held_s, t_d / (1.0 - rho)

    low = np.zeros(np.broadcast(active, t_p, t_d, steps).shape)
    most = np.minimum((1.0 - NO_WORK) / np.maximum(others, NO_WORK), 1.0) / t_p
    high = np.minimum(most, active / (t_p + steps * t_d)) + low
    for _ in range(ROUNDS):
        rate = 0.5 * (low + high)
        ttft, tpot = at(rate)
        few = rate * (ttft + steps * tpot) < active
        low, high = np.where(few, rate, low), np.where(few, high, rate)
    rate = 0.5 * (low + high)
    ttft, tpot = at(rate)
    ttft = np.maximum(ttft, active / rate - steps * tpot)
    first = (active - 1.0) / 2.0 * t_p / requests_per_user
    return ClosedLoop(requests_s=rate, ttft_s=ttft + first + (c - active) / rate, tpot_s=tpot)
