"""Provisioning for several scenarios: what to buy once, so that it serves well in each.

One program covers one way to adapt. First stage: an option of each pool, and a link; second stage: what flows in every
scenario. Rates are divided by the largest that the options reach in their scenario, cost and power by the largest, so
that all rows are of order 1. Options and their coefficients come from `dse.model` (see robust_provisioning_data).

Sets        POOLS p, o;  OPTIONS (p, k);  LINKS l;  PAIRS (p, o), p != o;  CLASSES c;  SCENARIOS w;
            configurations (p, j): instance size and batches
Parameters  q[c,w], out[w], D[w], pi[w]  mix, output tokens of a request, demand, weight of a scenario
            R[p,k,w], E[p,k,w], B[p,k,w]  prefill, decode and both-role rate of an option
            n[p,k,w]   instances;  u[p,k,w]  devices that may serve;  N[p,j,w]  most instances;  g[j]  devices of one
            s[p,j,c], d[p,j,c]  seconds of one instance to prefill, to decode;  v[c]  KV bytes
            S[l], a[l]  bandwidth and cost of a link between one pair of pools;  e[p,k]  cost of an option
Variables   pick[p,k]  option k of pool p, binary;  use[l]  the link of all pairs, binary
            bought[p,o,l]  link l stands between p and o, in [0, 1]
            rate[w]  requests/s;  worst, headroom  the least over the scenarios
            cross[p,o,w]  fixed split: requests/s from p to o
            flow[p,o,c,w]  else, by class;  inside[p,j,c,w], outside[p,j,c,w]  share of N instances that prefilling,
                       decoding the class takes
            divide[p,j,w]  adaptive: instances of configuration j, whole
            expected = sum pi out rate, requests = sum pi rate, cost = sum e pick + sum a bought, power likewise
Minimise    expected, worst, requests, headroom (negative), cost and power as the frontier search weighs them, within
            its bounds and the user's limits: `program`
Subject to  sum_k pick[p,k] = 1                                                 pick_one_option
            sum_l use[l] = 1                                                    use_one_link
            bought[p,o,l] >= (p prefills) + (o decodes) + use[l] - 2            buy_links
                       else (p is bought) + (o is bought) + use[l] - 2
            rate[w] >= half the least rate of any plan that serves w            serve_something
            worst <= out rate[w];  headroom <= rate[w]/D[w]                     know_worst, know_headroom
  fixed     rate[w] <= sum_{p,o} cross[p,o,w] + sum B pick                      count_served
  split     sum_o cross[p,o,w] <= sum_k R pick                                  prefill_at_capacity
            sum_p cross[p,o,w] <= sum_k E pick                                  decode_at_capacity
            cross[p,o,w] <= sum_l S/(sum_c q v) use[l]                          respect_pair
  else      sum_{p,o} flow[p,o,c,w] >= q[c,w] rate[w]                           serve_every_class
            sum_j N/s inside[p,j,c,w] = sum_o flow[p,o,c,w]                     assign_prefill_work
            sum_j N/d outside[o,j,c,w] = sum_p flow[p,o,c,w]                    assign_decode_work
            sum_c (inside + outside) <= sum_{k in j} n/N pick                   respect_capacity
                       adaptive: <= divide[p,j,w]/N
            sum_j g divide[p,j,w] <= sum_k u pick                               divide_devices
            sum_c v flow[p,o,c,w] <= sum_l S use[l]                             respect_link

A pair has a row respect_pair, respect_link only where its link can fill: where S is below what p can prefill and o can
decode. A bandwidth beyond that counts as that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyomo.environ as pyo

from dse.model.robust_serving import FIXED

from .program import Plan, add_objectives, chosen, objective_values, picked
from .robust_flows import add_flows
from .robust_provisioning_data import (
    COST,
    EXPECTED,
    HEADROOM,
    MAXIMISED,
    POWER,
    REQUESTS,
    WORST,
    Regimes,
    RobustData,
    least_rate,
    programs,
    refusal,
)
from .robust_split import add_split

__all__ = ["build_model", "extract", "objective_values", "programs", "refusal"]


def build_model(data: RobustData) -> pyo.ConcreteModel:
    """The program of one way to adapt."""
    m = pyo.ConcreteModel(name="robust_provisioning")
    _add_choice(m, data)
    if data.adaptation == FIXED:
        add_split(m, data)
    else:
        add_flows(m, data)
    quantities = _quantities(m, data)
    bonus = quantities[EXPECTED]
    add_objectives(m, data, quantities, maximised=MAXIMISED, bonus=bonus)
    return m


def _add_choice(m: pyo.ConcreteModel, data: RobustData) -> None:
    """What is bought: an option of each pool, and links where KV cache may flow."""
    n = len(data.pools)
    m.POOLS = pyo.RangeSet(0, n - 1)
    m.LINKS = pyo.RangeSet(0, len(data.link_byte_s) - 1)
    m.SCENARIOS = pyo.RangeSet(0, len(data.weight) - 1)
    m.PAIRS = pyo.Set(initialize=[(p, o) for p in range(n) for o in range(n) if p != o], dimen=2)
    m.OPTIONS = pyo.Set(initialize=[(p, k) for p, t in enumerate(data.pools) for k in range(len(t.row))], dimen=2)
    m.pick = pyo.Var(m.OPTIONS, domain=pyo.Binary, doc="pick[p,k]")
    m.use = pyo.Var(m.LINKS, domain=pyo.Binary, doc="use[l]")
    m.bought = pyo.Var([(p, o) for p, o in m.PAIRS if p < o], m.LINKS, bounds=(0, 1), doc="bought[p,o,l]")
    m.rate = pyo.Var(m.SCENARIOS, bounds=(0, 1), doc="rate[w], scaled")

    @m.Constraint(m.POOLS)
    def pick_one_option(m: pyo.ConcreteModel, p: int) -> Any:
        return pyo.quicksum(m.pick[p, k] for k in range(len(data.pools[p].row))) == 1

    @m.Constraint()
    def use_one_link(m: pyo.ConcreteModel) -> Any:
        return pyo.quicksum(m.use[link] for link in m.LINKS) == 1

    @m.Constraint(m.PAIRS, m.LINKS)
    def buy_links(m: pyo.ConcreteModel, p: int, o: int, link: int) -> Any:
        split = data.adaptation == FIXED
        sends = data.pools[p].prefills if split else data.pools[p].active
        receives = data.pools[o].decodes if split else data.pools[o].active
        if (p > o and not split) or not sends.any() or not receives.any():
            return pyo.Constraint.Skip
        return m.bought[min(p, o), max(p, o), link] >= picked(m, p, sends) + picked(m, o, receives) + m.use[link] - 2

    @m.Constraint(m.SCENARIOS)
    def serve_something(m: pyo.ConcreteModel, w: int) -> Any:
        return m.rate[w] >= least_rate(data, w) / data.most_rate[w]


def _quantities(m: pyo.ConcreteModel, data: RobustData) -> Mapping[str, Any]:
    """Columns of the plan, scaled."""
    scale, rates = data.scale, data.most_rate
    m.worst = pyo.Var(bounds=(0, 1), doc="worst, scaled")

    @m.Constraint(m.SCENARIOS)
    def know_worst(m: pyo.ConcreteModel, w: int) -> Any:
        least = scale[WORST] / (rates[w] * data.output_tok[w])
        return least * m.worst <= m.rate[w]

    weighted = data.weight * rates
    expected = pyo.quicksum(float(weighted[w] * data.output_tok[w] / scale[EXPECTED]) * m.rate[w] for w in m.SCENARIOS)
    requests = pyo.quicksum(float(weighted[w] / scale[REQUESTS]) * m.rate[w] for w in m.SCENARIOS)
    found = {EXPECTED: expected, WORST: m.worst, REQUESTS: requests}
    if data.demand is not None:
        found[HEADROOM] = _headroom(m, data, data.demand)
    links = list(m.bought)
    cost = sum(picked(m, p, t.idle_usd_per_h / scale[COST]) for p, t in enumerate(data.pools))
    power = sum(picked(m, p, t.power_w / scale[POWER]) for p, t in enumerate(data.pools))
    cost += pyo.quicksum(float(data.link_usd_per_h[i[2]] / scale[COST]) * m.bought[i] for i in links)
    power += pyo.quicksum(float(data.link_power_w[i[2]] / scale[POWER]) * m.bought[i] for i in links)
    return found | {COST: cost, POWER: power}


def _headroom(m: pyo.ConcreteModel, data: RobustData, demand: Any) -> Any:
    """The least rate over demand, scaled."""
    m.headroom = pyo.Var(bounds=(0, 1), doc="headroom, scaled")

    @m.Constraint(m.SCENARIOS)
    def know_headroom(m: pyo.ConcreteModel, w: int) -> Any:
        return float(data.scale[HEADROOM] * demand[w] / data.most_rate[w]) * m.headroom <= m.rate[w]

    return m.headroom


def extract(m: pyo.ConcreteModel, data: RobustData, space: Regimes) -> Plan:
    """The plan: the search space's number of the chosen design."""
    rows = [int(t.row[chosen(m, p, len(t.row))]) for p, t in enumerate(data.pools)]
    link = int(np.argmax([pyo.value(m.use[link]) for link in m.LINKS]))
    return Plan(index=space.canonical(data.regime, link, np.array(rows, dtype=np.int64)))
