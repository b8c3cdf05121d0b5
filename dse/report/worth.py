"""What holds a plan back and what one more of it is worth, in sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dse.report.numbers import number

HELD_BY = {
    "prefill_at_capacity": "prefill capacity",
    "decode_at_capacity": "decode capacity",
    "count_served": "the capacity of a pool of both phases",
    "respect_capacity": "the pools' capacity",
    "respect_link": "the link",
    "respect_pair": "the link",
}
"""Row of the exact program -> what binds."""


def worth_lines(marginal: Sequence[Mapping[str, Any]], tok_per_request: float) -> list[str]:
    """One line a resource; rates as the prices of the plan's linear program give them.

    >>> worth_lines([{"row": "decode_at_capacity", "resource": "h100", "per": "device", "requests_s": 0.5}], 256.0)
    ['decode capacity binds: each further h100 is worth 128.0 tok/s, until something else binds']
    """
    return [_line(one, float(one["requests_s"]) * tok_per_request) for one in marginal]


def _line(one: Mapping[str, Any], tok_s: float) -> str:
    what = f"each further {one['resource']}" if one["per"] == "device" else f"each GB/s more of the {one['resource']}"
    return f"{HELD_BY[one['row']]} binds: {what} is worth {number(tok_s)} tok/s, until something else binds"
