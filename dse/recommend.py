"""Which frontier point to pick, by a stated rule, and in which order the others follow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dse.columns import column
from dse.resolve import Study

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

LOWEST: Final = {
    "cheapest": "cost_usd_per_h",
    "cheapest_token": "usd_per_mtok",
    "tokens_per_joule": "energy_j_per_tok",
}
"""Rule of `objectives.pick` -> the column whose lowest value wins."""


def recommend(study: Study, frontier: pd.DataFrame) -> tuple[int, str]:
    """Position of the recommended row, and the rule in words."""
    order, rule = ranking(study, frontier)
    return int(order[0]), rule


def ranking(study: Study, frontier: pd.DataFrame) -> tuple[Ints, str]:
    """Positions of all rows, the recommended one first (N,), and the rule in words.

    The rule is that of `objectives.pick`. Left to `auto`, it is with a demand: the design that meets it at the lowest
    first minimised objective (the cheapest). With an upper limit on what is minimised (a budget, a power cap): the
    fastest inside the limits. With neither: the knee, the point whose gain in the maximised objectives, scaled to 0..1
    over the frontier, exceeds its mean scaled use of the minimised ones most. Ties go to the lower other objectives,
    then to what the space prefers (the narrower link). ValueError for an empty frontier.
    """
    if not len(frontier):
        raise ValueError("an empty frontier has no point to recommend")
    objectives = study.envelope.objectives
    keys, rule = _rule_keys(study, frontier, chosen_rule(study))
    least = [frontier[o].to_numpy(dtype=np.float64) for o in objectives.minimise]
    most = [-frontier[o].to_numpy(dtype=np.float64) for o in objectives.maximise]
    ties = [frontier[name].to_numpy(dtype=np.float64) for name in study.space.tie_breakers]
    knee = rule.startswith("knee")
    return np.lexsort(tuple(reversed([*keys, *least, *([] if knee else most), *ties]))).astype(np.int64), rule


def chosen_rule(study: Study) -> str:
    """The rule that holds: the study's own, or what `auto` means for it."""
    objectives = study.envelope.objectives
    if objectives.pick != "auto":
        return objectives.pick
    if study.space.demand is not None and objectives.minimise:
        return "least"
    return "fastest" if capped(study) and objectives.maximise else "knee"


def capped(study: Study) -> list[str]:
    """Minimised objectives with an upper limit."""
    bounds = study.envelope.limits.bounds()
    return [o for o in study.envelope.objectives.minimise if bounds.get(o, (0.0, np.inf))[1] < np.inf]


def _rule_keys(study: Study, frontier: pd.DataFrame, rule: str) -> tuple[Sequence[Floats], str]:
    """What the rule sorts by, lowest first, and its words."""
    objectives = study.envelope.objectives
    if rule in LOWEST:
        name = LOWEST[rule]
        return [frontier[name].to_numpy(dtype=np.float64)], f"lowest {name}" + _serving(study)
    if rule == "least":
        return [], f"lowest {objectives.minimise[0]}" + _serving(study)
    if rule == "fastest":
        inside = f" within the limits on {' and '.join(capped(study))}" if capped(study) else ""
        fastest = [-frontier[o].to_numpy(dtype=np.float64) for o in objectives.maximise]
        return fastest, f"highest {objectives.maximise[0]}{inside}"
    spent = _mean_scaled([frontier[o] for o in objectives.minimise], len(frontier))
    gained = _mean_scaled([frontier[o] for o in objectives.maximise], len(frontier))
    words = f"knee: scaled {' and '.join(objectives.maximise)} less mean scaled {' and '.join(objectives.minimise)}"
    return [-np.round(gained - spent, 12)], words


def _serving(study: Study) -> str:
    """The demand that all designs meet, in words."""
    if study.space.demand is None:
        return ""
    name, least = study.space.demand
    known = column(name)
    return f" among designs that serve {least:g} {known.unit if known else ''}".rstrip()


def _mean_scaled(columns: list[pd.Series], n: int) -> Floats:
    """Mean of columns scaled to 0..1 over their finite values (N,); zeros without columns."""
    total = np.zeros(n)
    for one in columns:
        values = one.to_numpy(dtype=np.float64)
        finite = values[np.isfinite(values)]
        width = finite.max() - finite.min() if len(finite) else 0.0
        if width > 0:
            total += np.clip((values - finite.min()) / width, 0.0, 1.0)  # without bound: as bad as the worst
    return total / max(len(columns), 1)
