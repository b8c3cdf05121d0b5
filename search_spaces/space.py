"""What the engine asks of a search space, whatever the paradigm."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from dse.model.screening import Explanation, Screen
from dse.pareto import RunningFront

if TYPE_CHECKING:
    import optuna

Floats = NDArray[np.float64]
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


class Pruned(NamedTuple):
    """Designs that may be on the frontier, out of many that need no look."""

    designs: Ints
    """Their grid indices: legal, and able to run."""
    n_compared: int
    """Fleets and parts of fleets that were compared, one by one, to find them."""


class Yardstick(NamedTuple):
    """What the best fleets of one device reach, to scale to a design's cost or power."""

    base: str
    """Result column that it is scaled by."""
    tok_s_per_unit: float | Floats
    """Best throughput per unit of it: one for all designs, or one a design."""


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

    def yardsticks(self, columns: Mapping[str, Values]) -> dict[str, Yardstick]:
        """Gain column -> what the designs of these columns are compared with."""
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
    def numbering_refusal(self) -> str:
        """Why the grid lacks designs that the study allows; empty where it has them all."""
        ...

    @property
    def most_kept(self) -> int:
        """Designs that are kept and scored beside the frontier, at most: fewer where a score takes a program."""
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

    def decoded(self, index: int) -> tuple[int, Ints, list[int]]:
        """Regime, link and row of every pool's settings of one design."""
        ...

    def pruning_refusal(self, objectives: Sequence[str], bounds: Mapping[str, tuple[float, float]]) -> str:
        """Why enumeration has to look at every design of a study; empty where it can drop some unseen."""
        ...

    def pruned(
        self, objectives: Sequence[str], bounds: Mapping[str, tuple[float, float]], front: RunningFront
    ) -> Iterator[Pruned]:
        """Lots of designs, of which some are on the frontier for each of its points; `front` grows in between."""
        ...

    def varied(self, problem: Any) -> Space:
        """The space of a problem that differs in numbers of devices, of the links or of the site only."""
        ...

    def n_units(self) -> int:
        """Blocks that `units` gives."""
        ...

    def units(self, first: int = 0, last: int | None = None) -> Iterator[Any]:
        """Blocks of the grid, in order, each covered once; of them those in [first, last)."""
        ...

    def screen_unit(self, unit: Any) -> tuple[Screen, NDArray[np.bool_], int]:
        """A block's screen, which of it is legal, and its first grid index."""
        ...

    def screen_designs(self, index: Ints) -> tuple[Screen, NDArray[np.bool_]]:
        """The screen of the designs at these indices, in their order, and which of them are legal."""
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

    def outer_of(self, index: int) -> tuple[int, ...]:
        """The outer structure of one design."""
        ...

    @property
    def largest_inner(self) -> int:
        """Most designs, legal or not, that one outer structure has."""
        ...

    @property
    def digit_axes(self) -> tuple[tuple[str, int], ...]:
        """What numbers a design: names and sizes of its digits (regime, link, a setting per pool)."""
        ...

    def digits(self, index: Ints) -> Ints:
        """The digits of designs (N, axes)."""
        ...

    def drawn(self, rng: np.random.Generator, n: int) -> Ints:
        """Grid indices of n random designs, legal or not."""
        ...

    def moved(self, rng: np.random.Generator, parents: Ints, n: int) -> Ints:
        """Grid indices of n designs near some of these, or crossed from two of them; legal or not."""
        ...


def purchase_step(counts: tuple[int, ...], unit: int) -> int:
    """The step at the end of a pool's counts, in whole units of devices that are used together."""
    step = counts[-1] - counts[-2] if len(counts) > 1 else unit
    return step if step % unit == 0 else unit


def largest_ratio(gain: Floats, spent: Floats) -> float:
    """Largest gain per unit spent; what costs nothing is no measure for what does."""
    at = (gain > 0) & (spent > 0)
    return float((gain[at] / spent[at]).max(initial=0.0))
