"""Small changes of designs over the digits of their grid: what a search among single designs proposes.

A child comes from one parent, or takes each digit from either of two. Then at least one digit changes: a link or a
regime to a neighbour or to any other; a pool's setting to the same setting with another count (near or far), to
another setting of the same count, to any setting, or to none. Children are numbers of the grid, not always legal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .grid import Grid

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Rng = np.random.Generator

CROSSED = 0.4
"""Share of children that have two parents."""
FAR = 0.25
"""Share of steps that may reach across a whole axis; the others are geometric, one step being likeliest."""


class Order:
    """The settings of one pool in an order: groups side by side, and in each the rows one after the other."""

    def __init__(self, group: Ints, within: Ints) -> None:
        self.row = np.lexsort((within, group)).astype(np.int64)
        self.place = np.argsort(self.row).astype(np.int64)
        ordered = group[self.row]
        self.first = np.searchsorted(ordered, group, side="left")
        self.size = np.searchsorted(ordered, group, side="right") - self.first

    def step(self, rng: Rng, row: Ints) -> Ints:
        """Another row of the same group, near or far; the ends stop it."""
        first, size = self.first[row], self.size[row]
        return self.row[first + stepped(rng, self.place[row] - first, size)]


class PoolMoves:
    """Moves among the settings of one pool."""

    def __init__(self, options: Any) -> None:
        count = np.asarray(options.n, dtype=np.int64)
        others = [getattr(options, f.name) for f in fields(options) if f.name != "n"]
        kind = np.unique(np.stack(others, axis=1), axis=0, return_inverse=True)[1].reshape(-1)
        self.n_rows = len(count)
        self.none = np.flatnonzero(count == 0)
        self.by_count = Order(kind.astype(np.int64), count)
        self.by_kind = Order(count, kind.astype(np.int64))
        place = np.arange(self.n_rows, dtype=np.int64)
        self.by_row = Order(np.zeros_like(place), place)

    def changed(self, rng: Rng, row: Ints) -> Ints:
        """Each row changed in one way."""
        way = rng.choice(5, size=len(row), p=(0.5, 0.2, 0.1, 0.1, 0.1))
        result = row.copy()
        for number, move in enumerate((self.by_count.step, self.by_kind.step, self.by_row.step, self._any, self._none)):
            at = np.flatnonzero(way == number)
            result[at] = move(rng, row[at])
        return result

    def _any(self, rng: Rng, row: Ints) -> Ints:
        return rng.integers(0, self.n_rows, len(row))

    def _none(self, _rng: Rng, row: Ints) -> Ints:
        return np.full_like(row, self.none[0]) if len(self.none) else row

    def drawn(self, rng: Rng, absent: Bools) -> Ints:
        """Any row; none is bought where that is asked and on offer."""
        row = rng.integers(0, self.n_rows, len(absent))
        return np.where(absent, self._none(rng, row), row)


def stepped(rng: Rng, place: Ints, size: Ints) -> Ints:
    """Places on axes of these sizes, one step away or more."""
    far = rng.random(len(place)) < FAR
    length = np.where(far, 1 + (rng.random(len(place)) * size).astype(np.int64), rng.geometric(0.5, len(place)))
    sign = np.where(rng.random(len(place)) < 0.5, -1, 1)
    return np.asarray(np.clip(place + sign * length, 0, size - 1), dtype=np.int64)


class Moves:
    """Draws and moves designs of one grid."""

    def __init__(self, grid: Grid, options: Sequence[Sequence[Any]]) -> None:
        self.grid = grid
        self.sizes = np.array(grid.sizes, dtype=np.int64).reshape(len(grid.sizes), -1)
        # regimes that share their settings share the moves too
        known: dict[int, PoolMoves] = {}
        self.pools = [[known.setdefault(id(o), PoolMoves(o)) for o in of_regime] for of_regime in options]

    def drawn(self, rng: Rng, n: int) -> Ints:
        """n random designs: half with all pools likely, half with a random share of them absent."""
        regime = rng.integers(0, len(self.pools), n)
        link = (rng.random(n) * self.sizes[regime, 0]).astype(np.int64)
        share = np.where(rng.random(n) < 0.5, 0.0, rng.random(n))
        absent = rng.random((self.grid.n_pools, n)) < share
        rows = self._of_pools(regime, [partial(self._drawn_rows, rng, absent[p]) for p in range(self.grid.n_pools)])
        return self._encoded(regime, link, rows)

    def moved(self, rng: Rng, parents: Ints, n: int) -> Ints:
        """n children of these designs."""
        regimes, links, parent_rows = self.grid.decode(parents)
        one, two = rng.integers(0, len(parents), (2, n))
        regime, link, rows = regimes[one], links[one], parent_rows[:, one]
        other, other_link, other_rows = regimes[two], links[two], parent_rows[:, two]
        crossed = (rng.random(n) < CROSSED) & (self.sizes[regime] == self.sizes[other]).all(axis=1)
        link = np.where(crossed & (rng.random(n) < 0.5), other_link, link)
        rows = np.where(crossed & (rng.random(rows.shape) < 0.5), other_rows, rows)
        regime = np.where(crossed & (rng.random(n) < 0.5), other, regime)
        # one digit changes for sure, each other one with the chance of one in all
        n_digits = self.grid.n_pools + 2
        changes = rng.random((n_digits, n)) < 1.0 / n_digits
        sure = ~crossed | (rng.random(n) < 0.5)
        changes[rng.integers(0, n_digits, n)[sure], np.flatnonzero(sure)] = True
        moved = self._of_pools(
            regime, [partial(self._moved_rows, rng, rows[p], changes[p]) for p in range(self.grid.n_pools)]
        )
        link = np.where(changes[-2], stepped(rng, link, self.sizes[regime, 0]), link)
        anywhere = rng.integers(0, len(self.pools), n)
        regime = np.where(changes[-1], anywhere, regime)
        return self._encoded(regime, link, moved)

    @staticmethod
    def _drawn_rows(rng: Rng, absent: Bools, moves: PoolMoves, at: Ints) -> Ints:
        return moves.drawn(rng, absent[at])

    @staticmethod
    def _moved_rows(rng: Rng, row: Ints, changes: Bools, moves: PoolMoves, at: Ints) -> Ints:
        result, chosen = row[at], np.flatnonzero(changes[at])
        result[chosen] = moves.changed(rng, result[chosen])
        return result

    def _of_pools(self, regime: Ints, rows_of: Sequence[Any]) -> Ints:
        """Rows (P, N), made for all designs whose regimes offer a pool the same settings together."""
        result = np.empty((len(rows_of), len(regime)), dtype=np.int64)
        for p, make in enumerate(rows_of):
            of_regime = np.array([id(pools[p]) for pools in self.pools])[regime]
            for key in dict.fromkeys(id(pools[p]) for pools in self.pools):
                at = np.flatnonzero(of_regime == key)
                moves = next(pools[p] for pools in self.pools if id(pools[p]) == key)
                result[p, at] = make(moves, at)
        return result

    def _encoded(self, regime: Ints, link: Ints, rows: Ints) -> Ints:
        """Grid indices; digits beyond a regime's axes are brought back to their last value."""
        index = np.empty(len(regime), dtype=np.int64)
        last = self.sizes[regime] - 1
        for r in np.unique(regime):
            at = np.flatnonzero(regime == r)
            within = np.minimum(rows[:, at], last[at, 1:].T)
            index[at] = self.grid.encode(int(r), np.minimum(link[at], last[at, 0]), list(within))
        return index
