"""The referee's part of a run: what the model predicted beside what a replay measured."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from dse.report.charts import script_safe
from dse.report.numbers import duration, number, percent

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table

NAMES: Final = {
    "throughput_tok_s": "Throughput",
    "ttft_mean_s": "TTFT, mean",
    "ttft_p50_s": "TTFT, median",
    "ttft_p99_s": "TTFT, p99",
    "tpot_mean_s": "TPOT, mean",
    "tpot_p99_s": "TPOT, p99",
}
"""What is compared, as people say it."""
DRAWN: Final = ("throughput_tok_s", "ttft_mean_s", "ttft_p99_s", "tpot_mean_s")
COLOUR: Final = "#2f7fc1"

Record = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One quantity of one design."""

    predicted: str
    simulated: str
    gap: str


@dataclass(frozen=True, kw_only=True)
class Checked:
    """What the page says."""

    how: str
    heads: list[str]
    rows: list[tuple[str, str, list[Cell], str]]
    """Design, load, quantities, use of the pools."""
    errors: list[tuple[str, str, str, str]]
    """Quantity, median and p90 of |gap|, and the median gap with its sign."""
    spec: str
    description: str


def checked(info: Record) -> Checked | None:
    """The page's part of a run; None for a run that was not replayed."""
    found = info.get("simulation")
    if not found or not found["rows"]:
        return None
    errors = [
        (NAMES[name], percent(e["median"]), percent(e["p90"]), _signed(e["bias"]))
        for name, e in found["summary"].items()
    ]
    return Checked(
        how=_how(found),
        heads=list(NAMES.values()),
        rows=[
            (row["design_id"], f"{number(row['load_requests_s'])} requests/s", [_cell(row, name) for name in NAMES],
             _use(row))
            for row in found["rows"]
        ],
        errors=errors,
        spec=script_safe(specification(found["rows"])),
        description="; ".join(f"{name}: median error {median}" for name, median, _, _ in errors),
    )  # fmt: skip


def _how(found: Record) -> str:
    spaced = {
        "poisson": "arriving as a Poisson stream at each design's load",
        "recorded": "arriving as recorded, stretched to each design's load",
    }[found["arrivals"]]
    return f"{found['source'][0].upper()}{found['source'][1:]}, {found['requests']:,} requests, {spaced}."


def _cell(row: Record, name: str) -> Cell:
    def value(key: str) -> str:
        x = row.get(f"{name}_{key}")
        x = math.nan if x is None else float(x)
        return f"{number(x)}" if name == "throughput_tok_s" else duration(x)

    gap = row.get(f"{name}_gap")
    text = _signed(gap) if gap is not None and math.isfinite(gap) else "–"
    return Cell(predicted=value("predicted"), simulated=value("simulated"), gap=text)


def _signed(gap: float) -> str:
    return f"{'+' if gap > 0 else '−' if gap < 0 else ''}{percent(abs(gap))}"


def _use(row: Record) -> str:
    """Share of each pool's time in prefill and in decode."""
    pools = [key.removeprefix("busy_prefill_") for key in row if key.startswith("busy_prefill_")]
    parts = [
        f"{pool}: {percent(row[f'busy_prefill_{pool}'])} prefill, {percent(row[f'busy_decode_{pool}'])} decode"
        for pool in pools
        if (row[f"busy_prefill_{pool}"] or 0) + (row[f"busy_decode_{pool}"] or 0) > 0
    ]
    if row.get("stolen_frac"):
        parts.append(f"{percent(row['stolen_frac'])} stolen")
    return "; ".join(parts)


def _factor(name: str) -> float:
    """What a quantity is drawn in: times in ms."""
    return 1.0 if name == "throughput_tok_s" else 1e3


def specification(rows: list[Record]) -> dict[str, Any]:
    """One square a quantity: predicted across, replayed up, and the line on which both are equal."""
    import altair as alt

    points = {
        name: [
            {"predicted": r[f"{name}_predicted"] * _factor(name), "simulated": r[f"{name}_simulated"] * _factor(name),
             "design": r["design_id"], "gap": _signed(r[f"{name}_gap"])}
            for r in rows
            if r.get(f"{name}_gap") is not None and r[f"{name}_predicted"] > 0 and r[f"{name}_simulated"] > 0
        ]
        for name in DRAWN
    }  # fmt: skip
    views: list[Any] = []
    datasets: dict[str, Any] = {}
    for name, values in points.items():
        if not values:
            continue
        ends = [f(min(v["predicted"], v["simulated"]) if f is min else max(v["predicted"], v["simulated"])
                  for v in values) for f in (min, max)]  # fmt: skip
        low, high = ends[0] / 1.15, ends[1] * 1.15
        datasets |= {name: values, f"{name}_equal": [{"x": low}, {"x": high}]}
        unit = "tok/s" if name == "throughput_tok_s" else "ms"
        scale = alt.Scale(type="log", domain=[low, high], nice=False)
        axis = alt.Axis(tickCount=4, format="~s", labelOverlap=True)
        line = alt.Chart(alt.NamedData(name=f"{name}_equal")).mark_line(color="#7a8796", strokeDash=[4, 3]).encode(
            x=alt.X("x", type="quantitative", scale=scale), y=alt.Y("x", type="quantitative", scale=scale)
        )  # fmt: skip
        marks = alt.Chart(alt.NamedData(name=name)).mark_circle(size=70, opacity=0.8, color=COLOUR).encode(
            x=alt.X("predicted", type="quantitative", scale=scale, title=f"predicted [{unit}]", axis=axis),
            y=alt.Y("simulated", type="quantitative", scale=scale, title=f"replayed [{unit}]", axis=axis),
            tooltip=[alt.Tooltip(k, type="nominal", title=t) for k, t in (
                ("design", "Design"), ("predicted", "Predicted"), ("simulated", "Replayed"), ("gap", "Gap"))],
        )  # fmt: skip
        views.append(alt.layer(line, marks).properties(width=220, height=220, title=NAMES[name]))
    text = {"labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal"}
    plain: dict[str, Any] = (
        alt.concat(*views, columns=4)
        .configure(background="transparent")
        .configure_axis(gridOpacity=1, domain=False, **text)
        .configure_title(fontSize=13, anchor="start")
        .to_dict()
    )
    plain["datasets"] = datasets
    return plain


def printed_table(frame: pd.DataFrame) -> Table:
    """One row a design: replayed, and in brackets how far the prediction was off."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold", row_styles=["", "dim"])
    table.add_column("design")
    for head in ("requests/s", "tok/s", *(NAMES[n] for n in NAMES if n != "throughput_tok_s")):
        table.add_column(head, justify="right")
    table.add_column("use of the pools")
    for record in frame.to_dict(orient="records"):
        row = {str(key): value for key, value in record.items()}
        cells = [_cell(row, name) for name in NAMES]
        table.add_row(
            row["design_id"], number(row["load_requests_s"]), *(f"{c.simulated} ({c.gap})" for c in cells), _use(row)
        )
    return table


def printed_summary(summary: Record, info: Record) -> list[str]:
    """How the requests came, and how far predictions were off, in a few lines."""
    lines = [f"Replayed, and in brackets predicted over replayed. {_how(info)}"]
    for name, e in summary.items():
        lines.append(
            f"  {NAMES[name]}: median error {percent(e['median'])}, p90 {percent(e['p90'])}, "
            f"bias {_signed(e['bias'])} over {int(e['n'])} design{'' if e['n'] == 1 else 's'}"
        )
    return lines
