"""The links on offer between two pools, as numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkTable:
    """The links on offer, each as bought for one pair of pools (L,). PUE is inside the power."""

    byte_s: Floats
    latency_s: Floats
    usd_per_h: Floats
    power_w: Floats
