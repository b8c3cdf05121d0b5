"""The study of a prefill/decode serving fleet: its keys and what they may hold."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import BeforeValidator, Field, ValidationInfo, field_validator, model_validator

from dse.errors import InputError
from dse.hardware import Accelerator
from dse.study import AxisList, Frac, Part, Positive, distinct
from dse.traffic import N_CLASSES, trace_tally

from .fleet_study import (
    MEASURED,
    Dtype,
    FleetStudy,
    Pool,
    Pools,
    WholeAxis,
    as_value_error,
    find_device,
    find_model,
    folder_of,
    known_model,
    listed,
)

Routing = Literal["split", "work_stealing"]
Role = Literal["prefill", "decode", "both"]
SHARE_TOLERANCE = 1e-6
MAX_CLASSES = 200


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


class Goodput(Part):
    """Limits on single requests, of which the goodput is the share that meets all."""

    ttft_s: Positive | None = None
    tpot_s: Positive | None = None


class ServingWorkload(Part):
    """What is served: a model, its data types, and requests (given, or binned from a trace)."""

    model: str
    weight_dtype: Annotated[tuple[Dtype, ...], AxisList] = ("bf16",)
    kv_dtype: Annotated[tuple[Dtype, ...], AxisList] = ("bf16",)
    compute_dtype: Annotated[tuple[Dtype, ...], AxisList] = ("bf16",)
    prefix_hit_frac: Frac = 0.0
    routing: Annotated[tuple[Routing, ...], AxisList] = ("split",)
    requests: Annotated[tuple[Request, ...] | None, BeforeValidator(listed)] = None
    trace: str | None = None
    classes: Annotated[int, Field(ge=1, le=MAX_CLASSES)] = N_CLASSES
    """Most request classes that a trace is cut into."""
    slo: Slo = Slo()
    goodput: Goodput = Goodput()
    arrival_cv2: Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)] | None = None
    """Squared coefficient of variation of the gaps between requests; without it that of the trace, or 1 (Poisson)."""
    load_frac: Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)] = 0.8
    """Share of a design's capacity at which latencies under load are given, where there is no demand."""

    _distinct = field_validator("weight_dtype", "kv_dtype", "compute_dtype", "routing")(distinct)
    _known_model = field_validator("model")(known_model)

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
                trace_tally(folder_of(info) / trace)
            except InputError as error:
                raise as_value_error(error) from None
        return trace

    @property
    def goodput_limits(self) -> tuple[float, float] | None:
        """TTFT and TPOT that a request may take [s]: those of goodput, else of slo; None where there are none."""
        ttft = self.goodput.ttft_s or self.slo.ttft_p99_s
        tpot = self.goodput.tpot_s or self.slo.tpot_s
        return None if ttft is None and tpot is None else (ttft or np.inf, tpot or np.inf)

    @model_validator(mode="after")
    def _one_source(self) -> ServingWorkload:
        if (self.requests is None) == (self.trace is None):
            raise ValueError('give either [[workload.requests]] or trace = "file.csv"')
        if self.trace is None and "classes" in self.model_fields_set:
            raise ValueError("classes goes with trace: it says into how many classes a trace is cut")
        return self


class ServingPool(Pool):
    """One homogeneous set of devices on offer."""

    roles: Annotated[tuple[Role, ...], AxisList] = ("prefill", "decode", "both")
    prefill_batch: WholeAxis = (1,)
    max_decode_batch: WholeAxis = (256,)
    prefill_chunk_tokens: Annotated[int, Field(ge=16, le=1_000_000)] | None = None
    """Prompt tokens of one pass where an instance does both phases; without it a prompt is one pass."""

    _distinct_axes = field_validator("roles", "prefill_batch", "max_decode_batch")(distinct)

    def n_settings(self) -> int:
        """Settings of one count."""
        sizes = len(self.instance_size) * (len(self.roles) + 1)
        return sizes * len(self.prefill_batch) * len(self.max_decode_batch)


class Demand(Part):
    """What must be met."""

    requests_s: Positive


class ServingStudy(FleetStudy):
    """A whole pd_serving study."""

    paradigm: Literal["pd_serving"]
    workload: ServingWorkload
    pool: Annotated[tuple[ServingPool, ...], *Pools]
    demand: Demand | None = None

    @model_validator(mode="after")
    def _whole(self, info: ValidationInfo) -> ServingStudy:
        faults = self.fleet_faults(self.pool, self.workload.compute_dtype, folder_of(info))
        faults += self.question_faults(self.pool, folder_of(info), demanded=self.demand is not None)
        faults += self._measured_faults(folder_of(info))
        faults += self._chunk_faults()
        faults += self._goodput_faults()
        most = self.limits.bounds().get("requests_s", (0, np.inf))[1]
        if self.demand and most < self.demand.requests_s:
            faults.append(
                f"limits.requests_s allows at most {most:g}, demand.requests_s asks for "
                f"{self.demand.requests_s:g}; no design can meet both"
            )
        if faults:
            raise InputError(faults)
        return self

    def _chunk_faults(self) -> list[str]:
        """Where chunks of prompts make no sense."""
        stealing = "work_stealing" in self.workload.routing
        return [
            f"pool[{i}]: prefill_chunk_tokens goes with routing split: under work stealing instances divide between "
            "the phases, and no prompt interrupts decoding"
            for i, pool in enumerate(self.pool)
            if pool.prefill_chunk_tokens is not None and stealing
        ]

    def _goodput_faults(self) -> list[str]:
        """What goodput as an objective or limit lacks."""
        asked = [*self.objectives.names, *self.limits.bounds()]
        wanted = [name for name in asked if name.startswith("goodput_")]
        if not wanted or (self.workload.goodput_limits and self.demand):
            return []
        lacks = [] if self.workload.goodput_limits else ["[workload.goodput] with ttft_s or tpot_s (or [workload.slo])"]
        lacks += [] if self.demand else ["[demand] requests_s"]
        return [f"{wanted[0]}: is the share of a demand that meets its limits; give {' and '.join(lacks)}"]

    def _measured_faults(self, folder: Path) -> list[str]:
        """What keeps a pool from taking its times from measured tables of whole passes."""
        faults: list[str] = []
        for i, pool in enumerate(self.pool):
            if pool.profile == MEASURED:
                faults += [f"pool[{i}]: profile {MEASURED!r}: {fault}" for fault in self._tables_lack(pool, folder)]
        return faults

    def _tables_lack(self, pool: ServingPool, folder: Path) -> list[str]:
        work, faults = self.workload, []
        if len(work.compute_dtype) > 1 or len(work.kv_dtype) > 1 or work.weight_dtype != work.compute_dtype:
            faults.append("give one compute_dtype, the same weight_dtype, and one kv_dtype")
        if work.prefix_hit_frac:
            faults.append("the tables have no cached prefix; set prefix_hit_frac = 0")
        model = find_model(work.model, folder)
        wrong = [g for g in pool.instance_size if model.heads % g]
        if wrong:
            faults.append(f"instance_size {wrong[0]} does not divide the {model.heads} heads of {model.name}")
        if not faults:
            try:
                measured_device(pool, work, folder)
            except InputError as error:
                faults += error.faults
        return faults


def measured_device(pool: ServingPool, work: ServingWorkload, folder: Path) -> Accelerator:
    """A pool's device; with the profile `MEASURED` its pass times are those of aiconfigurator's tables."""
    device = find_device(pool.device, pool.profile, folder)
    if pool.profile != MEASURED:
        return device
    from dse.calibration.aiconfigurator import with_aiconfigurator

    model = find_model(work.model, folder)
    unjudged = {phase: replace(e, interval=None, by_dtype={}) for phase, e in device.efficiency.items()}
    return with_aiconfigurator(
        replace(device, efficiency=unjudged), model, compute_dtype=work.compute_dtype[0], kv_dtype=work.kv_dtype[0]
    )
