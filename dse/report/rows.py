"""One row of a result frame, read by column: numbers, counts, pools, and a cell as the page prints it."""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import pandas as pd

from dse.columns import WHOLE_UNITS, column, pool_of
from dse.report.numbers import number, shown, shown_unit
from dse.resolve import Study

Row: TypeAlias = "pd.Series[Any]"


def value_of(row: Row, name: str) -> float:
    """A numeric column of a row; NaN where the paradigm has none."""
    return float(str(row[name])) if name in row.index else math.nan


def count_of(row: Row, pool: str, key: str = "n") -> int:
    """Devices of a pool, or another whole number of it; 0 where the paradigm has none."""
    value = value_of(row, f"{key}_{pool}")
    return int(value) if math.isfinite(value) else 0


def size_of(row: Row, pool: str) -> int:
    """Devices of one instance of a pool."""
    return max(count_of(row, pool, "instance_size"), 1)


def pools_bought(study: Study, row: Row) -> list[str]:
    """Pools that the design uses."""
    return [p for p in study.space.pool_names if count_of(row, p) > 0]


def part_list(study: Study, row: Row) -> str:
    """Counts and pools: `16 × a100-40gb-sxm + 1 × wse-3`."""
    return " + ".join(f"{count_of(row, p):,} × {p}" for p in pools_bought(study, row)) or "nothing"


def ratio_text(row: Row) -> str:
    """GPUs for each wafer, in words where there is no such number."""
    ratio = value_of(row, "gpu_wse_ratio")
    if math.isnan(ratio):
        return "–"
    if math.isinf(ratio):
        return "no wafers"
    return "no GPUs" if ratio == 0 else f"{ratio:.4g} : 1"


def cell(row: Row, name: str, *, unit: bool = True) -> str:
    """A column as the page prints it, with its unit or for a table without; a dash for a pool that is not bought."""
    known, pool = column(name), pool_of(name)
    if known is None or not known.unit:
        return str(row.get(name, "–"))
    if pool is not None and count_of(row, pool) == 0:
        return "–"
    value = value_of(row, name)
    if unit:
        return shown(name, value)
    if known.unit in WHOLE_UNITS and value.is_integer():
        return f"{value:,.0f}"
    return number(value * shown_unit(name)[0])


def expanded(names: tuple[str, ...], row_or_frame: Row | pd.DataFrame, pools: tuple[str, ...]) -> list[str]:
    """Columns that are there, `<pool>` replaced by each pool in turn."""
    present = row_or_frame.index if isinstance(row_or_frame, pd.Series) else row_or_frame.columns
    found = [n.replace("<pool>", p) for n in names for p in (pools if "<pool>" in n else ("",))]
    return [n for n in found if n in present]
