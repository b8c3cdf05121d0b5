"""What adapting is worth, and what planning for all scenarios is worth against planning for one.

Two questions, each answered exactly by the explorers, with the study's limits in force:

- *adapting*: the cheapest fleet that meets every demand, under each of the three ways to adapt; without demands, the
  largest throughput in the worst scenario within a budget;
- *scenarios*: for each scenario alone the best plan within a budget, scored in all scenarios. The robust plan is the
  one that is best in the worst scenario within the same budget, so that none of them is better there.

The budget is the study's own limit on cost, else what the recommended design costs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from .robust_serving_problem import RobustProblem, plain_scenarios
from .robust_serving_study import ADAPTATIONS

Row = Mapping[str, Any]
COST, EXPECTED, WORST, HEADROOM = "cost_usd_per_h", "throughput_tok_s", "throughput_worst_tok_s", "headroom"
ROUNDING = 1e-9
"""A budget is raised by this share, so that the fleet that it is the cost of fits."""
NO_HEADROOM = 1e-9
"""Asks for nearly nothing: every fleet that serves all scenarios meets it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """The best design of a study in one column."""

    row: Row
    proven: bool


class Compared(Protocol):
    """A study of several scenarios."""

    problem: RobustProblem

    @property
    def envelope(self) -> Any:
        """Its tables."""
        ...

    @property
    def space(self) -> Any:
        """Its designs."""
        ...


BestOf = Callable[[Mapping[str, object], str, float], Best | str]
"""Changed keys of the study, a column, a share of the time left -> its best design, or why there is none."""
ScoreOf = Callable[[Mapping[str, object], Mapping[str, str]], Row]
"""Changed keys of the study, and a design's keys -> its row."""


def compare_adaptation(study: Compared, pick: Row, best_of: BestOf, score_of: ScoreOf) -> dict[str, Any]:
    """The comparison as plain data under the key `robust`; `pick` is the recommended design.

    Keys: metric, what the worst scenario is told by; budget_usd_per_h; adaptations, one entry for each that has a
    fleet; robust, the best plan for the worst scenario within the budget; single, one entry a scenario; missing, why
    something is left out (empty where nothing is). What was found and not proven says so.
    """
    limit = study.envelope.limits.bounds().get(COST, (0.0, np.inf))[1]
    asked = study.problem.scenarios.demand_requests_s is not None
    metric = HEADROOM if asked else WORST
    budget = float(limit) if not asked and np.isfinite(limit) else float(pick[COST])
    adaptations, missing = _adaptations(study, best_of, metric, None if asked else budget)
    within = _within(str(pick["adaptation"]), metric, budget, asked)
    robust, single = best_of(within, metric, 0.5), list[dict[str, Any]]()
    if isinstance(robust, str):
        missing.append(f"the plan for all scenarios: {robust}")
    else:
        single, late = _single(study, within, metric, robust, best_of, score_of)
        missing += late
    return {
        "robust": {
            "metric": metric,
            "asked": "the cheapest fleet that meets every demand" if asked else _asked(budget),
            "budget_usd_per_h": budget,
            "adaptations": adaptations,
            "robust": None if isinstance(robust, str) else _entry(study, robust, metric),
            "single": single,
            "missing": "; ".join(missing),
        }
    }


def _asked(budget: float) -> str:
    return f"the largest throughput in the worst scenario within {budget:,.6g} USD/h"


def _objectives(metric: str) -> dict[str, object]:
    return {"objectives": {"maximise": [metric], "minimise": [COST]}}


def _within(adaptation: str, metric: str, budget: float, asked: bool) -> dict[str, object]:
    """Changes that ask for the best worst case within a budget."""
    changes = {"adaptation": [adaptation], f"limits.{COST}": budget * (1 + ROUNDING), **_objectives(metric)}
    return changes | ({"demand.headroom": NO_HEADROOM} if asked else {})


def _adaptations(
    study: Compared, best_of: BestOf, metric: str, budget: float | None
) -> tuple[list[dict[str, Any]], list[str]]:
    """The answer under each way to adapt, and what it is worth against the one before; and why some are left out."""
    found: list[dict[str, Any]] = []
    missing: list[str] = []
    column = COST if budget is None else metric
    for adaptation in ADAPTATIONS:
        changes: dict[str, object] = {"adaptation": [adaptation], **_objectives(metric)}
        if budget is not None:
            changes[f"limits.{COST}"] = budget * (1 + ROUNDING)
        best = best_of(changes, column, 0.25)
        if isinstance(best, str):
            missing.append(f"{adaptation}: {best}")
            continue
        entry = {"adaptation": adaptation, **_entry(study, best, metric)}
        if found:
            before, now = found[-1][column], entry[column]
            entry["worth"] = {"against": found[-1]["adaptation"], "column": column, "difference": now - before,
                              "frac": now / before - 1.0 if before else 0.0}  # fmt: skip
        found.append(entry)
    return found, missing


def _single(
    study: Compared, within: Mapping[str, object], metric: str, robust: Best, best_of: BestOf, score_of: ScoreOf
) -> tuple[list[dict[str, Any]], list[str]]:
    """For each scenario the best plan for it alone, and what it reaches in the worst of all; and which are left out."""
    tables, found, late = plain_scenarios(study.problem, study.space.pool_names), [], []
    given = _as_tables(study, tables)
    reached = float(robust.row[metric])
    for k, table in enumerate(tables):
        best = best_of({**within, **given, "scenario": [table]}, metric, 1.0 / (len(tables) - k))
        if isinstance(best, str):
            late.append(f"the plan for {table['name']} alone: {best}")
            continue
        everywhere = score_of({**within, **given}, study.space.settings_of(best.row))
        worst = float(everywhere[metric])
        found.append(
            {"scenario": table["name"], **_entry(study, best, metric), "own": float(best.row[metric]), "worst": worst,
             "worst_scenario": str(everywhere["binding_scenario"]), "short_frac": 1.0 - worst / reached}
        )  # fmt: skip
    return found, late


def _as_tables(study: Compared, tables: Sequence[Mapping[str, Any]]) -> dict[str, object]:
    """Changes that give classes and scenarios as tables, where they come from a trace."""
    if study.envelope.workload.trace is None:
        return {"scenario": list(tables)}
    requests = [
        {"name": c.name, "share": c.share, "input_tokens": c.input_tokens, "output_tokens": c.output_tokens}
        for c in study.problem.classes
    ]
    source = {
        "workload.trace": None,
        "workload.window_s": None,
        "workload.classes": None,
        "workload.requests": requests,
    }
    return {**source, "scenario": list(tables)}


def _entry(study: Compared, best: Best, metric: str) -> dict[str, Any]:
    """A design as the comparison keeps it."""
    parts = {pool: int(best.row[f"n_{pool}"]) for pool in study.space.pool_names}
    return {
        "parts": {pool: n for pool, n in parts.items() if n},
        "settings": study.space.settings_of(best.row),
        "proven": best.proven,
        **{name: float(best.row[name]) for name in (COST, EXPECTED, metric)},
    }
