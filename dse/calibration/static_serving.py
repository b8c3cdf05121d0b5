"""Static batches served end to end: b prompts at once, timed from the first byte in to the last token out.

Layout of LLM-Inference-Bench (Argonne, 2025). Where a batch needs more memory than there is, the stack runs it in
waves of what fits, by the rule that a study uses (docs/model.md, section 4).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from dse.hardware import Accelerator
from dse.model.memory import largest_batch, usable_byte
from dse.model.phases import decode_time, prefill_time
from dse.model.transformer import arithmetic, kv_byte, kv_share, weight_byte
from dse.workload import Transformer

from .layout import (
    BYTES_16,
    RESERVE_FRAC,
    Floats,
    Layout,
    Quantity,
    compute,
    fixed,
    memory,
    numbers,
    sequence,
    shape_of,
)
from .names import stack_name


def read(frame: pd.DataFrame) -> pd.DataFrame:
    """The tidy frame."""
    conflict = frame["dup_conflict"].astype(str).str.lower() == "true" if "dup_conflict" in frame else False
    return pd.DataFrame(
        {
            "raw_device": frame["device"],
            "raw_model": frame["model"],
            "stack": frame["framework"].map(stack_name),
            "dtype": "bf16",
            "shape": frame["input_tokens"].astype(str),
            "unused": np.where(conflict, "two rows of one setting disagree", ""),
            "g": frame["n_devices"],
            "batch": frame["batch"],
            "input_tokens": frame["input_tokens"],
            "output_tokens": frame["output_tokens"],
            "e2e_s": frame["e2e_latency_s"],
        }
    )


def predict(rows: pd.DataFrame, device: Accelerator, model: Transformer | None) -> Mapping[str, Floats]:
    """End to end: whole waves of the largest batch that fits, and one of the rest; the smallest wave is one prompt."""
    a = arithmetic(shape_of(model))
    g, b, n, o = (numbers(rows, c) for c in ("g", "batch", "input_tokens", "output_tokens"))
    usable = usable_byte(device.memory_byte, RESERVE_FRAC)
    share = kv_share(a, g) if device.arrangement == "tensor" else 1.0 / g
    weight, kv = weight_byte(a, BYTES_16["weight_dtype_byte"]), kv_byte(a, n + o, BYTES_16["kv_dtype_byte"])
    fit = largest_batch(usable, weight, g, kv, share)
    most = np.minimum(np.maximum(fit, 1.0), b)

    def wave_s(batch: Floats) -> Floats:
        prompt = prefill_time(
            device, a, g=g, batch=batch, input_tokens=n, hit_frac=0.0, compute_dtype="bf16", **BYTES_16
        )
        step = decode_time(device, a, g=g, batch=batch, context_tokens=n + o / 2.0, compute_dtype="bf16", **BYTES_16)
        return np.asarray(prompt.latency_s + np.maximum(o - 1.0, 0.0) * step.latency_s)

    waves = np.floor(b / most)
    rest = b - waves * most
    return {"e2e_s": waves * wave_s(most) + np.where(rest > 0, wave_s(np.maximum(rest, 1.0)), 0.0)}


LAYOUT = Layout(
    name="serving, static batches",
    columns=frozenset(
        {"device", "n_devices", "framework", "model", "batch", "input_tokens", "output_tokens", "e2e_latency_s"}
    ),
    quantities=(Quantity(name="e2e_s", phases=("prefill", "decode")),),
    parameters=(
        compute(("prefill", "compute"), ("decode", "compute")),
        memory(("decode", "memory"), ("prefill", "memory")),
        fixed(("decode", "fixed_layer_s"), ("prefill", "fixed_layer_s")),
        sequence(("decode", "sequence_s")),
    ),
    read=read,
    predict=predict,
)
