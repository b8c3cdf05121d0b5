"""Units: catalogue rows carry their own, everything past the loader is SI (and USD, USD/h)."""

from __future__ import annotations

import math
from typing import Any, Final

SI_FACTOR: Final[dict[str, dict[str, float]]] = {
    "flop/s": {"FLOP/s": 1.0, "GFLOP/s": 1e9, "TFLOP/s": 1e12, "PFLOP/s": 1e15},
    "byte": {"B": 1.0, "MB": 1e6, "GB": 1e9, "TB": 1e12},
    "byte/s": {"B/s": 1.0, "GB/s": 1e9, "TB/s": 1e12, "Gb/s": 1.25e8},
    "s": {"s": 1.0, "ms": 1e-3, "us": 1e-6},
    "W": {"W": 1.0, "kW": 1e3},
    "USD": {"USD": 1.0},
    "USD/h": {"USD/h": 1.0},
    "1": {"1": 1.0, "%": 1e-2},
}
"""dimension -> unit -> factor to SI. 1 GB is 1e9 byte."""

SECONDS_PER_HOUR: Final = 3600.0

HOURS_PER_YEAR: Final = 8760.0
"""365 days; leap days are below the accuracy of any price."""

J_PER_KWH: Final = 3.6e6
"""One kilowatt-hour."""

DTYPE_BYTE: Final[dict[str, float]] = {
    "bf16": 2.0,
    "fp16": 2.0,
    "fp8": 1.0,
    "int8": 1.0,
    "fp4": 0.5,
    "int4": 0.5,
}
"""Bytes of one number."""


def to_si(value: float, unit: str, dimension: str) -> float:
    """Value in SI; KeyError when the unit is not one of the dimension.

    >>> to_si(400, "Gb/s", "byte/s")
    50000000000.0
    """
    return value * SI_FACTOR[dimension][unit]


def quantity(value: float, unit: str) -> str:
    """A number as people read it: three or four figures and a prefix.

    >>> quantity(13_476e6, "B"), quantity(0.0123, "s"), quantity(0.0, "W"), quantity(2.5e5, "W")
    ('13.48 GB', '12.3 ms', '0 W', '250 kW')
    """
    if value == 0:
        return f"0 {unit}"
    for factor, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, "")):
        if abs(value) >= factor:
            return f"{value / factor:.4g} {prefix}{unit}"
    for factor, prefix in ((1e-3, "m"), (1e-6, "µ"), (1e-9, "n")):
        if abs(value) >= factor:
            return f"{value / factor:.4g} {prefix}{unit}"
    return f"{value:.3g} {unit}"


def json_safe(value: Any) -> Any:
    """Numbers as JSON can say them: infinite and missing ones become null, those of NumPy plain ones.

    >>> json_safe({"a": [1.5, float("inf")], "b": float("nan")})
    {'a': [1.5, None], 'b': None}
    """
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, dict):
        return {k: json_safe(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_safe(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
