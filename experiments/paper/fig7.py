"""Fig. 7: the least bandwidth between GPUs and wafer at which training on both gains (section 5.2, hardware layer).

The paper draws it for 7B, 13B, 35B and 70B over global batches 8 to 1024, between 0 and 160 GB/s, falling with the
batch. Here it is the bandwidth at which both together are exactly as fast as the better one alone, in closed form
(`dse.model.dp_thresholds`); the link of the study plays no part. Fleet as in Fig. 5: `dp_fleet`.

Where no bandwidth would do, because one side alone is faster even with a link that costs no time, the least bandwidth
is infinite. Such batches are in the data and left out of the picture; at those that the paper draws there are none.
"""

from __future__ import annotations

import math
from typing import Any, Final

import altair as alt
import numpy as np
import pandas as pd

from .dp_fleet import Fleet, fleet
from .dp_what_if import slack_link
from .picture import BOUND, GPU, MIX, WSE, batch_axis
from .setting import MODELS
from .statement import Statement

NAME: Final = "fig7"
SMALLEST_BATCH = 8
"""Where the paper's axis starts."""
PAPER_MOST_GB_S = 160.0
"""Top of the paper's axis."""


def frame() -> pd.DataFrame:
    """One row for each model and global batch."""
    return pd.concat([_rows(model, fleet(model)) for model in MODELS], ignore_index=True)


def _rows(model: str, f: Fleet) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "model": model,
            "n_gpu": f.n_gpu,
            "n_wse": f.n_wse,
            "global_batch": f.scaling.batch.astype(int),
            "least_link_gb_s": f.scaling.least_link_byte_s / 1e9,
        }
    )


def judge(data: pd.DataFrame) -> list[Statement]:
    """Every statement about the figure."""
    drawn = data[data["global_batch"] >= SMALLEST_BATCH]
    by_model = {str(m): rows["least_link_gb_s"].to_numpy() for m, rows in drawn.groupby("model", sort=False)}
    below = data.loc[np.isinf(data["least_link_gb_s"]), "global_batch"]
    falls = [bool((np.diff(values) <= 0).all()) for values in by_model.values()]
    return [
        Statement(
            figure=NAME,
            statement=f"from batch {SMALLEST_BATCH} on some bandwidth makes both together gain, for every model",
            passes=bool(np.isfinite(drawn["least_link_gb_s"]).all()),
            value=f"finite at all {len(drawn)} batches from {SMALLEST_BATCH} on; "
            f"infinite at {len(below)} batches, the largest {below.max()}",
            paper=f"drawn from {SMALLEST_BATCH} on",
        ),
        Statement(
            figure=NAME,
            statement="the least bandwidth falls with the global batch",
            passes=all(falls),
            value=f"falls at every step for {sum(falls)} of {len(falls)} models",
            paper="gradually decreases",
        ),
        *(_range(model, values) for model, values in by_model.items()),
    ]


def _range(model: str, values: np.ndarray) -> Statement:
    passes = bool(values.max() <= PAPER_MOST_GB_S)
    value = f"{values.max():.0f} down to {values.min():.1f} GB/s"
    if not passes and math.isfinite(values.max()):
        value += f"; at batch {SMALLEST_BATCH} it is {slack_link(model, SMALLEST_BATCH, PAPER_MOST_GB_S)}"
    return Statement(
        figure=NAME,
        statement=f"{model}: between 0 and {PAPER_MOST_GB_S:.0f} GB/s from batch {SMALLEST_BATCH} to 1024",
        passes=passes,
        value=value,
        paper=f"0 to {PAPER_MOST_GB_S:.0f} GB/s",
    )


def draw(data: pd.DataFrame) -> Any:
    """One line for each model, and the top of the paper's axis."""
    drawn = data[(data["global_batch"] >= SMALLEST_BATCH) & np.isfinite(data["least_link_gb_s"])]
    look: dict[str, Any] = {"sort": list(MODELS), "title": "Model"}
    lines = (
        alt.Chart(drawn)
        .mark_line(point=alt.OverlayMarkDef(size=60))
        .encode(
            x=batch_axis("global_batch", [2**k for k in range(3, 11)], title="Global batch [sequences]"),
            y=alt.Y("least_link_gb_s:Q", title="Least bandwidth [GB/s]", axis=alt.Axis(tickCount=6)),
            color=alt.Color("model:N", scale=alt.Scale(domain=list(MODELS), range=[GPU, WSE, MIX, BOUND]), **look),
            shape=alt.Shape("model:N", scale=alt.Scale(domain=list(MODELS)), **look),
        )
    )
    top = alt.Chart(pd.DataFrame({"y": [PAPER_MOST_GB_S]})).mark_rule(strokeDash=[5, 4], color="#777777")
    words = top.mark_text(align="right", dy=-8, dx=-4, fontSize=12, color="#555555", text="top of the paper's axis")
    return (lines + top.encode(y="y") + words.encode(y="y", x=alt.value(520))).properties(width=520, height=320)
