"""Frames as terminal tables: unit conversion on the way out, nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dse.columns import column
from dse.report.designs import phase_shares
from dse.report.frontier_rows import Distinct, spread

MOST_ROWS = 24


def figure(value: float) -> str:
    """A number as people read it.

    >>> figure(50456.9), figure(0.5971), figure(float("inf")), figure(float("nan"))
    ('50,457', '0.597', 'inf', '-')
    """
    if np.isnan(value):
        return "-"
    if np.isinf(value):
        return "inf"
    if value == 0:
        return "0"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) < 100 else f"{value:.1f}"


def amount(name: str, value: float) -> str:
    """A value of a result column with its unit; watts as kilowatts.

    >>> amount("power_w", 38.4), amount("throughput_tok_s", 596.2), amount("gain", 0.5)
    ('0.0384 kW', '596.2 tok/s', '0.5')
    """
    known = column(name)
    unit = known.unit if known else ""
    if unit == "W":
        return f"{figure(value / 1e3)} kW"
    return figure(value) if unit in ("", "1") else f"{figure(value)} {unit}"


def seconds(value: float) -> str:
    """A time with the prefix that suits it.

    >>> seconds(1.692), seconds(0.0132), seconds(float("inf"))
    ('1.69 s', '13.2 ms', 'no bound')
    """
    if not np.isfinite(value):
        return "no bound"
    return f"{value:.3g} s" if value >= 1 else f"{value * 1e3:.3g} ms"


def ratio(value: float) -> str:
    """GPUs per wafer."""
    if np.isnan(value):
        return "-"
    return "no WSE" if np.isinf(value) else f"{value:.3g}:1"


def design_text(row: pd.Series, pools: Sequence[str]) -> str:
    """What is bought and what it does, in words."""
    parts = []
    for pool in pools:
        n = int(row[f"n_{pool}"])
        if n:
            g = int(row[f"instance_size_{pool}"])
            each = f" in instances of {g}" if g > 1 else ""
            role = str(row[f"role_{pool}"])
            if role == "any":
                role = ", ".join(phase_shares(row, pool))
            parts.append(f"{n} x {pool} ({role}{each})")
    link = f", link {row['link']}" if row["link"] != "none" else ""
    dtypes = {key: str(row[f"{key}_dtype"]) for key in ("weight", "kv", "compute") if f"{key}_dtype" in row}
    unusual = ", ".join(f"{key} {dtype}" for key, dtype in dtypes.items() if dtype != "bf16")
    return " + ".join(parts) + link + (f", {unusual}" if unusual else "")


def baselines_text(row: pd.Series) -> str:
    """The design against fleets of one device, in words."""
    return (
        f"against the best fleet of one device: {figure(row['gain_equal_cost'])} times its throughput at equal cost, "
        f"{figure(row['gain_equal_power'])} at equal power; with its phases on separate instances: "
        f"{figure(row['gain_apart_equal_cost'])} and {figure(row['gain_apart_equal_power'])}"
    )


SHOWN: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    ("link", "link", lambda v: str(v) if v != "none" else "-"),
    ("throughput_tok_s", "tok/s", figure),
    ("requests_s", "req/s", figure),
    ("cost_usd_per_h", "USD/h", figure),
    ("power_w", "kW", lambda v: figure(v / 1e3)),
    ("usd_per_mtok", "USD/Mtok", figure),
    ("ttft_p99_s", "TTFT p99", seconds),
    ("tpot_s", "TPOT", seconds),
    ("gpu_wse_ratio", "GPU:WSE", ratio),
    ("complementarity", "vs alone", figure),
    ("gain_equal_cost", "=cost", figure),
    ("gain_equal_power", "=power", figure),
)
"""Columns of the printed frontier: name, head, how a value is shown. Those a paradigm lacks are left out."""
VARIES = ("weight_dtype", "kv_dtype", "compute_dtype", "routing")
"""Columns shown only where they differ along the frontier."""


def frontier_table(distinct: Distinct, pools: Sequence[str]) -> Table:
    """The frontier as a table of at most MOST_ROWS rows, the recommended design marked."""
    frame = distinct.frame
    positions = spread(len(frame), MOST_ROWS, distinct.pick)
    shown = [c for c in SHOWN if c[0] in frame]
    if "gpu_wse_ratio" in frame and not np.isfinite(frame["gpu_wse_ratio"]).any():
        shown = [c for c in shown if c[0] != "gpu_wse_ratio"]
    shown += [(name, name, str) for name in VARIES if name in frame and frame[name].nunique() > 1]
    table = Table(box=None, pad_edge=False, header_style="bold", row_styles=["", "dim"])
    table.add_column("", width=1)
    for pool in pools:
        table.add_column(escape(pool), justify="right")
        if f"role_{pool}" in frame:
            table.add_column("role")
    for _, head, _ in shown:
        table.add_column(head, justify="right")
    for position in positions:
        row, picked = frame.iloc[position], position == distinct.pick
        cells = ["*" if picked else ""]
        for pool in pools:
            n, g = int(row[f"n_{pool}"]), int(row.get(f"instance_size_{pool}", 1))
            cells.append(f"{n}/{g}" if n and g > 1 else f"{n}")
            if f"role_{pool}" in frame:
                cells.append(str(row[f"role_{pool}"]) if n else "-")
        cells += [show(row[name]) for name, _, show in shown]
        table.add_row(*map(escape, cells), style="bold" if picked else None)
    return table


def console() -> Console:
    """Where results are printed; wide enough for a table when it is not a terminal."""
    made = Console(highlight=False)
    return made if made.is_terminal else Console(highlight=False, width=200)
