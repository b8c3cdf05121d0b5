"""What every search space of a numbered grid does alike, whatever its paradigm: size, blocks, suggestion, links."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dse.pareto import RunningFront
from dse.study import LARGEST_GB_S

from .grid import Grid, Unit
from .moves import Moves
from .space import Pruned, Step

if TYPE_CHECKING:
    import optuna

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

KEPT_DESIGNS = 20_000
"""Scored, and scored again for their intervals, in a second or two."""


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

    def units(self, first: int = 0, last: int | None = None) -> Iterator[Unit]:
        """Blocks of the grid, in order, each covered once; of them those in [first, last)."""
        return self.grid.units(first, last)

    def n_units(self) -> int:
        """How many blocks `units` gives."""
        return self.grid.n_units()

    @property
    def most_kept(self) -> int:
        """Designs that are kept and scored beside the frontier, at most."""
        return KEPT_DESIGNS

    # -- dropping designs unseen: paradigms that can say so themselves -------------------------------

    def pruning_refusal(self, _objectives: Sequence[str], _bounds: Mapping[str, tuple[float, float]]) -> str:
        """Why enumeration has to look at every design of a study; empty where it can drop some unseen."""
        return "designs of this paradigm are looked at one by one"

    def pruned(
        self, _objectives: Sequence[str], _bounds: Mapping[str, tuple[float, float]], _front: RunningFront
    ) -> Iterator[Pruned]:
        """Raises NotImplementedError: see `pruning_refusal`."""
        raise NotImplementedError

    @property
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

    def outer_of(self, index: int) -> tuple[int, ...]:
        """The outer structure of one design."""
        regime, _, rows = self.decoded(index)
        counts = (int(o.n[row]) for o, row in zip(self.options_of(regime), rows, strict=True))
        return (regime, *(values.index(n) for n, (_, values) in zip(counts, self.outer_axes[1:], strict=True)))

    @cached_property
    def largest_inner(self) -> int:
        """Most designs, legal or not, that one outer structure has."""
        most = 0
        for regime, (n_links, *_) in enumerate(self.grid.sizes):
            repeated = (np.unique(options.n, return_counts=True)[1] for options in self.options_of(regime))
            most = max(most, math.prod((n_links, *(int(r.max(initial=0)) for r in repeated))))
        return most

    # -- search among designs one by one -----------------------------------------------------------

    @property
    def digit_axes(self) -> tuple[tuple[str, int], ...]:
        """What numbers a design: names and sizes of its digits."""
        sizes = [max(of_axis) for of_axis in zip(*self.grid.sizes, strict=True)]
        names = ("regime", "link", *(f"setting_{name}" for name in self.pool_names))
        return tuple(zip(names, (len(self.grid.sizes), *sizes), strict=True))

    def digits(self, index: Ints) -> Ints:
        """The digits of designs (N, axes)."""
        regime, link, rows = self.grid.decode(index)
        return np.column_stack([regime, link, *rows])

    @cached_property
    def _moves(self) -> Moves:
        return Moves(self.grid, [self.options_of(regime) for regime in range(len(self.grid.sizes))])

    def drawn(self, rng: np.random.Generator, n: int) -> Ints:
        """Grid indices of n random designs, legal or not."""
        return self.with_legal_links(self._moves.drawn(rng, n))

    def moved(self, rng: np.random.Generator, parents: Ints, n: int) -> Ints:
        """Grid indices of n designs near some of these, or crossed from two of them; legal or not."""
        return self.with_legal_links(self._moves.moved(rng, parents, n))

    def with_legal_links(self, index: Ints) -> Ints:
        """These designs, with the first link where another is not legal: where nothing crosses it stands for all."""
        regime, link, _ = self.grid.decode(index)
        strides = np.array([math.prod(sizes[1:]) for sizes in self.grid.sizes], dtype=np.int64)
        return np.where(self.legal(index), index, index - link * strides[regime])

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
