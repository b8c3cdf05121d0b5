"""The one door to scores: designs in, a result frame out, feasibility and equal-cost gains included."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dse.columns import COLUMNS, column, limit_sense
from dse.errors import InputError
from dse.model.screening import Explanation
from dse.resolve import Study
from dse.units import quantity
from formulations.plan import Plan

Values = NDArray[np.generic]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
SMALL = 1e-9
"""A bound closer to zero than this counts as this far from it, where a share of it is taken."""
MET = 1e-12
"""A limit is met to twelve digits, as objectives are compared: the rounding of a sum breaks none."""
_UNIT_OF_LIMIT = {"power_w": "W", "power_mean_w": "W", "mem_margin_byte": "B"}


def bounds_of(study: Study) -> dict[str, tuple[float, float]]:
    """Every bound on a result column: the user's limits, and the demand."""
    bounds = study.envelope.limits.bounds()
    if study.space.demand is not None:
        column, least = study.space.demand
        low, high = bounds.get(column, (-np.inf, np.inf))
        bounds[column] = (max(low, least), high)
    return bounds


def limit_key(study: Study, name: str, *, low: bool) -> str:
    """Key of the study that bounds a column from below, or from above; a demand stands for its column."""
    if low and study.space.demand is not None and study.space.demand == (name, bounds_of(study)[name][0]):
        return f"demand.{name}"
    given = (study.envelope.limits.model_extra or {})[name]
    return f"limits.{name}" + (f".{'min' if low else 'max'}" if isinstance(given, dict) else "")


def within_bounds(
    columns: Mapping[str, Floats], bounds: Mapping[str, tuple[float, float]], *, exact: bool
) -> Bools | bool:
    """Which designs meet the bounds on columns that are known.

    Where the columns only bound a design, its maximised columns are upper and its minimised ones lower
    bounds: what they cannot rule out stays.
    """
    ok: Bools | bool = True
    for name, (low, high) in bounds.items():
        if name not in columns:
            if exact:
                raise KeyError(f"{name} is bounded but was not scored")
            continue
        sense = limit_sense(name)
        if exact or sense == "min":
            ok = ok & (columns[name] <= high + MET * abs(high))
        if exact or sense == "max":
            ok = ok & (columns[name] >= low - MET * abs(low))
    return ok


def serves(columns: Mapping[str, Values]) -> Bools:
    """Which designs do any work at all."""
    return np.asarray(np.asarray(columns["throughput_tok_s"], dtype=np.float64) > 0)


def violation(columns: Mapping[str, Floats], bounds: Mapping[str, tuple[float, float]]) -> Floats:
    """Sum of the shares by which bounds are broken."""
    total: Floats = np.zeros(())
    for name, (low, high) in bounds.items():
        if name in columns:
            v = columns[name]
            with np.errstate(invalid="ignore", over="ignore"):
                over = np.where(v > high + MET * abs(high), (v - high) / max(abs(high), SMALL), 0.0)
                short = np.where(v < low - MET * abs(low), (low - v) / max(abs(low), SMALL), 0.0)
            total = total + over + short
    return total


def score_index(study: Study, index: NDArray[np.int64]) -> pd.DataFrame:
    """Result frame of grid designs, in the order of their index."""
    return finish(study, study.space.score(index))


def on_grid(index: NDArray[np.int64]) -> list[Plan]:
    """Designs of the grid as plans."""
    return [Plan(index=int(i)) for i in index]


def score_plans(study: Study, plans: Sequence[Plan]) -> pd.DataFrame:
    """Result frame of plans, in their order."""
    index = np.array([p.index for p in plans if p.index is not None], dtype=np.int64)
    if len(index) == len(plans):
        return score_index(study, index)
    return pd.concat([score_plan(study, plan) for plan in plans], ignore_index=True)


def score_plan(study: Study, plan: Plan) -> pd.DataFrame:
    """Result frame, of one row, of a program's plan."""
    if plan.index is not None:
        return score_index(study, np.array([plan.index], dtype=np.int64))
    frame = score(study, plan.settings)
    frame["design_id"] = pd.array([plan.design_id], dtype="str")
    return frame


def score(study: Study, settings: Mapping[str, Any]) -> pd.DataFrame:
    """Result frame, of one row, of one design given as `--set` keys.

    Keys are those of INTERFACE.md (`n_<pool>`, `role_<pool>`, `link_gb_s`, ...); keys left out take
    the first value of their axis. Raises InputError with every fault of the settings.
    """
    return explain(study, settings)[0]


def explain(study: Study, settings: Mapping[str, Any]) -> tuple[pd.DataFrame, Explanation]:
    """The row of one design, and what explains it."""
    text = {k: str(v) for k, v in settings.items()}
    columns, detail = study.space.score_design(text)
    return finish(study, columns), detail


def finish(study: Study, columns: Mapping[str, Values]) -> pd.DataFrame:
    """Adds limits, feasibility and gains at equal cost and power; orders the columns as the schema does."""
    bounds = bounds_of(study)
    unknown = [name for name in bounds if name not in columns]
    if unknown:
        raise InputError(f"limits: {', '.join(unknown)} is not a column of {study.envelope.paradigm} results")
    reasons = np.array(columns["infeasible_reason"], dtype=object)
    possible = reasons == ""
    for name, (low, high) in bounds.items():
        values = np.asarray(columns[name], dtype=np.float64)
        met = within_bounds({name: values}, {name: (low, high)}, exact=True)
        for i in np.flatnonzero(possible & ~met):
            text = limit_text(study, name, float(values[i]), low, high)
            reasons[i] = f"{reasons[i]}; {text}" if reasons[i] else text
    data: dict[str, Any] = {
        **columns,
        **_equal_gains(study, columns),
        "infeasible_reason": reasons,
        "feasible": reasons == "",
        "on_front": np.zeros(len(reasons), dtype=np.bool_),
    }
    order = ordered_columns(list(data), study.space.pool_names)
    return pd.DataFrame({k: pd.array(data[k], dtype="str") if data[k].dtype == object else data[k] for k in order})


def _equal_gains(study: Study, columns: Mapping[str, Values]) -> dict[str, Floats]:
    """Throughput over the best single-device fleets scaled to the same cost, and the same power."""
    tok = np.asarray(columns["throughput_tok_s"], dtype=np.float64)
    gains = {}
    for name, yardstick in study.space.yardsticks(columns).items():
        spent = np.asarray(columns[yardstick.base], dtype=np.float64) * yardstick.tok_s_per_unit
        gains[name] = np.divide(tok, spent, out=np.full_like(tok, np.nan), where=spent > 0)
    return gains


def limit_text(study: Study, name: str, value: float, low: float, high: float) -> str:
    """One broken limit in words, with the amount."""
    if study.space.demand == (name, low) and value < low:
        known = column(name)
        return f"demand: serves {value:.6g} of {low:g} {known.unit if known else ''} ({low - value:,.4g} short)"
    unit = _UNIT_OF_LIMIT.get(name, "")

    def shown(x: float) -> str:
        return quantity(x, unit) if unit else f"{x:,.6g}"

    if np.isnan(value):
        return f"limit: {name} is not defined for this design"
    if value > high:
        return f"limit: {name} {shown(value)} is above {shown(high)} ({shown(value - high)} over)"
    return f"limit: {name} {shown(value)} is below {shown(low)} ({shown(low - value)} short)"


def ordered_columns(present: list[str], pools: tuple[str, ...]) -> list[str]:
    """The frame's columns in the order of the schema, pool columns side by side."""
    order: list[str] = []
    for c in COLUMNS:
        names = [c.name.replace("<pool>", p) for p in pools] if "<pool>" in c.name else [c.name]
        order += [n for n in names if n in present]
    missing = set(present) - set(order)
    if missing:
        raise KeyError(f"columns without a schema: {sorted(missing)}")
    return order
