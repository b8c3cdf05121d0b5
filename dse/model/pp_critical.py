"""The longest path through a 1F1B schedule: what a step waits for, pass by pass (docs/training.md).

A 1F1B step of K stages and n micro-batches is the longest path through a graph of its passes that does not depend on
their times. So for the path that is longest at some times, with u_s forwards and w_s backwards of stage s on it,
T >= sum_s u_s f_s + w_s b_s at all times: a bound that is linear, and exact where it was found.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def critical_passes(forward_s: Floats, backward_s: Floats, n_micro: int) -> tuple[Ints, Ints]:
    """How many forwards and backwards of each stage are on the longest path of a 1F1B step, (K,) each.

    F(s, i) waits for F(s-1, i) and for the pass before it on its stage: F(s, i-1) for i <= w + 1,
    w = min(n, K-s), else B(s, i-w-1). B(s, j) waits for B(s+1, j) and for F(s, w+j), or B(s, j-1) once no forward is
    left.

    Source: the recurrence of `pp_schedule.one_f_one_b_s`.

    >>> u, w = critical_passes(np.array([1.0, 1.0]), np.array([3.0, 2.0]), 4)
    >>> (u.tolist(), w.tolist(), float(u @ [1.0, 1.0] + w @ [3.0, 2.0]))
    ([3, 2], [3, 2], 18.0)
    """
    k, n = len(forward_s), n_micro
    f, b = forward_s.tolist(), backward_s.tolist()
    ahead = [min(n, k - 1 - s) for s in range(k)]
    ends_f, ends_b = ([[0.0] * n for _ in range(k)] for _ in range(2))
    for s in range(k):
        for i in range(ahead[s]):
            before = ends_f[s][i - 1] if i else 0.0
            ends_f[s][i] = max(ends_f[s - 1][i] if s else 0.0, before) + f[s]
    for r in range(n):
        for s in range(k):
            i = r + ahead[s]
            if i < n:
                own = ends_b[s][r - 1] if r else (ends_f[s][i - 1] if i else 0.0)
                ends_f[s][i] = max(ends_f[s - 1][i] if s else 0.0, own) + f[s]
        for s in reversed(range(k)):
            i = r + ahead[s]
            own = ends_f[s][i] if i < n else (ends_b[s][r - 1] if r else ends_f[s][n - 1])
            ends_b[s][r] = max(ends_b[s + 1][r] if s < k - 1 else 0.0, own) + b[s]
    return _walk_back(ends_f, ends_b, ahead)


def _walk_back(ends_f: list[list[float]], ends_b: list[list[float]], ahead: list[int]) -> tuple[Ints, Ints]:
    """From the last backward of the first stage, always to the pass that was waited for."""
    k, n = len(ends_f), len(ends_f[0])
    counts = np.zeros(k, dtype=np.int64), np.zeros(k, dtype=np.int64)
    backward, s, i = True, 0, n - 1
    while True:
        counts[backward][s] += 1
        waits: list[tuple[float, bool, int, int]] = []
        if backward:
            if s < k - 1:
                waits.append((ends_b[s + 1][i], True, s + 1, i))
            if i + ahead[s] < n:
                waits.append((ends_f[s][i + ahead[s]], False, s, i + ahead[s]))
            elif i:
                waits.append((ends_b[s][i - 1], True, s, i - 1))
            else:
                waits.append((ends_f[s][n - 1], False, s, n - 1))
        else:
            if s:
                waits.append((ends_f[s - 1][i], False, s - 1, i))
            if i > ahead[s]:
                waits.append((ends_b[s][i - ahead[s] - 1], True, s, i - ahead[s] - 1))
            elif i:
                waits.append((ends_f[s][i - 1], False, s, i - 1))
        if not waits:
            return counts
        _, backward, s, i = max(waits)
