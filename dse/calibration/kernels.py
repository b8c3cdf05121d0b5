"""Single kernels against the law t = tau + max(F/(P e_c), Q/(B e_m)): matrix products and attention.

Layouts of the operator tables that NVIDIA aiconfigurator ships (2026). No profile describes single kernels, so the law
is fitted on the table and judged on the shapes that the fit did not see. All numbers sit in the phase `prefill`, whose
`fixed_layer_s` is the time of one call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pandas as pd

from dse.hardware import Accelerator
from dse.model.roofline import term_s
from dse.workload import Transformer

from .layout import Floats, Layout, Quantity, compute, fixed, memory, numbers
from .names import element_types

CALL = (
    compute(("prefill", "compute"), start=0.6),
    memory(("prefill", "memory"), start=0.7),
    fixed(("prefill", "fixed_layer_s"), start=5e-6, high=1e-3),
)
HEAD = 128
"""Size of an attention head in those tables."""


def call_s(rows: pd.DataFrame, device: Accelerator, _: Transformer | None) -> Mapping[str, Floats]:
    """One call [s]."""
    dtype = str(rows["dtype"].iloc[0])
    e, peak = device.efficiency["prefill"].at(dtype), device.peak(dtype) or max(device.peak_flop_s.values())
    arithmetic_s = term_s(numbers(rows, "flop"), 1.0, peak, e.compute)
    traffic_s = term_s(numbers(rows, "moved_byte"), 1.0, device.memory_bandwidth_byte_s, e.memory)
    return {"call_s": e.fixed_layer_s + np.maximum(arithmetic_s, traffic_s)}


def _tidy(
    frame: pd.DataFrame, dtype: pd.Series[str], shape: pd.Series[str], flop: Floats, byte: Floats
) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "raw_device": frame["system"],
            "raw_model": "",
            "stack": "kernel",
            "dtype": dtype,
            "shape": shape,
            "unused": np.where(numbers(frame, "latency_ms") > 0, "", "no time given"),
            "flop": flop,
            "moved_byte": byte,
            "call_s": frame["latency_ms"] / 1e3,
        }
    )


def read_gemm(frame: pd.DataFrame) -> pd.DataFrame:
    """m x k times k x n: 2 m n k flop; both factors read, the product written in 16 bit."""
    m, n, k = (numbers(frame, c) for c in ("m", "n", "k"))
    dtype, byte = element_types(frame["gemm_dtype"])
    return _tidy(frame, dtype, frame["m"].astype(str), 2.0 * m * n * k, byte * (m * k + k * n) + 2.0 * m * n)


def read_prefill(frame: pd.DataFrame) -> pd.DataFrame:
    """Causal attention of b prompts of n tokens: 2 b a d n^2 flop; queries, keys, values and the result move."""
    b, n, a, k = (numbers(frame, c) for c in ("batch_size", "isl", "num_heads", "kv"))
    dtype, _ = element_types(frame["attn_dtype"])
    flop = 2.0 * b * a * HEAD * n**2
    return _tidy(frame, dtype, frame["isl"].astype(str), flop, 2.0 * b * n * HEAD * (2.0 * a + 2.0 * k))


def read_decode(frame: pd.DataFrame) -> pd.DataFrame:
    """One token of b sequences at context c: 4 b a d c flop; the KV cache is read."""
    b, c, a, k = (numbers(frame, x) for x in ("batch_size", "kv_len", "num_heads", "kv"))
    dtype, byte = element_types(frame["kv_cache_dtype"])
    return _tidy(frame, dtype, frame["kv_len"].astype(str), 4.0 * b * a * HEAD * c, byte * 2.0 * b * c * k * HEAD)


def _layout(name: str, kind: str, columns: frozenset[str], read: Callable[[pd.DataFrame], pd.DataFrame]) -> Layout:
    """A table of one kind of kernel: the same law and the same numbers for all."""
    return Layout(
        name=name,
        columns=columns | {"system", "latency_ms"},
        quantities=(Quantity(name="call_s", kind=kind),),
        parameters=CALL,
        read=read,
        predict=call_s,
        has_model=False,
        kernels=True,
    )


GEMM = _layout("matrix products", "gemm", frozenset({"gemm_dtype", "m", "n", "k"}), read_gemm)
ATTENTION_PREFILL = _layout(
    "attention, prefill",
    "attention prefill",
    frozenset({"batch_size", "isl", "num_heads", "kv", "attn_dtype"}),
    read_prefill,
)
ATTENTION_DECODE = _layout(
    "attention, decode",
    "attention decode",
    frozenset({"batch_size", "kv_len", "num_heads", "kv", "kv_cache_dtype"}),
    read_decode,
)
