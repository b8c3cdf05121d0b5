"""A value at which an answer changes, between two that were looked at."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

WIDTH: Final = 1e-3
"""Relative width of a bracket that is narrow enough."""


class SpentError(Exception):
    """The time for explorations is over: what was asked is not answered."""


def bisected(same: Callable[[float], bool], inside: float, outside: float) -> tuple[float, float]:
    """Both ends of a bracket, narrow enough; `same` holds at the first and not at the second.

    >>> inside, outside = bisected(lambda v: v <= 3.0, 1.0, 9.0)
    >>> inside <= 3.0 < outside <= inside * (1 + WIDTH)
    True
    """
    while abs(outside - inside) > WIDTH * abs(inside):
        middle = 0.5 * (inside + outside)
        if same(middle):
            inside = middle
        else:
            outside = middle
    return inside, outside
