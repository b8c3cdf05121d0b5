"""Which frontier point to pick, by a stated rule, and what one step more would buy."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dse.resolve import Study

Floats = NDArray[np.float64]


def recommend(study: Study, frontier: pd.DataFrame) -> tuple[int, str]:
    """Position of the recommended row, and the rule in words.

    With a demand: the design that meets it at the lowest first minimised objective (the cheapest). With
    an upper limit on what is minimised (a budget, a power cap): the fastest inside the limits. With neither: the
    knee, the point whose gain in the maximised objectives, scaled to 0..1 over the frontier, exceeds its
    mean scaled use of the minimised ones most. Ties go to the lower other objectives, then to the narrower link.
    """
    if not len(frontier):
        raise ValueError("an empty frontier has no point to recommend")
    objectives = study.envelope.objectives
    demand = getattr(study.problem, "demand_requests_s", None)
    bounds = study.envelope.limits.bounds()
    capped = [o for o in objectives.minimise if bounds.get(o, (0.0, np.inf))[1] < np.inf]
    best_first = [frontier[o].to_numpy(dtype=np.float64) for o in objectives.minimise]
    fastest_first = [-frontier[o].to_numpy(dtype=np.float64) for o in objectives.maximise]
    link = frontier["link_gb_s"].to_numpy() if "link_gb_s" in frontier else np.zeros(len(frontier))
    if demand is not None and objectives.minimise:
        keys = [*best_first, *fastest_first, link]
        rule = f"lowest {objectives.minimise[0]} among designs that serve {demand:g} requests/s"
    elif capped and objectives.maximise:
        keys = [*fastest_first, *best_first, link]
        rule = f"highest {objectives.maximise[0]} within the limits on {' and '.join(capped)}"
    else:
        spent = _mean_scaled([frontier[o] for o in objectives.minimise], len(frontier))
        gained = _mean_scaled([frontier[o] for o in objectives.maximise], len(frontier))
        keys = [-np.round(gained - spent, 12), *fastest_first, link]
        rule = f"knee: scaled {' and '.join(objectives.maximise)} less mean scaled {' and '.join(objectives.minimise)}"
    return int(np.lexsort(tuple(reversed(keys)))[0]), rule


def _mean_scaled(columns: list[pd.Series], n: int) -> Floats:
    """Mean of columns scaled to 0..1 (N,); zeros without columns."""
    total = np.zeros(n)
    for column in columns:
        values = column.to_numpy(dtype=np.float64)
        width = values.max() - values.min()
        if np.isfinite(width) and width > 0:
            total += (values - values.min()) / width
    return total / max(len(columns), 1)


def settings_of(study: Study, row: pd.Series) -> dict[str, str]:
    """The `--set` keys that give a frame's row again."""
    settings = {k: str(row[k]) for k in ("weight_dtype", "kv_dtype", "compute_dtype", "routing") if k in row}
    for pool in study.space.pool_names:
        settings[f"n_{pool}"] = str(int(row[f"n_{pool}"]))
        if int(row[f"n_{pool}"]) == 0:
            continue
        for key in ("instance_size", "prefill_batch", "max_decode_batch"):
            settings[f"{key}_{pool}"] = str(int(row[f"{key}_{pool}"]))
        role = str(row[f"role_{pool}"])
        if role in ("prefill", "decode", "both"):
            settings[f"role_{pool}"] = role
    if str(row.get("link", "none")) != "none":
        settings["link"] = str(row["link"])
    return settings
