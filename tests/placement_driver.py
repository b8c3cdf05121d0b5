"""The smallest frontier search over placement programs: what tests need of the driver, cuts and re-scoring included."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dse.pareto import minimised
from dse.resolve import Study
from dse.scoring import bounds_of, score, score_index
from dse.solve import Outcome, Solver, Status
from formulations import pp_placement

STEP = 1e-7


@dataclass
class Solved:
    """One solve: what was proven, the plan's score, rounds of cuts and time."""

    outcome: Outcome
    row: Any = None
    point: Any = None
    rounds: int = 0
    time_s: float = 0.0
    settings: dict[str, str] = field(default_factory=dict)


def solve(study: Study, model: Any, data: Any, solver: Solver, limit_s: float = 600.0) -> Solved:
    """Solves, refining until program and model agree, and scores the plan."""
    started, rounds = time.perf_counter(), 1
    outcome = solver.solve(limit_s)
    while outcome.status is Status.OPTIMAL and pp_placement.refine(model, data):
        rounds += 1
        outcome = solver.solve(limit_s)
    found = Solved(outcome, rounds=rounds, time_s=time.perf_counter() - started)
    if outcome.status in (Status.OPTIMAL, Status.FEASIBLE):
        plan = pp_placement.extract(model, data, study.space)
        found.settings = dict(plan.settings)
        frame = score(study, found.settings) if plan.index is None else score_index(study, np.array([plan.index]))
        found.row = frame.iloc[0]
        assert found.row["feasible"], found.row["infeasible_reason"]
        objectives = study.envelope.objectives.names
        found.point = minimised({o: frame[o].to_numpy(dtype=np.float64) for o in objectives}, objectives)[0]
        if outcome.status is Status.OPTIMAL:
            program = pp_placement.objective_values(model)
            scored = data.scaled(found.point)
            assert all(math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-9) for a, b in zip(program, scored, strict=True)), (
                program, scored,
            )  # fmt: skip
    return found


def programs(study: Study) -> list[Any]:
    """The programs of a study that they do not refuse."""
    objectives, bounds = study.envelope.objectives.names, bounds_of(study)
    assert pp_placement.refusal(study.space, objectives, bounds) == ""
    return pp_placement.programs(study.space, objectives, bounds)


def best(study: Study) -> Solved:
    """The best plan of a study with one objective."""
    found = []
    for data in programs(study):
        model = pp_placement.build_model(data)
        solved = solve(study, model, data, Solver(model, 0))
        if solved.outcome.status is Status.INFEASIBLE:
            continue
        assert solved.outcome.status is Status.OPTIMAL
        found.append(solved)
    return min(found, key=lambda s: float(s.point[0]))


def frontier(study: Study) -> list[tuple[float, ...]]:
    """All non-dominated points, box by box."""
    from dse.frontier import shrink
    from dse.pareto import nondominated

    points = []
    for data in programs(study):
        model = pp_placement.build_model(data)
        solver = Solver(model, 0)
        boxes = [np.full(len(data.objectives), np.inf)]
        while boxes:
            upper = boxes.pop()
            for name, bound in zip(data.objectives, data.scaled(upper) - STEP, strict=True):
                model.upper[name] = float(min(bound, 2.0))
            solved = solve(study, model, data, solver)
            if solved.outcome.status is Status.INFEASIBLE:
                continue
            assert (solved.point < upper).all()
            boxes = shrink([*boxes, upper], solved.point)
            points.append(solved.point)
    kept = np.array(points)[nondominated(np.array(points))]
    return sorted({tuple(float(x) for x in p) for p in kept})
