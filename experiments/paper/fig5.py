"""Fig. 5: data-parallel training on GPUs, a wafer, and both, over global batches 1 to 1024 (section 5.2).

The paper shows, for 7B, 13B, 35B and 70B, the step time of each side alone and of both with the best division of the
batch (as bars), their throughput, and the sum of the two alone as the bound. Two thresholds part three regimes: one
side alone is best; both gain; the gain is saturated. The numbers under the axes are read as the thresholds. Fig. 6
adds how the utilisation of each side rises with its batch.

Which fleet, and why: `dp_fleet`. Two verdicts rest on tolerances. Whole samples: a division may round to a few
percent above the sum at small batches, so 5 % are allowed. Thresholds lie on powers of two, so a factor of 2 is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import altair as alt
import pandas as pd

from .dp_fleet import Fleet, fleet
from .dp_what_if import NEAR_FULL, late_threshold_2, late_use
from .picture import BOUND, GPU, MIX, WSE, batch_axis
from .setting import MODELS
from .statement import Statement, within_factor

NAME: Final = "fig5"
PAPER_THRESHOLDS: Final[Mapping[str, tuple[int, int]]] = {
    "7B": (8, 256),
    "13B": (16, 512),
    "35B": (32, 1024),
    "70B": (32, 1024),
}
ROUNDING = 1.05
"""Of the sum of both sides alone: what whole samples may add at small batches."""
SATURATED = 0.95


def frame() -> pd.DataFrame:
    """One row for each model and global batch."""
    return pd.concat([_rows(model, fleet(model)) for model in MODELS], ignore_index=True)


def _rows(model: str, f: Fleet) -> pd.DataFrame:
    s = f.scaling
    samples = s.hybrid.samples
    return pd.DataFrame(
        {
            "model": model,
            "n_gpu": f.n_gpu,
            "n_wse": f.n_wse,
            "global_batch": s.batch.astype(int),
            "gpu_step_s": s.alone_s[:, 0],
            "wse_step_s": s.alone_s[:, 1],
            "hybrid_step_s": s.hybrid.step_s,
            "gpu_samples_s": s.batch / s.alone_s[:, 0],
            "wse_samples_s": s.batch / s.alone_s[:, 1],
            "hybrid_samples_s": s.samples_s,
            "aggregate_samples_s": s.aggregate_samples_s,
            "gpu_batch": samples[:, 0],
            "wse_batch": samples[:, 1],
            "threshold_1": s.threshold_1,
            "threshold_2": s.threshold_2,
        }
    )


def judge(data: pd.DataFrame) -> list[Statement]:
    """Every statement about the figure."""
    both = data[["gpu_batch", "wse_batch"]].min(axis=1) > 0
    of_sum = data["hybrid_samples_s"] / data["aggregate_samples_s"]
    early, late = data["global_batch"] < data["threshold_1"], data["global_batch"] >= data["threshold_2"]
    first = data.drop_duplicates("model").set_index("model")
    largest = data["global_batch"].max()
    regimes = (first["threshold_1"] > 1) & (first["threshold_1"] < first["threshold_2"])
    return [
        Statement(
            figure=NAME,
            statement="every model has three regimes: threshold 1 lies below threshold 2, both on the axis",
            passes=bool((regimes & (first["threshold_2"] <= largest)).all()),
            value=", ".join(f"{m} {_pair(r)}" for m, r in first.iterrows()),
            paper=", ".join(f"{m} {low} < {high}" for m, (low, high) in PAPER_THRESHOLDS.items()),
        ),
        *(_place(str(model), row) for model, row in first.iterrows()),
        _one_side(both, early),
        Statement(
            figure=NAME,
            statement="throughput of both together never exceeds the sum of each alone (5 % for whole samples)",
            passes=bool((of_sum <= ROUNDING).all()),
            value=f"at most {of_sum.max():.3f} of the sum",
            paper="bounded by the sum",
        ),
        Statement(
            figure=NAME,
            statement="from threshold 2 on throughput is within 5 % of the sum",
            passes=bool(late.any() and (of_sum[late] >= SATURATED).all()),
            value=f"{of_sum[late].min():.3f} to {of_sum[late].max():.3f} of the sum" if late.any() else "never",
            paper="approaches the bound",
        ),
        _settles(data),
        *(_fills(model, data[data["model"] == model]) for model in ("7B", "70B")),
    ]


def _one_side(both: pd.Series, early: pd.Series) -> Statement:
    one_side = early & ~both
    return Statement(
        figure=NAME,
        statement="below threshold 1 one side takes the whole batch, from it on both work",
        passes=bool((both == ~early).all()),
        value=f"one side at {int(one_side.sum())} of {int(early.sum())} batches below, "
        f"both at {int((both & ~early).sum())} of {int((~early).sum())} from it on",
        paper="g_j = 0 below, both active beyond",
    )


def _pair(row: pd.Series) -> str:
    return f"{row['threshold_1']:g} < {row['threshold_2']:g}"


def _place(model: str, row: pd.Series) -> Statement:
    """Where the thresholds lie; where threshold 2 is too early, what would move it."""
    want = PAPER_THRESHOLDS[model]
    passes = all(within_factor(float(row[f"threshold_{i + 1}"]), want[i], 2.0) for i in (0, 1))
    value = f"{row['threshold_1']:g} and {row['threshold_2']:g}"
    if float(row["threshold_2"]) < want[1] / 2:
        value += f"; {late_threshold_2(model, want[1])}"
    return Statement(
        figure=NAME,
        statement=f"{model}: the thresholds lie where the paper marks them (factor 2)",
        passes=passes,
        value=value,
        paper=f"{want[0]} and {want[1]}",
    )


def _settles(data: pd.DataFrame) -> Statement:
    """How far the GPUs' share of the batch moves between the thresholds, and beyond the second."""
    share = data["gpu_batch"] / data["global_batch"]
    late = data["global_batch"] >= data["threshold_2"]
    between = (data["global_batch"] >= data["threshold_1"]) & ~late
    moves, rests = (
        share[at].groupby(data["model"][at]).agg(lambda s: s.max() - s.min()).reindex(list(MODELS))
        for at in (between, late)
    )
    return Statement(
        figure=NAME,
        statement="the best division moves between the thresholds and settles beyond the second",
        passes=bool((rests < 0.5 * moves).all()),
        value=", ".join(f"{m} by {moves[m]:.2f}, then {rests[m]:.2f}" for m in moves.index),
        paper="changes substantially, then converges",
    )


def _fills(model: str, data: pd.DataFrame) -> Statement:
    """From which batch on the wafer is well used."""
    rate = data["wse_samples_s"] / data["wse_samples_s"].iloc[-1]
    first = int(data["global_batch"][rate >= NEAR_FULL].iloc[0])
    at_32 = float(rate[data["global_batch"] == 32].iloc[0])
    value = f"{at_32:.0%} of its rate at 1024 at batch 32; {NEAR_FULL:.0%} from {first} on"
    if first < 16:
        value += f"; {late_use(model, 32)}"
    return Statement(
        figure=NAME,
        statement=f"{model}: the wafer is not well used until its batch approaches 32 (Fig. 6)",
        passes=within_factor(first, 32.0, 2.0),
        value=value,
        paper="near 32",
    )


LINES: Final = ("GPU", "WSE", "both", "sum of both")
BATCH: Final = "Global batch [sequences]"


def draw(data: pd.DataFrame) -> Any:
    """Step time, division of the batch and throughput, a column for each model."""
    columns = [_column(model, data[data["model"] == model], first=model == "7B") for model in MODELS]
    return alt.concat(*(panel for row in zip(*columns, strict=True) for panel in row), columns=len(MODELS), spacing=14)


def _column(model: str, data: pd.DataFrame, *, first: bool) -> tuple[Any, Any, Any]:
    thresholds = data[["threshold_1", "threshold_2"]].head(1).melt(var_name="name", value_name="batch")
    rules = alt.Chart(thresholds).mark_rule(strokeDash=[3, 3], strokeWidth=1.5, color="#222222")
    rules = rules.encode(x=_batch("batch", BATCH))
    bare = rules.encode(x=_batch("batch"))
    names = alt.Chart(thresholds.assign(text=["T1", "T2"])).mark_text(align="left", dx=3, dy=8, fontSize=12)
    names = names.encode(x=_batch("batch"), y=alt.value(0), text="text:N")
    title = alt.Title(f"{model}: {data['n_gpu'].iloc[0]} A100 + {data['n_wse'].iloc[0]} WSE-3")
    times = _lines(data, "step_s", "Step time [s]" if first else None, alt.Scale(type="log"))
    rates = _lines(data, "samples_s", "Throughput [samples/s]" if first else None, alt.Scale(zero=True))
    shares = _shares(data, "Share of batch" if first else None)
    return (
        (times + bare + names).properties(width=210, height=190, title=title),
        (shares + bare).properties(width=210, height=90),
        (rates + rules).properties(width=210, height=190),
    )


def _batch(field: str, title: str | None = None) -> Any:
    return batch_axis(field, [2**k for k in range(11)], title=title)


def _coloured() -> Any:
    return alt.Scale(domain=list(LINES), range=[GPU, WSE, MIX, BOUND])


def _lines(data: pd.DataFrame, what: str, title: str | None, scale: Any) -> Any:
    """GPU, WSE, both, and (throughput) their sum, over the batch."""
    names = [f"{side}_{what}" for side in ("gpu", "wse", "hybrid", "aggregate") if f"{side}_{what}" in data]
    long = data.melt("global_batch", names, "series").replace({"series": dict(zip(names, LINES, strict=False))})
    style = {"sort": list(LINES), "legend": alt.Legend(title=None, symbolType="stroke", orient="top")}
    colour = alt.Color("series:N", scale=_coloured(), **style)
    dash = alt.StrokeDash("series:N", scale=alt.Scale(domain=list(LINES), range=[[1, 0]] * 3 + [[5, 3]]), **style)
    x = _batch("global_batch", BATCH if what == "samples_s" else None)
    ticks = {"values": [0.1, 1, 10, 100, 1000], "format": "~g"} if what == "step_s" else {"tickCount": 5}
    y = alt.Y("value:Q", title=title, scale=scale, axis=alt.Axis(minExtent=34, **ticks))
    return alt.Chart(long).mark_line(point=alt.OverlayMarkDef(size=28)).encode(x=x, y=y, color=colour, strokeDash=dash)


def _shares(data: pd.DataFrame, title: str | None) -> Any:
    """The division of the batch as bars."""
    low, high = data["global_batch"] / 2**0.42, data["global_batch"] * 2**0.42
    gpu = data["gpu_batch"] / data["global_batch"]
    bars = pd.concat(
        [
            pd.DataFrame({"low": low, "high": high, "from": 0.0, "to": gpu, "series": "GPU"}),
            pd.DataFrame({"low": low, "high": high, "from": gpu, "to": 1.0, "series": "WSE"}),
        ]
    )
    y = alt.Y("from:Q", title=title, scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(minExtent=34, tickCount=2))
    colour = alt.Color("series:N", scale=_coloured())
    return alt.Chart(bars).mark_rect(opacity=0.75).encode(x=_batch("low"), x2="high", y=y, y2="to", color=colour)
