"""The only door to MILP solvers: a Pyomo model in, a typed outcome out.

HiGHS through Pyomo, one thread, no gap allowed. Every re-solve starts from a cleared solver: with some
versions a persistent solver has reported wrong optima after a change of right-hand sides.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import Enum
from typing import Any

from dse.errors import SelfCheckError

GAP = 1e-9
"""A point whose gap is below this is proven optimal."""
FEASIBILITY = 1e-9


class Status(Enum):
    """How a solve ended."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    """Stopped early with a plan."""
    INFEASIBLE = "infeasible"
    UNKNOWN = "unknown"
    """Stopped early without a plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One solve: status, objective, proven bound, relative gap, time [s]."""

    status: Status
    objective: float
    bound: float
    time_s: float

    @property
    def gap(self) -> float:
        """Distance of the plan to the proven bound, relative where the objective exceeds 1 (they are scaled to 1)."""
        return abs(self.objective - self.bound) / max(1.0, abs(self.objective))


class Solver:
    """One model, solved again and again as its parameters change."""

    def __init__(self, model: Any, seed: int) -> None:
        from pyomo.contrib.solver.common.factory import SolverFactory

        self._model = model
        self._highs = SolverFactory("highs")
        self._highs.config.load_solutions = False
        self._highs.config.raise_exception_on_nonoptimal_result = False
        self._highs.config.threads = 1
        self._highs.config.solver_options = {
            "mip_rel_gap": 0.0,
            "mip_abs_gap": GAP,
            "mip_feasibility_tolerance": FEASIBILITY,
            "primal_feasibility_tolerance": FEASIBILITY,
            "random_seed": seed % 2**31,
        }
        self._solved = False

    def solve(self, time_limit_s: float) -> Outcome:
        """Solves the model as it stands; a plan, if any, is left in its variables."""
        from pyomo.contrib.solver.common.results import SolutionStatus, TerminationCondition

        if self._solved:
            self._highs._solver_model.clearSolver()
        self._highs.config.time_limit = max(time_limit_s, 0.01)
        started = time.perf_counter()
        results = self._highs.solve(self._model)
        spent = time.perf_counter() - started
        if not self._solved and "is unknown" in (results.solver_log or ""):
            raise SelfCheckError(f"HiGHS does not know an option: {results.solver_log.splitlines()[0]}")
        self._solved = True
        bound = results.objective_bound
        if results.solution_status in (SolutionStatus.optimal, SolutionStatus.feasible):
            results.solution_loader.load_vars()
            optimal = results.solution_status == SolutionStatus.optimal
            return Outcome(
                status=Status.OPTIMAL if optimal else Status.FEASIBLE,
                objective=float(results.incumbent_objective),
                bound=float("-inf") if bound is None else float(bound),
                time_s=spent,
            )
        infeasible = results.termination_condition in (
            TerminationCondition.provenInfeasible,
            TerminationCondition.infeasibleOrUnbounded,
        )
        return Outcome(
            status=Status.INFEASIBLE if infeasible else Status.UNKNOWN,
            objective=float("nan"),
            bound=float("nan"),
            time_s=spent,
        )
