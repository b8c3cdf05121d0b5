"""What one step more would buy: of a pool, of the link, of each limit. Every figure is scored or explored again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from dse import exhaustive
from dse.columns import OBJECTIVE_SENSE
from dse.progress import Stop, silent
from dse.recommend import settings_of
from dse.resolve import Study
from dse.scoring import score, score_index

EXPLORED_AGAIN = 5_000_000
"""Spaces up to this size are explored again beyond their limits: a second or two."""
RAISED = 2.0
"""How far beyond a limit is looked for the next better design."""


def _step(counts: tuple[int, ...], g: int) -> int:
    """The purchase step at the end of an axis, in whole instances."""
    step = counts[-1] - counts[-2] if len(counts) > 1 else g
    return step if step % g == 0 else g


def one_more(study: Study, row: pd.Series) -> pd.DataFrame:
    """What one step more of each thing buys, by scoring the changed design again.

    One more purchase step of each pool that is bought, at the same settings; the next wider link. Columns: change,
    throughput_tok_s, then the differences d_throughput_tok_s, d_cost_usd_per_h, d_power_w, and
    what breaks, if anything.
    """
    base = settings_of(study, row)
    changes: list[tuple[str, dict[str, str]]] = []
    for offer in study.problem.pools:
        n = int(row[f"n_{offer.name}"])
        if n == 0:
            continue
        g = int(row[f"instance_size_{offer.name}"])
        more = next((c for c in offer.counts if c > n and c % g == 0), n + _step(offer.counts, g))
        beyond = " (beyond the study's count)" if more > offer.counts[-1] else ""
        changes.append((f"{more - n} more {offer.name}{beyond}", {f"n_{offer.name}": str(more)}))
    names = list(study.problem.link_names)
    if "link" in base and base["link"] in names:
        at = names.index(base["link"])
        if at + 1 < len(names):
            changes.append((f"link {names[at + 1]} instead of {names[at]}", {"link": names[at + 1]}))
        s = float(row["link_gb_s"])
        if float(row["link_use_frac"]) >= 1.0 - 1e-9:
            changes.append(("1 GB/s more of link", {"link_gb_s": repr(s + 1.0)}))
    rows = []
    for label, change in changes:
        settings = {k: v for k, v in base.items() if not ("link_gb_s" in change and k == "link")} | change
        scored = score(study, settings).iloc[0]
        rows.append(
            {
                "change": label,
                "throughput_tok_s": float(scored["throughput_tok_s"]),
                "d_throughput_tok_s": float(scored["throughput_tok_s"] - row["throughput_tok_s"]),
                "d_cost_usd_per_h": float("nan")
                if "link_gb_s" in change
                else float(scored["cost_usd_per_h"] - row["cost_usd_per_h"]),
                "d_power_w": float("nan") if "link_gb_s" in change else float(scored["power_w"] - row["power_w"]),
                "breaks": str(scored["infeasible_reason"]),
            }
        )
    return pd.DataFrame(rows)


def raised_limits(study: Study, frontier: pd.DataFrame) -> list[dict[str, float | str]]:
    """For each upper limit on a minimised objective: the least raise that lets a faster design in.

    Explores the study again with that one limit doubled; empty for spaces too large for that, or
    where enumeration does not apply. Keys: limit, now, needed, gain (in the first objective) and objective.
    """
    objectives = study.envelope.objectives
    if study.space.n_designs > EXPLORED_AGAIN or exhaustive.refusal(study) or not objectives.maximise:
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
