"""Training rates of one wafer by batch (layout of the CS-2 and CS-3 rows, 2024 and 2025)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from dse.hardware import Accelerator
from dse.workload import Transformer

from .layout import Floats, Layout, Quantity, compute, fixed, numbers, shape_of
from .training_step import step_s


def read(frame: pd.DataFrame) -> pd.DataFrame:
    """The tidy frame."""
    return pd.DataFrame(
        {
            "raw_device": frame["device"],
            "raw_model": frame["model"],
            "stack": "cerebras",
            "dtype": "fp16",
            "shape": frame["global_batch_seqs"].astype(str),
            "unused": "",
            "n": frame["n_systems"],
            "global_batch": frame["global_batch_seqs"],
            "sequence_tokens": frame["seq_len"],
            "step_s": frame["global_batch_seqs"] / frame["samples_per_s"],
        }
    )


def predict(rows: pd.DataFrame, device: Accelerator, model: Transformer | None) -> Mapping[str, Floats]:
    """One optimizer step, the whole batch at once."""
    settings = zip(numbers(rows, "sequence_tokens"), numbers(rows, "n"), numbers(rows, "global_batch"), strict=True)
    found = [
        step_s(
            device, shape_of(model), sequence_tokens=s, recompute="none", n=int(n), micro_batch=1, batch=b, dtype="fp16"
        )
        for s, n, b in settings
    ]
    return {"step_s": np.array(found)}


LAYOUT = Layout(
    name="training, wafer",
    columns=frozenset({"device", "n_systems", "model", "seq_len", "global_batch_seqs", "samples_per_s"}),
    quantities=(Quantity(name="step_s", phases=("train",)),),
    parameters=(
        compute(("train", "compute"), start=0.2),
        fixed(("train", "fixed_layer_s"), start=5e-4, high=0.05),
    ),
    read=read,
    predict=predict,
)
