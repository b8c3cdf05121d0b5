"""The frontier without repeats: rows equal in every objective become one, with a count."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pandas as pd

from dse.report.layout import short_layout
from dse.report.numbers import number, shown_unit
from dse.report.rows import Row, cell, part_list, ratio_text
from dse.report.words import axis_title, words_of
from dse.resolve import Study

TABLE_ROWS: Final = 200
SCRIPT_ROWS: Final = 10_000
"""Rows that a selection in the charts can bring into the table; of more, an even share."""
SAME_DIGITS: Final = 12
"""Objectives that agree in so many figures are equal: what remains is the order of additions."""
TABLE_COLUMNS: Final = (
    "throughput_tok_s",
    "step_time_s",
    "global_batch",
    "cost_usd_per_h",
    "power_w",
    "usd_per_mtok",
    "bubble_frac",
    "train_time_s",
    "ttft_p99_s",
    "tpot_s",
    "complementarity",
    "gain_equal_cost",
    "gain_equal_power",
)
INTERVAL: Final = "interval"
"""Stands for the 80 % interval behind the throughput."""
TEXT_COLUMNS: Final = ("recompute", "schedule", "layers")
"""Of these the table has those that differ along the frontier."""

SHORT_HEADS: Final = {
    "throughput_tok_s": "tok/s",
    "step_time_s": "Step [s]",
    "global_batch": "Batch",
    "bubble_frac": "Bubble [%]",
    "train_time_s": "Run [days]",
    "cost_usd_per_h": "USD/h",
    "power_w": "kW",
    "usd_per_mtok": "USD/Mtok",
    "complementarity": "Complem.",
    "gain_equal_cost": "Gain, equal cost",
    "gain_equal_power": "Gain, equal power",
}


@dataclass(frozen=True, kw_only=True)
class Distinct:
    """Frontier rows that differ in some objective."""

    frame: pd.DataFrame
    ties: list[int]
    """Designs that each row stands for."""
    pick: int
    """Position of the recommended row; -1 if there is none."""


def distinct_rows(frontier: pd.DataFrame, objectives: tuple[str, ...], pick: int) -> Distinct:
    """One row for each point: the recommended design, else the narrowest link, else the first."""
    if not len(frontier):
        return Distinct(frame=frontier, ties=[], pick=-1)
    values = frontier[list(objectives)].to_numpy(dtype=np.float64)
    keys = [tuple(f"{v:.{SAME_DIGITS}g}" for v in row) for row in values]
    link = frontier["link_gb_s"].to_numpy() if "link_gb_s" in frontier else np.zeros(len(frontier))
    groups: dict[tuple[str, ...], list[int]] = {}
    for i, key in enumerate(keys):
        groups.setdefault(key, []).append(i)
    kept = [min(group, key=lambda i: (i != pick, link[i], i)) for group in groups.values()]
    return Distinct(
        frame=frontier.iloc[kept].reset_index(drop=True),
        ties=[len(group) for group in groups.values()],
        pick=kept.index(pick) if pick in kept else -1,
    )


def spread(n: int, most: int, keep: int) -> list[int]:
    """At most `most` of n positions, evenly, `keep` among them."""
    if n <= most:
        return list(range(n))
    chosen = {round(x) for x in np.linspace(0, n - 1, most - 1)}
    return sorted(chosen | ({keep} if keep >= 0 else set()))


@dataclass(frozen=True, kw_only=True)
class FrontierTable:
    """What the page's frontier table prints."""

    heads: list[str]
    rows: list[tuple[int, bool, list[str]]]
    """Position among the distinct points, whether it is the recommended one, and the cells as text."""
    total: int
    n_designs: int


def frontier_table(study: Study, distinct: Distinct) -> FrontierTable:
    """At most 200 rows, spread evenly over the frontier."""
    frame = distinct.frame
    columns, heads = _columns(study, frame)
    rows = []
    for i in spread(len(distinct.ties), TABLE_ROWS, distinct.pick):
        row = frame.iloc[i]
        rows.append((i, i == distinct.pick, _cells(study, row, columns, distinct.ties[i])))
    return FrontierTable(heads=heads, rows=rows, total=len(distinct.ties), n_designs=sum(distinct.ties))


def _columns(study: Study, frame: pd.DataFrame) -> tuple[list[str], list[str]]:
    """Result columns of the table, and the heads of all its columns."""
    paradigm = study.envelope.paradigm
    extra = [o for o in study.envelope.objectives.names if o not in TABLE_COLUMNS]
    columns = [c for c in (*extra, *TABLE_COLUMNS) if c in frame]
    columns += [c for c in TEXT_COLUMNS if c in frame and frame[c].nunique() > 1]
    heads = ["Design", words_of(paradigm).layout, "Link", "GPU : WSE"]
    heads += [SHORT_HEADS.get(c) or axis_title(c, paradigm) for c in columns]
    if "throughput_low_tok_s" in frame and "throughput_tok_s" in columns:
        columns.insert(columns.index("throughput_tok_s") + 1, INTERVAL)
        heads.insert(4 + columns.index(INTERVAL), "80 %")
    return columns, [*heads, "Bottleneck", "Ties"]


def all_rows(study: Study, distinct: Distinct) -> dict[str, Any]:
    """Every row of the table, as the page's script shows those that are picked in a chart.

    `cells` are texts as in the table, `values` the objectives in the charts' units, `names` their fields there.
    """
    kept = spread(len(distinct.ties), SCRIPT_ROWS, distinct.pick)
    frame = distinct.frame.iloc[kept]
    objectives = [o for o in study.envelope.objectives.names if o in frame]
    columns = _columns(study, frame)[0]
    values = np.column_stack([frame[o].to_numpy(dtype=np.float64) * shown_unit(o)[0] for o in objectives])
    return {
        "names": [f"o{k}" for k in range(len(objectives))],
        "rows": kept,
        "pick": distinct.pick,
        "most": TABLE_ROWS,
        "values": [[v if math.isfinite(v) else None for v in row] for row in values.tolist()],
        "cells": [_cells(study, frame.iloc[k], columns, distinct.ties[i]) for k, i in enumerate(kept)],
    }


def _interval(row: Row) -> str:
    """Ends of the throughput's interval."""
    low, high = (number(float(row[f"throughput_{end}_tok_s"])) for end in ("low", "high"))
    return f"{low}–{high}"


def _cells(study: Study, row: Row, columns: list[str], ties: int) -> list[str]:
    return [
        part_list(study, row),
        short_layout(study, row),
        link if (link := str(row.get("link", "none"))) != "none" else "–",
        ratio_text(row),
        *(_interval(row) if c == INTERVAL else cell(row, c, unit=False) for c in columns),
        str(row.get("bottleneck", "–")),
        str(ties),
    ]
