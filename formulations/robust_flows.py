"""Free routing in every scenario, by class; and devices divided anew. Symbols: `robust_provisioning`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyomo.environ as pyo

from dse.model.robust_serving import ADAPTIVE

from .program import picked
from .robust_provisioning_data import RobustData

Work = dict[tuple[int, int, int, int], float]


def add_flows(m: pyo.ConcreteModel, data: RobustData) -> None:
    """Flows that go wherever they serve best, and what does the work."""
    m.DONE = pyo.Set(initialize=[(w, c) for w, c in np.argwhere(data.mix > 0).tolist()], dimen=2)
    prefill, decode = _rates(data, "prefill"), _rates(data, "decode")
    m.flow = pyo.Var(
        [(p, o, c, w) for w, c in m.DONE for p in m.POOLS for o in m.POOLS], bounds=(0, 1), doc="flow, scaled"
    )
    m.inside = pyo.Var(list(prefill), bounds=(0, 1), doc="inside[p,j,c,w]")
    m.outside = pyo.Var(list(decode), bounds=(0, 1), doc="outside[p,j,c,w]")

    @m.Constraint(m.DONE)
    def serve_every_class(m: pyo.ConcreteModel, w: int, c: int) -> Any:
        total = pyo.quicksum(m.flow[p, o, c, w] for p in m.POOLS for o in m.POOLS)
        return total >= float(data.mix[w, c]) * m.rate[w]

    @m.Constraint(m.POOLS, m.DONE)
    def assign_prefill_work(m: pyo.ConcreteModel, p: int, w: int, c: int) -> Any:
        done = pyo.quicksum(prefill[i] * m.inside[i] for i in _of(data, prefill, p, c, w))
        return done == pyo.quicksum(m.flow[p, o, c, w] for o in m.POOLS)

    @m.Constraint(m.POOLS, m.DONE)
    def assign_decode_work(m: pyo.ConcreteModel, o: int, w: int, c: int) -> Any:
        done = pyo.quicksum(decode[i] * m.outside[i] for i in _of(data, decode, o, c, w))
        return done == pyo.quicksum(m.flow[p, o, c, w] for p in m.POOLS)

    _add_capacity(m, data, prefill, decode)
    _add_links(m, data)


def _of(data: RobustData, rates: Work, p: int, c: int, w: int) -> list[tuple[int, int, int, int]]:
    """Configurations of a pool that do a phase of a class in a scenario."""
    return [(p, int(j), c, w) for j in data.pools[p].kept if (p, int(j), c, w) in rates]


def _rates(data: RobustData, phase: str) -> Work:
    """Scaled requests/s of a configuration's most instances, (pool, configuration, class, scenario)."""
    found = {}
    for w, c in np.argwhere(data.mix > 0).tolist():
        for p, t in enumerate(data.pools):
            for j in t.kept.tolist():
                seconds, most = float(getattr(t, f"{phase}_s")[j, c]), t.most(w, j)
                if np.isfinite(seconds) and most > 0:
                    found[p, j, c, w] = most / (seconds * float(data.most_rate[w]))
    return found


def _add_capacity(m: pyo.ConcreteModel, data: RobustData, prefill: Work, decode: Work) -> None:
    """No configuration does more than its instances can."""
    adaptive = data.adaptation == ADAPTIVE
    places = sorted({(p, j, w) for p, j, _, w in (*prefill, *decode)})
    m.PLACES = pyo.Set(initialize=places, dimen=3)
    if adaptive:
        m.divide = pyo.Var(
            m.PLACES,
            domain=pyo.NonNegativeIntegers,
            bounds=lambda m, p, j, w: (0, int(data.pools[p].most(w, j))),
            doc="divide[p,j,w]",
        )

    @m.Constraint(m.PLACES)
    def respect_capacity(m: pyo.ConcreteModel, p: int, j: int, w: int) -> Any:
        t = data.pools[p]
        classes = np.flatnonzero(data.mix[w] > 0).tolist()
        busy = pyo.quicksum(m.inside[p, j, c, w] for c in classes if (p, j, c, w) in prefill)
        busy += pyo.quicksum(m.outside[p, j, c, w] for c in classes if (p, j, c, w) in decode)
        if adaptive:
            return busy <= m.divide[p, j, w] / t.most(w, j)
        return busy <= picked(m, p, np.where(t.config == j, t.instances[w], 0.0) / t.most(w, j))

    if adaptive:

        @m.Constraint(sorted({(p, w) for p, _, w in places}))
        def divide_devices(m: pyo.ConcreteModel, p: int, w: int) -> Any:
            t = data.pools[p]
            unit = float(t.usable[w].max())
            held = pyo.quicksum(
                float(t.g[j]) / unit * m.divide[p, j, w] for j in t.kept.tolist() if (p, j, w) in m.PLACES
            )
            return held <= picked(m, p, t.usable[w] / unit)


def _add_links(m: pyo.ConcreteModel, data: RobustData) -> None:
    """What crosses between two pools fits through their link."""

    @m.Constraint(m.PAIRS, m.SCENARIOS)
    def respect_link(m: pyo.ConcreteModel, p: int, o: int, w: int) -> Any:
        most = min(_most_byte_s(data, p, w, "prefill"), _most_byte_s(data, o, w, "decode"))
        if data.link_byte_s.min() >= most:
            return pyo.Constraint.Skip
        rate, classes = float(data.most_rate[w]), np.flatnonzero(data.mix[w] > 0).tolist()
        unit = min(float(data.link_byte_s.max()), most)
        carried = pyo.quicksum(float(data.class_kv_byte[c]) * rate / unit * m.flow[p, o, c, w] for c in classes)
        return carried <= pyo.quicksum(min(float(data.link_byte_s[i]), most) / unit * m.use[i] for i in m.LINKS)


def _most_byte_s(data: RobustData, p: int, w: int, phase: str) -> float:
    """KV cache of requests that a pool prefills, or decodes, in a scenario: no plan has more [byte/s]."""
    t, has = data.pools[p], data.mix[w] > 0
    found = 0.0
    for j in t.kept.tolist():
        seconds = getattr(t, f"{phase}_s")[j][has]
        able = np.isfinite(seconds)
        per_s = (data.class_kv_byte[has][able] / seconds[able]).max(initial=0.0)
        found += t.most(w, j) * float(per_s)
    return found
