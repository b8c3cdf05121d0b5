"""Waiting for prefill: M/G/c (docs/model.md, section 6, latency).

Sources: Erlang C and the two-moment approximation of M/G/c (Lee and Longton 1959; Whitt, Prod. Oper.
Manag. 2(2), 1993, doi:10.1111/j.1937-5956.1993.tb00094.x).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import gammaincc, gammaln

Floats = NDArray[np.float64]

UTILISED = 1e-12
"""A queue with less spare than this share of its capacity is at utilisation 1, up to rounding."""

TAIL_PROBABILITY = 0.01
"""p99: one request in a hundred waits longer."""


def erlang_c(servers: ArrayLike, offered: ArrayLike) -> Floats:
    """Probability that an arrival to c servers with offered load a = lambda/mu must wait; 1 once a >= c.

    Erlang B through the incomplete gamma function, B = a^c e^-a / (c! Q(c+1, a)), so that a
    thousand servers cost as much as one; C = c B / (c - a (1 - B)).

    >>> round(float(erlang_c(2, 1.0)), 12), float(erlang_c(3, 3.5)), float(erlang_c(4, 0.0))
    (0.333333333333, 1.0, 0.0)
    """
    c, a = np.broadcast_arrays(np.asarray(servers, dtype=np.float64), np.asarray(offered, dtype=np.float64))
    stable = (a < c) & (c > 0)
    cs, loads = np.where(stable, c, 1.0), np.where(stable & (a > 0), a, 0.5)
    blocked = np.exp(cs * np.log(loads) - loads - gammaln(cs + 1.0)) / gammaincc(cs + 1.0, loads)
    waits = cs * blocked / (cs - loads * (1.0 - blocked))
    return np.where(stable, np.where(a > 0, waits, 0.0), 1.0)


def mean_wait_s(arrival_per_s: ArrayLike, servers: ArrayLike, service_s: ArrayLike, service_cv2: ArrayLike) -> Floats:
    """Mean wait in queue [s]: C(c, rho)/(c mu - lambda) (1 + cs2)/2; infinite at utilisation 1.

    M/M/1 at half load waits one service time, M/D/1 half of it:

    >>> mean_wait_s(0.5, 1, 1.0, [1.0, 0.0]).round(12).tolist()
    [1.0, 0.5]
    """
    lam, c, s = (np.asarray(v, dtype=np.float64) for v in (arrival_per_s, servers, service_s))
    spare = c / s - lam
    ok = spare > UTILISED * c / s
    wait = erlang_c(c, lam * s) / np.where(ok, spare, 1.0) * (1.0 + np.asarray(service_cv2)) / 2.0
    return np.where(ok, wait, np.inf)


def tail_wait_s(
    arrival_per_s: ArrayLike,
    servers: ArrayLike,
    service_s: ArrayLike,
    service_cv2: ArrayLike,
    probability: float = TAIL_PROBABILITY,
) -> Floats:
    """Wait that a share `probability` of arrivals exceeds [s]: P(W > t) = C exp(-t C/Wq).

    >>> import math
    >>> t = float(tail_wait_s(0.5, 1, 1.0, 1.0))
    >>> math.isclose(0.5 * math.exp(-t * 0.5 / 1.0), 0.01)
    True
    """
    lam, c, s = (np.asarray(v, dtype=np.float64) for v in (arrival_per_s, servers, service_s))
    spare = c / s - lam
    ok = spare > UTILISED * c / s
    waiting = erlang_c(c, lam * s)
    decay_s = (1.0 + np.asarray(service_cv2)) / 2.0 / np.where(ok, spare, 1.0)  # Wq / C
    tail = decay_s * np.log(np.maximum(waiting / probability, 1.0))
    return np.where(ok, tail, np.inf)


def largest_rate(meets: Callable[[Floats], NDArray[np.bool_]], upper: ArrayLike, iterations: int = 64) -> Floats:
    """Largest rate in [0, upper] that meets a limit which only lower rates meet more easily.

    Bisection on all elements at once; the returned rate meets the limit (0 where none does).

    >>> float(largest_rate(lambda r: r <= 0.3, 1.0)) <= 0.3
    True
    """
    high = np.array(upper, dtype=np.float64)
    low = np.zeros_like(high)
    whole = meets(high)
    for _ in range(iterations):
        middle = 0.5 * (low + high)
        ok = meets(middle)
        low = np.where(ok, middle, low)
        high = np.where(ok, high, middle)
    return np.where(whole, np.asarray(upper, dtype=np.float64), low)
