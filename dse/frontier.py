"""The exact frontier by MILP: solve, shrink the boxes that may still hold a point, until none is left.

With objectives f minimised, a box holds every point with f < u for its upper corner u. Minimising a
positively weighted sum inside a box gives a non-dominated point z, or proves the box empty; a point
splits every box that contains it into boxes with one coordinate of u lowered to z's (the local upper
bounds of Klamroth, Lacour, Vanderpooten, EJOR 245(3), 2015, doi:10.1016/j.ejor.2015.03.031). There is
no grid: each box steps just past a known optimum. Three objectives take about three solves a point.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dse.errors import MethodError, SelfCheckError
from dse.pareto import minimised, nondominated
from dse.progress import Progress, Report, Stop
from dse.resolve import Study
from dse.scoring import bounds_of, score_index
from dse.solve import Outcome, Solver, Status

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

STEP = 1e-7
"""How far past a known optimum a box starts, as a share of each objective's scale; points closer
together than this in some objective may be told apart by the solver's tolerance only."""
UNBOUNDED = 2.0
"""No scaled objective is larger than 1."""
AGREE = 1e-6
"""Largest relative difference of the solver's objective and the model's score of its plan: the solver's
feasibility tolerance, seen through the scaled rows. The score is what is reported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """Why one point is on the frontier: the design, the solver's objective, bound, gap and time."""

    index: int
    objective: float
    bound: float
    gap: float
    time_s: float


@dataclass(slots=True)
class Proven:
    """A frontier with its certificates, and the boxes that time left unsearched."""

    index: Ints
    points: Floats
    certificates: list[Certificate] = field(default_factory=list)
    solves: int = 0
    unproven: list[dict[str, float]] = field(default_factory=list)
    """Upper corners of boxes not searched, in the objectives' own units."""

    def add(self, index: int, point: Floats, outcome: Outcome) -> None:
        """One more point, with what the solver proved of it."""
        self.index = np.append(self.index, index)
        self.points = np.vstack([self.points, point])
        self.certificates.append(
            Certificate(
                index=index,
                objective=outcome.objective,
                bound=outcome.bound,
                gap=outcome.gap,
                time_s=outcome.time_s,
            )
        )


def refusal(study: Study) -> str:
    """Why the MILP cannot answer this study exactly; empty where it can."""
    if study.paradigm.formulation is None:
        return f'milp: {study.envelope.paradigm} has no exact program; use method = "exhaustive" or "optuna"'
    refused: str = _formulation(study).refusal(study.space, study.envelope.objectives.names, bounds_of(study))
    return refused


def _formulation(study: Study) -> ModuleType:
    if study.paradigm.formulation is None:
        raise MethodError(refusal(study))
    return study.paradigm.formulation()


def explore(study: Study, *, report: Report, stop: Stop) -> Proven:
    """The exact frontier of every regime, merged."""
    refused = refusal(study)
    if refused:
        raise MethodError(refused)
    n_objectives = len(study.envelope.objectives.names)
    found = Proven(np.empty(0, dtype=np.int64), np.empty((0, n_objectives)))
    programs = _formulation(study).programs(study.space, study.envelope.objectives.names, bounds_of(study))
    for data in programs:
        _explore_program(study, data, found, report, stop)
    keep = nondominated(found.points) if len(found.index) else np.zeros(0, dtype=np.bool_)
    order = np.argsort(found.index[keep])
    found.index, found.points = found.index[keep][order], found.points[keep][order]
    on_front = set(found.index.tolist())
    found.certificates = [c for c in found.certificates if c.index in on_front]
    return found


def _explore_program(study: Study, data: Any, found: Proven, report: Report, stop: Stop) -> None:
    """The frontier of one program, box by box."""
    objectives = study.envelope.objectives.names
    formulation = _formulation(study)
    model = formulation.build_model(data)
    solver = Solver(model, study.envelope.search.seed)
    boxes: list[Floats] = [np.full(len(objectives), np.inf)]
    seen: set[int] = set()
    while boxes and not stop.asked():
        upper = boxes.pop(_widest(boxes))
        for name, bound in zip(data.objectives, data.scaled(upper) - STEP, strict=True):
            model.upper[name] = float(min(bound, UNBOUNDED))
        outcome = solver.solve(stop.left_s)
        found.solves += 1
        report(_progress(found, len(boxes), stop))
        if outcome.status is Status.INFEASIBLE:
            continue
        if outcome.status is Status.UNKNOWN:
            found.unproven.append(_corner(objectives, upper))
            continue
        index = formulation.extract(model, data, study.space).index or 0
        point = _rescore(study, index)
        check_agreement(formulation.objective_values(model), data.scaled(point), objectives, index)
        if index in seen or not (point < upper).all():
            found.unproven.append(_corner(objectives, upper))
            continue
        seen.add(index)
        if outcome.status is Status.OPTIMAL:
            boxes = shrink([*boxes, upper], point)
        else:
            found.unproven.append(_corner(objectives, upper))
        found.add(index, point, outcome)
    found.unproven += [_corner(objectives, u) for u in boxes]


def _progress(found: Proven, n_open: int, stop: Stop) -> Progress:
    return Progress(
        method="milp",
        done=found.solves,
        total=found.solves + n_open,
        candidates=found.solves,
        front=len(found.index),
        elapsed_s=stop.elapsed_s,
        note=f"{n_open} boxes open",
    )


def _corner(objectives: Sequence[str], upper: Floats) -> dict[str, float]:
    return {o: float(abs(u)) if np.isfinite(u) else float("inf") for o, u in zip(objectives, upper, strict=True)}


def _widest(boxes: Sequence[Floats]) -> int:
    """The box whose corner is least bound: the fewest finite sides, then the largest sum."""
    keys = [(np.isinf(u).sum(), float(np.where(np.isinf(u), 0.0, u).sum())) for u in boxes]
    return max(range(len(boxes)), key=lambda i: keys[i])


def shrink(boxes: Sequence[Floats], point: Floats) -> list[Floats]:
    """Boxes that cover what a new point leaves open, without those inside another.

    >>> shrink([np.array([np.inf, np.inf])], np.array([1.0, 2.0]))
    [array([ 1., inf]), array([inf,  2.])]
    """
    kept = [u for u in boxes if not (point < u).all()]
    fresh = []
    for u in boxes:
        if (point < u).all():
            for axis in range(len(point)):
                lowered = u.copy()
                lowered[axis] = point[axis]
                fresh.append(lowered)
    result = list(kept)
    for i, u in enumerate(fresh):
        others = [*kept, *fresh[:i], *(v for v in fresh[i + 1 :] if not np.array_equal(u, v))]
        if not any((u <= v).all() for v in others):
            result.append(u)
    return result


def _rescore(study: Study, index: int) -> Floats:
    """The model's own objectives of a plan; a plan that the model rejects is a bug."""
    frame = score_index(study, np.array([index], dtype=np.int64))
    if not bool(frame["feasible"].iloc[0]):
        raise SelfCheckError(
            f"the MILP's plan d{index} is infeasible when scored: {frame['infeasible_reason'].iloc[0]}"
        )
    objectives = study.envelope.objectives.names
    return minimised({o: frame[o].to_numpy(dtype=np.float64) for o in objectives}, objectives)[0]


def check_agreement(solved: Floats, scored: Floats, objectives: Sequence[str], index: int) -> None:
    """The solver's objectives against the model's score of the same plan, both scaled."""
    for name, a, b in zip(objectives, solved, scored, strict=True):
        if abs(a - b) > AGREE * max(abs(b), 1e-3):
            raise SelfCheckError(f"design d{index}: the MILP gives {name} {a!r} (scaled), scoring gives {b!r}")
