"""What would make an infeasible study feasible: the smallest change of the user's limits, found exactly.

Two answers. *Together*: all limits give way at once; the sum of the shares by which they are broken is least (the
elastic program of `formulations.program`, or the enumeration's nearest design). *Alone*: one limit gives way, the
others hold; the least it must move is the best value of its column in the study without it. Service limits change
how a pool is set up, so theirs are found by bisection, each step an exact answer whether a design exists.

Every relaxation is checked: its design, scored under the relaxed study, is feasible.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd

from dse import exhaustive, frontier
from dse.columns import OBJECTIVE_SENSE
from dse.errors import SelfCheckError
from dse.points import Stage, solve_all
from dse.progress import PartStop, Stop, silent
from dse.resolve import Study
from dse.scoring import bounds_of, limit_key, score_plan, score_plans, violation
from formulations.plan import Plan

ENUMERATED = 5_000_000
"""Spaces up to this size are explored again with a limit dropped: a second or two."""
BISECTED = 200_000
"""Spaces up to this size are explored again some thirty times."""
LARGEST_FACTOR = 1e4
"""A service limit is raised at most so much."""
FINE_FRAC = 1e-3
"""Service limits are found to this share."""
MOST_S = 30.0
"""All answers together may take so long; what is not proven by then is left out."""
ROUNDING = 1e-9
"""Limits are moved by this share beyond what the design needs, so that no rounding breaks them."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """One limit, as it is and as it must be."""

    limit: str
    """Key in the study: `limits.<column>`, `demand.requests_s`, `workload.slo.<name>`."""
    now: float
    needed: float


@dataclass(frozen=True, kw_only=True)
class Relaxation:
    """A change of the limits that lets a design in."""

    changes: tuple[Change, ...]
    design_id: str
    design: str
    """What is bought, in words."""


def relaxations(study: Study, nearest: Plan | None, stop: Stop) -> list[dict[str, Any]]:
    """The smallest relaxation of all limits together, then of each alone that suffices alone.

    `nearest` is the design that an enumeration found to break the limits least, if it knows one.
    """
    found, own = [], PartStop(time_limit_s=min(MOST_S, stop.left_s), whole=stop)
    together = _together(study, nearest, own)
    if together is not None:
        found.append(together)
    for alone in (*_limits_alone(study, own), *_service_alone(study, own)):
        if alone not in found:
            found.append(alone)
    return [asdict(r) for r in found]


def _relaxation(study: Study, plan: Plan) -> Relaxation | None:
    """What a plan needs of the limits; None where it breaks none, or one that no key of the study speaks of."""
    row = score_plan(study, plan).iloc[0]
    changes = []
    for name, (low, high) in bounds_of(study).items():
        value = float(row[name])
        if low <= value <= high:
            continue
        below, away = value < low, 0.0 if name.startswith("n_") else ROUNDING * abs(value)
        changes.append(
            Change(
                limit=limit_key(study, name, low=below),
                now=low if below else high,
                needed=value - away if below else value + away,
            )
        )
    if not changes or not all(math.isfinite(c.needed) for c in changes):
        return None
    _check(study, changes, plan)
    return Relaxation(changes=tuple(changes), design_id=plan.design_id, design=in_words(study, row))


def in_words(study: Study, row: pd.Series) -> str:
    """What a design buys."""
    return ", ".join(f"{int(row[f'n_{p}'])} x {p}" for p in study.space.pool_names if row[f"n_{p}"] > 0)


def _check(study: Study, changes: list[Change], plan: Plan) -> None:
    wider = study.changed({c.limit: c.needed for c in changes})
    row = score_plan(wider, plan).iloc[0]
    if not bool(row["feasible"]):
        raise SelfCheckError(f"a relaxation leaves design {plan.design_id} infeasible: {row['infeasible_reason']}")


# -- together -------------------------------------------------------------------------------------


def _together(study: Study, nearest: Plan | None, stop: Stop) -> Relaxation | None:
    plan = None if frontier.refusal(study) else _elastic(study, stop)
    if stop.asked():
        return None
    plan = nearest if plan is None else plan  # the programs leave out devices that a limit on counts rules out
    return None if plan is None else _relaxation(study, plan)


def _elastic(study: Study, stop: Stop) -> Plan | None:
    """The plan that breaks the limits least, over all programs."""
    n = len(study.envelope.objectives.names)
    plans = solve_all(study, (np.inf,) * n, (Stage((0.0,) * n, strain=1.0), Stage((1.0,) * n, eager=1.0)), stop)
    if not plans:
        return None
    frame, bounds = score_plans(study, plans), bounds_of(study)
    broken = violation({b: frame[b].to_numpy(dtype=np.float64) for b in bounds}, bounds)
    return plans[int(np.broadcast_to(broken, len(plans)).argmin())]


# -- alone ----------------------------------------------------------------------------------------


def _limits_alone(study: Study, stop: Stop) -> list[Relaxation]:
    """For each limit, the design that moves it least while the others hold."""
    found = []
    for name, (low, high) in bounds_of(study).items():
        if stop.asked():
            break
        sense = OBJECTIVE_SENSE.get(name)
        if sense != ("max" if low > -math.inf else "min") or math.isfinite(low) == math.isfinite(high):
            continue
        plan = _best_without(study, name, sense, stop)
        relaxation = None if plan is None else _relaxation(study, plan)
        if relaxation is not None:
            found.append(relaxation)
    return found


def _best_without(study: Study, name: str, sense: str, stop: Stop) -> Plan | None:
    """The design that is best in one column when the limit on it is dropped."""
    ends = {"maximise": [name], "minimise": ["cost_usd_per_h"]}
    if sense == "min":
        ends = {"maximise": ["throughput_tok_s"], "minimise": [name]}
    free = study.changed({limit_key(study, name, low=sense == "max"): None, "objectives": ends})
    plans = _front(free, stop)
    if not plans:
        return None
    values = score_plans(free, plans)[name].to_numpy(dtype=np.float64)
    return plans[int((-values if sense == "max" else values).argmin())]


def _front(study: Study, stop: Stop) -> list[Plan]:
    """A frontier, or at least its ends, by whichever method is exact and quick enough; empty where none is proven."""
    if not exhaustive.refusal(study) and study.space.n_designs <= ENUMERATED:
        found = exhaustive.explore(study, workers=1, address="local", report=silent, stop=stop)
        return [] if stop.reason else [Plan(index=int(i)) for i in found.index]
    if frontier.refusal(study):
        return []
    ends = study.changed({"search.resolution_frac": 1.0})
    plans = frontier.explore(ends, report=silent, stop=stop).plans
    return [] if stop.reason else list(plans)


# -- service limits -------------------------------------------------------------------------------


def _service_alone(study: Study, stop: Stop) -> list[Relaxation]:
    """For each service limit, the least at which a design meets the other limits, and that design."""
    slo = study.envelope.model_dump(mode="json", exclude_unset=True).get("workload", {}).get("slo", {})
    small = not exhaustive.refusal(study) and study.space.n_designs <= BISECTED
    if not slo or not (small or not frontier.refusal(study)):
        return []
    found = [_service(study, f"workload.slo.{name}", float(now), stop) for name, now in slo.items()]
    return [r for r in found if r is not None]


def _service(study: Study, key: str, now: float, stop: Stop) -> Relaxation | None:
    def designs(value: float) -> list[Plan]:
        return _front(study.changed({key: value}), stop)

    too_low, enough = now, now * LARGEST_FACTOR
    plans = designs(enough)
    if not plans:
        return None
    while enough / too_low > 1.0 + FINE_FRAC and not stop.asked():
        middle = math.sqrt(too_low * enough)
        there = designs(middle)
        too_low, enough, plans = (too_low, middle, there) if there else (middle, enough, plans)
    if stop.asked():
        return None
    changes = [Change(limit=key, now=now, needed=enough)]
    _check(study, changes, plans[0])
    row = score_plan(study.changed({key: enough}), plans[0]).iloc[0]
    return Relaxation(changes=tuple(changes), design_id=plans[0].design_id, design=in_words(study, row))
