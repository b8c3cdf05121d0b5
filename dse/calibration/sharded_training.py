"""Training steps of fully sharded data parallel runs (layout of MosaicML llm-foundry's MPT table, 2025)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from dse.hardware import Accelerator
from dse.workload import Transformer

from .layout import Floats, Layout, Quantity, attention, compute, exposed, fixed, numbers, shape_of
from .training_step import step_s


def read(frame: pd.DataFrame) -> pd.DataFrame:
    """The tidy frame. `fp8` runs name it in the precision; all others compute in bf16."""
    precision = frame["precision"].astype(str).str.lower()
    sharded = frame["sharding"].astype(str).str.upper() == "FULL_SHARD"
    return pd.DataFrame(
        {
            "raw_device": frame["device"],
            "raw_model": "mpt-" + frame["model"].astype(str),
            "stack": "fsdp",
            "dtype": np.where(precision.str.contains("fp8"), "fp8", "bf16"),
            "shape": frame["seq_len"].astype(str),
            "unused": np.where(sharded, "", "not fully sharded"),
            "n": frame["n_gpus"],
            "micro_batch": frame["microbatch_per_gpu"],
            "global_batch": frame["global_batch_seqs"],
            "sequence_tokens": frame["seq_len"],
            "recompute": np.where(frame["act_ckpt"].astype(str).str.lower() == "true", "full", "none"),
            "step_s": frame["step_time_s"],
        }
    )


def predict(rows: pd.DataFrame, device: Accelerator, model: Transformer | None) -> Mapping[str, Floats]:
    """One optimizer step."""
    settings = zip(
        numbers(rows, "sequence_tokens"),
        rows["recompute"],
        numbers(rows, "n"),
        numbers(rows, "micro_batch"),
        numbers(rows, "global_batch"),
        rows["dtype"],
        strict=True,
    )
    found = [
        step_s(device, shape_of(model), sequence_tokens=s, recompute=r, n=int(n), micro_batch=int(m), batch=b, dtype=d)
        for s, r, n, m, b, d in settings
    ]
    return {"step_s": np.array(found)}


LAYOUT = Layout(
    name="training, sharded",
    columns=frozenset(
        {
            "device",
            "model",
            "seq_len",
            "n_gpus",
            "precision",
            "sharding",
            "act_ckpt",
            "microbatch_per_gpu",
            "global_batch_seqs",
            "step_time_s",
        }
    ),
    quantities=(Quantity(name="step_s", phases=("train",)),),
    parameters=(
        compute(("train", "compute"), start=0.6),
        fixed(("train", "fixed_layer_s"), start=1e-3, high=0.05),
        attention(("train", "attention")),
        exposed(("train", "exposed")),
    ),
    read=read,
    predict=predict,
)
