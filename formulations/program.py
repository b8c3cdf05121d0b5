"""What every program ends with: objectives to minimise inside a box, and the user's limits.

Sets        OBJECTIVES i, LIMITS j  quantities of the plan, each scaled to about 1
Parameters  weight[i] of objective i, upper[i] its bound: the frontier search moves both
            low[j], high[j]  the user's limits;  strain[j] price of breaking limit j, allowed[j] by how much
Variables   excess[j]  share by which the plan breaks limit j; 0 unless a relaxation is asked for
Minimise    sum_i weight[i] minimised[i] + sum_j strain[j] excess[j]            weigh_objectives
Subject to  minimised[i] <= upper[i]                                            respect_bounds
            quantity[j] <= high (1 + excess)                                    respect_limits
            quantity[j] >= low (1 - excess)                                     respect_minima
            excess[j] <= allowed[j]                                             allow_excess

Any positive weights give a plan that no other plan inside the box dominates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import pyomo.environ as pyo
from numpy.typing import NDArray

Floats = NDArray[np.float64]

NO_BOUND = 2.0
"""No scaled quantity is larger than 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A design that a program found: its number in the grid, or its `--set` keys where the grid lacks it."""

    index: int | None = None
    settings: Mapping[str, str] = field(default_factory=dict)


class Program(Protocol):
    """What the frontier search asks of one program's data."""

    @property
    def objectives(self) -> Sequence[str]:
        """Quantities that are minimised, in the order of the study's objective columns; names of `minimised`."""
        ...

    @property
    def limits(self) -> Mapping[str, tuple[float, float]]:
        """Scaled quantity -> (low, high) where the user bounds it; infinite where not."""
        ...

    def scaled(self, point: Floats) -> Floats:
        """The program's minimised objectives for a point of minimised columns (M,); increasing in each."""
        ...


def add_objectives(
    m: pyo.ConcreteModel, data: Program, quantities: Mapping[str, Any], maximised: Sequence[str], bonus: Any = 0.0
) -> None:
    """Ends a model: `quantities` are its scaled expressions, of which those in `maximised` count negative.

    `bonus` is taken off the objective: a small price on what a plan should do even where it is no objective.
    """
    m.OBJECTIVES = pyo.Set(initialize=list(data.objectives))
    m.LIMITS = pyo.Set(initialize=[j for j in quantities if any(np.isfinite(data.limits[j]))])
    m.minimised = pyo.Expression(m.OBJECTIVES, rule=lambda m, i: -quantities[i] if i in maximised else quantities[i])
    m.weight = pyo.Param(m.OBJECTIVES, mutable=True, initialize=1.0, doc="weight[i]")
    m.upper = pyo.Param(m.OBJECTIVES, mutable=True, initialize=NO_BOUND, doc="upper[i]")
    m.strain = pyo.Param(m.LIMITS, mutable=True, initialize=0.0, doc="strain[j]")
    m.allowed = pyo.Param(m.LIMITS, mutable=True, initialize=0.0, doc="allowed[j]")
    m.excess = pyo.Var(m.LIMITS, domain=pyo.NonNegativeReals, doc="excess[j]")

    @m.Objective(doc="scaled")
    def weigh_objectives(m: pyo.ConcreteModel) -> Any:
        broken = pyo.quicksum(m.strain[j] * m.excess[j] for j in m.LIMITS)
        return pyo.quicksum(m.weight[i] * m.minimised[i] for i in m.OBJECTIVES) + broken - bonus

    @m.Constraint(m.OBJECTIVES)
    def respect_bounds(m: pyo.ConcreteModel, i: str) -> Any:
        return m.minimised[i] <= m.upper[i]

    @m.Constraint([j for j in m.LIMITS if np.isfinite(data.limits[j][1])])
    def respect_limits(m: pyo.ConcreteModel, j: str) -> Any:
        high = data.limits[j][1]
        return quantities[j] - high * m.excess[j] <= high

    @m.Constraint([j for j in m.LIMITS if data.limits[j][0] > 0])
    def respect_minima(m: pyo.ConcreteModel, j: str) -> Any:
        # a bound far above 1 says no more than NO_BOUND does, and keeps the row well scaled
        low = min(data.limits[j][0], NO_BOUND)
        return quantities[j] + low * m.excess[j] >= low

    @m.Constraint(m.LIMITS)
    def allow_excess(m: pyo.ConcreteModel, j: str) -> Any:
        return m.excess[j] <= m.allowed[j]


def objective_values(m: pyo.ConcreteModel) -> Floats:
    """The scaled, minimised objectives as the solver left them."""
    return np.array([float(pyo.value(m.minimised[i])) for i in m.OBJECTIVES])
