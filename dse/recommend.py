"""Which frontier point to pick, by a stated rule, and what one step more would buy."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dse.columns import column
from dse.resolve import Study

Floats = NDArray[np.float64]


def recommend(study: Study, frontier: pd.DataFrame) -> tuple[int, str]:
    """Position of the recommended row, and the rule in words.

    With a demand: the design that meets it at the lowest first minimised objective (the cheapest). With
    an upper limit on what is minimised (a budget, a power cap): the fastest inside the limits. With neither: the
    knee, the point whose gain in the maximised objectives, scaled to 0..1 over the frontier, exceeds its
    mean scaled use of the minimised ones most. Ties go to the lower other
    objectives, then to what the space prefers (the narrower link).
    """
    if not len(frontier):
        raise ValueError("an empty frontier has no point to recommend")
    objectives = study.envelope.objectives
    demand = study.space.demand
    bounds = study.envelope.limits.bounds()
    capped = [o for o in objectives.minimise if bounds.get(o, (0.0, np.inf))[1] < np.inf]
    best_first = [frontier[o].to_numpy(dtype=np.float64) for o in objectives.minimise]
    fastest_first = [-frontier[o].to_numpy(dtype=np.float64) for o in objectives.maximise]
    ties = [frontier[name].to_numpy(dtype=np.float64) for name in study.space.tie_breakers]
    if demand is not None and objectives.minimise:
        keys = [*best_first, *fastest_first, *ties]
        known = column(demand[0])
        unit = known.unit if known else ""
        rule = f"lowest {objectives.minimise[0]} among designs that serve {demand[1]:g} {unit}".rstrip()
    elif capped and objectives.maximise:
        keys = [*fastest_first, *best_first, *ties]
        rule = f"highest {objectives.maximise[0]} within the limits on {' and '.join(capped)}"
    else:
        spent = _mean_scaled([frontier[o] for o in objectives.minimise], len(frontier))
        gained = _mean_scaled([frontier[o] for o in objectives.maximise], len(frontier))
        keys = [-np.round(gained - spent, 12), *best_first, *ties]
        rule = f"knee: scaled {' and '.join(objectives.maximise)} less mean scaled {' and '.join(objectives.minimise)}"
    return int(np.lexsort(tuple(reversed(keys)))[0]), rule


def _mean_scaled(columns: list[pd.Series], n: int) -> Floats:
    """Mean of columns scaled to 0..1 (N,); zeros without columns."""
    total = np.zeros(n)
    for one in columns:
        values = one.to_numpy(dtype=np.float64)
        width = values.max() - values.min() if np.isfinite(values).all() else 0.0
        if width > 0:
            total += (values - values.min()) / width
    return total / max(len(columns), 1)
