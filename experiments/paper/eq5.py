"""Eq. (5) against the derived eta: alpha fitted from scored designs, judged on models, pairs and ratios never seen.

The paper validates its calibrated model on settings that it was not calibrated at, and gives the error of throughput
(section 7.2): median 6.8 % and 90th percentile 13.4 % in data parallel, 8.2 and 16.4 % in prefill/decode. Here eta is
derived for every design, so eq. (5) can be held against it: `eq5_designs` makes the designs, `eq5_forms` fits alpha.
A pool's throughput goes with 1/(1 + eta), so misses are those of 1 + eta, relative.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import altair as alt
import numpy as np
import pandas as pd

from .eq5_designs import GLOBAL_BATCHES, GPUS, REQUESTS, WAFERS, Pair, designs, pairs_of
from .eq5_forms import BARE, CHOSEN, FORMS, column, errors, held_out_groups, with_fits, worst_held_out
from .picture import GPU, WSE
from .setting import MODELS
from .statement import Statement

NAME: Final = "eq5"
PAPER_ERROR: Final[Mapping[str, tuple[float, float]]] = {"dp_training": (0.068, 0.134), "pd_serving": (0.082, 0.164)}
"""Median and 90th percentile that the paper gives for its calibrated model under unseen settings."""
OF_LOAD = "in proportion to the shortfall of load"
CLAIMS: Final = (
    ("constant", "constant", "dp_training", "gpu+wafer"),
    ("split", "any function of w1:w2 alone", "dp_training", "gpu+wafer"),
    (CHOSEN, OF_LOAD, "dp_training", "gpu+wafer"),
    (CHOSEN, OF_LOAD, "dp_training", "gpu+gpu"),
    (CHOSEN, OF_LOAD, "pd_serving", "gpu+wafer"),
    (CHOSEN, OF_LOAD, "pd_serving", "gpu+gpu"),
)
"""Form, its words, paradigm, kind of pair."""
WORDS: Final[Mapping[str, str]] = {
    "dp_training": "data parallel",
    "pd_serving": "prefill/decode",
    "gpu+wafer": "GPU + wafer",
    "gpu+gpu": "two kinds of GPU",
}
AT_BEST = 0.1
"""eta that whole samples on whole replicas may leave at the best split of the largest batch."""
WHAT: Final = ["paradigm", "kind", "pair", "pool", "n", "ratio", "model", "workload", "work_frac", "best_frac", "eta"]
DRAWN: Final = 70
"""Points of each panel and set at most: enough to see where they lie."""


def frame(
    pairs: Sequence[Pair] = tuple(pairs_of(GPUS, WAFERS)),
    models: Sequence[str] = tuple(MODELS.values()),
    global_batches: Sequence[int] = GLOBAL_BATCHES,
    requests: Sequence[tuple[int, int]] = REQUESTS,
) -> pd.DataFrame:
    """One row for each pool that waits: its derived eta, and what each form of alpha gives."""
    fitted = with_fits(designs(pairs, models, global_batches, requests))
    kept = [*WHAT, *held_out_groups(fitted), *(column(form) for form in FORMS)]
    return fitted.loc[fitted["eta"] > 0, kept].reset_index(drop=True).round(6)


def judge(data: pd.DataFrame) -> list[Statement]:
    """What the paper says of eq. (5), beside what scored designs give: the worst of the held-out groups."""
    table = errors(data)
    return [_best_split(data), *(_claimed(table, *claim) for claim in CLAIMS), _asymmetries(table)]


def _claimed(table: pd.DataFrame, form: str, words: str, paradigm: str, kind: str) -> Statement:
    (median, p90), most = worst_held_out(table, paradigm, kind, form), PAPER_ERROR[paradigm]
    return Statement(
        figure=NAME,
        statement=f"{WORDS[paradigm]}, {WORDS[kind]}: eq. (5), alpha {words}, gives 1 + eta within the paper's error",
        passes=median <= most[0] and p90 <= most[1],
        value=_both_percent(median, p90),
        paper=f"{_both_percent(*most)} of throughput",
    )


def _both_percent(median: float, p90: float) -> str:
    return f"median {median:.1%}, 90th percentile {p90:.1%}"


def _best_split(data: pd.DataFrame) -> Statement:
    """At the best split eta is what whole samples on whole replicas leave: the less, the larger the batch."""
    at_best = np.abs(data["work_frac"] - data["best_frac"]) < 1e-9
    waits = data[at_best & (data["paradigm"] == "dp_training") & (data["kind"] == "gpu+wafer")]
    p90 = {int(str(b)): float(rows["eta"].quantile(0.9)) for b, rows in waits.groupby("workload")}
    value = ", ".join(f"{p90[b]:.2f} at batch {b}" for b in sorted(p90))
    return Statement(
        figure=NAME,
        statement=f"data parallel, GPU + wafer: at the optimal split eta = 0, within {AT_BEST:g} at the largest batch",
        passes=p90[max(p90)] <= AT_BEST,
        value=f"90th percentile of the pool that waits: {value}",
        paper="eta = 0",
    )


def _asymmetries(table: pd.DataFrame) -> Statement:
    """Whether the four differences tell more than the split does by itself."""
    paired, bare = (worst_held_out(table, "dp_training", "gpu+wafer", form) for form in (CHOSEN, BARE))
    return Statement(
        figure=NAME,
        statement="data parallel, GPU + wafer: the differences in P, B, C, M tell more of eta than the shortfall of "
        "load alone",
        passes=paired[0] < bare[0] and paired[1] < bare[1],
        value=f"with them {_both_percent(*paired)}; without {_both_percent(*bare)}",
        paper="eta is a sum over P, B, C, M",
    )


def draw(data: pd.DataFrame) -> Any:
    """Fitted against derived 1 + eta for each paradigm and kind of pair: designs fitted, and designs never seen."""
    panels = [_panel(paradigm, kind, data) for paradigm in PAPER_ERROR for kind in ("gpu+wafer", "gpu+gpu")]
    return alt.concat(*panels, columns=2, spacing=28)


def _panel(paradigm: str, kind: str, data: pd.DataFrame) -> Any:
    rows = data[(data["paradigm"] == paradigm) & (data["kind"] == kind)]
    unseen = np.logical_or.reduce(list(held_out_groups(rows).values()))
    points = pd.DataFrame(
        {
            "derived": 1.0 + rows["eta"],
            "fitted": 1.0 + rows[column(CHOSEN)],
            "designs": np.where(unseen, "never seen", "fitted"),
        }
    )
    points = pd.concat([_thinned(part) for _, part in points.groupby("designs")])
    top = float(np.ceil(points[["derived", "fitted"]].to_numpy().max()))
    scale = alt.Scale(type="log", domain=[1.0, top], nice=False)
    axis = alt.Axis(values=[v for v in (1, 1.5, 2, 3, 4, 6, 10, 20, 40) if v <= top], format="~g")
    look: dict[str, Any] = {"title": "Designs", "sort": ["fitted", "never seen"]}
    marks = alt.Chart(points).mark_point(size=22, opacity=0.75, strokeWidth=1.3)
    return alt.layer(
        *_guides(top, PAPER_ERROR[paradigm][1]),
        marks.encode(
            x=alt.X("derived:Q", scale=scale, axis=axis, title="1 + eta, derived"),
            y=alt.Y("fitted:Q", scale=scale, axis=axis, title="1 + eta, fitted"),
            color=alt.Color("designs:N", scale=alt.Scale(domain=look["sort"], range=[GPU, WSE]), **look),
            shape=alt.Shape("designs:N", scale=alt.Scale(domain=look["sort"], range=["circle", "cross"]), **look),
        ),
    ).properties(width=300, height=260, title=f"{WORDS[paradigm]}, {WORDS[kind]}")


def _thinned(points: pd.DataFrame) -> pd.DataFrame:
    """Every n-th point in the order of the derived eta."""
    return points.sort_values("derived").iloc[:: -(-len(points) // DRAWN)]


def _guides(top: float, share: float) -> list[Any]:
    """Where both agree, and the paper's 90th percentile either way."""
    lines = []
    for factor, dash in ((1.0, [1, 0]), (1.0 + share, [4, 3]), (1.0 - share, [4, 3])):
        ends = np.array([max(1.0, 1.0 / factor), min(top, top / factor)])
        line = alt.Chart(pd.DataFrame({"x": ends, "y": ends * factor}))
        lines.append(line.mark_line(color="#777777", strokeDash=dash, strokeWidth=1).encode(x="x:Q", y="y:Q"))
    return lines
