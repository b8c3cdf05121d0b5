"""Measurement tables of a made-up device: what its own numbers predict, with noise where asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dse.calibration.data import LAYOUTS, Measurements, Names, read_measurements
from dse.calibration.layout import Layout
from dse.catalog import device_file_text, load_catalog
from dse.hardware import Accelerator, Efficiency, Phase

TOY = Accelerator(
    name="toy", kind="gpu", arrangement="tensor", peak_flop_s={"bf16": 4e14, "fp8": 8e14}, memory_byte=96e9,
    memory_bandwidth_byte_s=2.5e12, streaming_byte=0.0, node_size=8, rack_size=8, link_byte_s=300e9,
    link_latency_s=6e-6, link_efficiency=0.7, scale_out_byte_s=25e9, scale_out_latency_s=2e-5, idle_w=80, full_w=600,
    host_w=200, rental_usd_per_h=2.0, capex_usd=20e3,
    efficiency={
        "train": Efficiency(compute=0.6, memory=0.8, fixed_layer_s=1e-3, attention=0.3, exposed=0.4),
        "prefill": Efficiency(compute=0.55, memory=0.75, fixed_layer_s=9e-5),
        "decode": Efficiency(compute=0.55, memory=0.75, fixed_layer_s=9e-5, sequence_s=6e-5),
    },
)  # fmt: skip
OTHER: dict[Phase, Efficiency] = {
    "train": Efficiency(compute=0.4, memory=0.8, fixed_layer_s=3e-4),
    "prefill": Efficiency(compute=0.4, memory=0.6, fixed_layer_s=4e-5),
    "decode": Efficiency(compute=0.4, memory=0.6, fixed_layer_s=4e-5),
}
START = replace(TOY, efficiency=OTHER)
"""The same hardware as one knows it before measuring: every number that a phase's measurements give is off."""
MEASURED_AS: Mapping[str, tuple[str, float]] = {
    "e2e_s": ("e2e_latency_s", 1.0),
    "ttft_s": ("silicon_ttft_ms", 1e3),
    "tpot_s": ("silicon_tpot_ms", 1e3),
    "prefill_s": ("prefill_ms", 1e3),
    "decode_step_s": ("decode_ms_per_step", 1e3),
    "power_mean_frac": ("avg_power_frac_tdp", 1.0),
    "step_s": ("step_time_s", 1.0),
    "call_s": ("latency_ms", 1e3),
    "allreduce_s": ("latency_ms", 1e3),
}
"""Quantity -> column of the tables, and its unit."""


def layout(name: str) -> Layout:
    return next(one for one in LAYOUTS if one.name == name)


def table(fixed: Mapping[str, Any], **axes: Sequence[Any]) -> pd.DataFrame:
    """Every combination of the axes, beside what is the same in all rows."""
    rows = [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]
    return pd.DataFrame(rows).assign(**fixed)


def static(**axes: Sequence[Any]) -> pd.DataFrame:
    """Static batches end to end; enough to tell every number unless axes are cut short."""
    given: dict[str, Sequence[Any]] = {
        "model": ["llama-2-7b", "llama-2-13b", "qwen2.5-7b"], "n_devices": [1, 4], "batch": [1, 8, 32],
        "input_tokens": [128, 2048], "output_tokens": [32, 512],
    }  # fmt: skip
    return table({"device": "toy", "framework": "vLLM", "e2e_latency_s": np.nan}, **(given | axes))


def apart(**axes: Sequence[Any]) -> pd.DataFrame:
    """Prefill and decode timed apart."""
    given: dict[str, Sequence[Any]] = {
        "model": ["llama-2-7b", "llama-2-13b"], "tp": [1, 4], "batch": [1, 4, 16], "input_tokens": [64, 512, 3000],
    }  # fmt: skip
    fixed = {"device": "toy", "dtype": "bf16", "output_tokens": 128, "prefill_ms": np.nan,
             "decode_ms_per_step": np.nan, "avg_power_frac_tdp": np.nan}  # fmt: skip
    return table(fixed, **(given | axes))


def sharded(**axes: Sequence[Any]) -> pd.DataFrame:
    """Training steps."""
    given: dict[str, Sequence[Any]] = {
        "model": ["1b", "7b"], "seq_len": [2048, 16384], "n_gpus": [8, 32], "microbatch_per_gpu": [1, 4],
    }  # fmt: skip
    frame = table({"device": "toy", "precision": "amp_bf16", "sharding": "FULL_SHARD", "act_ckpt": "True",
                   "step_time_s": np.nan}, **(given | axes))  # fmt: skip
    return frame.assign(global_batch_seqs=frame["n_gpus"] * frame["microbatch_per_gpu"])


def reduced(**axes: Sequence[Any]) -> pd.DataFrame:
    """All-reduces; `message_size` counts elements."""
    given: dict[str, Sequence[Any]] = {"num_gpus": [2, 4, 8], "message_size": [2**k for k in range(7, 29, 3)]}
    fixed = {"system": "toy", "op_name": "all_reduce", "nccl_dtype": "half", "latency_ms": np.nan}
    return table(fixed, **(given | axes))


def own_files(folder: Path, device: Accelerator = START) -> Names:
    """The made-up device as a file of its own, under the name that the tables use."""
    path = folder / "toy.toml"
    path.write_text(device_file_text(device, {}), encoding="utf-8")
    return Names(devices={"toy": path})


def filled(raw: pd.DataFrame, kind: Layout, truth: Accelerator, noise: float = 0.0, seed: int = 0) -> pd.DataFrame:
    """The table with the times that `truth` takes, times lognormal noise."""
    rng = np.random.default_rng(seed)
    tidy = kind.read(raw)
    found = {q.name: pd.Series(np.nan, index=tidy.index) for q in kind.quantities}
    for (model, _), rows in tidy.groupby([tidy["raw_model"], tidy["dtype"]]):
        shape = load_catalog().model(str(model)) if kind.has_model else None
        for name, seconds in kind.predict(rows, truth, shape).items():
            found[name][rows.index] = seconds
    times = {MEASURED_AS[n][0]: s * MEASURED_AS[n][1] * rng.lognormal(0.0, noise, len(s)) for n, s in found.items()}
    return raw.assign(**times)


def as_read(raw: pd.DataFrame, folder: Path, names: Names | None = None, name: str = "rows") -> Measurements:
    """The table through a file, as a user gives it."""
    path = folder / f"{name}.csv"
    raw.to_csv(path, index=False)
    return read_measurements(path, names or own_files(folder))


def synthetic(
    kind: str, raw: pd.DataFrame, folder: Path, *, truth: Accelerator = TOY, noise: float = 0.0, seed: int = 0
) -> Measurements:
    """Measurements of `truth`, read against the device as one knows it before."""
    return as_read(filled(raw, layout(kind), truth, noise, seed), folder)
