"""A device as a file of numbers: how a user adds an accelerator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Literal

import tomli_w
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError, model_validator

from dse.errors import InputError
from dse.hardware import Accelerator, Efficiency, Phase, TimeInterval
from dse.validation import faults_of, read_toml

NAME_PATTERN = r"^[A-Za-z0-9][\w.+-]{0,59}$"
"""Names become columns, keys of `--set` and table heads: letters, digits, '.', '_', '+', '-'."""
Above0 = Annotated[float, Field(ge=1e-6, le=1e27, allow_inf_nan=False)]
AtLeast0 = Annotated[float, Field(ge=0, le=1e27, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=1e-6, le=1, allow_inf_nan=False)]
Range = Annotated[list[AtLeast0], Field(min_length=2, max_length=2)]
"""Low and high."""
Dtype = Literal["bf16", "fp16", "fp8", "fp4", "int8", "int4"]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class _Interval(_Part):
    """80 % of measured times lie between `low` and `high` times the predicted one."""

    low: Annotated[float, Field(ge=1e-3, le=1e3, allow_inf_nan=False)]
    high: Annotated[float, Field(ge=1e-3, le=1e3, allow_inf_nan=False)]
    quantity: str = "time"
    n: Annotated[int, Field(ge=0)] = 0

    @model_validator(mode="after")
    def _ordered(self) -> _Interval:
        if self.low > self.high:
            raise ValueError(f"low {self.low:g} is above high {self.high:g}")
        return self


class _Numbers(_Part):
    compute: Share
    memory: Share
    fixed_layer_s: AtLeast0
    attention: Share | None = None
    """Share of the dense peak that attention scores achieve; without it `compute`."""
    sequence_s: AtLeast0 = 0.0
    """Time of the host per sequence and serving pass."""
    exposed: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = 1.0
    """Share of the last all-reduce of a training step that no backward pass hides."""
    interval: _Interval | None = None
    table_flop: list[Above0] = []
    """Measured table in place of the law: flop per device of a pass -> time without communication."""
    table_s: list[Above0] = []

    @model_validator(mode="after")
    def _table(self) -> _Numbers:
        x, y = self.table_flop, self.table_s
        if len(x) != len(y) or len(x) == 1:
            raise ValueError(f"table_flop has {len(x)} and table_s {len(y)} values; give two or more, as many each")
        if x != sorted(set(x)) or y != sorted(y):
            raise ValueError("table_flop must ascend and table_s must not descend; sort the measurements by flop")
        return self

    def resolved(self, by_dtype: Mapping[str, Efficiency] = MappingProxyType({})) -> Efficiency:
        """The phase's numbers."""
        return Efficiency(
            compute=self.compute,
            memory=self.memory,
            fixed_layer_s=self.fixed_layer_s,
            attention=self.attention,
            sequence_s=self.sequence_s,
            exposed=self.exposed,
            interval=TimeInterval(**self.interval.model_dump()) if self.interval else None,
            by_dtype=dict(by_dtype),
            table_flop=tuple(self.table_flop),
            table_s=tuple(self.table_s),
        )


class _Efficiency(_Numbers):
    by_dtype: dict[Dtype, _Numbers] = {}
    """Numbers of their own for some data types of the arithmetic."""

    def phase(self) -> Efficiency:
        """The phase's numbers, those of single data types included."""
        return self.resolved({dtype: numbers.resolved() for dtype, numbers in self.by_dtype.items()})


class _Phases(_Part):
    train: _Efficiency | None = None
    prefill: _Efficiency
    decode: _Efficiency


class _Source(_Part):
    text: str
    date: str = ""
    grade: Literal["A", "B", "C", "D"] = "D"


class DeviceFile(_Part):
    """Keys of a device file, in SI."""

    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    kind: Literal["gpu", "wse", "other"]
    arrangement: Literal["tensor", "pipeline"]
    peak_flop_s: Annotated[dict[Dtype, Above0], Field(min_length=1)]
    memory_byte: Above0
    memory_bandwidth_byte_s: Above0
    streaming_byte: AtLeast0 = 0.0
    node_size: Annotated[int, Field(ge=1, le=10_000_000)]
    rack_size: Annotated[int, Field(ge=1, le=10_000_000)] | None = None
    link_byte_s: Above0
    link_latency_s: AtLeast0
    link_efficiency: Share
    scale_out_byte_s: Above0
    scale_out_latency_s: AtLeast0
    idle_w: AtLeast0
    full_w: Above0
    host_w: AtLeast0
    rental_usd_per_h: AtLeast0 | None = None
    capex_usd: AtLeast0 | None = None
    rental_range_usd_per_h: Range | None = None
    capex_range_usd: Range | None = None
    efficiency: _Phases
    source: Annotated[dict[str, _Source | str], Field(validation_alias=AliasChoices("source", "sources"))] = {}


def load_device_file(path: Path) -> Accelerator:
    """Reads one device; InputError with every fault of the file."""
    raw = read_toml(path)
    try:
        d = DeviceFile.model_validate(raw)
    except ValidationError as error:
        raise InputError(faults_of(error, path.name)) from None
    if d.idle_w > d.full_w:
        raise InputError(f"{path.name} [idle_w]: got {d.idle_w:g} W, must not be above full_w = {d.full_w:g} W")
    given: dict[Phase, _Efficiency | None] = {
        "train": d.efficiency.train,
        "prefill": d.efficiency.prefill,
        "decode": d.efficiency.decode,
    }
    return Accelerator(
        name=d.name,
        kind=d.kind,
        arrangement=d.arrangement,
        peak_flop_s={str(k): v for k, v in d.peak_flop_s.items()},
        memory_byte=d.memory_byte,
        memory_bandwidth_byte_s=d.memory_bandwidth_byte_s,
        streaming_byte=d.streaming_byte,
        node_size=d.node_size,
        rack_size=d.rack_size or d.node_size,
        link_byte_s=d.link_byte_s,
        link_latency_s=d.link_latency_s,
        link_efficiency=d.link_efficiency,
        scale_out_byte_s=d.scale_out_byte_s,
        scale_out_latency_s=d.scale_out_latency_s,
        idle_w=d.idle_w,
        full_w=d.full_w,
        host_w=d.host_w,
        rental_usd_per_h=d.rental_usd_per_h,
        capex_usd=d.capex_usd,
        rental_range_usd_per_h=_pair(d.rental_range_usd_per_h),
        capex_range_usd=_pair(d.capex_range_usd),
        efficiency={phase: e.phase() for phase, e in given.items() if e is not None},
    )


def _pair(ends: list[float] | None) -> tuple[float, float] | None:
    return (min(ends), max(ends)) if ends else None


FACT_KEY = {
    "memory": "memory_byte",
    "memory_bandwidth": "memory_bandwidth_byte_s",
    "streaming": "streaming_byte",
    "link": "link_byte_s",
    "link_latency": "link_latency_s",
    "scale_out": "scale_out_byte_s",
    "scale_out_latency": "scale_out_latency_s",
    "idle": "idle_w",
    "full": "full_w",
    "host": "host_w",
    "rental": "rental_usd_per_h",
    "capex": "capex_usd",
}
"""Catalogue parameter -> key of a device file, where they differ."""
EFFICIENCY_KEY = {"fixed_layer": "fixed_layer_s", "sequence": "sequence_s"}
"""The same for the numbers of a phase."""


def device_file_text(device: Accelerator, sources: Mapping[str, Mapping[str, str]]) -> str:
    """A device as the text of a device file, with a source line per key; reading it gives the device again."""
    named = {f.name: getattr(device, f.name) for f in fields(device) if f.name != "efficiency"}
    table = {name: _plain(value) for name, value in named.items() if value is not None}
    table["peak_flop_s"] = {dtype: _plain(peak) for dtype, peak in device.peak_flop_s.items()}
    table["efficiency"] = {phase: _efficiency_table(e) for phase, e in device.efficiency.items()}
    table["source"] = {key: dict(source) for key, source in sources.items()}
    return tomli_w.dumps(table)


def _efficiency_table(e: Efficiency) -> dict[str, object]:
    """The keys of a phase; those that say nothing are left out."""
    table: dict[str, object] = {"compute": e.compute, "memory": e.memory, "fixed_layer_s": e.fixed_layer_s}
    table |= {"attention": e.attention} if e.attention is not None else {}
    table |= {"sequence_s": e.sequence_s} if e.sequence_s else {}
    table |= {"exposed": e.exposed} if e.exposed != 1.0 else {}
    table |= {"interval": asdict(e.interval)} if e.interval else {}
    table |= {"table_flop": e.table_flop, "table_s": e.table_s} if e.table_flop else {}
    plain = {key: _plain(value) for key, value in table.items()}
    dtypes = {dtype: _efficiency_table(numbers) for dtype, numbers in e.by_dtype.items()}
    return plain | ({"by_dtype": dtypes} if dtypes else {})


def _plain(value: object) -> object:
    """A number without the noise of unit conversion."""
    if isinstance(value, (tuple, list)):
        return [_plain(v) for v in value]
    return float(f"{value:.12g}") if isinstance(value, float) else value
