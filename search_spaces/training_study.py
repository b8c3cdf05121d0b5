"""What both training paradigms' studies share: the run to be trained, and what interrupts it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, field_validator

from dse.model.training_memory import Recompute
from dse.study import AxisList, Part, Positive, distinct

from .fleet_study import MEASURED, Dtype, FleetStudy, Pool, WholeAxis, find_device, known_model

ZeroStage = Annotated[int, Field(ge=0, le=3)]
AtLeast0 = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]


class TrainingWorkload(Part):
    """What is trained: a model, the shape of a step, and perhaps how many tokens in all."""

    model: str
    compute_dtype: Annotated[tuple[Dtype, ...], AxisList] = ("bf16",)
    sequence_tokens: Annotated[int, Field(ge=1, le=100_000_000)]
    global_batch: WholeAxis
    """Sequences of one optimizer step."""
    recompute: Annotated[tuple[Recompute, ...], AxisList] = ("selective",)
    overlap_frac: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = 0.0
    """Share of the exchange between pools that hides behind arithmetic."""
    train_tokens: Positive | None = None
    """Adds time, energy and cost of the whole run."""

    _distinct = field_validator("compute_dtype", "global_batch", "recompute")(distinct)
    _known_model = field_validator("model")(known_model)


class Failures(Part):
    """What interrupts a run; by default nothing does."""

    mtbf_device_h: Positive | None = None
    """Mean time between failures of one device; a pool may have its own."""
    checkpoint_s: AtLeast0 = 0.0
    """Training stands still while a checkpoint is written."""
    restart_s: AtLeast0 = 0.0
    """From a failure until the last checkpoint runs again."""
    checkpoint_interval_s: Positive | None = None
    """Useful time between checkpoints; without it, the best."""


class TrainingPool(Pool):
    """One homogeneous set of devices on offer for training."""

    micro_batch: WholeAxis = (1,)
    zero_stage: Annotated[tuple[ZeroStage, ...], AxisList] = (1,)
    mtbf_device_h: Positive | None = None

    _distinct_axes = field_validator("micro_batch", "zero_stage")(distinct)

    def n_settings(self) -> int:
        """Settings of one count."""
        return len(self.instance_size) * len(self.micro_batch) * len(self.zero_stage)


class TrainingStudy(FleetStudy):
    """What a training study has besides its pools."""

    workload: TrainingWorkload
    failures: Failures = Failures()

    def training_faults(self, pools: tuple[TrainingPool, ...], folder: Path) -> list[str]:
        """What is wrong between the parts of a training study."""
        faults = self.fleet_faults(pools, self.workload.compute_dtype, folder)
        faults += self.question_faults(pools, folder, demanded=None)
        if self.link is not None and self.link.per_pair:
            faults.append(
                f"link.per_pair: {self.paradigm} has one link for all pairs of pools; only pd_serving has one a pair"
            )
        for i, pool in enumerate(pools):
            if pool.profile == MEASURED:
                faults.append(f"pool[{i}]: profile {MEASURED!r} has times of serving only; name another profile")
            device = find_device(pool.device, pool.profile, folder)
            if "train" not in device.efficiency:
                faults.append(f"pool[{i}]: {device.name} has no [efficiency.train]; add it to its device file")
        if not self.workload.train_tokens:
            asked = [c for c in (*self.limits.bounds(), *self.objectives.names) if c.startswith("train_")]
            faults += [f"{c}: is known only with workload.train_tokens; add it" for c in dict.fromkeys(asked)]
        return faults
