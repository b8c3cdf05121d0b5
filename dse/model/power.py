"""Power of what is bought (docs/model.md, section 7). Per device, never per instance."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dse.units import J_PER_KWH

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


def energy_j_per_tok(power_mean_w: ArrayLike, throughput_tok_s: ArrayLike) -> Floats:
    """Energy of one output token [J]: mean power over throughput; infinite without throughput.

    >>> float(energy_j_per_tok(5e4, 1e5))
    0.5
    """
    power, rate = np.broadcast_arrays(
        np.asarray(power_mean_w, dtype=np.float64), np.asarray(throughput_tok_s, dtype=np.float64)
    )
    return np.divide(power, rate, out=np.full(rate.shape, np.inf), where=rate > 0)


def co2_g_per_mtok(energy_j_per_token: ArrayLike, carbon_g_per_kwh: float) -> Floats:
    """Carbon of a million tokens [g]: 1 kWh is 3.6e6 J.

    >>> round(float(co2_g_per_mtok(0.36, 350.0)), 9)
    35.0
    """
    energy = np.asarray(energy_j_per_token, dtype=np.float64)
    if carbon_g_per_kwh == 0:
        return np.zeros_like(energy)
    return energy * 1e6 / J_PER_KWH * carbon_g_per_kwh
