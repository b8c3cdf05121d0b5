"""The frontier in pictures: one linked Vega-Lite figure, as the text of its specification."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from dse.explore import Result
from dse.report.chart_data import SHAPES, Datum, Scene, scene, staircase
from dse.report.frontier_rows import Distinct
from dse.report.parallel import ACCENT, axis_data, panel
from dse.report.words import axis_title, inside, label, words_of

RAMP: Final = ("#c9741f", "#cf4763", "#8d49b4", "#4166d5")
"""Low to high; each step keeps a contrast of 3 on white and on the dark page."""
POOL_COLOURS: Final = (
    "#2f7fc1",
    "#cf5c36",
    "#2c8c6c",
    "#8d49b4",
    "#a8791c",
    "#b84a7f",
    "#4b7a8c",
    "#7a6a58",
)
FAINT: Final = "#8592a3"
LIMIT: Final = "#7a8796"
BRUSH: Final = "brush"
"""One selection over all planes; every panel fades what is outside."""
CLICK: Final = "click"
"""The point that was clicked, by its row; the page shows why it is what it is."""
Y_EXTENT: Final = 54
"""Room for the labels of every y axis [px], so that the panels line up."""
FLAT: Final = 1e-3
"""An axis whose points differ by less than this share starts at zero: the rest is rounding."""


@dataclass(frozen=True, kw_only=True)
class Figures:
    """The charts, and what their caption has to say."""

    spec: str
    """Vega-Lite as JSON, safe inside a script element."""
    notes: list[str]
    description: str


def figures(result: Result, distinct: Distinct) -> Figures | None:
    """All charts of the frontier; None where there is nothing finite to draw."""
    drawn = scene(result, distinct)
    if drawn is None:
        return None
    names = ", ".join(inside(drawn.objectives[k], drawn.paradigm) for k in drawn.across)
    against = f" against {names}" if names else ""
    return Figures(
        spec=script_safe(specification(drawn)),
        notes=drawn.notes,
        description=(
            f"{label(drawn.objectives[0], drawn.paradigm)} of {len(drawn.front)} frontier designs{against}, "
            "and the devices each design is made of"
        ),
    )


def script_safe(value: object) -> str:
    """JSON that no script element can be closed from within.

    >>> script_safe({"name": "</script>"})
    '{"name":"\\\\u003c/script\\\\u003e"}'
    """
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def specification(drawn: Scene) -> dict[str, Any]:
    """The whole figure: planes and lanes in a grid, below it the parallel coordinates; the page sets the widths."""
    import altair as alt

    grid = alt.concat(*[_plane(drawn, k) for k in drawn.across], *_mix(drawn), columns=2, spacing=28)
    grid = grid.resolve_scale(color="independent", shape="independent", size="independent")
    rows = [grid, *([_parallel(drawn)] if len(drawn.axes) > 1 else [])]
    text = {"labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal"}
    chart = (
        alt.vconcat(*rows, spacing=28)
        .resolve_scale(color="independent")
        .configure(background="transparent")
        .configure_view(stroke=None)
        .configure_axis(gridOpacity=1, domain=False, **text)
        .configure_title(anchor="start", fontSize=14, fontWeight=600, offset=12)
        .configure_legend(orient="bottom", titleLimit=320, **text)
    )
    plain: dict[str, Any] = chart.to_dict()
    plain["datasets"] = _datasets(drawn)
    layers = [part for view in plain["vconcat"][0]["concat"] for part in view["layer"]]
    views = [part["name"] for part in layers if part.get("name", "").startswith("plane")]  # Altair adds to names
    if views:
        plain["params"] = [
            {"name": BRUSH, "select": {"type": "interval"}, "views": views},
            {"name": CLICK, "select": {"type": "point", "fields": ["i"], "toggle": False}, "views": views},
        ]
    return plain


def _datasets(drawn: Scene) -> dict[str, list[Datum]]:
    """All data of the figure by name, each once; kept out of Altair, which would check every number."""
    stairs = {f"stairs{k}": staircase(drawn.front, k) for k in drawn.across}
    limits = {f"limits{k}": [{"b": b} for b in bounds] for k, bounds in drawn.limits.items()}
    picked = [d for d in drawn.front if d["pick"]]
    kinds = {
        f"kinds{k}": [{"device": device} | d for device, points in drawn.kinds.items() for d in staircase(points, k)]
        for k in drawn.across
    }
    axes = {"axes": axis_data(drawn.axes)}
    return {"front": drawn.front, "picked": picked, "cloud": drawn.cloud, **stairs, **limits, **kinds, **axes}


def _chart(name: str) -> Any:
    import altair as alt

    return alt.Chart(alt.NamedData(name=name))


def _fade(drawn: Scene, full: float = 0.95) -> Any:
    """Opacity of a point: faint outside what is picked."""
    import altair as alt

    if not drawn.across:
        return alt.value(full)
    return alt.condition(alt.selection_interval(name=BRUSH), alt.value(full), alt.value(full / 8))


def _faint() -> Any:
    """Opacity of an interval, which stays behind its point."""
    import altair as alt

    return alt.condition(alt.selection_interval(name=BRUSH), alt.value(0.5), alt.value(0.06))


def _tooltip(drawn: Scene) -> list[Any]:
    import altair as alt

    parts = [("design", "Design"), ("roles", words_of(drawn.paradigm).layout)]
    parts += [("setup", "Set-up")] if any("setup" in d for d in drawn.front) else []
    parts += [("link", "Link"), ("ratio", "GPU : WSE")]
    parts += [(f"t{k}", label(o, drawn.paradigm)) for k, o in enumerate(drawn.objectives)]
    parts += [("span", "80 % interval")] if any("span" in d for d in drawn.front) else []
    parts += [(f"e{k}", label(c, drawn.paradigm)) for k, c in enumerate(drawn.extras)]
    return [alt.Tooltip(field, type="nominal", title=title) for field, title in parts]


def _axis(drawn: Scene, channel: str, k: int) -> Any:
    """Objective k along x or y."""
    import altair as alt

    low, high = min(d[f"o{k}"] for d in drawn.front), max(d[f"o{k}"] for d in drawn.front)
    axis = alt.Axis(tickCount=6, minExtent=Y_EXTENT) if channel == "y" else alt.Axis(tickCount=6)
    return (alt.Y if channel == "y" else alt.X)(
        f"o{k}",
        type="quantitative",
        title=axis_title(drawn.objectives[k], drawn.paradigm),
        scale=alt.Scale(zero=low < 0.5 * high or high - low < FLAT * abs(high), nice=True),
        axis=axis,
    )


def _plane(drawn: Scene, k: int) -> Any:
    """Objective 0 over objective k, coloured by the next other one."""
    import altair as alt

    x, y = _axis(drawn, "x", k), _axis(drawn, "y", 0)
    layers = []
    if drawn.cloud:
        layers.append(_chart("cloud").mark_circle(size=14, opacity=0.4, color=FAINT).encode(x=x, y=y))
    stairs = _chart(f"stairs{k}")
    line = stairs.mark_line(interpolate="step-after", strokeWidth=1.4, opacity=0.8, color=FAINT)
    layers.append(line.encode(x=x, y=y, order=alt.Order("i", type="quantitative")))
    layers += _kinds(drawn, k, x, y)
    for j, kind, channel in ((k, alt.X, "x"), (0, alt.Y, "y")):
        if drawn.limits.get(j):
            rule = _chart(f"limits{j}")
            rule = rule.mark_rule(strokeDash=[6, 4], strokeWidth=1.5, color=LIMIT)
            layers.append(rule.encode(**{channel: kind("b", type="quantitative")}))
    if any("lo" in d for d in drawn.front):
        reach = _chart("front").mark_rule(strokeWidth=1, color=FAINT)
        ends = {"y": alt.Y("lo", type="quantitative"), "y2": alt.Y2("hi")}
        layers.append(reach.encode(x=x, opacity=_faint(), **ends))
    layers.append(_points(drawn, k).encode(x=x, y=y))
    layers += _picked(x, y, _tooltip(drawn), name=True)
    first, over = label(drawn.objectives[0], drawn.paradigm), inside(drawn.objectives[k], drawn.paradigm)
    title = f"{first} against {over}"
    return alt.layer(*layers).properties(title=title, width=420, height=320)


def _kinds(drawn: Scene, k: int, x: Any, y: Any) -> list[Any]:
    """The best fleets of one device each, as a line with its name at the end."""
    import altair as alt

    layers = []
    for device in drawn.kinds:
        line = _chart(f"kinds{k}").transform_filter(f"datum.device === {json.dumps(device)}")
        style = line.mark_line(interpolate="step-after", strokeWidth=1.8, strokeDash=[2, 2], color=FAINT)
        layers.append(style.encode(x=x, y=y, order=alt.Order("i", type="quantitative")))
        last = line.transform_joinaggregate(last="max(i)").transform_filter("datum.i === datum.last")
        text = last.mark_text(align="right", dx=-3, dy=-7, fontSize=11)
        layers.append(
            text.encode(x=x, y=y, text=alt.value(f"{device} alone")).properties(name=f"end_of_line{k}x{len(layers)}")
        )
    return layers


def _parallel(drawn: Scene) -> Any:
    """How the frontier's designs are made up."""
    return panel(
        drawn.axes,
        lines=_chart("front"),
        picked=_chart("picked"),
        texts=_chart("axes"),
        opacity=_fade(drawn, 0.45),
        colour=_colour(drawn, drawn.across[0] if drawn.across else 0, legend=False),
        tooltip=_tooltip(drawn),
    )


def _points(drawn: Scene, k: int) -> Any:
    """The frontier's marks, still without a place."""
    import altair as alt

    shapes = alt.Scale(domain=list(SHAPES), range=["diamond", "circle"])
    marks = _chart("front").mark_point(filled=True, size=62)
    return marks.encode(
        color=_colour(drawn, k, legend=True),
        tooltip=_tooltip(drawn),
        shape=alt.Shape("shape", type="nominal", legend=None, scale=shapes),
        opacity=_fade(drawn),
    ).properties(name=f"plane{k}")


def _colour(drawn: Scene, k: int, *, legend: bool) -> Any:
    """Colour by the first objective that is neither of a plane's axes."""
    import altair as alt

    others = [j for j in range(len(drawn.objectives)) if j not in (0, k)]
    if not others:
        return alt.value(RAMP[-1])
    return alt.Color(
        f"o{others[0]}",
        type="quantitative",
        title=axis_title(drawn.objectives[others[0]], drawn.paradigm),
        scale=alt.Scale(range=list(RAMP)),
        legend=alt.Legend(gradientLength=180, tickCount=4) if legend else None,
    )


def _picked(x: Any, y: Any, tooltip: list[Any], *, name: bool = False) -> list[Any]:
    """A ring around the recommended design, and its label."""
    chosen = _chart("picked")
    ring = chosen.mark_point(filled=False, size=230, strokeWidth=2.5, color=ACCENT)
    layers = [ring.encode(x=x, y=y, tooltip=tooltip)]
    if name:
        text = chosen.mark_text(text="recommended", dy=-17, fontSize=12, fontWeight=600, color=ACCENT)
        layers.append(text.encode(x=x, y=y))
    return layers


def _mix(drawn: Scene) -> list[Any]:
    """Devices of each pool, and GPUs for each wafer, along the frontier."""
    lanes = [
        (f"n{k}", f"{drawn.pools[k]} along the frontier", "devices", POOL_COLOURS[k % len(POOL_COLOURS)])
        for k in drawn.bought
    ]
    if any(d["r"] is not None for d in drawn.front):
        lanes.append(("r", "GPUs for each wafer, mixes only", "GPU : WSE", RAMP[2]))
    return [_lane(drawn, *lane) for lane in lanes]


def _lane(drawn: Scene, field: str, title: str, unit: str, colour: str) -> Any:
    """One count along objective 0."""
    import altair as alt

    values = [d for d in drawn.front if d[field] is not None]
    ticks = max(1, min(4, int(max(d[field] for d in values))))
    y = alt.Y(
        field,
        type="quantitative",
        title=unit,
        scale=alt.Scale(zero=True),
        axis=alt.Axis(tickCount=ticks, minExtent=Y_EXTENT),
    )
    x, tooltip = _axis(drawn, "x", 0), _tooltip(drawn)
    points = _chart("front").mark_circle(size=46, color=colour)
    points = points.encode(x=x, y=y, opacity=_fade(drawn), tooltip=tooltip)
    rings = _picked(x, y, tooltip) if any(d["pick"] for d in values) else []
    return alt.layer(points, *rings).properties(title=title, width=420, height=130)
