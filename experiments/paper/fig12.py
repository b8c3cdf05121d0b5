"""Fig. 12: the best decoupled pipelines against the wafer alone, and the bandwidth they need (section 5.3.1).

For each model the paper takes a feasible placement with high WSE utilisation and compares it, at global batch 1024,
with the wafer alone at its best and with the sum of both sides alone. 7B, 13B and 35B beat the wafer; none reaches the
sum. The bandwidth that keeps the gain is several hundred MB/s to a few GB/s.

Here it is the fastest placement of Fig. 11 whose wafer takes a larger micro-batch than the GPUs. The sum is that of the
wafer's whole share as one batch and of the best the same GPUs do, in any number of pipelines and at any micro-batch.
The least bandwidth is found by bisection on the link: where the pipelines still are as fast as the wafer alone;
infinite where they are slower at any. Then GPUs of `AMPLE_GB` tell what the memory of the paper's withholds.
`replayed_samples_s` is the placement event by event, as in Fig. 8.
"""

from __future__ import annotations

import math
from typing import Any, Final

import altair as alt
import numpy as np
import pandas as pd

from dse.catalog import load_catalog

from .picture import BOUND, GPU, MIX, WSE
from .pp_fleet import SIZES, Layout, Scored, gpu_alone, hybrid, layout, space, wafer_alone
from .pp_placements import MICRO_BATCHES, memory_that_gives, placements
from .pp_replay import replayed_samples_s
from .setting import MODELS, PROFILE, with_memory
from .statement import Statement, nearest_that_holds

NAME: Final = "fig12"
GAINS: Final = ("7B", "13B", "35B")
"""Models for which the paper finds a gain over the wafer alone."""
LEAST_GB_S, MOST_GB_S = 0.2, 5.0
"""Several hundred MB/s to a few GB/s."""
SLOWEST_GB_S: Final = 1e-3
AMPLE_GB: Final = 80
"""Memory of the larger A100."""


def frame() -> pd.DataFrame:
    """One row for each model."""
    return pd.DataFrame(_row(model) for model in MODELS)


def _row(model: str) -> dict[str, Any]:
    at, (k, m, r, q) = layout(model), best_placement(model)
    link, wafer = link_gb_s(model), wafer_alone(model).samples_s
    whole, gpus = hybrid(at, k, micro_batch=m, pipelines=r, collect=q), _gpus(at)
    return {
        "model": model,
        "n_gpu": at.n_gpu,
        "stages": at.stages,
        "pipelines": r,
        "gpu_micro_batch": m,
        "wse_micro_batch": m * q,
        "offload_layers": k,
        "wse_of_full_rate": _of_full_rate(whole, q),
        "hybrid_samples_s": whole.samples_s,
        "replayed_samples_s": replayed_samples_s(at, k, micro_batch=m, pipelines=r, collect=q),
        "wse_samples_s": wafer,
        "gpu_samples_s": gpus,
        "aggregate_samples_s": gpus + wafer,
        "least_link_gb_s": _least_link_gb_s(model, None),
        "mean_link_gb_s": float(whole.row["link_use_frac"]) * link,
        "gain_from_gpu_gb": memory_that_gives(model, wafer) / 1e9,
        "ample_least_link_gb_s": _least_link_gb_s(model, AMPLE_GB * 1e9),
    }


def best_placement(model: str, gpu_memory_byte: float = 0.0) -> tuple[int, int, int, int]:
    """Layers, GPU micro-batch, pipelines and micro-batches collected of the fastest that gives the wafer a larger one.

    Should none fit, one of 0 samples/s.
    """
    found = placements(model, gpu_memory_byte)
    decoupled = found[found["collect"] > 1]
    best = decoupled.iloc[int(decoupled["samples_s"].argmax())]
    return (int(best["offload_layers"]), int(best["gpu_micro_batch"]), int(best["pipelines"]), int(best["collect"]))


def link_gb_s(model: str) -> float:
    """The link of the study."""
    return float(space(model).problem.links.byte_s[0]) / 1e9


def _least_link_gb_s(model: str, gpu_memory_byte: float | None) -> float:
    """Least bandwidth at which the best placement is as fast as the wafer alone; infinite where it never is."""
    k, m, r, q = best_placement(model, gpu_memory_byte or 0.0)
    gpu, wafer = with_memory(gpu_memory_byte) if gpu_memory_byte else None, wafer_alone(model).samples_s

    def keeps(gb_s: float) -> bool:
        found = hybrid(layout(model), k, micro_batch=m, pipelines=r, collect=q, link_gb_s=gb_s, gpu=gpu)
        return found.samples_s >= wafer

    least = nearest_that_holds(keeps, SLOWEST_GB_S, link_gb_s(model))
    return math.inf if math.isnan(least) else least


def _gpus(at: Layout) -> float:
    """The best that the same GPUs do without the wafer."""
    pipelines = [at.gpus_a_stage // g for g in SIZES if at.gpus_a_stage % g == 0]
    return max(gpu_alone(at, micro_batch=m, pipelines=r).samples_s for m in MICRO_BATCHES for r in pipelines)


def _of_full_rate(found: Scored, collect: int) -> float:
    """Share of a call to the wafer that is not fixed: its utilisation law, w/(w + w_half)."""
    fixed_s = 3.0 * load_catalog().device("wse-3", PROFILE).efficiency["train"].fixed_layer_s
    return 1.0 - fixed_s / (float(found.system["wafer_layer_s"]) * collect)


def judge(data: pd.DataFrame) -> list[Statement]:
    """Every statement about the figure."""
    rows = {str(row["model"]): row for _, row in data.iterrows()}
    of_sum = data.set_index("model")["hybrid_samples_s"] / data.set_index("model")["aggregate_samples_s"]
    least = data.set_index("model")["least_link_gb_s"]
    return [
        *(_beats(model, rows[model]) for model in GAINS),
        _seventy(rows["70B"]),
        Statement(
            figure=NAME,
            statement="none reaches the sum of both sides alone",
            passes=bool((of_sum < 1).all()),
            value=", ".join(f"{m} {share:.2f}" for m, share in of_sum.items()) + " of the sum",
            paper="do not reach the upper bound",
        ),
        Statement(
            figure=NAME,
            statement=f"the gain over the wafer needs {LEAST_GB_S:g} to {MOST_GB_S:g} GB/s, for every model",
            passes=bool(least.between(LEAST_GB_S, MOST_GB_S).all()),
            value=", ".join(f"{m} {s:.2g}" if math.isfinite(s) else f"{m} no gain" for m, s in least.items())
            + " GB/s, by bisection on the link; at full speed "
            + ", ".join(f"{row['mean_link_gb_s']:.1f}" for row in rows.values())
            + f" GB/s cross in the mean{_with_ample(rows)}",
            paper="several hundred MB/s to a few GB/s",
        ),
    ]


def _with_ample(rows: dict[str, pd.Series]) -> str:
    """The bandwidth that a gain would need where it takes more memory."""
    without = {m: row["ample_least_link_gb_s"] for m, row in rows.items() if math.isinf(row["least_link_gb_s"])}
    if not without:
        return ""
    needs = ", ".join(f"{m} {s:.2g}" if math.isfinite(s) else f"{m} no gain" for m, s in without.items())
    return f"; with A100s of {AMPLE_GB} GB {needs} GB/s"


def _placement(row: pd.Series) -> str:
    return (
        f"{row['pipelines']} pipelines of micro-batch {row['gpu_micro_batch']}, the wafer's {row['wse_micro_batch']} "
        f"({row['wse_of_full_rate']:.0%} of its full rate), {row['offload_layers']} layers of each stage on it"
    )


def _beats(model: str, row: pd.Series) -> Statement:
    gains, needs = bool(row["hybrid_samples_s"] > row["wse_samples_s"]), row["gain_from_gpu_gb"]
    missing = f"from {needs:.1f} GB a GPU on" if math.isfinite(needs) else "with no memory of the GPUs"
    return Statement(
        figure=NAME,
        statement=f"{model}: decoupled pipelines beat the wafer alone at its best",
        passes=gains,
        value=f"{row['hybrid_samples_s']:.2f} against {row['wse_samples_s']:.2f} samples/s (GPUs alone "
        f"{row['gpu_samples_s']:.2f}): {_placement(row)}; replayed {row['replayed_samples_s']:.2f}"
        + ("" if gains else f"; they would {missing}"),
        paper="higher throughput",
    )


def _seventy(row: pd.Series) -> Statement:
    """The paper lists three models that gain; of the fourth it says no more than that it is none of them."""
    faster = "which are faster" if row["gpu_samples_s"] > row["hybrid_samples_s"] else "which are slower"
    return Statement(
        figure=NAME,
        statement="70B: decoupled pipelines do not beat the wafer alone",
        passes=bool(row["hybrid_samples_s"] <= row["wse_samples_s"]),
        value=f"{row['hybrid_samples_s']:.2f} against {row['wse_samples_s']:.2f} samples/s (GPUs alone "
        f"{row['gpu_samples_s']:.2f}, {faster}): {_placement(row)}; replayed {row['replayed_samples_s']:.2f}",
        paper="not among those that gain",
    )


BARS: Final = {
    "hybrid_samples_s": ("decoupled pipelines", MIX),
    "wse_samples_s": ("WSE only", WSE),
    "gpu_samples_s": ("GPU only", GPU),
    "aggregate_samples_s": ("sum of both", BOUND),
}


def draw(data: pd.DataFrame) -> Any:
    """Throughput as bars, and the least bandwidth beside them."""
    names, colours = zip(*BARS.values(), strict=True)
    long = data.melt("model", list(BARS), "series", "samples_s")
    long["series"] = long["series"].map({key: name for key, (name, _) in BARS.items()})
    long["text"] = long["samples_s"].map("{:.1f}".format)
    replay = alt.Chart(data.assign(series=names[0]))
    top = alt.Scale(domain=[0, 1.08 * long["samples_s"].max()], nice=False)
    base = alt.Chart(long).encode(
        x=alt.X("model:N", sort=list(MODELS), title=None, axis=alt.Axis(labelAngle=0)),
        xOffset=alt.XOffset("series:N", sort=list(names)),
        y=alt.Y("samples_s:Q", title="Throughput [samples/s]", scale=top, axis=alt.Axis(tickCount=6)),
    )
    ticks = replay.mark_tick(color="#111111", thickness=2, size=26).encode(
        x=alt.X("model:N", sort=list(MODELS)),
        xOffset=alt.XOffset("series:N", sort=list(names)),
        y="replayed_samples_s:Q",
    )
    legend = alt.Legend(title=None, orient="top", symbolType="square")
    colour = alt.Color("series:N", scale=alt.Scale(domain=list(names), range=list(colours)), legend=legend)
    bars = base.mark_bar().encode(color=colour)
    numbers = base.mark_text(dy=-7, fontSize=11).encode(text="text:N")
    finite = np.isfinite(data["least_link_gb_s"])
    shown = data.assign(
        text=data["least_link_gb_s"].map("{:.2g}".format).where(finite, "none"),
        least_link_gb_s=data["least_link_gb_s"].where(finite, 0.0),
        gains=finite,
    )
    links = alt.Chart(shown).encode(
        x=alt.X("model:N", sort=list(MODELS), title=None, axis=alt.Axis(labelAngle=0)),
        y=alt.Y(
            "least_link_gb_s:Q",
            title="Least bandwidth [GB/s]",
            scale=alt.Scale(domain=[0, 4.5]),
            axis=alt.Axis(tickCount=4),
        ),
    )
    points = links.transform_filter("datum.gains").mark_point(filled=True, size=110, color="#cc79a7", opacity=1)
    return alt.hconcat(
        (bars + ticks + numbers).properties(width=560, height=280),
        (points + links.mark_text(dy=-14, fontSize=12).encode(text="text:N")).properties(width=190, height=280),
        spacing=30,
    )
