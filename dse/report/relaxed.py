"""What would make a study feasible, in a sentence that can be typed back into the study file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from dse.columns import column

DIGITS = 4


def relaxation_text(relaxation: Mapping[str, Any]) -> str:
    """Limits as they must be, in the unit of their key, rounded to the side that lets the design in.

    >>> relaxation_text({"changes": [{"limit": "limits.power_w", "now": 1e4, "needed": 13401.2},
    ...                              {"limit": "demand.requests_s", "now": 40.0, "needed": 31.218}]})
    'limits.power_w = 13410 (now 10000 W) and demand.requests_s = 31.21 (now 40 requests/s)'
    """
    return " and ".join(_change(c) for c in relaxation["changes"])


def _change(change: Mapping[str, Any]) -> str:
    now, needed = float(change["now"]), float(change["needed"])
    known = column(str(change["limit"]).rsplit(".", 1)[-1])
    unit = f" {known.unit}" if known and known.unit not in ("", "1") else ""
    return f"{change['limit']} = {_outward(needed, up=needed > now)} (now {now:.10g}{unit})"


def _outward(value: float, *, up: bool) -> str:
    """A number to four digits, never on the wrong side."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    step = 10.0 ** (math.floor(math.log10(abs(value))) - DIGITS + 1)
    rounded = (math.ceil if up else math.floor)(value / step) * step
    return f"{rounded:.10g}"
