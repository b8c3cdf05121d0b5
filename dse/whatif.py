"""What one step more would buy: of a pool, of the link, of each limit. Every figure is scored or explored again."""

from __future__ import annotations

import numpy as np
import pandas as pd

from dse import exhaustive
from dse import frontier as milp
from dse.columns import OBJECTIVE_SENSE
from dse.points import Stage, solve_all
from dse.progress import PartStop, Stop, silent
from dse.resolve import Study
from dse.scoring import limit_key, score, score_index, score_plans

MOST_S = 10.0
"""All limits together may take so long by exact programs; what is not proven by then is named."""
EXPLORED_AGAIN = 5_000_000
"""Spaces up to this size are explored again beyond their limits: a second or two."""
FASTER = 1e-6
"""A design counts as faster when it is so by more than this share."""
RAISED = 2.0
"""How far beyond a limit is looked for the next better design."""


def one_more(study: Study, row: pd.Series) -> pd.DataFrame:
    """What one step more of each thing buys, by scoring the changed design again.

    Columns: change, throughput_tok_s, the differences d_throughput_tok_s, d_cost_usd_per_h, d_power_w, and what
    breaks, if anything. NaN where a change has no price of its own.
    """
    design = {str(k): v for k, v in row.items()}
    base = study.space.settings_of(design)
    rows = []
    for step in study.space.next_steps(design):
        settings = {k: v for k, v in base.items() if k not in step.replaces} | step.settings
        scored = score(study, settings).iloc[0]
        cost, power = (float(scored[c] - row[c]) if step.priced else np.nan for c in ("cost_usd_per_h", "power_w"))
        rows.append(
            {
                "change": step.label,
                "throughput_tok_s": float(scored["throughput_tok_s"]),
                "d_throughput_tok_s": float(scored["throughput_tok_s"] - row["throughput_tok_s"]),
                "d_cost_usd_per_h": cost,
                "d_power_w": power,
                "breaks": str(scored["infeasible_reason"]),
            }
        )
    return pd.DataFrame(rows)


def raised_limits(study: Study, frontier: pd.DataFrame, stop: Stop) -> tuple[list[dict[str, float | str]], list[str]]:
    """For each upper limit on a minimised objective: the least raise that lets a faster design in.

    Enumerated with that one limit doubled, or by an exact program without it. Empty for spaces too large for the one
    and without the other, and where a demand asks for the cheapest design and not the fastest. Keys: limit, now,
    needed, gain (in the first objective) and objective. And the limits that the time was too short for.
    """
    objectives = study.envelope.objectives
    if study.space.demand or not objectives.maximise or not len(frontier):
        return [], []
    first = objectives.maximise[0]
    rows: list[dict[str, float | str]] = []
    unanswered: list[str] = []
    best = float(frontier[first].max())
    own = PartStop(time_limit_s=min(MOST_S, stop.left_s), whole=stop)
    for name, (_, high) in study.envelope.limits.bounds().items():
        if OBJECTIVE_SENSE.get(name) != "min" or name not in objectives.minimise or not np.isfinite(high):
            continue
        found = _next_enumerated(study, name, high, best) if enumerable(study) else _next_solved(study, name, best, own)
        if found is not None:
            gain = float(found[first]) - best
            rows.append({"limit": name, "now": high, "needed": float(found[name]), "objective": first, "gain": gain})
        elif own.asked():
            unanswered.append(name)
    return rows, unanswered


def enumerable(study: Study) -> bool:
    """Whether the space is small enough to be explored again in a second or two."""
    return not exhaustive.refusal(study) and study.space.n_designs <= EXPLORED_AGAIN


def _next_enumerated(study: Study, name: str, high: float, best: float) -> pd.Series | None:
    """The design beyond one limit, at most twice it, that needs least of it to be faster than the best within."""
    wider, first = (
        study.changed({limit_key(study, name, low=False): high * RAISED}),
        study.envelope.objectives.maximise[0],
    )
    found = exhaustive.explore(wider, workers=1, address="local", report=silent, stop=Stop())
    frame = score_index(wider, found.index)
    better = frame[(frame[first] > best * (1 + FASTER)) & (frame[name] > high)]
    return better.sort_values([name, first], ascending=[True, False]).iloc[0] if len(better) else None


def _next_solved(study: Study, name: str, best: float, stop: Stop) -> pd.Series | None:
    """The same without a bound on how far beyond, by the exact programs."""
    wider = study.changed({limit_key(study, name, low=False): None})
    if milp.refusal(wider):
        return None
    names = study.envelope.objectives.names
    upper = tuple(-best * (1 + FASTER) if o == study.envelope.objectives.maximise[0] else np.inf for o in names)
    stages = (Stage(tuple(float(o == name) for o in names)), Stage((1.0,) * len(names), eager=1.0))
    plans = solve_all(wider, upper, stages, stop)
    return score_plans(wider, plans).sort_values(name).iloc[0] if plans and not stop.asked() else None
