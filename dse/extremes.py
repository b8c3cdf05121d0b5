"""The best design of a study in one column, by an exact method; and what a paradigm has to compare with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import pandas as pd

from dse import exhaustive, frontier
from dse.columns import OBJECTIVE_SENSE
from dse.errors import InputError, MethodError
from dse.points import Stage, Unit, forget, programs_of, solve_unit
from dse.progress import PartStop, Stop, silent
from dse.resolve import Study
from dse.scoring import score, score_index, score_plan
from dse.solve import Status
from search_spaces.robust_comparison import Best

MOST_S: Final = 60.0
"""All that a paradigm compares may take so long; what is not proven by then is said to be missing."""
TOO_LATE: Final = "not found in the time for it"


def compared(study: Study, pick: pd.Series, stop: Stop) -> dict[str, Any]:
    """What the study's paradigm compares its recommended design with, for run.json; empty where it compares nothing."""
    if study.paradigm.extra is None:
        return {}
    own = PartStop(time_limit_s=min(MOST_S, stop.left_s), whole=stop)

    def best_of(changes: Mapping[str, object], column: str, share: float) -> Best | str:
        part = PartStop(time_limit_s=own.left_s * share, whole=stop)
        try:
            found = None if own.asked() else best(study.changed(changes), column, part)
        except (InputError, MethodError) as error:
            return str(error)
        if found is not None:
            return found
        return TOO_LATE if own.asked() or part.asked() else "no fleet meets it"

    def score_of(changes: Mapping[str, object], settings: Mapping[str, str]) -> Mapping[str, Any]:
        return _plain(score(study.changed(changes), settings).iloc[0])

    return study.paradigm.extra(study, _plain(pick), best_of, score_of)


def best(study: Study, column: str, stop: Stop) -> Best | None:
    """The design that is best in an objective column, of equals the best in the others; None without one, or in time.

    By the exact programs where they can answer the study, else by enumeration. Raises MethodError where neither can.
    """
    if not frontier.refusal(study):
        return _solved(study, column, stop)
    refused = exhaustive.refusal(study)
    if refused:
        raise MethodError(refused)
    found = exhaustive.explore(study, workers=1, address="local", report=silent, stop=stop)
    if not len(found.index) or stop.reason:
        return None
    return Best(row=_plain(_first(study, score_index(study, found.index), column)), proven=True)


def _solved(study: Study, column: str, stop: Stop) -> Best | None:
    names = study.envelope.objectives.names
    stages = (Stage(tuple(float(name == column) for name in names)), Stage((1.0,) * len(names)))
    programs = programs_of(study)
    rows, proven = [], True
    try:
        for program in range(len(programs.data)):
            upper = (np.inf,) * len(names)
            unit = Unit(program=program, upper=upper, stages=stages, time_limit_s=max(stop.left_s, 0.01))
            point = solve_unit(programs, unit)
            proven &= point.outcome.status in (Status.OPTIMAL, Status.INFEASIBLE)
            if point.plan is not None:
                rows.append(score_plan(study, point.plan))
    finally:
        forget()
    return Best(row=_plain(_first(study, pd.concat(rows), column)), proven=proven) if rows else None


def _first(study: Study, frame: pd.DataFrame, column: str) -> pd.Series:
    """The row that is best in a column, of equals in the other objectives."""
    order = [column, *(name for name in study.envelope.objectives.names if name != column)]
    ascending = [OBJECTIVE_SENSE[name] == "min" for name in order]
    return frame.sort_values(order, ascending=ascending, kind="stable").iloc[0]


def _plain(row: pd.Series) -> dict[str, Any]:
    return {str(k): v for k, v in row.items()}
