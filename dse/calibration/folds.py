"""Errors on rows that a fit did not see: one model, or one shape, left out at a time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd

from dse.hardware import Accelerator

from .accuracy import covered_frac, interval
from .fit import ModelOf, fit, log_errors
from .layout import Layout, Parameter

KEYS = ("model", "shape")
"""What a fold leaves out. Never random rows: neighbours of a row would give it away."""
ROW = "row"
FEW_ROWS = 8
"""With fewer rows than this one is left out at a time."""


def keys_of(rows: pd.DataFrame) -> tuple[str, ...]:
    """What folds of these rows leave out: models and shapes where there are several, else single rows."""
    if len(rows) < FEW_ROWS:
        return (ROW,)
    return tuple(key for key in KEYS if rows[key].nunique() > 1) or (ROW,)


def widest_interval(errors: Iterable[pd.Series[float]]) -> tuple[float, float] | None:
    """The lowest and the highest end of the intervals of several folds' errors; None without any."""
    ends = [interval(e) for e in errors if e.notna().sum() > 1]
    return (min(low for low, _ in ends), max(high for _, high in ends)) if ends else None


def fold_of(rows: pd.DataFrame, key: str) -> pd.Series[str]:
    """The fold of every row: its model, its shape, or itself where rows are few."""
    if key == ROW or len(rows) < FEW_ROWS:
        return pd.Series([str(i) for i in range(len(rows))], index=rows.index)
    return rows[key].astype(str)


def held_out_errors(
    layout: Layout,
    rows: pd.DataFrame,
    device: Accelerator,
    parameters: Sequence[Parameter],
    model_of: ModelOf,
    key: str,
    *,
    prior: bool = True,
) -> pd.DataFrame | None:
    """log(predicted/measured) of every row by the fit that left out all rows of its model, or shape.

    None where there is but one of them. With few rows, one row is left out at a time instead. `prior` as in the fit
    that the errors are to judge.
    """
    fold = fold_of(rows, key)
    if fold.nunique() < 2:
        return None
    errors = pd.DataFrame(np.nan, index=rows.index, columns=[q.name for q in layout.quantities], dtype=np.float64)
    for value in fold.unique():
        out = fold == value
        found = fit(layout, rows[~out], device, parameters, model_of, prior=prior)
        errors[out] = log_errors(layout, rows[out], found.on(device), model_of)
    return errors


def errors_by_fold(
    layout: Layout,
    rows: pd.DataFrame,
    device: Accelerator,
    parameters: Sequence[Parameter],
    model_of: ModelOf,
    *,
    prior: bool = True,
) -> dict[str, pd.DataFrame]:
    """`held_out_errors` by what a fold leaves out, for everything that these rows have several of."""
    found = {
        key: held_out_errors(layout, rows, device, parameters, model_of, key, prior=prior) for key in keys_of(rows)
    }
    return {key: errors for key, errors in found.items() if errors is not None}


def held_out_coverage(errors: pd.Series[float], fold: pd.Series[str]) -> float:
    """Share of rows inside the 80 % interval that the other folds' errors give."""
    inside, n = 0.0, 0
    for value in fold.unique():
        out = fold == value
        low, high = interval(errors[~out])
        measured = int(errors[out].notna().sum())
        if measured and np.isfinite(low):
            inside += covered_frac(errors[out], low, high) * measured
            n += measured
    return inside / n if n else float("nan")
