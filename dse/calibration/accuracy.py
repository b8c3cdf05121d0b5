"""Prediction errors in a few numbers, and the interval that they put around a prediction."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import t as student

Floats = NDArray[np.float64]

COVERED = 0.8
"""Share of measurements that an interval is meant to hold."""
LARGE_PCT = 15.0
"""Median error from which on it needs a reason, or a measured table in place of the law."""
ENOUGH_ROWS = 20
"""From so many rows on the interval is between quantiles; below, Student's t."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """How far predictions are from measurements."""

    n: int
    median_pct: float
    """Of |predicted/measured - 1|."""
    p90_pct: float
    bias_pct: float
    """Median of predicted/measured - 1: above 0 the prediction is too long."""


def accuracy(log_errors: ArrayLike) -> Accuracy:
    """Summary of log(predicted/measured); NaN rows were not measured.

    >>> accuracy(np.log([1.1, 0.9, 1.0, np.nan]))
    Accuracy(n=3, median_pct=10.0, p90_pct=10.0, bias_pct=0.0)
    """
    errors = np.asarray(log_errors, dtype=np.float64)
    relative = 100.0 * np.expm1(errors[np.isfinite(errors)])
    if not len(relative):
        return Accuracy(n=0, median_pct=np.nan, p90_pct=np.nan, bias_pct=np.nan)
    median, p90 = np.quantile(np.abs(relative), [0.5, 0.9])
    return Accuracy(
        n=len(relative),
        median_pct=round(float(median), 9),
        p90_pct=round(float(p90), 9),
        bias_pct=round(float(np.median(relative)), 9),
    )


def interval(log_errors: ArrayLike) -> tuple[float, float]:
    """Factors (low, high) on a prediction between which 80 % of measurements lie.

    From twenty rows on the quantiles of measured/predicted, with the finite-sample correction of conformal prediction
    (Vovk, Gammerman, Shafer, "Algorithmic Learning in a Random World", 2005: the (n+1) q-th smallest); below, the
    prediction interval of Student's t on the logarithms, whose spread few rows leave wide. The errors must be of rows
    that the fit did not see.

    >>> low, high = interval(np.log(np.linspace(0.9, 1.1, 101)))
    >>> round(low, 3), round(high, 3)
    (0.925, 1.089)
    >>> low, high = interval(np.log([0.9, 1.0, 1.1]))
    >>> round(low, 2), round(high, 2)
    (0.81, 1.25)
    """
    ratio = -np.asarray(log_errors, dtype=np.float64)
    ratio = np.sort(ratio[np.isfinite(ratio)])
    n, tail = len(ratio), (1.0 - COVERED) / 2.0
    if n < 2:
        return (np.nan, np.nan)
    if n >= ENOUGH_ROWS:
        rank = np.clip([(n + 1) * tail - 1, (n + 1) * (1.0 - tail) - 1], 0, n - 1)
        low, high = np.interp(rank, np.arange(n), ratio)
    else:
        half = float(student.ppf(1.0 - tail, n - 1)) * float(np.std(ratio, ddof=1)) * np.sqrt(1.0 + 1.0 / n)
        low, high = np.mean(ratio) - half, np.mean(ratio) + half
    return float(np.exp(low)), float(np.exp(high))


def covered_frac(log_errors: ArrayLike, low: float, high: float) -> float:
    """Share of measurements within the factors (low, high) of their prediction; NaN without any.

    >>> covered_frac(np.log([1.3, 1.0, 0.95]), 0.9, 1.1)
    0.6666666666666666
    """
    errors = np.asarray(log_errors, dtype=np.float64)
    ratio = np.exp(-errors[np.isfinite(errors)])
    if not len(ratio) or not np.isfinite(low):
        return float("nan")
    return float(((ratio >= low) & (ratio <= high)).mean())
