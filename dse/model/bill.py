"""Power and cost of one pool over its settings, owned devices apart (docs/model.md, section 7)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dse.hardware import Accelerator
from dse.model.cost import amortised_usd_per_h, energy_usd_per_h, upkeep_usd_per_h
from dse.model.power import mean_w, provisioned_w
from dse.study import Site

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolBill:
    """Power [W, PUE inside] and cost [USD/h] of a pool (K,): each is idle + busy * busy fraction."""

    provisioned_w: Floats
    idle_w: Floats
    busy_w: Floats
    idle_usd_per_h: Floats
    busy_usd_per_h: Floats

    def usd_per_h(self, rows: Ints, busy_frac: Floats | float) -> Floats:
        """Cost of these settings at a busy share [USD/h]."""
        return self.idle_usd_per_h[rows] + self.busy_usd_per_h[rows] * busy_frac

    def power_mean_w(self, rows: Ints, busy_frac: Floats | float) -> Floats:
        """Mean power of these settings at a busy share [W]."""
        return self.idle_w[rows] + self.busy_w[rows] * busy_frac


def pool_bill(device: Accelerator, site: Site, n: Ints, owned: int) -> PoolBill:
    """Power and cost of n devices, of which the first `owned` are there already.

    Rental: rent for what is rented (energy inside). Ownership: amortised price and upkeep, plus energy.
    Owned devices: upkeep and energy only, under either basis. A price that is not known counts as
    infinite: the loader refuses studies that need it.
    """
    count = n.astype(np.float64)
    mine = np.minimum(count, float(owned))
    bought = count - mine
    idle_w = site.pue * mean_w(count, 0.0, device.idle_w, device.full_w, device.host_w)
    busy_w = site.pue * mean_w(count, 1.0, device.idle_w, device.full_w, device.host_w) - idle_w
    capex = np.inf if device.capex_usd is None else device.capex_usd
    metered = mine if site.cost_basis == "rental" else count
    share = np.divide(metered, count, out=np.zeros_like(count), where=count > 0)
    idle_usd = energy_usd_per_h(idle_w, site.energy_usd_per_kwh) * share
    if site.cost_basis == "rental":
        rental = np.inf if device.rental_usd_per_h is None else device.rental_usd_per_h
        idle_usd += np.where(bought > 0, bought * rental, 0.0)
    else:
        unit = float(amortised_usd_per_h(capex, site.life_years, site.upkeep_frac_per_year))
        idle_usd += np.where(bought > 0, bought * unit, 0.0)
    if owned:
        idle_usd += mine * float(upkeep_usd_per_h(capex, site.upkeep_frac_per_year))
    return PoolBill(
        provisioned_w=site.pue * provisioned_w(count, device.full_w, device.host_w),
        idle_w=idle_w,
        busy_w=busy_w,
        idle_usd_per_h=idle_usd,
        busy_usd_per_h=energy_usd_per_h(busy_w, site.energy_usd_per_kwh) * share,
    )
