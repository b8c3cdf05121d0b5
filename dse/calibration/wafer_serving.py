"""One request at a time on a wafer: prefill and decode rates by core grid (layout of WaferLLM's tables, OSDI 2025).

All prompts there have one length, so a fixed time of prefill cannot be told from a share that grows with the model: the
device's own is kept.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from dse.hardware import Accelerator
from dse.model.phases import decode_time, prefill_time
from dse.model.transformer import arithmetic
from dse.workload import Transformer

from .layout import BYTES_16, Floats, Layout, Quantity, compute, fixed, memory, numbers, shape_of
from .names import stack_name


def read(frame: pd.DataFrame) -> pd.DataFrame:
    """The tidy frame. A row is either a prompt pass or a decode step at the context given as input."""
    rate = frame["value_tok_s_per_request"].astype(float)
    n = frame["input_tokens"].astype(float)
    prefill = frame["metric"].astype(str).str.startswith("prefill")
    decode = frame["metric"].astype(str).str.startswith("decode batch 1")
    return pd.DataFrame(
        {
            "raw_device": frame["device"],
            "raw_model": frame["model"],
            "stack": frame["software"].map(stack_name),
            "dtype": "bf16",
            "shape": frame["core_grid"].astype(str),
            "unused": np.where(prefill | decode, "", "neither prefill nor decode at batch 1"),
            "g": frame["n_devices"],
            "input_tokens": n,
            "prefill_s": np.where(prefill, n / rate, np.nan),
            "decode_step_s": np.where(decode, 1.0 / rate, np.nan),
        }
    )


def predict(rows: pd.DataFrame, device: Accelerator, model: Transformer | None) -> Mapping[str, Floats]:
    """A prompt pass and a decode step, batch 1."""
    a, g, n = arithmetic(shape_of(model)), numbers(rows, "g"), numbers(rows, "input_tokens")
    prompt = prefill_time(device, a, g=g, batch=1.0, input_tokens=n, hit_frac=0.0, compute_dtype="bf16", **BYTES_16)
    step = decode_time(device, a, g=g, batch=1.0, context_tokens=n, compute_dtype="bf16", **BYTES_16)
    return {"prefill_s": np.asarray(prompt.latency_s), "decode_step_s": np.asarray(step.latency_s)}


LAYOUT = Layout(
    name="serving, one request",
    columns=frozenset(
        {"metric", "model", "device", "n_devices", "software", "core_grid", "input_tokens", "value_tok_s_per_request"}
    ),
    quantities=(Quantity(name="prefill_s", phases=("prefill",)), Quantity(name="decode_step_s", phases=("decode",))),
    parameters=(
        compute(("prefill", "compute"), start=0.07),
        memory(("decode", "memory"), ("prefill", "memory"), start=0.02),
        fixed(("decode", "fixed_layer_s"), name="decode.fixed_layer_s", start=1e-5),
    ),
    read=read,
    predict=predict,
)
