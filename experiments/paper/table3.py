"""Table 3: KV cache that leaves prefilling GPUs, per device, node of 4 and cluster of 32 (section 5.4).

The paper takes peak prefill throughput times the KV cache of a token, so the bandwidth that decoding elsewhere needs at
least: 6.55, 26.2 and 209.6 GB/s for 7B, 4.6, 18.8 and 150.4 GB/s for 70B. 7B follows from 12,500 tokens/s a GPU. 70B
follows, at about 1,790 tokens/s a GPU, only if each of its 64 heads has its own keys and values. Llama-2-70B has eight
sets for all heads, so needs an eighth. (Four devices at 4.6 make 18.4; node and cluster agree on 4.7 a device.)

Fleet: `pd_fleet`, with GPUs of 80 GB for 70B: with all heads' keys and values it has 78 B parameters, and four cards of
40 GB do not hold them. Ours is the best of the lengths 128 to 8K. A tenth either way is allowed, the accuracy that
serving models reach on hardware they were not fitted to.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import altair as alt
import pandas as pd

from dse.catalog import load_catalog

from .pd_fleet import A100_80, PAIRS, TOKENS, Pair, design
from .picture import GPU, WSE
from .setting import PROFILE, Change, with_efficiency
from .statement import Statement, nearest_that_holds

NAME: Final = "table3"
DEVICES: Final[Mapping[str, int]] = {"device": 1, "node": 4, "cluster": 32}
PAPER_GB_S: Final[Mapping[str, tuple[float, float, float]]] = {"7B": (6.55, 26.2, 209.6), "70B": (4.6, 18.8, 150.4)}
PAPER_TOK_S: Final[Mapping[str, float]] = {"7B": 12500.0, "70B": 1790.0}
"""Prefill throughput of one GPU from which the paper's rows follow."""
GROUPED: Final = "70B, grouped KV"
ROWS: Final[Mapping[str, Pair]] = {
    "7B": PAIRS["7B"],
    "70B": Pair(model="llama-2-70b-mha", gpu_size=4, wse_size=8, gpu=A100_80),
    GROUPED: Pair(model="llama-2-70b", gpu_size=4, wse_size=8, gpu=A100_80),
}
TOLERANCE = 0.1
ROUNDED = 0.01
"""The paper's numbers have two to four figures."""


def frame() -> pd.DataFrame:
    """One row for each model and level."""
    return pd.DataFrame(row for name, pair in ROWS.items() for row in _rows(name, pair))


def _rows(name: str, pair: Pair) -> list[dict[str, Any]]:
    peak = _peak(pair)
    return [
        {
            "model": name,
            "shape": pair.model,
            "gpu": pair.gpu,
            "level": level,
            "n_gpu": n,
            "prefill_tok_s_per_gpu": peak["tok_s"],
            "input_tokens": peak["input_tokens"],
            "kv_byte_per_token": peak["kv_byte"],
            "kv_gb_s": peak["tok_s"] * peak["kv_byte"] * n / 1e9,
            "paper_gb_s": PAPER_GB_S.get(name, (math.nan,) * 3)[i],
        }
        for i, (level, n) in enumerate(DEVICES.items())
    ]


def _peak(pair: Pair, gpu: Change | None = None) -> dict[str, float]:
    """The length at which a GPU prefills most tokens; requests ask for one token, so that decoding never binds."""
    n = DEVICES["cluster"]
    rows = {t: design(pair, t, 1, n_gpu=n, n_wse=pair.wse_size, gpu=gpu) for t in TOKENS}
    best = max(TOKENS, key=lambda t: rows[t]["input_tok_s"])
    row = rows[best]
    return {
        "input_tokens": best,
        "tok_s": float(row["input_tok_s"]) / n,
        "kv_byte": float(row["kv_transfer_byte_s"] / row["input_tok_s"]),
    }


def judge(data: pd.DataFrame) -> list[Statement]:
    """Every statement about the table."""
    device = data[data["level"] == "device"]
    kv_byte = {str(m): float(b) for m, b in zip(device["model"], device["kv_byte_per_token"], strict=True)}
    kv_gb_s = {str(m): float(b) for m, b in zip(device["model"], device["kv_gb_s"], strict=True)}
    return [
        *(_number(row) for _, row in data[data["model"].isin(PAPER_GB_S)].iterrows()),
        *(_follows(model, kv_byte[model]) for model in PAPER_GB_S),
        _grouped(kv_byte[GROUPED], kv_byte["70B"], kv_gb_s[GROUPED]),
    ]


def _number(row: pd.Series) -> Statement:
    """One of the table's numbers, from the model's own prefill throughput."""
    passes = abs(row["kv_gb_s"] / row["paper_gb_s"] - 1.0) <= TOLERANCE
    value = f"{row['kv_gb_s']:.4g} GB/s ({row['kv_gb_s'] / row['paper_gb_s'] - 1.0:+.0%})"
    if row["level"] == "device":
        value += f", {row['prefill_tok_s_per_gpu']:,.0f} tokens/s a GPU"
        value += "" if passes else _what_if(row["model"], row["paper_gb_s"])
    return Statement(
        figure=NAME,
        statement=f"{row['model']}, {row['level']}: {row['paper_gb_s']:g} GB/s (10 %)",
        passes=bool(passes),
        value=value,
        paper=f"{row['paper_gb_s']:g} GB/s",
    )


def _what_if(model: str, paper_gb_s: float) -> str:
    """The GPU's compute efficiency in prefill that gives the paper's number, or what all of its peak would."""
    pair = ROWS[model]

    def kv_gb_s(compute: float) -> float:
        peak = _peak(pair, with_efficiency("prefill", compute=compute))
        return peak["tok_s"] * peak["kv_byte"] / 1e9

    now = load_catalog().device(pair.gpu, PROFILE).efficiency["prefill"].compute
    compute = nearest_that_holds(lambda c: kv_gb_s(c) >= paper_gb_s, now, 1.0)
    if math.isnan(compute):
        return f"; no compute efficiency gives it, 1 instead of {now:g} gives {kv_gb_s(1.0):.3g} GB/s"
    return f"; the paper's with a compute efficiency of {compute:.2f} instead of {now:g}"


def _follows(model: str, kv_byte: float) -> Statement:
    """Whether the row is the paper's throughput times the KV cache of a token."""
    tok_s, cluster = PAPER_TOK_S[model], PAPER_GB_S[model][-1]
    ours = tok_s * kv_byte * DEVICES["cluster"] / 1e9
    heads = "" if model == "7B" else " with keys and values of every head"
    return Statement(
        figure=NAME,
        statement=f"{model}: the row follows from {tok_s:,.0f} tokens/s a GPU{heads} (1 %)",
        passes=abs(ours / cluster - 1.0) <= ROUNDED,
        value=f"{kv_byte:,.0f} byte a token: {ours / DEVICES['cluster']:.2f} GB/s a device, {ours:.1f} a cluster",
        paper=f"{cluster:g} GB/s a cluster",
    )


def _grouped(kv_byte: float, kv_byte_all_heads: float, kv_gb_s: float) -> Statement:
    """The same throughput with the keys and values that Llama-2-70B really has."""
    ours = PAPER_TOK_S["70B"] * kv_byte * DEVICES["cluster"] / 1e9
    return Statement(
        figure=NAME,
        statement="70B: the row holds for Llama-2-70B as published, with grouped keys and values",
        passes=abs(ours / PAPER_GB_S["70B"][-1] - 1.0) <= TOLERANCE,
        value=f"{kv_byte:,.0f} byte a token, {kv_byte_all_heads / kv_byte:.0f} times less: {ours:.1f} GB/s a cluster "
        f"at the same tokens/s; at ours {kv_gb_s:.2f} GB/s a device",
        paper=f"{PAPER_GB_S['70B'][-1]:g} GB/s a cluster",
    )


def draw(data: pd.DataFrame) -> Any:
    """The numbers as points, ours beside the paper's, a panel for each model."""
    long = data.melt(["model", "level"], ["kv_gb_s", "paper_gb_s"], "from", "gb_s").dropna()
    long["from"] = long["from"].map({"kv_gb_s": "model", "paper_gb_s": "paper"})
    long["text"] = long["gb_s"].map("{:.3g}".format)
    look: dict[str, Any] = {"title": None, "sort": ["model", "paper"]}
    domain = ["model", "paper"]
    base = alt.Chart(long).encode(
        x=alt.X("level:N", sort=list(DEVICES), title=None, axis=alt.Axis(labelAngle=0)),
        xOffset=alt.XOffset("from:N", sort=domain),
        y=alt.Y(
            "gb_s:Q",
            title="KV cache [GB/s]",
            scale=alt.Scale(type="log", domain=[0.1, 500]),
            axis=alt.Axis(values=[0.1, 1, 10, 100], format="~g"),
        ),
        color=alt.Color("from:N", scale=alt.Scale(domain=domain, range=[GPU, WSE]), **look),
        shape=alt.Shape("from:N", scale=alt.Scale(domain=domain), **look),
    )
    points = base.mark_point(filled=True, size=110, opacity=1)
    numbers = base.mark_text(dy=-14, fontSize=12).encode(text="text:N")
    panels = (points + numbers).properties(width=250, height=280)
    return panels.facet(column=alt.Column("model:N", sort=list(ROWS), title=None), spacing=18)
