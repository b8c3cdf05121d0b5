"""What a search needs of each design before it is scored in full, and what explains one; for every paradigm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Screen:
    """What a search needs of each design, broadcast over a block."""

    columns: dict[str, Floats]
    feasible: Bools
    """Fits, and serves something under the service limits; demand and user limits are not looked at here."""
    exact: bool
    """False: maximised columns are upper and minimised ones lower bounds."""


class Explanation(TypedDict):
    """One design explained: a table of figures per pool that is bought, and one for the whole."""

    pools: dict[str, dict[str, Any]]
    system: dict[str, Any]
