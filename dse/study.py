"""The study's envelope: what every paradigm's study has. The paradigm adds workload and pools.

Frozen pydantic values; unknown keys are refused and all faults of a file are reported together.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from dse.columns import NUMERIC_COLUMNS, OBJECTIVE_SENSE, limit_sense, takes_limit
from dse.errors import unknown_name

Method = Literal["auto", "exhaustive", "milp", "optuna"]
Ask = Literal[
    "cheapest_for_demand", "best_within_limits", "hybrid_against_homogeneous", "least_link", "entry_price"
]  # fmt: skip
LARGEST_LIMIT = 1e30
"""No result column is larger."""
Item = TypeVar("Item")
Positive = Annotated[float, Field(ge=1e-12, le=1e15, allow_inf_nan=False)]
LARGEST_GB_S = 1e9
Bandwidth = Annotated[float, Field(ge=1e-6, le=LARGEST_GB_S, allow_inf_nan=False)]
"""GB/s"""
NonNegative = Annotated[float, Field(ge=0, le=1e15, allow_inf_nan=False)]
Frac = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]


class Part(BaseModel):
    """Base of every table of a study file."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, validate_default=True)


def one_or_many(value: object) -> object:
    """A single value stands for a list of one; a list makes the key an axis."""
    return value if isinstance(value, (list, tuple)) else [value]


def _tuple(value: object) -> object:
    value = one_or_many(value)
    return tuple(value) if isinstance(value, list) else value


def distinct(values: tuple[Item, ...]) -> tuple[Item, ...]:
    """An axis: at least one value, none twice."""
    if not values:
        raise ValueError("an axis needs at least one value")
    twice = sorted({str(v) for v in values if values.count(v) > 1})
    if twice:
        raise ValueError(f"{', '.join(twice)} is listed twice; list each value once")
    return values


AxisList = BeforeValidator(_tuple)


class Link(Part):
    """What connects two pools: a raw bandwidth, or tiers of the catalogue."""

    bandwidth_gb_s: Annotated[
        tuple[Bandwidth, ...] | None, BeforeValidator(lambda v: None if v is None else _tuple(v))
    ] = None
    """S of each ordered pair of pools [GB/s]; costs 0 and is flagged."""
    tier: Annotated[tuple[str, ...] | None, BeforeValidator(lambda v: None if v is None else _tuple(v))] = None
    count: Annotated[tuple[Annotated[int, Field(ge=1, le=100_000)], ...], AxisList] = (1,)
    """Links side by side, with a tier."""
    latency_s: NonNegative = 0.0
    per_pair: bool = False
    """Every pair of pools has its own of these links, instead of one for all."""

    @model_validator(mode="after")
    def _one_way(self) -> Link:
        if (self.bandwidth_gb_s is None) == (self.tier is None):
            raise ValueError("give either bandwidth_gb_s or tier (with count)")
        distinct(self.bandwidth_gb_s or self.tier or ())
        distinct(self.count)
        if self.bandwidth_gb_s is not None and self.count != (1,):
            raise ValueError("count goes with tier; list more values of bandwidth_gb_s instead")
        return self


class Site(Part):
    """Where the fleet stands: power, energy price, and how cost is counted."""

    pue: Annotated[float, Field(ge=1, le=3, allow_inf_nan=False)] = 1.2
    energy_usd_per_kwh: Annotated[float, Field(ge=0, le=1e4, allow_inf_nan=False)] = 0.08
    carbon_g_per_kwh: Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)] = 350.0
    cost_basis: Literal["rental", "ownership"] = "rental"
    life_years: Annotated[float, Field(ge=0.01, le=1000, allow_inf_nan=False)] = 4.0
    upkeep_frac_per_year: Frac = 0.05


class Objectives(Part):
    """Result columns that span the frontier."""

    maximise: Annotated[tuple[str, ...], AxisList] = ("throughput_tok_s",)
    minimise: Annotated[tuple[str, ...], AxisList] = ("cost_usd_per_h", "power_w")
    pick: Literal["auto", "knee", "fastest", "cheapest", "cheapest_token", "tokens_per_joule"] = "auto"
    """Which frontier point is recommended."""

    @field_validator("maximise", "minimise")
    @classmethod
    def _columns(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        distinct(names)
        for name in names:
            if name not in OBJECTIVE_SENSE:
                raise ValueError(unknown_name("objectives", "objective column", name, OBJECTIVE_SENSE))
        return names

    @model_validator(mode="after")
    def _senses(self) -> Objectives:
        for names, sense, other in ((self.maximise, "max", "minimise"), (self.minimise, "min", "maximise")):
            wrong = [n for n in names if OBJECTIVE_SENSE[n] != sense]
            if wrong:
                raise ValueError(f"{', '.join(wrong)} belongs under {other}")
        if len(self.names) > 4:
            raise ValueError(f"got {len(self.names)} objectives, at most 4 are allowed")
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """All objectives, maximised ones first."""
        return self.maximise + self.minimise


class Limits(Part):
    """Bounds on result columns: a number (upper or lower by the column's sense) or {min, max}."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)

    @model_validator(mode="before")
    @classmethod
    def _bounds(cls, raw: object) -> object:
        if not isinstance(raw, dict):
            raise ValueError("limits is a table of result column = number or { min, max }")
        faults = [fault for name, bound in raw.items() for fault in _limit_faults(str(name), bound)]
        if faults:
            raise ValueError("; ".join(faults))
        return raw

    def bounds(self) -> dict[str, tuple[float, float]]:
        """Column -> (lowest, highest) allowed value."""
        result = {}
        for name, bound in (self.model_extra or {}).items():
            if isinstance(bound, dict):
                result[name] = (float(bound.get("min", -math.inf)), float(bound.get("max", math.inf)))
            elif limit_sense(name) == "max":
                result[name] = (float(bound), math.inf)
            else:
                result[name] = (-math.inf, float(bound))
        return result


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= LARGEST_LIMIT


def _limit_faults(name: str, bound: object) -> list[str]:
    if not takes_limit(name):
        return [unknown_name(name, "result column", name, NUMERIC_COLUMNS)]
    if _is_number(bound):
        if limit_sense(name) is None:
            return [f"{name}: the column has no better side; give {{ min = ..., max = ... }}"]
        return []
    if not isinstance(bound, dict) or not bound or set(bound) - {"min", "max"}:
        return [f"{name}: got {bound!r}; give a finite number or {{ min = ..., max = ... }}"]
    bad = [f"{name}.{k}: got {v!r}; give a finite number" for k, v in bound.items() if not _is_number(v)]
    if not bad and "min" in bound and "max" in bound and bound["min"] > bound["max"]:
        bad.append(f"{name}: min {bound['min']} is above max {bound['max']}; no design can meet both")
    return bad


class Search(Part):
    """How to explore."""

    method: Method = "auto"
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    time_limit_s: Positive = 600.0
    resolution_frac: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = 0.01
    """MILP only: every feasible design is matched by a reported one that is at most this share of each objective's
    range worse; 0 finds every point."""
    trials: Annotated[int, Field(ge=1, le=10_000_000)] = 1000
    """Optuna only: most trials, 32 a generation. A trial is a purchase with all its settings; in large spaces the
    pick of the thousands of designs that its generation screened."""
    stop_gain_frac: Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)] = 1e-4
    """Optuna only: the search ends when `stop_generations` generations together raised the hypervolume by no more than
    this share; not before every purchase is tried where the trials reach them all."""
    stop_generations: Annotated[int, Field(ge=1, le=1_000_000)] = 8
    """Optuna only: see `stop_gain_frac`."""
    warm_start: bool = True
    """Optuna only: start from the ends of the frontier, where exact programs find them quickly."""


class Compute(Part):
    """Where the work runs."""

    ray: str = "local"
    workers: Annotated[int, Field(ge=1, le=4096)] = 1


OF_A_DEMAND: tuple[Ask, ...] = ("cheapest_for_demand",)
OF_LIMITS: tuple[Ask, ...] = ("best_within_limits", "hybrid_against_homogeneous")
OF_EITHER: tuple[Ask, ...] = ("least_link", "entry_price")
"""What each question needs: a demand; a budget or a power cap; one of these, the demand first."""
OF_MIXES: tuple[Ask, ...] = ("hybrid_against_homogeneous", "least_link")
"""Questions that hold mixes against fleets of one device."""


class Question(Part):
    """What a run is to answer exactly, each question in one line."""

    ask: Annotated[tuple[Ask, ...], AxisList]
    demand_requests_s: Positive | None = None
    """Instead of the study's demand."""
    budget_usd_per_h: Positive | None = None
    """Instead of the study's upper limit on cost."""
    power_w: Positive | None = None
    """Instead of the study's upper limit on power."""
    device: str | None = None
    """Whose entry price is asked for; without it, that of the study's only kind of wafer."""

    _distinct = field_validator("ask")(distinct)

    def faults(
        self, kinds: Mapping[str, str], *, demanded: bool | None, limits: Limits, paradigm: str
    ) -> Iterator[str]:
        """What keeps a study from answering: one sentence a fault.

        `kinds`: device -> its kind; `demanded`: whether the study has a demand, None where its paradigm has none.
        """
        yield from self._demand_faults(demanded, limits, paradigm)
        bounds = limits.bounds()
        capped = any(bounds.get(c, (0.0, math.inf))[1] < math.inf for c in ("cost_usd_per_h", "power_w"))
        capped = capped or self.budget_usd_per_h is not None or self.power_w is not None
        demanded = bool(demanded) or self.demand_requests_s is not None
        caps = "question.budget_usd_per_h, question.power_w, limits.cost_usd_per_h or limits.power_w"
        for ask in self.ask:
            if ask in OF_LIMITS and not capped:
                yield f"question.ask: {ask} has no limit to keep to; give {caps}"
            if ask in OF_EITHER and not (capped or demanded):
                yield f"question.ask: {ask} has neither a demand nor a limit to keep to; give a demand, or {caps}"
            if ask in OF_MIXES and len(kinds) < 2:
                only = ", ".join(kinds)
                yield f"question.ask: {ask} needs two kinds of device, the study has {only} only; add a [[pool]]"
        yield from self._device_faults(kinds)
        yield from self._idle_faults(demanded=demanded)

    def _demand_faults(self, demanded: bool | None, limits: Limits, paradigm: str) -> Iterator[str]:
        """What is wrong about the demand."""
        others = ", ".join(ask for ask in (*OF_LIMITS, *OF_EITHER))
        if demanded is None:
            if "cheapest_for_demand" in self.ask:
                yield (
                    f"question.ask: cheapest_for_demand is about requests/s, which {paradigm} has none of; "
                    f"ask one of {others}"
                )
            if self.demand_requests_s is not None:
                yield f"question.demand_requests_s: {paradigm} has no requests; remove it, and give a limit"
        elif "cheapest_for_demand" in self.ask and not demanded and self.demand_requests_s is None:
            yield (
                "question.ask: cheapest_for_demand has no demand; give question.demand_requests_s or demand.requests_s"
            )
        most = limits.bounds().get("requests_s", (0.0, math.inf))[1]
        if self.demand_requests_s is not None and self.demand_requests_s > most:
            yield (
                f"question.demand_requests_s: got {self.demand_requests_s:g}, limits.requests_s allows at most "
                f"{most:g}; no design can meet both"
            )

    def _device_faults(self, kinds: Mapping[str, str]) -> Iterator[str]:
        """What is wrong about the device whose price is asked for."""
        wafers = [name for name, kind in kinds.items() if kind == "wse"]
        if self.device is not None and self.device not in kinds:
            yield unknown_name("question.device", "device of the study", self.device, kinds)
        elif "entry_price" in self.ask and self.device is None and len(wafers) != 1:
            has = f"{len(wafers)} kinds of wafer" if wafers else "no wafer"
            yield f"question.device: is missing, and the study has {has}; name one of {', '.join(wafers or kinds)}"

    def _idle_faults(self, *, demanded: bool) -> Iterator[str]:
        """Keys that no question asked makes use of."""
        of_limits = OF_LIMITS if demanded else (*OF_LIMITS, *OF_EITHER)
        used_by: dict[str, tuple[Ask, ...]] = {
            "demand_requests_s": (*OF_A_DEMAND, *OF_EITHER),
            "budget_usd_per_h": of_limits,
            "power_w": of_limits,
            "device": ("entry_price",),
        }
        for key, asks in used_by.items():
            if getattr(self, key) is not None and not set(asks) & set(self.ask):
                yield f"question.{key}: no question asked uses it; ask one of {', '.join(asks)}, or remove it"


class Envelope(Part):
    """What every study has, whatever its paradigm."""

    name: Annotated[str, Field(min_length=1, max_length=200)]
    paradigm: str
    site: Site = Site()
    objectives: Objectives = Objectives()
    limits: Limits = Limits()
    search: Search = Search()
    compute: Compute = Compute()
    question: Question | None = None
    """What is asked besides the frontier; of the study as it is written."""
