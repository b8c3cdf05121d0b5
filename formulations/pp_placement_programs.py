"""Which placement programs a study needs, and their numbers; what they cannot answer exactly, with the reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dse.model.pp_blocks import Block, Frame, Served, extra_parameters, flying, most_layers, served_by

from .pp_placement_data import AXIS, COST, PER_STEP, POWER, STEP, Arc, Choice, PlacementData, Placements, WholeData

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def refusal(space: Placements, objectives: Sequence[str], bounds: Mapping[str, tuple[float, float]]) -> str:
    """Why the programs cannot answer a study exactly; empty where they can."""
    names = ", ".join(AXIS)
    strange = ", ".join(o for o in objectives if o not in AXIS)
    unbounded = ", ".join(b for b in bounds if b not in AXIS and b.removeprefix("n_") not in space.pool_names)
    capped = ", ".join(b for b in bounds if b in PER_STEP and np.isfinite(bounds[b][1]))
    slow = "step_time_s" in bounds and bounds["step_time_s"][0] > 0
    reasons = (
        ("usd_per_mtok" in objectives, "usd_per_mtok is a ratio; ask for throughput_tok_s and cost_usd_per_h: the plan "
                                       "of least usd_per_mtok is on their frontier"),
        (bool(strange), f"objective {strange} is not linear in a placement; it knows {names}"),
        (sum(AXIS.get(o) == STEP for o in objectives) > 1,
         "throughput and step time are one quantity to a program of one global batch; keep one of them"),
        (bool(unbounded), f"a limit on {unbounded} is not linear in a placement; it knows {names} and n_<pool>"),
        (bool(capped) or slow, "a bound on the slow side of the step would let a plan wait for nothing"),
        (_metered(space) and ("cost_usd_per_h" in objectives or "cost_usd_per_h" in bounds),
         "the energy bill of ownership or owned devices depends on how busy stages are, in a nonlinear way"),
    )  # fmt: skip
    return next((f"milp: {reason}" for applies, reason in reasons if applies), "")


def _metered(space: Placements) -> bool:
    return any((b.busy_usd_per_h > 0).any() for frame, _ in space.frames() for b in frame.system.fleet.bills)


def programs(
    space: Placements, objectives: Sequence[str], bounds: Mapping[str, tuple[float, float]]
) -> list[PlacementData | WholeData]:
    """One program for each thing that is fixed, and one for the wafers that run whole models."""
    found: list[PlacementData | WholeData] = []
    for index in space.whole_models():
        whole = _whole(space, index, objectives, bounds)
        if whole is not None:
            found.append(whole)
    for frame, regime in space.frames():
        for lengths in _lengths(space, frame, bounds):
            placed = _placement(space, frame, regime, lengths, objectives, bounds)
            if placed is not None:
                found.append(placed)
    return found


def _lengths(space: Placements, frame: Frame, bounds: Mapping[str, tuple[float, float]]) -> list[list[int]]:
    """Numbers of stages, together where what a slot holds does not depend on them: one by one if interleaved."""
    system = frame.system
    per_pool: dict[int, set[int]] = {}
    for b in _offered(space, frame, bounds):
        per_pool.setdefault(b.pool, set()).add(b.stages)
    sums = {0}
    for stages in per_pool.values():
        sums |= {total + k for total in sums for k in stages}
    least = system.offload_layers + (system.chunks if system.schedule == "interleaved" else 1)
    possible = sorted(k for k in sums if k > 0 and k * least <= system.fleet.pools[0].work.layers)
    if system.schedule == "interleaved":
        return [[k] for k in possible if frame.n_micro % k == 0]
    if frame.server is not None:
        served = served_by(frame, np.array(possible, dtype=np.int64))
        possible = [k for k, left in zip(possible, served.left_byte, strict=True) if left >= 0]
    return [possible] if possible else []


def _offered(space: Placements, frame: Frame, bounds: Mapping[str, tuple[float, float]]) -> list[Block]:
    names = space.pool_names
    found = []
    for b in space.blocks(frame):
        low, high = bounds.get(f"n_{names[b.pool]}", (-np.inf, np.inf))
        if low <= b.n <= high:
            found.append(b)
    return found


def _placement(
    space: Placements,
    frame: Frame,
    regime: Any,
    lengths: Sequence[int],
    objectives: Sequence[str],
    bounds: Mapping[str, tuple[float, float]],
) -> PlacementData | None:
    blocks = _offered(space, frame, bounds)
    required = _required(space, frame, bounds)
    if required is None:
        return None
    arcs = _arcs(frame, blocks, lengths, required)
    if not arcs:
        return None
    most = _most(frame, blocks, arcs, lengths)
    served = served_by(frame, np.array(lengths, dtype=np.int64)) if frame.server is not None else None
    return PlacementData(
        frame=frame,
        regime=regime,
        blocks=blocks,
        required=required,
        setters=frozenset(b.pool for b in blocks if space.sets_micro_batch(frame, b.pool)),
        arcs=arcs,
        most=most,
        lengths=lengths,
        served=served,
        **_asked(frame, objectives, bounds),
        scale=_scale(frame, blocks, most, lengths, served),
    )


def _asked(frame: Frame, objectives: Sequence[str], bounds: Mapping[str, tuple[float, float]]) -> dict[str, Any]:
    """Bounds and objectives in the program's quantities."""
    fleet = frame.system.fleet
    made = {"throughput_tok_s": fleet.batch_tokens, "throughput_samples_s": float(fleet.global_batch)}
    limits = {STEP: (-np.inf, np.inf), COST: (-np.inf, np.inf), POWER: (-np.inf, np.inf)}
    for column, (low, high) in bounds.items():
        if column in made and low > 0:
            limits[STEP] = (-np.inf, min(limits[STEP][1], made[column] / low))
        elif column == "step_time_s":
            limits[STEP] = (-np.inf, min(limits[STEP][1], high))
        elif column in ("cost_usd_per_h", "power_w"):
            limits[AXIS[column]] = (low, high)
    return {
        "bounds": limits,
        "objectives": [AXIS[o] for o in objectives],
        "batch_units": [made.get(o, 0.0) for o in objectives],
    }


def _required(space: Placements, frame: Frame, bounds: Mapping[str, tuple[float, float]]) -> frozenset[int] | None:
    """Pools that every design has, the wafers aside; None where no design of this frame can."""
    found = set()
    for p, s in enumerate(frame.system.fleet.settings):
        low, high = bounds.get(f"n_{space.pool_names[p]}", (-np.inf, np.inf))
        serves = frame.server is not None and frame.server[0] == p
        if serves and frame.server is not None and not low <= s.n[frame.server[1]] <= high:
            return None
        if not serves and (low > 0 or not (s.n == 0).any()):
            found.add(p)
    return frozenset(found)


def _arcs(frame: Frame, blocks: Sequence[Block], lengths: Sequence[int], required: frozenset[int]) -> list[Arc]:
    """Where blocks may lie: on some path from slot 0 to an allowed length, every pool at most once on it.

    One stage on a pool of streaming devices alone is no pipeline: each device runs the whole model (`whole_models`).
    """
    found: set[Arc] = set()
    seen: dict[tuple[int, frozenset[int]], bool] = {}

    def leads(low: int, used: frozenset[int]) -> bool:
        """Whether some path goes on from here; its arcs are noted."""
        if (low, used) not in seen:
            any_path = False
            for o, b in enumerate(blocks):
                top, now = low + b.stages, used | {b.pool}
                if b.pool in used or top > lengths[-1]:
                    continue
                streams = frame.system.fleet.pools[b.pool].device.streams
                if top in lengths and required <= now and not (top == 1 and streams):
                    found.add(Arc(o, low, True))
                    any_path = True
                if leads(top, now):
                    found.add(Arc(o, low, False))
                    any_path = True
            seen[low, used] = any_path
        return seen[low, used]

    leads(0, frozenset())
    return sorted(found)


def _most(frame: Frame, blocks: Sequence[Block], arcs: Sequence[Arc], lengths: Sequence[int]) -> dict[Choice, int]:
    """Layers that a stage may have; modes that another beats in time and memory are left out."""
    system, total = frame.system, frame.system.fleet.pools[0].work.layers
    least = system.chunks if system.schedule == "interleaved" else 1
    held = flying(frame, lengths[-1])
    slots = {(a.block, s, a.first and s == a.low + blocks[a.block].stages - 1)
             for a in arcs for s in range(a.low, a.low + blocks[a.block].stages)}  # fmt: skip
    found: dict[Choice, int] = {}
    tables = {
        (o, first): most_layers(frame, b, b.zero_stages[-1], held, first=first)
        for o, b in enumerate(blocks)
        for first in (False, True)
    }
    for o, s, first in sorted(slots):
        stages = next(k for k in lengths if k > s)
        room = total - system.offload_layers * stages - least * (stages - 1)
        caps = np.minimum(tables[o, first][:, s], room)
        for c in _undominated(blocks[o], caps, least, last=s == 0):
            found[Choice(s, o, c, first)] = int(caps[c])
    return found


def _undominated(b: Block, caps: Ints, least: int, *, last: bool) -> list[int]:
    """Modes that no other beats: as many layers, and every pass as fast."""
    times = [b.forward_s, b.backward_s, *([b.head_backward_s] if last else []), -caps.astype(np.float64)]
    values = np.stack(times, axis=1)
    kept: list[int] = []
    for c in range(len(caps)):
        better = [(values[o] <= values[c]).all() and ((values[o] < values[c]).any() or o < c) for o in range(len(caps))]
        if caps[c] >= least and not any(better[:c] + better[c + 1 :]):
            kept.append(c)
    return kept


def _scale(
    frame: Frame, blocks: Sequence[Block], most: Mapping[Choice, int], lengths: Sequence[int], served: Served | None
) -> dict[str, float]:
    """Bounds on what any plan reaches: the longest passes, and a step in which every stage had those.

    A step never shrinks when passes grow, and with equal passes f, b it is (N + K - 1) (f + b) under any schedule but
    for the transfers that interleaving repeats.
    """
    across = float(frame.across_s[list(frame.links)].max())
    longest_f = longest_b = gradient = 0.0
    work = frame.system.fleet.pools[0].work
    for i, n in most.items():
        b = blocks[i.block]
        head = (b.head_forward_s, b.head_backward_s[i.mode]) if i.slot == 0 else (0.0, 0.0)
        out = max(b.hop_s, across)
        longest_f = max(longest_f, float(n * b.forward_s[i.mode] + head[0] + out))
        longest_b = max(longest_b, float(n * b.backward_s[i.mode] + head[1] + out))
        held = n * work.layer_parameters + extra_parameters(frame, first=i.first, last=i.slot == 0)
        gradient = max(gradient, b.gradient_fixed_s + b.gradient_parameter_s * held)
    n_micro, k, longest = frame.n_micro, lengths[-1], longest_f + longest_b or 1.0
    returns, crossing = 0.0, float(frame.crossing_s[list(frame.links)].max())
    if served is not None:
        call = float((served.forward_s + served.backward_s).max())
        longest = max(longest, call, call * served.calls)  # and one stage more
        k += 1
        returns, crossing, gradient = 2 * k * across, 2 * k * crossing, max(gradient, float(served.gradient_s.max()))
    v = frame.system.chunks
    repeated = v * 2 * k * max(across, *(b.hop_s for b in blocks)) if v > 1 else 0.0
    step = max((n_micro + k) * longest + repeated + returns, crossing) + gradient or 1.0
    dearest: dict[int, tuple[float, float]] = {}
    for b in blocks:
        usd, w = dearest.get(b.pool, (0.0, 0.0))
        dearest[b.pool] = max(usd, b.usd_per_h), max(w, b.power_w)
    links = frame.system.fleet.links
    fixed = server_bill(frame)
    cost = sum(usd for usd, _ in dearest.values()) + len(dearest) * float(links.usd_per_h.max()) + fixed[0]
    power = sum(w for _, w in dearest.values()) + len(dearest) * float(links.power_w.max()) + fixed[1]
    gradient = gradient or 1.0
    return {STEP: step, "pace": longest, "gradient": gradient, COST: cost or 1.0, POWER: power or 1.0}


def server_bill(frame: Frame) -> tuple[float, float]:
    """Cost and power of the wafers."""
    if frame.server is None:
        return 0.0, 0.0
    p, row = frame.server
    bill = frame.system.fleet.bills[p]
    return float(bill.idle_usd_per_h[row]), float(bill.provisioned_w[row])


def _whole(
    space: Placements, index: Ints, objectives: Sequence[str], bounds: Mapping[str, tuple[float, float]]
) -> WholeData | None:
    numbers = space.numbers(index)
    ok = np.isfinite(numbers["step_time_s"]) & (numbers["mem_margin_byte"] >= 0) & (numbers["throughput_tok_s"] > 0)
    for column, (low, high) in bounds.items():
        ok &= (numbers[column] >= low) & (numbers[column] <= high)
    if not ok.any():
        return None
    step, cost, power = (numbers[c][ok] for c in ("step_time_s", "cost_usd_per_h", "power_w"))
    made = {c: float((numbers[c][ok] * step)[0]) for c in PER_STEP}
    return WholeData(
        index=index[ok],
        step_s=step,
        usd_per_h=cost,
        power_w=power,
        bounds=dict.fromkeys((STEP, COST, POWER), (-np.inf, np.inf)),
        objectives=[AXIS[o] for o in objectives],
        batch_units=[made.get(o, 0.0) for o in objectives],
        scale={STEP: float(step.max()), COST: float(cost.max()) or 1.0, POWER: float(power.max()) or 1.0},
    )
