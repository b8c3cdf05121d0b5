"""Fig. 11: which pairs of GPU and WSE micro-batches are possible (section 5.3.1, optimized pipelines).

The paper marks for each model, on the GPUs' side and on the wafer's, which micro-batches are feasible, which violate
memory, and which the structure of the pipeline excludes. Feasible placements exist for all models, but memory and
structure leave little freedom.

Here every pair is judged, on the fleets of Fig. 8 (`pp_placements`), with one layer of each stage on the wafer, the
paper's representative configuration. Handing over more frees GPU memory: `least_layers` is the fewest that fit.
"""

from __future__ import annotations

from typing import Any, Final

import altair as alt
import numpy as np
import pandas as pd

from .pp_fleet import layout
from .pp_placements import FEASIBLE, INFEASIBLE, MICRO_BATCHES, VIOLATION, by_micro_batches
from .setting import MODELS
from .statement import Statement

NAME: Final = "fig11"


def frame() -> pd.DataFrame:
    """One row for each model, GPU micro-batch and WSE micro-batch."""
    return pd.concat([by_micro_batches(model) for model in MODELS], ignore_index=True)


def judge(data: pd.DataFrame) -> list[Statement]:
    """Every statement about the figure."""
    by_model = {m: data[data["model"] == m] for m in MODELS}
    return [_exist(by_model), _decoupled(by_model), _memory(by_model), _wafer(data), _structure(by_model)]


def _exist(by_model: dict[str, pd.DataFrame]) -> Statement:
    feasible = {m: int((rows["verdict"] == FEASIBLE).sum()) for m, rows in by_model.items()}
    more = {m: int((rows["least_layers"] > 0).sum()) for m, rows in by_model.items()}
    n = len(MICRO_BATCHES) ** 2
    return Statement(
        figure=NAME,
        statement="feasible placements exist for every model, and are few",
        passes=all(0 < count < n / 2 for count in feasible.values()),
        value=f"of {n} pairs, with k = 1 (any k): "
        + ", ".join(f"{m} {feasible[m] or 'none'} ({more[m] or 'none'})" for m in by_model),
        paper="exist for all, flexibility substantially reduced",
    )


def _decoupled(by_model: dict[str, pd.DataFrame]) -> Statement:
    """Whether the wafer's micro-batch may be larger than the GPUs', and the layers that takes."""
    fits = {m: _of_unequal(rows) for m, rows in by_model.items()}
    return Statement(
        figure=NAME,
        statement="for every model some placement gives the wafer a larger micro-batch than the GPUs",
        passes=all(len(rows) for rows in fits.values()),
        value=", ".join(
            f"{m} up to {rows['wse_micro_batch'].max()}, from k = {rows['least_layers'].min()} on"
            if len(rows)
            else f"{m} none"
            for m, rows in fits.items()
        ),
        paper="exist for all models",
    )


def _of_unequal(rows: pd.DataFrame) -> pd.DataFrame:
    return rows[(rows["wse_micro_batch"] > rows["gpu_micro_batch"]) & (rows["least_layers"] > 0)]


def _memory(by_model: dict[str, pd.DataFrame]) -> Statement:
    """From which GPU micro-batch on nothing fits with one layer handed over."""
    largest = {m: _largest_feasible(rows) for m, rows in by_model.items()}
    violated = {
        m: bool(rows.loc[rows["gpu_micro_batch"] > largest[m], "verdict"].eq(VIOLATION).any())
        for m, rows in by_model.items()
    }
    return Statement(
        figure=NAME,
        statement="large GPU micro-batches violate the memory of the GPUs, for every model",
        passes=all(violated.values()),
        value=", ".join(f"{m} above {n}" if n else f"{m} none fits" for m, n in largest.items()),
        paper="memory asymmetry",
    )


def _largest_feasible(rows: pd.DataFrame) -> int:
    """0 where nothing fits."""
    return max(rows.loc[rows["verdict"] == FEASIBLE, "gpu_micro_batch"], default=0)


def _wafer(data: pd.DataFrame) -> Statement:
    return Statement(
        figure=NAME,
        statement="the wafer's memory never stands in the way",
        passes=not data["wse_memory_short"].any(),
        value=f"short at {int(data['wse_memory_short'].sum())} of {len(data)} pairs",
        paper="memory asymmetry",
    )


def _structure(by_model: dict[str, pd.DataFrame]) -> Statement:
    excluded = {m: int((rows["verdict"] == INFEASIBLE).sum()) for m, rows in by_model.items()}
    return Statement(
        figure=NAME,
        statement="the structure of the pipeline excludes placements, for every model",
        passes=all(n > 0 for n in excluded.values()),
        value=", ".join(f"{m} {n}" for m, n in excluded.items()) + f" of {len(MICRO_BATCHES) ** 2} pairs",
        paper="infeasible placements",
    )


MORE: Final = "feasible only with more layers on the wafer"
COLOURS: Final = {
    FEASIBLE: "#009e73",
    MORE: "#a6dcc9",
    VIOLATION: "#d55e00",
    INFEASIBLE: "#e4e4e4",
}


def draw(data: pd.DataFrame) -> Any:
    """A map for each model; a number is the fewest layers of a stage that must leave the GPUs."""
    mark = np.where((data["verdict"] == VIOLATION) & (data["least_layers"] > 0), MORE, data["verdict"])
    least = data["least_layers"].astype(str).where(data["least_layers"] > 0, "")
    shown = data.assign(mark=mark, text=least)
    return alt.hconcat(*(_panel(m, shown[shown["model"] == m]) for m in MODELS), spacing=18)


def _panel(model: str, rows: pd.DataFrame) -> Any:
    order = list(MICRO_BATCHES)
    base = alt.Chart(rows).encode(
        x=alt.X("gpu_micro_batch:O", title="GPU micro-batch", sort=order, axis=alt.Axis(labelAngle=0, grid=False)),
        y=alt.Y(
            "wse_micro_batch:O",
            title="WSE micro-batch" if model == "7B" else None,
            sort=order[::-1],
            axis=alt.Axis(grid=False),
        ),
    )
    colour = alt.Color(
        "mark:N",
        scale=alt.Scale(domain=list(COLOURS), range=list(COLOURS.values())),
        legend=alt.Legend(title=None, orient="bottom", symbolType="square", columns=4),
    )
    cells = base.mark_rect(stroke="white", strokeWidth=1.5).encode(color=colour)
    numbers = base.mark_text(fontSize=12, color="#111111").encode(text="text:N")
    title = f"{model}: {layout(model).n_gpu} A100 + 1 WSE-3"
    return (cells + numbers).properties(width=220, height=220, title=title)
