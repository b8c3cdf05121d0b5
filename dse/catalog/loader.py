"""Reads the catalogue's tables, converts to SI, and reports all faults of a table together."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, cast

from dse.catalog.accuracy import ProfileError, errors_of, known_profile_faults, read_profile_errors
from dse.catalog.device_file import EFFICIENCY_KEY, FACT_KEY
from dse.errors import InputError, UnknownNameError, unknown_name
from dse.hardware import PHASES, Accelerator, Arrangement, Efficiency, Kind, LinkTier, Phase, TimeInterval
from dse.units import SI_FACTOR, to_si
from dse.workload import Transformer

Grade = Literal["A", "B", "C", "D"]

DEVICE_DIMENSION: Mapping[str, str] = {
    "kind": "text",
    "arrangement": "text",
    **{f"peak_{d}": "flop/s" for d in ("bf16", "fp16", "fp8", "fp4", "int8", "int4")},
    "memory": "byte",
    "memory_bandwidth": "byte/s",
    "streaming": "byte",
    "node_size": "1",
    "rack_size": "1",
    "link": "byte/s",
    "link_latency": "s",
    "link_efficiency": "1",
    "scale_out": "byte/s",
    "scale_out_latency": "s",
    "idle": "W",
    "full": "W",
    "host": "W",
}
PRICE_DIMENSION: Mapping[str, str] = {"rental": "USD/h", "capex": "USD"}
EFFICIENCY_DIMENSION: Mapping[str, str] = {
    "compute": "1", "memory": "1", "fixed_layer": "s", "attention": "1", "sequence": "s", "exposed": "1",
}  # fmt: skip
OPTIONAL_EFFICIENCY = {"attention", "sequence", "exposed"}
LINK_DIMENSION: Mapping[str, str] = {"bandwidth": "byte/s", "latency": "s", "capex": "USD", "power": "W"}
MODEL_FIELDS: tuple[str, ...] = (
    "layers", "hidden", "heads", "kv_heads", "head_size", "feed_forward", "vocabulary", "gated",
    "tied_embedding", "attention_bias", "sliding_window", "n_window_layers", "experts", "experts_per_token",
    "expert_feed_forward", "shared_experts", "n_dense_layers", "q_rank", "kv_rank", "head_nope",
    "head_rope", "head_v",
)  # fmt: skip
_OPTIONAL_DEVICE = {"peak_bf16", "peak_fp16", "peak_fp8", "peak_fp4", "peak_int8", "peak_int4"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One number of the catalogue as it is printed, with where it is from."""

    table: str
    name: str
    profile: str
    phase: str
    dtype: str
    """Data type of the arithmetic that an efficiency is for; empty for all."""
    parameter: str
    value: str
    unit: str
    low: str
    high: str
    source: str
    date: str
    grade: Grade

    @property
    def label(self) -> str:
        """Profile, phase, data type and parameter in one word."""
        return ".".join(filter(None, (self.profile, self.phase, self.dtype, self.parameter)))

    @property
    def key(self) -> tuple[str, str, str, str, str]:
        """What the row is about."""
        return (self.name, self.profile, self.phase, self.dtype, self.parameter)


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalog:
    """All that is known; values in SI, facts as printed."""

    facts: tuple[Fact, ...]
    citations: Mapping[str, str]
    devices: Mapping[str, Accelerator]
    links: Mapping[str, LinkTier]
    models: Mapping[str, Transformer]
    profiles: Mapping[str, tuple[str, ...]]
    errors: tuple[ProfileError, ...]
    _efficiency: Mapping[tuple[str, str], Mapping[Phase, Efficiency]] = field(repr=False)

    def device(self, name: str, profile: str = "default") -> Accelerator:
        """A device with one efficiency profile; phases the profile lacks keep the default's."""
        if name not in self.devices:
            raise UnknownNameError(unknown_name("catalog", "device", name, self.devices))
        device = self.devices[name]
        if profile == "default":
            return device
        if profile not in self.profiles[name]:
            raise UnknownNameError(unknown_name(f"catalog [{name}]", "profile", profile, self.profiles[name]))
        merged = {**device.efficiency, **self._efficiency[name, profile]}
        return replace(device, efficiency=merged)

    def link(self, name: str) -> LinkTier:
        """A link tier."""
        if name not in self.links:
            raise UnknownNameError(unknown_name("catalog", "link", name, self.links))
        return self.links[name]

    def model(self, name: str) -> Transformer:
        """A model shape."""
        if name not in self.models:
            raise UnknownNameError(unknown_name("catalog", "model", name, self.models))
        return self.models[name]

    def has_phase(self, device: str, profile: str, phase: str) -> bool:
        """Whether a profile has numbers of its own for a phase."""
        return phase in self._efficiency.get((device, profile), {})

    def errors_of(self, device: str, profile: str, phase: str, dtype: str) -> tuple[ProfileError, ...]:
        """What is known of a profile's error in one phase: of its data type, else of every one."""
        return errors_of(self.errors, device, profile, phase, dtype)

    def facts_of(self, table: str, name: str) -> tuple[Fact, ...]:
        """Every row about one device, link or model; a device brings its prices and efficiencies."""
        tables = {"devices": ("devices", "prices", "efficiency")}.get(table, (table,))
        return tuple(f for f in self.facts if f.table in tables and f.name == name)

    def device_sources(self, name: str, profile: str = "default") -> dict[str, dict[str, str]]:
        """Per key of a device file, the citation, date and grade of its number."""
        found = {}
        facts = [f for f in self.facts_of("devices", name) if f.profile in ("", "default", profile)]
        for f in sorted(facts, key=lambda f: f.profile == profile):  # the profile's own rows last: they count
            key = FACT_KEY.get(f.parameter, f.parameter)
            if f.parameter.startswith("peak_"):
                key = f.parameter.replace("peak_", "peak_flop_s.")
            if f.phase:
                where = f"{f.phase}.by_dtype.{f.dtype}" if f.dtype else f.phase
                key = f"efficiency.{where}.{EFFICIENCY_KEY.get(f.parameter, f.parameter)}"
            spread = f" ({f.low} to {f.high} {f.unit})" if f.low or f.high else ""
            found[key] = {"text": self.citations[f.source] + spread, "date": f.date, "grade": f.grade}
        return found


_TABLES: Mapping[str, tuple[str, ...]] = {
    "devices": ("device",),
    "prices": ("device",),
    "efficiency": ("device", "profile", "phase", "dtype"),
    "links": ("link",),
    "models": ("model",),
}


def _read(folder: Path, table: str, faults: list[str]) -> list[Fact]:
    """A table's rows: of its own file, and of those that carry on its name, as fitted profiles do."""
    facts: list[Fact] = []
    seen: dict[tuple[str, ...], str] = {}
    for path in sorted(folder.glob(f"{table}.csv")) + sorted(folder.glob(f"{table}_*.csv")):
        with path.open(newline="", encoding="utf-8") as file:
            for line, row in enumerate(csv.DictReader(file), start=2):
                fact = _fact(table, f"{path.name}:{line}", row, faults)
                if fact is None:
                    continue
                if fact.key in seen:
                    about = ", ".join(filter(None, fact.key))
                    faults.append(f"{path.name}:{line}: repeats {seen[fact.key]} ({about})")
                seen[fact.key] = f"line {line} of {path.name}"
                facts.append(fact)
    return facts


def _fact(table: str, where: str, row: Mapping[str | None, Any], faults: list[str]) -> Fact | None:
    if None in row or any(v is None for v in row.values()):
        faults.append(f"{where}: the row has more or fewer fields than the header")
        return None
    if row["grade"] not in ("A", "B", "C", "D"):
        faults.append(f"{where}: grade is {row['grade']!r}, must be A, B, C or D")
    for needed in ("source", "date", "value"):
        if not row[needed].strip():
            faults.append(f"{where}: {needed} is empty; every number has one")
    return Fact(
        table=table,
        name=row[_TABLES[table][0]],
        profile=row.get("profile", ""),
        phase=row.get("phase", ""),
        dtype=row.get("dtype", ""),
        parameter=row["parameter"],
        value=row["value"],
        unit=row["unit"],
        low=row.get("low", ""),
        high=row.get("high", ""),
        source=row["source"],
        date=row["date"],
        grade=cast("Grade", row["grade"]),
    )


def si_value(fact: Fact, dimension: str, faults: list[str]) -> float:
    """A fact's number in SI; a bad number or unit is noted and becomes NaN."""
    where = f"{fact.table}.csv [{', '.join(filter(None, fact.key))}]"
    try:
        value = float(fact.value)
    except ValueError:
        faults.append(f"{where}: got {fact.value!r}, must be a number")
        return math.nan
    if fact.unit not in SI_FACTOR[dimension]:
        faults.append(f"{where}: unit {fact.unit!r} is not one of {', '.join(SI_FACTOR[dimension])}")
        return math.nan
    if not math.isfinite(value) or value < 0:
        faults.append(f"{where}: got {fact.value}, must be a finite number of at least 0")
    return to_si(value, fact.unit, dimension)


def _ranges(rows: Mapping[str, Fact], faults: list[str]) -> dict[str, tuple[float, float]]:
    """Parameter -> low and high, in SI, where both are known."""
    found = {}
    for parameter, fact in rows.items():
        if parameter in PRICE_DIMENSION and fact.low and fact.high:
            low, high = (
                si_value(replace(fact, value=end), PRICE_DIMENSION[parameter], faults) for end in (fact.low, fact.high)
            )
            if not low <= si_value(fact, PRICE_DIMENSION[parameter], faults) <= high:
                faults.append(
                    f"prices.csv [{fact.name}, {parameter}]: {fact.value} is outside {fact.low} to {fact.high}"
                )
            found[parameter] = (low, high)
    return found


def _grouped(facts: list[Fact]) -> dict[str, dict[str, Fact]]:
    groups: dict[str, dict[str, Fact]] = {}
    for fact in facts:
        groups.setdefault(fact.name, {})[fact.parameter] = fact
    return groups


def _numbers(
    table: str,
    name: str,
    rows: Mapping[str, Fact],
    dimension: Mapping[str, str],
    optional: set[str],
    faults: list[str],
) -> dict[str, float]:
    for unknown in rows.keys() - dimension.keys():
        faults.append(unknown_name(f"{table}.csv [{name}]", "parameter", unknown, dimension))
    for missing in dimension.keys() - rows.keys() - optional:
        faults.append(f"{table}.csv [{name}]: {missing} is missing")
    return {
        parameter: si_value(fact, dimension[parameter], faults)
        for parameter, fact in rows.items()
        if parameter in dimension and dimension[parameter] != "text"
    }


def _device(
    name: str,
    rows: Mapping[str, Fact],
    price: Mapping[str, float],
    ranges: Mapping[str, tuple[float, float]],
    efficiency: Mapping[Phase, Efficiency],
    faults: list[str],
) -> Accelerator | None:
    before = len(faults)
    v = _numbers("devices", name, rows, DEVICE_DIMENSION, _OPTIONAL_DEVICE, faults)
    if len(faults) > before:
        return None
    return Accelerator(
        name=name,
        kind=cast("Kind", rows["kind"].value),
        arrangement=cast("Arrangement", rows["arrangement"].value),
        peak_flop_s={p.removeprefix("peak_"): x for p, x in v.items() if p.startswith("peak_")},
        memory_byte=v["memory"],
        memory_bandwidth_byte_s=v["memory_bandwidth"],
        streaming_byte=v["streaming"],
        node_size=int(v["node_size"]),
        rack_size=int(v["rack_size"]),
        link_byte_s=v["link"],
        link_latency_s=v["link_latency"],
        link_efficiency=v["link_efficiency"],
        scale_out_byte_s=v["scale_out"],
        scale_out_latency_s=v["scale_out_latency"],
        idle_w=v["idle"],
        full_w=v["full"],
        host_w=v["host"],
        rental_usd_per_h=price.get("rental"),
        capex_usd=price.get("capex"),
        rental_range_usd_per_h=ranges.get("rental"),
        capex_range_usd=ranges.get("capex"),
        efficiency=efficiency,
    )


def _efficiencies(
    facts: list[Fact], errors: Sequence[ProfileError], faults: list[str]
) -> dict[tuple[str, str], dict[Phase, Efficiency]]:
    groups: dict[tuple[str, str, str], dict[str, dict[str, Fact]]] = {}
    for fact in facts:
        by_dtype = groups.setdefault((fact.name, fact.profile, fact.phase), {})
        by_dtype.setdefault(fact.dtype, {})[fact.parameter] = fact
    result: dict[tuple[str, str], dict[Phase, Efficiency]] = {}
    for (name, profile, phase), by_dtype in groups.items():
        where = f"{name}, {profile}, {phase}"
        if phase not in PHASES:
            faults.append(unknown_name(f"efficiency.csv [{name}]", "phase", phase, PHASES))
            continue
        found = {
            dtype: _efficiency(", ".join(filter(None, (where, dtype))), rows, faults)
            for dtype, rows in by_dtype.items()
        }
        if "" not in found:
            faults.append(
                f"efficiency.csv [{where}]: no row without a data type; one set of numbers stands for the rest"
            )
            continue
        sure = {
            dtype: replace(e, interval=_interval(errors_of(errors, name, profile, phase, dtype)))
            for dtype, e in found.items()
        }
        own = {dtype: e for dtype, e in sure.items() if dtype}
        result.setdefault((name, profile), {})[phase] = replace(sure[""], by_dtype=own)
    return result


def _interval(errors: Sequence[ProfileError]) -> TimeInterval | None:
    if not errors:
        return None
    e = errors[0]
    return TimeInterval(low=e.low, high=e.high, quantity=f"{e.profile} {e.quantity}", n=e.n)


def _efficiency(where: str, rows: Mapping[str, Fact], faults: list[str]) -> Efficiency:
    v = _numbers("efficiency", where, rows, EFFICIENCY_DIMENSION, OPTIONAL_EFFICIENCY, faults)
    for share in ("compute", "memory", "attention"):
        if not 0 < v.get(share, 0.5) <= 1:
            faults.append(f"efficiency.csv [{where}, {share}]: must be in (0, 1]")
    if v.get("exposed", 0.0) > 1:
        faults.append(f"efficiency.csv [{where}, exposed]: must be in [0, 1]")
    return Efficiency(
        compute=v.get("compute", math.nan),
        memory=v.get("memory", math.nan),
        fixed_layer_s=v.get("fixed_layer", math.nan),
        attention=v.get("attention"),
        sequence_s=v.get("sequence", 0.0),
        exposed=v.get("exposed", 1.0),
    )


def _model(name: str, rows: Mapping[str, Fact], faults: list[str]) -> Transformer | None:
    dimension = dict.fromkeys(MODEL_FIELDS, "1")
    before = len(faults)
    v = _numbers("models", name, rows, dimension, set(), faults)
    if len(faults) > before:
        return None
    flags = ("gated", "tied_embedding", "attention_bias")
    sizes = {k: int(x) for k, x in v.items() if k not in flags}
    return Transformer(name=name, **sizes, **{k: bool(v[k]) for k in flags})  # type: ignore[arg-type]


def read_catalog(folder: Path) -> Catalog:
    """All tables of a catalogue folder; InputError with every fault."""
    faults: list[str] = []
    tables = {table: _read(folder, table, faults) for table in _TABLES}
    citations: dict[str, str] = {}
    for path in sorted(folder.glob("sources*.csv")):
        with path.open(newline="", encoding="utf-8") as file:
            citations.update({row["source"]: row["citation"] for row in csv.DictReader(file)})
    for fact in (f for rows in tables.values() for f in rows):
        if fact.source not in citations:
            faults.append(
                f"{fact.table}.csv [{', '.join(filter(None, fact.key))}]: no citation for source {fact.source!r}"
            )
    prices = {
        name: _numbers("prices", name, rows, PRICE_DIMENSION, set(PRICE_DIMENSION), faults)
        for name, rows in _grouped(tables["prices"]).items()
    }
    errors = read_profile_errors(folder, citations, faults)
    faults += known_profile_faults(errors, {(f.name, f.profile, f.phase) for f in tables["efficiency"]})
    efficiency = _efficiencies(tables["efficiency"], errors, faults)
    ranges = {name: _ranges(rows, faults) for name, rows in _grouped(tables["prices"]).items()}
    devices = {
        name: _device(
            name, rows, prices.get(name, {}), ranges.get(name, {}), efficiency.get((name, "default"), {}), faults
        )
        for name, rows in _grouped(tables["devices"]).items()
    }
    for name in devices:
        for phase in PHASES:
            if phase not in efficiency.get((name, "default"), {}):
                faults.append(f"efficiency.csv [{name}]: the default profile lacks phase {phase}")
    links = {}
    for name, rows in _grouped(tables["links"]).items():
        v = _numbers("links", name, rows, LINK_DIMENSION, set(), faults)
        if len(v) == len(LINK_DIMENSION):
            links[name] = LinkTier(
                name=name,
                bandwidth_byte_s=v["bandwidth"],
                latency_s=v["latency"],
                capex_usd=v["capex"],
                power_w=v["power"],
            )
    models = {name: _model(name, rows, faults) for name, rows in _grouped(tables["models"]).items()}
    if faults:
        raise InputError(faults)
    return Catalog(
        errors=errors,
        facts=tuple(f for rows in tables.values() for f in rows),
        citations=citations,
        devices={k: d for k, d in devices.items() if d},
        links=links,
        models={k: m for k, m in models.items() if m},
        profiles={name: tuple(sorted(p for n, p in efficiency if n == name)) for name in devices},
        _efficiency=efficiency,
    )


@cache
def load_catalog() -> Catalog:
    """The catalogue that ships with the program."""
    return read_catalog(Path(__file__).parent)
