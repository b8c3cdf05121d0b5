"""What the paper says, beside what the model gives, and the nearest number that would make both agree."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """One statement of the paper about one figure. A difference is a result, not a failure."""

    figure: str
    statement: str
    passes: bool
    value: str
    """What the model gives."""
    paper: str
    """What the paper prints."""

    def as_json(self) -> dict[str, str | bool]:
        """The statement as `dse paper --json` prints it."""
        return {
            "figure": self.figure,
            "statement": self.statement,
            "pass": self.passes,
            "value": self.value,
            "paper": self.paper,
        }


def nearest_that_holds(holds: Callable[[float], bool], start: float, bound: float) -> float:
    """The value nearest to `start` at which something holds, between `start` (it does not) and `bound`.

    Bisection on the logarithm, for what holds from some value on; NaN if it does not hold at `bound` either.

    >>> round(nearest_that_holds(lambda x: x * x >= 2.0, 1.0, 100.0), 6)
    1.414214
    >>> nearest_that_holds(lambda x: x >= 5.0, 1.0, 2.0)
    nan
    """
    if not holds(bound):
        return math.nan
    without, with_it = math.log(start), math.log(bound)
    while abs(with_it - without) > 1e-9:
        middle = 0.5 * (without + with_it)
        without, with_it = (without, middle) if holds(math.exp(middle)) else (middle, with_it)
    return math.exp(with_it)


def within_factor(value: float, paper: float, factor: float) -> bool:
    """Whether two positive numbers differ by at most this factor.

    >>> within_factor(16.0, 32.0, 2.0), within_factor(15.9, 32.0, 2.0), within_factor(math.inf, 32.0, 2.0)
    (True, False, False)
    """
    return paper / factor <= value <= paper * factor
