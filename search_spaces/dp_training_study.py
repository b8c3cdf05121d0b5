"""The study of data-parallel training: its keys are those that all training has."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import ValidationInfo, model_validator

from dse.errors import InputError

from .fleet_study import Pools, folder_of
from .training_problem import TrainingProblem, resolved_fields
from .training_study import TrainingPool, TrainingStudy


class DpStudy(TrainingStudy):
    """A whole dp_training study."""

    paradigm: Literal["dp_training"]
    pool: Annotated[tuple[TrainingPool, ...], *Pools]

    @model_validator(mode="after")
    def _whole(self, info: ValidationInfo) -> DpStudy:
        faults = self.training_faults(self.pool, folder_of(info))
        if faults:
            raise InputError(faults)
        return self


def resolve(study: DpStudy, folder: Path) -> TrainingProblem:
    """Puts the catalogue's numbers in place of names."""
    return TrainingProblem(**resolved_fields(study, study.pool, [(1,)] * len(study.pool), folder))
