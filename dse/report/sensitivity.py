"""What if, in words and as a tornado: what turning each number does to the recommended design and to the choice."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dse.columns import column
from dse.report.charts import script_safe
from dse.report.numbers import number, percent, shown

MEASURE: Final = "usd_per_mtok"
"""What the tornado measures: it feels prices, times, links and the site alike."""
NOTICED: Final = 1e-4
"""Share of the measure below which a knob has no bar."""
LINES: Final = 3
"""Break-evens that the command prints."""
ENDS: Final = ("low", "high")
SIDES: Final = ("low end", "high end")
COLOURS: Final = ("#2c8c6c", "#cf5c36")
"""Below and above today's value."""

Record = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class KnobRow:
    """One knob of the table."""

    name: str
    span: str
    basis: str
    measure: str
    """The kept design at both ends."""
    low: str
    """The pick at the low end."""
    high: str
    frontier: str
    """Hypervolume at both ends against today's."""


@dataclass(frozen=True, kw_only=True)
class WhatIf:
    """What the page says."""

    rows: list[KnobRow]
    evens: list[str]
    """One sentence a break-even."""
    steady: str
    """Knobs that change nothing within their reach."""
    missing: str
    """What was not looked into, and why."""
    spec: str
    description: str


def what_if(info: Mapping[str, Any]) -> WhatIf | None:
    """The page's part of a run; None for a run without it."""
    found = info.get("sensitivity")
    if not found:
        return None
    bars, base = tornado_bars(found), found["kept"][MEASURE]
    return WhatIf(
        rows=[_row(knob) for knob in found["knobs"]],
        evens=break_evens(found),
        steady=_steady(found),
        missing=_missing(found),
        spec=script_safe(specification(bars, base)) if bars else "",
        description="; ".join(f"{b['knob']}: {b['low_text']} to {b['high_text']}" for b in bars),
    )


def break_evens(found: Record) -> list[str]:
    """Sentences, the nearest to today first: where the pick's devices change, where mixing stops or starts to pay."""
    told = [(_distance(one["now"], one["outside"]), _mixing_line(one)) for one in found["mixing"]]
    for knob in found["knobs"]:
        for change in knob.get("changes", ()):
            told.append((_distance(knob["now"], change["outside"]), _change_line(knob, change, found["kinds"])))
    return [line for _, line in sorted(told)]


def _distance(now: float, value: float) -> float:
    """How far a value is from today's, as a factor."""
    return abs(math.log(value / now)) if now > 0 and value > 0 else math.inf


def printed_lines(found: Record) -> list[str]:
    """The few that the command prints: those of prices."""
    priced = [k for k in found["knobs"] if k["unit"].startswith("USD")]
    return break_evens({**found, "knobs": priced})[:LINES]


def value_text(unit: str, value: float) -> str:
    """A knob's value as people read it.

    >>> value_text("USD/h", 221.9), value_text("x", 0.28), value_text("power_w", 96e3), value_text("", 1.2)
    ('221.9 USD/h', '0.280 times', '96.00 kW', '1.20')
    """
    if unit == "x":
        return f"{number(value)} times"
    if column(unit) is not None:
        return shown(unit, value)
    return f"{number(value)} {unit}".rstrip()


def _mixing_line(one: Record) -> str:
    unit, name = one["unit"], one["name"]
    side = "above" if one["outside"] > one["inside"] else "below"
    verb = "no longer pays" if one["pays_now"] else "pays"
    return (
        f"Mixing {verb} at equal cost {side} {value_text(unit, one['outside'])} ({name}, today "
        f"{value_text(unit, one['now'])}): there the recommended mix equals the best fleet of one device."
    )


def _change_line(knob: Record, change: Record, kinds: Sequence[str]) -> str:
    unit, pick = knob["unit"], change["pick"]
    side = "above" if change["up"] else "below"
    where = f"{side} {value_text(unit, change['outside'])} ({knob['name']}, today {_today(knob)})"
    if pick is None:
        return f"No design is feasible {where}."
    gone, come = ([k for k in a if k not in b] for a, b in ((kinds, pick["kinds"]), (pick["kinds"], kinds)))
    own = any(knob["name"].endswith(f" of {kind}") for kind in (*gone, *come))  # the price of the device itself
    out, into = ("no longer pays off", "pays off") if own else ("is no longer picked", "is picked")
    words = [f"{' and '.join(gone)} {out}"] if gone else []
    words += [f"{' and '.join(come)} {into}"] if come else []
    return f"{' and '.join(words)} {where}: the pick is then {_parts(pick)}."


def _today(knob: Record) -> str:
    return "as predicted" if knob["unit"] == "x" else value_text(knob["unit"], knob["now"])


def _parts(pick: Record | None) -> str:
    if pick is None:
        return "none is feasible"
    return " + ".join(f"{n:,} × {name}" for name, n in pick["parts"].items())


def _row(knob: Record) -> KnobRow:
    low, high = knob["ends"]
    return KnobRow(
        name=knob["name"],
        span=f"{value_text(knob['unit'], knob['low'])} to {value_text(knob['unit'], knob['high'])}",
        basis=knob["basis"],
        measure=" – ".join(_kept(end) for end in (low, high)),
        low=_pick_text(low),
        high=_pick_text(high),
        frontier=" / ".join(_moved(end) for end in (low, high)),
    )


def _kept(end: Record) -> str:
    if not _finite(end.get(MEASURE)):
        return "it cannot serve"
    return number(end[MEASURE]) + (" (breaks a limit)" if end["breaks"] else "")


def _pick_text(end: Record) -> str:
    return _parts(end["pick"]) if "pick" in end else "not explored"


def _moved(end: Record) -> str:
    if "hypervolume" not in end:
        return "–"
    change = end["hypervolume"] - 1
    return f"{'+' if change > 0 else '−' if change < 0 else ''}{percent(abs(change))}"


def _steady(found: Record) -> str:
    """Knobs that keep the pick's devices wherever they are turned."""
    names = [knob["name"] for knob in found["knobs"] if knob.get("changes") == []]
    if not names:
        return ""
    return f"The pick keeps its devices over the whole reach of: {'; '.join(names)}."


def _missing(found: Record) -> str:
    left = [knob["name"] for knob in found["knobs"] if "changes" not in knob]
    if not left:
        return ""
    why = found["missing"] or "it was stopped"
    return f"Not explored ({why}): {'; '.join(left)}."


def _finite(value: object) -> bool:
    """Whether there is such a number: a file holds nothing in place of infinity."""
    return isinstance(value, (int, float)) and math.isfinite(value)


def tornado_bars(found: Record) -> list[dict[str, Any]]:
    """Bars of the kept design's measure, the longest first; knobs that do not move it have none."""
    base, bars = found["kept"][MEASURE], []
    for knob in found["knobs"] if _finite(base) else ():
        ends = [end.get(MEASURE) for end in knob["ends"]]
        if not all(map(_finite, ends)) or max(ends) - min(ends) <= NOTICED * base:
            continue
        texts = [value_text(knob["unit"], knob[end]) for end in ENDS]
        bars.append({
            "knob": knob["name"], "low": ends[0], "high": ends[1], "size": max(ends) - min(ends),
            **{f"{end}_text": f"{number(v)} USD/Mtok at {t}" for end, v, t in zip(ENDS, ends, texts, strict=True)},
        })  # fmt: skip
    return sorted(bars, key=lambda bar: -bar["size"])


def specification(bars: list[dict[str, Any]], base: float) -> dict[str, Any]:
    """The tornado: one bar a knob, from its low end to its high end, around today's value."""
    import altair as alt

    sides = [
        {"knob": b["knob"], "at": b[end], "base": base, "size": b["size"], "side": side, "text": b[f"{end}_text"]}
        for b in bars
        for end, side in zip(ENDS, SIDES, strict=True)
    ]
    y = alt.Y("knob", type="nominal", title=None, sort=[b["knob"] for b in bars], axis=alt.Axis(labelLimit=260))
    chart = alt.Chart(alt.NamedData(name="sides"))
    mark = chart.mark_bar(height=14).encode(
        x=alt.X("base", type="quantitative", title="USD per million tokens, the recommended design kept",
                scale=alt.Scale(zero=False)),
        x2="at",
        y=y,
        color=alt.Color("side", type="nominal", title=None,
                        scale=alt.Scale(domain=list(SIDES), range=list(COLOURS))),
        tooltip=[alt.Tooltip(k, type="nominal", title=title) for k, title in (("knob", "Turned"), ("text", "Gives"))],
    )  # fmt: skip
    today = alt.Chart(alt.NamedData(name="today")).mark_rule(strokeWidth=1.5, color="#7a8796").encode(
        x=alt.X("base", type="quantitative")
    )  # fmt: skip
    text = {"labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal"}
    plain: dict[str, Any] = (
        alt.layer(mark, today)
        .properties(width=600, height=26 * len(bars))
        .configure(background="transparent")
        .configure_view(stroke=None)
        .configure_axis(gridOpacity=1, domain=False, **text)
        .configure_legend(orient="bottom", **text)
        .to_dict()
    )
    plain["datasets"] = {"sides": sides, "today": [{"base": base}]}
    return plain
