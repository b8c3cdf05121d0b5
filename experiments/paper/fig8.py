"""Fig. 8: uniform offload at micro-batch 1: k layers of every GPU stage on the wafer (section 5.3.1).

The paper shows throughput at global batch 1024 of GPUs alone, the wafer alone, and both with k = 1 to 4, for 7B, 13B,
35B and 70B. No k beats the better single platform, and k = 1 is the best of them (text on Fig. 10).

What the wafer does alone is not said: micro-batch 1 as the figure's title has it, or as it likes best. Both are here;
a wafer likes its whole share as one batch. The best single platform is that of GPUs alone and the wafer at its best;
each value says what would change if the wafer alone ran micro-batch 1.

Handing over k layers of each of K stages of l moves k/l of the work. It pays unless GPUs alone are l/k times as fast as
the wafer would be at the same micro-batch. Hence whether the statement holds hangs on the layers of a stage, which the
paper does not print. Judged and drawn is the layout of `pp_fleet`; the data have nodes of four (table 3) beside it.

`replayed_samples_s` is the same design event by event (`pp_replay`), with as many micro-batches in flight as memory
counts.
"""

from __future__ import annotations

from typing import Any, Final

import altair as alt
import pandas as pd

from .picture import GPU, WSE
from .pp_fleet import OFFLOADED, Layout, gpu_alone, hybrid, layout, of_table_3, wafer_alone
from .pp_replay import replayed_samples_s
from .pp_what_if import no_gain
from .setting import MODELS
from .statement import Statement

NAME: Final = "fig8"
GPU_ONLY, ONE_BATCH, MICRO_BATCH_1 = "GPU only", "WSE only, one batch", "WSE only, micro-batch 1"
JUDGED, TABLE_3 = "smallest that holds the model", "nodes of table 3"


def frame() -> pd.DataFrame:
    """One row for each model, layout and placement; 0 samples/s where a placement cannot run."""
    rows = []
    for model in MODELS:
        for name, at in ((JUDGED, layout(model)), (TABLE_3, of_table_3(model))):
            shape = {
                "model": model,
                "layout": name,
                "n_gpu": at.n_gpu,
                "stages": at.stages,
                "gpus_a_stage": at.gpus_a_stage,
            }
            rows += [shape | row for row in _placements(at)]
    return pd.DataFrame(rows)


def _placements(at: Layout) -> list[dict[str, Any]]:
    """GPUs alone, the wafer alone in both readings, and k layers handed over."""
    alone = (
        (GPU_ONLY, gpu_alone(at)),
        (ONE_BATCH, wafer_alone(at.model)),
        (MICRO_BATCH_1, wafer_alone(at.model, batch=1)),
    )
    rows = [_row(name, 0, one.samples_s, one.samples_s, one.verdict) for name, one in alone]
    for k in OFFLOADED:
        found = hybrid(at, k)
        replayed = replayed_samples_s(at, k) if found.samples_s else 0.0
        rows.append(_row(f"k = {k}", k, found.samples_s, replayed, found.verdict))
    return rows


def _row(placement: str, k: int, samples_s: float, replayed: float, verdict: str) -> dict[str, Any]:
    return {
        "placement": placement,
        "offload_layers": k,
        "samples_s": samples_s,
        "replayed_samples_s": replayed,
        "verdict": verdict,
    }


def judge(data: pd.DataFrame) -> list[Statement]:
    """Every statement about the figure."""
    judged = data[data["layout"] == JUDGED]
    by_model = {m: Placed(judged[judged["model"] == m]) for m in MODELS}
    beside = {m: Placed(data[(data["layout"] == TABLE_3) & (data["model"] == m)]) for m in MODELS}
    return [*(_no_gain(m, p, beside[m]) for m, p in by_model.items()), _one_layer(by_model, beside)]


class Placed:
    """The placements of one model on one layout."""

    def __init__(self, rows: pd.DataFrame) -> None:
        self.at = rows.iloc[0]
        self.rows = rows.set_index("placement")
        self.hybrids = rows[rows["offload_layers"] > 0].set_index("offload_layers")

    def best_k(self, column: str = "samples_s") -> int:
        """Layers handed over in the fastest of the hybrids."""
        return int(self.hybrids.index[int(self.hybrids[column].argmax())])

    def best(self, column: str = "samples_s") -> float:
        """Throughput of the fastest of the hybrids."""
        return float(self.hybrids[column].max())

    def alone(self, name: str) -> float:
        """Throughput of a platform alone."""
        return float(self.rows["samples_s"][name])

    @property
    def gains(self) -> bool:
        """Whether a hybrid beats GPUs alone and the wafer at its best."""
        return self.best() > max(self.alone(GPU_ONLY), self.alone(ONE_BATCH))

    @property
    def gains_on_micro_batch_1(self) -> bool:
        """Whether a hybrid beats GPUs alone and the wafer at micro-batch 1."""
        return self.best() > max(self.alone(GPU_ONLY), self.alone(MICRO_BATCH_1))


def _no_gain(model: str, p: Placed, beside: Placed) -> Statement:
    """Whether any k pays, what it would take that none does, and whether the wafer's own micro-batch matters."""
    other = "" if p.gains == p.gains_on_micro_batch_1 else ", against which it would gain"
    parts = [
        f"{p.at['n_gpu']} A100: {p.best():.1f} samples/s with k = {p.best_k()}, {p.alone(GPU_ONLY):.1f} GPUs alone, "
        f"{p.alone(ONE_BATCH):.1f} wafer alone ({p.alone(MICRO_BATCH_1):.1f} at micro-batch 1{other})"
    ]
    if p.gains:
        parts.append(f"{p.best('replayed_samples_s'):.1f} replayed, k = {p.best_k('replayed_samples_s')}")
        parts.append(no_gain(layout(model)))
    parts.append(
        f"{beside.at['n_gpu']} A100 as {beside.at['stages']} stages of four: {beside.best():.1f} with k = "
        f"{beside.best_k()}, {beside.alone(GPU_ONLY):.1f} GPUs alone"
    )
    return Statement(
        figure=NAME,
        statement=f"{model}: no uniform offload beats the best single platform",
        passes=not p.gains,
        value="; ".join(parts),
        paper="none outperforms",
    )


def _one_layer(placed: dict[str, Placed], beside: dict[str, Placed]) -> Statement:
    best = {m: p.best_k() for m, p in placed.items()}
    replayed = ", ".join(f"{m} {p.best_k('replayed_samples_s')}" for m, p in placed.items())
    table_3 = ", ".join(f"{m} {p.best_k()}" for m, p in beside.items())
    return Statement(
        figure=NAME,
        statement="one layer of each stage is the best that can be handed over, for every model",
        passes=all(k == OFFLOADED[0] for k in best.values()),
        value=f"k = {', '.join(f'{m} {k}' for m, k in best.items())}; replayed {replayed}; "
        f"stages of four GPUs {table_3}",
        paper="k = 1 (text on Fig. 10)",
    )


COLOURS: Final = {
    GPU_ONLY: GPU,
    **{f"k = {k}": colour for k, colour in zip(OFFLOADED, ("#009e73", "#56b4e9", "#e69f00", "#cc79a7"), strict=True)},
    ONE_BATCH: WSE,
    MICRO_BATCH_1: "#f0b27a",
}


def draw(data: pd.DataFrame) -> Any:
    """Bars for each model, a panel each; a tick marks the replay of a hybrid."""
    judged = data[data["layout"] == JUDGED]
    panels = []
    for model in MODELS:
        rows = judged[judged["model"] == model]
        first = rows.iloc[0]
        title = f"{model}: {first['n_gpu']} A100, {first['stages']} stages"
        panels.append(_panel(rows, title, "Throughput [samples/s]" if model == "7B" else None))
    return alt.hconcat(*panels, spacing=16)


def _panel(rows: pd.DataFrame, title: str, y_title: str | None) -> Any:
    order = list(COLOURS)
    colour = alt.Color(
        "placement:N",
        scale=alt.Scale(domain=order, range=list(COLOURS.values())),
        legend=alt.Legend(title=None, orient="bottom", columns=7, symbolType="square"),
    )
    x = alt.X("placement:N", sort=order, title=None, axis=alt.Axis(labels=False, ticks=False))
    base = alt.Chart(rows.assign(text=rows["samples_s"].map("{:.1f}".format))).encode(x=x)
    top = alt.Scale(domain=[0, 1.1 * rows["samples_s"].max()], nice=False)
    y = alt.Y("samples_s:Q", title=y_title, scale=top, axis=alt.Axis(tickCount=5, minExtent=28))
    bars = base.mark_bar().encode(y=y, color=colour)
    numbers = base.mark_text(dy=-7, fontSize=11).encode(y="samples_s:Q", text="text:N")
    ticks = base.transform_filter("datum.offload_layers > 0").mark_tick(color="#111111", thickness=2, size=20)
    return (bars + numbers + ticks.encode(y="replayed_samples_s:Q")).properties(width=240, height=240, title=title)
