"""What every search space of a numbered grid does alike, whatever its paradigm: size, blocks, suggestion, links."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dse.model.screening import Screen
from dse.pareto import RunningFront
from dse.study import LARGEST_GB_S

from .grid import Grid, Unit
from .space import Pruned, Step

if TYPE_CHECKING:
    import optuna

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


class Options(Protocol):
    """Settings of one pool."""

    @property
    def n(self) -> Ints:
        """Devices of each setting."""
        ...


class GridSpace(ABC):
    """Designs of regimes, links and settings of pools, numbered by a `Grid`."""

    problem: Any
    """The study in numbers: its `pools` and `link_names`."""
    grid: Grid

    @property
    def pool_names(self) -> tuple[str, ...]:
        """Names of the pools, in the study's order."""
        return tuple(pool.name for pool in self.problem.pools)

    @property
    def link_names(self) -> tuple[str, ...]:
        """Names of the links, ascending in bandwidth."""
        names: tuple[str, ...] = self.problem.link_names
        return names

    @abstractmethod
    def options_of(self, regime: int) -> Sequence[Options]:
        """Settings of each pool under one regime."""

    @abstractmethod
    def legal(self, index: Ints) -> Bools:
        """Which grid indices are legal designs."""

    @property
    def n_designs(self) -> int:
        """Size of the grid, legal or not."""
        return self.grid.n_designs

    @property
    def n_options(self) -> int:
        """Settings of all pools together, under the regime that has most."""
        return max(sum(sizes[1:]) for sizes in self.grid.sizes)

    def decoded(self, index: int) -> tuple[int, Ints, list[int]]:
        """Regime, link of every pool with each other (P, P) and row of every pool's settings of one design."""
        regime, link, rows = self.grid.decode(np.array([index], dtype=np.int64))
        return int(regime[0]), self.linked(int(link[0])), rows[:, 0].tolist()

    def linked(self, link: int) -> Ints:
        """Link of every pool with each other (P, P): the same between all."""
        n = len(self.pool_names)
        return np.full((n, n), link, dtype=np.int64)

    @property
    def numbering_refusal(self) -> str:
        """Why the grid lacks designs that the study allows; empty where it has them all."""
        return ""

    def units(self) -> Iterator[Unit]:
        """Blocks of the grid, in order, each covered once."""
        return self.grid.units()

    def n_units(self) -> int:
        """How many blocks `units` gives."""
        return self.grid.n_units()

    # -- dropping designs unseen: paradigms that can say so themselves -------------------------------

    def pruning_refusal(self, _objectives: Sequence[str], _bounds: Mapping[str, tuple[float, float]]) -> str:
        """Why enumeration has to look at every design of a study; empty where it can drop some unseen."""
        return "designs of this paradigm are looked at one by one"

    def pruned(
        self, _objectives: Sequence[str], _bounds: Mapping[str, tuple[float, float]], _front: RunningFront
    ) -> Iterator[Pruned]:
        """Nothing is dropped."""
        raise NotImplementedError

    def screen_index(self, index: Ints) -> Screen:
        """Only what is dropped unseen needs designs screened by number."""
        raise NotImplementedError

    # -- Optuna: what is bought outside, how it is set up inside -----------------------------------

    @cached_property
    def outer_axes(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """Axes that a trial draws: the regime and the devices of each pool."""
        regimes = tuple(range(len(self.grid.sizes)))
        of_regimes = [self.options_of(r) for r in regimes]
        counts = tuple(
            (f"n_{name}", tuple(sorted({int(n) for options in of_regimes for n in np.unique(options[p].n)})))
            for p, name in enumerate(self.pool_names)
        )
        return (("regime", regimes), *counts)

    def suggest(self, trial: optuna.Trial) -> tuple[int, ...]:
        """Draws the outer structure: an index on each outer axis."""
        return tuple(trial.suggest_int(name, 0, len(values) - 1) for name, values in self.outer_axes)

    def inner(self, outer: tuple[int, ...]) -> Ints:
        """Grid indices of every legal design with this outer structure: sizes, batches, roles, links."""
        chosen = [
            np.flatnonzero(options.n == values[i])
            for options, (_, values), i in zip(self.options_of(outer[0]), self.outer_axes[1:], outer[1:], strict=True)
        ]
        links = np.arange(self.grid.sizes[outer[0]][0], dtype=np.int64)
        index = self.grid.crossing(outer[0], [links, *chosen])
        return index[self.legal(index)] if len(index) else index

    # -- one step more -----------------------------------------------------------------------------

    def link_steps(self, row: Mapping[str, Any], *, worth_more: bool) -> list[Step]:
        """The next wider link; and, where it is worth asking, 1 GB/s more, which has no price of its own."""
        names, link = self.link_names, str(row["link"])
        if link not in names:
            return []
        steps, at = [], names.index(link)
        if at + 1 < len(names):
            steps.append(Step(f"link {names[at + 1]} instead of {link}", {"link": names[at + 1]}))
        if worth_more and float(row["link_gb_s"]) + 1.0 <= LARGEST_GB_S:
            wider = {"link_gb_s": repr(float(row["link_gb_s"]) + 1.0)}
            steps.append(Step("1 GB/s more of link", wider, replaces=("link",), priced=False))
        return steps
