"""The frontier in pictures: one linked Vega-Lite figure, as the text of its specification."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any, Final

import pandas as pd

from dse.explore import Result
from dse.report.designs import Row, count_of, part_list, pools_bought, ratio_text, value_of
from dse.report.frontier_rows import Distinct, roles_text, spread
from dse.report.numbers import axis_title, label, number, shown, shown_unit
from dse.score import bounds_of

CLOUD_POINTS: Final = 3000
FRONT_POINTS: Final = 1500
LIMIT_REACH: Final = 1.5
"""A limit farther out than this many times the largest point is told in words, not drawn."""
RAMP: Final = ("#c9741f", "#cf4763", "#8d49b4", "#4166d5")
"""Low to high; each step keeps a contrast of 3 on white and on the dark page."""
POOL_COLOURS: Final = ("#2f7fc1", "#cf5c36", "#2c8c6c", "#8d49b4", "#a8791c", "#b84a7f", "#4b7a8c", "#7a6a58")
ACCENT: Final = "#d6336c"
SHAPES: Final = ("one kind of device", "mix of devices")
TOOLTIP_COLUMNS: Final = ("usd_per_mtok", "ttft_p99_s", "tpot_s", "complementarity", "gain_equal_cost")


@dataclass(frozen=True, kw_only=True)
class Figures:
    """The charts, and what their caption has to say."""

    spec: str
    """Vega-Lite as JSON, safe inside a script element."""
    notes: list[str]
    description: str


def figures(result: Result, distinct: Distinct) -> Figures | None:
    """All charts of the frontier; None where there is nothing finite to draw."""
    study = result.study
    objectives = tuple(o for o in study.envelope.objectives.names if o in distinct.frame)
    if not objectives or not len(distinct.frame):
        return None
    chosen = spread(len(distinct.frame), FRONT_POINTS, distinct.pick)
    front = [_datum(result, distinct.frame.iloc[i], objectives, i == distinct.pick) for i in chosen]
    front = [d for d in front if all(math.isfinite(d[f"o{k}"]) for k in range(len(objectives)))]
    if not front:
        return None
    across = [k for k, o in enumerate(objectives) if o in study.envelope.objectives.minimise] or [
        k for k in range(1, len(objectives))
    ]
    notes = _sampling_notes(len(chosen), len(distinct.frame))
    limits = _limits(result, distinct, objectives, front, notes)
    cloud = _cloud(result.candidates, objectives)
    spec = _spec(result, objectives, across, front, cloud, limits)
    names = ", ".join(label(objectives[k]).lower() for k in across)
    description = (
        f"{label(objectives[0])} of {len(front)} frontier designs against {names or 'their order'}, "
        "and the devices each design is made of"
    )
    return Figures(spec=spec, notes=notes, description=description)


def _sampling_notes(drawn: int, total: int) -> list[str]:
    return [f"{drawn:,} of {total:,} frontier points are drawn, evenly spread."] if drawn < total else []


def _datum(result: Result, row: Row, objectives: tuple[str, ...], pick: bool) -> dict[str, Any]:
    study = result.study
    datum: dict[str, Any] = {
        f"o{k}": value_of(row, o) * shown_unit(o)[0] for k, o in enumerate(objectives)
    }
    datum |= {f"t{k}": shown(o, value_of(row, o)) for k, o in enumerate(objectives)}
    datum |= {f"e{k}": shown(c, value_of(row, c)) for k, c in enumerate(_extras(row, objectives))}
    datum |= {f"n{k}": count_of(row, p) for k, p in enumerate(study.space.pool_names)}
    ratio = value_of(row, "gpu_wse_ratio")
    return datum | {
        "design": part_list(study, row),
        "roles": roles_text(study, row),
        "link": str(row.get("link", "none")),
        "ratio": ratio_text(row),
        "r": ratio if math.isfinite(ratio) and ratio > 0 else None,
        "shape": SHAPES[len(pools_bought(study, row)) > 1],
        "pick": pick,
    }


def _extras(row: Row, objectives: tuple[str, ...]) -> list[str]:
    return [c for c in TOOLTIP_COLUMNS if c in row.index and c not in objectives]


def _cloud(candidates: pd.DataFrame, objectives: tuple[str, ...]) -> list[dict[str, float]]:
    """Feasible candidates off the frontier, thinned evenly, in the units of the page."""
    frame = candidates[candidates["feasible"] & ~candidates["on_front"]][list(objectives)]
    frame = frame.iloc[spread(len(frame), CLOUD_POINTS, -1)]
    scaled = [frame[o].to_numpy(dtype=float) * shown_unit(o)[0] for o in objectives]
    return [
        {f"o{k}": float(f"{v:.5g}") for k, v in enumerate(point)}
        for point in zip(*scaled, strict=True)
        if all(map(math.isfinite, point))
    ]


def _limits(
    result: Result,
    distinct: Distinct,
    objectives: tuple[str, ...],
    front: list[dict[str, Any]],
    notes: list[str],
) -> dict[int, list[float]]:
    """Objective -> bounds to draw, in the page's units; bounds out of the picture go to the notes."""
    bounds = bounds_of(result.study)
    if "throughput_tok_s" in objectives and "requests_s" in bounds and "requests_s" in distinct.frame:
        first = distinct.frame.iloc[0]
        tokens = value_of(first, "throughput_tok_s") / value_of(first, "requests_s")
        low, high = bounds.get("throughput_tok_s", (-math.inf, math.inf))
        asked = bounds["requests_s"]
        bounds["throughput_tok_s"] = (max(low, asked[0] * tokens), min(high, asked[1] * tokens))
    drawn: dict[int, list[float]] = {}
    for k, name in enumerate(objectives):
        factor, unit = shown_unit(name)
        largest = max(d[f"o{k}"] for d in front)
        for bound, side in zip(bounds.get(name, ()), ("at least", "at most"), strict=False):
            if not math.isfinite(bound):
                continue
            if abs(bound * factor) <= LIMIT_REACH * abs(largest):
                drawn.setdefault(k, []).append(bound * factor)
            else:
                notes.append(
                    f"The limit of {side} {number(bound * factor)} {unit} on {label(name).lower()} "
                    "lies outside the picture."
                )
    return drawn


def _spec(
    result: Result,
    objectives: tuple[str, ...],
    across: list[int],
    front: list[dict[str, Any]],
    cloud: list[dict[str, float]],
    limits: dict[int, list[float]],
) -> str:
    import altair as alt

    brush = alt.selection_interval(name="brush")
    tooltip = _tooltip(alt, result.frontier.iloc[0], objectives)
    panels = [_plane(alt, objectives, k, front, cloud, limits, brush, tooltip) for k in across]
    panels += _mix(alt, result, objectives, front, brush, tooltip)
    chart = (
        alt.concat(*panels, columns=2, spacing=28)
        .resolve_scale(color="independent", shape="independent", size="independent")
        .configure(background="transparent", font="inherit")
        .configure_view(stroke=None)
        .configure_axis(labelFontSize=12, titleFontSize=12, titleFontWeight="normal", gridOpacity=1, domain=False)
        .configure_title(anchor="start", fontSize=14, fontWeight=600, offset=12)
        .configure_legend(orient="bottom", labelFontSize=12, titleFontSize=12, titleFontWeight="normal", titleLimit=320)
    )
    return script_safe(chart.to_dict())


def script_safe(value: object) -> str:
    """JSON that no script element can be closed from within."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _tooltip(alt: Any, row: Row, objectives: tuple[str, ...]) -> list[Any]:
    parts = [("design", "Design"), ("roles", "Roles"), ("link", "Link"), ("ratio", "GPU : WSE")]
    parts += [(f"t{k}", label(o)) for k, o in enumerate(objectives)]
    parts += [(f"e{k}", label(c).capitalize() if c.islower() else label(c)) for k, c in enumerate(_extras(row, objectives))]
    return [alt.Tooltip(field, type="nominal", title=title) for field, title in parts]


def _axis(alt: Any, kind: Any, k: int, objectives: tuple[str, ...], front: list[dict[str, Any]]) -> Any:
    values = [d[f"o{k}"] for d in front]
    zero = min(values) < 0.5 * max(values)
    return kind(
        f"o{k}",
        type="quantitative",
        title=axis_title(objectives[k]),
        scale=alt.Scale(zero=zero, nice=True),
        axis=alt.Axis(tickCount=6),
    )


def _plane(
    alt: Any,
    objectives: tuple[str, ...],
    k: int,
    front: list[dict[str, Any]],
    cloud: list[dict[str, float]],
    limits: dict[int, list[float]],
    brush: Any,
    tooltip: list[Any],
) -> Any:
    """The first objective over objective k, coloured by the next other one."""
    x, y = _axis(alt, alt.X, k, objectives, front), _axis(alt, alt.Y, 0, objectives, front)
    others = [j for j in range(len(objectives)) if j not in (0, k)]
    layers = []
    if cloud:
        faint = alt.Chart(alt.InlineData(values=cloud)).mark_circle(size=9, opacity=0.22, color="#8592a3")
        layers.append(faint.encode(x=x, y=y))
    layers.append(alt.Chart(alt.InlineData(values=_staircase(front, k))).mark_line(
        interpolate="step-after", strokeWidth=1.2, opacity=0.55, color="#8592a3"
    ).encode(x=x, y=y, order=alt.Order("i", type="quantitative")))
    for j, channel in ((k, "x"), (0, "y")):
        if limits.get(j):
            rule = alt.Chart(alt.InlineData(values=[{"b": b} for b in limits[j]]))
            layers.append(rule.mark_rule(strokeDash=[6, 4], strokeWidth=1.5, color=ACCENT).encode(
                **{channel: (alt.X if channel == "x" else alt.Y)("b", type="quantitative")}
            ))
    points = alt.Chart(alt.InlineData(values=front))
    colour: Any = alt.value(RAMP[-1])
    if others:
        j = others[0]
        colour = alt.Color(
            f"o{j}", type="quantitative", title=axis_title(objectives[j]),
            scale=alt.Scale(range=list(RAMP)), legend=alt.Legend(gradientLength=180, tickCount=4),
        )  # fmt: skip
    layers.append(points.mark_point(filled=True, size=62).encode(
        x=x, y=y, color=colour, tooltip=tooltip,
        shape=alt.Shape("shape", type="nominal", title=None,
                        scale=alt.Scale(domain=list(SHAPES), range=["diamond", "circle"])),
        opacity=alt.condition(brush, alt.value(0.95), alt.value(0.12)),
    ).add_params(brush))  # fmt: skip
    layers += _picked(alt, front, x, y, tooltip, name=True)
    title = f"{label(objectives[0])} against {label(objectives[k]).lower()}"
    return alt.layer(*layers).properties(title=title, width=420, height=320)


def _staircase(front: list[dict[str, Any]], k: int) -> list[dict[str, float]]:
    """The best first objective at each level of objective k."""
    steps: list[dict[str, float]] = []
    for d in sorted(front, key=lambda d: (d[f"o{k}"], -d["o0"])):
        if not steps or d["o0"] > steps[-1]["o0"]:
            steps.append({f"o{k}": d[f"o{k}"], "o0": d["o0"], "i": len(steps)})
    return steps


def _picked(alt: Any, front: list[dict[str, Any]], x: Any, y: Any, tooltip: list[Any], *, name: bool) -> list[Any]:
    """A ring around the recommended design, and its label."""
    chosen = alt.Chart(alt.InlineData(values=[d for d in front if d["pick"]]))
    ring = chosen.mark_point(filled=False, size=230, strokeWidth=2.5, color=ACCENT).encode(x=x, y=y, tooltip=tooltip)
    if not name:
        return [ring]
    text = chosen.mark_text(text="recommended", dy=-17, fontSize=12, fontWeight=600, color=ACCENT).encode(x=x, y=y)
    return [ring, text]


def _mix(
    alt: Any, result: Result, objectives: tuple[str, ...], front: list[dict[str, Any]], brush: Any, tooltip: list[Any]
) -> list[Any]:
    """Devices of each pool, and GPUs per wafer, along the frontier."""
    x = _axis(alt, alt.X, 0, objectives, front)
    fade = alt.condition(brush, alt.value(0.9), alt.value(0.12))
    data = alt.Chart(alt.InlineData(values=front))
    panels = []
    lanes = [(f"n{k}", f"{pool} along the frontier", "devices", POOL_COLOURS[k % len(POOL_COLOURS)], front)
             for k, pool in enumerate(result.study.space.pool_names)]  # fmt: skip
    mixed = [d for d in front if d["r"] is not None]
    if mixed:
        lanes.append(("r", "GPUs for each wafer, mixes only", "GPU : WSE", RAMP[2], mixed))
        data_mixed = alt.Chart(alt.InlineData(values=mixed))
    for field, title, unit, colour, values in lanes:
        y = alt.Y(field, type="quantitative", title=unit, axis=alt.Axis(tickCount=4, tickMinStep=1),
                  scale=alt.Scale(zero=True))  # fmt: skip
        source = data if values is front else data_mixed
        points = source.mark_circle(size=46, color=colour).encode(x=x, y=y, opacity=fade, tooltip=tooltip)
        rings = _picked(alt, values, x, y, tooltip, name=False)
        panels.append(alt.layer(points, *rings).properties(title=title, width=420, height=130))
    return panels
