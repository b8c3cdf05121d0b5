"""Numbers as people read them: units of the reader, sane digits, labels. The only place that leaves SI."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Real
from typing import Final

from dse.columns import WHOLE_UNITS, column
from dse.units import J_PER_KWH, SECONDS_PER_HOUR, quantity

MINUTE_S: Final = 60.0
DAY_S: Final = 24.0 * SECONDS_PER_HOUR

SHOWN_UNIT: Final[Mapping[str, tuple[float, str]]] = {
    "W": (1e-3, "kW"),
    "J": (1e-3 / J_PER_KWH, "MWh"),
    "byte": (1e-9, "GB"),
    "byte/s": (1e-9, "GB/s"),
    "sequences": (1.0, "samples"),
    "sequences/s": (1.0, "samples/s"),
    "1": (1.0, ""),
}
"""Unit of a result column -> factor, and the unit the page prints."""


def number(value: float) -> str:
    """About four figures, thousands grouped; infinity and absence as signs.

    >>> [number(x) for x in (50456.9, 108.46, 1.2345, 0.000756, 0.0, float("inf"), float("nan"))]
    ['50,457', '108.5', '1.23', '0.000756', '0', '∞', '–']
    """
    if math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    size = abs(value)
    if size == 0:
        return "0"
    text = f"{size:,.0f}" if size >= 1000 else f"{size:.1f}" if size >= 100 else f"{size:.2f}"
    if size < 0.9995:
        text = f"{size:#.3g}"
    return f"−{text}" if value < 0 else text


def shown_unit(name: str) -> tuple[float, str]:
    """Factor and unit in which the page prints a result column.

    >>> shown_unit("power_w"), shown_unit("cost_usd_per_h"), shown_unit("goodput_frac")
    ((0.001, 'kW'), (1.0, 'USD/h'), (100.0, '%'))
    """
    known = column(name)
    if known is None:
        return 1.0, ""
    if name == "train_time_s":
        return 1.0 / DAY_S, "days"
    if known.name.endswith("_frac") or known.name == "mfu_<pool>":
        return 100.0, "%"
    return SHOWN_UNIT.get(known.unit, (1.0, known.unit))


def shown(name: str, value: float) -> str:
    """A result column's value with its unit; times in the unit that suits them, counts as whole numbers.

    >>> shown("power_w", 44880.0), shown("tpot_s", 0.000756), shown("ttft_p99_s", float("inf"))
    ('44.88 kW', '756 µs', '∞')
    >>> shown("train_time_s", 1.26e7), shown("global_batch", 1024.0), shown("goodput_frac", 0.9951)
    ('145.8 days', '1,024 samples', '99.5 %')
    """
    factor, unit = shown_unit(name)
    known = column(name)
    if known is not None and known.unit == "s":
        return duration(value)
    if unit == "%":
        return percent(value)
    if known is not None and known.unit in WHOLE_UNITS and float(value).is_integer():
        return f"{value:,.0f} {unit}"
    text = number(value * factor)
    return f"{text} {unit}" if unit and math.isfinite(value) else text


def duration(value_s: float) -> str:
    """A time in the unit that suits it, up to days.

    >>> [duration(x) for x in (0.0132, 12.5, 1800.0, 9e4, 1.26e7, float("nan"))]
    ['13.2 ms', '12.5 s', '30.00 min', '25.00 h', '145.8 days', '–']
    """
    if not math.isfinite(value_s):
        return number(value_s)
    for least, unit_s, name in (
        (2 * DAY_S, DAY_S, "days"), (2 * SECONDS_PER_HOUR, SECONDS_PER_HOUR, "h"), (10 * MINUTE_S, MINUTE_S, "min")
    ):  # fmt: skip
        if abs(value_s) >= least:
            return f"{number(value_s / unit_s)} {name}"
    return quantity(value_s, "s")


KEY_UNITS: Final[tuple[tuple[str, str], ...]] = (
    ("_byte_s", "B/s"), ("_flop_s", "FLOP/s"), ("_tok_s", "tok/s"), ("_usd_per_h", "USD/h"), ("_flop", "FLOP"),
    ("_byte", "B"), ("_usd", "USD"), ("_w", "W"), ("_frac", "%"), ("_batch", "samples"), ("_s", "s"),
)  # fmt: skip
"""Unit at the end of an explanation's key; the first that fits."""
PREFIXED: Final = ("B/s", "FLOP/s", "FLOP", "B", "W")


def keyed(key: str, value: object) -> str:
    """Any figure of an explanation: a result column as such, else by the unit at the end of its key.

    >>> keyed("link_bound_flop_s", 2.0e16), keyed("exposed_s", 2.08), keyed("idle_frac", 0.125), keyed("pairs", 1.0)
    ('20 PFLOP/s', '2.08 s', '12.5 %', '1')
    >>> keyed("layers", (10, 12)), keyed("verdict", "feasible"), keyed("threshold_1_batch", 256.0)
    ('10, 12', 'feasible', '256 samples')
    """
    if isinstance(value, (list, tuple)):
        return ", ".join(keyed(key, part) for part in value)
    if isinstance(value, bool) or value is None:
        return "–" if value is None else "yes" if value else "no"
    if not isinstance(value, Real):
        return str(value)
    amount = float(value)
    known = column(key)
    return shown(key, amount) if known is not None and known.unit else _by_suffix(key, amount)


def _by_suffix(key: str, amount: float) -> str:
    """A number with the unit at the end of its key."""
    unit = next((unit for suffix, unit in KEY_UNITS if key.endswith(suffix)), "")
    plain = f"{amount:,.0f}" if amount.is_integer() else number(amount)
    if not math.isfinite(amount):
        return number(amount)
    if unit == "%":
        return percent(amount)
    if unit == "s":
        return duration(amount)
    if unit in PREFIXED:
        return quantity(amount, unit)
    return f"{plain} {unit}".rstrip()


def percent(fraction: float) -> str:
    """A share in percent.

    >>> percent(0.9452), percent(0.0556), percent(float("inf"))
    ('94.5 %', '5.6 %', '∞')
    """
    return f"{fraction * 100:.1f} %" if math.isfinite(fraction) else number(fraction)


def signed(name: str, value: float) -> str:
    """A difference of a result column, with its sign.

    >>> signed("power_w", 3120.0), signed("throughput_tok_s", 0.0)
    ('+3.12 kW', 'no change')
    """
    if math.isnan(value):
        return "–"
    text = shown(name, value)
    if text.startswith(("0 ", "0")) and value == 0:
        return "no change"
    return f"+{text}" if value > 0 else text
