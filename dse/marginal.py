"""What binds a plan of the exact programs, and what one unit more of it is worth.

The plan's integers are fixed; what is left is a linear program, and the duals of its rows are prices. Its optimum
must be the plan's score, or nothing is reported.
"""

from __future__ import annotations

from typing import Any

import pandas as pd

from dse import frontier
from dse.errors import SelfCheckError
from dse.points import AGREE, SMALL, Built, programs_of, refined, rescored
from dse.progress import Stop
from dse.resolve import Study
from dse.solve import Solver, Status
from formulations.plan import Plan, Program

PAYS_PER = "GB/s"


def marginal_values(study: Study, row: pd.Series) -> list[dict[str, Any]]:
    """Rows that hold back a design of the grid: `row`, `resource`, `per` (device or GB/s), `requests_s` per unit.

    Empty where the paradigm's program has no prices, or rate is no objective.
    """
    design = str(row["design_id"])
    formulation = None if frontier.refusal(study) or not study.paradigm.formulation else study.paradigm.formulation()
    if not design.startswith("d") or formulation is None or not hasattr(formulation, "worths"):
        return []
    plan, plan_id = study.space.decoded(int(design[1:])), Plan(index=int(design[1:]))
    for data in programs_of(study).data:
        if data.may_idle:
            continue
        model = formulation.build_model(data)
        if formulation.place(model, data, plan):
            solver = _solved(study, formulation, model, data, plan_id)
            return [_line(study, w) for w in formulation.worths(model, data, solver.price)]
    return []


def _solved(study: Study, formulation: Any, model: Any, data: Program, plan: Plan) -> Solver:
    """The linear program of a placed plan, at its fastest; SelfCheckError where its score is another.

    Throughput is the first objective: a program that may not idle has it, and maximised objectives come first.
    """
    for i, name in enumerate(data.objectives):
        model.weight[name] = 1.0 if i == 0 else 0.0
    built = Built(model, Solver(model, study.envelope.search.seed))
    if refined(formulation, data, built, Stop())[-1].status is not Status.OPTIMAL:
        raise SelfCheckError(f"the linear program of design {plan.design_id} has no optimum")
    found, scored = (float(v[0]) for v in (formulation.objective_values(model), data.scaled(rescored(study, plan))))
    if abs(found - scored) > AGREE * max(abs(scored), SMALL):
        raise SelfCheckError(f"the linear program of design {plan.design_id} has another rate than its score")
    return built.solver


def _between(study: Study, pair: tuple[int, int] | None) -> str:
    return "link between " + (" and ".join(study.space.pool_names[p] for p in pair) if pair else "pools")


def _line(study: Study, worth: Any) -> dict[str, Any]:
    on_link = worth.pool is None
    return {
        "row": worth.row,
        "resource": _between(study, worth.pair) if on_link else study.space.pool_names[worth.pool],
        "per": PAYS_PER if on_link else "device",
        "requests_s": worth.requests_s,
    }
