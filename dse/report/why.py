"""Why a point: what each pool does with its time and memory, the system's bounds, and one step more."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from dse.errors import InputError
from dse.explore import Result
from dse.report.layout import pool_setup
from dse.report.numbers import keyed, number, percent, shown, signed
from dse.report.rows import Row, value_of
from dse.report.system import figure_lines, overlap_flop_s
from dse.report.words import inside, label, words_of
from dse.report.worth import worth_lines
from dse.resolve import Study
from dse.scoring import explain
from dse.units import quantity
from dse.whatif import one_more

UNCHANGED: Final = 1e-9
"""Relative change of a score below which it is no change."""
HELD_COLOURS: Final = 4
"""Colours in the style sheet for what a memory holds."""
RESCORED: Final = 1e-6
"""Relative difference to the run's own score above which the page says so."""


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A share, drawn and in words."""

    name: str
    share: float
    text: str
    colour: str
    """Class of its colour in the style sheet."""

    @property
    def width(self) -> float:
        """Percent of the full bar."""
        return round(min(max(self.share, 0.0), 1.0) * 100, 2)


@dataclass(frozen=True, kw_only=True)
class PoolColumn:
    """One pool of the table: its lines as text, its time and its memory as bars."""

    name: str
    lines: dict[str, str]
    time: list[Bar]
    memory: list[Bar]
    outside: list[Bar]
    """What a streaming device keeps outside; empty for others."""


@dataclass(frozen=True, kw_only=True)
class Why:
    """What the page says about the recommended point."""

    caption: str
    """What the table of pools shows, and what eta is in this paradigm."""
    pools: list[PoolColumn]
    system: list[tuple[str, str, str]]
    """Quantity, value, what it is."""
    link: Bar | None
    more: list[tuple[str, str, str, str, str]]
    """Change, throughput, cost, power, verdict."""
    worth: list[str]
    """What binds, and what one more of it is worth."""
    raised: list[str]
    """What the least raise of each limit would let in."""
    drift: str
    """Set where today's score differs from the run's: the catalogue or the model has changed since."""
    detail: Mapping[str, Any]
    """The explanation itself, for the charts."""


def why(result: Result, row: Row, *, recommended: bool) -> Why | None:
    """Explains a row of the frontier; None where the study cannot score it any more.

    What a limit or a bottleneck is worth is known of the recommended one only.
    """
    try:
        frame, detail = explain(result.study, result.study.space.settings_of({str(k): v for k, v in row.items()}))
        more = one_more(result.study, row)
    except InputError:
        return None
    system, paradigm = detail["system"], result.study.envelope.paradigm
    columns = [pool_column(result.study, row, name, p) for name, p in detail["pools"].items()]
    return Why(
        caption=words_of(paradigm).pools,
        pools=_without_empty(columns),
        system=system_lines(system, paradigm),
        link=link_bar(system),
        more=[more_line(m, row) for _, m in more.iterrows()],
        worth=worth_of(result, row) if recommended else [],
        raised=[raised_line(r, paradigm) for r in result.info.get("raised_limits", [])] if recommended else [],
        drift=_drift(frame.iloc[0], row),
        detail=detail,
    )


def worth_of(result: Result, row: Row) -> list[str]:
    """What holds the recommended plan back, where its exact program has prices."""
    marginal = result.info.get("marginal") or []
    if not marginal:
        return []
    return worth_lines(marginal, value_of(row, "throughput_tok_s") / value_of(row, "requests_s"))


def raised_line(raised: Mapping[str, Any], paradigm: str) -> str:
    """One raised limit in a sentence."""
    name, now, needed = str(raised["limit"]), float(raised["now"]), float(raised["needed"])
    return (
        f"{label(name, paradigm)}: {signed(name, needed - now)} on the limit of {shown(name, now)} lets in a design "
        f"with {shown(str(raised['objective']), float(raised['gain']))} more "
        f"{inside(str(raised['objective']), paradigm)} than the best within it."
    )


def _drift(again: Row, row: Row) -> str:
    for name in ("throughput_tok_s", "cost_usd_per_h", "power_w"):
        if name not in row.index:
            continue
        new, old = value_of(again, name), value_of(row, name)
        if not math.isclose(new, old, rel_tol=RESCORED):
            return (
                f"Scored today this design has {name} {number(new)}, the run found {number(old)}: "
                "the catalogue or the model has changed since. Run the study again."
            )
    return ""


def pool_column(study: Study, row: Row, name: str, p: Mapping[str, Any]) -> PoolColumn:
    """One pool's explanation as the page prints it."""
    instances = f"{p['instances']:,.0f}"
    if p["instances"] > 0 and p["n"] > p["instances"]:
        instances += f" of {p['n'] / p['instances']:g} devices"
    power = f"{shown('power_w', p['power_w'])} provisioned, {shown('power_w', p['power_mean_w'])} mean"
    mfu = f"mfu_{name}"
    lines = {
        "Role": "work stealing" if p["role"] == "any" else str(p["role"]),
        "Devices": f"{p['n']:,}",
        "Instances": instances,
        "Set-up": ", ".join(pool_setup(study, row, name)),
        "Busy share": percent(p["busy_frac"]),
        "Binding term": str(p["binding"]),
        "u_HO, when never idle": percent(p["u_ho"]),
        f"η, {words_of(study.envelope.paradigm).eta}": number(p["eta"]),
        "u = u_HO / (1 + η)": percent(p["u"]),
        "MFU": percent(value_of(row, mfu)) if mfu in row.index else "",
        "Useful rate g": keyed("g_flop_s", p["g_flop_s"]),
        "Alone it would reach": keyed("alone_tok_s", p["alone_tok_s"]),
        "Cost": shown("cost_usd_per_h", p["cost_usd_per_h"]),
        "Power": power,
    }
    memory = p["memory"]
    reserve = memory["device_byte"] - memory["usable_byte"]
    return PoolColumn(
        name=name,
        lines=lines,
        time=[Bar(name=k, share=v, text=percent(v), colour=k) for k, v in p["time_frac"].items()],
        memory=_memory_bars(memory["held"], memory["usable_byte"], reserve),
        outside=_memory_bars(memory["outside"], memory["outside_byte"], 0.0),
    )


def _without_empty(columns: list[PoolColumn]) -> list[PoolColumn]:
    """Without lines and terms of time that no pool has."""
    lines = [k for k in columns[0].lines if any(c.lines[k] for c in columns)] if columns else []
    terms = {bar.name for c in columns for bar in c.time if bar.share > 0}
    return [
        replace(c, lines={k: c.lines[k] or "–" for k in lines}, time=[b for b in c.time if b.name in terms])
        for c in columns
    ]


def _memory_bars(held: Mapping[str, float], usable: float, reserve: float) -> list[Bar]:
    """What is held by name, headroom and reserve, as shares of the whole."""
    headroom = usable - sum(held.values())
    parts = [(name, byte, f"held-{k % HELD_COLOURS}") for k, (name, byte) in enumerate(held.items())]
    parts += [("headroom", headroom, "headroom"), ("reserve", reserve, "reserve")]
    whole = usable + reserve
    return [
        Bar(name=name, share=byte / whole, text=quantity(byte, "B"), colour=colour)
        for name, byte, colour in parts
        if byte > 0
    ]


def system_lines(s: Mapping[str, Any], paradigm: str) -> list[tuple[str, str, str]]:
    """The bounds of eq. (2), what the system reaches, and what else the paradigm says of it."""
    bound = s["link_bound_flop_s"]
    crossing = "none: nothing crosses" if bound is None else keyed("link_bound_flop_s", bound)
    lines = [
        ("Σ g", keyed("sum_g_flop_s", s["sum_g_flop_s"]), "useful rate of all pools together"),
        ("v·S", crossing, "rate at which a full link would stop the system"),
        (
            "f at full overlap",
            keyed("f_flop_s", overlap_flop_s(s)),
            "min(Σ g, v·S) if no pool waited for the link, eq. (2)",
        ),
        ("f reached", keyed("f_flop_s", s["f_flop_s"]), "what the system really does"),
        *figure_lines(s, paradigm),
    ]
    if s["link_byte_s"] is not None:
        cost, power = shown("cost_usd_per_h", s["link_cost_usd_per_h"]), shown("power_w", s["link_power_w"])
        lines.append(("Links bought", f"{s['links_bought']:,.0f}", f"cost {cost}, power {power}"))
    return lines


def link_bar(s: Mapping[str, Any]) -> Bar | None:
    """What crosses the busiest direction of a link against its bandwidth."""
    if s["link_byte_s"] is None:
        return None
    need, have = (keyed(key, s[key]) for key in ("link_need_byte_s", "link_byte_s"))
    share = s["link_need_byte_s"] / s["link_byte_s"]
    return Bar(name="link", share=share, text=f"{need} of {have} ({percent(share)})", colour="communication")


def more_line(m: Row, row: Row) -> tuple[str, str, str, str, str]:
    """One change in plain words, and whether it pays against the point as it is."""
    gain, cost, power = (float(m[f"d_{k}"]) for k in ("throughput_tok_s", "cost_usd_per_h", "power_w"))
    before = value_of(row, "throughput_tok_s")
    same = abs(gain) <= UNCHANGED * max(abs(before), 1.0)
    throughput = "no change" if same else f"{signed('throughput_tok_s', gain)} ({gain / before * 100:+.2g} %)"
    if m["breaks"]:
        word = f"not allowed: {m['breaks']}"
    elif same:
        word = "buys nothing: it is not what binds"
    elif gain < 0:
        word = "slows the system"
    elif math.isnan(cost) or cost <= 0:
        word = "helps"
    else:
        word = _worth(cost / gain, value_of(row, "cost_usd_per_h") / before)
    return str(m["change"]), throughput, signed("cost_usd_per_h", cost), signed("power_w", power), word


def _worth(step: float, now: float) -> str:
    """Price of the added throughput against what the point pays for its own, both per 1,000 tok/s."""
    against = "cheaper than" if step < now else "dearer than"
    if math.isclose(step, now, rel_tol=RESCORED):
        against = "the same as"
    return f"{number(step * 1e3)} USD/h for 1,000 tok/s more, {against} today's {number(now * 1e3)}"
