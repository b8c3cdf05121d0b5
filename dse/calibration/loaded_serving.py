"""Serving under load: time to first token and per output token at a fixed number of users.

Layout of InferenceX points as NVIDIA aiconfigurator ships them. Their protocol, from the benchmark's public scripts
(SemiAnalysis InferenceX, benchmarks/70b_*, 2025-10): lengths drawn evenly from 0.8 to 1 of the nominal ones, ten
requests a user, all users start at once; the KV cache in fp8. TensorRT-LLM sends tokens in bunches of ten, so that the
first is held 4.5 steps on average, and, for 1024/1024 on fewer than eight GPUs, waits up to 20 steps to batch prompts.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from dse.hardware import Accelerator
from dse.model.closed_loop import closed_loop
from dse.model.memory import largest_batch, usable_byte
from dse.model.phases import decode_time, prefill_time
from dse.model.transformer import arithmetic, kv_byte, kv_share, weight_byte
from dse.units import DTYPE_BYTE
from dse.workload import Transformer

from .layout import PHASES_APART, RESERVE_FRAC, Floats, Layout, Quantity, numbers, shape_of
from .names import stack_name

LENGTH_FRAC = 0.9
"""Mean of lengths drawn evenly from 0.8 to 1 of the nominal one."""
REQUESTS_PER_USER = 10.0
BUNCH_STEPS = 4.5
"""TensorRT-LLM there sends every tenth step: half of nine steps on average."""
BATCH_WAIT_STEPS = 20.0
BATCH_WAIT_TOKENS = 1024
"""Input and output at which that wait is set there."""
KV_DTYPE = "fp8"


def read(frame: pd.DataFrame) -> pd.DataFrame:
    """The tidy frame."""
    layered = (frame["pp_size"].astype(float) > 1) | (frame["attention_dp_size"].astype(float) > 1)
    return pd.DataFrame(
        {
            "raw_device": frame["system"],
            "raw_model": frame["model_path"],
            "stack": frame["backend"].map(stack_name),
            "dtype": frame["precision"].astype(str).str.lower(),
            "shape": frame["isl"].astype(str)
            + "/"
            + frame["osl"].astype(str)
            + ", "
            + frame["concurrency"].astype(str),
            "unused": np.where(
                layered, "pipeline or attention data parallel, which the serving model does not have", ""
            ),
            "g": frame["tp_size"],
            "users": frame["concurrency"],
            "input_tokens": frame["isl"],
            "output_tokens": frame["osl"],
            "ttft_s": frame["silicon_ttft_ms"] / 1e3,
            "tpot_s": frame["silicon_tpot_ms"] / 1e3,
        }
    )


def predict(rows: pd.DataFrame, device: Accelerator, model: Transformer | None) -> Mapping[str, Floats]:
    """Means under the protocol."""
    a, dtype = arithmetic(shape_of(model)), str(rows["dtype"].iloc[0])
    g, users, nominal, nominal_out = (numbers(rows, c) for c in ("g", "users", "input_tokens", "output_tokens"))
    n, o = LENGTH_FRAC * nominal, LENGTH_FRAC * nominal_out
    weight, kv = DTYPE_BYTE[dtype], DTYPE_BYTE[KV_DTYPE]
    usable = usable_byte(device.memory_byte, RESERVE_FRAC)
    slots = largest_batch(usable, weight_byte(a, weight), g, kv_byte(a, n + o, kv), kv_share(a, g))
    active = np.minimum(users, np.maximum(slots, 1.0))
    dtypes = {"weight_dtype_byte": weight, "kv_dtype_byte": kv}
    prompt = prefill_time(device, a, g=g, batch=1.0, input_tokens=n, hit_frac=0.0, compute_dtype=dtype, **dtypes)
    step = decode_time(device, a, g=g, batch=active, context_tokens=n + o / 2.0, compute_dtype=dtype, **dtypes)
    bunches = (rows["stack"] == "tensorrt-llm").to_numpy()
    waits = bunches & (g < 8) & (nominal == BATCH_WAIT_TOKENS) & (nominal_out == BATCH_WAIT_TOKENS)
    found = closed_loop(
        users=users,
        slots=slots,
        prefill_s=prompt.latency_s,
        step_s=step.latency_s,
        output_tokens=o,
        held_steps=np.where(bunches, BUNCH_STEPS, 0.0) + np.where(waits, BATCH_WAIT_STEPS, 0.0),
        requests_per_user=REQUESTS_PER_USER,
    )
    return {"ttft_s": found.ttft_s, "tpot_s": found.tpot_s}


LAYOUT = Layout(
    name="serving under load",
    columns=frozenset(
        {
            "backend",
            "model_path",
            "system",
            "precision",
            "isl",
            "osl",
            "concurrency",
            "tp_size",
            "pp_size",
            "attention_dp_size",
            "silicon_ttft_ms",
            "silicon_tpot_ms",
        }
    ),
    quantities=(Quantity(name="ttft_s", phases=("prefill",), weight=0.5), Quantity(name="tpot_s", phases=("decode",))),
    parameters=PHASES_APART,
    read=read,
    predict=predict,
    kv_dtype=KV_DTYPE,
)
