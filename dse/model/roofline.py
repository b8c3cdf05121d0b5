"""One law for the time of a pass, and eq. (3)-(4) read off it (docs/model.md, section 2 and 5).

Source: Williams, Waterman, Patterson, "Roofline", CACM 52(4), 2009, doi:10.1145/1498765.1498785.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

TERMS = ("compute", "memory", "communication", "fixed")
"""What can bind a pass, in the order of `binding_term`."""


def term_s(work: ArrayLike, n_devices: ArrayLike, peak_per_s: float, efficiency: float) -> Floats:
    """Time of one resource [s]: work / (g peak e).

    >>> float(term_s(1e15, 4, 312e12, 0.5))
    1.6025641025641026
    """
    return np.asarray(work, dtype=np.float64) / (np.asarray(n_devices) * (peak_per_s * efficiency))


def utilisation(work: ArrayLike, fixed_s: float, rate_per_s: float, max_frac: float = 1.0) -> Floats:
    """Share of the peak that a pass over `work` reaches: u_max w / (w + w_half), w_half = t_fixed R.

    It follows from t(w) = t_fixed + w/R: proportional to w when small, saturating when large.
    WSE-3, Llama-2-7B training: t_fixed 0.145 s, R 33.2 samples/s gives u(32) = 0.87.

    >>> round(float(utilisation(32, 0.145, 33.2)), 2)
    0.87
    """
    w = np.asarray(work, dtype=np.float64)
    return max_frac * w / (w + fixed_s * rate_per_s)


def table_time_s(work: ArrayLike, table_work: ArrayLike, table_s: ArrayLike) -> Floats:
    """Measured table in place of the law [s]: linear between points, the last slope beyond.

    Below the first point the first slope, but never less than its share of the first time: no work takes less
    than no time.

    >>> table_time_s([0.5, 1.5, 4.0], [1.0, 2.0, 3.0], [1.0, 1.5, 2.5]).tolist()
    [0.75, 1.25, 3.5]
    >>> table_time_s([0.5], [1.0, 2.0], [1.0, 9.0]).tolist()
    [0.5]
    """
    w = np.asarray(work, dtype=np.float64)
    x, y = np.asarray(table_work, dtype=np.float64), np.asarray(table_s, dtype=np.float64)
    i = np.clip(np.searchsorted(x, w) - 1, 0, len(x) - 2)
    time_s = y[i] + (w - x[i]) * (y[i + 1] - y[i]) / (x[i + 1] - x[i])
    return np.where(w < x[0], np.maximum(time_s, y[0] * w / x[0]), time_s)


def binding_term(
    compute_s: ArrayLike, memory_s: ArrayLike, communication_s: ArrayLike, fixed_s: ArrayLike
) -> NDArray[np.intp]:
    """Index into TERMS of the largest part of a time."""
    parts = np.broadcast_arrays(
        *(np.asarray(p, dtype=np.float64) for p in (compute_s, memory_s, communication_s, fixed_s))
    )
    return np.stack(parts).argmax(axis=0)


def binding_utilisation(
    compute_s: ArrayLike,
    memory_s: ArrayLike,
    communication_s: ArrayLike,
    total_s: ArrayLike,
) -> Floats:
    """s = max(t_c, t_m, t_x) / t: how much of its own time the binding resource is at work.

    With u_P = (F / (P t_c)) s, u_B = (Q / (B t_m)) s and u_L = s, the minimum of eq. (3)
    is exactly F / t.

    >>> float(binding_utilisation(2.0, 1.0, 0.0, 4.0))
    0.5
    """
    peak = np.maximum(np.maximum(compute_s, memory_s), communication_s)
    total = np.asarray(total_s, dtype=np.float64)
    return np.divide(peak, total, out=np.zeros(np.broadcast(peak, total).shape), where=total > 0)


def u_ho(ideal_s: ArrayLike, part_s: ArrayLike, total_s: ArrayLike) -> Floats:
    """Utilisation of the resource whose part is longest, while the pool is never idle; parts on the first axis.

    u = ideal/total: the time that its work takes at the full peak, over the time it takes in all. With
    part = ideal/e this is e s of eq. (4).

    >>> u_ho([[1.0], [0.1]], [[2.0], [0.5]], [4.0]).tolist()
    [0.25]
    """
    ideal, parts = np.asarray(ideal_s, dtype=np.float64), np.asarray(part_s, dtype=np.float64)
    used = np.take_along_axis(ideal, parts.argmax(axis=0)[None], axis=0)[0]
    total = np.asarray(total_s, dtype=np.float64)
    return np.divide(used, total, out=np.zeros(np.broadcast(used, total).shape), where=total > 0)


def idle_over_busy(busy_frac: ArrayLike) -> Floats:
    """eta of eq. (4): 1/busy - 1; infinite for a pool that gets no work.

    >>> idle_over_busy([1.0, 0.8, 0.0]).tolist()
    [0.0, 0.25, inf]
    """
    busy = np.asarray(busy_frac, dtype=np.float64)
    with np.errstate(divide="ignore"):
        return np.where(busy > 0, np.maximum(1.0 / np.where(busy > 0, busy, 1.0) - 1.0, 0.0), np.inf)
