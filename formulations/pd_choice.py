"""What is bought: one option a pool, one link, and links where KV cache may flow. Symbols: `pd_provisioning`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyomo.environ as pyo
from numpy.typing import NDArray

from .pd_provisioning_data import ProvisioningData


def picked(m: pyo.ConcreteModel, p: int, values: NDArray[np.generic]) -> Any:
    """sum_k values[k] pick[p,k], without the zeros."""
    return pyo.quicksum(float(v) * m.pick[p, k] for k, v in enumerate(values) if v)


def add_choice(m: pyo.ConcreteModel, data: ProvisioningData) -> None:
    """One option a pool, one link, and links bought where KV cache may flow."""
    n = len(data.pools)
    m.POOLS = pyo.RangeSet(0, n - 1)
    m.LINKS = pyo.RangeSet(0, len(data.link_byte_s) - 1)
    m.PAIRS = pyo.Set(initialize=[(p, o) for p in range(n) for o in range(n) if p != o], dimen=2)
    m.OPTIONS = pyo.Set(initialize=[(p, k) for p, t in enumerate(data.pools) for k in range(len(t.row))], dimen=2)
    m.pick = pyo.Var(m.OPTIONS, domain=pyo.Binary, doc="pick[p,k]")
    m.use = pyo.Var(m.LINKS, domain=pyo.Binary, doc="use[l]")
    pairs = [(p, o) for p, o in m.PAIRS if p < o]
    m.bought = pyo.Var(pairs, m.LINKS, bounds=(0, 1), doc="bought[p,o,l]")
    m.rate = pyo.Var(bounds=(0, 1), doc="rate, scaled")

    @m.Constraint(m.POOLS)
    def pick_one_option(m: pyo.ConcreteModel, p: int) -> Any:
        return sum(m.pick[p, k] for k in range(len(data.pools[p].row))) == 1

    @m.Constraint()
    def use_one_link(m: pyo.ConcreteModel) -> Any:
        return sum(m.use[link] for link in m.LINKS) == 1

    @m.Constraint(m.PAIRS)
    def keep_to_roles(m: pyo.ConcreteModel, p: int, o: int) -> Any:
        if data.pools[p].listed.all() or not data.pools[o].active.any():
            return pyo.Constraint.Skip
        return picked(m, p, ~data.pools[p].listed) <= 1 - picked(m, o, data.pools[o].active)

    @m.Constraint(m.PAIRS, m.LINKS)
    def buy_links(m: pyo.ConcreteModel, p: int, o: int, link: int) -> Any:
        sends = data.pools[p].active if data.stealing else data.pools[p].prefills
        receives = data.pools[o].active if data.stealing else data.pools[o].decodes
        ends = picked(m, p, sends) + picked(m, o, receives)
        return m.bought[min(p, o), max(p, o), link] >= ends + m.use[link] - 2


def bandwidth(m: pyo.ConcreteModel, data: ProvisioningData) -> Any:
    """Bandwidth between pools, as a share of the widest link."""
    return pyo.quicksum(data.link_byte_s[link] / data.widest_byte_s * m.use[link] for link in m.LINKS)
