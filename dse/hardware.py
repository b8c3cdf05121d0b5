"""Devices and links as frozen values in SI. Provenance stays in the catalogue."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Kind = Literal["gpu", "wse", "other"]
Arrangement = Literal["tensor", "pipeline"]
Phase = Literal["train", "prefill", "decode"]
PHASES: tuple[Phase, ...] = ("train", "prefill", "decode")


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
    """What one phase achieves of the peaks (docs/model.md, section 2)."""

    compute: float
    """e_c: share of the dense peak."""
    memory: float
    """e_m: share of the memory bandwidth."""
    fixed_layer_s: float
    """tau: time per layer and pass that no batch removes [s]."""
    table_flop: tuple[float, ...] = ()
    """Measured table in place of the law: flop per device of a pass, ascending; empty if there is none."""
    table_s: tuple[float, ...] = ()
    """Its times, without communication [s]."""


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
