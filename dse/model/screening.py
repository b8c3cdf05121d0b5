"""What a search needs of each design before it is scored in full; the same for every paradigm."""

from __future__ import annotations

from dataclasses import dataclass

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
