"""Cost per hour of what is bought (docs/model.md, section 7)."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dse.units import HOURS_PER_YEAR

Floats = NDArray[np.float64]


def amortised_usd_per_h(capex_usd: ArrayLike, life_years: float, upkeep_frac_per_year: float) -> Floats:
    """Straight-line price of owning [USD/h]: (capex/life + upkeep capex) / 8760.

    >>> round(float(amortised_usd_per_h(35040, 4, 0.05)), 9)
    1.2
    """
    capex = np.asarray(capex_usd, dtype=np.float64)
    return (capex / life_years + upkeep_frac_per_year * capex) / HOURS_PER_YEAR


def upkeep_usd_per_h(capex_usd: ArrayLike, upkeep_frac_per_year: float) -> Floats:
    """What a device that is already paid for still costs besides energy [USD/h].

    >>> float(upkeep_usd_per_h(87600, 0.05))
    0.5
    """
    return np.asarray(capex_usd, dtype=np.float64) * upkeep_frac_per_year / HOURS_PER_YEAR


def energy_usd_per_h(power_w: ArrayLike, energy_usd_per_kwh: float) -> Floats:
    """Energy bill of a mean power [USD/h]; PUE is already inside the power.

    >>> float(energy_usd_per_h(2.5e5, 0.08))
    20.0
    """
    return np.asarray(power_w, dtype=np.float64) * energy_usd_per_kwh / 1000.0


def usd_per_mtok(cost_usd_per_h: ArrayLike, throughput_tok_s: ArrayLike) -> Floats:
    """Cost of a million output tokens [USD]; infinite without throughput.

    >>> float(usd_per_mtok(36.0, 10_000.0))
    1.0
    """
    cost, rate = np.broadcast_arrays(
        np.asarray(cost_usd_per_h, dtype=np.float64), np.asarray(throughput_tok_s, dtype=np.float64)
    )
    return np.divide(cost * 1e6 / 3600.0, rate, out=np.full(rate.shape, np.inf), where=rate > 0)
