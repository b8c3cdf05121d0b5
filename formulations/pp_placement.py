"""Placement of a pipeline: which pools hold how many stages, in which order, and how many layers each stage has.

One program fixes data type, global batch, schedule, micro-batch, the number of pipelines R, and what is handed to which
wafers over which link. Slots count stages from the END of the pipeline, slot 0 has the head; slots beyond the first
stage stay empty and take no time. Times are divided by the longest stage that the choices reach, the step by the
longest step, so that all rows are of order 1. Coefficients come from `dse.model` (see pp_placement_data).

Sets        BLOCKS o: K_o stages in a row on instances of g devices of a pool;  ARCS (o, a, e): block o on the slots
            a .. a + K_o - 1, e = 1 where it holds the first stage;  CHOICES (s, o, c, e): slot s on block o under
            recompute mode c;  SLOTS s;  LINKS l;  LENGTHS K: numbers of stages
Parameters  f[o,c], b[o,c]  forward and backward of a layer;  h[o,c] head, x[o] transfer inside the block
            y[l] transfer between pools, z[l] least step that the link's bytes take
            most[s,o,c,e]  layers that memory allows there;  L layers of the model, k handed over by each stage
            N micro-batches, v pieces;  G[o] gradients' all-reduce per layer, and what a stage has besides
Variables   lie[o,a,e]   block o lies there, binary
            pick[s,o,c,e]  slot s is that stage, binary
            layers[s,o,c,e]  layers of it, integer
            use[l]       link l, binary
            cross[s,l]   slot s sends over link l, in [0, 1]
            forward[s], backward[s]  passes of a slot;  behind[s]  both of all slots before s in this count: downstream
            slowest_forward, slowest_backward, pace  of any slot
            scheduled    step without gradients;  gradient  their all-reduce
            returns      (2 K - 1) y[l], by which micro-batches come back from wafers; 0 without
Minimise    step, cost and power as the frontier search weighs them, within its bounds and the user's limits: see
            `program`, which adds them; step = scheduled + gradient
Subject to  sum lie[o,0,e] = 1                                                          start_at_the_head
            sum lie[o,a,e] = sum of lie[o',a',0] that end below a            a > 0     follow_on
            sum of lie over a pool <= 1, = 1 where the study always has it              use_a_pool_once
            sum of lie over pools whose axis has the micro-batch >= 1                   set_the_micro_batch
            sum_c pick[s,o,c,e] = sum of lie[o,a,e] that make slot s such a stage       pick_a_mode
            v pick <= layers                    (1 pick but for interleaving)           fill_every_stage
            layers / most <= pick                                                       respect_memory
            sum layers = L - k stages                                                   place_every_layer
            sum_l use[l] = 1                                                            use_one_link
            sum_l cross[s,l] = slot s sends to another pool, cross[s,l] <= use[l]       cross_where_pools_meet,
                                                                                        cross_on_the_link
            forward[s], backward[s] = layers, head, transfers, wafers                   take_forward, take_backward
            behind[s+1] = behind[s] + forward[s] + backward[s]                          add_up
            slowest_forward >= forward[s], slowest_backward >= backward[s],
            slowest_forward + slowest_backward >= pace >= forward[s] + backward[s]      be_slowest
            scheduled - returns (below: scheduled) is no less than
 gpipe      scheduled >= path + (N-1) (slowest_forward + slowest_backward)              run_gpipe
 interleaved scheduled >= N pace + (path - pace)/v + v transfers                        run_interleaved
 1f1b       scheduled >= path - D + (N-1) p + each of 0, D - w f, D - w b;
                         + the last two together where N >= w + 2                       fill_and_drain
            scheduled >= path + (N-1) pace - w f', w = min(N-1, slots - 1); >= N pace   run_at_pace, run_all_passes
            scheduled >= 2 path + (N - slots - 1) pace                     N > slots    run_evenly
            scheduled >= sum_s u_s forward[s] + w_s backward[s]   a longest path        wait_for_passes (refine)
 decoupled  scheduled >= path + one call of the wafers + (N-1) pace, pace >= their period;
                         >= N periods                                                   run_decoupled
            step without returns taken off: >= z[l] where pools meet; beside wafers, of every pool,
                         2 K_o z[l], less one z[l] where it has both ends                respect_link
            levels of the slowest pass, above[t,j]: climb_in_order, keep_pace, fit_the_level  (see pp_placement_pace)
            gradient >= G of every stage, of the wafers                                 reduce_gradients, reduce_wafers

path is behind of the last slot: one micro-batch there and back. In fill_and_drain, of slot s with p = f + b: D =
behind[s], w = min(N-1, s); it is the bound of `one_f_one_b_bound_s`, each maximum in it written as its two sides, both
at once where N >= w + 2. Two of these rows, of the slot that sets the pace, hold fractional plans to whole layers: that
with w f reads run_at_pace, f' being the most that a forward takes of the pace; that with both is (N-1) p + path + D -
s p, and no stage is longer than p, so D >= path - p - (slots - 1 - s) p, which gives run_evenly.

A step under 1F1B is the longest path through a graph of passes that is the same for every placement on these slots, so
each path bounds it from below: `refine` adds the longest one of the plan found, and where program and model agree on
the step the plan is proven. An empty slot before the first stage takes no time and changes no step: it would run one
forward further ahead than the first stage does, waiting for a pass that the first stage's own forward waits for later
anyway.

The big numbers: most[s,o,c,e] is what memory allows, counted by the model, or what is left when every other stage has
its least; z[l] needs none, it multiplies cross[s,l].
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyomo.environ as pyo
from numpy.typing import NDArray

from dse.model.pp_critical import critical_passes

from .pp_placement_data import COST, POWER, STEP, Choice, PlacementData, Placements, WholeData
from .pp_placement_pace import add_levels
from .pp_placement_plan import found_placement
from .pp_placement_programs import programs, refusal, server_bill
from .pp_placement_times import all_reduce, returns, run_schedule, step_unit, time_passes, top
from .program import Plan, add_objectives, objective_values

__all__ = ["add_row", "build_model", "extract", "objective_values", "programs", "refine", "refusal"]

Floats = NDArray[np.float64]

PassCounts = tuple[float, ...]
"""Forwards of every slot on a path, then backwards, from the first stage on."""

AGREE = 1e-10
"""A step that the program has right to this share needs no further path."""


def build_model(data: PlacementData | WholeData) -> pyo.ConcreteModel:
    """The program of one placement problem."""
    m = pyo.ConcreteModel(name="pp_placement")
    if isinstance(data, WholeData):
        return _build_whole(m, data)
    _lay_blocks(m, data)
    _place_layers(m, data)
    _cross_pools(m, data)
    time_passes(m, data)
    run_schedule(m, data)
    waits = {"forward": m.slowest_forward, "backward": m.slowest_backward}
    add_levels(m, data, waits if data.frame.system.schedule == "gpipe" else {"both": m.pace})
    all_reduce(m, data)
    step = m.scheduled + data.scale["gradient"] / data.scale[STEP] * m.gradient
    links = data.frame.system.fleet.links
    fixed = server_bill(data.frame)
    crossings = {link: _pairs(m, data, link) for link in m.LINKS}
    arcs = [(data.blocks[a[0]], m.lie[a]) for a in m.ARCS]
    cost = fixed[0] + pyo.quicksum(b.usd_per_h * y for b, y in arcs)
    cost += pyo.quicksum(float(links.usd_per_h[i]) * x for i, x in crossings.items() if links.usd_per_h[i])
    power = fixed[1] + pyo.quicksum(b.power_w * y for b, y in arcs)
    power += pyo.quicksum(float(links.power_w[i]) * x for i, x in crossings.items() if links.power_w[i])
    quantities = {STEP: step, COST: cost / data.scale[COST], POWER: power / data.scale[POWER]}
    add_objectives(m, data, quantities, maximised=(), bonus=1.0 - step)
    return m


def _lay_blocks(m: pyo.ConcreteModel, data: PlacementData) -> None:
    """Blocks one after the other from the head on, each pool at most once."""
    m.SLOTS = pyo.RangeSet(0, data.n_slots - 1)
    m.ARCS = pyo.Set(initialize=[tuple(a) for a in data.arcs], dimen=3)
    m.lie = pyo.Var(m.ARCS, domain=pyo.Binary, doc="lie[o,a,e]")
    pools = sorted({b.pool for b in data.blocks} | data.required)
    places = sorted({a.low for a in data.arcs if a.low} | {top(data, a) for a in data.arcs if not a.first})

    @m.Constraint()
    def start_at_the_head(m: pyo.ConcreteModel) -> Any:
        return pyo.quicksum(m.lie[a] for a in m.ARCS if a[1] == 0) == 1

    @m.Constraint(places)
    def follow_on(m: pyo.ConcreteModel, place: int) -> Any:
        ends = [m.lie[tuple(a)] for a in data.arcs if not a.first and top(data, a) == place]
        return pyo.quicksum(m.lie[a] for a in m.ARCS if a[1] == place) == pyo.quicksum(ends)

    @m.Constraint(pools)
    def use_a_pool_once(m: pyo.ConcreteModel, p: int) -> Any:
        mine = [m.lie[a] for a in m.ARCS if data.blocks[a[0]].pool == p]
        if not mine:
            return pyo.Constraint.Infeasible if p in data.required else pyo.Constraint.Skip
        return pyo.quicksum(mine) == 1 if p in data.required else pyo.quicksum(mine) <= 1

    @m.Constraint()
    def set_the_micro_batch(m: pyo.ConcreteModel) -> Any:
        mine = [m.lie[a] for a in m.ARCS if data.blocks[a[0]].pool in data.setters]
        return pyo.quicksum(mine) >= 1 if mine else pyo.Constraint.Infeasible


def _holds(data: PlacementData, s: int, o: int, first: bool) -> list[tuple[Any, ...]]:
    """Arcs that make slot s a stage of block o, the first of the pipeline or not."""
    return [
        tuple(a)
        for a in data.arcs
        if a.block == o and a.low <= s < top(data, a) and (a.first and s == top(data, a) - 1) == first
    ]


def _place_layers(m: pyo.ConcreteModel, data: PlacementData) -> None:
    """A mode for every stage, and all layers on stages."""
    m.CHOICES = pyo.Set(initialize=[tuple(i) for i in data.most], dimen=4)
    m.pick = pyo.Var(m.CHOICES, domain=pyo.Binary, doc="pick[s,o,c,e]")
    m.layers = pyo.Var(
        m.CHOICES,
        domain=pyo.NonNegativeIntegers,
        bounds=lambda m, *i: (0, data.most[Choice(*i)]),
        doc="layers[s,o,c,e]",
    )
    least = data.frame.system.chunks if data.frame.system.schedule == "interleaved" else 1
    stages = {(s, a.block, a.first and s == top(data, a) - 1)
              for a in data.arcs for s in range(a.low, top(data, a))}  # fmt: skip

    @m.Constraint(sorted(stages))
    def pick_a_mode(m: pyo.ConcreteModel, s: int, o: int, first: bool) -> Any:
        modes = [m.pick[i] for i in m.CHOICES if (i[0], i[1], i[3]) == (s, o, first)]
        return pyo.quicksum(modes) - pyo.quicksum(m.lie[a] for a in _holds(data, s, o, first)) == 0

    @m.Constraint(m.CHOICES)
    def fill_every_stage(m: pyo.ConcreteModel, *i: Any) -> Any:
        return m.layers[i] >= least * m.pick[i]

    @m.Constraint(m.CHOICES)
    def respect_memory(m: pyo.ConcreteModel, *i: Any) -> Any:
        return m.layers[i] / data.most[Choice(*i)] <= m.pick[i]

    @m.Constraint()
    def place_every_layer(m: pyo.ConcreteModel) -> Any:
        placed = pyo.quicksum(m.layers[i] for i in m.CHOICES)
        return placed + data.handed * pyo.quicksum(_n_stages(m, data)) == data.layers


def _n_stages(m: pyo.ConcreteModel, data: PlacementData) -> list[Any]:
    return [top(data, a) * m.lie[a] for a in m.ARCS if a[2]]


def _cross_pools(m: pyo.ConcreteModel, data: PlacementData) -> None:
    """The link, and the slots that send over it: forward to slot s - 1; with wafers every slot."""
    links = data.frame.links
    m.LINKS = pyo.Set(initialize=list(links))
    m.use = pyo.Var(m.LINKS, domain=pyo.Binary, doc="use[l]")
    m.cross = pyo.Var(m.SLOTS, m.LINKS, bounds=(0, 1), doc="cross[s,l]")

    @m.Constraint()
    def use_one_link(m: pyo.ConcreteModel) -> Any:
        return pyo.quicksum(m.use[i] for i in m.LINKS) == 1

    @m.Constraint(m.SLOTS)
    def cross_where_pools_meet(m: pyo.ConcreteModel, s: int) -> Any:
        if data.served is not None:
            sends = [m.lie[a] for a in m.ARCS if a[1] <= s < top(data, a)]
        else:
            sends = [m.lie[a] for a in m.ARCS if a[1] == s and s > 0]
        return pyo.quicksum(m.cross[s, i] for i in m.LINKS) - pyo.quicksum(sends) == 0

    @m.Constraint(m.SLOTS, m.LINKS)
    def cross_on_the_link(m: pyo.ConcreteModel, s: int, link: int) -> Any:
        return m.cross[s, link] <= m.use[link]


def _pairs(m: pyo.ConcreteModel, data: PlacementData, link: int) -> Any:
    """Links bought: one between neighbours; with wafers one for each pool of the chain, over the program's link."""
    if data.served is not None:
        return pyo.quicksum(m.lie[a] for a in m.ARCS)
    return pyo.quicksum(m.cross[s, link] for s in m.SLOTS)


def _build_whole(m: pyo.ConcreteModel, data: WholeData) -> pyo.ConcreteModel:
    """One of some designs."""
    designs = range(len(data.index))
    m.pick = pyo.Var(designs, domain=pyo.Binary, doc="pick")
    m.start_at_the_head = pyo.Constraint(expr=pyo.quicksum(m.pick[i] for i in designs) == 1)
    values = {STEP: data.step_s, COST: data.usd_per_h, POWER: data.power_w}
    quantities = {
        key: pyo.quicksum(float(x) / data.scale[key] * m.pick[i] for i, x in enumerate(each))
        for key, each in values.items()
    }
    add_objectives(m, data, quantities, maximised=())
    return m


def refine(m: pyo.ConcreteModel, data: PlacementData | WholeData) -> list[PassCounts]:
    """Passes of every slot on the longest path of the plan in the model, where the program has its step too short."""
    if isinstance(data, WholeData) or not data.by_paths:
        return []
    passes = [np.maximum([pyo.value(x[s]) for s in reversed(m.SLOTS)], 0.0) for x in (m.forward, m.backward)]
    forwards, backwards = critical_passes(passes[0], passes[1], data.frame.n_micro)
    step = float(forwards @ passes[0] + backwards @ passes[1]) / data.frame.n_micro / step_unit(data)
    if step <= pyo.value(m.scheduled - returns(m, data)) + AGREE * step:
        return []
    return [(*forwards.tolist(), *backwards.tolist())]


def add_row(m: pyo.ConcreteModel, data: PlacementData, row: PassCounts) -> None:
    """wait_for_passes for one path: its passes forward and backward through each slot, from the first stage on."""
    last, n = data.n_slots - 1, data.frame.n_micro
    counts = zip(row[: data.n_slots], row[data.n_slots :], strict=True)
    path = pyo.quicksum(u / n * m.forward[last - s] + w / n * m.backward[last - s] for s, (u, w) in enumerate(counts))
    m.wait_for_passes.add((m.scheduled - returns(m, data)) * step_unit(data) >= path)


def extract(m: pyo.ConcreteModel, data: PlacementData | WholeData, space: Placements) -> Plan:
    """The plan as `--set` keys; that of wafers with whole models is in the grid."""
    if isinstance(data, WholeData):
        return Plan(index=int(data.index[int(np.argmax([pyo.value(x) for x in m.pick.values()]))]))
    return Plan(settings=found_placement(m, data, space))
