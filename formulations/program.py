"""What every program ends with: objectives to minimise inside a box, and the user's limits.

Sets        OBJECTIVES i, LIMITS j  quantities of the plan, each scaled to about 1
Parameters  weight[i] of objective i, upper[i] its bound: the frontier search moves both
            low[j], high[j]  the user's limits; a low beyond NO_BOUND counts as that, a high beyond it has no row
            strain[j]  price of breaking limit j;  allowed[j]  by how much it may be broken
            eager      price on the bonus: what a plan should do as far as it can even where it is no objective
Variables   excess[j]  share by which the plan breaks limit j; 0 unless a relaxation is asked for
Minimise    sum_i weight[i] minimised[i] + sum_j strain[j] excess[j] - eager bonus       weigh_objectives
Subject to  minimised[i] <= upper[i]                                            respect_bounds
            quantity[j] <= high (1 + excess)                                    respect_limits
            quantity[j] >= low (1 - excess)                                     respect_minima
            excess[j] <= allowed[j]                                             allow_excess

Any positive weights give a plan that no other plan inside the box dominates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyomo.environ as pyo
from numpy.typing import NDArray

from .plan import NO_BOUND, Plan, Program

__all__ = ["Plan", "add_objectives", "objective_values"]

Floats = NDArray[np.float64]


def add_objectives(
    m: pyo.ConcreteModel, data: Program, quantities: Mapping[str, Any], maximised: Sequence[str], bonus: Any = 0.0
) -> None:
    """Ends a model: `quantities` are its scaled expressions, of which those in `maximised` count negative.

    `bonus` is what a plan should do as far as it can, where that is no objective: run at its capacity.
    """
    m.OBJECTIVES = pyo.Set(initialize=list(data.objectives))
    # nothing scaled exceeds NO_BOUND: a limit beyond says nothing, and its row would be badly scaled
    capped = [j for j in quantities if data.limits[j][1] < NO_BOUND]
    m.LIMITS = pyo.Set(initialize=[j for j in quantities if j in capped or data.limits[j][0] > 0])
    m.minimised = pyo.Expression(m.OBJECTIVES, rule=lambda m, i: -quantities[i] if i in maximised else quantities[i])
    m.weight = pyo.Param(m.OBJECTIVES, mutable=True, initialize=1.0, doc="weight[i]")
    m.upper = pyo.Param(m.OBJECTIVES, mutable=True, initialize=NO_BOUND, doc="upper[i]")
    m.eager = pyo.Param(mutable=True, initialize=0.0)
    m.strain = pyo.Param(m.LIMITS, mutable=True, initialize=0.0, doc="strain[j]")
    m.allowed = pyo.Param(m.LIMITS, mutable=True, initialize=0.0, doc="allowed[j]")
    m.excess = pyo.Var(m.LIMITS, domain=pyo.NonNegativeReals, doc="excess[j]")

    @m.Objective(doc="scaled")
    def weigh_objectives(m: pyo.ConcreteModel) -> Any:
        broken = pyo.quicksum(m.strain[j] * m.excess[j] for j in m.LIMITS)
        return pyo.quicksum(m.weight[i] * m.minimised[i] for i in m.OBJECTIVES) + broken - m.eager * bonus

    @m.Constraint(m.OBJECTIVES)
    def respect_bounds(m: pyo.ConcreteModel, i: str) -> Any:
        return m.minimised[i] <= m.upper[i]

    @m.Constraint(capped)
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
