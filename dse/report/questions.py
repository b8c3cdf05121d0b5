"""Questions on the page: the line of each answer, the frontiers behind it in a small chart and as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dse.report.charts import FAINT, POOL_COLOURS, script_safe
from dse.report.numbers import number, shown, shown_unit
from dse.report.parallel import ACCENT
from dse.report.words import axis_title
from dse.resolve import Study

TITLES: Final[Mapping[str, str]] = {
    "cheapest_for_demand": "The cheapest fleet for the demand",
    "best_within_limits": "The fastest fleet within the limits",
    "hybrid_against_homogeneous": "The best mix against the best fleet of one device",
    "least_link": "The least link at which mixing pays",
    "entry_price": "The price up to which a device is bought",
}
RATE: Final = "throughput_tok_s"
PLANES: Final[Mapping[str, str]] = {"cost_usd_per_h": "at equal cost", "power_w": "at equal power"}
FIGURES: Final = (RATE, "requests_s", "cost_usd_per_h", "power_w")

Record = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Plane:
    """One chart."""

    place: str
    """Id of the element that it is drawn in."""
    spec: dict[str, Any]
    description: str


@dataclass(frozen=True, kw_only=True)
class Asked:
    """One question as the page prints it."""

    title: str
    line: str
    proof: str
    planes: list[Plane]
    heads: list[str]
    rows: list[tuple[bool, list[str]]]
    """Whether the fleet is the best of its kind, and its cells."""


def asked(study: Study, info: Mapping[str, Any]) -> list[Asked]:
    """The questions of a run; none for a run without any."""
    return [_asked(study, answer, k) for k, answer in enumerate(info.get("answers") or ())]


def specs_of(questions: Sequence[Asked]) -> str:
    """All charts as JSON, safe inside a script element; empty where there is none."""
    planes = [{"place": plane.place, "spec": plane.spec} for one in questions for plane in one.planes]
    return script_safe(planes) if planes else ""


def _asked(study: Study, answer: Record, k: int) -> Asked:
    points: list[Record] = answer["frontier"]
    against = list(dict.fromkeys(point["against"] for point in points))
    paradigm, pools = study.envelope.paradigm, study.space.pool_names
    columns = [name for name in FIGURES if any(name in point for point in points)]
    return Asked(
        title=TITLES.get(answer["ask"], answer["ask"]),
        line=answer["line"].replace(" x ", " × ").replace(" %", "\u00a0%"),
        proof="" if answer["missing"] else _proof(answer),
        planes=[_plane(study, answer, points, spent, f"question-{k}-{j}") for j, spent in enumerate(against)],
        heads=["Fleets", *pools, *(axis_title(name, paradigm) for name in columns)],
        rows=[(bool(p["best"]), _cells(p, pools, columns, of_plane=len(against) > 1)) for p in points],
    )


def _cells(point: Record, pools: Sequence[str], columns: Sequence[str], *, of_plane: bool) -> list[str]:
    kind = point["kind"] + (f", {PLANES[point['against']]}" if of_plane else "")
    figures = [number(point[name] * shown_unit(name)[0]) for name in columns]
    return [kind, *(f"{point[f'n_{pool}']:,}" for pool in pools), *figures]


def _proof(answer: Record) -> str:
    """What the answer rests on."""
    proof, n = answer["proof"], answer["explorations"]
    told = []
    if "designs" in proof:
        told.append(f"every one of {proof['designs']:,} designs was judged or ruled out")
    if "solves" in proof:
        told.append(f"{proof['solves']:,} exact programs were solved, to a gap of at most {proof['largest_gap']:.1g}")
    return f"Exact: in {n:,} exploration{'' if n == 1 else 's'} {' and '.join(told)}."


def _plane(study: Study, answer: Record, points: Sequence[Record], spent: str, place: str) -> Plane:
    paradigm = study.envelope.paradigm
    own = [point for point in points if point["against"] == spent]
    data = [_datum(study, point, spent) for point in own]
    kinds = list(dict.fromkeys(d["kind"] for d in data))
    best = "; ".join(f"{d['kind']}: {d['fleet']}, {d['rate']}, {d['spent']}" for d in data if d["best"])
    return Plane(
        place=place,
        spec=_specification(data, kinds, axis_title(spent, paradigm), axis_title(RATE, paradigm)),
        description=f"Frontiers behind the answer to {answer['ask']}. The best of each: {best}",
    )


def _datum(study: Study, point: Record, spent: str) -> dict[str, Any]:
    counts = {pool: point[f"n_{pool}"] for pool in study.space.pool_names}
    return {
        "kind": point["kind"],
        "best": point["best"],
        "x": point[spent] * shown_unit(spent)[0],
        "y": point[RATE] * shown_unit(RATE)[0],
        "fleet": " + ".join(f"{n:,} × {pool}" for pool, n in counts.items() if n),
        "rate": shown(RATE, point[RATE]),
        "spent": shown(spent, point[spent]),
    }


def _specification(data: list[dict[str, Any]], kinds: list[str], across: str, up: str) -> dict[str, Any]:
    """Frontiers over each other: a line and marks each, a ring around the best."""
    import altair as alt

    axis, near = alt.Axis(tickCount=6), alt.Scale(zero=False, nice=True)
    x = alt.X("x", type="quantitative", title=across, scale=near, axis=axis)
    y = alt.Y("y", type="quantitative", title=up, scale=near, axis=axis)
    colours = [POOL_COLOURS[k % len(POOL_COLOURS)] for k in range(len(kinds))]
    colour = alt.Color(
        "kind", type="nominal", title=None, scale=alt.Scale(domain=kinds, range=colours), legend=alt.Legend()
    )
    tips = [
        alt.Tooltip(name, type="nominal", title=title)
        for name, title in (("kind", "Of"), ("fleet", "Fleet"), ("rate", up), ("spent", across))
    ]
    chart = alt.Chart(alt.NamedData(name="fleets"))
    line = chart.mark_line(interpolate="step-after", strokeWidth=1.4, opacity=0.6).encode(x=x, y=y, color=colour)
    marks = chart.mark_point(filled=True, size=42, opacity=0.9).encode(x=x, y=y, color=colour, tooltip=tips)
    ring = chart.transform_filter("datum.best").mark_point(filled=False, size=190, strokeWidth=2.2, color=ACCENT)
    text = {"labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal"}
    plain: dict[str, Any] = (
        alt.layer(line, marks, ring.encode(x=x, y=y, tooltip=tips))
        .properties(width=440, height=230)
        .configure(background="transparent")
        .configure_view(stroke=None)
        .configure_axis(gridOpacity=1, domain=False, tickColor=FAINT, **text)
        .configure_legend(orient="bottom", columns=2, symbolType="circle", labelLimit=320, **text)
        .to_dict()
    )
    plain["datasets"] = {"fleets": data}
    return plain
