"""What if: how the recommended design and the choice itself answer when a number is turned.

Each knob (dse.knobs) is turned to both ends of its range. The recommended design is kept and scored again; and the
study is explored again, exactly, and its pick taken by the same rule. A break-even is the value nearest to today's, on
a ladder of steps, from which on the pick is of other kinds of device. It is found by bisection between the last step
that keeps them and the first that does not, to one part in a thousand; both ends are picks of explored studies. Where
the pick mixes devices, the price of a device at which the mix's gain at equal cost is 1 is found likewise, the design
kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pandas as pd

from dse import exhaustive
from dse.bisection import SpentError, bisected
from dse.checks import verified
from dse.convergence import reference_of
from dse.errors import InputError, MethodError
from dse.knobs import Knob, knobs
from dse.pareto import hypervolume, minimised
from dse.progress import Stop, silent
from dse.recommend import recommend
from dse.resolve import Study
from dse.scoring import on_grid, score, score_index

MOST_S: Final = 10.0
"""Explorations of a `dse run` may take so long; what was not reached by then is said to be left out."""
LADDER: Final = (1.05, 1.15, 1.35, 1.7, 2.4, 4.0, 7.0, 12.0, 25.0, 50.0, 100.0)
"""Steps away from today's value, as factors, cut at a knob's reach."""
LOOKED_BACK: Final = 24
"""Parts into which the way from today's value to a change is cut, to see whether there is a nearer one."""
KEPT: Final = ("throughput_tok_s", "cost_usd_per_h", "power_w", "usd_per_mtok")
"""Columns that are kept of every answer."""
MIXED: Final = "gain_equal_cost"

Record = dict[str, Any]


@dataclass(kw_only=True)
class _Explorer:
    """Explores turned studies until it is stopped."""

    stop: Stop
    used: int = 0
    known: dict[tuple[str, float], _Answer | None] = field(default_factory=dict)

    def answer(self, knob: Knob, value: float) -> _Answer | None:
        """The pick of a turned study; None where nothing is feasible. SpentError at the end of the time.

        InputError where a study may not have this value.
        """
        key = (knob.name, value)
        if key not in self.known:
            if self.stop.asked():
                raise SpentError
            self.used += 1
            self.known[key] = _explored(knob.turned(value), self.stop)
            if self.stop.reason:
                raise SpentError
        return self.known[key]


@dataclass(frozen=True, kw_only=True)
class _Answer:
    """What a study recommends, and its whole frontier."""

    pick: pd.Series
    kinds: tuple[str, ...]
    points: np.ndarray


def sensitivity(study: Study, row: pd.Series, stop: Stop) -> Record:
    """Everything that turning a number changes, as plain data for run.json, as far as the stop allows.

    Keys: kept (columns of the recommended design), kinds (devices it buys), knobs (each with its ends and changes),
    mixing (prices at which the mix is worth as much as the best fleet of one device), explorations, missing (why not
    all was explored; empty where it was).
    """
    refused = exhaustive.refusal(study)
    explorer = _Explorer(stop=stop)
    turned = [
        (knob, _described(knob) | {"ends": [_kept(knob, value, row) for value in (knob.low, knob.high)]})
        for knob in knobs(study)
    ]
    mixing = list(_mixing(study, row, [knob for knob, _ in turned]))
    if not refused:
        refused = _explore_all(study, row, turned, explorer)
    return {
        "kept": {name: float(row[name]) for name in KEPT},
        "kinds": list(_kinds(study, row)),
        "knobs": [record for _, record in turned],
        "mixing": mixing,
        "explorations": explorer.used,
        "missing": refused or stop.reason,
    }


def _described(knob: Knob) -> Record:
    return {
        "name": knob.name, "unit": knob.unit, "now": knob.now, "low": knob.low, "high": knob.high,
        "basis": knob.basis, "reach": list(knob.reach),
    }  # fmt: skip


def _kept(knob: Knob, value: float, row: pd.Series) -> Record:
    """The recommended design under a turned knob: columns, and what it breaks."""
    try:
        again = _rescored(knob.turned(value), row)
    except InputError as error:
        return {"value": value, "breaks": error.faults[0]}
    return {"value": value, "breaks": str(again["infeasible_reason"]), **{name: float(again[name]) for name in KEPT}}


def _rescored(study: Study, row: pd.Series) -> pd.Series:
    """One design of the untouched study, scored in another whose axes are the same."""
    number = str(row["design_id"])
    if number.startswith("d") and number[1:].isdigit():
        return score_index(study, np.array([int(number[1:])], dtype=np.int64)).iloc[0]
    return score(study, study.space.settings_of({str(k): v for k, v in row.items()})).iloc[0]


def _explored(study: Study, stop: Stop) -> _Answer | None:
    """The exact frontier of a study, and its pick; None where nothing is feasible."""
    try:
        found = exhaustive.explore(study, workers=1, address="local", report=silent, stop=stop)
    except MethodError:
        return None
    if not len(found.index):
        return None
    frame = verified(study, on_grid(found.index), found.points)
    pick = frame.iloc[recommend(study, frame)[0]]
    names = study.envelope.objectives.names
    points = minimised({name: frame[name].to_numpy(dtype=np.float64) for name in names}, names)
    return _Answer(pick=pick, kinds=_kinds(study, pick), points=points)


def _kinds(study: Study, row: pd.Series) -> tuple[str, ...]:
    """Devices that a design buys, in the order of the pools."""
    bought = [offer.device.name for offer in study.problem.pools if float(row[f"n_{offer.name}"]) > 0]
    return tuple(dict.fromkeys(bought))


def _explore_all(study: Study, row: pd.Series, turned: Sequence[tuple[Knob, Record]], explorer: _Explorer) -> str:
    """Fills the records of the knobs, one after the other, until the explorer is stopped; why it did not begin.

    An end without `pick`, a record without `changes`, was not reached.
    """
    today = _explored(study, explorer.stop)
    if today is None or explorer.stop.reason:
        return ""
    if today.kinds != _kinds(study, row):
        return f"explored exactly, the study picks {' and '.join(today.kinds)}; what the run found is not that"
    reference = reference_of(today.points)
    base = hypervolume(today.points, reference)
    kinds = _kinds(study, row)
    try:
        for knob, record in turned:
            for end in record["ends"]:
                try:
                    answer = explorer.answer(knob, end["value"])
                except InputError:
                    continue
                end["pick"] = None if answer is None else _pick(study, answer)
                if answer is not None and base > 0:
                    end["hypervolume"] = hypervolume(answer.points, reference) / base
            changes = (_change(study, knob, kinds, explorer, up=up) for up in (False, True))
            record["changes"] = [change for change in changes if change]
    except SpentError:
        pass
    return ""


def _pick(study: Study, answer: _Answer) -> Record:
    counts = {offer.name: int(answer.pick[f"n_{offer.name}"]) for offer in study.problem.pools}
    return {
        "parts": {name: n for name, n in counts.items() if n},
        "kinds": list(answer.kinds),
        **{name: float(answer.pick[name]) for name in KEPT},
    }


def _change(study: Study, knob: Knob, kinds: tuple[str, ...], explorer: _Explorer, *, up: bool) -> Record | None:
    """The first value on the ladder from which the pick is of other kinds, bracketed; None where none is."""

    def same(value: float) -> bool:
        answer = explorer.answer(knob, value)
        return answer is not None and answer.kinds == kinds

    at = at_back = knob.now
    for step in _ladder(knob, up=up):
        try:
            if same(step):
                at = step
                continue
            inside, outside = bisected(same, at, step)
            # kinds that leave, come back and leave again between two steps: the nearest of these changes counts
            for back in np.geomspace(knob.now, inside, LOOKED_BACK + 1)[1:-1].tolist() if knob.now > 0 < inside else ():
                if not same(back):
                    inside, outside = bisected(same, at_back, back)
                    break
                at_back = back
        except InputError:
            return None  # the rest of the ladder is no study
        after = explorer.answer(knob, outside)
        pick = None if after is None else _pick(study, after)
        return {"up": up, "inside": inside, "outside": outside, "pick": pick}
    return None


def _ladder(knob: Knob, *, up: bool) -> Iterator[float]:
    """Values away from today's up to the knob's reach, which is the last."""
    end = knob.reach[1] if up else knob.reach[0]
    for factor in LADDER:
        value = knob.now * factor if up else knob.now / factor
        if (value >= end) if up else (value <= end):
            break
        yield value
    if end != knob.now:
        yield end


def _mixing(study: Study, row: pd.Series, turned: Sequence[Knob]) -> Iterator[Record]:
    """Prices at which the recommended mix gains nothing over the best fleet of one device at equal cost."""
    if len(_kinds(study, row)) < 2 or MIXED not in row.index:
        return
    for knob in turned:
        if not knob.unit.startswith("USD") or "energy" in knob.name:
            continue
        gain = _gain(knob, row)
        for end in knob.reach:
            start = gain(knob.now)
            if not np.isfinite([start, gain(end)]).all() or (start > 1) == (gain(end) > 1):
                continue
            inside, outside = bisected(lambda v, g=gain, s=start: (g(v) > 1) == (s > 1), knob.now, end)  # type: ignore[misc]
            yield {"name": knob.name, "unit": knob.unit, "now": knob.now, "pays_now": bool(start > 1),
                   "inside": inside, "outside": outside}  # fmt: skip


def _gain(knob: Knob, row: pd.Series) -> Callable[[float], float]:
    def gain(value: float) -> float:
        return float(_rescored(knob.turned(value), row)[MIXED])

    return gain
