"""The one table of paradigms: a name, and the four things the engine needs of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dse.study import Envelope
from dse.model.pd_serving import SCREENED as PD_SERVING_SCREENED
from search_spaces import pd_serving, pd_serving_study

if TYPE_CHECKING:
    import optuna

    from dse.model.pd_serving import Screen

Ints = NDArray[np.int64]
Values = NDArray[np.generic]


class Space(Protocol):
    """All designs of a study: a numbered grid, a legality rule, and their scores."""

    @property
    def n_designs(self) -> int: ...
    @property
    def pool_names(self) -> tuple[str, ...]: ...
    @property
    def single_best(self) -> tuple[float, float]: ...
    @property
    def outer_axes(self) -> tuple[tuple[str, tuple[int, ...]], ...]: ...
    def n_units(self) -> int: ...
    def units(self) -> Iterator[Any]: ...
    def screen_unit(self, unit: Any) -> tuple[Screen, NDArray[np.bool_], int]: ...
    def legal(self, index: Ints) -> NDArray[np.bool_]: ...
    def score(self, index: Ints) -> dict[str, Values]: ...
    def numbers(self, index: Ints) -> dict[str, Values]: ...
    def score_design(
        self, settings: Mapping[str, str], *, explain: bool
    ) -> tuple[dict[str, Values], dict[str, object]]: ...
    def suggest(self, trial: optuna.Trial) -> tuple[int, ...]: ...
    def inner(self, outer: tuple[int, ...]) -> Ints: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Paradigm:
    """One way to lay an LLM workload on devices."""

    study_type: type[Envelope]
    resolve: Callable[[Any, Path], Any]
    portable: Callable[[Any, Any, Path], tuple[dict[str, Any], dict[str, Path]]]
    """The study as plain tables that stand alone in another folder, and the files it needs there."""
    space: Callable[[Any], Any]
    screened: tuple[str, ...]
    """Result columns that screening gives."""
    formulation: Callable[[], ModuleType]
    """Imports the MILP; late, since Pyomo takes half a second to load."""


def _pd_provisioning() -> ModuleType:
    from formulations import pd_provisioning

    return pd_provisioning


PARADIGMS: Mapping[str, Paradigm] = {
    "pd_serving": Paradigm(
        study_type=pd_serving_study.ServingStudy,
        resolve=pd_serving_study.resolve,
        portable=pd_serving_study.portable,
        space=pd_serving.ServingSpace,
        screened=PD_SERVING_SCREENED,
        formulation=_pd_provisioning,
    ),
}
