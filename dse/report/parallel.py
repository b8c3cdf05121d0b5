"""Parallel coordinates: every design variable that differs along the frontier, and every objective, as an axis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dse.columns import WHOLE_UNITS, column, pool_of
from dse.report.numbers import number, shown_unit
from dse.report.rows import expanded
from dse.report.words import label
from dse.resolve import Study

VARIABLES: Final = (
    "n_<pool>", "instance_size_<pool>", "role_<pool>", "prefill_batch_<pool>", "max_decode_batch_<pool>",
    "stages_<pool>", "micro_batch_<pool>", "zero_stage_<pool>", "global_batch", "schedule", "recompute",
    "offload_layers", "routing", "weight_dtype", "link_gb_s",
)  # fmt: skip
MOST_AXES: Final = 10
"""More do not fit side by side; counts and objectives stay, the last others go."""
SHORT: Final = {
    "n": "devices", "instance_size": "size", "role": "role", "prefill_batch": "prefill batch",
    "max_decode_batch": "decode batch", "stages": "stages", "micro_batch": "micro-batch", "zero_stage": "ZeRO",
}  # fmt: skip

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Axis:
    """One upright axis: its title in two lines, and what stands at its ends."""

    name: str
    over: str
    """The pool, or the first word of the title."""
    title: str
    ticks: tuple[tuple[float, str], ...]
    """Place between 0 and 1, and text."""


def axes_of(study: Study, frame: pd.DataFrame) -> tuple[list[Axis], Floats]:
    """Axes of what differs along the frontier, and each row's place on each, 0 to 1 (N, axes).

    A row without a value (the setting of a pool that is not bought) has NaN there.
    """
    objectives = [o for o in study.envelope.objectives.names if o in frame]
    names = [n for n in expanded(VARIABLES, frame, study.space.pool_names) if n not in objectives]
    all_placed = [(n, *_placed(n, frame)) for n in [*names, *objectives]]
    placed = [(n, places, ticks) for n, places, ticks in all_placed if len(np.unique(places[~np.isnan(places)])) > 1]
    keep = [n for n, _, _ in placed if n in objectives or n.startswith("n_")]
    others = [n for n, _, _ in placed if n not in keep][: max(MOST_AXES - len(keep), 0)]
    chosen = [p for p in placed if p[0] in keep or p[0] in others][-MOST_AXES:]
    paradigm = study.envelope.paradigm
    axes = [_axis(name, paradigm, ticks) for name, _, ticks in chosen]
    places = np.column_stack([p for _, p, _ in chosen]) if chosen else np.zeros((len(frame), 0))
    return axes, places


def _axis(name: str, paradigm: str, ticks: tuple[tuple[float, str], ...]) -> Axis:
    known, pool = column(name), pool_of(name)
    if known is not None and pool is not None:
        return Axis(name=name, over=pool, title=SHORT[known.name.removesuffix("_<pool>")], ticks=ticks)
    words, unit = ("Link", "GB/s") if name == "link_gb_s" else (label(name, paradigm), shown_unit(name)[1])
    first, _, rest = words.partition(" ")
    title = " ".join(part for part in (rest, f"[{unit}]" if unit else "") if part)
    return Axis(name=name, over=first, title=title, ticks=ticks)


def _placed(name: str, frame: pd.DataFrame) -> tuple[Floats, tuple[tuple[float, str], ...]]:
    """Places of a column's values on its axis, and the axis's texts."""
    known, pool = column(name), pool_of(name)
    bought = frame[f"n_{pool}"].to_numpy(dtype=np.float64) > 0 if pool and not name.startswith("n_") else None
    if known is not None and known.unit:
        values = frame[name].to_numpy(dtype=np.float64)
        values = np.where(np.isfinite(values), values, np.nan)
        if bought is not None:
            values = np.where(bought, values, np.nan)
        return _on_scale(name, values)
    texts = frame[name].astype(str).to_numpy(dtype=object)
    kinds = sorted({t for k, t in enumerate(texts) if bought is None or bought[k]})
    place = {t: i / max(len(kinds) - 1, 1) for i, t in enumerate(kinds)}
    found = np.array([place[t] if bought is None or bought[k] else np.nan for k, t in enumerate(texts)])
    ticks = tuple((place[t], t) for t in kinds)
    return found, ticks if len(kinds) <= len(ENDS) * 2 else (ticks[0], ticks[-1])


ENDS: Final = (0.0, 1.0)


def _on_scale(name: str, values: Floats) -> tuple[Floats, tuple[tuple[float, str], ...]]:
    if np.isnan(values).all():
        return values, ()
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    known = column(name)
    whole = known is not None and known.unit in WHOLE_UNITS
    factor = shown_unit(name)[0]
    texts = [f"{v:,.0f}" if whole and v.is_integer() else number(v * factor) for v in (low, high)]
    if high == low:
        return np.where(np.isnan(values), np.nan, 0.5), ((0.5, texts[0]),)
    return (values - low) / (high - low), tuple(zip(ENDS, texts, strict=True))


def axis_data(axes: list[Axis]) -> list[dict[str, Any]]:
    """Texts of all axes, one datum each; `y` is where a text stands."""
    return [{"axis": k, "y": place, "text": text} for k, axis in enumerate(axes) for place, text in axis.ticks]


def panel(
    axes: list[Axis], *, lines: Any, picked: Any, texts: Any, opacity: Any, colour: Any, tooltip: list[Any]
) -> Any:
    """The chart: `lines`, `picked` and `texts` are charts of data that hold `p<k>`, `p<k>`, and the axes' texts."""
    import altair as alt

    places = [f"p{k}" for k in range(len(axes))]
    titles = [[axis.over, axis.title] for axis in axes]
    labels = f"{titles}[datum.value]"
    at = alt.X("axis", type="quantitative", title=None, scale=alt.Scale(domain=[-0.35, len(axes) - 0.65], nice=False),
               axis=alt.Axis(values=list(range(len(axes))), labelExpr=labels, grid=True, ticks=False, orient="top",
                             labelPadding=16, labelOverlap=False))  # fmt: skip
    height = alt.Y("value", type="quantitative", axis=None, scale=alt.Scale(domain=[-0.08, 1.08], nice=False))

    def folded(chart: Any) -> Any:
        fold = chart.transform_fold(places, as_=["key", "value"])
        return fold.transform_calculate(axis="toNumber(substring(datum.key, 1))").transform_filter(
            "isValid(datum.value)"
        )

    thin = folded(lines).mark_line(strokeWidth=1.1).encode(
        x=at, y=height, detail="i:N", opacity=opacity, color=colour, tooltip=tooltip
    )  # fmt: skip
    thick = folded(picked).mark_line(strokeWidth=3, color=ACCENT, point={"color": ACCENT, "size": 40}).encode(
        x=at, y=height, detail="i:N", tooltip=tooltip
    )  # fmt: skip
    ends = texts.mark_text(align="left", dx=5, fontSize=11).encode(
        x=at, y=alt.Y("y", type="quantitative"), text=alt.Text("text", type="nominal")
    )  # fmt: skip
    title = "How the designs are made up: one line a design"
    return alt.layer(thin, thick, ends.properties(name="parallel_ends")).properties(title=title, width=860, height=240)


ACCENT: Final = "#d6336c"
"""Colour of the recommended design, everywhere."""
