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
from dse.report.frontier_rows import Distinct, spread
from dse.report.layout import DTYPE_WORDS, fleet_setup, phase_shares, pool_setup, role_words, serves
from dse.report.numbers import duration, percent, shown
from dse.report.rows import pools_bought
from dse.resolve import Study

MOST_ROWS = 24
WIDEST = 1000
"""Columns of a terminal that no table needs."""


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
    """A value of a result column with its unit; watts as kilowatts, times and energies in what suits them.

    >>> amount("power_w", 38.4), amount("throughput_tok_s", 596.2), amount("gain", 0.5), amount("train_time_s", 9e4)
    ('0.0384 kW', '596.2 tok/s', '0.5', '25.00 h')
    """
    known = column(name)
    unit = known.unit if known else ""
    if unit == "W":
        return f"{figure(value / 1e3)} kW"
    if unit in ("s", "J"):
        return shown(name, value)
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
    parts = [f"{int(row[f'n_{pool}'])} x {pool} ({_pool_words(study, row, pool)})" for pool in pools_bought(study, row)]
    link = f", link {row['link']}" if row["link"] != "none" else ""
    dtypes = {key.removesuffix("_dtype"): str(row[key]) for key in DTYPE_WORDS if key in row}
    unusual = [f"{key} {dtype}" for key, dtype in dtypes.items() if dtype != "bf16"]
    return " + ".join(parts) + link + "".join(f", {words}" for words in [*fleet_setup(row), *unusual])


def _pool_words(study: Study, row: pd.Series, pool: str) -> str:
    """What one pool does: its role and its instances; in training its share or stages, and its set-up."""
    if f"role_{pool}" not in row:
        return ", ".join([role_words(study, row, pool).removeprefix("for "), *pool_setup(study, row, pool)])
    g = int(row[f"instance_size_{pool}"])
    role = str(row[f"role_{pool}"])
    words = ", ".join(phase_shares(row, pool)) if role == "any" else role
    return words + (f" in instances of {g}" if g > 1 else "")


def reached_lines(study: Study, row: pd.Series) -> list[str]:
    """What the design gives and costs; in training its step, use and run besides."""
    lines = [
        f"{figure(row['throughput_tok_s'])} tok/s, {figure(row['cost_usd_per_h'])} USD/h, "
        f"{figure(row['power_w'] / 1e3)} kW; binds: {row['bottleneck']}"
    ]
    if "step_time_s" in row:
        used = [f"MFU of {p} {percent(row[f'mfu_{p}'])}" for p in pools_bought(study, row) if f"mfu_{p}" in row]
        bubble = [f"bubble {percent(row['bubble_frac'])}"] if "bubble_frac" in row else []
        step = f"step {duration(row['step_time_s'])}, {figure(row['throughput_samples_s'])} samples/s"
        lines.append("; ".join([step, *bubble, *used]))
    if "train_time_s" in row:
        run = ", ".join(shown(name, row[name]) for name in ("train_time_s", "train_cost_usd", "train_energy_j"))
        lines.append(
            f"the whole run: {run}" + (f"; goodput {percent(useful)}" if (useful := row["goodput_frac"]) < 1 else "")
        )
    return lines


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


def _whole(value: float) -> str:
    return f"{value:,.0f}"


Shown = tuple[str, str, Callable[[Any], str]]
"""Column, head, how a value is shown."""

SHOWN: tuple[Shown, ...] = (
    ("link", "link", lambda v: str(v) if v != "none" else "-"),
    ("throughput_tok_s", "tok/s", figure),
    ("interval", "80 %", str),
    ("throughput_worst_tok_s", "worst", figure),
    ("headroom", "headroom", figure),
    ("requests_s", "req/s", figure),
    ("step_time_s", "step", seconds),
    ("global_batch", "batch", _whole),
    ("bubble_frac", "bubble", percent),
    ("train_time_s", "run", duration),
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
"""Columns of the printed frontier. Those a paradigm lacks are left out."""
VARIES = ("weight_dtype", "kv_dtype", "compute_dtype", "routing", "adaptation", "recompute", "schedule", "layers",
          "pool_order", "stage_recompute", "collect")  # fmt: skip
"""Columns shown only where they differ along the frontier."""
OF_POOL: tuple[Shown, ...] = (
    ("role_<pool>", "role", str),
    ("batch_<pool>", "samples", _whole),
    ("stages_<pool>", "stages", _whole),
    ("micro_batch_<pool>", "micro", _whole),
)
"""Columns beside the count of each pool; micro-batches where they differ."""


def _columns(frame: pd.DataFrame) -> list[Shown]:
    """Columns of the whole fleet that this frontier has something to say in."""
    shown = [c for c in SHOWN if c[0] in frame]
    if "gpu_wse_ratio" in frame and not np.isfinite(frame["gpu_wse_ratio"]).any():
        shown = [c for c in shown if c[0] != "gpu_wse_ratio"]
    return shown + [(name, name, str) for name in VARIES if name in frame and frame[name].nunique() > 1]


def _pool_columns(frame: pd.DataFrame, pool: str) -> list[Shown]:
    columns = [(name.replace("<pool>", pool), head, show) for name, head, show in OF_POOL]
    present = [c for c in columns if c[0] in frame]
    return [c for c in present if c[1] != "micro" or frame.loc[frame[f"n_{pool}"] > 0, c[0]].nunique() > 1]


def frontier_table(study: Study, distinct: Distinct) -> Table:
    """The frontier as a table of at most MOST_ROWS rows, the recommended design marked."""
    frame, pools = _with_interval(distinct.frame), study.space.pool_names
    shown, of_pool = _columns(frame), {pool: _pool_columns(frame, pool) for pool in pools}
    table = Table(box=None, pad_edge=False, header_style="bold", row_styles=["", "dim"])
    table.add_column("", width=1)
    for pool in pools:
        table.add_column(escape(pool), justify="right")
        for name, head, _ in of_pool[pool]:
            table.add_column(head, justify="left" if frame[name].dtype == "str" else "right")
    for _, head, _ in shown:
        table.add_column(head, justify="right")
    for position in spread(len(frame), MOST_ROWS, distinct.pick):
        row, picked = frame.iloc[position], position == distinct.pick
        cells = ["*" if picked else ""]
        for pool in pools:
            cells += _pool_cells(study, row, pool, of_pool[pool])
        cells += [show(row[name]) for name, _, show in shown]
        table.add_row(*map(escape, cells), style="bold" if picked else None)
    return table


def _with_interval(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame with the interval of its throughput as one text."""
    if "throughput_low_tok_s" not in frame:
        return frame
    ends = zip(frame["throughput_low_tok_s"], frame["throughput_high_tok_s"], strict=True)
    return frame.assign(interval=[f"{figure(low)}-{figure(high)}" for low, high in ends])


def interval_lines(row: pd.Series, effects: Sequence[dict[str, Any]]) -> list[str]:
    """How sure a design's throughput and cost are, and what they depend on most."""
    if "throughput_low_tok_s" not in row:
        return []
    lines = [
        f"80 % interval: {figure(row['throughput_low_tok_s'])} to {figure(row['throughput_high_tok_s'])} tok/s; "
        f"over the range of prices {figure(row['cost_low_usd_per_h'])} to {figure(row['cost_high_usd_per_h'])} USD/h"
    ]
    first = {e["column"]: e for e in reversed(effects)}
    named = [f"{words} on the {first[c]['source']}" for c, words in _MOST if c in first]
    return lines + ([f"  depends most: {', '.join(named)}"] if named else [])


_MOST = (("throughput_tok_s", "throughput"), ("cost_usd_per_h", "cost"))


def _pool_cells(study: Study, row: pd.Series, pool: str, columns: Sequence[Shown]) -> list[str]:
    """Devices by instance size, and what the pool does; dashes where it is not bought, or has no stages itself."""
    n, g = int(row[f"n_{pool}"]), int(row.get(f"instance_size_{pool}", 1))
    if not n:
        return ["0", *("-" for _ in columns)]
    alone = serves(study, row, pool)
    cells = ["-" if alone else show(row[name]) for name, _, show in columns]
    return [f"{n}/{g}" if g > 1 else f"{n}", *cells]


def print_table(table: Table) -> None:
    """Prints a table as wide as it is: a terminal may fold its lines, but no number is cut."""
    needed = Console(width=WIDEST).measure(table).maximum
    Console(highlight=False, width=max(console().width, needed)).print(table)


def console() -> Console:
    """Where results are printed; wide enough for a table when it is not a terminal."""
    made = Console(highlight=False)
    return made if made.is_terminal else Console(highlight=False, width=200)
