"""What the engine asks of a search space, whatever the paradigm."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from dse.model.screening import Explanation, Screen

if TYPE_CHECKING:
    import optuna

Ints = NDArray[np.int64]
Values = NDArray[np.generic]


class Step(NamedTuple):
    """A small change of a design, as `--set` keys."""

    label: str
    settings: dict[str, str]
    replaces: tuple[str, ...] = ()
    """Keys of the design that the change takes the place of."""
    priced: bool = True
    """Whether cost and power of the changed design mean anything."""


class SingleBest(NamedTuple):
    """Best throughput of a fleet of one pool per USD/h and per W."""

    tok_s_per_usd_h: float
    tok_s_per_w: float
    apart_tok_s_per_usd_h: float
    """With the phases on separate instances of that device, each at its best size, KV cache moving for free."""
    apart_tok_s_per_w: float


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
    def single_best(self) -> SingleBest:
        """Best throughput per USD/h and per W of any pool alone; the same with the phases apart."""
        ...

    @property
    def outer_axes(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """What an Optuna trial draws: names and values."""
        ...

    @property
    def enumeration_refusal(self) -> str:
        """Why enumeration cannot answer this study exactly; empty where it can."""
        ...

    @property
    def demand(self) -> tuple[str, float] | None:
        """The result column that a demand bounds from below, and by how much."""
        ...

    @property
    def tie_breakers(self) -> tuple[str, ...]:
        """Columns of which less is preferred between designs of equal objectives."""
        ...

    def settings_of(self, row: Mapping[str, Any]) -> dict[str, str]:
        """The `--set` keys that give a frame's row again."""
        ...

    def next_steps(self, row: Mapping[str, Any]) -> list[Step]:
        """One step more of each thing that a design has."""
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

    def score_design(self, settings: Mapping[str, str]) -> tuple[dict[str, Values], Explanation]:
        """One design given as `--set` keys, on or off the axes, and what explains it."""
        ...

    def suggest(self, trial: optuna.Trial) -> tuple[int, ...]:
        """Draws an index on every outer axis."""
        ...

    def inner(self, outer: tuple[int, ...]) -> Ints:
        """Grid indices of all legal designs with one outer structure."""
        ...
