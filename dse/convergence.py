"""How a search converges: the hypervolume it has reached after each generation, and when it gains no more.

The reference point is a tenth of the front's range beyond its worst point in each objective. It moves as the front
grows, so volumes are compared at one and the same reference: that of the newest front. A point counts from
the generation that brought it; points it dominates add nothing, so every volume of the past can be had later.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dse.pareto import FINITE, hypervolume, nondominated

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

GENERATION = 32
"""Trials that a generation may have: what is between two looks at the hypervolume."""
BEYOND = 0.1
"""The reference lies so far beyond the front, as a share of its range."""
MOST_VALUES = 200
"""Entries of the history that a run keeps."""


@dataclass(slots=True)
class Convergence:
    """What each generation brought to the front, and at what expense."""

    n_objectives: int
    index: set[int] = field(default_factory=set)
    points: list[Floats] = field(default_factory=list)
    """Per generation, the points that were new on its front."""
    spent: list[tuple[float, int]] = field(default_factory=list)
    """Per generation, seconds and designs scored since the start."""
    front: Floats = field(default_factory=lambda: np.empty((0, 0)))

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps: arrays."""
        return {
            "seen": np.array(sorted(self.index), dtype=np.int64),
            "new_points": np.concatenate([np.empty((0, self.n_objectives)), *self.points]),
            "new_counts": np.array([len(p) for p in self.points], dtype=np.int64),
            "spent": np.array(self.spent, dtype=np.float64).reshape(-1, 2),
        }

    def restore(self, state: Mapping[str, Any], front: Floats) -> None:
        """Goes on from a checkpoint."""
        self.index = set(state["seen"].tolist())
        self.points = (
            np.split(state["new_points"], np.cumsum(state["new_counts"])[:-1])
            if self.index
            else [np.empty((0, self.n_objectives)) for _ in state["new_counts"]]
        )
        self.spent = [(elapsed_s, int(candidates)) for elapsed_s, candidates in state["spent"].tolist()]
        self.front = front

    def add(self, points: Floats, index: Ints, elapsed_s: float, candidates: int) -> None:
        """The front after one more generation."""
        new = np.array([i not in self.index for i in index.tolist()], dtype=np.bool_)
        self.index.update(index[new].tolist())
        self.points.append(points[new])
        self.spent.append((elapsed_s, candidates))
        self.front = points

    def gain_frac(self, generations: int) -> float:
        """Share by which the last so many generations raised the hypervolume; infinite while there are fewer."""
        if not len(self.front) or len(self.points) <= generations:
            return float("inf")
        reference = reference_of(self.front)
        before = hypervolume(self._known(len(self.points) - generations), reference)
        now = hypervolume(np.minimum(self.front, FINITE), reference)
        return now / before - 1.0 if before > 0 else float("inf")

    def _known(self, generations: int) -> Floats:
        """Points that the first generations knew."""
        known = [p for p in self.points[:generations] if len(p)]
        return np.minimum(np.concatenate(known), FINITE) if known else np.empty((0, self.n_objectives))

    def history(self) -> list[list[float]]:
        """[seconds, designs scored, hypervolume as a share of the last] per generation, thinned evenly."""
        if not len(self.front):
            return []
        reference = reference_of(self.front)
        last = hypervolume(np.minimum(self.front, FINITE), reference)
        n = len(self.points)
        kept = set(np.unique(np.linspace(0, n - 1, MOST_VALUES).astype(int)).tolist())
        values, known = [], np.empty((0, self.n_objectives))
        for i, ((elapsed_s, candidates), points) in enumerate(zip(self.spent, self.points, strict=True)):
            known = np.concatenate([known, np.minimum(points, FINITE)])
            if i in kept:
                known = known[nondominated(known)]
                value = hypervolume(known, reference) / last if last > 0 else 1.0
                values.append([round(elapsed_s, 3), float(candidates), value])
        return values


def reference_of(front: Floats) -> Floats:
    """A point worse than every point of the front, in every objective.

    >>> reference_of(np.array([[1.0, 20.0], [2.0, 10.0]])).tolist()
    [2.1, 21.0]
    """
    finite = np.minimum(front, FINITE)
    worst, best = finite.max(axis=0), finite.min(axis=0)
    width = np.where(worst > best, worst - best, np.maximum(np.abs(worst), 1e-12))
    return np.asarray(worst + BEYOND * width)
