"""The study of a fleet that serves several scenarios: its keys and what they may hold."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator, model_validator

from dse.errors import InputError, unknown_name
from dse.study import AxisList, Frac, Part, Positive, distinct

from .fleet_study import Dtype, FleetStudy, Pools, folder_of, known_model, listed, pool_name
from .pd_serving_study import MAX_CLASSES, SHARE_TOLERANCE, Request, ServingPool

Adaptation = Literal["fixed_split", "work_stealing", "adaptive"]
ADAPTATIONS: tuple[Adaptation, ...] = ("fixed_split", "work_stealing", "adaptive")
MAX_SCENARIOS = 200
LEAST_OUTPUT = 2.0
"""Output tokens: the first is made by prefill, decode makes the rest, and must have something to do."""
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


class RobustSlo(Part):
    """Service limits."""

    tpot_s: Positive | None = None


class RobustWorkload(Part):
    """What is served: a model, its data types, and request classes (given, or binned from a trace)."""

    model: str
    weight_dtype: Dtype = "bf16"
    kv_dtype: Dtype = "bf16"
    compute_dtype: Dtype = "bf16"
    prefix_hit_frac: Frac = 0.0
    requests: Annotated[tuple[Request, ...] | None, BeforeValidator(listed)] = None
    trace: str | None = None
    window_s: Positive | None = None
    """With a trace: every window of so many seconds is a scenario."""
    classes: Annotated[int, Field(ge=1, le=MAX_CLASSES)] = 8
    """Most request classes that a trace is cut into."""
    slo: RobustSlo = RobustSlo()

    _known_model = field_validator("model")(known_model)

    @model_validator(mode="after")
    def _one_source(self) -> RobustWorkload:
        if (self.requests is None) == (self.trace is None):
            raise ValueError('give either [[workload.requests]] with [[scenario]], or trace = "file.csv" with window_s')
        if (self.trace is None) != (self.window_s is None):
            raise ValueError("trace and window_s go together: every window of the trace is a scenario")
        if self.trace is None and "classes" in self.model_fields_set:
            raise ValueError("classes goes with trace: it says into how many classes a trace is cut")
        return self

    @field_validator("requests")
    @classmethod
    def _classes(cls, requests: tuple[Request, ...] | None) -> tuple[Request, ...] | None:
        if requests is None:
            return None
        if not requests:
            raise ValueError("give at least one request class")
        total = sum(r.share for r in requests)
        faults = []
        if abs(total - 1.0) > SHARE_TOLERANCE:
            faults.append(f"the shares sum to {total:.6g}, must sum to 1; scale each by {1 / total:.6g}")
        names = class_names(requests)
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            faults.append(f"{', '.join(twice)} names two classes; give each its own name")
        short = [name for name, r in zip(names, requests, strict=True) if r.output_tokens < LEAST_OUTPUT]
        if short:
            faults.append(f"output_tokens of {', '.join(short)} must be at least {LEAST_OUTPUT:g}")
        if faults:
            raise ValueError("; ".join(faults))
        return requests


def class_names(requests: tuple[Request, ...]) -> list[str]:
    """Name of each request class, made where none is given."""
    return [r.name or f"class{i}" for i, r in enumerate(requests)]


class Scenario(Part):
    """One situation that the fleet must serve."""

    name: str = ""
    weight: Positive = 1.0
    """Share of time, or of importance; normalised over all scenarios."""
    demand_requests_s: Positive | None = None
    growth: Positive = 1.0
    """Factor on the demand."""
    mix: dict[str, Share] = Field(default_factory=dict)
    """Share of each class by name; left out: the shares of the classes."""
    available_frac: dict[str, Share] = Field(default_factory=dict)
    """Share of a pool's devices that is up, by name; left out: all."""

    @field_validator("mix")
    @classmethod
    def _whole(cls, mix: dict[str, float]) -> dict[str, float]:
        total = sum(mix.values())
        if mix and abs(total - 1.0) > SHARE_TOLERANCE:
            way_out = f"; scale each by {1 / total:.6g}" if total else ""
            raise ValueError(f"the shares sum to {total:.6g}, must sum to 1{way_out}")
        return mix


class RobustPool(ServingPool):
    """One homogeneous set of devices on offer."""

    spares: Annotated[int, Field(ge=0, le=100_000)] = 0
    """Instances of a bought pool that serve in no scenario."""


class RobustDemand(Part):
    """How far the scenarios' demands must be met."""

    headroom: Positive = 1.0
    """Every demand is met so many times."""


class RobustStudy(FleetStudy):
    """A whole robust_serving study."""

    paradigm: Literal["robust_serving"]
    workload: RobustWorkload
    adaptation: Annotated[tuple[Adaptation, ...], AxisList] = ADAPTATIONS
    scenario: Annotated[tuple[Scenario, ...], BeforeValidator(listed), Field(max_length=MAX_SCENARIOS)] = ()
    pool: Annotated[tuple[RobustPool, ...], *Pools]
    demand: RobustDemand = RobustDemand()

    _distinct_adaptation = field_validator("adaptation")(distinct)

    @model_validator(mode="after")
    def _consistent(self, info: ValidationInfo) -> RobustStudy:
        folder = folder_of(info)
        faults = self.fleet_faults(self.pool, (self.workload.compute_dtype,), folder)
        faults += [*self._scenario_faults(), *self._name_faults(folder), *self._pool_kinds(), *self._demand_faults()]
        if faults:
            raise InputError(faults)
        return self

    def _scenario_faults(self) -> Iterator[str]:
        if self.workload.requests is not None and not self.scenario:
            yield "[[scenario]] is missing; give at least one, or a trace with window_s"
        if self.workload.trace is not None and self.scenario:
            yield "[[scenario]]: the windows of the trace are the scenarios; remove these, or the trace"
        with_demand = [s for s in self.scenario if s.demand_requests_s is not None]
        if 0 < len(with_demand) < len(self.scenario):
            at = next(i for i, s in enumerate(self.scenario) if s.demand_requests_s is None)
            yield f"scenario[{at}]: demand_requests_s is missing; give it in all scenarios, or in none"
        grown = [i for i, s in enumerate(self.scenario) if s.growth != 1 and s.demand_requests_s is None]
        if grown:
            yield f"scenario[{grown[0]}]: growth multiplies demand_requests_s, which is not given"

    def _name_faults(self, folder: Path) -> Iterator[str]:
        """Names that nothing has: of scenarios, of classes in a mix, of pools that are up."""
        seen: dict[str, int] = {}
        classes = class_names(self.workload.requests or ())
        pools = [pool_name(p, folder) for p in self.pool]
        for i, scenario in enumerate(self.scenario):
            name = scenario_name(scenario, i)
            if name in seen:
                yield f"scenario[{i}]: is named {name!r} like scenario[{seen[name]}]; give each its own name"
            seen[name] = i
            yield from (
                unknown_name(f"scenario[{i}].mix", "class", c, classes) for c in scenario.mix if c not in classes
            )
            yield from (
                unknown_name(f"scenario[{i}].available_frac", "pool", p, pools)
                for p in scenario.available_frac
                if p not in pools
            )

    def _pool_kinds(self) -> Iterator[str]:
        for i, pool in enumerate(self.pool):
            if pool.profile == "aiconfigurator":
                yield f'pool[{i}]: profile "aiconfigurator" is of pd_serving; use another profile'
        if self.link is not None and self.link.per_pair:
            yield "link.per_pair: robust_serving has one link for all pairs of pools; remove it"

    def _demand_faults(self) -> Iterator[str]:
        asked = [s for s in self.scenario if s.demand_requests_s is not None]
        named = [name for name in (*self.limits.bounds(), *self.objectives.names) if name == "headroom"]
        if not asked and self.workload.trace is None and (named or self.demand != RobustDemand()):
            yield "headroom is capacity over demand; give every [[scenario]] its demand_requests_s"


def scenario_name(scenario: Scenario, i: int) -> str:
    """A scenario is numbered unless it has its own name."""
    return scenario.name or f"scenario{i}"
