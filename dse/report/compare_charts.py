"""Frontiers of several runs over each other: one linked Vega-Lite figure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

from dse.compare import Comparison
from dse.report.chart_data import staircase
from dse.report.charts import BRUSH, POOL_COLOURS
from dse.report.frontier_rows import distinct_rows, spread
from dse.report.numbers import shown, shown_unit
from dse.report.rows import part_list, value_of
from dse.report.words import axis_title, inside, label

MOST_POINTS: Final = 1500
"""Points of one run that are drawn, evenly spread."""
SHAPES: Final = ("circle", "diamond", "square", "triangle-up", "cross", "triangle-down")


@dataclass(frozen=True, kw_only=True)
class Overlay:
    """The figure, what it leaves out, and itself in words."""

    spec: dict[str, Any]
    notes: list[str]
    description: str


def overlay(comparison: Comparison) -> Overlay:
    """All frontiers on the objectives that the runs share; an empty specification where there is no point."""
    points, notes = _points(comparison)
    paradigm = comparison.runs[0].study.envelope.paradigm
    titles = [label(o, paradigm) for o in comparison.objectives]
    spec = _specification(comparison, points) if points else {}
    words = f"{titles[0]} against {' and '.join(t.lower() for t in titles[1:])} of {', '.join(comparison.names)}"
    return Overlay(spec=spec, notes=notes, description=words)


def _points(comparison: Comparison) -> tuple[list[dict[str, Any]], list[str]]:
    found, notes = [], []
    for name, result in zip(comparison.names, comparison.runs, strict=True):
        pick = int(result.info["recommended"]["position"]) if result.recommended is not None else -1
        distinct = distinct_rows(result.frontier, result.study.envelope.objectives.names, pick)
        chosen = spread(len(distinct.frame), MOST_POINTS, distinct.pick)
        if len(chosen) < len(distinct.frame):
            notes.append(f"{len(chosen):,} of {len(distinct.frame):,} points of {name} are drawn.")
        for i in chosen:
            row = distinct.frame.iloc[i]
            values = [value_of(row, o) * shown_unit(o)[0] for o in comparison.objectives]
            if all(map(math.isfinite, values)):
                texts = {f"t{k}": shown(o, value_of(row, o)) for k, o in enumerate(comparison.objectives)}
                place = {f"o{k}": v for k, v in enumerate(values)}
                found.append(
                    {"run": name, "design": part_list(result.study, row), "pick": i == distinct.pick, **place, **texts}
                )
    return found, notes


def _specification(comparison: Comparison, points: list[dict[str, Any]]) -> dict[str, Any]:
    import altair as alt

    across = range(1, len(comparison.objectives))
    text = {"labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal"}
    chart = (
        alt.concat(*[_plane(comparison, k) for k in across], columns=2, spacing=28)
        .configure(background="transparent")
        .configure_view(stroke=None)
        .configure_axis(gridOpacity=1, domain=False, **text)
        .configure_title(anchor="start", fontSize=14, fontWeight=600, offset=12)
        .configure_legend(orient="bottom", **text)
    )
    plain: dict[str, Any] = chart.to_dict()
    stairs = {
        f"stairs{k}": [
            {"run": name} | step for name in comparison.names
            for step in staircase([p for p in points if p["run"] == name], k)
        ]
        for k in across
    }  # fmt: skip
    plain["datasets"] = {"points": points, "picked": [p for p in points if p["pick"]], **stairs}
    layers = [part for view in plain["concat"] for part in view["layer"]]
    views = [part["name"] for part in layers if part.get("name", "").startswith("plane")]
    plain["params"] = [{"name": BRUSH, "select": {"type": "interval"}, "views": views}]
    return plain


def _plane(comparison: Comparison, k: int) -> Any:
    import altair as alt

    paradigm = comparison.runs[0].study.envelope.paradigm
    names, objectives = comparison.names, comparison.objectives
    colour = alt.Color("run", type="nominal", title=None, sort=names,
                       scale=alt.Scale(domain=names, range=list(POOL_COLOURS[: len(names)])))  # fmt: skip
    shape = alt.Shape("run", type="nominal", title=None, sort=names,
                      scale=alt.Scale(domain=names, range=list(SHAPES[: len(names)])))  # fmt: skip
    x, y = (
        kind(f"o{j}", type="quantitative", title=axis_title(objectives[j], paradigm), scale=alt.Scale(zero=False))
        for kind, j in ((alt.X, k), (alt.Y, 0))
    )
    tips = [("run", "Run"), ("design", "Design")] + [(f"t{j}", label(o, paradigm)) for j, o in enumerate(objectives)]
    tooltip = [alt.Tooltip(field, type="nominal", title=title) for field, title in tips]
    stairs = alt.Chart(alt.NamedData(name=f"stairs{k}")).mark_line(
        interpolate="step-after", strokeWidth=1.4, opacity=0.7
    )
    opacity = alt.condition(alt.selection_interval(name=BRUSH), alt.value(0.9), alt.value(0.1))
    marks = alt.Chart(alt.NamedData(name="points")).mark_point(filled=True, size=55)
    picked = alt.Chart(alt.NamedData(name="picked"))
    layers = [
        stairs.encode(x=x, y=y, color=colour, order=alt.Order("i", type="quantitative")),
        marks.encode(x=x, y=y, color=colour, shape=shape, opacity=opacity, tooltip=tooltip).properties(
            name=f"plane{k}"
        ),
        picked.mark_point(filled=False, size=230, strokeWidth=2.5).encode(x=x, y=y, color=colour, tooltip=tooltip),
    ]
    title = f"{label(objectives[0], paradigm)} against {inside(objectives[k], paradigm)}"
    return alt.layer(*layers).properties(title=title, width=420, height=320)
