"""Predicted against measured, a panel a device and profile; and every row behind it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from dse.errors import InputError
from dse.files import whole, write_whole

from .validate import Validation

PANEL = 190
COLUMNS = 3
MOST_POINTS = 2000
"""Points of a panel; more are thinned evenly."""


def write_validation(lines: Sequence[Validation], folder: Path) -> None:
    """`rows.csv` with every measurement, and an SVG and a PNG for each data set and quantity."""
    import altair as alt
    import vl_convert

    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / "rows.csv", all_rows(lines).to_csv(index=False))
        for name, part in _by_picture(lines).items():
            with alt.data_transformers.enable("default", max_rows=None):
                spec = json.dumps(picture(part).to_dict())
            write_whole(folder / f"{name}.svg", vl_convert.vegalite_to_svg(spec))
            with whole(folder / f"{name}.png") as beside:
                beside.write_bytes(vl_convert.vegalite_to_png(spec, scale=2))
    except OSError as error:
        raise InputError(f"--out {folder}: cannot be written: {error.strerror}") from None


def all_rows(lines: Sequence[Validation]) -> pd.DataFrame:
    """Every measurement of every line."""
    parts = [
        line.rows.assign(
            data=line.data, device=line.device, profile=line.profile, quantity=line.quantity, phase=line.phase
        )
        for line in lines
    ]
    first = ["data", "device", "profile", "phase", "quantity"]
    return pd.concat(parts)[[*first, "line", "model", "setting", "measured", "predicted", "error_pct"]]


def _by_picture(lines: Sequence[Validation]) -> dict[str, list[Validation]]:
    found: dict[tuple[str, str], list[Validation]] = {}
    for line in lines:
        found.setdefault((line.data, line.quantity), []).append(line)
    named: dict[str, list[Validation]] = {}
    for (data, quantity), part in found.items():
        name = re.sub(r"[^\w]+", "-", f"{data}-{quantity}".lower())
        while name in named:
            name += "-2"
        named[name] = part
    return named


def picture(lines: Sequence[Validation]) -> Any:
    """Panels of one data set and quantity, on log axes with the diagonal and 25 % beside it."""
    import altair as alt

    panels = [_panel(line) for line in lines]
    unit = lines[0].quantity.rsplit("_", 1)[-1]
    title = f"{lines[0].data}: {lines[0].quantity.rsplit('_', 1)[0]} [{unit}], predicted against measured"
    return alt.concat(*panels, columns=COLUMNS, title=title).configure_axis(grid=False).configure_view(stroke="#ccc")


def _panel(line: Validation) -> Any:
    import altair as alt

    rows = line.rows.iloc[:: max(1, -(-len(line.rows) // MOST_POINTS))]
    low = float(min(rows["measured"].min(), rows["predicted"].min())) * 0.8
    high = float(max(rows["measured"].max(), rows["predicted"].max())) * 1.25
    ends = pd.DataFrame({"measured": [low, high]})
    guides = pd.concat(
        [
            ends.assign(predicted=ends["measured"] * f, guide=g)
            for f, g in ((1.0, "equal"), (1.25, "25 %"), (0.8, "25 %"))
        ]
    ).assign(line=[0, 0, 1, 1, 2, 2])
    scale = alt.Scale(type="log", domain=[low, high], nice=False)
    axis = alt.Axis(tickCount=4, format="~g")
    x = alt.X("measured:Q", scale=scale, axis=axis, title="measured")
    y = alt.Y("predicted:Q", scale=scale, axis=axis, title="predicted")
    e = line.error
    head = alt.TitleParams(
        f"{line.device}, {line.profile}",
        subtitle=f"n {e.n}, median {e.median_pct:.1f} %, p90 {e.p90_pct:.1f} %, bias {e.bias_pct:+.1f} %",
        fontSize=11,
        subtitleFontSize=10,
    )
    dash = alt.Scale(domain=["equal", "25 %"], range=[[1, 0], [3, 3]])
    strokes = (
        alt.Chart(guides)
        .mark_line(strokeWidth=1, clip=True)
        .encode(
            x=x,
            y=y,
            detail="line:N",
            strokeDash=alt.StrokeDash("guide:N", scale=dash, legend=None),
            color=alt.value("#888"),
        )
    )
    legend = alt.Legend(orient="bottom", columns=2)
    color = alt.Color("model:N", title=None, legend=legend) if any(rows["model"]) else alt.value("#4c78a8")
    points = (
        alt.Chart(rows[["measured", "predicted", "model"]])
        .mark_point(size=22, filled=True, opacity=0.65)
        .encode(x=x, y=y, color=color)
    )
    return (strokes + points).properties(width=PANEL, height=PANEL, title=head).resolve_scale(color="independent")
