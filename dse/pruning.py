"""The exact frontier of a grid whose designs are mostly dropped unseen, and when that loses nothing."""

from __future__ import annotations

from typing import Any

import numpy as np

from dse.enumeration import Found, finished
from dse.pareto import GatheredFront, minimised
from dse.progress import Progress, Report, Stop
from dse.resolve import Study
from dse.scoring import bounds_of, within_bounds

PRUNED_DESIGNS = 20_000_000
"""Larger spaces are pruned where that loses nothing; below, looking at every design takes about a second."""
TOO_MANY_PARTS = "too many partial fleets of which none is worse than another"


def prunes(study: Study) -> bool:
    """Whether `explore` drops designs unseen: a space worth it, and a study that loses nothing by it."""
    return study.space.n_designs > PRUNED_DESIGNS and not pruning_refusal(study)


def pruning_refusal(study: Study) -> str:
    """Why every design has to be looked at; empty where some can be dropped unseen and the frontier stays exact."""
    return study.space.pruning_refusal(study.envelope.objectives.names, bounds_of(study))


def account(study: Study, found: Found) -> dict[str, Any]:
    """What a proof says of pruning: how much was compared and scored for a large space, or why it was not pruned."""
    if study.space.n_designs <= PRUNED_DESIGNS:
        return {}
    if not found.pruned:
        return {"pruned": None, "not_pruned_because": pruning_refusal(study) or TOO_MANY_PARTS}
    return {"pruned": {"fleets_compared": found.candidates, "scored": found.scored}}


def explore_pruned(study: Study, *, report: Report, stop: Stop) -> Found:
    """The exact frontier of the grid, one design for each of its points, by what no design can be better than."""
    objectives, bounds = study.envelope.objectives.names, bounds_of(study)
    best = GatheredFront(len(objectives), distinct=True)
    total = Found(best.front.points, best.front.index, pruned=True)
    for lot in study.space.pruned(objectives, bounds, best.front):
        total.candidates += lot.n_compared
        if len(lot.designs):
            total.scored += len(lot.designs)
            screen, _ = study.space.screen_designs(lot.designs)
            known = {name: bound for name, bound in bounds.items() if name in screen.columns}
            good = np.flatnonzero(screen.feasible & within_bounds(screen.columns, known, exact=screen.exact))
            values = {o: screen.columns[o][good] for o in objectives}
            best.add(minimised(values, objectives), lot.designs[good])
        report(_progress(total, len(best.front), stop))
        if stop.asked():
            break
    return finished(total, best)


def _progress(total: Found, front: int, stop: Stop) -> Progress:
    return Progress(
        method="exhaustive", done=0, total=0, candidates=total.candidates, front=front, elapsed_s=stop.elapsed_s
    )
