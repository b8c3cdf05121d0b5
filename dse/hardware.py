"""Devices and links as frozen values in SI. Provenance stays in the catalogue."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

Kind = Literal["gpu", "wse", "other"]
Arrangement = Literal["tensor", "pipeline"]
Phase = Literal["train", "prefill", "decode"]
PHASES: tuple[Phase, ...] = ("train", "prefill", "decode")


class PassTimes(Protocol):
    """Measured times of one phase of one model on one device, in place of the law."""

    def pass_s(self, g: Floats, batch: Floats, tokens: Floats) -> Floats:
        """Time of a pass of an instance of g devices [s], communication included.

        `tokens` of each sequence: the prompt in prefill, the mean context in decode. Arguments broadcast.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeInterval:
    """How far measured times of a phase are from predicted ones."""

    low: float
    """80 % of measured times lie between `low` and `high` times the predicted one."""
    high: float
    quantity: str
    """What was measured; phases with one quantity were measured together."""
    n: int
    """Measurements behind it; 0 where it is carried over from a near relative."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
    """What one phase achieves of the peaks (docs/model.md, section 2)."""

    compute: float
    """e_c: share of the dense peak."""
    memory: float
    """e_m: share of the memory bandwidth."""
    fixed_layer_s: float
    """tau: time per layer and pass that no batch removes [s]."""
    attention: float | None = None
    """e_a: share of the dense peak that attention scores achieve; None: e_c."""
    sequence_s: float = 0.0
    """sigma: time of the host per sequence and serving pass: scheduling, sampling, sending a token [s]."""
    exposed: float = 1.0
    """Share of a training step's last all-reduce, of gradients, that no backward pass hides."""
    by_dtype: Mapping[str, Efficiency] = field(default_factory=dict)
    """Numbers of their own for some data types of the arithmetic."""
    times: PassTimes | None = None
    """Measured pass times that take the place of the law; None for the law."""
    interval: TimeInterval | None = None
    """What measurements say of the error; None where there are none."""
    slowdown: float = 1.0
    """Every pass takes this many times as long as the law says, its communication included: what-if questions."""
    table_flop: tuple[float, ...] = ()
    """Measured table in place of the law: flop per device of a pass, ascending; empty if there is none."""
    table_s: tuple[float, ...] = ()
    """Its times, without communication [s]."""

    def at(self, dtype: str) -> Efficiency:
        """The numbers for one data type of the arithmetic; bf16 and fp16 stand in for each other."""
        twin = {"bf16": "fp16", "fp16": "bf16"}.get(dtype, dtype)
        return self.by_dtype.get(dtype, self.by_dtype.get(twin, self))

    @property
    def score_weight(self) -> float:
        """What a flop of attention scores counts in flop at e_c: e_c/e_a."""
        return 1.0 if self.attention is None else self.compute / self.attention


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """One device as it is bought: a GPU, or a whole wafer system."""

    name: str
    kind: Kind
    arrangement: Arrangement
    """How an instance is formed: tensor parallel, or layers laid across devices."""
    peak_flop_s: Mapping[str, float]
    """Dense peak per dtype [flop/s]."""
    memory_byte: float
    memory_bandwidth_byte_s: float
    streaming_byte: float
    """Weights may live outside and be streamed in training, up to this size; 0 if they may not [byte]."""
    node_size: int
    """Devices in one scale-up domain."""
    rack_size: int
    """Devices in one rack."""
    link_byte_s: float
    """Scale-up bandwidth C per direction [byte/s]."""
    link_latency_s: float
    """l0 of one collective on scale-up [s]."""
    link_efficiency: float
    """e_link: achieved share of link bandwidth for large messages."""
    scale_out_byte_s: float
    scale_out_latency_s: float
    idle_w: float
    full_w: float
    host_w: float
    """This device's share of host, fans and NICs [W]."""
    rental_range_usd_per_h: tuple[float, float] | None = None
    """Low and high of what it rents for; None where no range is known."""
    capex_range_usd: tuple[float, float] | None = None
    rental_usd_per_h: float | None
    capex_usd: float | None
    efficiency: Mapping[Phase, Efficiency]

    @property
    def streams(self) -> bool:
        """In training weights live outside: the device runs its whole share of a batch at once."""
        return self.streaming_byte > self.memory_byte

    def peak(self, dtype: str) -> float | None:
        """Dense peak [flop/s]; bf16 and fp16 stand in for each other; None where the hardware has none."""
        twin = {"bf16": "fp16", "fp16": "bf16"}.get(dtype, dtype)
        return self.peak_flop_s.get(dtype, self.peak_flop_s.get(twin))


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkTier:
    """One full-duplex connection between two pools, both ends included."""

    name: str
    bandwidth_byte_s: float
    """Per direction [byte/s]."""
    latency_s: float
    capex_usd: float
    power_w: float
