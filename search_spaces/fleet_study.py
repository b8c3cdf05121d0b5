"""What every paradigm's study says of its fleet: the model, the pools on offer, and the link between them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, ValidationInfo, field_validator, model_validator

from dse.catalog import load_catalog, load_device_file, load_model_file
from dse.catalog.device_file import NAME_PATTERN
from dse.columns import defined_in, pool_of
from dse.errors import InputError, unknown_name
from dse.hardware import Accelerator
from dse.study import AxisList, Envelope, Frac, Link, Part, distinct
from dse.workload import Transformer

Dtype = Literal["bf16", "fp16", "fp8", "fp4", "int8", "int4"]
MEASURED = "aiconfigurator"
"""Profile whose pass times are measured tables of that package, put in once model and data types are known."""
MAX_DEVICES = 10_000_000
MAX_POOLS = 8
Whole = Annotated[int, Field(ge=1, le=MAX_DEVICES)]
WholeAxis = Annotated[tuple[Whole, ...], AxisList]
MAX_OPTIONS = 1_000_000
"""Settings of one pool: a table of this size takes seconds and a few hundred megabytes."""


def listed(value: object) -> object:
    """A TOML list as the tuple that a frozen value holds."""
    return tuple(value) if isinstance(value, list) else value


def folder_of(info: ValidationInfo) -> Path:
    """Where the paths of the study that is being validated start."""
    return Path((info.context or {}).get("folder", "."))


def as_value_error(error: InputError) -> ValueError:
    """The same faults as pydantic collects them."""
    return ValueError("; ".join(error.faults))


def known_model(name: str, info: ValidationInfo) -> str:
    """Field validator: the model is in the catalogue, or its file can be read."""
    try:
        find_model(name, folder_of(info))
    except InputError as error:
        raise as_value_error(error) from None
    return name


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


class Pool(Part):
    """One homogeneous set of devices on offer; a paradigm adds its own axes."""

    device: str
    name: str = ""
    count: Count
    owned: Annotated[int, Field(ge=0, le=MAX_DEVICES)] = 0
    instance_size: WholeAxis = (1,)
    profile: str = "default"
    memory_reserve_frac: Frac = 0.1

    _distinct = field_validator("instance_size")(distinct)

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
            find_device(name, "default", folder_of(info))
        except InputError as error:
            raise as_value_error(error) from None
        return name

    @model_validator(mode="after")
    def _consistent(self, info: ValidationInfo) -> Pool:
        try:
            device = find_device(self.device, self.profile, folder_of(info))
        except InputError as error:
            raise as_value_error(error) from None
        counts = self.counts(device)
        if not any(n > 0 and n % unit == 0 for n in counts for unit in self.instance_units()):
            if not any(counts):
                raise ValueError("count has no positive value; remove the pool or raise count.max")
            raise ValueError(
                f"no positive count is a multiple of any {self.unit_name}: counts {_short(counts)}, "
                f"{self.unit_name}s {_short(self.instance_units())}; change count.step or instance_size"
            )
        n_options = len(counts) * self.n_settings()
        if n_options > MAX_OPTIONS:
            raise ValueError(
                f"the pool has about {n_options:,} settings, at most {MAX_OPTIONS:,} are allowed; "
                "raise count.step or list fewer values"
            )
        return self

    @property
    def unit_name(self) -> str:
        """What a count must be a multiple of, in words."""
        return "instance size"

    def instance_units(self) -> tuple[int, ...]:
        """Devices that are used together: a count must be a multiple of one of these."""
        return self.instance_size

    def n_settings(self) -> int:
        """Settings of one count."""
        return len(self.instance_size)

    def counts(self, device: Accelerator) -> tuple[int, ...]:
        """All counts on offer."""
        if not isinstance(self.count, CountRange):
            return tuple(sorted(self.count))
        step = {"node": device.node_size, "rack": device.rack_size}.get(str(self.count.step), self.count.step)
        return tuple(range(self.count.min, self.count.max + 1, int(step)))


def _short(values: tuple[int, ...]) -> str:
    shown = ", ".join(map(str, values[:6]))
    return shown + (", ..." if len(values) > 6 else "")


Pools = (BeforeValidator(listed), Field(min_length=1, max_length=MAX_POOLS))
"""What a paradigm's `pool` field is annotated with."""


class FleetStudy(Envelope):
    """A study with pools and a link between them."""

    link: Link | None = None

    @field_validator("link")
    @classmethod
    def _known_tiers(cls, link: Link | None) -> Link | None:
        known = load_catalog().links
        tiers = (link.tier if link else None) or ()
        faults = [unknown_name("tier", "link", tier, known) for tier in tiers if tier not in known]
        if faults:
            raise ValueError("; ".join(faults))
        return link

    def fleet_faults(self, pools: tuple[Pool, ...], compute_dtype: Iterable[str], folder: Path) -> list[str]:
        """What is wrong between the parts: names, data types, prices, the link, limits on pools."""
        faults = list(self._pool_faults(pools, tuple(compute_dtype), folder))
        if len(pools) > 1 and self.link is None:
            faults.append("[link] is missing; with two or more pools say what connects them")
        names = {pool_name(p, folder) for p in pools}
        asked = {f"limits.{name}": name for name in self.limits.bounds()}
        asked |= {f"objectives: {name}": name for name in self.objectives.names}
        faults += [
            f"{where}: {self.paradigm} results have no such column"
            for where, name in asked.items()
            if not defined_in(name, self.paradigm)
        ]
        for name in self.limits.bounds():
            pool = pool_of(name)
            if pool is not None and pool not in names:
                faults.append(unknown_name(f"limits.{name}", "pool", pool, names))
        return faults

    def question_faults(self, pools: tuple[Pool, ...], folder: Path, *, demanded: bool | None) -> list[str]:
        """What keeps the study from answering its questions; `demanded` is None where a paradigm has no demand."""
        if self.question is None:
            return []
        devices = [find_device(p.device, p.profile, folder) for p in pools]
        kinds = {device.name: device.kind for device in devices}
        return list(self.question.faults(kinds, demanded=demanded, limits=self.limits, paradigm=self.paradigm))

    def _pool_faults(self, pools: tuple[Pool, ...], compute_dtype: tuple[str, ...], folder: Path) -> Iterator[str]:
        seen: dict[str, int] = {}
        for i, pool in enumerate(pools):
            name = pool_name(pool, folder)
            if name in seen:
                yield f"pool[{i}]: is named {name!r} like pool[{seen[name]}]; give each its own name"
            seen[name] = i
            device = find_device(pool.device, pool.profile, folder)
            if not any(device.peak(d) for d in compute_dtype):
                asked, has = ", ".join(compute_dtype), ", ".join(device.peak_flop_s)
                yield f"pool[{i}]: {device.name} computes in {has}; workload.compute_dtype asks for {asked}"
            need_capex = pool.owned > 0 or self.site.cost_basis == "ownership"
            if need_capex and device.capex_usd is None:
                why = "owned devices have upkeep" if pool.owned else 'cost_basis is "ownership"'
                yield f"pool[{i}]: {device.name} has no capex_usd, needed because {why}"
            if self.site.cost_basis == "rental" and device.rental_usd_per_h is None:
                yield f'pool[{i}]: {device.name} has no rental_usd_per_h; add it or set site.cost_basis = "ownership"'


def pool_name(pool: Pool, folder: Path) -> str:
    """A pool is named by its device unless it has its own name."""
    return pool.name or find_device(pool.device, "default", folder).name


def find_device(name: str, profile: str, folder: Path) -> Accelerator:
    """A catalogue device, or a device file next to the study; for `MEASURED` with the default's numbers."""
    if name.endswith(".toml"):
        if profile not in ("default", MEASURED):
            raise InputError(f"profile {profile!r}: a device file has only the default profile")
        return load_device_file(folder / name)
    return load_catalog().device(name, "default" if profile == MEASURED else profile)


def find_model(name: str, folder: Path) -> Transformer:
    """A catalogue model, or a Hugging Face config.json next to the study."""
    if name.endswith(".json"):
        return load_model_file(folder / name)
    return load_catalog().model(name)
