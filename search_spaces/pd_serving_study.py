"""The study of a prefill/decode serving fleet: its keys and what they may hold."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import (
    BeforeValidator,
    Discriminator,
    Field,
    Tag,
    ValidationInfo,
    field_validator,
    model_validator,
)

from dse.catalog import load_catalog, load_device_file, load_model_file
from dse.catalog.device_file import NAME_PATTERN
from dse.columns import pool_of
from dse.errors import InputError, unknown_name
from dse.hardware import Accelerator
from dse.study import AxisList, Envelope, Frac, Link, Part, Positive, distinct
from dse.traffic import read_trace
from dse.workload import Transformer

Dtype = Literal["bf16", "fp16", "fp8", "fp4", "int8", "int4"]
Routing = Literal["split", "work_stealing"]
Role = Literal["prefill", "decode", "both"]
MAX_DEVICES = 10_000_000
Whole = Annotated[int, Field(ge=1, le=MAX_DEVICES)]
MAX_OPTIONS = 1_000_000
"""Settings of one pool: a table of this size takes seconds and a few hundred megabytes."""
SHARE_TOLERANCE = 1e-6


def _listed(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


def _folder(info: ValidationInfo) -> Path:
    return Path((info.context or {}).get("folder", "."))


def _reraise(error: InputError) -> ValueError:
    return ValueError("; ".join(error.faults))


class Request(Part):
    """One request class."""

    name: str = ""
    share: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
    input_tokens: Annotated[float, Field(ge=1, le=1e9, allow_inf_nan=False)]
    output_tokens: Annotated[float, Field(ge=1, le=1e9, allow_inf_nan=False)]


class Slo(Part):
    """Service limits."""

    ttft_p99_s: Positive | None = None
    tpot_s: Positive | None = None


class ServingWorkload(Part):
    """What is served: a model, its data types, and requests (given, or binned from a trace)."""

    model: str
    weight_dtype: Annotated[tuple[Dtype, ...], AxisList] = ("bf16",)
    kv_dtype: Annotated[tuple[Dtype, ...], AxisList] = ("bf16",)
    compute_dtype: Annotated[tuple[Dtype, ...], AxisList] = ("bf16",)
    prefix_hit_frac: Frac = 0.0
    routing: Annotated[tuple[Routing, ...], AxisList] = ("split",)
    requests: Annotated[tuple[Request, ...] | None, BeforeValidator(_listed)] = None
    trace: str | None = None
    slo: Slo = Slo()

    _distinct = field_validator("weight_dtype", "kv_dtype", "compute_dtype", "routing")(distinct)

    @field_validator("model")
    @classmethod
    def _known_model(cls, name: str, info: ValidationInfo) -> str:
        try:
            find_model(name, _folder(info))
        except InputError as error:
            raise _reraise(error) from None
        return name

    @field_validator("requests")
    @classmethod
    def _shares(cls, requests: tuple[Request, ...] | None) -> tuple[Request, ...] | None:
        if requests is not None:
            total = sum(r.share for r in requests)
            if abs(total - 1.0) > SHARE_TOLERANCE:
                raise ValueError(
                    f"the shares sum to {total:.6g}, must sum to 1; scale each by {1 / total:.6g}"
                    if total
                    else "give at least one request class"
                )
            names = [r.name for r in requests if r.name]
            distinct(tuple(names)) if names else None
        return requests

    @field_validator("trace")
    @classmethod
    def _trace(cls, trace: str | None, info: ValidationInfo) -> str | None:
        if trace is not None:
            try:
                read_trace(_folder(info) / trace)
            except InputError as error:
                raise _reraise(error) from None
        return trace

    @model_validator(mode="after")
    def _one_source(self) -> ServingWorkload:
        if (self.requests is None) == (self.trace is None):
            raise ValueError('give either [[workload.requests]] or trace = "file.csv"')
        return self


def _step_tag(value: object) -> str:
    return "as_name" if isinstance(value, str) else "as_number"


Step = Annotated[
    Annotated[Whole, Tag("as_number")] | Annotated[Literal["node", "rack"], Tag("as_name")],
    Discriminator(_step_tag),
]


class CountRange(Part):
    """Devices on offer: min, max and the purchase step."""

    min: Annotated[int, Field(ge=0, le=MAX_DEVICES)] = 0
    max: Annotated[int, Field(ge=0, le=MAX_DEVICES)]
    step: Step = 1

    @model_validator(mode="after")
    def _ordered(self) -> CountRange:
        if self.min > self.max:
            raise ValueError(f"min {self.min} is above max {self.max}")
        return self


def _count_tag(value: object) -> str:
    return "as_range" if isinstance(value, (dict, CountRange)) else "as_list"


CountList = Annotated[tuple[Annotated[int, Field(ge=0, le=MAX_DEVICES)], ...], AxisList]
Count = Annotated[
    Annotated[CountRange, Tag("as_range")] | Annotated[CountList, Tag("as_list")], Discriminator(_count_tag)
]


class ServingPool(Part):
    """One homogeneous set of devices on offer."""

    device: str
    name: str = ""
    count: Count
    owned: Annotated[int, Field(ge=0, le=MAX_DEVICES)] = 0
    instance_size: Annotated[tuple[Whole, ...], AxisList] = (1,)
    roles: Annotated[tuple[Role, ...], AxisList] = ("prefill", "decode", "both")
    profile: str = "default"
    prefill_batch: Annotated[tuple[Whole, ...], AxisList] = (1,)
    max_decode_batch: Annotated[tuple[Whole, ...], AxisList] = (256,)
    memory_reserve_frac: Frac = 0.1

    _distinct = field_validator("instance_size", "roles", "prefill_batch", "max_decode_batch")(distinct)

    @field_validator("name")
    @classmethod
    def _plain(cls, name: str) -> str:
        if name and not re.fullmatch(NAME_PATTERN, name):
            raise ValueError(
                f"got {name!r}; a pool's name has at most 60 letters, digits, '.', '_', '+' and '-', "
                "and starts with a letter or digit"
            )
        return name

    @field_validator("count")
    @classmethod
    def _counts(cls, count: CountRange | tuple[int, ...]) -> CountRange | tuple[int, ...]:
        if not isinstance(count, CountRange):
            distinct(count)
        return count

    @field_validator("device")
    @classmethod
    def _known_device(cls, name: str, info: ValidationInfo) -> str:
        try:
            find_device(name, "default", _folder(info))
        except InputError as error:
            raise _reraise(error) from None
        return name

    @model_validator(mode="after")
    def _consistent(self, info: ValidationInfo) -> ServingPool:
        try:
            device = find_device(self.device, self.profile, _folder(info))
        except InputError as error:
            raise _reraise(error) from None
        counts = self.counts(device)
        if not any(n > 0 and n % g == 0 for n in counts for g in self.instance_size):
            if not any(counts):
                raise ValueError("count has no positive value; remove the pool or raise count.max")
            raise ValueError(
                f"no positive count is a multiple of any instance size: counts {_short(counts)}, "
                f"instance sizes {_short(self.instance_size)}; change count.step or instance_size"
            )
        n_options = len(counts) * len(self.instance_size) * (len(self.roles) + 1)
        n_options *= len(self.prefill_batch) * len(self.max_decode_batch)
        if n_options > MAX_OPTIONS:
            raise ValueError(
                f"the pool has about {n_options:,} settings, at most {MAX_OPTIONS:,} are allowed; "
                "raise count.step or list fewer values"
            )
        return self

    def counts(self, device: Accelerator) -> tuple[int, ...]:
        """All counts on offer."""
        if not isinstance(self.count, CountRange):
            return tuple(sorted(self.count))
        step = {"node": device.node_size, "rack": device.rack_size}.get(str(self.count.step), self.count.step)
        return tuple(range(self.count.min, self.count.max + 1, int(step)))


def _short(values: tuple[int, ...]) -> str:
    shown = ", ".join(map(str, values[:6]))
    return shown + (", ..." if len(values) > 6 else "")


class Demand(Part):
    """What must be met."""

    requests_s: Positive


class ServingStudy(Envelope):
    """A whole pd_serving study."""

    paradigm: Literal["pd_serving"]
    workload: ServingWorkload
    pool: Annotated[tuple[ServingPool, ...], BeforeValidator(_listed), Field(min_length=1, max_length=8)]
    link: Link | None = None
    demand: Demand | None = None

    @field_validator("link")
    @classmethod
    def _known_tiers(cls, link: Link | None) -> Link | None:
        known = load_catalog().links
        tiers = (link.tier if link else None) or ()
        faults = [unknown_name("tier", "link", tier, known) for tier in tiers if tier not in known]
        if faults:
            raise ValueError("; ".join(faults))
        return link

    @model_validator(mode="after")
    def _whole(self, info: ValidationInfo) -> ServingStudy:
        faults = list(self._pool_faults(_folder(info)))
        if len(self.pool) > 1 and self.link is None:
            faults.append("[link] is missing; with two or more pools say what connects them")
        bounds = self.limits.bounds()
        names = {pool_name(p, _folder(info)) for p in self.pool}
        for name in bounds:
            pool = pool_of(name)
            if pool is not None and pool not in names:
                faults.append(unknown_name(f"limits.{name}", "pool", pool, names))
        if self.demand and bounds.get("requests_s", (0, np.inf))[1] < self.demand.requests_s:
            faults.append(
                f"limits.requests_s allows at most {bounds['requests_s'][1]:g}, demand.requests_s asks for "
                f"{self.demand.requests_s:g}; no design can meet both"
            )
        if faults:
            raise InputError(faults)
        return self

    def _pool_faults(self, folder: Path) -> list[str]:
        faults: list[str] = []
        seen: dict[str, int] = {}
        for i, pool in enumerate(self.pool):
            name = pool_name(pool, folder)
            if name in seen:
                faults.append(f"pool[{i}]: is named {name!r} like pool[{seen[name]}]; give each its own name")
            seen[name] = i
            device = find_device(pool.device, pool.profile, folder)
            if not any(device.peak(d) for d in self.workload.compute_dtype):
                asked, has = ", ".join(self.workload.compute_dtype), ", ".join(device.peak_flop_s)
                faults.append(f"pool[{i}]: {device.name} computes in {has}; workload.compute_dtype asks for {asked}")
            need_capex = pool.owned > 0 or self.site.cost_basis == "ownership"
            if need_capex and device.capex_usd is None:
                why = "owned devices have upkeep" if pool.owned else 'cost_basis is "ownership"'
                faults.append(f"pool[{i}]: {device.name} has no capex_usd, needed because {why}")
            if self.site.cost_basis == "rental" and device.rental_usd_per_h is None:
                faults.append(
                    f'pool[{i}]: {device.name} has no rental_usd_per_h; add it or set site.cost_basis = "ownership"'
                )
        return faults


def pool_name(pool: ServingPool, folder: Path) -> str:
    """A pool is named by its device unless it has its own name."""
    return pool.name or find_device(pool.device, "default", folder).name


def find_device(name: str, profile: str, folder: Path) -> Accelerator:
    """A catalogue device, or a device file next to the study."""
    if name.endswith(".toml"):
        if profile != "default":
            raise InputError(f"profile {profile!r}: a device file has only the default profile")
        return load_device_file(folder / name)
    return load_catalog().device(name, profile)


def find_model(name: str, folder: Path) -> Transformer:
    """A catalogue model, or a Hugging Face config.json next to the study."""
    if name.endswith(".json"):
        return load_model_file(folder / name)
    return load_catalog().model(name)
