"""What every layout of measurements offers: how it is recognised, read, and predicted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dse.hardware import Accelerator, Phase
from dse.workload import Transformer

Floats = NDArray[np.float64]
Target = tuple[Phase, str] | tuple[Literal["link"], str]
"""A number of a device: a phase and its key, or `link` and a key of the device's links."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """Something measured, and the phases whose numbers it is made of."""

    name: str
    """Column of the tidy frame that holds the measurement; the suffix is the unit."""
    phases: tuple[Phase | Literal["link"], ...] = ()
    """Whose numbers it is made of; none for single kernels and for power."""
    kind: str = ""
    """What it is, where it is no phase."""
    weight: float = 1.0
    """Weight of its log error in a fit."""

    @property
    def phase(self) -> str:
        """Its phases, or its kind, in one word."""
        return "+".join(self.phases) or self.kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One number that a fit may choose."""

    name: str
    targets: tuple[Target, ...]
    """Where it goes; several where measurements see only one value for all of them."""
    low: float
    high: float
    start: float
    wanted: str
    """The measurement that would show it."""
    prior_sd: float
    """With a prior: how far the logarithm may be from that of its typical value."""
    prior: float | None = None
    """That value, where it is not `start`."""
    optional: bool = False
    """Whether the law does without it where measurements do not show it."""
    may_vanish: bool = False
    """Whether none of it (the lower bound) is a sensible answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """One kind of measurement table.

    `read` gives a tidy frame, one row a measurement, SI: `raw_device`, `raw_model`, `stack`, `dtype`, `shape` (what a
    fold leaves out), `unused` (why a row is not used, else empty), a column for each quantity, and what `predict`
    needs. `predict` gets rows of one device, model and data type.
    """

    name: str
    columns: frozenset[str]
    quantities: tuple[Quantity, ...]
    parameters: tuple[Parameter, ...]
    read: Callable[[pd.DataFrame], pd.DataFrame]
    predict: Callable[[pd.DataFrame, Accelerator, Transformer | None], Mapping[str, Floats]]
    has_model: bool = True
    kernels: bool = False
    """Single kernels: no profile describes them, so the law is fitted on the table itself."""
    kv_dtype: str = "bf16"
    """Data type of the KV cache in these measurements."""
    check_only: frozenset[str] = frozenset()
    """Quantities that are compared but never fitted."""


def shape_of(model: Transformer | None) -> Transformer:
    """The model of a layout that has one."""
    if model is None:
        raise TypeError("this layout predicts times of a model")
    return model


def numbers(rows: pd.DataFrame, name: str) -> Floats:
    """A column as floats."""
    return rows[name].to_numpy(dtype=np.float64)


BYTES_16: Mapping[str, float] = {"weight_dtype_byte": 2.0, "kv_dtype_byte": 2.0}
"""Weights and cache in 16 bit."""
RESERVE_FRAC = 0.1
"""Memory kept free on a server, as a study's default."""
COMPUTE_WANTED = "passes that arithmetic binds: long prompts, or many sequences a step"
MEMORY_WANTED = "decode steps of a large model at batch 1, on one device and on several"
FIXED_WANTED = "the smallest model at batch 1, beside a larger one"
SEQUENCE_WANTED = "the same model at several batch sizes on the same devices"


def compute(*targets: Target, start: float = 0.5) -> Parameter:
    """e_c."""
    return Parameter(
        name="compute", targets=targets, low=0.005, high=1.0, start=start, wanted=COMPUTE_WANTED, prior_sd=0.7
    )


def memory(*targets: Target, start: float = 0.8) -> Parameter:
    """e_m."""
    return Parameter(
        name="memory", targets=targets, low=0.005, high=1.0, start=start, wanted=MEMORY_WANTED, prior_sd=0.3
    )


def fixed(*targets: Target, name: str = "fixed_layer_s", start: float = 8e-5, high: float = 2e-2) -> Parameter:
    """tau."""
    return Parameter(
        name=name, targets=targets, low=1e-7, high=high, start=start, wanted=FIXED_WANTED, prior_sd=3.0, may_vanish=True
    )


def sequence(*targets: Target) -> Parameter:
    """sigma."""
    return Parameter(
        name="sequence_s",
        targets=targets,
        low=1e-8,
        high=1e-2,
        start=2e-5,
        wanted=SEQUENCE_WANTED,
        prior_sd=2.0,
        optional=True,
        may_vanish=True,
    )


def exposed(*targets: Target) -> Parameter:
    """Share of the gradients' all-reduce that a step waits for; sharded stacks are built to hide it."""
    return Parameter(
        name="exposed",
        targets=targets,
        low=1e-3,
        high=1.0,
        start=0.1,
        wanted="runs that span nodes, with few micro-steps a step",
        prior_sd=2.0,
        prior=1e-3,
        optional=True,
        may_vanish=True,
    )


def attention(*targets: Target) -> Parameter:
    """e_a."""
    return Parameter(
        name="attention",
        targets=targets,
        low=0.02,
        high=1.0,
        start=0.4,
        wanted="sequences of several lengths",
        prior_sd=0.7,
        optional=True,
    )


PHASES_APART = (
    compute(("prefill", "compute"), ("decode", "compute")),
    fixed(("prefill", "fixed_layer_s"), name="prefill.fixed_layer_s"),
    memory(("decode", "memory"), ("prefill", "memory")),
    fixed(("decode", "fixed_layer_s"), name="decode.fixed_layer_s"),
    sequence(("decode", "sequence_s")),
)
"""Of servers whose times tell prefill from decode: a fixed time for each, shares of both together."""
