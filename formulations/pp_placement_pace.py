"""Levels of the slowest pass: what makes the placement programs solve fast.

In a fractional plan all stages are equally long, which whole layers never are. So the longest stage is put between two
levels: below the upper one a stage has at most so many whole layers, and the pace is at least the lower one. Levels
change no plan; they are extra rows that every plan satisfies, and a solver that branches on them meets whole numbers.
GPipe waits for the longest forward and the longest backward, which may be of two stages: it has levels of each.

Sets        LEVELS (t, j): times p_1 < p_2 < ... of t, the longest stage, or the longest forward and backward;
            choices as in pp_placement
Parameters  fits[i,j]  most layers of choice i in a time below p_(j+1), for the last level all that memory
            allows; fits[i,0] in one below p_1
Variables   above[t,j]   the longest is not below p_j, binary
Subject to  above[t,j+1] <= above[t,j]                                                  climb_in_order
            longest >= p_0 + sum_j (p_j - p_(j-1)) above[t,j], p_0 the least of any plan  keep_pace
            layers[i] <= fits[i,0] pick[i] + sum_j (fits[i,j] - fits[i,j-1]) above[t,j]   fit_the_level

Proof. Let p be the longest of a plan and above[t,j] = 1 for the p_j that are no longer than p (up to rounding, on the
safe side of both rows). Then p is at least the last of them, and since p is below the next level, no stage has more
layers than fit below that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyomo.environ as pyo
from numpy.typing import NDArray

from dse.model.pp_blocks import Block

from .pp_placement_data import Choice, PlacementData

Floats = NDArray[np.float64]

MOST_LEVELS = 60
"""More say little: they lie far above the fastest pace."""
APART = 1e-4
"""Levels closer together than this share are one: a plan between them is held to the bounds of both."""
ROOM = 1e-9
"""Share by which a level is taken longer, so that rounding shuts no plan out."""

PASSES: dict[str, Callable[[Block, int], tuple[float, float]]] = {
    "forward": lambda b, c: (float(b.forward_s[c]), b.head_forward_s),
    "backward": lambda b, c: (float(b.backward_s[c]), float(b.head_backward_s[c])),
    "both": lambda b, c: (float(b.forward_s[c] + b.backward_s[c]), b.head_forward_s + float(b.head_backward_s[c])),
}
"""Time of a layer, and of the head."""


def least_s(data: PlacementData, t: str) -> float:
    """No plan has a shorter longest stage [s]: whatever blocks, slots and modes, so many layers need this long.

    Each pool lends all stages of its best block to the level, each stage its roomiest slot; head and transfers free.
    """
    needed = data.layers - data.handed * data.lengths[-1]
    low, high = 0.0, data.scale["pace"]
    for _ in range(60):
        middle = 0.5 * (low + high)
        if _layers_within(data, t, middle) >= needed:
            high = middle
        else:
            low = middle
    return low


def _layers_within(data: PlacementData, t: str, level_s: float) -> float:
    """Most layers that stages within a time hold, over all pools."""
    best: dict[int, int] = {}
    for i, most in data.most.items():
        b = data.blocks[i.block]
        held = b.stages * min(most, _fits(level_s, PASSES[t](b, i.mode)[0]))
        best[b.pool] = max(best.get(b.pool, 0), held)
    return float(sum(best.values()))


def _fits(level_s: float, layer_s: float, head_s: float = 0.0) -> int:
    """Most layers of a stage within a time; transfers are left out, on the safe side."""
    return max(int((level_s * (1.0 + ROOM) - head_s) / layer_s + ROOM), 0)


def levels_s(data: PlacementData, t: str) -> Floats:
    """Stage times at which one more layer fits somewhere, from the least on."""
    times = {
        PASSES[t](data.blocks[i.block], i.mode)[0] * n for i, most in data.most.items() for n in range(1, most + 1)
    }
    found = [least_s(data, t)]
    for time_s in sorted(times):
        if time_s > found[-1] * (1.0 + APART):
            found.append(time_s)
    return np.array(found[:MOST_LEVELS])


def forward_share(data: PlacementData) -> tuple[float, float]:
    """Bound on every stage's forward: this share of the stage, and so much more, over the pace.

    Layers and head bring at most the share of themselves, transfers all of them. Half of the stage, if that is less,
    bounds its shorter pass, which serves as well.
    """
    share = out_s = 0.0
    for i in data.most:
        b = data.blocks[i.block]
        for forward_s, both_s in (
            (b.forward_s[i.mode], PASSES["both"](b, i.mode)[0]),
            (b.head_forward_s, PASSES["both"](b, i.mode)[1]),
        ):
            share = max(share, float(forward_s / both_s)) if both_s else share
        out_s = max(out_s, b.hop_s)
    out_s = max(out_s, float(data.frame.across_s[list(data.frame.links)].max()))
    if data.served is not None:
        share = max(share, float((data.served.forward_s / (data.served.forward_s + data.served.backward_s)).max()))
    return (share, (1.0 - share) * out_s / data.scale["pace"]) if share < 0.5 else (0.5, 0.0)


def add_levels(m: pyo.ConcreteModel, data: PlacementData, longest: dict[str, Any]) -> None:
    """Puts the longest of each kind between two levels; `longest` is it, over `pace`."""
    unit = data.scale["pace"]
    levels = {t: levels_s(data, t) for t in longest}
    # the last time below the next level: just before one more layer fits
    tops = {t: np.append(p[1:] * (1.0 - 2 * ROOM), np.inf) for t, p in levels.items()}
    m.LEVELS = pyo.Set(initialize=[(t, j) for t, p in levels.items() for j in range(1, len(p))], dimen=2)
    m.above = pyo.Var(m.LEVELS, domain=pyo.Binary, doc="above[t,j]")

    @m.Constraint(m.LEVELS)
    def climb_in_order(m: pyo.ConcreteModel, t: str, j: int) -> Any:
        return m.above[t, j] <= m.above[t, j - 1] if j > 1 else pyo.Constraint.Skip

    @m.Constraint(list(longest))
    def keep_pace(m: pyo.ConcreteModel, t: str) -> Any:
        p = levels[t] / unit * (1.0 - 4 * ROOM)
        climbed = pyo.quicksum(float(p[j] - p[j - 1]) * m.above[t, j] for j in range(1, len(p)))
        return longest[t] >= float(p[0]) + climbed

    @m.Constraint(list(longest), m.CHOICES)
    def fit_the_level(m: pyo.ConcreteModel, t: str, *i: Any) -> Any:
        choice = Choice(*i)
        most = data.most[choice]
        layer_s, head_s = PASSES[t](data.blocks[choice.block], choice.mode)
        head_s = head_s if choice.slot == 0 else 0.0
        fits = [min(most, _fits(x, layer_s, head_s)) if np.isfinite(x) else most for x in tops[t]]
        more = [(j, fits[j] - fits[j - 1]) for j in range(1, len(fits)) if fits[j] > fits[j - 1]]
        if fits[0] >= most:
            return pyo.Constraint.Skip
        return m.layers[i] <= fits[0] * m.pick[i] + pyo.quicksum(k * m.above[t, j] for j, k in more)
