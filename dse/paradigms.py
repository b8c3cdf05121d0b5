"""The one table of paradigms: a name, and the four things the engine needs of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dse.model.serving_screen import SCREENED as PD_SERVING_SCREENED
from dse.study import Envelope
from search_spaces import pd_serving, pd_serving_study

if TYPE_CHECKING:
    import optuna

    from dse.model.serving_screen import Screen

Ints = NDArray[np.int64]
Values = NDArray[np.generic]


class Space(Protocol):
    """All designs of a study: a numbered grid, a legality rule, and their scores."""

    @property
    def n_designs(self) -> int:
        """Size of the grid, legal or not."""
        ...

    @property
    def n_options(self) -> int:
        """Settings of all pools together."""
        ...

    @property
    def pool_names(self) -> tuple[str, ...]:
        """Names of the pools, in the study's order."""
        ...

    @property
    def single_best(self) -> tuple[float, float, float, float]:
        """Best throughput per USD/h and per W of any pool alone; the same with the phases apart."""
        ...

    @property
    def outer_axes(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """What an Optuna trial draws: names and values."""
        ...

    def n_units(self) -> int:
        """Blocks that `units` gives."""
        ...

    def units(self) -> Iterator[Any]:
        """Blocks of the grid, in order, each covered once."""
        ...

    def screen_unit(self, unit: Any) -> tuple[Screen, NDArray[np.bool_], int]:
        """A block's screen, which of it is legal, and its first grid index."""
        ...

    def legal(self, index: Ints) -> NDArray[np.bool_]:
        """Which grid indices are legal designs."""
        ...

    def score(self, index: Ints) -> dict[str, Values]:
        """Every column of the designs at these indices."""
        ...

    def numbers(self, index: Ints) -> dict[str, NDArray[np.float64]]:
        """The numeric columns only."""
        ...

    def score_design(
        self, settings: Mapping[str, str], *, explain: bool
    ) -> tuple[dict[str, Values], dict[str, object]]:
        """One design given as `--set` keys, on or off the axes, and what explains it."""
        ...

    def suggest(self, trial: optuna.Trial) -> tuple[int, ...]:
        """Draws an index on every outer axis."""
        ...

    def inner(self, outer: tuple[int, ...]) -> Ints:
        """Grid indices of all legal designs with one outer structure."""
        ...


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
