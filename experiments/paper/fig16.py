"""Fig. 16: how many GPUs keep one wafer busy, over input and output lengths (section 5.4).

The paper maps the optimal ratio for Llama-7B and Llama-70B over {128, 256, 512, 1K, 2K, 4K, 6K, 8K} tokens in and out,
with a legend from 50:1 to 1:20. Here it is the requests/s that one wafer decodes over those that one GPU prefills.
Fleet: `pd_fleet`. The legend's steps are factors of 2 and 2.5, so its ends are met within a factor of 2.
"""

from __future__ import annotations

import math
from typing import Any, Final

import altair as alt
import numpy as np
import pandas as pd

from dse.catalog import load_catalog

from .pd_fleet import PAIRS, TOKENS, optimal_ratio, ratio_text
from .picture import heat_map, tokens_text
from .setting import PROFILE, with_efficiency
from .statement import Statement, nearest_that_holds, within_factor

NAME: Final = "fig16"
PAPER_MOST, PAPER_LEAST = 50.0, 1 / 20
STEP = 0.1
"""What whole batches may move the ratio the other way between two lengths."""
FASTEST_TAU_S = 1e-8


def frame() -> pd.DataFrame:
    """One row for each model and request shape."""
    return pd.DataFrame(
        {
            "model": model,
            "input_tokens": n,
            "output_tokens": o,
            "gpu_per_wse": optimal_ratio(pair, n, o),
        }
        for model, pair in PAIRS.items()
        for n in TOKENS
        for o in TOKENS
    )


def judge(data: pd.DataFrame) -> list[Statement]:
    """Every statement about the figure."""
    return [s for model, rows in data.groupby("model", sort=False) for s in _judged(str(model), rows)]


def _judged(model: str, rows: pd.DataFrame) -> list[Statement]:
    ratio = rows.pivot(index="input_tokens", columns="output_tokens", values="gpu_per_wse")
    least, most = float(ratio.min().min()), float(ratio.max().max())
    with_input, with_output = _backwards(ratio.to_numpy()), _backwards(ratio.to_numpy().T[::-1])
    return [
        Statement(
            figure=NAME,
            statement=f"{model}: most GPUs a wafer, about 50:1 (factor 2)",
            passes=within_factor(most, PAPER_MOST, 2.0),
            value=f"{ratio_text(most)} at {_where(rows, most)}",
            paper="50:1",
        ),
        Statement(
            figure=NAME,
            statement=f"{model}: fewest GPUs a wafer, about 1:20 (factor 2)",
            passes=within_factor(least, PAPER_LEAST, 2.0),
            value=f"{ratio_text(least)} at {_where(rows, least)}{_what_if(model, rows, least)}",
            paper="1:20",
        ),
        Statement(
            figure=NAME,
            statement=f"{model}: longer inputs ask for more GPUs (10 % for steps of whole batches)",
            passes=with_input <= STEP and bool((ratio.iloc[-1] > ratio.iloc[0]).all()),
            value=f"rises for every output; largest step back {with_input:.1%}",
            paper="moves to GPUs",
        ),
        Statement(
            figure=NAME,
            statement=f"{model}: longer outputs ask for more wafers (10 % for steps of whole batches)",
            passes=with_output <= STEP and bool((ratio.iloc[:, -1] < ratio.iloc[:, 0]).all()),
            value=f"falls for every input; largest step back {with_output:.1%}",
            paper="moves to WSEs",
        ),
    ]


def _backwards(ratio: np.ndarray) -> float:
    """Largest share by which rows that should rise fall from one to the next."""
    return max(0.0, float((1.0 - ratio[1:] / ratio[:-1]).max()))


def _where(rows: pd.DataFrame, ratio: float) -> str:
    row = rows[rows["gpu_per_wse"] == ratio].iloc[0]
    return f"{tokens_text(int(row['input_tokens']))} in, {tokens_text(int(row['output_tokens']))} out"


def _what_if(model: str, rows: pd.DataFrame, least: float) -> str:
    """The wafer's fixed time in decode at which the smallest ratio is the paper's, where it is too small."""
    if within_factor(least, PAPER_LEAST, 2.0):
        return ""
    row, now = rows[rows["gpu_per_wse"] == least].iloc[0], load_catalog().device("wse-3", PROFILE).efficiency["decode"]
    shape = int(row["input_tokens"]), int(row["output_tokens"])

    def holds(fixed_layer_s: float) -> bool:
        wafer = with_efficiency("decode", fixed_layer_s=fixed_layer_s)
        return optimal_ratio(PAIRS[model], *shape, wse=wafer) >= PAPER_LEAST

    tau = nearest_that_holds(holds, now.fixed_layer_s, FASTEST_TAU_S)
    if math.isnan(tau):
        return ""
    return f"; 1:20 with {tau * 1e6:.2g} us a layer fixed in decode on the wafer instead of {now.fixed_layer_s * 1e6:g}"


def draw(data: pd.DataFrame) -> Any:
    """A heat map for each model, purple where GPUs are many, orange where wafers are."""
    shown = data.assign(
        input=data["input_tokens"].map(tokens_text),
        output=data["output_tokens"].map(tokens_text),
        text=data["gpu_per_wse"].map(ratio_text),
        decades=np.log10(data["gpu_per_wse"]),
    )
    reach = float(shown["decades"].abs().max())
    legend = alt.Legend(
        title="GPU : WSE",
        values=[float(np.log10(r)) for r in (0.02, 0.05, 0.1, 0.25, 1, 4, 10, 20, 50)],
        labelExpr="datum.value >= 0 ? format(pow(10, datum.value), '.2~g') + ':1'"
        " : '1:' + format(pow(10, -datum.value), '.2~g')",
        gradientLength=280,
    )
    maps = [
        heat_map(shown[shown["model"] == model], TOKENS, "decades", reach, legend, f"Llama-2-{model}")
        for model in PAIRS
    ]
    return alt.hconcat(*maps, spacing=30)
