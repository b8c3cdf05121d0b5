"""One point of a frontier: a program solved in a box, its plan scored again by the model.

A solve is a unit of work that any process can do: the programs travel once, each process keeps the models it
has built. A formulation may leave out rows that few plans break: `refine` names those that the plan breaks,
`add_row` adds one, and the box is solved again. What a solve has learned goes back to the caller; the model starts
the next solve with the rows that the caller hands out, in their order, so that a solve gives the same plan in
every process.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dse.errors import MethodError, SelfCheckError
from dse.pareto import minimised
from dse.progress import Stop
from dse.resolve import Study
from dse.scoring import bounds_of, score_plan
from dse.solve import Outcome, Solver, Status
from formulations.plan import NO_BOUND, Plan, Program

Floats = NDArray[np.float64]
Row = tuple[float, ...]
"""A row that a formulation left out, in plain numbers."""

STEP = 1.2e-7
"""How far past a known optimum a box starts, as a share of each objective's scale; points closer
together than this in some objective may be told apart by the solver's tolerance only."""
TIE = 2e-7
"""Slack that a stage leaves to the next, in scaled objectives: more than the solver's tolerance."""
WIDER = 100.0
"""How many times the slack a stage gets that finds no plan within it: there is one, that of the stage before."""
AGREE = 1e-9
"""Largest relative difference of a program's objective and the model's score of its plan."""
SMALL = 1e-3
"""Scaled objectives below this are compared as if they were this large."""
FOUND = (Status.OPTIMAL, Status.FEASIBLE)
"""Outcomes that leave a plan in the model."""
MOST_EXCESS = 1e12
"""A relaxation may break a limit by this many times its size: more is no relaxation."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Programs:
    """The programs of a study."""

    study: Study
    data: tuple[Program, ...]
    key: str
    """Tells them from those of other explorations, wherever they travel."""

    @property
    def formulation(self) -> ModuleType:
        """The module that builds them."""
        if self.study.paradigm.formulation is None:
            raise MethodError(refusal(self.study))
        return self.study.paradigm.formulation()


class Stage(NamedTuple):
    """One solve of several in a row: what is minimised while the stages before stay at their best."""

    weights: tuple[float, ...]
    """Of scaled objectives."""
    strain: float = 0.0
    """Of breaking a limit by its own size; 0: limits hold."""
    eager: float = 0.0
    """Of running below capacity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """One point asked for: a program, the box, what is minimised, rows known to be needed, and the time it has."""

    program: int
    upper: tuple[float, ...]
    """Of minimised columns."""
    stages: tuple[Stage, ...]
    reach: float = -STEP
    """How far beyond it plans may lie, in scaled objectives; negative: strictly below."""
    rows: tuple[Row, ...] = ()
    time_limit_s: float = np.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """What a solve gave: the plan and its minimised columns where there is one."""

    outcome: Outcome
    plan: Plan | None = None
    columns: Floats | None = None
    solves: int = 1
    rows: tuple[Row, ...] = ()
    """Rows that were missing."""


def refusal(study: Study) -> str:
    """Why the MILP cannot answer this study exactly; empty where it can."""
    if study.paradigm.formulation is None:
        return f'milp: {study.envelope.paradigm} has no exact program; use method = "exhaustive" or "optuna"'
    formulation = study.paradigm.formulation()
    refused: str = formulation.refusal(study.space, study.envelope.objectives.names, bounds_of(study))
    return refused


def programs_of(study: Study) -> Programs:
    """The programs of a study; MethodError where they cannot answer it exactly."""
    refused = refusal(study)
    if refused or study.paradigm.formulation is None:
        raise MethodError(refused)
    found = study.paradigm.formulation().programs(study.space, study.envelope.objectives.names, bounds_of(study))
    return Programs(study=study, data=tuple(found), key=secrets.token_hex(8))


@dataclass(slots=True)
class Built:
    """A program's model and what solves it."""

    model: Any
    solver: Solver
    rows: tuple[Row, ...] = ()


_KNOWN: dict[str, Programs] = {}
"""Programs by their key: a copy that travels here again is not unpacked into new tables."""
_BUILT: dict[tuple[str, int], Built] = {}
"""Their models by number."""


def forget() -> None:
    """Drops what this process keeps of programs."""
    _KNOWN.clear()
    _BUILT.clear()


def _built(programs: Programs, unit: Unit) -> Built:
    """The unit's model with exactly the unit's rows; a model with others is built anew."""
    key = (programs.key, unit.program)
    built = _BUILT.get(key)
    if built is None or built.rows != unit.rows[: len(built.rows)]:
        model = programs.formulation.build_model(programs.data[unit.program])
        built = _BUILT[key] = Built(model, Solver(model, programs.study.envelope.search.seed))
    for row in unit.rows[len(built.rows) :]:
        programs.formulation.add_row(built.model, programs.data[unit.program], row)
    built.rows = unit.rows
    return built


def solve_unit(programs: Programs, unit: Unit) -> Point:
    """Solves one program in one box, stage by stage; what a worker runs."""
    if programs.key not in _KNOWN:
        forget()  # a worker that outlives an exploration would hold the programs of all before
    programs = _KNOWN.setdefault(programs.key, programs)
    data, formulation = programs.data[unit.program], programs.formulation
    built, stop = _built(programs, unit), Stop(time_limit_s=unit.time_limit_s)
    upper = np.minimum(data.scaled(np.array(unit.upper)) + unit.reach, NO_BOUND)
    solved, ends, held, plan = 0, list[Outcome](), np.zeros(len(upper), dtype=np.bool_), None
    for limit in built.model.LIMITS:
        built.model.allowed[limit] = 0.0
    for stage in unit.stages:
        _aim(built.model, data, upper, stage)
        outcomes = refined(formulation, data, built, stop)
        if ends and outcomes[-1].status is Status.INFEASIBLE:
            _aim(built.model, data, upper + (WIDER - 1.0) * TIE * held, stage)
            outcomes += refined(formulation, data, built, stop)
        solved += len(outcomes)
        ends.append(_as_one(outcomes))
        if ends[-1].status not in FOUND:
            break
        plan = formulation.extract(built.model, data, programs.study.space)
        held |= np.array(stage.weights) > 0
        upper[held] = np.minimum(upper, formulation.objective_values(built.model) + TIE)[held]
        if stage.strain:
            _keep_excess(built.model)
    outcome = _together(ends)
    fresh = built.rows[len(unit.rows) :]
    if plan is None:
        return Point(outcome=outcome, solves=solved, rows=fresh)
    columns = rescored(programs.study, plan, limits_hold=not any(s.strain for s in unit.stages))
    if outcome.status is Status.OPTIMAL:  # a plan cut off by time may be set up worse than its design can be
        values = formulation.objective_values(built.model)
        check_agreement(values, data.scaled(columns), data.objectives, plan.design_id)
    return Point(outcome=outcome, plan=plan, columns=columns, solves=solved, rows=fresh)


def refined(formulation: ModuleType, data: Program, built: Built, stop: Stop) -> list[Outcome]:
    """Solves until the plan breaks no row that was left out."""
    outcomes: list[Outcome] = []
    while True:
        outcomes.append(built.solver.solve(stop.left_s))
        if outcomes[-1].status not in FOUND:
            return outcomes
        missing = tuple(formulation.refine(built.model, data)) if hasattr(formulation, "refine") else ()
        if not missing:
            return outcomes
        for row in missing:
            formulation.add_row(built.model, data, row)
        built.rows += missing


def _as_one(outcomes: Sequence[Outcome]) -> Outcome:
    """Rounds of one stage as one outcome: the last, with the time of all."""
    time_s, rejected = sum(o.time_s for o in outcomes), sum(o.rejected for o in outcomes)
    return replace(outcomes[-1], time_s=time_s, rejected=rejected)


def _together(ends: Sequence[Outcome]) -> Outcome:
    """The stages as one outcome: the largest gap, the time of all, proven if every stage is."""
    last = ends[-1]
    if last.status is Status.INFEASIBLE and len(ends) > 1:
        raise SelfCheckError("a plan of one stage is infeasible in the next; nothing is reported")
    status = last.status
    found = [o for o in ends if o.status in FOUND]
    if found and status is not Status.INFEASIBLE and any(o.status is not Status.OPTIMAL for o in ends):
        status = Status.FEASIBLE  # a stage that time cut off leaves the plan of the stage before
    worst = max(found, key=lambda o: o.gap, default=last)
    time_s, rejected = sum(o.time_s for o in ends), sum(o.rejected for o in ends)
    return replace(worst, status=status, time_s=time_s, rejected=rejected)


def _aim(model: Any, data: Program, upper: Floats, stage: Stage) -> None:
    """Sets the box, and what is minimised."""
    for name, bound, weight in zip(data.objectives, upper, stage.weights, strict=True):
        model.upper[name] = float(bound)
        model.weight[name] = weight
    model.eager = stage.eager
    for limit in model.LIMITS:
        # a minimum beyond NO_BOUND is held as if it were NO_BOUND: its excess counts for so much less of the limit
        low = data.limits[limit][0]
        model.strain[limit] = stage.strain * min(1.0, NO_BOUND / low) if low > 0 else stage.strain
        if stage.strain:
            model.allowed[limit] = MOST_EXCESS


def _keep_excess(model: Any) -> None:
    """Later stages break limits by no more than this one."""
    for limit in model.LIMITS:
        model.allowed[limit] = float(model.excess[limit].value or 0.0) + TIE


def solve_all(study: Study, upper: Sequence[float], stages: Sequence[Stage], stop: Stop) -> list[Plan]:
    """The proven plan of every program of a study in one box, where there is one; here, one after the other."""
    programs = programs_of(study)
    units = [Unit(program=i, upper=tuple(upper), stages=tuple(stages)) for i in range(len(programs.data))]
    try:
        points = [solve_unit(programs, replace(unit, time_limit_s=stop.left_s)) for unit in units if not stop.asked()]
    finally:
        forget()
    return [p.plan for p in points if p.plan is not None and p.outcome.status is Status.OPTIMAL]


def rescored(study: Study, plan: Plan, *, limits_hold: bool = True) -> Floats:
    """The model's own minimised columns of a plan; a plan that the model rejects is a bug."""
    frame = score_plan(study, plan)
    if limits_hold and not bool(frame["feasible"].iloc[0]):
        reason = frame["infeasible_reason"].iloc[0]
        raise SelfCheckError(f"the MILP's plan {plan.design_id} is infeasible when scored: {reason}")
    objectives = study.envelope.objectives.names
    return minimised({o: frame[o].to_numpy(dtype=np.float64) for o in objectives}, objectives)[0]


def check_agreement(solved: Floats, scored: Floats, objectives: Sequence[str], design_id: str) -> None:
    """The program's objectives, of its integers, against the model's score of the same plan, both scaled."""
    for name, a, b in zip(objectives, solved, scored, strict=True):
        if abs(a - b) > AGREE * max(abs(b), SMALL):
            raise SelfCheckError(f"design {design_id}: the MILP gives {name} {a!r} (scaled), scoring gives {b!r}")
