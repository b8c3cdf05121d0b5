"""Dominance over frames, thin over moocore; senses come from the column schema, and are applied here only.

Ties and NaN are defined: equal rows both stay on the front; a row with NaN never is on it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import moocore
import numpy as np
from numpy.typing import NDArray

from dse.columns import OBJECTIVE_SENSE

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_DIGITS = 2.0**40
"""Twelve significant digits, in binary."""

ROUNDING = 1e-11
"""The quick test keeps what is worse in the first objective by no more than this share: it may be a tie."""

FINITE = 1e200
"""Stands for infinity where cells are counted."""

_BINS = {1: 4096, 2: 128, 3: 32}
"""Cells per axis of the running front's lookup, by number of axes: all fit in cache."""

_LARGE_FRONT = 10_000
_BINS_OF_LARGE = {1: 4096, 2: 512, 3: 64}
"""The same for a front of more points than that: a miss of the cache costs less than a point that is kept."""

LEAST_MERGED = 16_384
"""Points that wait before they are merged into a gathered front."""


def signed(columns: Mapping[str, NDArray[np.generic]], objectives: Sequence[str]) -> list[Floats]:
    """Objective columns turned so that smaller is better."""
    return [
        np.asarray(columns[o], dtype=np.float64) * (-1.0 if OBJECTIVE_SENSE[o] == "max" else 1.0) for o in objectives
    ]


def minimised(columns: Mapping[str, NDArray[np.generic]], objectives: Sequence[str]) -> Floats:
    """Objective columns as a matrix (N, M) in which smaller is better, to twelve significant digits.

    Two designs whose values differ only by the rounding of a sum are a tie; without this one of them would
    stay on the front for a difference in the sixteenth digit.

    >>> minimised({"throughput_tok_s": np.array([3.0, 3.0 + 4e-16])}, ["throughput_tok_s"]).tolist()
    [[-3.0], [-3.0]]
    """
    mantissa, exponent = np.frexp(np.stack(signed(columns, objectives), axis=1))
    return np.asarray(np.ldexp(np.round(mantissa * _DIGITS) / _DIGITS, exponent))


def nondominated(points: Floats, *, distinct: bool = False) -> Bools:
    """Which rows of a minimised matrix no other row dominates; with `distinct` only the first of equal rows.

    >>> nondominated(np.array([[1.0, 2.0], [2.0, 1.0], [2.0, 2.0], [1.0, 2.0], [np.nan, 0.0]])).tolist()
    [True, True, False, True, False]
    >>> nondominated(np.array([[1.0, 2.0], [2.0, 1.0], [1.0, 2.0]]), distinct=True).tolist()
    [True, True, False]
    """
    result = np.zeros(len(points), dtype=np.bool_)
    sound = np.flatnonzero(~np.isnan(points).any(axis=1))
    if len(sound) and points.shape[1] == 1:
        result[sound] = points[sound, 0] == points[sound, 0].min()
        if distinct:
            result[sound[int(points[sound, 0].argmin()) + 1 :]] = False
    elif len(sound):
        result[sound] = moocore.is_nondominated(points[sound], keep_weakly=not distinct)
    return result


def hypervolume(points: Floats, reference: Floats) -> float:
    """Volume that a minimised set dominates inside a reference point.

    >>> hypervolume(np.array([[1.0, 2.0], [2.0, 1.0]]), np.array([3.0, 3.0]))
    3.0
    """
    inside = points[(points < reference).all(axis=1)]
    return float(moocore.hypervolume(inside, ref=reference)) if len(inside) else 0.0


class RunningFront:
    """The non-dominated points seen so far, and a quick test that discards most of what comes.

    The test looks up, for the cell of a point in all objectives but the first, the best first
    objective among front points in strictly lower cells: such a point is lower in every other
    objective, so a strictly better first objective dominates. It never discards a front point or
    a tie, whatever the rounding, because equal values always fall into the same cell.
    """

    def __init__(self, n_objectives: int) -> None:
        self.points: Floats = np.empty((0, n_objectives))
        self.index: Ints = np.empty(0, dtype=np.int64)
        self._table: Floats | None = None
        self._bins = 1
        self._low, self._scale = np.zeros(n_objectives - 1), np.ones(n_objectives - 1)

    def __len__(self) -> int:
        return len(self.index)

    def may_improve(self, columns: Sequence[Floats]) -> Bools:
        """Which points (one minimised array an objective) the quick test cannot discard."""
        first, *rest = columns
        if self._table is None:
            return np.ones(first.shape, dtype=np.bool_)
        if not rest:
            best = self.points[:, 0].min()
            return np.asarray(first <= best + abs(best) * ROUNDING)
        cells = tuple(self._cell(axis, values) for axis, values in enumerate(rest))
        return np.asarray(first <= self._table[cells])

    def _cell(self, axis: int, values: Floats) -> NDArray[np.intp]:
        scaled = (np.minimum(values, FINITE) - self._low[axis]) * self._scale[axis]
        return np.clip(scaled, 0.0, self._bins - 1.0).astype(np.intp)

    def merge(self, points: Floats, index: Ints, *, distinct: bool = False) -> None:
        """Adds points and drops what is dominated; with `distinct` also what equals an earlier one."""
        if not len(points):
            return
        together = np.concatenate([self.points, points])
        numbers = np.concatenate([self.index, index])
        keep = nondominated(together, distinct=distinct)
        self.points, self.index = together[keep], numbers[keep]
        if self.points.shape[1] == 1:
            self._table = self.points
        elif len(self.points):
            self._build()

    def _build(self) -> None:
        rest = np.minimum(self.points[:, 1:], FINITE)
        n_axes = rest.shape[1]
        self._bins = bins = (_BINS if len(self.points) < _LARGE_FRONT else _BINS_OF_LARGE)[n_axes]
        self._low = rest.min(axis=0)
        width = rest.max(axis=0) - self._low
        self._scale = np.where(width > 0, (bins - 1) / np.where(width > 0, width, 1.0), 0.0)
        cells = tuple(self._cell(axis, rest[:, axis]) for axis in range(n_axes))
        lower = np.full((bins + 1,) * n_axes, np.inf)
        np.minimum.at(lower, tuple(c + 1 for c in cells), self.points[:, 0])
        for axis in range(n_axes):
            np.minimum.accumulate(lower, axis=axis, out=lower)
        table = lower[(slice(0, bins),) * n_axes]
        self._table = np.ascontiguousarray(table + np.abs(table) * ROUNDING)


class GatheredFront:
    """A running front of points that come in many small lots; with `distinct` only the first of equal points stays.

    What comes waits until it is worth merging, so that a large front is not sorted again for a few points. `settle`
    brings `front` up to date.
    """

    def __init__(self, n_objectives: int, *, distinct: bool = False) -> None:
        self.front = RunningFront(n_objectives)
        self._distinct = distinct
        self._waiting: list[tuple[Floats, Ints]] = []
        self._n_waiting = 0

    @property
    def empty(self) -> bool:
        """Whether no point has come yet."""
        return not len(self.front) and not self._n_waiting

    def add(self, points: Floats, index: Ints) -> None:
        """Adds points, which are merged when enough wait."""
        if not len(points):
            return
        self._waiting.append((points, index))
        self._n_waiting += len(points)
        if self._n_waiting >= max(LEAST_MERGED, len(self.front) // 2):
            self.settle()

    def settle(self) -> None:
        """Merges what waits."""
        if not self._n_waiting:
            return
        points, index = (np.concatenate(lot) for lot in zip(*self._waiting, strict=True))
        self._waiting, self._n_waiting = [], 0
        self.front.merge(points, index, distinct=self._distinct)
