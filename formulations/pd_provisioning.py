"""Prefill/decode provisioning: what to buy of each pool, in which role, over which link.

One program covers one regime (data types and routing). Rates are in requests/s and, like cost and power,
divided by the largest that the options reach, so that all rows are of order 1. Options and their
coefficients come from `dse.model` (see pd_provisioning_data), so the program is exact.

Sets        POOLS p, o;  OPTIONS (p, k);  LINKS l;  PAIRS (p, o), p != o;  CLASSES c;
            configurations (p, j): options of a pool that differ only in count
Parameters  R[p,k], D[p,k], B[p,k], A[p,k]  prefill, decode, both-role and stand-alone rate of an option
            T[p,k,l]   prefill rate that meets the TTFT limit through link l
            n[p,k]     instances;  e[p,k], h[p,k]  cost at idle, and more when busy;  w[p,k]  power
            S[l], e[l], w[l]  bandwidth, cost and power of a link between one pair of pools
            v, v[c]    KV bytes per request, and of class c;  q[c]  share of class c
            a[p,j,c], d[p,j,c]  seconds of one instance to prefill, to decode a request of class c
Variables   pick[p,k]  option k of pool p, binary;  use[l]  link l, binary
            bought[p,o,l]  link l stands between p and o, in [0, 1]
            rate       requests/s of the whole fleet
 split      flow[p,o]  requests/s prefilled on p and decoded on o
            fill, drain   utilisation that all prefill, all decode pools share, in [0, 1]
            filled[p,k] = fill pick[p,k];  drained[p,k] = drain pick[p,k]
            source[p]  part of every decode pool's capacity that requests from p take, in [0, 1]
            sourced[p,o,k] = source[p] pick[o,k]
            tight[i]   what holds the split pools back, binary; only where busy devices cost more
 stealing   flow[p,o,c], inside[p,j,c], outside[p,j,c]  requests/s: routed, prefilled, decoded
            alone      one pool only, binary
Minimise    rate (negative), cost and power as the frontier search weighs them, within its bounds and the
            user's limits: see `program`, which adds them
Subject to  sum_k pick[p,k] = 1                                                 pick_one_option
            sum_l use[l] = 1                                                    use_one_link
            an option not listed for use beside other pools: only alone         keep_to_roles
            bought[p,o,l] >= (p prefills) + (o decodes) + use[l] - 2            buy_links
                             stealing: (p is bought) + (o is bought) + use[l] - 2
            rate >= half the least rate of any plan that serves something       serve_something
 split      rate = sum flow + sum B pick                                        count_served
            sum_o flow[p,o] = sum_k R filled                                    prefill_at_capacity
            sum_p flow[p,o] = sum_k D drained                                   decode_at_capacity
            flow[p,o] = sum_k D[o,k] sourced[p,o,k]    (three pools or more)    share_in_proportion
            v flow[p,o] <= sum_l S use                                          respect_link
            sum_o flow[p,o] <= sum_k T[p,k,l] pick + max_k R (1 - use[l])       respect_ttft
            something is tight, and what is tight holds with equality           work_at_capacity
 stealing   sum_{p,o} flow[p,o,c] >= q[c] (rate - alone)                        serve_every_class
            sum_j inside[p,j,c] = sum_o flow[p,o,c]                             assign_prefill_work
            sum_j outside[o,j,c] = sum_p flow[p,o,c]                            assign_decode_work
            sum_c (a inside + d outside) <= sum_{k in j} n pick                 respect_capacity
            outside[p,j,c] <= sum_{k in j} pick   where decoding takes no time  decode_where_picked
            sum_c v[c] flow[p,o,c] <= sum_l S use                               respect_link
            rate <= sum A pick + (1 - alone)                                    serve_alone
            1 + (pools - 1)(1 - alone) >= pools bought >= 2 - alone             count_pools

A product of a share x in [0, 1] and a binary y is exact as z <= y, z <= x, z >= x + y - 1.
The big numbers: max_k R suffices in respect_ttft, since prefill never exceeds R; 1 suffices in serve_alone
and serve_every_class, since the scaled rate never exceeds 1; in work_at_capacity a link row is scaled by
the widest link, so 1 covers any slack, and max_k R twice covers the slack of a prefill pool.
Proportional sharing: pools of one role take work in proportion to capacity. With one pool a side it
holds by itself. filled makes every prefill pool equally busy, and sourced sends each pool's requests to
the decode pools in proportion to theirs, so flow[p,o] = rate (R_p / sum R) (D_o / sum D).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyomo.environ as pyo
from numpy.typing import NDArray

from .pd_provisioning_data import COST, POWER, RATE, ProvisioningData, Regimes, least_rate, programs, refusal
from .program import Plan, add_objectives, objective_values

__all__ = ["build_model", "extract", "objective_values", "programs", "refusal"]

Floats = NDArray[np.float64]


def build_model(data: ProvisioningData) -> pyo.ConcreteModel:
    """The regime's program."""
    m = pyo.ConcreteModel(name="pd_provisioning")
    scale = data.scale
    _choose(m, data)
    busy_usd_per_h = _stealing(m, data, scale[RATE]) if data.stealing else _split(m, data, scale[RATE])
    links = [(p, o, link) for p, o in m.PAIRS if p < o for link in m.LINKS]
    fixed = sum(_picked(m, p, t.idle_usd_per_h + t.busy_usd_per_h * t.both_busy) for p, t in enumerate(data.pools))
    link_usd = sum(float(data.link_usd_per_h[i[2]]) * m.bought[i] for i in links)
    link_w = sum(float(data.link_power_w[i[2]]) * m.bought[i] for i in links)
    power_w = sum(_picked(m, p, t.power_w) for p, t in enumerate(data.pools)) + link_w
    m.cost = pyo.Expression(expr=(fixed + link_usd + busy_usd_per_h) / scale[COST])
    m.power = pyo.Expression(expr=power_w / scale[POWER])

    @m.Constraint()
    def serve_something(m: pyo.ConcreteModel) -> Any:
        return m.rate >= least_rate(data) / scale[RATE]

    # where rate is no objective a small price on it still makes a plan run at its capacity
    bonus = 0.0 if RATE in data.objectives else 1e-3 * m.rate
    add_objectives(m, data, {RATE: m.rate, COST: m.cost, POWER: m.power}, maximised=(RATE,), bonus=bonus)
    return m


def _picked(m: pyo.ConcreteModel, p: int, values: NDArray[np.generic]) -> Any:
    """sum_k values[k] pick[p,k], without the zeros."""
    return pyo.quicksum(float(v) * m.pick[p, k] for k, v in enumerate(values) if v)


def _choose(m: pyo.ConcreteModel, data: ProvisioningData) -> None:
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
        return _picked(m, p, ~data.pools[p].listed) <= 1 - _picked(m, o, data.pools[o].active)

    @m.Constraint(m.PAIRS, m.LINKS)
    def buy_links(m: pyo.ConcreteModel, p: int, o: int, link: int) -> Any:
        sends = data.pools[p].active if data.stealing else data.pools[p].prefills
        receives = data.pools[o].active if data.stealing else data.pools[o].decodes
        ends = _picked(m, p, sends) + _picked(m, o, receives)
        return m.bought[min(p, o), max(p, o), link] >= ends + m.use[link] - 2


def _product(m: pyo.ConcreteModel, name: str, index: Sequence[tuple[int, ...]], share: Callable[..., Any]) -> pyo.Var:
    """Variables share pick, exact for a share in [0, 1]; the last two of an index name the option."""
    z = pyo.Var(index, bounds=(0, 1), doc=name)
    m.add_component(name, z)
    m.add_component(f"{name}_at_most_pick", pyo.Constraint(index, rule=lambda m, *i: z[i] <= m.pick[i[-2:]]))
    m.add_component(f"{name}_at_most_share", pyo.Constraint(index, rule=lambda m, *i: z[i] <= share(*i)))
    m.add_component(
        f"{name}_at_least", pyo.Constraint(index, rule=lambda m, *i: z[i] >= share(*i) + m.pick[i[-2:]] - 1)
    )
    return z


def _split(m: pyo.ConcreteModel, data: ProvisioningData, rates: float) -> Any:
    """Flows that pools share in proportion to capacity; returns the cost [USD/h] of being busy."""
    m.flow = pyo.Var(m.PAIRS, bounds=(0, 1), doc="flow[p,o], scaled")
    m.fill = pyo.Var(bounds=(0, 1), doc="fill")
    m.drain = pyo.Var(bounds=(0, 1), doc="drain")
    prefilling = [(p, k) for p, k in m.OPTIONS if data.pools[p].prefill_rate[k] > 0]
    decoding = [(p, k) for p, k in m.OPTIONS if data.pools[p].decode_rate[k] > 0]
    filled = _product(m, "filled", prefilling, lambda p, k: m.fill)
    drained = _product(m, "drained", decoding, lambda p, k: m.drain)

    @m.Constraint()
    def count_served(m: pyo.ConcreteModel) -> Any:
        both = sum(_picked(m, p, t.both_rate / rates) for p, t in enumerate(data.pools))
        return m.rate == sum(m.flow[pair] for pair in m.PAIRS) + both

    @m.Constraint(m.POOLS)
    def prefill_at_capacity(m: pyo.ConcreteModel, p: int) -> Any:
        busy = pyo.quicksum(data.pools[p].prefill_rate[k] / rates * filled[p, k] for q, k in prefilling if q == p)
        return _leaving(m, p) == busy if len(m.POOLS) > 1 else pyo.Constraint.Skip

    @m.Constraint(m.POOLS)
    def decode_at_capacity(m: pyo.ConcreteModel, o: int) -> Any:
        busy = pyo.quicksum(data.pools[o].decode_rate[k] / rates * drained[o, k] for q, k in decoding if q == o)
        return sum(m.flow[p, o] for p in m.POOLS if p != o) == busy if len(m.POOLS) > 1 else pyo.Constraint.Skip

    if len(data.pools) > 2:
        m.source = pyo.Var(m.POOLS, bounds=(0, 1), doc="source[p]")
        index = [(p, o, k) for p in m.POOLS for o, k in decoding if o != p]
        sourced = _product(m, "sourced", index, lambda p, o, k: m.source[p])

        @m.Constraint(m.PAIRS)
        def share_in_proportion(m: pyo.ConcreteModel, p: int, o: int) -> Any:
            return m.flow[p, o] == pyo.quicksum(
                data.pools[o].decode_rate[k] / rates * sourced[p, o, k] for q, k in decoding if q == o
            )

    @m.Constraint(m.PAIRS)
    def respect_link(m: pyo.ConcreteModel, p: int, o: int) -> Any:
        return m.flow[p, o] * (data.request_kv_byte * rates / data.widest_byte_s) <= _bandwidth(m, data)

    if data.pools[0].ttft_rate is not None and len(data.pools) > 1:

        @m.Constraint(m.POOLS, m.LINKS)
        def respect_ttft(m: pyo.ConcreteModel, p: int, link: int) -> Any:
            return _leaving(m, p) <= _held(m, data, rates, p, link) + _most(data, rates, p) * (1 - m.use[link])

    if not data.metered:
        return 0.0
    _hold_at_capacity(m, data, rates)
    busy = pyo.quicksum(data.pools[p].busy_usd_per_h[k] * filled[p, k] for p, k in prefilling)
    return busy + pyo.quicksum(data.pools[p].busy_usd_per_h[k] * drained[p, k] for p, k in decoding)


def _leaving(m: pyo.ConcreteModel, p: int) -> Any:
    return pyo.quicksum(m.flow[p, o] for o in m.POOLS if o != p)


def _bandwidth(m: pyo.ConcreteModel, data: ProvisioningData) -> Any:
    return pyo.quicksum(data.link_byte_s[link] / data.widest_byte_s * m.use[link] for link in m.LINKS)


def _held(m: pyo.ConcreteModel, data: ProvisioningData, rates: float, p: int, link: int) -> Any:
    """Prefill rate of pool p that meets the TTFT limit through this link."""
    t = data.pools[p]
    assert t.ttft_rate is not None
    return _picked(m, p, np.where(t.prefill_rate > 0, t.ttft_rate[:, link], 0.0) / rates)


def _most(data: ProvisioningData, rates: float, p: int) -> float:
    return float(data.pools[p].prefill_rate.max() / rates)


def _hold_at_capacity(m: pyo.ConcreteModel, data: ProvisioningData, rates: float) -> None:
    """The split pools run at their capacity: something is tight. Needed where a lower rate would cost less."""
    limited = data.pools[0].ttft_rate is not None
    names = ["fill", "drain", *m.PAIRS, *(m.POOLS if limited else ())]
    m.tight = pyo.Var(range(len(names)), domain=pyo.Binary, doc="tight[i]")
    m.work_at_capacity = pyo.ConstraintList()
    m.work_at_capacity.add(pyo.quicksum(m.tight[i] for i in range(len(names))) >= 1)
    for i, name in enumerate(names):
        if isinstance(name, str):
            m.work_at_capacity.add((m.fill if name == "fill" else m.drain) >= m.tight[i])
        elif isinstance(name, tuple):
            used = m.flow[name] * (data.request_kv_byte * rates / data.widest_byte_s)
            m.work_at_capacity.add(used >= _bandwidth(m, data) - (1 - m.tight[i]))
        else:
            big = _most(data, rates, name)
            m.work_at_capacity.add(m.tight[i] <= _picked(m, name, data.pools[name].prefills))
            for link in m.LINKS:
                slack = big * (2 - m.tight[i] - m.use[link])
                m.work_at_capacity.add(_leaving(m, name) >= _held(m, data, rates, name, link) - slack)


def _stealing(m: pyo.ConcreteModel, data: ProvisioningData, rates: float) -> Any:
    """Flows that go wherever they serve best; busy devices cost nothing more (other studies are refused)."""
    classes = range(len(data.class_share))
    m.flow = pyo.Var(m.POOLS, m.POOLS, classes, bounds=(0, 1), doc="flow[p,o,c], scaled")
    can_prefill = [
        (p, *jc) for p, t in enumerate(data.pools) for jc in np.argwhere(np.isfinite(t.config_prefill_s)).tolist()
    ]
    can_decode = [
        (p, *jc) for p, t in enumerate(data.pools) for jc in np.argwhere(np.isfinite(t.config_decode_s)).tolist()
    ]
    m.inside = pyo.Var(can_prefill, bounds=(0, 1), doc="inside[p,j,c], scaled")
    m.outside = pyo.Var(can_decode, bounds=(0, 1), doc="outside[p,j,c], scaled")
    m.alone = pyo.Var(domain=pyo.Binary, doc="alone")
    if not data.alone_allowed:
        m.alone.fix(0)
    configs = sorted({i[:2] for i in (*can_prefill, *can_decode)})
    bought = sum(_picked(m, p, t.active) for p, t in enumerate(data.pools))

    @m.Constraint(classes)
    def serve_every_class(m: pyo.ConcreteModel, c: int) -> Any:
        total = sum(m.flow[p, o, c] for p in m.POOLS for o in m.POOLS)
        return total >= float(data.class_share[c]) * (m.rate - m.alone)

    @m.Constraint(m.POOLS, classes)
    def assign_prefill_work(m: pyo.ConcreteModel, p: int, c: int) -> Any:
        done = pyo.quicksum(m.inside[i] for i in can_prefill if i[0] == p and i[2] == c)
        return done == sum(m.flow[p, o, c] for o in m.POOLS)

    @m.Constraint(m.POOLS, classes)
    def assign_decode_work(m: pyo.ConcreteModel, o: int, c: int) -> Any:
        done = pyo.quicksum(m.outside[i] for i in can_decode if i[0] == o and i[2] == c)
        return done == sum(m.flow[p, o, c] for p in m.POOLS)

    @m.Constraint(configs)
    def respect_capacity(m: pyo.ConcreteModel, p: int, j: int) -> Any:
        t = data.pools[p]
        instances = np.where(t.config == j, t.instances, 0.0)
        unit = float(instances.max()) or 1.0  # a configuration nobody may pick has no capacity at all
        prefill = pyo.quicksum(
            t.config_prefill_s[i[1:]] * rates / unit * m.inside[i] for i in can_prefill if i[:2] == (p, j)
        )
        decode = pyo.quicksum(
            t.config_decode_s[i[1:]] * rates / unit * m.outside[i] for i in can_decode if i[:2] == (p, j)
        )
        return prefill + decode <= _picked(m, p, instances / unit)

    @m.Constraint([i for i in can_decode if data.pools[i[0]].config_decode_s[i[1:]] == 0])
    def decode_where_picked(m: pyo.ConcreteModel, p: int, j: int, c: int) -> Any:
        t = data.pools[p]
        return m.outside[p, j, c] <= _picked(m, p, (t.config == j) & t.active)

    @m.Constraint(m.PAIRS)
    def respect_link(m: pyo.ConcreteModel, p: int, o: int) -> Any:
        unit = data.widest_byte_s
        return pyo.quicksum(data.class_kv_byte[c] * rates / unit * m.flow[p, o, c] for c in classes) <= _bandwidth(
            m, data
        )

    @m.Constraint()
    def serve_alone(m: pyo.ConcreteModel) -> Any:
        return m.rate <= sum(_picked(m, p, t.alone_rate / rates) for p, t in enumerate(data.pools)) + (1 - m.alone)

    m.count_pools = pyo.ConstraintList()
    m.count_pools.add(bought <= 1 + (len(data.pools) - 1) * (1 - m.alone))
    m.count_pools.add(bought >= 2 - m.alone)
    return 0.0


def extract(m: pyo.ConcreteModel, data: ProvisioningData, space: Regimes) -> Plan:
    """The plan: the search space's number of the chosen design."""
    picks = [
        int(t.row[int(np.argmax([pyo.value(m.pick[p, k]) for k in range(len(t.row))]))])
        for p, t in enumerate(data.pools)
    ]
    link = int(np.argmax([pyo.value(m.use[link]) for link in m.LINKS]))
    return Plan(index=space.canonical(data.regime, link, picks))
