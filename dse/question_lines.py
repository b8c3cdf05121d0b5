"""Answers to the questions of a study in words: one line each."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from dse.fleets import RATE, SAME, Best, n_kinds, parts
from dse.resolve import Study
from dse.units import quantity

COST: Final = "cost_usd_per_h"
POWER: Final = "power_w"
WORD: Final[Mapping[str, str]] = {COST: "cost", POWER: "power"}
Bracket = tuple[float | None, float | None]
"""Last value met and first one not met; None where there is none."""
BINDING: Final[Mapping[str, str]] = {
    COST: "the budget binds",
    POWER: "the power cap binds",
    "each": "budget and power cap both bind, either one raised lets a faster fleet in",
    "together": "budget and power cap both bind, only raised together do they let a faster fleet in",
    "none": "no limit binds, no faster fleet is on offer",
}
"""What holds the throughput back."""


def cheapest_line(study: Study, demand: float, best: Best, alone: Sequence[Best], mix: Best | None) -> str:
    """The cheapest fleet for a demand, and the runner-up."""
    return (
        f"The cheapest fleet for {demand:,.6g} requests/s is {fleet(study, best)} at {measure(best, COST)}, which "
        f"serves up to {best.of('requests_s'):,.1f} requests/s; {_against(study, best, alone, mix, COST)}."
    )


def unserved_line(study: Study, demand: float, most: Best) -> str:
    """That nothing serves a demand, and what is served at most."""
    line = f"No fleet on offer serves {demand:,.6g} requests/s within the limits of the study"
    if most.row is None:
        return f"{line}, nor anything less."
    return f"{line}; the most is {most.of('requests_s'):,.1f} requests/s, by {fleet(study, most)}."


def within_line(
    study: Study, caps: Mapping[str, float], best: Best, binding: str, alone: Sequence[Best], mix: Best | None
) -> str:
    """The fastest fleet within budget and power cap."""
    return (
        f"Within {caps_text(caps)} the fastest fleet is {fleet(study, best)} with {measure(best, RATE)}, for "
        f"{measure(best, COST)} and {measure(best, POWER)}; {BINDING[binding]}; "
        f"{_against(study, best, alone, mix, RATE)}."
    )


def against_line(study: Study, column: str, cap: float, mix: Best, alone: Sequence[Best], *, all_of_it: bool) -> str:
    """The best mix against the best fleet of one device within one cap; `all_of_it`: no larger such fleet helps."""
    opening = f"At equal {WORD[column]} (up to {_amount(column, cap)})"
    if not alone and mix.row is None:
        return f"{opening} no fleet is feasible."
    if not alone:
        told = f"the best mix, {fleet(study, mix)}, gives {_rate_for(mix, column)}"
        return f"{opening} {told}; no fleet of one device is feasible."
    single = f"the best fleet of one device, {fleet(study, alone[0])}"
    offered = ", and no faster one is on offer" if all_of_it else ""
    if mix.row is None:
        return f"{opening} no mix is feasible; {single}, gives {_rate_for(alone[0], column)}{offered}."
    ratio = f"{mix.of(RATE) / alone[0].of(RATE):.3g} times {single} ({_rate_for(alone[0], column)}{offered})"
    return f"{opening} the best mix, {fleet(study, mix)}, gives {_rate_for(mix, column)}, {ratio}."


def _rate_for(best: Best, column: str) -> str:
    return f"{measure(best, RATE)} for {measure(best, column)}"


def link_line(study: Study, bracket: Bracket, reach: tuple[float, float], mix: Best, single: Best | None) -> str:
    """From which bandwidth on mixing pays; `mix` is the best mix at the value told of."""
    inside, outside = bracket
    compared = f"{_named(study, 'mix', mix)}, {_named(study, 'fleet of one device', single)}"
    if mix.row is None and single is None:
        return "Mixing does not pay at any link: no fleet is feasible, mixed or of one device."
    if inside is None:
        return f"Mixing never pays, whatever the link: even at {_width(study, reach[1], up=False)} {compared}."
    if outside is None:
        return f"Mixing pays already at the narrowest link looked at, {_width(study, inside, up=True)}: {compared}."
    today = f"today up to {_gb_s(study, 1.0)}" + ("" if study.problem.raw_links else ", all links scaled alike")
    ends = (_width(study, inside, up=True), _width(study, outside, up=False))
    return f"Mixing pays from {ends[0]} on, not at {ends[1]} ({today}): there {compared}."


def price_line(
    study: Study,
    device: str,
    unit: str,
    now: float,
    bracket: tuple[float | None, float | None],
    bests: tuple[Best, Best],
) -> str:
    """Up to which price a device is bought; `bests` with it at the price told of, and without it."""
    inside, outside = bracket
    having, lacking = bests
    compared = f"{_named(study, 'fleet with it', having)}, {_named(study, 'fleet without it', lacking)}"
    if having.row is None and lacking.row is None:
        return f"{device} is not bought even when free: no fleet is feasible, with it or without it."
    if inside is None:
        return f"{device} is not bought even when free, for {_goal(study)}: {compared}."
    told = f"(today {_price(unit, now)}), for {_goal(study)}: there {compared}."
    if outside is None:
        return f"{device} is bought at any price up to {_price(unit, inside)} {told}"
    ends = (_price(unit, rounded(inside, up=False)), _price(unit, rounded(outside, up=True)))
    return f"{device} is bought up to {ends[0]}, not at {ends[1]} {told}"


def rounded(value: float, *, up: bool) -> float:
    """A value with four figures, never beyond it on the side that an answer holds.

    >>> rounded(119.9966, up=False), rounded(6.0455, up=True), rounded(0.0, up=True)
    (119.9, 6.046, 0.0)
    """
    if value <= 0:
        return 0.0
    digits = 3 - math.floor(math.log10(value))
    figures = value * 10.0**digits
    nearest = round(figures)
    if abs(figures - nearest) > SAME * figures:
        nearest = math.ceil(figures) if up else math.floor(figures)
    return round(nearest * 10.0**-digits, max(digits, 0))


def fleet(study: Study, best: Best) -> str:
    """What a fleet buys: `16 x a100 + 1 x wse-3`."""
    assert best.row is not None
    return " + ".join(f"{n:,} x {pool}" for pool, n in parts(study, best.row).items())


def measure(best: Best, column: str) -> str:
    """A column of a fleet, with its unit."""
    return _amount(column, best.of(column))


def caps_text(caps: Mapping[str, float]) -> str:
    """Budget and power cap."""
    return " and ".join(_amount(column, cap) for column, cap in caps.items())


def better(study: Study, one: Best, other: Best | None) -> bool:
    """Whether a fleet beats another in what is asked, the cost or the throughput."""
    if one.row is None or other is None or other.row is None:
        return one.row is not None
    if study.envelope.objectives.pick == "cheapest":
        return one.of(COST) < other.of(COST) * (1 - SAME)
    return one.of(RATE) > other.of(RATE) * (1 + SAME)


def as_good(study: Study, one: Best, other: Best | None) -> bool:
    """Whether a fleet is at least as good: better, or the same and no worse in the other objective.

    So a fleet with devices that stand idle is not as good as the same fleet without them.
    """
    if one.row is None or other is None or other.row is None or better(study, one, other):
        return one.row is not None
    spent = study.envelope.objectives.minimise[0]
    no_worse = one.of(spent) <= other.of(spent) * (1 + SAME) and one.of(RATE) >= other.of(RATE) * (1 - SAME)
    return no_worse and not better(study, other, one)


def _against(study: Study, best: Best, alone: Sequence[Best], mix: Best | None, column: str) -> str:
    """The best fleet against the best of one device; of one device itself, against the best mix."""
    assert best.row is not None
    lone = n_kinds(study, best.row) < 2
    if lone and (not alone or not better(study, alone[0], best)):
        if mix is None:
            return "no other device is on offer"
        if mix.row is None:
            return "no mix is feasible"
        return f"no mix is better: {_compared(study, mix, best, 'the best mix', column)}"
    if not alone:
        return "no fleet of one device can do that"
    return _compared(study, best, alone[0], "the best of one device", column, turned=True)


def _compared(study: Study, one: Best, other: Best, words: str, column: str, *, turned: bool = False) -> str:
    """One fleet against another; `turned` says it of the first and names the second."""
    named = other if turned else one
    told = f"{words}, {fleet(study, named)} ({measure(named, column)})"
    if column == RATE:
        ratio = f"{one.of(RATE) / other.of(RATE):.3g} times"
        return f"{ratio} {told}" if turned else f"{told}, gives {ratio} as much"
    share = one.of(column) / other.of(column) - 1 if other.of(column) else 0.0
    apart = f"{abs(share) * 100:.1f} % {'dearer' if share > 0 else 'cheaper'}"
    if share > 1:
        return f"{told}, costs {share + 1:.3g} times as much"
    return f"{apart} than {told}" if turned else f"{told}, is {apart}"


def _named(study: Study, words: str, best: Best | None) -> str:
    """A fleet with the figure that is asked for."""
    if best is None or best.row is None:
        return f"no {words} is feasible"
    column = COST if study.envelope.objectives.pick == "cheapest" else RATE
    return f"the best {words} is {fleet(study, best)} at {measure(best, column)}"


def _goal(study: Study) -> str:
    """What the question's fleets are to do."""
    if study.envelope.objectives.pick == "cheapest" and study.space.demand is not None:
        return f"the cheapest fleet for {study.space.demand[1]:,.6g} requests/s"
    bounds = study.envelope.limits.bounds()
    caps = {column: bounds[column][1] for column in WORD if column in bounds and math.isfinite(bounds[column][1])}
    return f"the fastest fleet within {caps_text(caps)}"


def _amount(column: str, value: float) -> str:
    if column == POWER:
        return quantity(value, "W")
    return _price("USD/h", value) if column == COST else f"{value:,.0f} tok/s"


def _price(unit: str, value: float) -> str:
    """Cents where there are any; of small prices, four figures."""
    text = f"{value:,.2f}".removesuffix(".00") if value >= 10 or value == 0 else f"{value:.4g}"
    return f"{text} {unit}"


def _gb_s(study: Study, scale: float) -> str:
    value = float(study.problem.links.byte_s.max()) * scale / 1e9
    return f"{value:,.0f} GB/s" if value >= 1000 else f"{value:.4g} GB/s"


def _width(study: Study, scale: float, *, up: bool) -> str:
    """The widest link where all are so many times as wide as today's; where links cost nothing only it counts."""
    widest_gb_s = float(study.problem.links.byte_s.max()) / 1e9
    return _gb_s(study, rounded(scale * widest_gb_s, up=up) / widest_gb_s)
