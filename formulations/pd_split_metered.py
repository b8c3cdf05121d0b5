"""Split routing where busy devices cost more than idle ones: flows that pools share in proportion to capacity.

The bill depends on how busy a pool is, so a plan must run exactly at its capacity: no less, which would be
cheaper. Symbols and what is bought: `pd_provisioning`.

Variables   flow[p,o]  requests/s prefilled on p and decoded on o
            fill, drain   utilisation that all prefill, all decode pools share, in [0, 1]
            filled[p,k] = fill pick[p,k];  drained[p,k] = drain pick[p,k]
            source[p]  part of every decode pool's capacity that requests from p take, in [0, 1]
            sourced[p,o,k] = source[p] pick[o,k]
            tight[i]   what holds the split pools back, binary
Subject to  rate = sum flow + sum B pick                                        count_served
            sum_o flow[p,o] = sum_k R filled                                    prefill_at_capacity
            sum_p flow[p,o] = sum_k D drained                                   decode_at_capacity
            flow[p,o] = sum_k D[o,k] sourced[p,o,k]    (three pools or more)    share_in_proportion
            v flow[p,o] <= sum_l S use[p,o,l]                                   respect_link
            sum_o flow[p,o] <= sum_k T[p,k,l] pick + slack                      respect_ttft
                               slack = max_k R (2 - use[p,o,l] - (o decodes)), for each o
            something is tight, and what is tight holds with equality           work_at_capacity

A product of a share x in [0, 1] and a binary y is exact as z <= y, z <= x, z >= x + y - 1.
The big numbers: max_k R suffices in respect_ttft, since prefill never exceeds R; in work_at_capacity a link row
is scaled by the widest link, so 1 covers any slack, and max_k R twice covers the slack of a prefill pool.
filled makes every prefill pool equally busy, and sourced sends each pool's requests to the decode pools in
proportion to theirs, so flow[p,o] = (sum flow) (R_p / sum R) (D_o / sum D). With one pool a side it holds by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyomo.environ as pyo

from .pd_choice import bandwidth, picked, sent_to, used
from .pd_provisioning_data import ProvisioningData


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


def add_metered_split(m: pyo.ConcreteModel, data: ProvisioningData, rates: float) -> Any:
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
        both = sum(picked(m, p, t.both_rate / rates) for p, t in enumerate(data.pools))
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
        return m.flow[p, o] * (data.request_kv_byte * rates / data.widest_byte_s) <= bandwidth(m, data, p, o)

    if data.pools[0].ttft_rate is not None:
        m.respect_ttft = pyo.ConstraintList()
        for p, (o, decodes), link in _held_links(m, data):
            slack = _most(data, rates, p) * (2 - used(m, data, p, o, link) - decodes)
            m.respect_ttft.add(_leaving(m, p) <= _held(m, data, rates, p, link) + slack)

    _hold_at_capacity(m, data, rates)
    busy = pyo.quicksum(data.pools[p].busy_usd_per_h[k] * filled[p, k] for p, k in prefilling)
    return busy + pyo.quicksum(data.pools[p].busy_usd_per_h[k] * drained[p, k] for p, k in decoding)


def _held_links(m: pyo.ConcreteModel, data: ProvisioningData) -> list[tuple[int, tuple[int, Any], int]]:
    return [(p, to, link) for p in m.POOLS for to in sent_to(m, data, p) for link in m.LINKS]


def _leaving(m: pyo.ConcreteModel, p: int) -> Any:
    return pyo.quicksum(m.flow[p, o] for o in m.POOLS if o != p)


def _held(m: pyo.ConcreteModel, data: ProvisioningData, rates: float, p: int, link: int) -> Any:
    """Prefill rate of pool p that meets the TTFT limit through this link."""
    t = data.pools[p]
    held = t.prefill_rate if t.ttft_rate is None else t.ttft_rate[:, link]
    return picked(m, p, np.where(t.prefill_rate > 0, held, 0.0) / rates)


def _most(data: ProvisioningData, rates: float, p: int) -> float:
    return float(data.pools[p].prefill_rate.max() / rates)


def _hold_at_capacity(m: pyo.ConcreteModel, data: ProvisioningData, rates: float) -> None:
    """The split pools run at their capacity: something is tight. Needed where a lower rate would cost less."""
    limited = data.pools[0].ttft_rate is not None
    held = [(p, *to) for p in m.POOLS for to in sent_to(m, data, p)] if limited else []
    names = ["fill", "drain", *m.PAIRS, *held]
    m.tight = pyo.Var(range(len(names)), domain=pyo.Binary, doc="tight[i]")
    m.work_at_capacity = pyo.ConstraintList()
    m.work_at_capacity.add(pyo.quicksum(m.tight[i] for i in range(len(names))) >= 1)
    for i, name in enumerate(names):
        if isinstance(name, str):
            m.work_at_capacity.add((m.fill if name == "fill" else m.drain) >= m.tight[i])
        elif len(name) == 2:
            carried = m.flow[name] * (data.request_kv_byte * rates / data.widest_byte_s)
            m.work_at_capacity.add(carried >= bandwidth(m, data, *name) - (1 - m.tight[i]))
        else:
            p, o, decodes = name
            m.work_at_capacity.add(m.tight[i] <= picked(m, p, data.pools[p].prefills))
            m.work_at_capacity.add(m.tight[i] <= decodes)
            for link in m.LINKS:
                slack = _most(data, rates, p) * (2 - m.tight[i] - used(m, data, p, o, link))
                m.work_at_capacity.add(_leaving(m, p) >= _held(m, data, rates, p, link) - slack)
