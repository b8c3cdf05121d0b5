"""All-reduces inside a node against l0 + 2 (g-1)/g x/(C e_link) (layouts of aiconfigurator's tables, 2026).

`message_size` counts elements, not bytes.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from dse.hardware import Accelerator
from dse.model.collectives import allreduce_s
from dse.workload import Transformer

from .layout import Floats, Layout, Parameter, Quantity, numbers
from .names import element_types

LINK = (
    Parameter(
        name="link_latency_s",
        targets=(("link", "link_latency_s"),),
        low=1e-7,
        high=1e-3,
        start=5e-6,
        wanted="messages of a few kilobytes",
        prior_sd=1.0,
    ),
    Parameter(
        name="link_efficiency",
        targets=(("link", "link_efficiency"),),
        low=0.01,
        high=1.0,
        start=0.7,
        wanted="messages of a hundred megabytes and more",
        prior_sd=0.7,
    ),
)


def _tidy(frame: pd.DataFrame, stack: str, dtype: str, unused: object) -> pd.DataFrame:
    names, byte = element_types(frame[dtype])
    return pd.DataFrame(
        {
            "raw_device": frame["system"],
            "raw_model": "",
            "stack": stack,
            "dtype": names,
            "shape": frame["num_gpus"].astype(str),
            "unused": unused,
            "g": frame["num_gpus"],
            "message_byte": numbers(frame, "message_size") * byte,
            "allreduce_s": frame["latency_ms"] / 1e3,
        }
    )


def read_nccl(frame: pd.DataFrame) -> pd.DataFrame:
    """The tidy frame; of the collectives the model has the all-reduce."""
    other = np.where(frame["op_name"] == "all_reduce", "", "a collective that the model does not have")
    return _tidy(frame, "nccl", "nccl_dtype", other)


def read_trtllm(frame: pd.DataFrame) -> pd.DataFrame:
    """The tidy frame."""
    return _tidy(frame, "tensorrt-llm", "allreduce_dtype", "")


def predict(rows: pd.DataFrame, device: Accelerator, _: Transformer | None) -> Mapping[str, Floats]:
    """One all-reduce [s]."""
    g, x = numbers(rows, "g"), numbers(rows, "message_byte")
    return {"allreduce_s": allreduce_s(x, g, device.link_byte_s, device.link_efficiency, device.link_latency_s)}


NCCL = Layout(
    name="all-reduce, NCCL",
    columns=frozenset({"system", "op_name", "nccl_dtype", "num_gpus", "message_size", "latency_ms"}),
    quantities=(Quantity(name="allreduce_s", phases=("link",)),),
    parameters=LINK,
    read=read_nccl,
    predict=predict,
    has_model=False,
)
TENSORRT_LLM = Layout(
    name="all-reduce, TensorRT-LLM",
    columns=frozenset({"system", "allreduce_dtype", "num_gpus", "message_size", "latency_ms"}),
    quantities=(Quantity(name="allreduce_s", phases=("link",)),),
    parameters=LINK,
    read=read_trtllm,
    predict=predict,
    has_model=False,
)
