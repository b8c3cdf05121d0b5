"""Times of a placement program: passes of every slot, the schedule's step, wafers, links, gradients.

Sets, variables and constraints are named in `pp_placement`, which states the whole program.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyomo.environ as pyo

from dse.model.pp_blocks import extra_parameters

from .pp_placement_data import STEP, PlacementData
from .pp_placement_pace import forward_share, least_s


def top(data: PlacementData, a: Sequence[Any]) -> int:
    """The slot after a block's last."""
    return int(a[1]) + data.blocks[a[0]].stages


def ends(m: pyo.ConcreteModel, data: PlacementData, length: int) -> Any:
    """1 where the pipeline has so many stages."""
    return pyo.quicksum(m.lie[a] for a in m.ARCS if a[2] and top(data, a) == length)


def time_passes(m: pyo.ConcreteModel, data: PlacementData) -> None:
    """Forward and backward of every slot, over the longest stage."""
    unit, across = data.scale["pace"], data.frame.across_s
    m.forward = pyo.Var(m.SLOTS, bounds=(0, 1), doc="forward[s]")
    m.backward = pyo.Var(m.SLOTS, bounds=(0, 1), doc="backward[s]")
    m.behind = pyo.Var(pyo.RangeSet(0, data.n_slots), bounds=(0, None), doc="behind[s]")
    m.behind[0].fix(0.0)
    of_slot: dict[int, list[Any]] = {s: [i for i in m.CHOICES if i[0] == s] for s in m.SLOTS}

    def sent(s: int) -> tuple[Any, Any]:
        """Transfers of slot s, to the next stage and back to the one before, and of how many layers."""
        inside_on = [(data.blocks[a[0]].hop_s, m.lie[a]) for a in m.ARCS if a[1] < s < top(data, a)]
        inside_back = [(data.blocks[a[0]].hop_s, m.lie[a]) for a in m.ARCS if a[1] <= s < top(data, a) - 1]
        if data.served is not None:
            both = pyo.quicksum(float(across[i]) / unit * m.cross[s, i] for i in m.LINKS)
            return (both if s else 0.0), both
        on = pyo.quicksum(x / unit * y for x, y in inside_on)
        back = pyo.quicksum(x / unit * y for x, y in inside_back)
        on += pyo.quicksum(float(across[i]) / unit * m.cross[s, i] for i in m.LINKS)
        if s + 1 in m.SLOTS:
            back += pyo.quicksum(float(across[i]) / unit * m.cross[s + 1, i] for i in m.LINKS)
        return on, back

    m.sent = pyo.Expression(m.SLOTS, rule=lambda m, s: sum(sent(s)))

    def wafers(s: int, passes: str) -> Any:
        """The wafers, where they are the stage before the first of s."""
        if data.served is None or not data.served.one_more or s not in data.lengths:
            return 0.0
        time_s = float(getattr(data.served, passes)[data.lengths.index(s)])
        return time_s / unit * ends(m, data, s)

    @m.Constraint(m.SLOTS)
    def take_forward(m: pyo.ConcreteModel, s: int) -> Any:
        own = pyo.quicksum(float(data.blocks[i[1]].forward_s[i[2]]) / unit * m.layers[i] for i in of_slot[s])
        head = pyo.quicksum(data.blocks[i[1]].head_forward_s / unit * m.pick[i] for i in of_slot[s] if s == 0)
        return m.forward[s] == own + head + sent(s)[0] + wafers(s, "forward_s")

    @m.Constraint(m.SLOTS)
    def take_backward(m: pyo.ConcreteModel, s: int) -> Any:
        own = pyo.quicksum(float(data.blocks[i[1]].backward_s[i[2]]) / unit * m.layers[i] for i in of_slot[s])
        head = pyo.quicksum(
            float(data.blocks[i[1]].head_backward_s[i[2]]) / unit * m.pick[i] for i in of_slot[s] if s == 0
        )
        return m.backward[s] == own + head + sent(s)[1] + wafers(s, "backward_s")

    @m.Constraint(m.SLOTS)
    def add_up(m: pyo.ConcreteModel, s: int) -> Any:
        return m.behind[s + 1] == m.behind[s] + m.forward[s] + m.backward[s]


def run_schedule(m: pyo.ConcreteModel, data: PlacementData) -> None:
    """The step of the schedule; rows are divided by N, so that they are of order 1."""
    m.scheduled = pyo.Var(bounds=(0, 1), doc="scheduled")
    m.slowest_forward = pyo.Var(bounds=(0, 1), doc="slowest_forward")
    m.slowest_backward = pyo.Var(bounds=(0, 1), doc="slowest_backward")
    m.pace = pyo.Var(bounds=(0, 2), doc="pace")
    m.be_slowest = pyo.ConstraintList()
    for s in m.SLOTS:
        m.be_slowest.add(m.slowest_forward >= m.forward[s])
        m.be_slowest.add(m.slowest_backward >= m.backward[s])
        m.be_slowest.add(m.pace >= m.forward[s] + m.backward[s])
    m.be_slowest.add(m.slowest_forward + m.slowest_backward >= m.pace)
    n, schedule = data.frame.n_micro, data.frame.system.schedule
    step = (m.scheduled - returns(m, data)) * step_unit(data)
    path = m.behind[data.n_slots] / n
    if data.served is not None:
        _respect_wafers(m, data)
    if data.served is not None and not data.served.one_more:
        _run_decoupled(m, data, step, path)
    elif schedule == "gpipe":
        m.run_gpipe = pyo.Constraint(expr=step >= path + (n - 1) / n * (m.slowest_forward + m.slowest_backward))
    elif schedule == "interleaved":
        v = data.frame.system.chunks
        sent = pyo.quicksum(m.sent[s] for s in m.SLOTS)
        m.run_interleaved = pyo.Constraint(expr=step >= m.pace + (path - m.pace / n) / v + v / n * sent)
    else:
        _run_one_f_one_b(m, data, step, path)
    if data.served is None:
        _respect_link(m, data)


def step_unit(data: PlacementData) -> float:
    """What the scaled step counts for in rows of passes over N."""
    return data.scale[STEP] / data.scale["pace"] / data.frame.n_micro


def returns(m: pyo.ConcreteModel, data: PlacementData) -> Any:
    """Transfers by which a micro-batch comes back from the wafers: 2 K - 1."""
    if data.served is None:
        return 0.0
    once = float(data.frame.across_s[data.frame.links[0]]) / data.scale[STEP]
    return pyo.quicksum((2 * k - 1) * once * ends(m, data, k) for k in data.lengths)


def _run_decoupled(m: pyo.ConcreteModel, data: PlacementData, step: Any, path: Any) -> None:
    """Wafers that collect micro-batches, or serve several pipelines: the longer of pace and their period."""
    served, unit, n = data.served, data.scale["pace"], data.frame.n_micro
    if served is None:
        return
    call_s = served.forward_s + served.backward_s
    call = pyo.quicksum(float(x) / unit * ends(m, data, k) for x, k in zip(call_s, data.lengths, strict=True))
    m.run_decoupled = pyo.ConstraintList()
    m.run_decoupled.add(m.pace >= served.calls * call)
    m.run_decoupled.add(step >= path + call / n + (n - 1) / n * m.pace)
    m.run_decoupled.add(step >= served.calls * call)


def _respect_wafers(m: pyo.ConcreteModel, data: PlacementData) -> None:
    """What each pool exchanges with the wafers in a step: K_o forward and back, less one where it has both ends."""
    once = float(data.frame.crossing_s[data.frame.links[0]]) / data.scale[STEP]

    @m.Constraint(sorted({b.pool for b in data.blocks}))
    def respect_link(m: pyo.ConcreteModel, p: int) -> Any:
        mine = [(2 * data.blocks[a[0]].stages - (a[1] == 0 and a[2]), m.lie[a])
                for a in m.ARCS if data.blocks[a[0]].pool == p]  # fmt: skip
        return m.scheduled >= pyo.quicksum(k * once * y for k, y in mine) if mine else pyo.Constraint.Skip


def _respect_link(m: pyo.ConcreteModel, data: PlacementData) -> None:
    """The bytes of a step over the link between two pools, where they could take longer than N of the least pace."""
    crossing = np.where(data.frame.crossing_s > data.frame.n_micro * least_s(data, "both"), data.frame.crossing_s, 0.0)

    @m.Constraint(m.SLOTS)
    def respect_link(m: pyo.ConcreteModel, s: int) -> Any:
        carried = [float(crossing[i]) / data.scale[STEP] * m.cross[s, i] for i in m.LINKS if crossing[i] > 0]
        return m.scheduled >= pyo.quicksum(carried) if s and carried else pyo.Constraint.Skip


def _run_one_f_one_b(m: pyo.ConcreteModel, data: PlacementData, step: Any, path: Any) -> None:
    """The bound of every slot on a 1F1B step; `refine` adds the paths that it lacks."""
    n = data.frame.n_micro
    m.fill_and_drain = pyo.ConstraintList()
    m.wait_for_passes = pyo.ConstraintList()
    most, (share, out) = min(n - 1, data.n_slots - 1), forward_share(data)
    m.run_at_pace = pyo.Constraint(expr=step >= path + ((n - 1 - most * share) * m.pace - most * out) / n)
    m.run_all_passes = pyo.Constraint(expr=step >= m.pace)
    if n > data.n_slots:
        m.run_evenly = pyo.Constraint(expr=step >= 2 * path + (n - data.n_slots - 1) / n * m.pace)
    for s in m.SLOTS:
        f, b, down, w = m.forward[s] / n, m.backward[s] / n, m.behind[s] / n, min(n - 1, s)
        base = path - down + (n - 1) * (f + b)
        m.fill_and_drain.add(step >= base)
        if s:
            m.fill_and_drain.add(step >= base + down - w * f)
            m.fill_and_drain.add(step >= base + down - w * b)
        if s and n >= w + 2:
            m.fill_and_drain.add(step >= base + 2 * down - w * (f + b))


def all_reduce(m: pyo.ConcreteModel, data: PlacementData) -> None:
    """The all-reduce of gradients, of the stage that takes longest."""
    m.gradient = pyo.Var(bounds=(0, 1), doc="gradient")
    work, unit = data.frame.system.fleet.pools[0].work, data.scale["gradient"]

    @m.Constraint(m.SLOTS)
    def reduce_gradients(m: pyo.ConcreteModel, s: int) -> Any:
        parts = []
        for i in m.CHOICES:
            b = data.blocks[i[1]]
            if i[0] == s and (b.gradient_fixed_s or b.gradient_parameter_s):
                extra = extra_parameters(data.frame, first=i[3], last=s == 0)
                fixed = b.gradient_fixed_s + b.gradient_parameter_s * extra
                parts.append(
                    fixed / unit * m.pick[i] + b.gradient_parameter_s * work.layer_parameters / unit * m.layers[i]
                )
        return m.gradient >= pyo.quicksum(parts) if parts else pyo.Constraint.Skip

    if data.served is not None and data.served.gradient_s.any():
        of_wafers = zip(data.served.gradient_s, data.lengths, strict=True)
        m.reduce_wafers = pyo.Constraint(
            expr=m.gradient >= pyo.quicksum(float(x) / unit * ends(m, data, k) for x, k in of_wafers)
        )
