"""Why a design is what it is, drawn: where each pool stands under its roofline, and what its cost and power are of.

The roofline is drawn in the pool's own measure, so that pools of any size share one picture: x is the time that the
arithmetic of a phase takes over the time of its memory traffic (both at fitted efficiency), y the share of the time
in which the arithmetic runs. The roof is min(1, x): left of 1 memory binds, right of it arithmetic; how far a point
lies below the roof is what communication and fixed time take.
Source: Williams, Waterman, Patterson, "Roofline", CACM 52(4), 2009, doi:10.1145/1498765.1498785.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from dse.report.numbers import number, percent, shown_unit
from dse.report.parallel import ACCENT

DESIGN: Final = "design"
"""Parameter of the figure: the frontier row that is shown."""
COLOURS: Final = ("#2f7fc1", "#cf5c36", "#2c8c6c", "#8d49b4", "#a8791c", "#b84a7f", "#4b7a8c", "#7a6a58")
LEAST: Final = 1e-3
"""Left end of the roofline, and its lowest share."""
BROKEN: Final = "length(datum.label) > 9 ? split(datum.label, '-') : datum.label"
"""A long name of a pool takes a line for each of its parts."""
BILLS: Final = ("cost_usd_per_h", "power_w")

Datum = dict[str, Any]


def roof_points(design: int, explained: Mapping[str, Any], mix: Sequence[str]) -> list[Datum]:
    """One point a pool and phase (a request class each in serving): its place under the roof."""
    points = []
    for pool, p in explained["pools"].items():
        for phase, compute, memory, whole, what in _times(p, mix):
            if compute <= 0 or whole <= 0:
                continue
            x, y = compute / memory if memory > 0 else 1 / LEAST, min(compute / whole, 1.0)
            points.append({
                "design": design, "pool": pool, "phase": phase, "class": what,
                "x": float(f"{min(max(x, LEAST), 1 / LEAST):.4g}"), "y": float(f"{max(y, LEAST):.4g}"),
                "share": percent(y), "bound": "arithmetic" if x >= 1 else "memory traffic",
                "lost": percent(max(min(1.0, x) - y, 0.0)),
            })  # fmt: skip
    return points


def _times(p: Mapping[str, Any], mix: Sequence[str]) -> list[tuple[str, float, float, float, str]]:
    """Phase, times of arithmetic, memory traffic and the whole, and the request class."""
    if "phases" not in p:
        busy = p["time_frac"]
        return [("a step", busy.get("compute", 0.0), busy.get("memory", 0.0), 1.0, "")]
    found = []
    for phase, t in p["phases"].items():
        for k, what in enumerate(mix):
            found.append((phase, t["compute_s"][k], t["memory_s"][k], t["pass_s"][k], what))
    return found


def bill_steps(design: int, explained: Mapping[str, Any]) -> list[Datum]:
    """Cost and power as steps from nothing to the whole: each pool, the links, the sum."""
    steps = []
    for name in BILLS:
        factor = shown_unit(name)[0]
        parts = [(pool, float(p[name])) for pool, p in explained["pools"].items() if p["n"]]
        parts.append(("links", float(explained["system"][f"link_{name}"] or 0.0)))
        parts = [(part, value) for part, value in parts if value > 0]
        at = 0.0
        for k, (part, value) in enumerate(parts):
            ends = {"from": at * factor, "to": (at + value) * factor}
            steps.append({"design": design, "what": name, "k": k, "part": part, "text": number(value * factor), **ends})
            at += value
        whole = {"k": len(parts), "part": "sum", "from": 0.0, "to": at * factor, "text": number(at * factor)}
        steps.append({"design": design, "what": name, **whole})
    return steps


def specification(points: list[Datum], steps: list[Datum], pools: Sequence[str], pick: int) -> dict[str, Any]:
    """The figure of all explained designs; its parameter `design` says which one is seen."""
    import altair as alt

    shown_one = alt.param(name=DESIGN, value=pick)
    panels = [_roofline(pools)] if points else []
    panels += [_waterfall("cost_usd_per_h", "Cost, part by part"), _waterfall("power_w", "Power, part by part")]
    text = {"labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal"}
    chart = (
        alt.concat(*panels, columns=3, spacing=28)
        .add_params(shown_one)
        .resolve_scale(color="independent", shape="independent", x="independent", y="independent")
        .configure(background="transparent")
        .configure_view(stroke=None)
        .configure_axis(gridOpacity=1, domain=False, **text)
        .configure_title(anchor="start", fontSize=14, fontWeight=600, offset=12)
        .configure_legend(orient="bottom", titleLimit=240, columns=1, **text)
    )
    plain: dict[str, Any] = chart.to_dict()
    ends = [{"x": LEAST, "y": LEAST}, {"x": 1.0, "y": 1.0}, {"x": 1 / LEAST, "y": 1.0}]
    plain["datasets"] = {"roof": ends, "points": points, "steps": steps}
    return plain


def _of_design(name: str) -> Any:
    import altair as alt

    return alt.Chart(alt.NamedData(name=name)).transform_filter(f"datum.design === {DESIGN}")


def _roofline(pools: Sequence[str]) -> Any:
    """Every pool and phase under one roof."""
    import altair as alt

    scale = alt.Scale(type="log", domain=[LEAST, 1 / LEAST], nice=False)
    x = alt.X("x", type="quantitative", scale=scale, title="arithmetic over memory time",
              axis=alt.Axis(values=[0.001, 0.01, 0.1, 1, 10, 100, 1000], format="~g", labelOverlap=True))  # fmt: skip
    y = alt.Y("y", type="quantitative", scale=alt.Scale(type="log", domain=[0.01, 1.25], nice=False, clamp=True),
              title="share of the time in arithmetic [%]",
              axis=alt.Axis(values=[0.01, 0.03, 0.1, 0.3, 1], labelExpr="format(datum.value * 100, '~g')"))  # fmt: skip
    roof = alt.Chart(alt.NamedData(name="roof")).mark_line(strokeWidth=1.6, color="#7a8796").encode(x=x, y=y)
    titles = {"pool": "Pool", "phase": "Phase", "class": "Requests", "share": "In arithmetic", "bound": "Roof",
              "lost": "Lost to communication and fixed time"}  # fmt: skip
    grey = alt.Legend(symbolFillColor="#7a8796", symbolStrokeWidth=0)
    points = _of_design("points").mark_point(filled=True, size=70, opacity=0.85).encode(
        x=x,
        y=y,
        color=alt.Color("pool", type="nominal", title=None, scale=alt.Scale(domain=list(pools), range=list(COLOURS))),
        shape=alt.Shape("phase", type="nominal", title=None, legend=grey),
        tooltip=[alt.Tooltip(k, type="nominal", title=title) for k, title in titles.items()],
    )  # fmt: skip
    return alt.layer(roof, points).properties(title="Under the roofline", width=260, height=200)


def _waterfall(what: str, title: str) -> Any:
    """One bill as steps."""
    import altair as alt

    unit = shown_unit(what)[1]
    data = _of_design("steps").transform_filter(f"datum.what === '{what}'")
    x = alt.X("part", type="nominal", sort=alt.EncodingSortField("k"), title=None,
              axis=alt.Axis(labelAngle=0, labelExpr=BROKEN))  # fmt: skip
    tooltip = [alt.Tooltip("part", type="nominal", title="Part"), alt.Tooltip("text", type="nominal", title=title)]
    bars = data.mark_bar(size=38).encode(
        x=x,
        y=alt.Y("from", type="quantitative", title=f"[{unit}]"),
        y2="to",
        color=alt.condition("datum.part === 'sum'", alt.value(ACCENT), alt.value(COLOURS[0])),
        tooltip=tooltip,
    )
    text = data.mark_text(dy=-7, fontSize=11).encode(x=x, y=alt.Y("to", type="quantitative"), text="text:N")
    named = text.properties(name=f"bill{'cost' if what.startswith('cost') else 'power'}")
    return alt.layer(bars, named).properties(title=title, width=220, height=200)


def finite(data: list[Datum]) -> list[Datum]:
    """Without what JSON cannot hold."""
    return [d for d in data if all(not isinstance(v, float) or math.isfinite(v) for v in d.values())]


def summary(points: list[Datum]) -> str:
    """The figure in words, for who cannot see it.

    >>> summary([{"pool": "wse-3", "phase": "decode", "class": "chat", "share": "46 %", "bound": "memory traffic"}])
    'wse-3, decode of chat: 46 % of the time in arithmetic, under the roof of memory traffic'
    """
    of = [f" of {d['class']}" if d["class"] else "" for d in points]
    return "; ".join(
        f"{d['pool']}, {d['phase']}{what}: {d['share']} of the time in arithmetic, under the roof of {d['bound']}"
        for d, what in zip(points, of, strict=True)
    )
