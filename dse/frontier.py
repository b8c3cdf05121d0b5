"""The exact frontier by MILP: solve, shrink the boxes that may still hold a point, until none is left.

A payoff table first: the best of each objective, then of the others at that best (lexicographic), gives the ends
of the frontier and each objective's range. Then boxes (`dse.boxes`): minimising a positively weighted sum inside a
box gives a non-dominated point z, or proves that a program has no plan in the box. A box that all programs leave
empty is done.

resolution_frac says how fine the frontier is wanted. Boxes are lowered to z - resolution_frac * range, so that at the
end, for every feasible plan there is a reported point that is at most that share of the range worse in every
objective: a proven cover, finer than a grid of cells that size. With 0 every point is found. It needs no steps for
integral objectives: a box starts just past a known point, whatever the lattice.

Boxes are solved in generations of fixed size, so that the frontier is the same on any number of workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from dse.boxes import Box, shrink, sizes
from dse.checkpoint import Checkpoint
from dse.cluster import Workers
from dse.journal import Journal
from dse.pareto import nondominated
from dse.points import STEP, TIE, Point, Programs, Row, Stage, Unit, forget, programs_of, refusal, solve_unit
from dse.progress import Progress, Report, Stop
from dse.resolve import Study
from dse.solve import Status
from formulations.plan import Plan

__all__ = ["Certificate", "Proven", "explore", "refusal"]

Floats = NDArray[np.float64]

GENERATION = 8
"""Boxes solved side by side: more would solve again what one of them settles for the others."""
FEW_PROGRAMS = 12
"""Up to so many programs (data types, routings, ...) every point of a coarse frontier is tried against all of them."""
SAME = 1e-9
"""Relative difference below which objectives count as equal."""
SMALLEST_SPAN = 1e-3
"""Range of a scaled objective below which it counts no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """Why one point is on the frontier: the design, the solver's objective, bound, gap and time."""

    design_id: str
    objective: float
    bound: float
    gap: float
    time_s: float


@dataclass(slots=True)
class Proven:
    """A frontier with its certificates, and the boxes that time left unsearched."""

    plans: list[Plan]
    points: Floats
    certificates: list[Certificate] = field(default_factory=list)
    solves: int = 0
    boxes: int = 0
    """Boxes searched."""
    rejected: int = 0
    """Answers of the solver that their own integers refuted; solved another way."""
    skipped: int = 0
    """Boxes known to be empty without a solve."""
    ranges: dict[str, float] = field(default_factory=dict)
    """Of each objective over the frontier's ends."""
    unproven: list[dict[str, float]] = field(default_factory=list)
    """Upper corners of boxes not searched, in the objectives' own units."""

    def add(self, point: Point) -> None:
        """One more point, with what the solver proved of it."""
        if point.plan is None or point.columns is None:
            return
        outcome = point.outcome
        self.plans.append(point.plan)
        self.points = np.vstack([self.points, point.columns])
        self.certificates.append(
            Certificate(
                design_id=point.plan.design_id,
                objective=outcome.objective,
                bound=outcome.bound,
                gap=outcome.gap,
                time_s=outcome.time_s,
            )
        )

    def keep_best(self) -> None:
        """Drops what is dominated or there twice."""
        if not self.plans:
            return
        _, first = np.unique(self.points, axis=0, return_index=True)
        distinct = np.zeros(len(self.plans), dtype=np.bool_)
        distinct[first] = True
        at = np.flatnonzero(distinct & nondominated(self.points)).tolist()
        at.sort(key=lambda i: (self.plans[i].index if self.plans[i].index is not None else -1, tuple(self.points[i])))
        self.points = self.points[at]
        self.plans = [self.plans[i] for i in at]
        self.certificates = [self.certificates[i] for i in at]


def explore(study: Study, *, report: Report, stop: Stop, checkpoint: Checkpoint | None = None) -> Proven:
    """The exact frontier of all programs of a study; what a checkpoint has is not solved again."""
    programs, compute = programs_of(study), study.envelope.compute
    journal = Journal(checkpoint)
    try:
        with Workers(solve_unit, programs, workers=compute.workers, address=compute.ray) as pool:
            sweep = _Sweep(programs, pool, journal, report, stop)
            if programs.data and sweep.payoff():
                sweep.search()
        if stop.reason:
            journal.save()
    finally:
        forget()
    sweep.found.keep_best()
    return sweep.found


class _Sweep:
    """One exploration: what is found, what is left, and the rows that programs turned out to need."""

    def __init__(
        self, programs: Programs, pool: Workers[Programs, Unit, Point], journal: Journal, report: Report, stop: Stop
    ) -> None:
        self.programs, self.pool, self.journal, self.report, self.stop = programs, pool, journal, report, stop
        self.objectives = programs.study.envelope.objectives.names
        n = len(self.objectives)
        self.found = Proven([], np.empty((0, n)))
        self.rows: list[tuple[Row, ...]] = [() for _ in programs.data]
        self.ideal, self.width = np.full(n, -np.inf), np.ones(n)
        self.boxes: list[Box] = [Box(np.full(n, np.inf))]
        self.spent_s = 0.0

    def solve(self, asked: Sequence[tuple[int, Floats, Sequence[Stage]]], reach: float = -STEP) -> list[Point]:
        """Points of (program, upper corner, stages), in their order; rows that were missing are kept."""
        units = [
            Unit(
                program=program,
                upper=tuple(upper.tolist()),
                stages=tuple(stages),
                reach=reach,
                rows=self.rows[program],
                time_limit_s=max(self.stop.left_s, 0.01),
            )
            for program, upper, stages in asked
        ]
        known = self.journal.next(units)
        left = [place for place in range(len(units)) if place not in known]
        for at, point in self.pool.map([units[place] for place in left], estimated_s=self._left_s()):
            known[left[at]] = point
            self.journal.add(left[at], units[left[at]], point)
        points = [known[place] for place in range(len(units))]
        for unit, point in zip(units, points, strict=True):
            rows = self.rows[unit.program]
            self.rows[unit.program] = rows + tuple(row for row in point.rows if row not in rows)
            self.found.solves += point.solves
            self.spent_s += point.outcome.time_s
            self.found.rejected += point.outcome.rejected
            self.found.add(point)
        return points

    def _left_s(self) -> float:
        """Work ahead, if every open box takes as many more solves as there are objectives, at the pace so far."""
        pace_s = self.spent_s / max(self.found.solves, 1)
        return pace_s * len(self.objectives) * len(self.boxes)

    # -- the ends ---------------------------------------------------------------------------------

    def payoff(self) -> bool:
        """Finds the ends of the frontier; False where there is no plan, or no time."""
        best = [self._end(i) for i in range(len(self.objectives))]
        ends = np.array([end for end in best if end is not None])
        if self.found.unproven or len(ends) < len(best):
            return False
        self.ideal = ends.min(axis=0)
        self.width = ends.max(axis=0) - self.ideal
        self.found.ranges = dict(zip(self.objectives, self.width.tolist(), strict=True))
        self._cover(self.found.points)
        return True

    def _end(self, i: int) -> Floats | None:
        """The best plan in objective i and, at that best, in the others together."""
        n = len(self.objectives)
        first = np.where(np.arange(n) == i, 1.0, 0.0)
        upper, best = np.full(n, np.inf), None
        for program, data in enumerate(self.programs.data):
            stages = [Stage(tuple(first.tolist()))]
            if n > 1:
                stages.append(Stage((1.0,) * n))
            if data.may_idle:
                stages.append(Stage((0.0,) * n, eager=1.0))
            if self.stop.asked():
                self._leave(upper)
                return None
            (point,) = self.solve([(program, upper, stages)], reach=TIE)
            if point.outcome.status in (Status.FEASIBLE, Status.UNKNOWN):
                self._leave(upper)
            if point.columns is not None and (best is None or _ahead(point.columns, best, i)):
                best = point.columns
                upper = np.where(np.arange(n) == i, best, np.inf)
            self._report()
        return best

    @property
    def step(self) -> Floats:
        """How much of each objective a point covers beyond itself."""
        return np.asarray(self.programs.study.envelope.search.resolution_frac * self.width)

    # -- between the ends -------------------------------------------------------------------------

    def search(self) -> None:
        """Solves boxes, the largest first, until none is left or time is up."""
        while self.boxes and not self.stop.asked():
            chosen = self._next()
            points = self.solve([(b.empty_in, b.upper, self._weighed(b.empty_in)) for b in chosen])
            self.found.boxes += len(chosen)
            for box, point in zip(chosen, points, strict=True):
                self._settle(box, point)
            self._cover([p.columns for p in points if p.columns is not None])
            self._report()
        for box in self.boxes:
            self._leave(box.upper)
        if 1 < len(self.programs.data) <= FEW_PROGRAMS and self.step.any():
            self._improve()

    def _improve(self) -> None:
        """Asks every program for a plan that dominates a point: one closer than the step may be another program's."""
        self.found.keep_best()
        points = list(self.found.points)
        while points and not self.stop.asked():
            batch, points = points[:GENERATION], points[GENERATION:]
            asked = [(j, z, self._weighed(j)) for z in batch for j in range(len(self.programs.data))]
            for (_, z, _), point in zip(asked, self.solve(asked, reach=TIE), strict=True):
                y = point.columns
                if y is not None and (y <= z + np.abs(z) * SAME).all() and (y < z - np.abs(z) * SAME).any():
                    points.append(y)
            self._report()

    def _next(self) -> list[Box]:
        """The largest boxes, taken off the list."""
        size = sizes(self.boxes, self.ideal, np.where(self.width > 0, self.width, 1.0))
        order = np.argsort(-size, kind="stable")[:GENERATION].tolist()
        chosen = [self.boxes[i] for i in order]
        self.boxes = [box for i, box in enumerate(self.boxes) if i not in order]
        return chosen

    def _weighed(self, program: int) -> list[Stage]:
        """Objectives by their range, so that each counts alike."""
        data = self.programs.data[program]
        span = data.scaled(self.ideal + self.width) - data.scaled(self.ideal)
        weights = 1.0 / np.maximum(span, SMALLEST_SPAN)
        weighed = [Stage(tuple((weights / weights.max()).tolist()))]
        return [*weighed, Stage((0.0,) * len(span), eager=1.0)] if data.may_idle else weighed

    def _settle(self, box: Box, point: Point) -> None:
        """What a solve says of its box."""
        if point.outcome.status is Status.INFEASIBLE:
            if box.empty_in + 1 < len(self.programs.data):
                self.boxes.append(replace(box, empty_in=box.empty_in + 1))
        elif point.outcome.status is Status.OPTIMAL and point.columns is not None and (point.columns < box.upper).all():
            self.boxes.append(box)  # its point splits it
        else:
            self._leave(box.upper)

    def _cover(self, points: Sequence[Floats] | Floats) -> None:
        """Takes what the points cover off the boxes, and boxes that reach no further than the ideal point."""
        for point in points:
            self.boxes = shrink(self.boxes, point - self.step)
        empty = [bool((box.upper <= self.ideal).any()) for box in self.boxes]
        self.found.skipped += sum(empty)
        self.boxes = [box for box, nothing in zip(self.boxes, empty, strict=True) if not nothing]

    def _leave(self, upper: Floats) -> None:
        """Notes a box that time leaves unproven."""
        corner = {
            o: float(abs(u)) if np.isfinite(u) else float("inf") for o, u in zip(self.objectives, upper, strict=True)
        }
        self.found.unproven.append(corner)

    def _report(self) -> None:
        n_open, n = len(self.boxes), self.found.boxes
        self.report(
            Progress(
                method="milp",
                done=n,
                total=n + n_open,
                candidates=self.found.solves,
                front=len(self.found.plans),
                elapsed_s=self.stop.elapsed_s,
                note=f"{n_open} boxes open",
            )
        )


def _ahead(point: Floats, best: Floats, i: int) -> bool:
    """Whether a point is better in objective i, or as good and better in the others, taken together as shares."""
    slack = np.abs(best) * SAME
    if abs(point[i] - best[i]) > slack[i]:
        return bool(point[i] < best[i])
    gain = (best - point) / np.maximum(np.abs(best), slack)
    return bool(gain.sum() > SAME)
