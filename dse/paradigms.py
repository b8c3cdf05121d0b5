"""The one table of paradigms: a name, and the four things the engine needs of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from dse.hardware import Phase
from dse.study import Envelope
from search_spaces import (
    dp_training,
    dp_training_study,
    pd_serving,
    pd_serving_problem,
    pd_serving_study,
    pp_training,
    pp_training_study,
    robust_comparison,
    robust_serving,
    robust_serving_problem,
    robust_serving_study,
    training_problem,
)
from search_spaces.space import Space

SERVING: tuple[Phase, ...] = ("prefill", "decode")
TRAINING: tuple[Phase, ...] = ("train",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Paradigm:
    """One way to lay an LLM workload on devices."""

    study_type: type[Envelope]
    resolve: Callable[[Any, Path], Any]
    portable: Callable[[Any, Any, Path], tuple[dict[str, Any], dict[str, Path]]]
    """The study as plain tables that stand alone in another folder, and the files it needs there."""
    space: Callable[[Any], Space]
    phases: tuple[Phase, ...]
    """What its times are of: the phases of devices that matter."""
    formulation: Callable[[], ModuleType] | None = None
    """Imports the MILP; late, since Pyomo takes half a second to load. None where the paradigm has none."""
    most_options: int = 0
    """`auto` hands the MILP at most this many options of all pools together: beyond, a box takes too long."""
    extra: Callable[[Any, Mapping[str, Any], Any, Any], dict[str, Any]] | None = None
    """What run.json says besides, of the study, its recommended design, and the doors to exact answers and scores
    that `dse.extremes` hands in."""
    quick_options: int = 0
    """Up to so many options exact programs find the frontier's ends in a second or two; 0: never that quick."""


def _pd_provisioning() -> ModuleType:
    from formulations import pd_provisioning

    return pd_provisioning


def _dp_partition() -> ModuleType:
    from formulations import dp_partition

    return dp_partition


def _pp_placement() -> ModuleType:
    from formulations import pp_placement

    return pp_placement


def _robust_provisioning() -> ModuleType:
    from formulations import robust_provisioning

    return robust_provisioning


PARADIGMS: Mapping[str, Paradigm] = {
    "pd_serving": Paradigm(
        study_type=pd_serving_study.ServingStudy,
        resolve=pd_serving_problem.resolve,
        portable=pd_serving_problem.portable,
        space=pd_serving.ServingSpace,
        formulation=_pd_provisioning,
        phases=SERVING,
        most_options=4000,
        quick_options=400,
    ),
    "dp_training": Paradigm(
        study_type=dp_training_study.DpStudy,
        resolve=dp_training_study.resolve,
        portable=training_problem.portable,
        space=dp_training.DpSpace,
        formulation=_dp_partition,
        phases=TRAINING,
        most_options=300,
    ),
    "pp_training": Paradigm(
        study_type=pp_training_study.PpStudy,
        resolve=pp_training_study.resolve,
        portable=training_problem.portable,
        space=pp_training.PpSpace,
        formulation=_pp_placement,
        phases=TRAINING,
        most_options=60,
    ),
    "robust_serving": Paradigm(
        study_type=robust_serving_study.RobustStudy,
        resolve=robust_serving_problem.resolve,
        portable=robust_serving_problem.portable,
        space=robust_serving.RobustSpace,
        formulation=_robust_provisioning,
        phases=SERVING,
        extra=robust_comparison.compare_adaptation,
        most_options=4000,
    ),
}
