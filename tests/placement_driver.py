"""Placement programs through the driver: the whole frontier, or the best plan alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from dse import frontier as milp
from dse.points import Point, Programs, Stage, Unit, forget, programs_of, solve_unit
from dse.progress import Stop, silent
from dse.resolve import Study
from dse.scoring import score_plan
from dse.solve import Outcome, Status


@dataclass
class Solved:
    """One plan: what was proven, its score, and solves (the first and one after every round of cuts)."""

    outcome: Outcome
    row: pd.Series
    rounds: int


def programs(study: Study) -> list[Any]:
    """The programs of a study that they do not refuse."""
    return list(programs_of(study).data)


def best(study: Study) -> Solved:
    """The plan that is best in the first objective, over programs that agree in the others."""
    every, n = programs_of(study), len(study.envelope.objectives.names)
    found = [(_point(every, i, n)) for i in range(len(every.data))]
    forget()
    point = min((p for p in found if p.columns is not None), key=lambda p: float(p.columns[0]))
    assert point.plan is not None
    return Solved(point.outcome, score_plan(study, point.plan).iloc[0], point.solves)


def _point(every: Programs, program: int, n: int) -> Point:
    point = solve_unit(every, Unit(program=program, upper=(np.inf,) * n, stages=(Stage((1.0,) * n),)))
    assert point.outcome.status in (Status.OPTIMAL, Status.INFEASIBLE)
    return point


def frontier(study: Study) -> list[tuple[float, ...]]:
    """All non-dominated points."""
    found = milp.explore(study.changed({"search.resolution_frac": 0.0}), report=silent, stop=Stop())
    assert not found.unproven
    return sorted({tuple(float(x) for x in p) for p in found.points})
