"""The frontier without repeats: rows equal in every objective become one, with a count."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd

from dse.report.designs import part_list, pools_bought, ratio_text
from dse.report.numbers import DAY_S, axis_title, number, shown_unit
from dse.report.roles import Row, count_of, role_short, value_of
from dse.resolve import Study

TABLE_ROWS: Final = 200
SAME_DIGITS: Final = 12
"""Objectives that agree in so many figures are equal: what remains is the order of additions."""
TABLE_COLUMNS: Final = (
    "throughput_tok_s",
    "cost_usd_per_h",
    "power_w",
    "global_batch",
    "step_time_s",
    "train_time_s",
    "usd_per_mtok",
    "ttft_p99_s",
    "tpot_s",
    "complementarity",
    "gain_equal_cost",
    "gain_equal_power",
)

SHORT_HEADS: Final = {
    "throughput_tok_s": "tok/s",
    "cost_usd_per_h": "USD/h",
    "power_w": "kW",
    "global_batch": "Batch",
    "step_time_s": "Step [s]",
    "train_time_s": "Train [days]",
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
    rows: list[tuple[bool, list[str]]]
    """Whether it is the recommended one, and the cells as text."""
    total: int
    n_designs: int


def frontier_table(study: Study, distinct: Distinct) -> FrontierTable:
    """At most 200 rows, spread evenly over the frontier."""
    extra = [o for o in study.envelope.objectives.names if o not in TABLE_COLUMNS]
    columns = [c for c in (*extra, *TABLE_COLUMNS) if c in distinct.frame]
    heads = ["Design", "Roles", "Link", "GPU : WSE", *(SHORT_HEADS.get(c) or axis_title(c) for c in columns)]
    heads += ["Bottleneck", "Ties"]
    rows = []
    for i in spread(len(distinct.ties), TABLE_ROWS, distinct.pick):
        row = distinct.frame.iloc[i]
        rows.append((i == distinct.pick, _cells(study, row, columns, distinct.ties[i])))
    return FrontierTable(heads=heads, rows=rows, total=len(distinct.ties), n_designs=sum(distinct.ties))


def _cells(study: Study, row: Row, columns: list[str], ties: int) -> list[str]:
    return [
        part_list(study, row),
        roles_text(study, row),
        link if (link := str(row.get("link", "none"))) != "none" else "–",
        ratio_text(row),
        *(_cell(c, value_of(row, c)) for c in columns),
        str(row.get("bottleneck", "–")),
        str(ties),
    ]


def _cell(name: str, value: float) -> str:
    if name == "train_time_s":
        return number(value / DAY_S)
    return number(value * shown_unit(name)[0])


def roles_text(study: Study, row: Row) -> str:
    """What each pool does, in the order of the parts; with the size of its instances above one device."""
    parts = []
    for pool in pools_bought(study, row):
        role = role_short(study, row, pool)
        size = count_of(row, pool, "instance_size") if f"instance_size_{pool}" in row.index else 1
        parts.append(f"{role} (by {size})" if size > 1 else role)
    return " + ".join(parts) or "–"
