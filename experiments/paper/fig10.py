"""Fig. 10: time of a layer on GPUs and wafer over micro-batches, and what the wafer must reach (section 5.3.1).

The paper draws, in ms for micro-batches 1 to 64, a layer on the GPUs, a layer on the wafer, and the threshold below
which handing over one layer of each stage pays. The wafer nears the threshold and does not reach it; GPUs cannot hold
micro-batches so large anyway.

A layer is its forward and backward. With k = 1 the wafer takes K layers of a micro-batch while a stage takes its l, so
the threshold is l tau_gpu(m)/K. It is drawn for micro-batches that do not fit as well, as in the paper. Layouts as in
Fig. 8: `pp_fleet`.
"""

from __future__ import annotations

from typing import Any, Final

import altair as alt
import numpy as np
import pandas as pd

from .picture import BOUND, GPU, WSE
from .pp_fleet import gpu_alone, hybrid, layout
from .pp_what_if import no_crossing
from .setting import MODELS
from .statement import Statement

NAME: Final = "fig10"
MICRO_BATCHES: Final = (1, 2, 4, 8, 16, 32, 64)
WELL_USED: Final = 32
"""Micro-batch from which on the paper finds the wafer well used (Fig. 9)."""


def frame() -> pd.DataFrame:
    """One row for each model and micro-batch."""
    return pd.DataFrame(_row(model, m) for model in MODELS for m in MICRO_BATCHES)


def _row(model: str, micro_batch: int) -> dict[str, Any]:
    at = layout(model)
    found = hybrid(at, 1, micro_batch=micro_batch).system
    threshold, wafer = float(found["offload_threshold_s"]), float(found["wafer_layer_s"])
    return {
        "model": model,
        "stages": at.stages,
        "gpus_a_stage": at.gpus_a_stage,
        "micro_batch": micro_batch,
        "gpu_layer_ms": threshold * at.stages / at.layers_a_stage * 1e3,
        "wse_layer_ms": wafer * 1e3,
        "threshold_ms": threshold * 1e3,
        "wse_of_threshold": wafer / threshold,
        "gpu_verdict": gpu_alone(at, micro_batch=micro_batch).verdict,
    }


def judge(data: pd.DataFrame) -> list[Statement]:
    """Every statement about the figure."""
    by_model = {m: data[data["model"] == m] for m in MODELS}
    ratio = {m: rows["wse_of_threshold"].to_numpy() for m, rows in by_model.items()}
    held = {m: _largest_held(rows) for m, rows in by_model.items()}
    return [
        Statement(
            figure=NAME,
            statement="the wafer's time over the threshold falls with every doubling of the micro-batch",
            passes=all(bool((np.diff(r) < 0).all()) for r in ratio.values()),
            value=", ".join(f"{m} {r[0]:.2f} to {r[-1]:.2f}" for m, r in ratio.items()),
            paper="gradually approaches",
        ),
        *(_stays_above(model, rows) for model, rows in by_model.items()),
        Statement(
            figure=NAME,
            statement=f"GPUs cannot hold the micro-batch of {WELL_USED} at which the wafer is well used",
            passes=max(held.values()) < WELL_USED,
            value=", ".join(f"{m} up to {n}" for m, n in held.items()),
            paper="memory of the GPUs forbids it",
        ),
    ]


def _largest_held(rows: pd.DataFrame) -> int:
    """0 where nothing fits."""
    return max(rows.loc[rows["gpu_verdict"] == "feasible", "micro_batch"], default=0)


def _stays_above(model: str, rows: pd.DataFrame) -> Statement:
    """Whether the curves do not cross, and what would part them."""
    below = rows[rows["wse_of_threshold"] <= 1]
    value = f"{_both(rows.iloc[0])}, {_both(rows.iloc[-1])}"
    if len(below):
        value += f"; below it from {below['micro_batch'].iloc[0]} on; {no_crossing(layout(model), MICRO_BATCHES[-1])}"
    return Statement(
        figure=NAME,
        statement=f"{model}: the wafer stays above the threshold up to micro-batch {MICRO_BATCHES[-1]}",
        passes=not len(below),
        value=value,
        paper="do not intersect",
    )


def _both(row: pd.Series) -> str:
    ms, threshold = (f"{row[name]:.{0 if row[name] >= 100 else 1}f} ms" for name in ("wse_layer_ms", "threshold_ms"))
    return f"{ms} at micro-batch {row['micro_batch']} (threshold {threshold})"


LINES: Final = {"gpu_layer_ms": "GPU", "wse_layer_ms": "WSE", "threshold_ms": "threshold for WSE"}


def draw(data: pd.DataFrame) -> Any:
    """Three lines for each model; grey where the GPUs alone cannot hold the micro-batch."""
    return alt.hconcat(*(_panel(model, data[data["model"] == model]) for model in MODELS), spacing=14)


def _panel(model: str, rows: pd.DataFrame) -> Any:
    first = model == "7B"
    long = rows.melt("micro_batch", list(LINES), "series", "ms").replace({"series": LINES})
    look: dict[str, Any] = {
        "sort": list(LINES.values()),
        "legend": alt.Legend(title=None, symbolType="stroke", orient="top"),
    }
    names = list(LINES.values())
    scale = alt.Scale(type="log", base=2, domain=[1 / 2**0.5, MICRO_BATCHES[-1] * 2**0.5], nice=False)
    x = alt.X("micro_batch:Q", scale=scale, title="Micro-batch", axis=alt.Axis(values=list(MICRO_BATCHES), grid=False))
    y = alt.Y(
        "ms:Q",
        scale=alt.Scale(type="log", domain=[2, 2000], nice=False),
        title="Time of a layer [ms]" if first else None,
        axis=alt.Axis(values=[2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000], format="~g", minExtent=34),
    )
    lines = (
        alt.Chart(long)
        .mark_line(point=alt.OverlayMarkDef(size=32))
        .encode(
            x=x,
            y=y,
            color=alt.Color("series:N", scale=alt.Scale(domain=names, range=[GPU, WSE, BOUND]), **look),
            strokeDash=alt.StrokeDash(
                "series:N", scale=alt.Scale(domain=names, range=[[1, 0], [1, 0], [5, 3]]), **look
            ),
        )
    )
    edge = pd.DataFrame({"from": [_largest_held(rows) * 2**0.5], "to": [MICRO_BATCHES[-1] * 2**0.5]})
    beyond = alt.Chart(edge).mark_rect(color="#999999", opacity=0.18).encode(x=alt.X("from:Q", scale=scale), x2="to:Q")
    words = alt.Chart(edge).mark_text(align="right", dx=-4, dy=-8, fontSize=11, color="#555555")
    words = words.encode(x=alt.X("to:Q", scale=scale), y=alt.value(260), text=alt.value("GPU memory exceeded"))
    at = rows.iloc[0]
    title = f"{model}: {at['stages']} stages of {at['gpus_a_stage']} A100"
    return (beyond + lines + words).properties(width=220, height=260, title=title)
