"""Does mixing devices pay in a study: exploited, absorbed or obstructed, and how it does at equal cost and power."""

from __future__ import annotations

import math
from typing import Any, Final, TypeAlias

import pandas as pd

from dse.resolve import Study

Row: TypeAlias = "pd.Series[Any]"

EXPLOITED: Final = 1.02
OBSTRUCTED: Final = 0.95
"""Complementarity above, below which mixing is called exploited, obstructed; absorbed between."""
FIGURES: Final = ("complementarity", "gain", "gain_equal_cost", "gain_equal_power")


def word_of(complementarity: float) -> str:
    """The word for a complementarity.

    >>> [word_of(c) for c in (1.3, 1.0, 0.8, float("nan"))]
    ['exploited', 'absorbed', 'obstructed', 'not defined']
    """
    if math.isnan(complementarity):
        return "not defined"
    if complementarity > EXPLOITED:
        return "exploited"
    return "obstructed" if complementarity < OBSTRUCTED else "absorbed"


def mixes(study: Study, frame: pd.DataFrame) -> pd.DataFrame:
    """The feasible rows that have devices of several pools."""
    bought = sum((frame[f"n_{p}"] > 0).astype(int) for p in study.space.pool_names)
    return frame[(bought > 1) & frame["feasible"]]


def study_verdict(study: Study, pick: Row | None, frontier: pd.DataFrame, candidates: pd.DataFrame) -> dict[str, Any]:
    """The verdict: of the pick where it mixes pools, else of the mix with the largest gain at equal cost.

    Keys: word, design_id, of_pick, the four figures (None without a mix), sentence.
    """
    of_pick = pick is not None and sum(int(pick[f"n_{p}"]) > 0 for p in study.space.pool_names) > 1
    if of_pick and pick is not None:
        row = pick
    else:
        found = pd.concat([f for f in (mixes(study, frontier), mixes(study, candidates)) if len(f)] or [frontier[:0]])
        if not len(found):
            sentence = "No feasible design of this study mixes devices; there is nothing to judge."
            return {
                "word": "single pool",
                "design_id": None,
                "of_pick": False,
                **dict.fromkeys(FIGURES),
                "sentence": sentence,
            }
        row = found.sort_values("gain_equal_cost", ascending=False, kind="stable").iloc[0]
    figures = {name: float(row[name]) for name in FIGURES}
    return {
        "word": word_of(figures["complementarity"]),
        "design_id": str(row["design_id"]),
        "of_pick": of_pick,
        **figures,
        "sentence": sentence_of(study, row, figures, of_pick=of_pick),
    }


def sentence_of(study: Study, row: Row, figures: dict[str, float], *, of_pick: bool) -> str:
    """The verdict in a sentence or two, with what to beware of."""
    parts = " + ".join(f"{int(row[f'n_{p}']):,} x {p}" for p in study.space.pool_names if int(row[f"n_{p}"]) > 0)
    who = "The pick" if of_pick else f"The pick is of one kind. The mix with the largest gain at equal cost ({parts})"
    ratio = figures["complementarity"]
    does = f"gives {ratio:.3g} times what its pools give side by side"
    if math.isnan(ratio):
        does = "has no pool that can work alone"
    return f"{who} {does}{_compared(figures)}.{_caveats(row, figures)}"


def _compared(figures: dict[str, float]) -> str:
    """How the mix stands against the best single kind of device."""
    gains = {"cost": figures["gain_equal_cost"], "power": figures["gain_equal_power"]}
    wins = [f"equal {what}" for what, gain in gains.items() if gain > 1]
    loses = [f"equal {what}" for what, gain in gains.items() if gain <= 1]
    told = []
    if wins:
        told.append(f"beats the best single kind of device at {' and '.join(wins)}")
    if loses:
        told.append(f"does not beat {'it' if wins else 'the best single kind of device'} at {' and '.join(loses)}")
    if not told:
        return ""
    return f", and {', but '.join(told)} ({gains['cost']:.3g} and {gains['power']:.3g} times its throughput)"


def _caveats(row: Row, figures: dict[str, float]) -> str:
    """What a complementarity above 1 may hide."""
    text = ""
    if figures["complementarity"] == figures["gain"]:
        text = " Only one of its pools can do this work alone; the others count as nothing in that sum."
    apart = [float(row[g]) for g in ("gain_apart_equal_cost", "gain_apart_equal_power") if g in row.index]
    if apart and max(apart) <= 1:
        text += " One device with its phases apart may do as well: offer it as two pools to see such a fleet."
    return text
