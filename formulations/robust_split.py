"""Fixed split in every scenario: roles and shares of the mix. Symbols: `robust_provisioning`."""

from __future__ import annotations

from typing import Any

import pyomo.environ as pyo

from .program import picked
from .robust_provisioning_data import RobustData


def add_split(m: pyo.ConcreteModel, data: RobustData) -> None:
    """Flows from prefill pools to decode pools, the same for all classes."""
    pools, rates = data.pools, data.most_rate
    pairs = [(p, o) for p, o in m.PAIRS if pools[p].prefills.any() and pools[o].decodes.any()]
    m.cross = pyo.Var(pairs, m.SCENARIOS, bounds=(0, 1), doc="cross[p,o,w], scaled")

    @m.Constraint(m.SCENARIOS)
    def count_served(m: pyo.ConcreteModel, w: int) -> Any:
        both = sum(picked(m, p, t.both_rate[w] / rates[w]) for p, t in enumerate(pools))
        return m.rate[w] <= pyo.quicksum(m.cross[p, o, w] for p, o in pairs) + both

    @m.Constraint(sorted({p for p, _ in pairs}), m.SCENARIOS)
    def prefill_at_capacity(m: pyo.ConcreteModel, p: int, w: int) -> Any:
        sent = pyo.quicksum(m.cross[i, o, w] for i, o in pairs if i == p)
        return sent <= picked(m, p, pools[p].prefill_rate[w] / rates[w])

    @m.Constraint(sorted({o for _, o in pairs}), m.SCENARIOS)
    def decode_at_capacity(m: pyo.ConcreteModel, o: int, w: int) -> Any:
        received = pyo.quicksum(m.cross[p, i, w] for p, i in pairs if i == o)
        return received <= picked(m, o, pools[o].decode_rate[w] / rates[w])

    @m.Constraint(pairs, m.SCENARIOS)
    def respect_pair(m: pyo.ConcreteModel, p: int, o: int, w: int) -> Any:
        most = min(float(pools[p].prefill_rate[w].max()), float(pools[o].decode_rate[w].max())) / rates[w]
        through = data.link_byte_s / (float(data.mix[w] @ data.class_kv_byte) * rates[w])
        if through.min() >= most:
            return pyo.Constraint.Skip
        return m.cross[p, o, w] <= pyo.quicksum(min(float(through[link]), most) * m.use[link] for link in m.LINKS)
