"""Power of what is bought (MODEL section 7). Per device, never per instance."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


def provisioned_w(n: ArrayLike, full_w: float, host_w: float) -> Floats:
    """What a pool may draw at once, before PUE [W]: n (full + host).

    >>> float(provisioned_w(8, 400, 300))
    5600.0
    """
    return np.asarray(n, dtype=np.float64) * (full_w + host_w)


def mean_w(n: ArrayLike, busy_frac: ArrayLike, idle_w: float, full_w: float, host_w: float) -> Floats:
    """What a pool draws on average, before PUE [W]: n (host + idle + (full - idle) busy).

    >>> float(mean_w(8, 0.5, 100, 400, 300))
    4400.0
    """
    return np.asarray(n, dtype=np.float64) * (host_w + idle_w + (full_w - idle_w) * np.asarray(busy_frac))
