"""Which placements a pipeline study allows: what is fixed for one exact program, and what a pool may be there.

A placement keeps to the study's axes, one micro-batch and number of pipelines at a time, but its layers lie anywhere,
its pools come in any order, and every stage has a recompute mode of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dse.model.pp_blocks import Block, Frame, PlacedPipeline, block_of
from dse.model.pp_chain import PpSystem

from .training_options import Regime

if TYPE_CHECKING:
    from .pp_training import PpSpace

Ints = NDArray[np.int64]


def frames(space: PpSpace) -> Iterator[tuple[Frame, Regime]]:
    """Every combination of what a program fixes, with a regime of it.

    Without offload: data type, batch, schedule, micro-batch, pipelines. With it also the recompute mode of the wafers,
    the wafers themselves and the link.
    """
    n_links = len(space.link_names)
    for regime in space.regimes:
        first = regime.recompute == space.problem.recompute[0]
        modes = list(dict.fromkeys(space.problem.recompute))
        if regime.offload_layers:
            modes.sort(key=lambda mode: mode != regime.recompute)
        elif not first:
            continue
        systems = tuple(space.system(replace(regime, recompute=mode)) for mode in modes)
        for micro_batch, replicas in _rhythms(systems[0]):
            found = Frame(
                systems=systems,
                modes=tuple(modes),
                micro_batch=micro_batch,
                replicas=replicas,
                links=tuple(range(n_links)),
            )
            if not regime.offload_layers:
                yield found, regime
                continue
            for server in _servers(systems[0], replicas):
                for link in range(n_links):
                    yield replace(found, server=server, links=(link,)), regime


def _rhythms(system: PpSystem) -> list[tuple[int, int]]:
    """Micro-batches and numbers of pipelines that some pool of stages may have, and that divide the batch."""
    found = set()
    for p, s in zip(system.fleet.pools, system.fleet.settings, strict=True):
        if not (system.offload_layers and p.device.streams):
            for n, g, k, m in zip(s.n.tolist(), s.g.tolist(), s.stages.tolist(), s.micro_batch.tolist(), strict=True):
                if n and system.fleet.global_batch % (n // (g * k) * m) == 0:
                    found.add((m, n // (g * k)))
    return sorted(found)


def _servers(system: PpSystem, replicas: int) -> Iterator[tuple[int, int]]:
    """Wafers that serve so many pipelines in whole calls: pool and first row of each purchase."""
    for p, (pool, s) in enumerate(zip(system.fleet.pools, system.fleet.settings, strict=True)):
        seen = set()
        for row in np.flatnonzero((s.n > 0) & (s.stages == 1)) if pool.device.streams else ():
            wafers = int(s.n[row] // s.g[row])
            key = (int(s.n[row]), int(s.g[row]), int(s.zero_stage[row]))
            if key not in seen and replicas % (wafers * system.collect) == 0:
                seen.add(key)
                yield p, int(row)


def blocks(frame: Frame) -> list[Block]:
    """Every way to use a pool for stages in this frame; ZeRO stages, which cost no time, together in one."""
    found = []
    for p, (pool, s) in enumerate(zip(frame.system.fleet.pools, frame.system.fleet.settings, strict=True)):
        streams = pool.device.streams
        if frame.server is not None and streams:
            continue
        rows: dict[tuple[int, int, int], list[int]] = {}
        for row in np.flatnonzero((s.n > 0) & (s.replicas == frame.replicas)).tolist():
            if streams or s.micro_batch[row] == frame.micro_batch:
                rows.setdefault((int(s.n[row]), int(s.g[row]), int(s.stages[row])), []).append(row)
        for mine in rows.values():
            found.append(block_of(frame, p, mine[0], sorted({int(s.zero_stage[row]) for row in mine})))
    return found


def sets_micro_batch(frame: Frame, pool: int) -> bool:
    """Whether a chain with this pool may have the frame's micro-batch; streaming pools take that of the others."""
    s = frame.system.fleet.settings[pool]
    return bool((s.micro_batch[s.n > 0] == frame.micro_batch).any())


def settings_of_placement(space: PpSpace, regime: Regime, placed: PlacedPipeline) -> dict[str, str]:
    """The `--set` keys of a placement."""
    names, frame, modes = space.pool_names, placed.frame, placed.modes
    common = max(frame.modes, key=lambda mode: (modes.count(mode), -frame.modes.index(mode)))
    if frame.server is not None:
        common = frame.modes[0]
    found = {
        "compute_dtype": regime.compute_dtype,
        "recompute": common,
        "global_batch": str(regime.global_batch),
        "schedule": regime.schedule,
        "chunks": str(regime.chunks),
        "offload_layers": str(regime.offload_layers),
        "collect": str(regime.collect),
        **{f"n_{name}": "0" for name in names},
    }
    used = [(b.pool, b.n, b.g, b.stages, zero) for b, zero in placed.chain]
    if frame.server is not None:
        p, row = frame.server
        s = frame.system.fleet.settings[p]
        used.append((p, int(s.n[row]), int(s.g[row]), 1, int(s.zero_stage[row])))
    for p, n, g, stages, zero in used:
        values = {"n": n, "instance_size": g, "stages": stages, "zero_stage": zero, "micro_batch": frame.micro_batch}
        found |= {f"{key}_{names[p]}": str(value) for key, value in values.items()}
    order = [b.pool for b, _ in placed.chain]
    if order != sorted(order):
        found["pool_order"] = ",".join(names[p] for p in order)
    if any(mode != common for mode in modes):
        found |= {f"recompute_{s}": mode for s, mode in enumerate(modes, start=1)}
    found |= {f"layers_{s}": str(n) for s, n in enumerate(placed.layers, start=1)}
    if len(used) > 1:
        found["link"] = space.link_names[placed.link]
    return found


def whole_models(space: PpSpace) -> Iterator[Ints]:
    """Per regime, the designs of one pool of streaming devices that each hold the whole model: no placement at all."""
    for number, regime in enumerate(space.regimes):
        system = space.system(regime)
        found = []
        for p, (pool, s) in enumerate(zip(system.fleet.pools, system.fleet.settings, strict=True)):
            nothing = [np.flatnonzero(other.n == 0)[:1] for other in system.fleet.settings]
            rows = np.flatnonzero((s.n > 0) & (s.stages == 1))
            others_absent = all(len(none) for q, none in enumerate(nothing) if q != p)
            if pool.device.streams and not regime.offload_layers and len(rows) and others_absent:
                axes = [rows if q == p else none for q, none in enumerate(nothing)]
                index = space.grid.crossing(number, [np.zeros(1, dtype=np.int64), *axes])
                found.append(index[space.legal(index)])
        if found and sum(map(len, found)):
            yield np.concatenate(found)
