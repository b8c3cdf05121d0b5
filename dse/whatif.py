"""What one step more would buy: of a pool, of the link, of each limit. Every figure is scored or explored again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from dse import exhaustive
from dse.columns import OBJECTIVE_SENSE
from dse.progress import Stop, silent
from dse.resolve import Study
from dse.scoring import score, score_index

EXPLORED_AGAIN = 5_000_000
"""Spaces up to this size are explored again beyond their limits: a second or two."""
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


def raised_limits(study: Study, frontier: pd.DataFrame) -> list[dict[str, float | str]]:
    """For each upper limit on a minimised objective: the least raise that lets a faster design in.

    Explores the study again with that one limit doubled. Empty for spaces too large for that, where enumeration
    does not apply, or where a demand asks for the cheapest design and not the fastest. Keys: limit, now, needed,
    gain (in the first objective) and objective.
    """
    objectives = study.envelope.objectives
    if study.space.demand or study.space.n_designs > EXPLORED_AGAIN:
        return []
    if exhaustive.refusal(study) or not objectives.maximise:
        return []
    first = objectives.maximise[0]
    best = float(frontier[first].max()) if len(frontier) else 0.0
    rows: list[dict[str, float | str]] = []
    for name, (_, high) in study.envelope.limits.bounds().items():
        if OBJECTIVE_SENSE.get(name) != "min" or name not in objectives.minimise or not np.isfinite(high):
            continue
        wider = _with_limit(study, name, high * RAISED)
        found = exhaustive.explore(wider, workers=1, address="local", report=silent, stop=Stop())
        frame = score_index(wider, found.index)
        better = frame[(frame[first] > best * (1 + 1e-9)) & (frame[name] > high)]
        if len(better):
            row = better.sort_values([name, first], ascending=[True, False]).iloc[0]
            rows.append(
                {
                    "limit": name,
                    "now": high,
                    "needed": float(row[name]),
                    "objective": first,
                    "gain": float(row[first]) - best,
                }
            )
    return rows


def _with_limit(study: Study, name: str, high: float) -> Study:
    raw = study.envelope.model_dump(mode="json", exclude_unset=True)
    limits: dict[str, Any] = dict(raw["limits"])
    limits[name] = {**limits[name], "max": high} if isinstance(limits[name], dict) else high
    return Study.from_dict({**raw, "limits": limits}, folder=study.folder, file=study.name)
