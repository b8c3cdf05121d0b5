"""Questions of a study, each answered exactly in one line, with the frontier behind it.

Every fleet that an answer names is the optimum of an exact exploration (dse.exact) of the study, or of the study with
further limits (dse.fleets). Two questions look for a value at which an answer changes. Both are monotone, so that
bisection finds the one such value:

- least_link. Let M(s) be the best mix with every link s times as wide. More bandwidth never slows a fleet and costs
  nothing here, so M(s) never gets worse as s grows. The best fleet of one device keeps today's links. Hence the s at
  which the mix is at least as good (no worse in cost and throughput) are all from some least one on.
- entry_price. Let W(p) be the best fleet with the device, at price p of it. A lower price makes no fleet dearer, so
  W(p) never gets better as p grows; the best fleet without the device does not depend on p. Hence the p at which a
  fleet with the device is better are all up to some highest one.

Both ends of a bracket are explored studies, one part in a thousand apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from dse.bisection import SpentError, bisected
from dse.errors import MethodError
from dse.exact import Explorer
from dse.fleets import (
    MOST_POINTS,
    RATE,
    Best,
    Bounds,
    aimed,
    any_fleet,
    best_alone,
    best_mix,
    best_with,
    best_without,
    bounded,
    devices_of,
    ends_of,
    n_kinds,
    parts,
    points_behind,
)
from dse.knobs import bandwidths, price_of
from dse.progress import Stop
from dse.question_lines import (
    COST,
    POWER,
    WORD,
    against_line,
    as_good,
    better,
    caps_text,
    cheapest_line,
    link_line,
    price_line,
    unserved_line,
    within_line,
)
from dse.resolve import Study
from dse.study import Question

MOST_S: Final = 60.0
"""All questions of a run together may take so long; what was not answered by then is said to be so."""

Record = dict[str, Any]


def answers(study: Study, stop: Stop) -> list[Record]:
    """One record a question, in the order asked, as plain data for run.json.

    Keys: ask; line, the answer in words; value and unit, its main figure; values, all its figures by name; bracket,
    the ends [met, not met] between which a value was bisected; frontier, at most 200 rows; proof; explorations; and
    missing, why there is no answer (empty where there is one).
    """
    question = study.envelope.question
    if question is None:
        return []
    return [_answered(study, question, ask, stop) for ask in question.ask]


def _answered(study: Study, question: Question, ask: str, stop: Stop) -> Record:
    explorer = Explorer(stop=stop)
    missing = ""
    try:
        record = QUESTIONS[ask](study, question, explorer)
    except SpentError:
        missing = stop.reason
    except MethodError as error:
        missing = str(error)
    if missing:
        record = _record(f"{ask} is not answered: {missing}.", "", {}) | {"missing": missing}
    return {"ask": ask, **record, "proof": explorer.proof(), "explorations": explorer.used}


# -- the questions ----------------------------------------------------------------------------------------------------


def cheapest_for_demand(study: Study, question: Question, explorer: Explorer) -> Record:
    """The cheapest fleet that serves the demand within the study's limits, against the best of one device."""
    asked = _for_demand(study, question)
    assert asked.space.demand is not None
    demand, best = asked.space.demand[1], any_fleet(asked, explorer)
    if best.row is None:
        free = aimed(asked.changed({"demand": None}), spent=COST, pick="fastest")
        return _record(unserved_line(asked, demand, any_fleet(free, explorer)), "USD/h", {"demand_requests_s": demand})
    alone, mix = best_alone(asked, explorer), _mix_beside(asked, best, explorer)
    return _record(
        cheapest_line(asked, demand, best, alone, mix),
        "USD/h",
        {"demand_requests_s": demand, **_compared(asked, best, alone, mix)},
        value=best.of(COST),
        frontier=points_behind(asked, [best, *alone, *filter(None, [mix])], COST),
    )


def best_within_limits(study: Study, question: Question, explorer: Explorer) -> Record:
    """The highest throughput within budget and power cap, which of them binds, and the best of one device."""
    asked, caps = _within(study, question), _caps(study, question)
    best = any_fleet(asked, explorer)
    if best.row is None:
        return _record(f"No fleet on offer is feasible within {caps_text(caps)}.", "tok/s", {"limits": caps})
    alone, mix = best_alone(asked, explorer), _mix_beside(asked, best, explorer)
    binding = _binding(asked, caps, best, explorer)
    return _record(
        within_line(asked, caps, best, binding, alone, mix),
        "tok/s",
        {"limits": caps, "binding": binding, **_compared(asked, best, alone, mix)},
        value=best.of(RATE),
        frontier=points_behind(asked, [best, *alone, *filter(None, [mix])], _spent(asked)),
    )


def hybrid_against_homogeneous(study: Study, question: Question, explorer: Explorer) -> Record:
    """The best mix against the best fleet of one device at equal cost, and at equal power: each cap for itself."""
    caps = _caps(study, question)
    lines, values, points = list[str](), dict[str, Any](), list[Record]()
    for column, cap in caps.items():
        only = {c: cap if c == column else math.inf for c in WORD}
        asked = aimed(study, spent=column, pick="fastest", bounds=_upper(study, only))
        mix, alone = best_mix(asked, explorer), best_alone(asked, explorer)
        all_of_it = _all_of_it(asked, column, alone, explorer)
        lines.append(against_line(asked, column, cap, mix, alone, all_of_it=all_of_it))
        points += points_behind(asked, [mix, *alone], column, most=MOST_POINTS // len(caps))
        values[f"equal_{WORD[column]}"] = {
            "limits": {column: cap},
            "best_mix": _facts(asked, mix),
            "best_of_one_device": _facts(asked, alone[0]) if alone else None,
            "no_faster_one_device_on_offer": all_of_it,
            "ratio": mix.of(RATE) / alone[0].of(RATE) if alone and mix.row is not None else None,
        }
    first = next(iter(values.values()))["ratio"]
    return _record(" ".join(lines), "1", values, value=first, frontier=points)


def least_link(study: Study, question: Question, explorer: Explorer) -> Record:
    """The least bandwidth between pools at which the best mix is at least as good as the best fleet of one device."""
    asked = _asked(study, question)
    (knob,) = bandwidths(asked)
    alone, mixed = best_alone(asked, explorer), dict[float, Best]()
    single = alone[0] if alone else None

    def pays(scale: float) -> bool:
        mixed[scale] = mixed.get(scale) or best_mix(ends_of(knob.turned(scale)), explorer)
        return as_good(asked, mixed[scale], single)

    inside, outside = _bracket(pays, knob.now, likely=knob.reach[1], unlikely=knob.reach[0])
    mix = best_mix(knob.turned(knob.reach[1] if inside is None else inside), explorer)
    widest_gb_s = float(asked.problem.links.byte_s.max()) / 1e9
    return _record(
        link_line(asked, (inside, outside), knob.reach, mix, single),
        "GB/s",
        {
            "widest_today_gb_s": widest_gb_s,
            "least_of_today": inside,
            "looked_at": list(knob.reach),
            "pays_today": pays(knob.now),
            "best_mix": _facts(asked, mix),
            "best_of_one_device": _facts(asked, single) if single else None,
        },
        value=None if inside is None else inside * widest_gb_s,
        bracket=[None if end is None else end * widest_gb_s for end in (inside, outside)],
        frontier=points_behind(asked, [mix, *alone], _spent(asked)),
    )


def entry_price(study: Study, question: Question, explorer: Explorer) -> Record:
    """The price of a device up to which the exact optimum buys at least one of it."""
    asked = _asked(study, question)
    device = question.device or next(o.device.name for o in study.problem.pools if o.device.kind == "wse")
    knob = price_of(asked, device)
    lacking, having = best_without(asked, device, explorer), dict[float, Best]()

    def bought(price: float) -> bool:
        having[price] = having.get(price) or best_with(ends_of(knob.turned(price)), device, explorer)
        return better(asked, having[price], lacking)

    inside, outside = _bracket(bought, knob.now, likely=knob.reach[0], unlikely=knob.reach[1])
    best = best_with(knob.turned(knob.reach[0] if inside is None else inside), device, explorer)
    return _record(
        price_line(asked, device, knob.unit, knob.now, (inside, outside), (best, lacking)),
        knob.unit,
        {
            "device": device,
            "price_today": knob.now,
            "looked_at": list(knob.reach),
            "bought_today": bought(knob.now),
            "best_with_it": _facts(asked, best),
            "best_without_it": _facts(asked, lacking),
        },
        value=inside,
        bracket=[inside, outside],
        frontier=points_behind(asked, [best, lacking], _spent(asked)),
    )


QUESTIONS: Final[Mapping[str, Callable[[Study, Question, Explorer], Record]]] = {
    "cheapest_for_demand": cheapest_for_demand,
    "best_within_limits": best_within_limits,
    "hybrid_against_homogeneous": hybrid_against_homogeneous,
    "least_link": least_link,
    "entry_price": entry_price,
}

# -- the studies they are about ---------------------------------------------------------------------------------------


def _asked(study: Study, question: Question) -> Study:
    """The cheapest for the demand where there is one, else the fastest within the limits."""
    if question.demand_requests_s is not None or study.space.demand is not None:
        return _for_demand(study, question)
    return _within(study, question)


def _for_demand(study: Study, question: Question) -> Study:
    demand = question.demand_requests_s
    if demand is not None and study.space.demand != ("requests_s", demand):
        study = study.changed({"demand.requests_s": demand})
    return aimed(study, spent=COST, pick="cheapest")


def _within(study: Study, question: Question) -> Study:
    caps = _caps(study, question)
    return aimed(study, spent=next(iter(caps)), pick="fastest", bounds=_upper(study, caps))


def _caps(study: Study, question: Question) -> dict[str, float]:
    """Budget and power cap: those of the question, else the study's."""
    own = study.envelope.limits.bounds()
    asked = {COST: question.budget_usd_per_h, POWER: question.power_w}
    caps = {c: own.get(c, (0.0, math.inf))[1] if cap is None else cap for c, cap in asked.items()}
    return {column: cap for column, cap in caps.items() if cap < math.inf}


def _upper(study: Study, caps: Mapping[str, float]) -> Bounds:
    """Upper limits in place of the study's; its lower ones stay."""
    own = study.envelope.limits.bounds()
    return {column: (own.get(column, (-math.inf, 0.0))[0], cap) for column, cap in caps.items()}


def _spent(asked: Study) -> str:
    return asked.envelope.objectives.minimise[0]


# -- pieces of answers ------------------------------------------------------------------------------------------------


def _bracket(
    met: Callable[[float], bool], now: float, *, likely: float, unlikely: float
) -> tuple[float | None, float | None]:
    """The last value met and the first one not met, on the way from the likely end to the other.

    (None, likely) where it is met nowhere, (unlikely, None) where it is met everywhere in between.
    """
    if met(now):
        return bisected(met, now, unlikely) if not met(unlikely) else (unlikely, None)
    return bisected(met, likely, now) if met(likely) else (None, likely)


def _mix_beside(asked: Study, best: Best, explorer: Explorer) -> Best | None:
    """The best mix where the best fleet is none, of a study that has mixes."""
    lone = best.row is not None and n_kinds(asked, best.row) < 2
    return best_mix(asked, explorer) if lone and len(devices_of(asked)) > 1 else None


def _binding(asked: Study, caps: Mapping[str, float], best: Best, explorer: Explorer) -> str:
    """The cap that a faster fleet would need raised; `each`, `together` (only both at once) or `none`."""

    def faster(*lifted: str) -> bool:
        free = bounded(asked, _upper(asked, dict.fromkeys(lifted, math.inf)))
        return better(asked, any_fleet(free, explorer), best)

    alone = [column for column in caps if faster(column)]
    if alone:
        return alone[0] if len(alone) == 1 else "each"
    return "together" if len(caps) > 1 and faster(*caps) else "none"


def _all_of_it(asked: Study, column: str, alone: Sequence[Best], explorer: Explorer) -> bool:
    """Whether fleets of one device end with what is on offer, and not at the cap."""
    if not alone:
        return False
    free = bounded(asked, _upper(asked, {column: math.inf}))
    return not better(asked, best_alone(free, explorer)[0], alone[0])


def _compared(asked: Study, best: Best, alone: Sequence[Best], mix: Best | None) -> Record:
    """The best fleet and what it is held against; `of_one_device` is its figure over that of the best of one device."""
    column = COST if asked.envelope.objectives.pick == "cheapest" else RATE
    ratio = best.of(column) / alone[0].of(column) if alone and alone[0].of(column) else None
    return {
        "best": _facts(asked, best),
        "best_of_one_device": _facts(asked, alone[0]) if alone else None,
        "best_mix": _facts(asked, mix) if mix else None,
        "of_one_device": ratio,
    }


def _facts(asked: Study, best: Best) -> Record | None:
    """A fleet as plain data."""
    if best.row is None:
        return None
    columns = [name for name in (RATE, "requests_s", COST, POWER) if name in best.row.index]
    return {"parts": parts(asked, best.row), **{name: best.of(name) for name in columns}}


def _record(
    line: str,
    unit: str,
    values: Record,
    *,
    value: float | None = None,
    bracket: list[float | None] | None = None,
    frontier: list[Record] | None = None,
) -> Record:
    return {
        "line": line, "value": value, "unit": unit, "values": values, "bracket": bracket, "frontier": frontier or [],
        "missing": "",
    }  # fmt: skip
