"""The grid of a study's designs, numbered.

A grid index is mixed radix, slowest to fastest: regime (what holds for the whole fleet), link, pool 0, ..., last
pool. A pool's digit is the row of its setting.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from dse.errors import InputError

Ints = NDArray[np.int64]
Cell = TypeVar("Cell", bound=np.generic)

SCREEN_ROWS = 16_384
"""Designs in a block: small enough to stay in cache, large enough to pay for the calls."""


@dataclass(frozen=True, slots=True)
class Unit:
    """A block of the grid: one regime, one link, a range of settings of all pools but the last."""

    regime: int
    link: int
    low: int
    high: int


class Grid:
    """Designs of several regimes, each with its number of links and of settings of each pool."""

    def __init__(self, sizes: Sequence[Sequence[int]], block: int = SCREEN_ROWS) -> None:
        self._block = block
        """About how many designs a block has."""
        self.sizes = [list(s) for s in sizes]
        """Per regime: links, then settings of each pool."""
        starts = list(accumulate((math.prod(s) for s in self.sizes), initial=0))
        if starts[-1] >= 2**62:
            raise InputError(f"the space has {starts[-1]:.3g} designs, more than can be numbered; shorten an axis")
        self._starts = np.array(starts, dtype=np.int64)
        self.n_pools = len(self.sizes[0]) - 1 if self.sizes else 0

    @property
    def n_designs(self) -> int:
        """Size of the grid, legal or not."""
        return int(self._starts[-1])

    def units(self, first: int = 0, last: int | None = None) -> Iterator[Unit]:
        """Blocks of about `block` designs that cover the grid once, in order; of them those in [first, last)."""
        for number in range(first, self.n_units() if last is None else last):
            yield self._unit(number)

    def _unit(self, number: int) -> Unit:
        for regime, (n_links, *_) in enumerate(self.sizes):
            lows, prefixes = self._blocks(regime)
            if number < n_links * len(lows):
                link, block = divmod(number, len(lows))
                return Unit(regime, link, lows[block], min(lows[block] + lows.step, prefixes))
            number -= n_links * len(lows)
        raise IndexError(number)

    def n_units(self) -> int:
        """How many blocks `units` gives."""
        return sum(n_links * len(self._blocks(regime)[0]) for regime, (n_links, *_) in enumerate(self.sizes))

    def _blocks(self, regime: int) -> tuple[range, int]:
        """Where a regime's blocks start among the settings of all pools but the last, and how many those are."""
        _, *others, last = self.sizes[regime]
        prefixes = math.prod(others)
        return range(0, prefixes, max(1, self._block // last)), prefixes

    def rows_of(self, unit: Unit) -> list[Ints]:
        """Per pool, rows of its settings in shapes (R, 1) and, for the last pool, (1, K)."""
        sizes = self.sizes[unit.regime][1:]
        prefix = np.arange(unit.low, unit.high, dtype=np.int64)
        rows: list[Ints] = []
        for size in reversed(sizes[:-1]):
            rows.append((prefix % size)[:, None])
            prefix = prefix // size
        return [*reversed(rows), np.arange(sizes[-1], dtype=np.int64)[None, :]]

    def first_of(self, unit: Unit) -> int:
        """Grid index of a block's first design."""
        sizes = self.sizes[unit.regime]
        return int(self._starts[unit.regime]) + unit.link * math.prod(sizes[1:]) + unit.low * sizes[-1]

    def decode(self, index: Ints) -> tuple[Ints, Ints, Ints]:
        """Grid index (N,) -> regime (N,), link (N,), rows of the pools' settings (P, N)."""
        regime = np.searchsorted(self._starts, index, side="right") - 1
        link = np.empty(len(index), dtype=np.int64)
        rows = np.empty((self.n_pools, len(index)), dtype=np.int64)
        for r in np.unique(regime):
            here = regime == r
            rest = index[here] - self._starts[r]
            for p in reversed(range(self.n_pools)):
                rows[p, here] = rest % self.sizes[r][p + 1]
                rest = rest // self.sizes[r][p + 1]
            link[here] = rest
        return regime, link, rows

    def encode(self, regime: int, link: Ints, rows: Sequence[Ints]) -> Ints:
        """The inverse of `decode` for one regime; arguments broadcast."""
        index = np.asarray(link, dtype=np.int64)
        for size, row in zip(self.sizes[regime][1:], rows, strict=True):
            index = index * size + row
        return np.asarray(index + self._starts[regime], dtype=np.int64)

    def by_regime(
        self, index: Ints, columns_of: Callable[[int, Ints, Ints], dict[str, NDArray[Cell]]]
    ) -> dict[str, NDArray[Cell]]:
        """Columns of designs of any regimes, in the order of `index`; made by (regime, rows, link) regime by regime."""
        regime, link, rows = self.decode(index)
        merged: dict[str, NDArray[Cell]] = {}
        for r in np.unique(regime) if len(index) else [0]:
            at = np.flatnonzero(regime == r)
            for name, values in columns_of(int(r), rows[:, at], link[at]).items():
                merged.setdefault(name, np.empty(len(index), dtype=values.dtype))[at] = values
        return merged

    def crossing(self, regime: int, axes: Sequence[Ints]) -> Ints:
        """Grid indices of every combination of links and rows, given as one array an axis."""
        mesh = np.meshgrid(*axes, indexing="ij")
        return self.encode(regime, mesh[0].ravel(), [m.ravel() for m in mesh[1:]])
