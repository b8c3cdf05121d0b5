"""Fig. 17: one fixed ratio of GPUs to wafers against the sum of both sides alone, over request shapes (section 5.4).

The paper fixes the ratio that suits requests of 1K in and 1K out, and marks for which other shapes disaggregated
serving (GPUs prefill, wafers decode) beats GPUs and wafers that each serve requests whole. It does for some shapes and
not for others, and more so for 70B than for 7B.

Fleet: `pd_fleet`; ten instances of wafers, and the whole number of GPU instances nearest the ratio of Fig. 16.
How 7B and 70B compare hangs on the memory of a GPU instance, since GPUs alone decode as many requests at once as it
holds. The smallest instance of 40 GB cards (the paper's table 2) is judged and drawn: four of them hold the weights of
70B and little else, so GPUs alone serve it badly. The data have cards of 80 GB, and instances of eight, beside it.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any, Final

import altair as alt
import numpy as np
import pandas as pd

from .pd_fleet import A100_40, A100_80, PAIRS, TOKENS, Pair, design, optimal_ratio
from .picture import heat_map, tokens_text
from .statement import Statement

NAME: Final = "fig17"
SUITED: Final = (1024, 1024)
"""The shape whose best ratio is fixed."""
WAFER_INSTANCES = 10


VARIANTS: Final[tuple[tuple[str, Pair], ...]] = (
    *PAIRS.items(),
    *((model, replace(pair, gpu=A100_80)) for model, pair in PAIRS.items()),
    ("70B", replace(PAIRS["70B"], gpu_size=8)),
)
"""Judged and drawn are the first two; the others show what the comparison of the models hangs on."""


def frame() -> pd.DataFrame:
    """One row for each model, kind of GPU instance, and request shape."""
    return pd.concat([_rows(model, pair) for model, pair in VARIANTS], ignore_index=True)


def _rows(model: str, pair: Pair) -> pd.DataFrame:
    n_wse = WAFER_INSTANCES * pair.wse_size
    n_gpu = max(1, round(optimal_ratio(pair, *SUITED) * n_wse / pair.gpu_size)) * pair.gpu_size
    rows = []
    for n, o in product(TOKENS, TOKENS):
        row = design(pair, n, o, n_gpu=n_gpu, n_wse=n_wse)
        rows.append(
            {
                "model": model,
                "gpu": pair.gpu,
                "gpu_instance_size": pair.gpu_size,
                "n_gpu": n_gpu,
                "n_wse": n_wse,
                "input_tokens": n,
                "output_tokens": o,
                "hybrid_tok_s": row["throughput_tok_s"],
                "aggregate_tok_s": row["throughput_tok_s"] / row["complementarity"],
                "complementarity": row["complementarity"],
            }
        )
    return pd.DataFrame(rows)


def _of_pairs(data: pd.DataFrame) -> pd.DataFrame:
    """What is judged and drawn: the smallest instances of 40 GB cards."""
    sizes = data["model"].map({model: pair.gpu_size for model, pair in PAIRS.items()})
    return data[(data["gpu"] == A100_40) & (data["gpu_instance_size"] == sizes)]


def judge(data: pd.DataFrame) -> list[Statement]:
    """Every statement about the figure."""
    judged = _of_pairs(data)
    suited = judged[(judged["input_tokens"] == SUITED[0]) & (judged["output_tokens"] == SUITED[1])]
    variants = ["gpu", "gpu_instance_size", "model"]
    shares = data["complementarity"].gt(1.0).groupby([data[v] for v in variants]).mean()
    means = data.groupby(variants)["complementarity"].mean()
    return [
        *(_some(model, judged[judged["model"] == model]) for model in PAIRS),
        Statement(
            figure=NAME,
            statement="at the shape that the ratio suits, both together beat the sum",
            passes=bool((suited["complementarity"] > 1).all()),
            value=", ".join(f"{r.model} {r.complementarity:.2f} of the sum" for r in suited.itertuples()),
            paper="above the sum",
        ),
        Statement(
            figure=NAME,
            statement="70B gains at more shapes than 7B",
            passes=bool(shares[A100_40, 4, "70B"] > shares[A100_40, 1, "7B"]),
            value=_compared(shares, "{:.0%}"),
            paper="larger opportunity for 70B",
        ),
        Statement(
            figure=NAME,
            statement="both together reach more of the sum for 70B than for 7B, in the mean over the shapes",
            passes=bool(means[A100_40, 4, "70B"] > means[A100_40, 1, "7B"]),
            value=_compared(means, "{:.2f}"),
            paper="stronger complementarity for 70B",
        ),
    ]


def _compared(values: pd.Series, form: str) -> str:
    """70B against 7B, and how that changes with the memory of a GPU instance."""
    large, small = f"70B {form}", f"7B {form}"
    return "; ".join(
        [
            f"{large}, {small}".format(values[A100_40, 4, "70B"], values[A100_40, 1, "7B"]),
            f"with A100s of 80 GB {large}, {small}".format(values[A100_80, 4, "70B"], values[A100_80, 1, "7B"]),
            f"with eight of 40 GB an instance {large}".format(values[A100_40, 8, "70B"]),
        ]
    )


def _some(model: str, rows: pd.DataFrame) -> Statement:
    above = int((rows["complementarity"] > 1).sum())
    first = rows.iloc[0]
    return Statement(
        figure=NAME,
        statement=f"{model}: one fixed ratio beats the sum for some shapes and not for others",
        passes=0 < above < len(rows),
        value=f"for {above} of {len(rows)}, with {first['n_gpu']} A100 and {first['n_wse']} WSE-3; "
        f"{rows['complementarity'].min():.2f} to {rows['complementarity'].max():.2f} of the sum",
        paper="some above, some below",
    )


def draw(data: pd.DataFrame) -> Any:
    """A heat map for each model of throughput over the sum, white at 1."""
    shown = _of_pairs(data).assign(
        input=lambda d: d["input_tokens"].map(tokens_text),
        output=lambda d: d["output_tokens"].map(tokens_text),
        text=lambda d: d["complementarity"].map("{:.2f}".format),
        octaves=lambda d: np.log2(d["complementarity"]),
    )
    reach = float(shown["octaves"].abs().max())
    legend = alt.Legend(
        title="Both / sum",
        values=[float(np.log2(r)) for r in (0.6, 0.7, 0.8, 0.9, 1, 1.2, 1.4, 1.6)],
        labelExpr="format(pow(2, datum.value), '.2~g')",
        gradientLength=280,
    )
    maps = []
    for model in PAIRS:
        rows = shown[shown["model"] == model]
        title = f"Llama-2-{model}: {rows['n_gpu'].iloc[0]} A100 : {rows['n_wse'].iloc[0]} WSE-3"
        maps.append(heat_map(rows, TOKENS, "octaves", reach, legend, title))
    return alt.hconcat(*maps, spacing=30)
