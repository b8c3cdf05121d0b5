"""Prefill/decode provisioning: what to buy of each pool, in which role, over which link.

Coefficients come from `dse.model`: an option is one setting of a pool (count, instance size, role, batches)
with its rates, cost and power; so everything nonlinear inside one pool is in the table, and what is left
is exact. One model covers one regime (data types and routing); rates are in requests/s, divided by
`rate_scale`; cost and power by their scales, so that all rows are of order 1.

Sets        p, o in POOLS; k in OPTIONS_p; l in LINKS; (p, o) in PAIRS, p != o; c in CLASSES;
            j in CONFIGS_p, options that differ only in count
Parameters  R_pk, D_pk, B_pk, A_pk  prefill, decode, both-role and stand-alone rate of option k;
            T_pkl  prefill rate that meets the TTFT limit through link l; n_pk instances;
            S_l link bandwidth; v KV bytes per request, v_c of class c; q_c share of class c;
            a_pjc, d_pjc  seconds of one instance to prefill, to decode a request of class c;
            e_pk, h_pk  cost at idle, and more when busy; w_pk power; e_l, w_l of a link;
            u_i  bound on objective i
Variables   pick_pk   option k of pool p, binary
            use_l     link l, binary
            bought_pol  link l between p and o, >= 0
            rate      requests/s of the whole fleet, >= 0
            flow_po   requests/s prefilled on p and decoded on o (split), flow_poc per class (stealing), >= 0
            fill, drain   utilisation of all prefill, of all decode pools, in [0, 1] (split)
            filled_pk, drained_pk  fill pick_pk, drain pick_pk, in [0, 1] (split)
            source_o  part of each decode pool's capacity that requests from o take, in [0, 1]
            sourced_opk  source_o pick_pk, in [0, 1]
            inside_pjc, outside_pjc  requests/s that configuration j prefills, decodes, >= 0 (stealing)
            alone     one pool only, binary (stealing)
            tight     what holds the split part back, binary (split, where busy devices cost more)
Minimise    -W_r rate + W_c cost + W_w power, all weights > 0                               weigh_objectives
Subject to  sum_k pick_pk = 1, sum_l use_l = 1                            pick_one_option, use_one_link
            an option not listed for use beside others only alone                       keep_to_roles
            bought_pol >= prefilling_p + decoding_o + use_l - 2 (stealing: active_p + active_o)   buy_links
            rate, cost and power inside the bounds u, and the user's  respect_bounds, respect_limits, respect_minima
            rate >= half the least rate that any working plan has                    serve_something
  split     rate = sum flow + sum B_pk pick_pk                                       count_served
            sum_o flow_po = sum_k R_pk filled_pk                                        prefill_at_capacity
            sum_p flow_po = sum_k D_ok drained_ok                                       decode_at_capacity
            filled = fill pick, drained = drain pick (product of a share and a binary)         multiply_shares
            flow_po = sum_k D_ok sourced_pok, three pools or more: proportional sharing  share_in_proportion
            v flow_po <= sum_l S_l use_l                                             respect_link
            sum_o flow_po <= sum_k T_pkl pick_pk + max_k R_pk (1 - use_l)            respect_ttft
            what is tight holds with equality, and something is                         work_at_capacity
  stealing  sum_po flow_poc = q_c rate + slack of alone                                  serve_every_class
            sum_j inside_pjc = sum_o flow_poc; sum_j outside_pjc = sum_o flow_opc       assign_work
            sum_c (a_pjc inside + d_pjc outside) <= sum_{k in j} n_pk pick_pk           respect_capacity
            sum_c v_c flow_poc <= sum_l S_l use_l                                    respect_link
            rate <= sum A_pk pick_pk + U (1 - alone); alone = 1 exactly with one pool   serve_alone

filled = fill pick is exact as  filled <= pick, filled <= fill, filled >= fill + pick - 1.
The big numbers: max_k R_pk suffices in respect_ttft since prefill never exceeds R; U, the sum of every
pool's best rate, suffices in serve_alone since no fleet serves more; max_l S_l + max rate v in work_at_capacity.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyomo.environ as pyo
from numpy.typing import NDArray

from dse.model.pd_serving import System
from dse.model.serving_pool import BOTH, DECODE, PREFILL, PoolTable

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

RATE, COST, POWER = "rate", "cost", "power"
RATE_COLUMNS = ("throughput_tok_s", "requests_s", "input_tok_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolOptions:
    """One pool's options (K,); `row` is each option's row in the search space."""

    row: Ints
    active: NDArray[np.bool_]
    listed: NDArray[np.bool_]
    """May be used beside other pools."""
    prefills: NDArray[np.bool_]
    decodes: NDArray[np.bool_]
    prefill_rate: Floats
    decode_rate: Floats
    both_rate: Floats
    alone_rate: Floats
    ttft_rate: Floats | None
    """(K, L), where there is a TTFT limit."""
    idle_usd_per_h: Floats
    busy_usd_per_h: Floats
    both_busy: Floats
    power_w: Floats
    instances: Floats
    config: Ints
    config_prefill_s: Floats
    """(J, C); infinite where it cannot run."""
    config_decode_s: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvisioningData:
    """One regime in numbers. `bounds` holds what the user allows; objectives are minimised."""

    pools: Sequence[PoolOptions]
    stealing: bool
    alone_allowed: bool
    link_byte_s: Floats
    link_usd_per_h: Floats
    link_power_w: Floats
    request_kv_byte: float
    class_kv_byte: Floats
    class_share: Floats
    bounds: Mapping[str, tuple[float, float]]
    """RATE, COST, POWER -> (low, high)."""
    objectives: Sequence[str]

    @property
    def metered(self) -> bool:
        """Whether busy devices cost more than idle ones."""
        return any(bool((p.busy_usd_per_h > 0).any()) for p in self.pools)

    @property
    def scale(self) -> dict[str, float]:
        """Largest rate, cost and power that the options reach."""
        rate = sum(float(_best_rate(p)) for p in self.pools)
        cost = sum(float((p.idle_usd_per_h + p.busy_usd_per_h).max()) for p in self.pools)
        power = sum(float(p.power_w.max()) for p in self.pools)
        n_pairs = len(self.pools) * (len(self.pools) - 1) / 2
        return {
            RATE: rate or 1.0,
            COST: cost + n_pairs * float(self.link_usd_per_h.max()) or 1.0,
            POWER: power + n_pairs * float(self.link_power_w.max()) or 1.0,
        }


def refusal(system: System, objectives: Sequence[str], bounds: Mapping[str, tuple[float, float]]) -> str:
    """Why this formulation cannot answer a study exactly; empty where it can."""
    known = (*RATE_COLUMNS, "cost_usd_per_h", "power_w")
    strange = [o for o in objectives if o not in known]
    if strange:
        return f"milp: objective {', '.join(strange)} is not linear in the plan; it knows {', '.join(known)}"
    if sum(o in RATE_COLUMNS for o in objectives) > 1:
        return "milp: the throughput objectives are multiples of one another; keep one of them"
    strange = [b for b in bounds if b not in known and not b.startswith("n_")]
    if strange:
        return f"milp: a limit on {', '.join(strange)} is not linear in the plan; it knows {', '.join(known)} and n_<pool>"
    capped = [b for b in bounds if b in RATE_COLUMNS and np.isfinite(bounds[b][1])]
    if capped:
        return f"milp: an upper limit on {', '.join(capped)} would let a plan run below its capacity"
    if not system.mix.steps.any():
        return "milp: no request has a decode step, so decode capacity has no bound to scale by"
    if system.stealing and np.isfinite(system.limits.ttft_p99_s):
        return "milp: a TTFT limit under work stealing depends on the flows in a nonlinear way"
    if system.stealing and any(bool((t.bill.busy_usd_per_h > 0).any()) for t in system.tables):
        return "milp: under work stealing the energy bill of ownership or owned devices depends on the flows at capacity"
    return ""


def provisioning_data(
    system: System,
    names: Sequence[str],
    listed: Sequence[NDArray[np.bool_]],
    *,
    alone_allowed: bool,
    objectives: Sequence[str],
    bounds: Mapping[str, tuple[float, float]],
) -> ProvisioningData | None:
    """One regime's tables as coefficients; None where some pool has no option left."""
    per_request = {"requests_s": 1.0, "throughput_tok_s": system.output_tok, "input_tok_s": system.input_tok}
    limits = {RATE: (0.0, np.inf), COST: (-np.inf, np.inf), POWER: (-np.inf, np.inf)}
    for column, (low, high) in bounds.items():
        if column in RATE_COLUMNS:
            limits[RATE] = (max(limits[RATE][0], low / per_request[column]), np.inf)
        elif column in ("cost_usd_per_h", "power_w"):
            limits[COST if column == "cost_usd_per_h" else POWER] = (low, high)
    pools = [
        _pool_options(t, ok, system, bounds.get(f"n_{name}", (-np.inf, np.inf)))
        for t, ok, name in zip(system.tables, listed, names, strict=True)
    ]
    if any(not len(p.row) for p in pools):
        return None
    axis = {**dict.fromkeys(RATE_COLUMNS, RATE), "cost_usd_per_h": COST, "power_w": POWER}
    return ProvisioningData(
        pools=pools,
        stealing=system.stealing,
        alone_allowed=alone_allowed,
        link_byte_s=np.where(np.isfinite(system.links.byte_s), system.links.byte_s, 1e18),
        link_usd_per_h=system.links.usd_per_h,
        link_power_w=system.links.power_w * system.site.pue,
        request_kv_byte=system.request_kv_byte,
        class_kv_byte=system.class_kv_byte,
        class_share=system.mix.share,
        bounds=limits,
        objectives=[axis[o] for o in objectives],
    )


def _pool_options(
    t: PoolTable, listed: NDArray[np.bool_], system: System, counts: tuple[float, float]
) -> PoolOptions:
    role = t.settings.role
    able = t.feasible & (t.settings.n >= counts[0]) & (t.settings.n <= counts[1])
    row = np.flatnonzero(able)
    limited = np.isfinite(system.limits.ttft_p99_s)
    return PoolOptions(
        row=row,
        active=t.active[row],
        listed=(listed | ~t.active)[row],
        prefills=(t.active & (role == PREFILL))[row],
        decodes=(t.active & (role == DECODE))[row],
        prefill_rate=t.prefill_rate[row],
        decode_rate=t.decode_rate[row],
        both_rate=t.both_rate[row],
        alone_rate=np.where(t.active, t.alone_rate, 0.0)[row],
        ttft_rate=t.prefill_rate_ttft[row] if limited else None,
        idle_usd_per_h=t.bill.idle_usd_per_h[row],
        busy_usd_per_h=t.bill.busy_usd_per_h[row],
        both_busy=np.where(role == BOTH, t.alone_busy, 0.0)[row],
        power_w=t.bill.provisioned_w[row],
        instances=t.instances[row],
        config=t.config[row],
        config_prefill_s=t.prefill.request_s[t.config_row],
        config_decode_s=t.decode.request_s[t.config_row],
    )


def least_rate(data: ProvisioningData) -> float:
    """A rate below that of every plan that serves anything: capacities and links are all at least this."""

    def smallest(*arrays: Floats) -> float:
        positive = np.concatenate([a[np.isfinite(a) & (a > 0)].reshape(-1) for a in arrays])
        return float(positive.min(initial=np.inf))

    through_link = smallest(data.link_byte_s) / data.request_kv_byte
    if data.stealing:
        slowest_s = sum(
            float(np.where(np.isfinite(s), s, 0.0).max()) for p in data.pools for s in (p.config_prefill_s, p.config_decode_s)
        )
        capacity = smallest(*(p.instances for p in data.pools)) / slowest_s
        alone = smallest(*(p.alone_rate for p in data.pools))
        return 0.5 * min(capacity, alone, through_link)
    rates = [r for p in data.pools for r in (p.prefill_rate, p.decode_rate, p.both_rate)]
    held = [p.ttft_rate for p in data.pools if p.ttft_rate is not None]
    return 0.5 * min(smallest(*rates, *held), through_link)


def _best_rate(p: PoolOptions) -> float:
    """Most requests/s that any option could take part in, whatever the other pools do."""
    with np.errstate(divide="ignore"):
        per_instance = 1.0 / np.minimum(p.config_prefill_s.min(axis=1), np.where(p.config_decode_s > 0, p.config_decode_s, np.inf).min(axis=1))
    stolen = p.instances * per_instance[p.config]
    return float(np.max([p.prefill_rate.max(), p.decode_rate.max(), p.both_rate.max(), p.alone_rate.max(), stolen.max()]))


@dataclass(frozen=True, slots=True)
class Plan:
    """A chosen design: the search-space row of each pool, and the link."""

    rows: tuple[int, ...]
    link: int


def build_model(data: ProvisioningData) -> pyo.ConcreteModel:
    """The regime's model; bounds on objectives are mutable parameters `upper`."""
    m = pyo.ConcreteModel(name="pd_provisioning")
    n = len(data.pools)
    scale = data.scale
    m.POOLS = pyo.RangeSet(0, n - 1)
    m.LINKS = pyo.RangeSet(0, len(data.link_byte_s) - 1)
    m.PAIRS = pyo.Set(initialize=[(p, o) for p in range(n) for o in range(n) if p != o], dimen=2)
    m.OPTIONS = pyo.Set(initialize=[(p, k) for p, t in enumerate(data.pools) for k in range(len(t.row))], dimen=2)
    m.pick = pyo.Var(m.OPTIONS, domain=pyo.Binary, doc="pick_pk")
    m.use = pyo.Var(m.LINKS, domain=pyo.Binary, doc="use_l")
    m.UNORDERED = pyo.Set(initialize=[(p, o) for p in range(n) for o in range(p + 1, n)], dimen=2)
    m.bought = pyo.Var(m.UNORDERED, m.LINKS, bounds=(0, 1), doc="bought_pol")
    m.rate = pyo.Var(bounds=(0, 1), doc="rate / rate_scale")

    def picked(p: int, values: Floats) -> pyo.Expression:
        return sum(float(v) * m.pick[p, k] for k, v in enumerate(values) if v)

    @m.Constraint(m.POOLS)
    def pick_one_option(m: pyo.ConcreteModel, p: int) -> object:
        return sum(m.pick[p, k] for k in range(len(data.pools[p].row))) == 1

    @m.Constraint()
    def use_one_link(m: pyo.ConcreteModel) -> object:
        return sum(m.use[link] for link in m.LINKS) == 1

    @m.Constraint(m.PAIRS)
    def keep_to_roles(m: pyo.ConcreteModel, p: int, o: int) -> object:
        unlisted = picked(p, (~data.pools[p].listed).astype(float))
        if isinstance(unlisted, (int, float)):
            return pyo.Constraint.Skip
        return unlisted <= 1 - picked(o, data.pools[o].active.astype(float))

    @m.Constraint(m.PAIRS, m.LINKS)
    def buy_links(m: pyo.ConcreteModel, p: int, o: int, link: int) -> object:
        first, second = data.pools[p], data.pools[o]
        if data.stealing:
            ends = picked(p, first.active.astype(float)) + picked(o, second.active.astype(float))
        else:
            ends = picked(p, first.prefills.astype(float)) + picked(o, second.decodes.astype(float))
        return m.bought[min(p, o), max(p, o), link] >= ends + m.use[link] - 2

    served = _stealing(m, data, scale) if data.stealing else _split(m, data, scale)
    metered_cost = served

    @m.Expression()
    def cost(m: pyo.ConcreteModel) -> object:
        links = sum(float(data.link_usd_per_h[link]) * m.bought[p, o, link] for p, o in m.UNORDERED for link in m.LINKS)
        fixed = sum(picked(p, t.idle_usd_per_h + t.busy_usd_per_h * t.both_busy) for p, t in enumerate(data.pools))
        return (fixed + links + metered_cost) / scale[COST]

    @m.Expression()
    def power(m: pyo.ConcreteModel) -> object:
        links = sum(float(data.link_power_w[link]) * m.bought[p, o, link] for p, o in m.UNORDERED for link in m.LINKS)
        return (sum(picked(p, t.power_w) for p, t in enumerate(data.pools)) + links) / scale[POWER]

    quantities = {RATE: m.rate, COST: m.cost, POWER: m.power}
    m.OBJECTIVES = pyo.Set(initialize=list(data.objectives))
    m.upper = pyo.Param(m.OBJECTIVES, mutable=True, initialize=2.0, doc="u_i on the scaled, minimised objective")
    m.minimised = pyo.Expression(
        m.OBJECTIVES, rule=lambda m, i: -quantities[i] if i == RATE else quantities[i]
    )

    @m.Constraint(m.OBJECTIVES)
    def respect_bounds(m: pyo.ConcreteModel, i: str) -> object:
        return m.minimised[i] <= m.upper[i]

    @m.Constraint([i for i in quantities if np.isfinite(data.bounds.get(i, (0.0, np.inf))[1])])
    def respect_limits(m: pyo.ConcreteModel, i: str) -> object:
        return quantities[i] <= data.bounds[i][1] / scale[i]

    @m.Constraint([i for i in quantities if data.bounds.get(i, (-np.inf, 0.0))[0] > 0])
    def respect_minima(m: pyo.ConcreteModel, i: str) -> object:
        return quantities[i] >= data.bounds[i][0] / scale[i]

    m.serve_something = pyo.Constraint(expr=m.rate >= least_rate(data) / scale[RATE])

    @m.Objective(doc="any positive weights give a non-dominated point inside the bounds")
    def weigh_objectives(m: pyo.ConcreteModel) -> object:
        # a small price on rate even where it is no objective, so that a plan reports its capacity
        bonus = 0.0 if RATE in data.objectives else 1e-3 * m.rate
        return sum(m.minimised[i] for i in m.OBJECTIVES) - bonus

    return m


def _split(m: pyo.ConcreteModel, data: ProvisioningData, scale: Mapping[str, float]) -> object:
    """Flows that pools share in proportion to capacity; returns the cost of being busy."""
    rates = scale[RATE]
    m.flow = pyo.Var(m.PAIRS, bounds=(0, 1), doc="flow_po / rate_scale")
    m.fill = pyo.Var(bounds=(0, 1), doc="fill")
    m.drain = pyo.Var(bounds=(0, 1), doc="drain")
    prefilling = [(p, k) for p, k in m.OPTIONS if data.pools[p].prefill_rate[k] > 0]
    decoding = [(p, k) for p, k in m.OPTIONS if data.pools[p].decode_rate[k] > 0]
    m.filled = pyo.Var(prefilling, bounds=(0, 1), doc="filled_pk")
    m.drained = pyo.Var(decoding, bounds=(0, 1), doc="drained_pk")
    _multiply(m, "filled", prefilling, m.fill, m.filled)
    _multiply(m, "drained", decoding, m.drain, m.drained)

    def leaves(p: int) -> object:
        return sum(m.flow[p, o] for o in m.POOLS if o != p)

    @m.Constraint()
    def count_served(m: pyo.ConcreteModel) -> object:
        both = sum(float(t.both_rate[k] / rates) * m.pick[p, k] for p, t in enumerate(data.pools) for k in range(len(t.row)) if t.both_rate[k])
        return m.rate == sum(m.flow[pair] for pair in m.PAIRS) + both

    @m.Constraint(m.POOLS)
    def prefill_at_capacity(m: pyo.ConcreteModel, p: int) -> object:
        capacity = sum(float(data.pools[p].prefill_rate[k] / rates) * m.filled[p, k] for q, k in prefilling if q == p)
        return leaves(p) == capacity if len(data.pools) > 1 else pyo.Constraint.Skip

    @m.Constraint(m.POOLS)
    def decode_at_capacity(m: pyo.ConcreteModel, o: int) -> object:
        capacity = sum(float(data.pools[o].decode_rate[k] / rates) * m.drained[o, k] for q, k in decoding if q == o)
        return sum(m.flow[p, o] for p in m.POOLS if p != o) == capacity if len(data.pools) > 1 else pyo.Constraint.Skip

    if len(data.pools) > 2:
        m.source = pyo.Var(m.POOLS, bounds=(0, 1), doc="source_o")
        sourced = [(o, p, k) for o in m.POOLS for p, k in decoding if o != p]
        m.sourced = pyo.Var(sourced, bounds=(0, 1), doc="sourced_opk")
        m.sourced_below_pick = pyo.Constraint(sourced, rule=lambda m, o, p, k: m.sourced[o, p, k] <= m.pick[p, k])
        m.sourced_below_source = pyo.Constraint(sourced, rule=lambda m, o, p, k: m.sourced[o, p, k] <= m.source[o])
        m.sourced_above = pyo.Constraint(
            sourced, rule=lambda m, o, p, k: m.sourced[o, p, k] >= m.source[o] + m.pick[p, k] - 1
        )

        @m.Constraint(m.PAIRS)
        def share_in_proportion(m: pyo.ConcreteModel, p: int, o: int) -> object:
            return m.flow[p, o] == sum(
                float(data.pools[o].decode_rate[k] / rates) * m.sourced[p, o, k] for q, k in decoding if q == o
            )

    widest = float(data.link_byte_s[np.isfinite(data.link_byte_s)].max(initial=1.0))

    @m.Constraint(m.PAIRS)
    def respect_link(m: pyo.ConcreteModel, p: int, o: int) -> object:
        return m.flow[p, o] * (data.request_kv_byte * rates / widest) <= sum(
            float(data.link_byte_s[link] / widest) * m.use[link] for link in m.LINKS
        )

    if data.pools[0].ttft_rate is not None and len(data.pools) > 1:

        @m.Constraint(m.POOLS, m.LINKS)
        def respect_ttft(m: pyo.ConcreteModel, p: int, link: int) -> object:
            t = data.pools[p]
            assert t.ttft_rate is not None
            held = sum(float(t.ttft_rate[k, link] / rates) * m.pick[p, k] for q, k in prefilling if q == p)
            return leaves(p) <= held + float(t.prefill_rate.max() / rates) * (1 - m.use[link])

    if not data.metered:
        return 0.0
    _hold_at_capacity(m, data, rates, widest, leaves)
    busy = sum(float(data.pools[p].busy_usd_per_h[k]) * m.filled[p, k] for p, k in prefilling)
    return busy + sum(float(data.pools[p].busy_usd_per_h[k]) * m.drained[p, k] for p, k in decoding)


def _multiply(m: pyo.ConcreteModel, name: str, index: list[tuple[int, int]], share: pyo.Var, product: pyo.Var) -> None:
    """product_pk = share pick_pk, exact for a share in [0, 1] and a binary pick."""
    m.add_component(f"{name}_below_pick", pyo.Constraint(index, rule=lambda m, p, k: product[p, k] <= m.pick[p, k]))
    m.add_component(f"{name}_below_share", pyo.Constraint(index, rule=lambda m, p, k: product[p, k] <= share))
    m.add_component(
        f"{name}_above", pyo.Constraint(index, rule=lambda m, p, k: product[p, k] >= share + m.pick[p, k] - 1)
    )


def _hold_at_capacity(m: pyo.ConcreteModel, data: ProvisioningData, rates: float, widest: float, leaves: object) -> None:
    """The split part runs at its capacity: something is tight. Needed where a lower rate would cost less."""
    n_links = len(data.link_byte_s)
    ttft = data.pools[0].ttft_rate is not None
    names = ["fill", "drain"] + [("link", p, o) for p, o in m.PAIRS] + ([("ttft", p) for p in m.POOLS] if ttft else [])
    m.tight = pyo.Var(range(len(names)), domain=pyo.Binary, doc="tight")
    m.work_at_capacity = pyo.ConstraintList()
    m.work_at_capacity.add(sum(m.tight[i] for i in range(len(names))) >= 1)
    for i, name in enumerate(names):
        if name == "fill":
            m.work_at_capacity.add(m.fill >= m.tight[i])
        elif name == "drain":
            m.work_at_capacity.add(m.drain >= m.tight[i])
        elif name[0] == "link":
            _, p, o = name
            room = sum(float(data.link_byte_s[link] / widest) * m.use[link] for link in range(n_links))
            m.work_at_capacity.add(m.flow[p, o] * (data.request_kv_byte * rates / widest) >= room - (1 - m.tight[i]))
        else:
            p, t = name[1], data.pools[name[1]]
            assert t.ttft_rate is not None
            for link in range(n_links):
                held = sum(float(t.ttft_rate[k, link] / rates) * m.pick[p, k] for k in range(len(t.row)) if t.prefill_rate[k] > 0)
                big = float(t.prefill_rate.max() / rates)
                m.work_at_capacity.add(leaves(p) >= held - big * (2 - m.tight[i] - m.use[link]))  # type: ignore[operator]
                m.work_at_capacity.add(m.tight[i] <= sum(m.pick[p, k] for k in range(len(t.row)) if t.prefill_rate[k] > 0))


def _stealing(m: pyo.ConcreteModel, data: ProvisioningData, scale: Mapping[str, float]) -> object:
    """Flows that go wherever they serve best; returns no cost of being busy (metered studies are refused)."""
    rates = scale[RATE]
    n_classes = len(data.class_share)
    m.CLASSES = pyo.RangeSet(0, n_classes - 1)
    m.flow = pyo.Var(m.POOLS, m.POOLS, m.CLASSES, bounds=(0, 1), doc="flow_poc / rate_scale")
    m.alone = pyo.Var(domain=pyo.Binary, doc="alone")
    prefills = [(p, j, c) for p, t in enumerate(data.pools) for j, c in np.argwhere(np.isfinite(t.config_prefill_s)).tolist()]
    decodes = [(p, j, c) for p, t in enumerate(data.pools) for j, c in np.argwhere(np.isfinite(t.config_decode_s)).tolist()]
    m.inside = pyo.Var(prefills, bounds=(0, 1), doc="inside_pjc / rate_scale")
    m.outside = pyo.Var(decodes, bounds=(0, 1), doc="outside_pjc / rate_scale")
    active = sum(m.pick[p, k] for p, t in enumerate(data.pools) for k in range(len(t.row)) if t.active[k])
    n = len(data.pools)

    @m.Constraint(m.CLASSES)
    def serve_every_class(m: pyo.ConcreteModel, c: int) -> object:
        total = sum(m.flow[p, o, c] for p in m.POOLS for o in m.POOLS)
        return total >= float(data.class_share[c]) * m.rate - float(data.class_share[c]) * m.alone

    @m.Constraint(m.POOLS, m.CLASSES)
    def assign_prefill_work(m: pyo.ConcreteModel, p: int, c: int) -> object:
        return sum(m.inside[i] for i in prefills if i[0] == p and i[2] == c) == sum(m.flow[p, o, c] for o in m.POOLS)

    @m.Constraint(m.POOLS, m.CLASSES)
    def assign_decode_work(m: pyo.ConcreteModel, o: int, c: int) -> object:
        return sum(m.outside[i] for i in decodes if i[0] == o and i[2] == c) == sum(m.flow[p, o, c] for p in m.POOLS)

    configs = [(p, j) for p, t in enumerate(data.pools) for j in range(len(t.config_prefill_s))]

    @m.Constraint(configs)
    def respect_capacity(m: pyo.ConcreteModel, p: int, j: int) -> object:
        t = data.pools[p]
        members = [k for k in range(len(t.row)) if t.config[k] == j]
        largest = max((float(t.instances[k]) for k in members), default=0.0)
        if not largest:
            return sum(m.inside[i] for i in prefills if i[:2] == (p, j)) + sum(m.outside[i] for i in decodes if i[:2] == (p, j)) == 0
        work = sum(float(t.config_prefill_s[j, i[2]] * rates / largest) * m.inside[i] for i in prefills if i[:2] == (p, j))
        work += sum(float(t.config_decode_s[j, i[2]] * rates / largest) * m.outside[i] for i in decodes if i[:2] == (p, j))
        return work <= sum(float(t.instances[k] / largest) * m.pick[p, k] for k in members)

    @m.Constraint(decodes)
    def decode_where_picked(m: pyo.ConcreteModel, p: int, j: int, c: int) -> object:
        # decoding that takes no time (one output token) must still be at a pool that is there
        t = data.pools[p]
        if t.config_decode_s[j, c] > 0:
            return pyo.Constraint.Skip
        return m.outside[p, j, c] <= sum(m.pick[p, k] for k in range(len(t.row)) if t.config[k] == j and t.active[k])

    widest = float(data.link_byte_s[np.isfinite(data.link_byte_s)].max(initial=1.0))

    @m.Constraint(m.PAIRS)
    def respect_link(m: pyo.ConcreteModel, p: int, o: int) -> object:
        moved = sum(float(data.class_kv_byte[c] * rates / widest) * m.flow[p, o, c] for c in m.CLASSES)
        return moved <= sum(float(data.link_byte_s[link] / widest) * m.use[link] for link in m.LINKS)

    @m.Constraint()
    def serve_alone(m: pyo.ConcreteModel) -> object:
        capacity = sum(float(t.alone_rate[k] / rates) * m.pick[p, k] for p, t in enumerate(data.pools) for k in range(len(t.row)) if t.alone_rate[k])
        return m.rate <= capacity + (1 - m.alone)

    m.alone_means_one = pyo.Constraint(expr=active <= 1 + (n - 1) * (1 - m.alone))
    m.one_means_alone = pyo.Constraint(expr=active >= 2 - m.alone)
    if not data.alone_allowed:
        m.alone.fix(0)
    return 0.0


def extract(m: pyo.ConcreteModel, data: ProvisioningData) -> Plan:
    """The chosen options, as rows of the search space, and the link."""
    rows = []
    for p, t in enumerate(data.pools):
        weights = [pyo.value(m.pick[p, k]) for k in range(len(t.row))]
        rows.append(int(t.row[int(np.argmax(weights))]))
    uses = [pyo.value(m.use[link]) for link in m.LINKS]
    return Plan(rows=tuple(rows), link=int(np.argmax(uses)))
