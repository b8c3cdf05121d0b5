"""Data-parallel training: which pools, how many devices, whose share of the batch, over which link.

One program covers one regime (data type, recompute mode, global batch). Time, cost and power are divided by the
largest that the options reach. The staircase of ceil(b/r) samples and ceil(p/m) micro-steps is exact: both are
integers, and time, which they lengthen, is minimised or limited from above.

Sets        POOLS p;  OPTIONS (p, k): settings of a pool, among them not to buy it;  STATES (n, o, l): n pools
            work, o are bought, over link l;  LEVELS (p, k, q): a micro-step of q samples of measured time
Parameters  G samples in the global batch;  r[p,k] replicas, M[p,k] samples that fit, at most G
            P[p,k] = ceil(M/r), K[p,k] = ceil(P/m)  most samples, micro-steps of a replica
            first, sample, micro [p,k]  time of the first sample per replica, of each more, of a micro-step more
            last[p,k,q]  time of q samples per replica in one micro-step, all that is paid once inside
            exchange, floor [n,l]  exposed and whole exchange of n pools
            usd, watt [p,k], and [l] of a link;  ring[o]  links between o pools
Variables   pick[p,k]  option k of pool p, binary;  run[p,k]  it has a share, in [0, 1];  work[p]  binary
            state[n,o,l]  binary
            more[p,k], steps[p,k]  samples per replica beyond the first, micro-steps beyond the first, integer
            more_frac, steps_frac [p,k]  the same, over the most there can be, in [0, 1]
            level[p,k,q]  the last micro-step has q samples, binary
            share[p]  of the batch, in [0, 1];  step  time of the step, in [0, 1]
Minimise    step, cost and power as the frontier search weighs them, within its bounds and the user's limits:
            see `program`, which adds them
Subject to  sum_k pick[p,k] = 1                                                 pick_one_option
            run[p,k] <= pick[p,k]                                               run_what_is_bought
            sum_k run[p,k] = work[p]                                            run_where_it_works
            sum state = 1                                                       be_in_one_state
            sum_p work[p] = sum n state                                         count_working
            sum_{p, k bought} pick = sum o state                                count_bought
            more / (P - 1) = more_frac <= run                                   measure_more, hold_more
            steps / (K - 1) = steps_frac <= run                                 measure_steps, hold_steps
            steps >= more / m - (1 - 1/m) run                                   step_often_enough
            sum_q level[p,k,q] = run[p,k]                                       end_at_one_level
            share[p] <= sum_k r (run + more) / G     measured: r (m steps + sum_q q level) / G     fill_replicas
            share[p] <= sum_k M run / G                                         respect_memory
            sum_p share[p] >= 1                                                 share_the_batch
            step >= sum_k (first run + sample more + micro steps) + sum exchange state              wait_for_pools
                                                     measured: sum_q last[q] level + micro steps
            step >= sum floor state                                             wait_for_links
            busy time of option k <= upper[time] run[p,k]    where time is an objective    end_in_time

work is binary and one option is picked, so run is the product of the two: 0, or pick where the pool works.
The big numbers are the integers' own bounds: P and K follow from M <= G, and beyond G no sample is left to take.
Shares may stay fractions: r (run + more) and M are whole, so pools that together hold G hold it in whole samples,
and fewer samples never take longer. The step is at most 1: see `PartitionData.scale`.
end_in_time cuts no plan off, as no pool outlasts the step, which upper bounds: run is 1 there, else both sides
are 0. It is what makes the relaxation tight: without it a tenth of an option does a tenth of the batch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyomo.environ as pyo
from numpy.typing import NDArray

from .dp_partition_data import TIME, PartitionData, Regimes, programs, refusal
from .dp_partition_options import COST, POWER
from .program import Plan, add_objectives, objective_values

__all__ = ["build_model", "extract", "objective_values", "programs", "refusal"]


def build_model(data: PartitionData) -> pyo.ConcreteModel:
    """The regime's program."""
    m = pyo.ConcreteModel(name="dp_partition")
    _choose(m, data)
    _divide(m, data)
    _measured(m, data)
    _time(m, data)
    quantities = {TIME: m.step}
    if COST in data.bounds:
        quantities[COST] = _priced(m, data, [t.usd_per_h for t in data.pools], data.link_usd_per_h, COST)
    if POWER in data.bounds:
        quantities[POWER] = _priced(m, data, [t.power_w for t in data.pools], data.link_power_w, POWER)
    add_objectives(m, data, quantities, maximised=(), bonus=1.0 - m.step)

    @m.Constraint(m.BOUGHT if TIME in data.objectives else [])
    def end_in_time(m: pyo.ConcreteModel, p: int, k: int) -> Any:
        return _busy(m, data, p, k) <= m.upper[TIME] * m.run[p, k]

    return m


def _picked(m: pyo.ConcreteModel, p: int, values: NDArray[np.generic]) -> Any:
    """sum_k values[k] pick[p,k], without the zeros."""
    return pyo.quicksum(float(v) * m.pick[p, k] for k, v in enumerate(values) if v)


def _priced(
    m: pyo.ConcreteModel, data: PartitionData, of_pools: list[NDArray[np.float64]], of_link: Any, quantity: str
) -> Any:
    """Pools and the ring of links between them, scaled."""
    unit = data.scale[quantity]
    links = pyo.quicksum(
        float(data.ring[o] * of_link[link] / unit) * m.state[n, o, link]
        for n, o, link in m.STATES
        if data.ring[o] * of_link[link]
    )
    return pyo.quicksum(_picked(m, p, values / unit) for p, values in enumerate(of_pools)) + links


def _states(data: PartitionData) -> list[tuple[int, int, int]]:
    """Working pools, bought pools and links; without states in which the exchange alone is longer than any step."""
    longest_s = np.maximum(data.exchange_s, data.floor_s)
    return [
        (n, o, link)
        for o in range(1, len(data.pools) + 1)
        for n in range(1, o + 1)
        for link in (range(len(data.link_usd_per_h)) if o > 1 else range(1))
        if longest_s[n, link] <= data.scale[TIME]
    ]


def _choose(m: pyo.ConcreteModel, data: PartitionData) -> None:
    """One option a pool, which of the pools work, and one link."""
    m.POOLS = pyo.RangeSet(0, len(data.pools) - 1)
    m.OPTIONS = pyo.Set(initialize=[(p, k) for p, t in enumerate(data.pools) for k in range(len(t.row))], dimen=2)
    m.BOUGHT = pyo.Set(initialize=[(p, k) for p, k in m.OPTIONS if data.pools[p].active[k]], dimen=2)
    m.STATES = pyo.Set(initialize=_states(data), dimen=3)
    m.pick = pyo.Var(m.OPTIONS, domain=pyo.Binary, doc="pick[p,k]")
    m.run = pyo.Var(m.BOUGHT, bounds=(0, 1), doc="run[p,k]")
    m.work = pyo.Var(m.POOLS, domain=pyo.Binary, doc="work[p]")
    m.state = pyo.Var(m.STATES, domain=pyo.Binary, doc="state[n,o,l]")

    @m.Constraint(m.POOLS)
    def pick_one_option(m: pyo.ConcreteModel, p: int) -> Any:
        return pyo.quicksum(m.pick[p, k] for k in range(len(data.pools[p].row))) == 1

    @m.Constraint(m.BOUGHT)
    def run_what_is_bought(m: pyo.ConcreteModel, p: int, k: int) -> Any:
        return m.run[p, k] <= m.pick[p, k]

    @m.Constraint(m.POOLS)
    def run_where_it_works(m: pyo.ConcreteModel, p: int) -> Any:
        return pyo.quicksum(m.run[i] for i in m.BOUGHT if i[0] == p) == m.work[p]

    @m.Constraint()
    def be_in_one_state(m: pyo.ConcreteModel) -> Any:
        return pyo.quicksum(m.state[i] for i in m.STATES) == 1

    @m.Constraint()
    def count_working(m: pyo.ConcreteModel) -> Any:
        return pyo.quicksum(m.work[p] for p in m.POOLS) == pyo.quicksum(i[0] * m.state[i] for i in m.STATES)

    @m.Constraint()
    def count_bought(m: pyo.ConcreteModel) -> Any:
        bought = pyo.quicksum(m.pick[i] for i in m.BOUGHT)
        return bought == pyo.quicksum(i[1] * m.state[i] for i in m.STATES)


def _divide(m: pyo.ConcreteModel, data: PartitionData) -> None:
    """Samples and micro-steps of a replica, beyond the first of each."""
    law = [i for i in m.BOUGHT if not len(data.pools[i[0]].levels_s[i[1]])]
    m.MORE = pyo.Set(initialize=[i for i in law if data.pools[i[0]].most_samples[i[1]] > 1], dimen=2)
    m.STEPS = pyo.Set(initialize=[i for i in m.BOUGHT if data.pools[i[0]].most_steps[i[1]] > 1], dimen=2)
    m.more = pyo.Var(
        m.MORE, domain=pyo.NonNegativeIntegers, bounds=lambda m, p, k: (0, int(_most_more(data, p, k))), doc="more[p,k]"
    )
    m.more_frac = pyo.Var(m.MORE, bounds=(0, 1), doc="more_frac[p,k]")
    m.steps = pyo.Var(
        m.STEPS,
        domain=pyo.NonNegativeIntegers,
        bounds=lambda m, p, k: (0, int(_most_steps(data, p, k))),
        doc="steps[p,k]",
    )
    m.steps_frac = pyo.Var(m.STEPS, bounds=(0, 1), doc="steps_frac[p,k]")

    @m.Constraint(m.MORE)
    def measure_more(m: pyo.ConcreteModel, p: int, k: int) -> Any:
        return m.more[p, k] / _most_more(data, p, k) == m.more_frac[p, k]

    @m.Constraint(m.MORE)
    def hold_more(m: pyo.ConcreteModel, p: int, k: int) -> Any:
        return m.more_frac[p, k] <= m.run[p, k]

    @m.Constraint(m.STEPS)
    def measure_steps(m: pyo.ConcreteModel, p: int, k: int) -> Any:
        return m.steps[p, k] / _most_steps(data, p, k) == m.steps_frac[p, k]

    @m.Constraint(m.STEPS)
    def hold_steps(m: pyo.ConcreteModel, p: int, k: int) -> Any:
        return m.steps_frac[p, k] <= m.run[p, k]

    @m.Constraint([i for i in law if i in m.STEPS])
    def step_often_enough(m: pyo.ConcreteModel, p: int, k: int) -> Any:
        micro_batch = float(data.pools[p].micro_batch[k])
        return m.steps[p, k] >= m.more[p, k] / micro_batch - (1.0 - 1.0 / micro_batch) * m.run[p, k]


def _most_more(data: PartitionData, p: int, k: int) -> float:
    return float(data.pools[p].most_samples[k]) - 1.0


def _most_steps(data: PartitionData, p: int, k: int) -> float:
    return float(data.pools[p].most_steps[k]) - 1.0


def _measured(m: pyo.ConcreteModel, data: PartitionData) -> None:
    """The last micro-step where its time is measured."""
    m.LEVELS = pyo.Set(
        initialize=[(p, k, q + 1) for p, k in m.BOUGHT for q in range(len(data.pools[p].levels_s[k]))], dimen=3
    )
    m.level = pyo.Var(m.LEVELS, domain=pyo.Binary, doc="level[p,k,q]")

    @m.Constraint([i for i in m.BOUGHT if len(data.pools[i[0]].levels_s[i[1]])])
    def end_at_one_level(m: pyo.ConcreteModel, p: int, k: int) -> Any:
        n = len(data.pools[p].levels_s[k])
        return pyo.quicksum(m.level[p, k, q] for q in range(1, n + 1)) == m.run[p, k]


def _samples(m: pyo.ConcreteModel, data: PartitionData, p: int, k: int) -> Any:
    """Share of the batch that an option's replicas take with so many samples each."""
    t, g = data.pools[p], data.global_batch
    r, n = float(t.replicas[k]), len(t.levels_s[k])
    if n:
        last = pyo.quicksum(r * q / g * m.level[p, k, q] for q in range(1, n + 1))
        full = r * float(t.micro_batch[k]) * _most_steps(data, p, k) / g
        return last + (full * m.steps_frac[p, k] if (p, k) in m.STEPS else 0.0)
    further = r * _most_more(data, p, k) / g * m.more_frac[p, k] if (p, k) in m.MORE else 0.0
    return r / g * m.run[p, k] + further


def _busy(m: pyo.ConcreteModel, data: PartitionData, p: int, k: int) -> Any:
    """Time of an option for these samples, scaled."""
    t, unit = data.pools[p], data.scale[TIME]
    n = len(t.levels_s[k])
    if n:
        time = pyo.quicksum(float(t.levels_s[k][q - 1]) / unit * m.level[p, k, q] for q in range(1, n + 1))
    else:
        time = float(t.first_s[k]) / unit * m.run[p, k]
    if (p, k) in m.MORE:
        time += float(t.sample_s[k]) * _most_more(data, p, k) / unit * m.more_frac[p, k]
    if (p, k) in m.STEPS and t.micro_step_s[k] > 0:
        time += float(t.micro_step_s[k]) * _most_steps(data, p, k) / unit * m.steps_frac[p, k]
    return time


def _time(m: pyo.ConcreteModel, data: PartitionData) -> None:
    """Every sample in some pool; the step waits for the slowest, then for the exchange."""
    m.share = pyo.Var(m.POOLS, bounds=(0, 1), doc="share[p]")
    m.step = pyo.Var(bounds=(0, 1), doc="step, scaled")
    unit = data.scale[TIME]

    @m.Constraint(m.POOLS)
    def fill_replicas(m: pyo.ConcreteModel, p: int) -> Any:
        return m.share[p] <= pyo.quicksum(_samples(m, data, *i) for i in m.BOUGHT if i[0] == p)

    @m.Constraint(m.POOLS)
    def respect_memory(m: pyo.ConcreteModel, p: int) -> Any:
        most = data.pools[p].most / data.global_batch
        return m.share[p] <= pyo.quicksum(float(most[i[1]]) * m.run[i] for i in m.BOUGHT if i[0] == p)

    @m.Constraint()
    def share_the_batch(m: pyo.ConcreteModel) -> Any:
        return pyo.quicksum(m.share[p] for p in m.POOLS) >= 1

    @m.Constraint(m.POOLS)
    def wait_for_pools(m: pyo.ConcreteModel, p: int) -> Any:
        busy = pyo.quicksum(_busy(m, data, *i) for i in m.BOUGHT if i[0] == p)
        return m.step >= busy + _by_state(m, data.exchange_s / unit)

    @m.Constraint()
    def wait_for_links(m: pyo.ConcreteModel) -> Any:
        return m.step >= _by_state(m, data.floor_s / unit)


def _by_state(m: pyo.ConcreteModel, values: NDArray[np.float64]) -> Any:
    return pyo.quicksum(float(values[n, link]) * m.state[n, o, link] for n, o, link in m.STATES if values[n, link])


def extract(m: pyo.ConcreteModel, data: PartitionData, space: Regimes) -> Plan:
    """The plan: the search space's number of the chosen design."""
    picks = [
        int(t.row[int(np.argmax([pyo.value(m.pick[p, k]) for k in range(len(t.row))]))])
        for p, t in enumerate(data.pools)
    ]
    _, _, link = max(m.STATES, key=lambda i: float(pyo.value(m.state[i])))
    return Plan(index=space.canonical(data.regime, link, picks))
