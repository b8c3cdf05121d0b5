"""Prefill/decode provisioning: what to buy of each pool, in which role, over which link.

One program covers one regime (data types and routing). Rates are in requests/s and, like cost and power,
divided by the largest that the options reach, so that all rows are of order 1. Options and their
coefficients come from `dse.model` (see pd_provisioning_data).

Sets        POOLS p, o;  OPTIONS (p, k);  LINKS l;  PAIRS (p, o), p != o;  CLASSES c;
            configurations (p, j): options of a pool that differ only in count
Parameters  R[p,k], D[p,k], B[p,k]  prefill, decode and both-role rate of an option
            T[p,k,l]   prefill rate that meets the TTFT limit through link l
            n[p,k]     instances;  e[p,k], h[p,k]  cost at idle, and more when busy;  w[p,k]  power
            S[l], a[l], g[l]  bandwidth, cost and power of a link between one pair of pools
            v          KV bytes per request
Variables   pick[p,k]  option k of pool p, binary
            use[p,o,l]  p and o have link l, binary: one choice a pair with `per_pair`, else one for all pairs
            bought[p,o,l]  link l stands between p and o, in [0, 1]
            rate       requests/s of the whole fleet
            cost = sum e pick + sum a bought + h times how busy;  power = sum w pick + sum g bought
Minimise    rate (negative), cost and power as the frontier search weighs them, within its bounds and the
            user's limits: `program`
Subject to  sum_k pick[p,k] = 1                                                 pick_one_option
            sum_l use[p,o,l] = 1                                                use_one_link
            per_pair: 1 - use[p,o,0] <= (p is bought), (o is bought)            use_the_first_link
            an option not listed for use beside other pools: only alone         keep_to_roles
            bought[p,o,l] >= (p prefills) + (o decodes) + use[p,o,l] - 2        buy_links
                             stealing: (p is bought) + (o is bought) + use[p,o,l] - 2
            rate >= half the least rate of any plan that serves something       serve_something
            rate <= what the pools do under the regime's routing: `pd_split`, `pd_stealing`; `pd_split_metered`
                             where busy devices cost more than idle ones
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyomo.environ as pyo

from .pd_choice import add_choice, link_taken
from .pd_provisioning_data import COST, POWER, RATE, ProvisioningData, Regimes, least_rate, programs, refusal
from .pd_split import PairRow, add_pair, add_split, overloaded_pairs
from .pd_split_metered import add_metered_split
from .pd_stealing import add_stealing
from .pd_worth import place, worths
from .program import Plan, add_objectives, chosen, objective_values, picked

__all__ = [
    "add_row",
    "build_model",
    "extract",
    "objective_values",
    "place",
    "programs",
    "refine",
    "refusal",
    "worths",
]


def build_model(data: ProvisioningData) -> pyo.ConcreteModel:
    """The regime's program."""
    m = pyo.ConcreteModel(name="pd_provisioning")
    scale = data.scale
    add_choice(m, data)
    busy_usd_per_h = _add_routing(m, data)
    links = [(p, o, link) for p, o in m.PAIRS if p < o for link in m.LINKS]
    fixed = sum(picked(m, p, t.idle_usd_per_h + t.busy_usd_per_h * t.both_busy) for p, t in enumerate(data.pools))
    link_usd = sum(float(data.link_usd_per_h[i[2]]) * m.bought[i] for i in links)
    link_w = sum(float(data.link_power_w[i[2]]) * m.bought[i] for i in links)
    power_w = sum(picked(m, p, t.power_w) for p, t in enumerate(data.pools)) + link_w
    m.cost = pyo.Expression(expr=(fixed + link_usd + busy_usd_per_h) / scale[COST])
    m.power = pyo.Expression(expr=power_w / scale[POWER])

    @m.Constraint()
    def serve_something(m: pyo.ConcreteModel) -> Any:
        return m.rate >= least_rate(data) / scale[RATE]

    add_objectives(m, data, {RATE: m.rate, COST: m.cost, POWER: m.power}, maximised=(RATE,), bonus=m.rate)
    return m


def _add_routing(m: pyo.ConcreteModel, data: ProvisioningData) -> Any:
    """Rate under the regime's routing; returns the cost of being busy [USD/h]."""
    if data.stealing:
        add_stealing(m, data, data.scale[RATE])
        return 0.0
    if data.metered:
        return add_metered_split(m, data, data.scale[RATE])
    add_split(m, data)
    return 0.0


def refine(m: pyo.ConcreteModel, data: ProvisioningData) -> list[PairRow]:
    """Rows that the plan in the model breaks and that were left out."""
    return [] if data.stealing or data.metered else overloaded_pairs(m, data)


def add_row(m: pyo.ConcreteModel, data: ProvisioningData, row: Sequence[Any]) -> None:
    """Adds one of them."""
    add_pair(m, data, PairRow(*row))


def extract(m: pyo.ConcreteModel, data: ProvisioningData, space: Regimes) -> Plan:
    """The plan: the search space's number of the chosen design, or its keys where the grid lacks its links."""
    picks = [int(t.row[chosen(m, p, len(t.row))]) for p, t in enumerate(data.pools)]
    option = np.zeros((len(picks), len(picks)), dtype=np.int64)
    for p, o in m.PAIRS:
        option[p, o] = link_taken(m, data, p, o)
    index = space.canonical(data.regime, option, picks)
    return Plan(index=index) if index is not None else Plan(settings=space.settings_at(data.regime, option, picks))
