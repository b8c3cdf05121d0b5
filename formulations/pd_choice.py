"""What is bought: an option of each pool, links, and where KV cache may flow. Symbols: `pd_provisioning`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyomo.environ as pyo

from .pd_provisioning_data import ProvisioningData
from .program import picked

FOR_ALL = (0, 0)
"""Stands for all pairs of pools."""


def add_choice(m: pyo.ConcreteModel, data: ProvisioningData) -> None:
    """One option a pool, one link for all pairs or one a pair, and links bought where KV cache may flow."""
    n = len(data.pools)
    m.POOLS = pyo.RangeSet(0, n - 1)
    m.LINKS = pyo.RangeSet(0, len(data.link_byte_s) - 1)
    m.PAIRS = pyo.Set(initialize=[(p, o) for p in range(n) for o in range(n) if p != o], dimen=2)
    m.OPTIONS = pyo.Set(initialize=[(p, k) for p, t in enumerate(data.pools) for k in range(len(t.row))], dimen=2)
    m.pick = pyo.Var(m.OPTIONS, domain=pyo.Binary, doc="pick[p,k]")
    pairs = [(p, o) for p, o in m.PAIRS if p < o]
    m.CHOICES = pyo.Set(initialize=sorted({choice_of(data, p, o) for p, o in pairs}) or [FOR_ALL], dimen=2)
    m.use = pyo.Var(m.CHOICES, m.LINKS, domain=pyo.Binary, doc="use[p,o,l]")
    m.bought = pyo.Var(pairs, m.LINKS, bounds=(0, 1), doc="bought[p,o,l]")
    m.rate = pyo.Var(bounds=(0, 1), doc="rate, scaled")

    @m.Constraint(m.POOLS)
    def pick_one_option(m: pyo.ConcreteModel, p: int) -> Any:
        return sum(m.pick[p, k] for k in range(len(data.pools[p].row))) == 1

    @m.Constraint(m.CHOICES)
    def use_one_link(m: pyo.ConcreteModel, p: int, o: int) -> Any:
        return sum(m.use[p, o, link] for link in m.LINKS) == 1

    @m.Constraint([(i, *pair) for pair in pairs if data.per_pair for i in pair])
    def use_the_first_link(m: pyo.ConcreteModel, i: int, p: int, o: int) -> Any:
        return 1 - m.use[p, o, 0] <= picked(m, i, data.pools[i].active)

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
        return m.bought[min(p, o), max(p, o), link] >= ends + used(m, data, p, o, link) - 2


def choice_of(data: ProvisioningData, p: int, o: int) -> tuple[int, int]:
    """The choice of a link that holds between two pools: their own, or the one for all pairs."""
    return (min(p, o), max(p, o)) if data.per_pair else FOR_ALL


def used(m: pyo.ConcreteModel, data: ProvisioningData, p: int, o: int, link: int) -> Any:
    """Whether p and o have this link."""
    return m.use[*choice_of(data, p, o), link]


def bandwidth(m: pyo.ConcreteModel, data: ProvisioningData, p: int, o: int) -> Any:
    """Bandwidth between p and o, as a share of the widest link."""
    return pyo.quicksum(data.link_byte_s[link] / data.widest_byte_s * used(m, data, p, o, link) for link in m.LINKS)


def link_taken(m: pyo.ConcreteModel, data: ProvisioningData, p: int, o: int) -> int:
    """The link between p and o in the plan that the model holds."""
    return int(np.argmax([pyo.value(used(m, data, p, o, link)) for link in m.LINKS]))


def sent_to(m: pyo.ConcreteModel, data: ProvisioningData, p: int) -> list[tuple[int, Any]]:
    """Pools o whose link holds p's prefill to a TTFT limit, and whether they decode.

    Where one link holds for all pairs one o speaks for all, whether it decodes or not.
    """
    others = [o for o in m.POOLS if o != p]
    if not data.per_pair:
        return [(o, 1) for o in others[:1]]
    return [(o, picked(m, o, data.pools[o].decodes)) for o in others if data.pools[o].decodes.any()]
