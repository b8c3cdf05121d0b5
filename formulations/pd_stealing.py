"""Work stealing: requests go wherever they serve best. Symbols and what is bought: `pd_provisioning`.

Parameters  a[p,j,c], d[p,j,c]  seconds of one instance to prefill, to decode a request of class c
            A[p,k]  stand-alone rate of an option;  v[c]  KV bytes of class c;  q[c]  share of class c
            N[p,j]     most instances of a configuration
Variables   flow[p,o,c]  requests/s routed
            inside[p,j,c], outside[p,j,c]  share of N instances that prefilling, decoding the class takes;
                       where decoding takes no time, requests/s
            alone      one pool only, binary
Subject to  sum_{p,o} flow[p,o,c] >= q[c] (rate - alone)                        serve_every_class
            sum_j N/a inside[p,j,c] = sum_o flow[p,o,c]                         assign_prefill_work
            sum_j N/d outside[o,j,c] = sum_p flow[p,o,c]                        assign_decode_work
            sum_c (inside + outside where d > 0) <= sum_{k in j} n/N pick       respect_capacity
            outside[p,j,c] <= sum_{k in j} pick   where decoding takes no time  decode_where_picked
            sum_c v[c] flow[p,o,c] <= sum_l S use[p,o,l]                        respect_link
            rate <= sum A pick + (1 - alone)                                    serve_alone
            1 + (pools - 1)(1 - alone) >= pools bought >= 2 - alone             count_pools

Prefilling takes time, a > 0, for every class. 1 suffices in serve_alone and serve_every_class, since the scaled rate
never exceeds 1.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyomo.environ as pyo
from numpy.typing import NDArray

from .pd_choice import bandwidth, picked
from .pd_provisioning_data import ProvisioningData

Floats = NDArray[np.float64]


def add_stealing(m: pyo.ConcreteModel, data: ProvisioningData, rates: float) -> None:
    """Flows that go wherever they serve best; busy devices cost nothing more (other studies are refused)."""
    classes = range(len(data.class_share))
    m.flow = pyo.Var(m.POOLS, m.POOLS, classes, bounds=(0, 1), doc="flow[p,o,c], scaled")
    most = [np.array([t.instances[t.config == j].max(initial=0.0) for j in range(len(t.config_prefill_s))])
            for t in data.pools]  # fmt: skip
    prefill, decode = (
        _rates([getattr(t, f"config_{phase}_s") for t in data.pools], most, rates) for phase in ("prefill", "decode")
    )
    m.inside = pyo.Var(list(prefill), bounds=(0, 1), doc="inside[p,j,c]")
    m.outside = pyo.Var(list(decode), bounds=(0, 1), doc="outside[p,j,c]")
    m.alone = pyo.Var(domain=pyo.Binary, doc="alone")
    if not data.alone_allowed:
        m.alone.fix(0)
    configs = sorted({i[:2] for i in (*prefill, *decode)})
    bought = sum(picked(m, p, t.active) for p, t in enumerate(data.pools))

    @m.Constraint(classes)
    def serve_every_class(m: pyo.ConcreteModel, c: int) -> Any:
        total = sum(m.flow[p, o, c] for p in m.POOLS for o in m.POOLS)
        return total >= float(data.class_share[c]) * (m.rate - m.alone)

    @m.Constraint(m.POOLS, classes)
    def assign_prefill_work(m: pyo.ConcreteModel, p: int, c: int) -> Any:
        done = pyo.quicksum(rate * m.inside[i] for i, rate in prefill.items() if i[0] == p and i[2] == c)
        return done == sum(m.flow[p, o, c] for o in m.POOLS)

    @m.Constraint(m.POOLS, classes)
    def assign_decode_work(m: pyo.ConcreteModel, o: int, c: int) -> Any:
        done = pyo.quicksum(rate * m.outside[i] for i, rate in decode.items() if i[0] == o and i[2] == c)
        return done == sum(m.flow[p, o, c] for p in m.POOLS)

    @m.Constraint(configs)
    def respect_capacity(m: pyo.ConcreteModel, p: int, j: int) -> Any:
        t = data.pools[p]
        busy = pyo.quicksum(m.inside[i] for i in prefill if i[:2] == (p, j))
        busy += pyo.quicksum(m.outside[i] for i in decode if i[:2] == (p, j) and t.config_decode_s[i[1:]] > 0)
        return busy <= picked(m, p, np.where(t.config == j, t.instances, 0.0) / most[p][j])

    @m.Constraint([i for i in decode if data.pools[i[0]].config_decode_s[i[1:]] == 0])
    def decode_where_picked(m: pyo.ConcreteModel, p: int, j: int, c: int) -> Any:
        t = data.pools[p]
        return m.outside[p, j, c] <= picked(m, p, (t.config == j) & t.active)

    @m.Constraint(m.PAIRS)
    def respect_link(m: pyo.ConcreteModel, p: int, o: int) -> Any:
        unit = data.widest_byte_s
        carried = pyo.quicksum(data.class_kv_byte[c] * rates / unit * m.flow[p, o, c] for c in classes)
        return carried <= bandwidth(m, data, p, o)

    @m.Constraint()
    def serve_alone(m: pyo.ConcreteModel) -> Any:
        return m.rate <= sum(picked(m, p, t.alone_rate / rates) for p, t in enumerate(data.pools)) + (1 - m.alone)

    m.count_pools = pyo.ConstraintList()
    m.count_pools.add(bought <= 1 + (len(data.pools) - 1) * (1 - m.alone))
    m.count_pools.add(bought >= 2 - m.alone)


def _rates(seconds: list[Floats], most: list[Floats], rates: float) -> dict[tuple[int, int, int], float]:
    """Scaled requests/s of a configuration's most instances, (pool, configuration, class); 1 where it takes no time."""
    found = {}
    for p, (s, n) in enumerate(zip(seconds, most, strict=True)):
        for j, c in np.argwhere(np.isfinite(s) & (n > 0)[:, None]).tolist():
            found[p, j, c] = float(n[j] / (s[j, c] * rates)) if s[j, c] > 0 else 1.0
    return found
