"""Frames as terminal tables: unit conversion on the way out, nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dse.columns import column
from dse.report.frontier_rows import Distinct, spread
from dse.report.numbers import duration
from dse.report.roles import phase_shares, role_short, step_words
from dse.resolve import Study

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


def design_text(study: Study, row: pd.Series) -> str:
    """What is bought and what it does, in words."""
    parts = []
    for pool in study.space.pool_names:
        n = int(row[f"n_{pool}"])
        if n:
            g = int(row[f"instance_size_{pool}"])
            each = f" in instances of {g}" if g > 1 else ""
            role = role_short(study, row, pool)
            if role == "any":
                role = ", ".join(phase_shares(row, pool))
            parts.append(f"{n} x {pool} ({role}{each})")
    link = f", link {row['link']}" if row["link"] != "none" else ""
    dtypes = {key: str(row[f"{key}_dtype"]) for key in ("weight", "kv", "compute") if f"{key}_dtype" in row}
    unusual = ", ".join(f"{key} {dtype}" for key, dtype in dtypes.items() if dtype != "bf16")
    return " + ".join(parts) + link + step_words(row) + (f", {unusual}" if unusual else "")


def baselines_text(row: pd.Series) -> str:
    """The design against fleets of one device, in words."""
    text = (
        f"against the best fleet of one device: {figure(row['gain_equal_cost'])} times its throughput at equal cost, "
        f"{figure(row['gain_equal_power'])} at equal power"
    )
    if "gain_apart_equal_cost" not in row:
        return text
    apart = f"{figure(row['gain_apart_equal_cost'])} and {figure(row['gain_apart_equal_power'])}"
    return f"{text}; with its phases on separate instances: {apart}"


def run_text(row: pd.Series) -> str:
    """The run that a training study asks for, in words; empty without one."""
    if "train_time_s" not in row:
        return ""
    mwh = figure(float(row["train_energy_j"]) / 3.6e9)
    return (
        f"the whole run: {duration(float(row['train_time_s']))}, {figure(row['train_cost_usd'])} USD, {mwh} MWh, "
        f"{float(row['goodput_frac']):.1%} of the time useful"
    )


SHOWN: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    ("link", "link", lambda v: str(v) if v != "none" else "-"),
    ("throughput_tok_s", "tok/s", figure),
    ("requests_s", "req/s", figure),
    ("cost_usd_per_h", "USD/h", figure),
    ("power_w", "kW", lambda v: figure(v / 1e3)),
    ("global_batch", "batch", figure),
    ("step_time_s", "step", seconds),
    ("train_time_s", "days", lambda v: figure(v / 86400)),
    ("usd_per_mtok", "USD/Mtok", figure),
    ("ttft_p99_s", "TTFT p99", seconds),
    ("tpot_s", "TPOT", seconds),
    ("gpu_wse_ratio", "GPU:WSE", ratio),
    ("complementarity", "vs alone", figure),
    ("gain_equal_cost", "=cost", figure),
    ("gain_equal_power", "=power", figure),
)
"""Columns of the printed frontier: name, head, how a value is shown. Those a paradigm lacks are left out."""
VARIES = ("weight_dtype", "kv_dtype", "compute_dtype", "routing", "recompute", "schedule")
"""Columns shown only where they differ along the frontier."""


def frontier_table(study: Study, distinct: Distinct) -> Table:
    """The frontier as a table of at most MOST_ROWS rows, the recommended design marked."""
    frame, pools = distinct.frame, study.space.pool_names
    positions = spread(len(frame), MOST_ROWS, distinct.pick)
    shown = [c for c in SHOWN if c[0] in frame]
    if "gpu_wse_ratio" in frame and not np.isfinite(frame["gpu_wse_ratio"]).any():
        shown = [c for c in shown if c[0] != "gpu_wse_ratio"]
    shown += [(name, name, str) for name in VARIES if name in frame and frame[name].nunique() > 1]
    table = Table(box=None, pad_edge=False, header_style="bold", row_styles=["", "dim"])
    table.add_column("", width=1)
    for pool in pools:
        table.add_column(escape(pool), justify="right")
        table.add_column("role")
    for _, head, _ in shown:
        table.add_column(head, justify="right")
    for position in positions:
        row, picked = frame.iloc[position], position == distinct.pick
        cells = ["*" if picked else ""]
        for pool in pools:
            n, g = int(row[f"n_{pool}"]), int(row.get(f"instance_size_{pool}", 1))
            cells.append(f"{n}/{g}" if n and g > 1 else f"{n}")
            cells.append(role_short(study, row, pool) if n else "-")
        cells += [show(row[name]) for name, _, show in shown]
        table.add_row(*map(escape, cells), style="bold" if picked else None)
    return table


def console() -> Console:
    """Where results are printed; wide enough for a table when it is not a terminal."""
    made = Console(highlight=False)
    return made if made.is_terminal else Console(highlight=False, width=200)
