"""Split routing: prefill and decode pools share their work in proportion to capacity. Symbols: `pd_provisioning`.

With rho = sum_p R_p and delta = sum_o D_o of what is picked, a plan's rate through the split pools is

    crossing = min(rho, delta, min_p T_p rho/R_p, min_{p,o} S/v rho delta/(R_p D_o))

for the flow from p to o is crossing (R_p/rho) (D_o/delta). The first three are linear in the picks. The last is a
product, and seldom binds: a pair whose R_p or D_o is below S/v never fills its link. Its rows are added for the
pairs that a plan overloads (`overloaded_pairs`), which is exact: a plan without overloaded pairs meets all rows,
and there are finitely many.

Variables   crossing   requests/s prefilled on one pool and decoded on another
            over[p]    prefill rate of the pools beside p, sum_{q != p} R pick
            spread[p,q,k] = over[p] pick[q,k]  for decode options of pools q beside p
Subject to  rate = crossing + sum B pick                                        count_served
            crossing <= sum R pick                                              prefill_at_capacity
            crossing <= sum D pick                                              decode_at_capacity
            crossing <= sum_l S/v use[p,o,l]            (two pools)             respect_link
            crossing <= T[p,k,l] (1 + over[p]/R[p,k]) + (3 - pick[p,k] - use[p,o,l] - (o decodes))   respect_ttft
            crossing <= S/v (1 + over[p]/R + sum_{q != p, o} D pick/D' + sum D spread/(R D'))
                        + (3 - [R_p >= R] - [D_o >= D'] - [link of p and o <= S])          respect_pair
            spread <= over[p],                                                  spread_with_over
            spread <= (most prefill of pools beside p and q) pick[q,k]          spread_with_pick

respect_pair, written for an overloaded pair's R and D' and its link's S, holds for every pick of at least R and D'
over a link of at most S: a larger share fills the link sooner. [..] sums the picks that it speaks of. 1 suffices as
the big number, since the scaled crossing never exceeds 1. spread may lie below the product, never above it, which
only tightens a row that binds, and the search maximises what the row bounds.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyomo.environ as pyo

from .pd_choice import link_taken, picked, sent_to, used
from .pd_provisioning_data import RATE, ProvisioningData

OVERLOAD_FRAC = 1e-9
"""A link that carries more than this share beyond its bandwidth is overloaded: less is the solver's tolerance."""


class PairRow(NamedTuple):
    """What a row of respect_pair is written for: a pair's rates [requests/s] and its link."""

    prefill_pool: int
    decode_pool: int
    link: int
    prefill_requests_s: float
    decode_requests_s: float


def add_split(m: pyo.ConcreteModel, data: ProvisioningData) -> None:
    """The rate of split pools, but for pairs that overload their link."""
    rates = data.scale[RATE]
    pools = data.pools
    m.crossing = pyo.Var(bounds=(0, 1), doc="crossing, scaled")

    @m.Constraint()
    def count_served(m: pyo.ConcreteModel) -> Any:
        return m.rate == m.crossing + sum(picked(m, p, t.both_rate / rates) for p, t in enumerate(pools))

    @m.Constraint()
    def prefill_at_capacity(m: pyo.ConcreteModel) -> Any:
        return m.crossing <= sum(picked(m, p, t.prefill_rate / rates) for p, t in enumerate(pools))

    @m.Constraint()
    def decode_at_capacity(m: pyo.ConcreteModel) -> Any:
        return m.crossing <= sum(picked(m, p, t.decode_rate / rates) for p, t in enumerate(pools))

    if len(pools) == 2:

        @m.Constraint()
        def respect_link(m: pyo.ConcreteModel) -> Any:
            return m.crossing <= pyo.quicksum(_link_rate(data, link) * used(m, data, 0, 1, link) for link in m.LINKS)

    m.over = pyo.Expression(m.POOLS, rule=lambda m, p: _beside(m, data, p))
    _add_ttft(m, data, rates)
    m.SPREADS = pyo.Set(dimen=3)
    m.spread = pyo.Var(m.SPREADS, bounds=(0, None), dense=False, doc="spread[p,q,k], scaled")
    m.spread_with_over, m.spread_with_pick = pyo.ConstraintList(), pyo.ConstraintList()
    m.respect_pair = pyo.ConstraintList()
    m.rows_of_pairs = []


def _link_rate(data: ProvisioningData, link: int) -> float:
    """Requests/s that a link carries, scaled."""
    return float(data.link_byte_s[link] / (data.request_kv_byte * data.scale[RATE]))


def _beside(m: pyo.ConcreteModel, data: ProvisioningData, p: int) -> Any:
    """Prefill rate of the pools beside p, scaled."""
    rates = data.scale[RATE]
    return pyo.quicksum(picked(m, q, t.prefill_rate / rates) for q, t in enumerate(data.pools) if q != p)


def _add_ttft(m: pyo.ConcreteModel, data: ProvisioningData, rates: float) -> None:
    """The share of each prefill pool stays within what meets the TTFT limit."""
    held = [
        (p, int(k), link)
        for p, t in enumerate(data.pools)
        if t.ttft_rate is not None
        for link in m.LINKS
        for k in np.flatnonzero((t.prefill_rate > 0) & (t.ttft_rate[:, link] < t.prefill_rate))
    ]

    m.respect_ttft = pyo.ConstraintList()
    for p, k, link in held:
        held_rate = data.pools[p].ttft_rate
        most = 0.0 if held_rate is None else float(held_rate[k, link] / rates)
        frac = most / float(data.pools[p].prefill_rate[k] / rates)
        for o, decodes in sent_to(m, data, p):
            speaks = m.pick[p, k] + used(m, data, p, o, link) + decodes
            m.respect_ttft.add(m.crossing <= most + frac * m.over[p] + (3 - speaks))


def overloaded_pairs(m: pyo.ConcreteModel, data: ProvisioningData) -> list[PairRow]:
    """Pairs whose link the plan in the model overloads."""
    chosen = [int(np.argmax([pyo.value(m.pick[p, k]) for k in range(len(t.row))])) for p, t in enumerate(data.pools)]
    prefill = np.array([t.prefill_rate[k] for t, k in zip(data.pools, chosen, strict=True)])
    decode = np.array([t.decode_rate[k] for t, k in zip(data.pools, chosen, strict=True)])
    if len(data.pools) < 3 or not prefill.any() or not decode.any():
        return []
    flow = pyo.value(m.crossing) * np.outer(prefill / prefill.sum(), decode / decode.sum())
    links = {(p, o): link_taken(m, data, p, o) for p, o in m.PAIRS}
    return [
        PairRow(p, o, link, float(prefill[p]), float(decode[o]))
        for (p, o), link in links.items()
        if flow[p, o] > _link_rate(data, link) * (1.0 + OVERLOAD_FRAC)
    ]


def add_pair(m: pyo.ConcreteModel, data: ProvisioningData, row: PairRow) -> None:
    """respect_pair for one pair's rates and link."""
    p, o, pools, rates = row.prefill_pool, row.decode_pool, data.pools, data.scale[RATE]
    carried = _link_rate(data, row.link)
    others = [q for q in range(len(pools)) if q not in (p, o)]
    beside = pyo.quicksum(picked(m, q, pools[q].decode_rate / rates) for q in others)
    product = pyo.quicksum(
        float(pools[q].decode_rate[k] / rates) * _spread(m, data, (p, q, int(k)))
        for q in others
        for k in np.flatnonzero(pools[q].decode_rate > 0)
    )
    speaks = (
        picked(m, p, pools[p].prefill_rate >= row.prefill_requests_s)
        + picked(m, o, pools[o].decode_rate >= row.decode_requests_s)
        + pyo.quicksum(used(m, data, p, o, i) for i in m.LINKS if _link_rate(data, i) <= carried)
    )
    prefill, decode = row.prefill_requests_s / rates, row.decode_requests_s / rates
    share = carried + carried / prefill * m.over[p] + carried / decode * beside + carried / prefill / decode * product
    m.rows_of_pairs.append((p, o))
    m.respect_pair.add(m.crossing <= share + 3 - speaks)


def _spread(m: pyo.ConcreteModel, data: ProvisioningData, index: tuple[int, int, int]) -> Any:
    """The variable spread[p,q,k], made when first asked for."""
    if index not in m.SPREADS:
        p, q, k = index
        m.SPREADS.add(index)
        others = (t.prefill_rate.max() for i, t in enumerate(data.pools) if i not in (p, q))
        most = float(sum(others) / data.scale[RATE])
        m.spread_with_over.add(m.spread[index] <= m.over[p])
        m.spread_with_pick.add(m.spread[index] <= most * m.pick[q, k])
    return m.spread[index]
