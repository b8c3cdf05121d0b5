"""The study of pipeline training: what it has besides the keys that all training has."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from dse.errors import InputError
from dse.study import AxisList, distinct

from .fleet_study import Pools, Whole, WholeAxis, find_device, folder_of
from .training_problem import TrainingProblem, resolved_fields
from .training_study import TrainingPool, TrainingStudy

Schedule = Literal["gpipe", "1f1b", "interleaved"]
MAX_STAGES = 512
Stages = Annotated[tuple[Annotated[int, Field(ge=1, le=MAX_STAGES)], ...], AxisList]
Layers = Annotated[tuple[Annotated[int, Field(ge=0, le=MAX_STAGES)], ...], AxisList]


class PpPool(TrainingPool):
    """One pool of pipeline stages, or of wafers that serve them.

    `schedule`, `chunks`, `offload_layers` and `collect` hold for the whole pipeline: the values of all pools that
    list them are tried.
    """

    stages: Stages = (1,)
    schedule: Annotated[tuple[Schedule, ...], AxisList] | None = None
    chunks: WholeAxis | None = None
    offload_layers: Layers | None = None
    collect: WholeAxis | None = None

    _distinct_stages = field_validator("stages")(distinct)

    @field_validator("schedule", "chunks", "offload_layers", "collect")
    @classmethod
    def _distinct_values(cls, values: tuple[object, ...] | None) -> tuple[object, ...] | None:
        return None if values is None else distinct(values)

    @property
    def unit_name(self) -> str:
        """What a count must be a multiple of, in words."""
        return "instance size x stage count"

    def instance_units(self) -> tuple[int, ...]:
        """Devices of one pipeline's stages on this pool."""
        return tuple(g * k for g in self.instance_size for k in self.stages)

    def n_settings(self) -> int:
        """Settings of one count."""
        return super().n_settings() * len(self.stages)


class PpStudy(TrainingStudy):
    """A whole pp_training study."""

    paradigm: Literal["pp_training"]
    pool: Annotated[tuple[PpPool, ...], *Pools]

    @model_validator(mode="after")
    def _whole(self, info: ValidationInfo) -> PpStudy:
        folder = folder_of(info)
        faults = self.training_faults(self.pool, folder)
        devices = [find_device(p.device, p.profile, folder) for p in self.pool]
        for i, device in enumerate(devices):
            if "train" in device.efficiency and device.efficiency["train"].table_flop:
                faults.append(
                    f"pool[{i}]: {device.name} gives a measured table for training, which has no time of a layer; "
                    "pipelines need compute, memory and fixed_layer_s instead of table_flop"
                )
        offloads = any(k > 0 for p in self.pool for k in p.offload_layers or ())
        if offloads and not any(d.streams for d in devices):
            faults.append(
                "offload_layers: no pool of streaming devices (streaming_byte above memory_byte) takes the layers; "
                "add one, or drop offload_layers"
            )
        schedules = {s for p in self.pool for s in p.schedule or ()}
        listed = [k for p in self.pool for k in p.offload_layers or ()]
        if offloads and 0 not in listed and all(d.streams for d in devices):
            faults.append(
                "offload_layers: every pool is of streaming devices, so none is left for the stages; add 0 or GPUs"
            )
        if offloads and 0 not in listed and schedules == {"interleaved"}:
            faults.append(
                "offload_layers: an interleaved pipeline hands no layers over; add 0, or schedule 1f1b or gpipe"
            )
        if not offloads and any(q > 1 for p in self.pool for q in p.collect or ()):
            faults.append("collect: micro-batches are collected by wafers only; add offload_layers above 0")
        if faults:
            raise InputError(faults)
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class PpProblem(TrainingProblem):
    """A pipeline study in numbers."""

    schedules: tuple[Schedule, ...]
    chunks: tuple[Whole, ...]
    offload_layers: tuple[int, ...]
    collect: tuple[Whole, ...]


def resolve(study: PpStudy, folder: Path) -> PpProblem:
    """Puts the catalogue's numbers in place of names."""
    pools = study.pool
    return PpProblem(
        **resolved_fields(study, pools, [p.stages for p in pools], folder),
        schedules=tuple(dict.fromkeys(v for p in pools for v in p.schedule or ())) or ("1f1b",),
        chunks=tuple(dict.fromkeys(v for p in pools for v in p.chunks or ())) or (2,),
        offload_layers=tuple(dict.fromkeys(v for p in pools for v in p.offload_layers or ())) or (0,),
        collect=tuple(dict.fromkeys(v for p in pools for v in p.collect or ())) or (1,),
    )
