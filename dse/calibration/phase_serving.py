"""Prefill and decode timed apart on one machine, with the power drawn (layout of Splitwise's lab runs, 2024)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from dse.hardware import Accelerator
from dse.model.phases import decode_time, prefill_time
from dse.model.power import mean_w
from dse.model.transformer import arithmetic
from dse.units import DTYPE_BYTE
from dse.workload import Transformer

from .layout import PHASES_APART, Floats, Layout, Quantity, numbers, shape_of


def read(frame: pd.DataFrame) -> pd.DataFrame:
    """The tidy frame."""
    flag = frame["flag"].astype(object).fillna("").astype(str) if "flag" in frame else ""
    return pd.DataFrame(
        {
            "raw_device": frame["device"],
            "raw_model": frame["model"],
            "stack": "splitwise",
            "dtype": frame["dtype"],
            "shape": frame["input_tokens"].astype(str),
            "unused": np.where(flag != "", "flagged in the table: " + flag, ""),
            "g": frame["tp"],
            "batch": frame["batch"],
            "input_tokens": frame["input_tokens"],
            "output_tokens": frame["output_tokens"],
            "prefill_s": frame["prefill_ms"] / 1e3,
            "decode_step_s": frame["decode_ms_per_step"] / 1e3,
            "power_mean_frac": frame["avg_power_frac_tdp"],
        }
    )


def predict(rows: pd.DataFrame, device: Accelerator, model: Transformer | None) -> Mapping[str, Floats]:
    """A prompt pass, a decode step at the mean context, and the share of full power while neither phase rests."""
    a, dtype = arithmetic(shape_of(model)), str(rows["dtype"].iloc[0])
    dtypes = {"weight_dtype_byte": DTYPE_BYTE[dtype], "kv_dtype_byte": DTYPE_BYTE["bf16"]}
    g, b, n, o = (numbers(rows, c) for c in ("g", "batch", "input_tokens", "output_tokens"))
    prompt = prefill_time(device, a, g=g, batch=b, input_tokens=n, hit_frac=0.0, compute_dtype=dtype, **dtypes)
    step = decode_time(device, a, g=g, batch=b, context_tokens=n + o / 2.0, compute_dtype=dtype, **dtypes)
    busy = np.ones_like(b)
    return {
        "prefill_s": np.asarray(prompt.latency_s),
        "decode_step_s": np.asarray(step.latency_s),
        "power_mean_frac": np.asarray(mean_w(1, busy, device.idle_w, device.full_w, 0.0) / device.full_w),
    }


LAYOUT = Layout(
    name="serving, phases apart",
    columns=frozenset(
        {
            "model",
            "device",
            "tp",
            "dtype",
            "batch",
            "input_tokens",
            "output_tokens",
            "prefill_ms",
            "decode_ms_per_step",
            "avg_power_frac_tdp",
        }
    ),
    quantities=(
        Quantity(name="prefill_s", phases=("prefill",)),
        Quantity(name="decode_step_s", phases=("decode",)),
        Quantity(name="power_mean_frac", kind="power"),
    ),
    parameters=PHASES_APART,
    read=read,
    predict=predict,
    check_only=frozenset({"power_mean_frac"}),
)
