"""Numbers as people read them: units of the reader, sane digits, labels. The only place that leaves SI."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from dse.columns import column
from dse.units import quantity

SHOWN_UNIT: Final[Mapping[str, tuple[float, str]]] = {
    "W": (1e-3, "kW"),
    "J": (1 / 3.6e9, "MWh"),
    "byte": (1e-9, "GB"),
    "byte/s": (1e-9, "GB/s"),
    "1": (1.0, ""),
}
"""Unit of a result column -> factor, and the unit the page prints."""

LABELS: Final[Mapping[str, str]] = {
    "throughput_tok_s": "Throughput",
    "throughput_samples_s": "Sequences",
    "step_time_s": "Step",
    "train_time_s": "Time to train",
    "train_cost_usd": "Cost to train",
    "train_energy_j": "Energy to train",
    "goodput_frac": "Goodput",
    "bubble_frac": "Bubble",
    "global_batch": "Global batch",
    "requests_s": "Requests",
    "input_tok_s": "Input throughput",
    "ttft_mean_s": "TTFT mean",
    "ttft_p99_s": "TTFT p99",
    "tpot_s": "TPOT",
    "tok_s_per_user": "Speed of one user",
    "cost_usd_per_h": "Cost",
    "usd_per_mtok": "Cost of a million tokens",
    "power_w": "Provisioned power",
    "power_mean_w": "Mean power",
    "energy_j_per_tok": "Energy of a token",
    "co2_g_per_mtok": "Carbon of a million tokens",
    "mem_margin_byte": "Memory margin",
    "gpu_wse_ratio": "GPUs per wafer",
    "gain": "Gain over best pool alone",
    "gain_equal_cost": "Gain at equal cost",
    "gain_equal_power": "Gain at equal power",
}


HOUR_S, DAY_S = 3600.0, 86400.0


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

    >>> shown_unit("power_w"), shown_unit("cost_usd_per_h")
    ((0.001, 'kW'), (1.0, 'USD/h'))
    """
    known = column(name)
    unit = known.unit if known else ""
    return SHOWN_UNIT.get(unit, (1.0, unit))


def label(name: str) -> str:
    """A result column's name in words."""
    return LABELS.get(name, name.replace("_", " "))


def axis_title(name: str) -> str:
    """Label with unit, as an axis or a table head prints it.

    >>> axis_title("power_w")
    'Provisioned power [kW]'
    """
    unit = shown_unit(name)[1]
    return f"{label(name)} [{unit}]" if unit else label(name)


def shown(name: str, value: float) -> str:
    """A result column's value with its unit; times below a second in milliseconds.

    >>> shown("power_w", 44880.0), shown("tpot_s", 0.000756), shown("ttft_p99_s", float("inf"))
    ('44.88 kW', '756 µs', '∞')
    """
    factor, unit = shown_unit(name)
    if unit == "s":
        return duration(value)
    text = number(value * factor)
    return f"{text} {unit}" if unit and math.isfinite(value) else text


def duration(value_s: float) -> str:
    """A time with the prefix that suits it; long ones in hours and days.

    >>> duration(0.25), duration(5400.0), duration(864000.0)
    ('250 ms', '1.50 h', '10.00 days')
    """
    if HOUR_S <= value_s < math.inf:
        return f"{number(value_s / HOUR_S)} h" if value_s < 2 * DAY_S else f"{number(value_s / DAY_S)} days"
    return quantity(value_s, "s") if math.isfinite(value_s) else number(value_s)


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
