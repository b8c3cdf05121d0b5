"""What a program gives and what its data says of itself; nothing here needs Pyomo."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

NO_BOUND = 2.0
"""No scaled quantity is larger than 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A design that a program found: its number in the grid, or its `--set` keys where the grid lacks it."""

    index: int | None = None
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def design_id(self) -> str:
        """`d` and the grid's number, or `p` and a hash of the keys.

        >>> Plan(index=7).design_id, Plan(settings={"n_gpu": "8"}).design_id
        ('d7', 'pf00a9318')
        """
        if self.index is not None:
            return f"d{self.index}"
        keys = json.dumps(dict(sorted(self.settings.items())))
        return f"p{hashlib.sha256(keys.encode()).hexdigest()[:8]}"


class Program(Protocol):
    """What the frontier search asks of one program's data."""

    @property
    def objectives(self) -> Sequence[str]:
        """Quantities that are minimised, in the order of the study's objective columns; names of `minimised`."""
        ...

    @property
    def limits(self) -> Mapping[str, tuple[float, float]]:
        """Scaled quantity -> (low, high) where the user bounds it; infinite where not."""
        ...

    @property
    def may_idle(self) -> bool:
        """Whether a plan may run below its capacity, because no objective asks it to run faster."""
        ...

    def scaled(self, point: Floats) -> Floats:
        """The program's minimised objectives for a point of minimised columns (M,); increasing in each."""
        ...
