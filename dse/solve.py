"""The only door to MILP solvers: a Pyomo model in, a typed outcome out.

HiGHS through Pyomo, one thread, no gap allowed. Every re-solve starts from a cleared solver: with some
versions a persistent solver has reported wrong optima after a change of right-hand sides. And no plan is
believed: its integers are rounded and fixed, the rest is solved again, and bounds, rows and objective are
computed from that in extended precision (64-bit mantissa). A refuted answer is dropped and asked for another way. That
there is no plan is believed when HiGHS says it with presolve and without.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dse.errors import SelfCheckError
from dse.quiet import no_output

Floats = NDArray[np.float64]

GAP = 1e-9
"""A point whose gap is below this is proven optimal."""
COMPLETED = 1e-10
"""Feasibility tolerance of the linear program that completes a plan's integers."""
BROKEN = 1e-8
"""A completed plan that breaks a row or bound by more than this is no plan; rows are of order 1."""
OFF = 1e-6
"""A plan whose objective is further than this from what the solver reported is a wrong answer: its tolerance
moves an objective of order 1 by less."""


class Status(Enum):
    """How a solve ended."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    """Stopped early with a plan."""
    INFEASIBLE = "infeasible"
    UNKNOWN = "unknown"
    """Stopped early without a plan."""


PROVING: Mapping[str, object] = {
    "mip_allow_restart": False,
    "mip_heuristic_effort": 0.0,
    "mip_heuristic_run_feasibility_jump": False,
    "mip_heuristic_run_rens": False,
    "mip_heuristic_run_rins": False,
    "mip_heuristic_run_root_reduced_cost": False,
}
"""Most time goes into proofs, of boxes without a plan above all, to which heuristics and restarts add nothing: without
them six device kinds take 0.8 of the time, data parallel programs 0.6, placements the same (benchmarks)."""
LOOSE = {"mip_feasibility_tolerance": 1e-7, "primal_feasibility_tolerance": 1e-7}
TIGHT = {"mip_feasibility_tolerance": 1e-9, "primal_feasibility_tolerance": 1e-9}
WAYS: tuple[Mapping[str, object], ...] = (
    LOOSE,
    {**LOOSE, "presolve": "off"},
    TIGHT,
    {**TIGHT, "presolve": "off"},
    {**LOOSE, "presolve": "off", "random_seed": 1},
)
"""Options of one attempt after another, each used only if the answer of those before was refuted. Loose tolerances
first: at 1e-9 HiGHS has called boxes empty that hold plans, some even without presolve. What they let through, a plan
that breaks a row by less than 1e-7, the check of its integers finds."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One solve: status, objective, proven bound, time [s], and how many answers before were refuted."""

    status: Status
    objective: float
    bound: float
    time_s: float
    rejected: int = 0

    @property
    def gap(self) -> float:
        """Distance of the plan to the proven bound, relative where the objective exceeds 1 (they are scaled to 1)."""
        return abs(self.objective - self.bound) / max(1.0, abs(self.objective))


class Solver:
    """One model, solved again and again as its parameters change."""

    def __init__(self, model: Any, seed: int) -> None:
        from pyomo.contrib.solver.common.factory import SolverFactory

        self._model, self._seed = model, seed % 2**30
        self._highs = SolverFactory("highs")
        self._highs.config.load_solutions = False
        self._highs.config.raise_exception_on_nonoptimal_result = False
        self._highs.config.threads = 1
        self._solved = False
        self._loader: Any = None

    def solve(self, time_limit_s: float) -> Outcome:
        """Solves the model as it stands; a plan, if any, is checked and left in its variables.

        An answer that its own integers refute is dropped and the model solved another way, and so is one that there
        is no plan, until it has been given twice; SelfCheckError when no way gives an answer that holds.
        """
        started, wrong, empty = time.perf_counter(), "no two answers agree", 0
        for rejected, way in enumerate(WAYS):
            left_s = time_limit_s - (time.perf_counter() - started)
            status, reported, bound = self._run(way, left_s)
            spent_s = time.perf_counter() - started
            if status is Status.INFEASIBLE and not empty:
                empty = 1  # believed when said twice, in two ways
                continue
            if status is Status.INFEASIBLE or (status is Status.UNKNOWN and spent_s >= time_limit_s):
                return Outcome(status, float("nan"), float("nan"), spent_s, rejected - empty)
            if status is Status.UNKNOWN:
                wrong = "HiGHS stops without an answer and with time left"
                continue
            objective, wrong = self._checked(reported, bound, proven=status is Status.OPTIMAL)
            if not wrong:
                return Outcome(status, objective, bound, time.perf_counter() - started, rejected)
        raise SelfCheckError(f"{wrong}; nothing is reported")

    def _run(self, way: Mapping[str, object], time_limit_s: float) -> tuple[Status, float, float]:
        """Status, objective and bound as HiGHS reports them."""
        from pyomo.contrib.solver.common.results import SolutionStatus, TerminationCondition

        if self._solved:
            self._highs._solver_model.clearSolver()
        self._highs.config.time_limit = max(time_limit_s, 0.01)
        self._highs.config.solver_options = {
            "mip_rel_gap": 0.0,
            "mip_abs_gap": GAP,
            **PROVING,
            "random_seed": self._seed,
            "presolve": "choose",
            **way,
        }
        with no_output():
            results = self._highs.solve(self._model)
        if not self._solved and "is unknown" in (results.solver_log or ""):
            raise SelfCheckError(f"HiGHS does not know an option: {results.solver_log.splitlines()[0]}")
        self._solved = True
        if results.solution_status in (SolutionStatus.optimal, SolutionStatus.feasible):
            self._loader = results.solution_loader
            optimal = results.solution_status == SolutionStatus.optimal
            bound = -np.inf if results.objective_bound is None else float(results.objective_bound)
            return Status.OPTIMAL if optimal else Status.FEASIBLE, float(results.incumbent_objective), bound
        infeasible = results.termination_condition in (
            TerminationCondition.provenInfeasible,
            TerminationCondition.infeasibleOrUnbounded,  # every variable is bounded: it cannot be the latter
        )
        return Status.INFEASIBLE if infeasible else Status.UNKNOWN, float("nan"), float("nan")

    def price(self, row: Any) -> float:
        """Gain in the negative of the objective per unit of a row's right-hand side, without integers."""
        return -float(self._loader.get_duals([row])[row])

    def _checked(self, reported: float, bound: float, *, proven: bool) -> tuple[float, str]:
        """The objective of the plan as its integers give it, which is loaded, and what is wrong with the report."""
        highs = self._highs._solver_model
        found = np.array(highs.getSolution().col_value)
        lp = highs.getLp()
        integer = np.flatnonzero(np.array([int(kind) for kind in lp.integrality_]) == 1)
        values = _with_fixed(highs, lp, integer, found)
        self._load(values)
        row, column, objective = _recomputed(lp, values)
        off = abs(objective - reported) if proven else objective - reported
        if max(row, column) <= BROKEN and max(off, bound - objective) <= OFF:
            return objective, ""
        return objective, (
            f"HiGHS reports objective {reported!r}, bound {bound!r}; its integers give {objective!r}, with a row "
            f"broken by {row:.3g} and a bound by {column:.3g}"
        )

    def _load(self, values: Floats) -> None:
        """Values of the solver's columns into the model's variables."""
        for name, column in self._highs._pyomo_var_to_solver_var_map.items():
            self._highs._vars[name][0].set_value(values[column], skip_validation=True)


def _with_fixed(highs: Any, lp: Any, integer: NDArray[np.intp], found: Floats) -> Floats:
    """The columns with integers rounded and fixed, and the best of the rest; the solver is left as it was."""
    if not len(integer):
        return found
    at = integer.astype(np.int32)
    low, high = np.array(lp.col_lower_)[integer], np.array(lp.col_upper_)[integer]
    whole = np.round(found[integer])
    highs.changeColsBounds(len(at), at, whole, whole)
    highs.clearSolver()
    highs.setOptionValue("output_flag", False)
    for option in LOOSE:
        highs.setOptionValue(option, COMPLETED)
    highs.run()
    solved = highs.getSolution()
    values = np.array(solved.col_value) if solved.value_valid else found
    highs.changeColsBounds(len(at), at, low, high)
    values[integer] = whole
    return values


def _recomputed(lp: Any, values: Floats) -> tuple[float, float, float]:
    """Largest violation of a row, of a bound of a column, and the objective, in extended precision."""
    x = values.astype(np.longdouble)
    matrix = lp.a_matrix_
    start, index = np.array(matrix.start_), np.array(matrix.index_)
    products = np.array(matrix.value_).astype(np.longdouble) * np.repeat(x, np.diff(start)) if len(index) else x[:0]
    activity = np.zeros(lp.num_row_, dtype=np.longdouble)
    np.add.at(activity, index, products)
    row = _outside(activity, lp.row_lower_, lp.row_upper_)
    column = _outside(x, lp.col_lower_, lp.col_upper_)
    return row, column, float((np.array(lp.col_cost_).astype(np.longdouble) * x).sum() + lp.offset_)


def _outside(values: NDArray[np.longdouble], low: Sequence[float], high: Sequence[float]) -> float:
    return float(np.maximum(np.array(low) - values, values - np.array(high)).max(initial=0.0))
