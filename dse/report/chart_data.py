"""What the charts draw, in the units of the page: frontier points, the faint cloud, limits, fleets of one device."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pandas as pd

from dse.explore import Result
from dse.report.frontier_rows import Distinct, spread
from dse.report.layout import setup, short_layout
from dse.report.numbers import number, shown, shown_unit
from dse.report.parallel import Axis, axes_of
from dse.report.rows import Row, cell, count_of, expanded, part_list, pools_bought, ratio_text, value_of
from dse.report.words import inside
from dse.resolve import Study
from dse.scoring import bounds_of
from dse.uncertainty import INTERVALS

CLOUD_POINTS: Final = 3000
FRONT_POINTS: Final = 1000
MOST_INTERVALS: Final = 150
"""Of more points the intervals would hide all else."""
LIMIT_REACH: Final = 1.5
"""A limit farther out than this many times the largest point is told in words, not drawn."""
INTERVAL_REACH: Final = 1.35
"""An interval is drawn up to this many times the largest point."""
KIND_REACH: Final = 1.15
"""Fleets of one device are drawn up to this many times the frontier's largest value of each objective."""
SHAPES: Final = ("one kind of device", "mix of devices")
TOOLTIP_COLUMNS: Final = (
    "throughput_samples_s", "step_time_s", "train_time_s", "goodput_frac", "bubble_frac", "mfu_<pool>",
    "usd_per_mtok", "ttft_p99_s", "tpot_s", "complementarity", "gain_equal_cost",
)  # fmt: skip

Datum = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Scene:
    """All points of the figure. Objective k is `o<k>` in a point, pool k's devices are `n<k>`."""

    paradigm: str
    objectives: tuple[str, ...]
    across: tuple[int, ...]
    """Objectives that get a chart of their own, objective 0 over each."""
    pools: tuple[str, ...]
    extras: tuple[str, ...]
    """Further columns of the tooltip, as text in `e<k>`."""
    front: list[Datum]
    cloud: list[Datum]
    limits: dict[int, list[float]]
    """Objective -> bounds to draw."""
    kinds: dict[str, list[Datum]]
    """Device -> points of the best fleets of it alone."""
    axes: list[Axis]
    """Axes of the parallel coordinates; a point's place on axis k is `p<k>`."""
    notes: list[str]
    """What is not drawn."""

    @property
    def bought(self) -> list[int]:
        """Pools that some point has devices of."""
        return [k for k in range(len(self.pools)) if any(d[f"n{k}"] for d in self.front)]


def scene(result: Result, distinct: Distinct) -> Scene | None:
    """The points of a run; None where there is nothing finite to draw."""
    study, frame = result.study, distinct.frame
    objectives = tuple(o for o in study.envelope.objectives.names if o in frame)
    if not objectives or not len(frame):
        return None
    extras = tuple(c for c in expanded(TOOLTIP_COLUMNS, frame, study.space.pool_names) if c not in objectives)
    chosen = spread(len(frame), FRONT_POINTS, distinct.pick)
    front = [_datum(result, frame, i, objectives, extras, pick=i == distinct.pick) for i in chosen]
    finite = [d for d in front if all(math.isfinite(d[f"o{k}"]) for k in range(len(objectives)))]
    unbounded, front = len(front) - len(finite), finite
    axes = _with_places(study, frame, front)
    if not front:
        return None
    minimised = [k for k, o in enumerate(objectives) if o in study.envelope.objectives.minimise]
    limits, notes = _limits(result, frame.iloc[0], objectives, front)
    if unbounded:
        notes.append(f"{unbounded:,} frontier points with an unbounded objective are not drawn.")
    if len(chosen) < len(frame):
        notes.append(f"{len(chosen):,} of {len(frame):,} frontier points are drawn, evenly spread.")
    _clip(front)
    if len(front) > MOST_INTERVALS:
        for d in front:
            if not d["pick"]:
                d.pop("lo", None)
                d.pop("hi", None)
        notes.append("Of so many points only the recommended one shows its interval.")
    drawn = Scene(
        paradigm=study.envelope.paradigm,
        objectives=objectives,
        across=tuple(minimised or range(1, len(objectives))),
        pools=study.space.pool_names,
        extras=extras,
        front=front,
        cloud=_cloud(result.candidates, objectives),
        limits=limits,
        axes=axes,
        kinds=_kinds(result.info.get("baselines") or [], objectives, front),
        notes=notes,
    )
    absent = [p for k, p in enumerate(drawn.pools) if k not in drawn.bought]
    if absent:
        notes.append(f"No design of the frontier has {' or '.join(absent)}.")
    return drawn


def _clip(front: list[Datum]) -> None:
    """Intervals that reach far beyond all points are cut, so that the points stay apart."""
    most = INTERVAL_REACH * max(d["o0"] for d in front)
    for d in front:
        if "hi" in d:
            d["hi"] = max(min(d["hi"], most), d["o0"])


def _datum(
    result: Result, frame: pd.DataFrame, i: int, objectives: tuple[str, ...], extras: tuple[str, ...], *, pick: bool
) -> Datum:
    """One frontier point; `i` is its row in the table of distinct points."""
    study, row = result.study, frame.iloc[i]
    ratio = value_of(row, "gpu_wse_ratio")
    datum: Datum = {f"o{k}": value_of(row, o) * shown_unit(o)[0] for k, o in enumerate(objectives)}
    datum |= {f"t{k}": shown(o, value_of(row, o)) for k, o in enumerate(objectives)}
    datum |= {f"e{k}": cell(row, c) for k, c in enumerate(extras)}
    datum |= {f"n{k}": count_of(row, p) for k, p in enumerate(study.space.pool_names)}
    datum |= _ends(row, objectives[0])
    return datum | {
        "i": i,
        "design": part_list(study, row),
        "roles": short_layout(study, row),
        **({"setup": "; ".join(parts)} if (parts := setup(study, row)) else {}),
        "link": str(row.get("link", "none")),
        "ratio": ratio_text(row),
        "r": ratio if math.isfinite(ratio) and ratio > 0 else None,
        "shape": SHAPES[len(pools_bought(study, row)) > 1],
        "pick": pick,
    }


def _ends(row: Row, objective: str) -> Datum:
    """Interval of objective 0, and as text; nothing where it has none."""
    if objective not in INTERVALS:
        return {}
    low, high = (value_of(row, name) for name in INTERVALS[objective])
    if not (math.isfinite(low) and math.isfinite(high)):
        return {}
    factor = shown_unit(objective)[0]
    return {"lo": low * factor, "hi": high * factor, "span": f"{shown(objective, low)} to {shown(objective, high)}"}


def _with_places(study: Study, frame: pd.DataFrame, front: list[Datum]) -> list[Axis]:
    """Puts into every point its places on the axes of the parallel coordinates, and returns these."""
    axes, places = axes_of(study, frame)
    for d in front:
        d.update({f"p{k}": None if math.isnan(v) else round(v, 4) for k, v in enumerate(places[d["i"]].tolist())})
    return axes


def _kinds(
    found: Sequence[Mapping[str, Any]], objectives: tuple[str, ...], front: list[Datum]
) -> dict[str, list[Datum]]:
    """Points of the best fleets of one device each, as far as the picture of the frontier reaches."""
    most = [KIND_REACH * max(d[f"o{k}"] for d in front) for k in range(len(objectives))]
    kinds = {}
    for one in found:
        points = [{f"o{k}": p[o] * shown_unit(o)[0] for k, o in enumerate(objectives)} for p in one["points"]]
        seen = [p for p in points if all(0 <= p[f"o{k}"] <= most[k] for k in range(len(objectives)))]
        if seen:
            kinds[str(one["device"])] = seen
    return kinds


def _cloud(candidates: pd.DataFrame, objectives: tuple[str, ...]) -> list[Datum]:
    """Feasible candidates off the frontier, thinned evenly."""
    frame = candidates[candidates["feasible"] & ~candidates["on_front"]][list(objectives)]
    frame = frame.iloc[spread(len(frame), CLOUD_POINTS, -1)]
    scaled = [frame[o].to_numpy(dtype=float) * shown_unit(o)[0] for o in objectives]
    return [
        {f"o{k}": float(f"{v:.5g}") for k, v in enumerate(point)}
        for point in zip(*scaled, strict=True)
        if all(map(math.isfinite, point))
    ]


def _limits(
    result: Result, first: Row, objectives: tuple[str, ...], front: list[Datum]
) -> tuple[dict[int, list[float]], list[str]]:
    """Bounds inside the picture, and words for those outside."""
    bounds = bounds_of(result.study)
    requests = value_of(first, "requests_s")
    if "requests_s" in bounds and requests > 0:
        tokens = value_of(first, "throughput_tok_s") / requests
        low, high = bounds.get("throughput_tok_s", (-math.inf, math.inf))
        least, most = bounds["requests_s"]
        bounds["throughput_tok_s"] = (max(low, least * tokens), min(high, most * tokens))
    drawn: dict[int, list[float]] = {}
    notes = []
    for k, name in enumerate(objectives):
        factor, unit = shown_unit(name)
        reach = LIMIT_REACH * max(abs(d[f"o{k}"]) for d in front)
        for bound, side in zip(bounds.get(name, ()), ("least", "most"), strict=False):
            if not math.isfinite(bound):
                continue
            if abs(bound * factor) <= reach:
                drawn.setdefault(k, []).append(bound * factor)
            else:
                what = f"{inside(name, result.study.envelope.paradigm)} of at {side} {number(bound * factor)} {unit}"
                notes.append(f"The limit, {what}, lies outside the picture.")
    return drawn, notes


def staircase(front: list[Datum], k: int) -> list[Datum]:
    """The best first objective at each level of objective k."""
    steps: list[Datum] = []
    for d in sorted(front, key=lambda d: (d[f"o{k}"], -d["o0"])):
        if not steps or d["o0"] > steps[-1]["o0"]:
            steps.append({f"o{k}": d[f"o{k}"], "o0": d["o0"], "i": len(steps)})
    return steps
