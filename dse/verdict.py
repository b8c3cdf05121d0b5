"""Whether mixing devices pays in a study: one word, the design that it is about, and a sentence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, TypedDict

import numpy as np
import pandas as pd

from dse.resolve import Study

EXPLOITED: Final = 1.02
OBSTRUCTED: Final = 0.95
"""Complementarity above, below which mixing is called exploited, obstructed; absorbed between."""
SAME: Final = 0.005
"""A gain this close to 1 is neither."""
SEPARATION: Final = "by separating the phases"
ONE_DEVICE: Final = "the best fleet of one device"


class Verdict(TypedDict):
    """What run.json says of mixing; figures that are not defined are null."""

    word: str
    """exploited, absorbed, obstructed, single pool, not defined."""
    caveat: str
    """What else may explain the word; empty where nothing does."""
    design_id: str | None
    of_pick: bool
    """Whether that design is the recommended one."""
    complementarity: float | None
    gain: float | None
    gain_equal_cost: float | None
    gain_equal_power: float | None
    sentence: str


def study_verdict(
    study: Study, pick: pd.Series[Any] | None, frontier: pd.DataFrame, candidates: pd.DataFrame
) -> Verdict:
    """The verdict on mixing in a study: of the recommended design, if it mixes pools.

    Else of the feasible mix with the largest gain at equal cost among frontier and candidates. Without a pick nothing
    is feasible.
    """
    pools = study.space.pool_names
    if pick is None:
        return _without_design("not defined", "No design is feasible, so there is nothing to compare.")
    if mixes(pick, pools):
        return _of_design(pick, pools, "")
    best = _best_mix([frontier, candidates], pools)
    if best is not None:
        return _of_design(best, pools, _one_kind(best, pools))
    if len(pools) < 2:
        return _without_design("single pool", "The study has one pool, so there is nothing to combine.")
    return _without_design("single pool", "No feasible candidate mixes pools, so there is nothing to combine.")


def mixes(row: pd.Series[Any], pools: Sequence[str]) -> bool:
    """Whether a design has devices of more than one pool."""
    return sum(float(row[f"n_{pool}"]) > 0 for pool in pools) > 1


def word_of(complementarity: float) -> str:
    """Exploited, absorbed or obstructed; not defined where no pool of the design runs alone.

    >>> [word_of(c) for c in (1.3, 1.0, 0.6, float("nan"), float("inf"))]
    ['exploited', 'absorbed', 'obstructed', 'not defined', 'not defined']
    """
    if not math.isfinite(complementarity):
        return "not defined"
    if complementarity > EXPLOITED:
        return "exploited"
    return "obstructed" if complementarity < OBSTRUCTED else "absorbed"


def beats_apart(row: pd.Series[Any]) -> bool:
    """Whether a mix beats one device with its phases apart, at equal cost or power; true where there are no phases."""
    gains = [_number(row, f"gain_apart_equal_{base}") for base in ("cost", "power")]
    return any(math.isnan(gain) or gain > 1 for gain in gains)


def _best_mix(frames: Sequence[pd.DataFrame], pools: Sequence[str]) -> pd.Series[Any] | None:
    """The feasible mix with the largest gain at equal cost, the fastest of equals; None without a mix."""
    mixed = [found for frame in frames if len(frame) and len(found := frame[_mixed(frame, pools)])]
    if not mixed:
        return None
    found = pd.concat(mixed, ignore_index=True)
    keys = [found[name].fillna(-np.inf).to_numpy(dtype=np.float64) for name in ("gain_equal_cost", "throughput_tok_s")]
    return found.iloc[int(np.lexsort((-keys[1], -keys[0]))[0])]


def _mixed(frame: pd.DataFrame, pools: Sequence[str]) -> pd.Series[bool]:
    n_pools = sum((frame[f"n_{pool}"] > 0).astype(int) for pool in pools)
    return frame["feasible"] & (n_pools > 1)


def _number(row: pd.Series[Any], name: str) -> float:
    return float(row[name]) if name in row.index else math.nan


def _known(row: pd.Series[Any], name: str) -> float | None:
    value = _number(row, name)
    return value if math.isfinite(value) else None


def _one_kind(best: pd.Series[Any], pools: Sequence[str]) -> str:
    """Says that the verdict is about another design than the pick, and about which."""
    parts = " + ".join(f"{int(best[f'n_{pool}'])} x {pool}" for pool in pools if best[f"n_{pool}"] > 0)
    return f"The pick is of one kind of device; the best mix at equal cost among the candidates is {parts}. "


def _without_design(word: str, sentence: str) -> Verdict:
    return {
        "word": word,
        "caveat": "",
        "design_id": None,
        "of_pick": False,
        "complementarity": None,
        "gain": None,
        "gain_equal_cost": None,
        "gain_equal_power": None,
        "sentence": sentence,
    }


def _of_design(row: pd.Series[Any], pools: Sequence[str], opening: str) -> Verdict:
    c = _number(row, "complementarity")
    word = word_of(c)
    words = [_comparison(word, c, row, pools), _equal_words(row, word), _apart_words(row, word)]
    return {
        "word": word,
        "caveat": "" if word != "exploited" or beats_apart(row) else SEPARATION,
        "design_id": str(row["design_id"]),
        "of_pick": not opening,
        "complementarity": _known(row, "complementarity"),
        "gain": _known(row, "gain"),
        "gain_equal_cost": _known(row, "gain_equal_cost"),
        "gain_equal_power": _known(row, "gain_equal_power"),
        "sentence": opening + " ".join(filter(None, words)),
    }


def _comparison(word: str, c: float, row: pd.Series[Any], pools: Sequence[str]) -> str:
    """The mix against its own pools side by side."""
    if word == "not defined":
        return "None of its pools can do the work alone: only together they run it."
    meaning = {"exploited": "more than their sum", "absorbed": "about their sum", "obstructed": "less than their sum"}
    idle = [pool for pool in pools if row[f"n_{pool}"] > 0 and _number(row, f"busy_{pool}") == 0]
    standing = f"; {' and '.join(idle)} stands idle in it" if idle else ""
    lone = " Only one of its pools can do the work alone; the others count as nothing in that sum."
    times = f"{c:.3g} times what" if f"{c:.3g}" != "1" else "as much as"
    text = f"The mix gives {times} its pools give side by side: {meaning[word]}{standing}."
    return text + (lone if c == _number(row, "gain") else "")


OPENINGS: Final = {
    "exploited": ("It also beats", "It also equals", "But it falls short of"),
    "absorbed": ("It beats", "It equals", "It falls short of"),
    "obstructed": ("Even so it beats", "Even so it equals", "It also falls short of"),
    "not defined": ("It beats", "It equals", "It falls short of"),
}
"""How a word goes together with a gain at equal cost or power above, at, and below 1."""


def _equal_words(row: pd.Series[Any], word: str) -> str:
    """Whether the mix also wins against fleets of one device that cost, or draw, as much."""
    gains = {base: _number(row, f"gain_equal_{base}") for base in ("cost", "power")}
    ranked = sorted(((g, base) for base, g in gains.items() if math.isfinite(g)), key=lambda part: -_side(part[0]))
    if not ranked:
        return ""
    best = _side(ranked[0][0])
    whose = ("its throughput ", "")
    parts = [f"{gain:.3g} times {what}at equal {base}" for what, (gain, base) in zip(whose, ranked, strict=False)]
    joined = (", but " if _side(ranked[-1][0]) < best else " and ").join(parts)
    return f"{OPENINGS[word][1 - best]} {ONE_DEVICE}: {joined}."


def _side(gain: float) -> int:
    """1 for a gain, 0 for neither, -1 for a loss."""
    return 0 if abs(gain - 1) <= SAME else 1 if gain > 1 else -1


def _apart_words(row: pd.Series[Any], word: str) -> str:
    """How much of an exploited mix that serves one device could have had by keeping its phases apart."""
    gains = {base: _number(row, f"gain_apart_equal_{base}") for base in ("cost", "power")}
    if word != "exploited" or any(map(math.isnan, gains.values())):
        return ""
    if beats_apart(row):
        wins, loses = ([base for base, gain in gains.items() if (gain > 1) is won] for won in (True, False))
        where = f"At equal {' and '.join(wins)}" + (f", but not at equal {loses[0]}," if loses else "")
        return f"{where} it also beats one device that keeps prefill and decode on separate instances."
    return (
        "But one device that keeps prefill and decode on separate instances may do as well at equal cost and power: "
        "the gain is in separating the phases, not in mixing devices. Offer it as two pools to see such a fleet."
    )
