"""Archive search: thousands of neighbours of the best designs known, scored in one vectorised call.

The archive is the front so far, one design a point (of equal designs the one with the lowest number: the narrowest
link). A generation is a fixed number of islands; each starts from the archive, and round after round moves
and crosses designs, screens them, and keeps what is not dominated. An island depends on its seed and the archive only,
so a generation is the same on any number of workers. While nothing is feasible the designs that break the
limits least are the parents.

Optuna sees the study too: after each generation the newest designs of the front are told as trials that a
screening sampler proposed, so that a study, its journal and its importances exist.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dse.cluster import Workers
from dse.columns import OBJECTIVE_SENSE
from dse.convergence import GENERATION
from dse.pareto import FINITE, RunningFront, minimised, nondominated, signed
from dse.resolve import Study
from dse.scoring import bounds_of, serves, violation, within_bounds

if TYPE_CHECKING:
    from dse.trials import Trials

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

ROWS = 4096
"""Designs screened in one call: enough to pay for the call, few enough that the next ones profit from them."""
COSTLY_ROWS = 64
"""The same where a design costs a linear program."""
SCREENED_PER_S = 3e5
"""Designs moved and screened a second on one core, for estimates (benchmarks/RESULTS.md)."""
ROUNDS = 8
ISLANDS = 4
WHOLE_ROUNDS = 8
"""A space that one generation of so many rounds can hold is screened whole, once."""
FRESH = 0.05
"""Share of a round that is drawn anew, from the whole space."""
NEARLY = 64
"""Designs kept as parents while none is feasible."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What a set of designs gave."""

    points: Floats
    index: Ints
    """Designs that may be on the front."""
    candidates: int
    nearly: Ints
    """While the front is empty: designs that break the limits least, best first."""
    broken: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Island:
    """One unit of work: parents, their points (none while no design is feasible), and a seed of its own."""

    seed: tuple[int, ...]
    parents: Ints
    points: Floats


@dataclass(slots=True)
class Archive:
    """The front so far, one design a point, and what comes nearest while there is none."""

    front: RunningFront
    nearly: Ints = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    broken: Floats = field(default_factory=lambda: np.empty(0))
    candidates: int = 0

    def take(self, found: Judged) -> None:
        """Adds what a set of designs gave."""
        self.candidates += found.candidates
        if len(found.index):
            self.front = absorbed(self.front, found.points, found.index)
        if len(self.front):
            self.nearly, self.broken = self.nearly[:0], self.broken[:0]
        elif len(found.nearly):
            nearly = np.concatenate([self.nearly, found.nearly])
            broken = np.concatenate([self.broken, found.broken])
            nearly, first = np.unique(nearly, return_index=True)
            order = np.lexsort((nearly, broken[first]))[:NEARLY]
            self.nearly, self.broken = nearly[order], broken[first][order]

    def islands(self, seed: int, generation: int) -> list[Island]:
        """The work of one generation."""
        parents = self.front.index if len(self.front) else self.nearly
        return [
            Island(seed=(seed, generation, island), parents=parents, points=self.front.points)
            for island in range(ISLANDS)
        ]


def absorbed(front: RunningFront, points: Floats, index: Ints) -> RunningFront:
    """The front with these points; of equal points the design with the lowest number stays."""
    keep = nondominated(points)
    numbers = np.concatenate([front.index, index[keep]])
    together = np.concatenate([front.points, points[keep]])
    order = np.argsort(numbers, kind="stable")
    numbers, together = numbers[order], together[order]
    distinct = np.unique(together, axis=0, return_index=True)[1]
    result = RunningFront(together.shape[1])
    result.merge(together[distinct], numbers[distinct])
    return result


def rows_of(study: Study) -> int:
    """Designs screened in one call: few where a design costs a linear program."""
    return COSTLY_ROWS if study.space.enumeration_refusal else ROWS


def covers(study: Study) -> bool:
    """Whether one generation can screen the whole space, and so does."""
    return study.space.n_designs <= WHOLE_ROUNDS * ISLANDS * rows_of(study)


def evolve(study: Study, island: Island) -> Judged:
    """Rounds of one island; gives what it found beyond its parents. What a worker runs."""
    rng, space = np.random.default_rng(island.seed), study.space
    rows = rows_of(study)
    archive = Archive(RunningFront(len(study.envelope.objectives.names)))
    archive.front.merge(island.points, island.parents[: len(island.points)])
    parents = island.parents
    if covers(study):
        every = np.array_split(np.arange(space.n_designs, dtype=np.int64), ISLANDS)[island.seed[-1]]
        for start in range(0, len(every), rows):
            archive.take(judged(study, every[start : start + rows], archive.front))
    for _ in range(0 if covers(study) else ROUNDS):
        n_fresh = int(rows * FRESH) if len(parents) else rows
        drawn = [space.drawn(rng, n_fresh)]
        if len(parents):
            drawn.append(space.moved(rng, parents, rows - n_fresh))
        archive.take(judged(study, np.unique(np.concatenate(drawn)), archive.front))
        parents = archive.front.index if len(archive.front) else archive.nearly
    new = ~np.isin(archive.front.index, island.parents)
    return Judged(
        points=archive.front.points[new],
        index=archive.front.index[new],
        candidates=archive.candidates,
        nearly=archive.nearly,
        broken=archive.broken,
    )


def judged(study: Study, index: Ints, front: RunningFront) -> Judged:
    """Screens designs, and scores those that the screen only bounds and cannot rule out."""
    objectives, bounds = study.envelope.objectives.names, bounds_of(study)
    screen, legal = study.space.screen_designs(index)
    n_legal, possible = int(np.count_nonzero(legal)), legal & screen.feasible
    columns = {name: values[possible] for name, values in screen.columns.items()}
    index = index[possible]
    exact = screen.exact and all(b in columns for b in bounds)
    if not exact and not len(front):
        # nothing to prune with, and how far off a design is must be known
        columns, exact = study.space.numbers(index), True
    known = {name: bound for name, bound in bounds.items() if name in columns}
    within = np.broadcast_to(within_bounds(columns, known, exact=exact), index.shape)
    nearly, broken = _nearest(index, columns, bounds, within, front)
    complete = all(o in columns for o in objectives)
    keep = np.asarray(within & front.may_improve(signed(columns, objectives)) if complete else within)
    index, columns = index[keep], {name: values[keep] for name, values in columns.items()}
    if not (exact and complete) and len(index):
        columns = study.space.numbers(index)
        good = serves(columns) & within_bounds(columns, bounds, exact=True)
        index, columns = index[good], {name: values[good] for name, values in columns.items()}
    points = minimised(columns, objectives) if len(index) else np.empty((0, len(objectives)))
    return Judged(points=points, index=index, candidates=n_legal, nearly=nearly, broken=broken)


def _nearest(
    index: Ints, columns: dict[str, Floats], bounds: dict[str, tuple[float, float]], within: Bools, front: RunningFront
) -> tuple[Ints, Floats]:
    """Designs that break the limits least, and by how much, while nothing meets them."""
    if len(front) or within.any() or not len(index):
        return np.empty(0, dtype=np.int64), np.empty(0)
    amount = np.broadcast_to(violation(columns, bounds), index.shape)
    amount = np.where(np.isnan(amount), np.inf, amount)
    order = np.lexsort((index, amount))[:NEARLY]
    return index[order], amount[order]


@dataclass(slots=True)
class Screened:
    """The search among single designs, generation by generation."""

    study: Study
    trials: Trials
    archive: Archive
    told: set[int] = field(default_factory=set)
    """Designs that Optuna knows."""

    covered: bool = False
    """The whole space was screened."""

    work = staticmethod(evolve)

    @property
    def reaches_all(self) -> bool:
        """Whether a generation screens the whole space."""
        return covers(self.study)

    @property
    def exhausted(self) -> bool:
        """Whether nothing is left to screen."""
        return self.covered

    @property
    def estimated_s(self) -> float:
        """About how long all generations take."""
        generations = self.study.envelope.search.trials / GENERATION
        return generations * ISLANDS * ROUNDS * rows_of(self.study) / SCREENED_PER_S

    @property
    def front(self) -> RunningFront:
        """The front so far."""
        return self.archive.front

    @property
    def candidates(self) -> int:
        """Legal designs screened."""
        return self.archive.candidates

    @property
    def nearest(self) -> int:
        """The design that breaks the limits least, while none meets them; -1 where none runs."""
        return int(self.archive.nearly[0]) if len(self.archive.nearly) else -1

    @property
    def note(self) -> str:
        """Where the search is, in words."""
        return "" if len(self.front) else "no design meets the limits yet"

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        a = self.archive
        return {
            "points": a.front.points,
            "index": a.front.index,
            "nearly": a.nearly,
            "broken": a.broken,
            "candidates": a.candidates,
            "covered": self.covered,
            "told": np.array(sorted(self.told), dtype=np.int64),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Goes on from a checkpoint."""
        a = self.archive
        a.front.merge(state["points"], state["index"])
        a.nearly, a.broken, a.candidates = state["nearly"], state["broken"], state["candidates"]
        self.told = set(state["told"].tolist())
        self.covered = bool(state["covered"])

    def seed(self, index: Ints) -> None:
        """Puts these designs on the front before the first generation."""
        self.archive.take(judged(self.study, index, self.archive.front))

    def generation(self, number: int, size: int, pool: Workers[Study, Island, Judged]) -> None:
        """Evolves islands side by side, merges them in their order, and tells the newest designs."""
        islands = self.archive.islands(self.study.envelope.search.seed, number)
        landed = dict(pool.map(islands, estimated_s=self.estimated_s))
        for position in range(len(islands)):
            self.archive.take(landed[position])
        self.covered = covers(self.study)
        self._tell(size)

    def _tell(self, size: int) -> None:
        """Designs new on the front, spread over it; while it is empty, those that break the limits least."""
        space, objectives = self.study.space, self.study.envelope.objectives.names
        index = self.front.index if len(self.front) else self.archive.nearly
        new = np.flatnonzero([i not in self.told for i in index.tolist()])
        new = new[np.unique(np.linspace(0, len(new) - 1, min(size, len(new))).astype(np.int64))]
        if not len(new):
            return
        self.told.update(index[new].tolist())
        columns = space.numbers(index[new])
        values = np.stack([np.nan_to_num(columns[o], nan=_worst(o), posinf=FINITE) for o in objectives], axis=1)
        broken = -np.ones(len(new)) if len(self.front) else np.minimum(self.archive.broken[new], FINITE)
        asked = self.trials.designs(space.digit_axes, self.study.envelope.search.seed, space.digits(index[new]))
        for trial, row, by in zip(asked, values.tolist(), broken.tolist(), strict=True):
            self.trials.tell(trial, row, {"limits": by})


def _worst(objective: str) -> float:
    return 0.0 if OBJECTIVE_SENSE[objective] == "max" else FINITE
