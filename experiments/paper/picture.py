"""What the pictures share: colours that colour-blind readers tell apart, plain axes, and SVG and PNG files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import altair as alt

from dse.files import whole

GPU, WSE, MIX, BOUND = "#0072b2", "#d55e00", "#009e73", "#555555"
"""Okabe and Ito's palette; the bound is grey."""
SERIES: Final = (GPU, "#e69f00", MIX, "#cc79a7", WSE, "#56b4e9")
DIVERGING: Final = ("#b35806", "#f1a340", "#fee0b6", "#f7f7f7", "#d8daeb", "#998ec3", "#542788")
"""ColorBrewer PuOr: low is orange, the middle white, high purple."""
PIXELS: Final = 2
"""Of the PNG, for each unit of the SVG."""


def styled(chart: Any, title: str) -> Any:
    """The whole picture: its title, one type size, light grids."""
    text = {"labelFontSize": 12, "titleFontSize": 13, "titleFontWeight": "normal"}
    return (
        chart.properties(title=alt.Title(title, fontSize=15, anchor="start", offset=14))
        .configure(aria=False, background="white", font="DejaVu Sans, Arial, sans-serif", padding=12)
        .configure_axis(gridOpacity=0.5, labelOverlap="greedy", **text)
        .configure_legend(symbolStrokeWidth=2.5, symbolSize=120, labelLimit=320, titleLimit=320, **text)
        .configure_title(fontSize=13, fontWeight=600, anchor="middle")
        .configure_header(labelFontSize=13)
    )


def batch_axis(field: str, values: list[int], **options: Any) -> Any:
    """Global batch along x, each step a doubling."""
    scale = alt.Scale(type="log", base=2, domain=[values[0] / 2**0.5, values[-1] * 2**0.5], nice=False)
    shown = values[:: 2 if len(values) > 8 else 1]
    return alt.X(
        field, type="quantitative", scale=scale, axis=alt.Axis(values=shown, format="d", grid=False, **options)
    )


def tokens_text(tokens: int) -> str:
    """A length as the paper writes it.

    >>> tokens_text(512), tokens_text(6144)
    ('512', '6K')
    """
    return f"{tokens // 1024}K" if tokens >= 1024 else str(tokens)


def heat_map(data: Any, tokens: tuple[int, ...], field: str, reach: float, legend: Any, title: str) -> Any:
    """Requests by `input` (up) and `output` (across), each cell with its `text`.

    A cell is purple where its field is above 0, orange below, darkest at `reach`.
    """
    names = [tokens_text(t) for t in tokens]
    base = alt.Chart(data).encode(
        x=alt.X("output:N", title="Output length [tokens]", sort=names, axis=alt.Axis(labelAngle=0, grid=False)),
        y=alt.Y("input:N", title="Input length [tokens]", sort=names[::-1], axis=alt.Axis(grid=False)),
    )
    scale = alt.Scale(domain=[-reach, reach], range=list(DIVERGING), interpolate="lab")
    cells = base.mark_rect(stroke="white", strokeWidth=1.5).encode(
        color=alt.Color(field, type="quantitative", scale=scale, legend=legend)
    )
    dark = f"datum.{field} > {0.75 * reach} || datum.{field} < {-0.85 * reach}"
    ink = alt.condition(dark, alt.value("white"), alt.value("#222222"))
    numbers = base.mark_text(fontSize=11).encode(text="text:N", color=ink)
    return (cells + numbers).properties(width=400, height=330, title=title)


def save(chart: Any, folder: Path, name: str) -> None:
    """NAME.svg and NAME.png, each whole or not there; needs no browser and no network."""
    for kind in ("svg", "png"):
        with whole(folder / f"{name}.{kind}") as beside:
            chart.save(beside, format=kind, scale_factor=PIXELS if kind == "png" else 1)
            if kind == "svg":
                beside.write_text(hundredths(beside.read_text(encoding="utf-8")), encoding="utf-8")


def hundredths(svg: str) -> str:
    """Coordinates to a hundredth of a unit: no eye tells, and files are smaller.

    >>> hundredths('<path d="M1.23456,-0.5L10.999999,3"/>')
    '<path d="M1.23,-0.5L11,3"/>'
    """
    return re.sub(r"\d+\.\d{3,}", lambda found: f"{float(found[0]):.2f}".rstrip("0").rstrip("."), svg)
