"""Fig. 12: the best decoupled pipelines against the wafer alone, and the bandwidth they need (section 5.3.1).

For each model the paper takes a feasible placement with high WSE utilisation and compares it, at global batch 1024,
with the wafer alone at its best and with the sum of both sides alone. 7B, 13B and 35B beat the wafer; none reaches the
sum. The bandwidth that keeps the gain is several hundred MB/s to a few GB/s.

Here it is the fastest placement of Fig. 11 whose wafer takes a larger micro-batch than the GPUs. The sum is that of the
wafer's whole share as one batch and of the best the same GPUs do, in any number of pipelines and at any micro-batch.
The least bandwidth is found by bisection on the link: where the pipelines still are as fast as the wafer alone.
`replayed_samples_s` is the placement in plain 1F1B order, as in Fig. 8.
"""

from __future__ import annotations

from typing import Any, Final

import altair as alt
import pandas as pd

from dse.catalog import load_catalog

from .picture import BOUND, GPU, MIX, WSE
from .pp_fleet import SIZES, Layout, Scored, gpu_alone, hybrid, layout, space, wafer_alone
from .pp_placements import FEASIBLE, MICRO_BATCHES, placements
from .pp_replay import replayed_samples_s
from .setting import MODELS
from .statement import Statement, nearest_that_holds

NAME: Final = "fig12"
GAINS: Final = ("7B", "13B", "35B")
"""Models for which the paper finds a gain over the wafer alone."""
LEAST_GB_S, MOST_GB_S = 0.2, 5.0
"""Several hundred MB/s to a few GB/s."""
SLOWEST_GB_S: Final = 1e-3


def frame() -> pd.DataFrame:
    """One row for each model."""
    return pd.DataFrame(_row(model) for model in MODELS)


def _row(model: str) -> dict[str, Any]:
    at = layout(model)
    found = placements(model)
    decoupled = found[(found["verdict"] == FEASIBLE) & (found["collect"] > 1)]
    best = decoupled.iloc[int(decoupled["samples_s"].argmax())]
    k, m, r, q = (int(best[name]) for name in ("offload_layers", "gpu_micro_batch", "pipelines", "collect"))

    def with_link(gb_s: float) -> Scored:
        return hybrid(at, k, micro_batch=m, pipelines=r, collect=q, link_gb_s=gb_s)

    link = float(space(model).problem.links.byte_s[0]) / 1e9
    whole, gpus, wafer = with_link(link), _gpus(at), wafer_alone(model).samples_s
    least = nearest_that_holds(lambda s: with_link(s).samples_s >= wafer, SLOWEST_GB_S, link)
    return {
        "model": model,
        "n_gpu": at.n_gpu,
        "stages": at.stages,
        "pipelines": r,
        "gpu_micro_batch": m,
        "wse_micro_batch": int(best["wse_micro_batch"]),
        "offload_layers": k,
        "wse_of_full_rate": _of_full_rate(whole, q),
        "hybrid_samples_s": whole.samples_s,
        "replayed_samples_s": replayed_samples_s(at, k, micro_batch=m, pipelines=r, collect=q),
        "wse_samples_s": wafer,
        "gpu_samples_s": gpus,
        "aggregate_samples_s": gpus + wafer,
        "least_link_gb_s": least,
        "mean_link_gb_s": float(whole.row["link_use_frac"]) * link,
    }


def _gpus(at: Layout) -> float:
    """The best that the same GPUs do without the wafer."""
    pipelines = [at.gpus_a_stage // g for g in SIZES if at.gpus_a_stage % g == 0]
    return max(gpu_alone(at, micro_batch=m, pipelines=r).samples_s for m in MICRO_BATCHES for r in pipelines)


def _of_full_rate(found: Scored, collect: int) -> float:
    """Share of a call to the wafer that is not fixed: its utilisation law, w/(w + w_half)."""
    fixed_s = 3.0 * load_catalog().device("wse-3").efficiency["train"].fixed_layer_s
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
            value=", ".join(f"{m} {s:.2g}" for m, s in least.items())
            + " GB/s, by bisection on the link; at full speed "
            + ", ".join(f"{row['mean_link_gb_s']:.1f}" for row in rows.values())
            + " GB/s cross in the mean",
            paper="several hundred MB/s to a few GB/s",
        ),
    ]


def _placement(row: pd.Series) -> str:
    return (
        f"{row['pipelines']} pipelines of micro-batch {row['gpu_micro_batch']}, the wafer's {row['wse_micro_batch']} "
        f"({row['wse_of_full_rate']:.0%} of its full rate), {row['offload_layers']} layers of each stage on it"
    )


def _beats(model: str, row: pd.Series) -> Statement:
    return Statement(
        figure=NAME,
        statement=f"{model}: decoupled pipelines beat the wafer alone at its best",
        passes=bool(row["hybrid_samples_s"] > row["wse_samples_s"]),
        value=f"{row['hybrid_samples_s']:.1f} against {row['wse_samples_s']:.1f} samples/s (GPUs alone "
        f"{row['gpu_samples_s']:.1f}): {_placement(row)}; replayed as 1F1B {row['replayed_samples_s']:.1f}",
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
        f"{row['gpu_samples_s']:.2f}, {faster}): {_placement(row)}; replayed as 1F1B {row['replayed_samples_s']:.2f}",
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
    links = alt.Chart(data.assign(text=data["least_link_gb_s"].map("{:.2g}".format))).encode(
        x=alt.X("model:N", sort=list(MODELS), title=None, axis=alt.Axis(labelAngle=0)),
        y=alt.Y(
            "least_link_gb_s:Q",
            title="Least bandwidth [GB/s]",
            scale=alt.Scale(domain=[0, 4.5]),
            axis=alt.Axis(tickCount=4),
        ),
    )
    points = links.mark_point(filled=True, size=110, color="#cc79a7", opacity=1)
    return alt.hconcat(
        (bars + ticks + numbers).properties(width=560, height=280),
        (points + links.mark_text(dy=-14, fontSize=12).encode(text="text:N")).properties(width=190, height=280),
        spacing=30,
    )
