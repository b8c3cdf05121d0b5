"""Every design of a grid, in blocks: screened, merged, and only what may be on the front scored in full."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from dse.checkpoint import Checkpoint, State
from dse.cluster import Workers
from dse.pareto import GatheredFront, RunningFront, minimised, signed
from dse.progress import Progress, Report, Stop
from dse.resolve import Study
from dse.scoring import bounds_of, serves, violation, within_bounds

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

SCREENED_PER_S = 2e7
"""Designs screened and merged a second on one core, for estimates (benchmarks/RESULTS.md)."""
TASKS_PER_WORKER = 8
LONGEST_TASK = 512
"""Blocks of one task on a worker: about half a second. Long tasks pay for their start; a stop waits for them."""
BLOCKS_HERE = 8
"""Blocks between two looks at the clock without workers: some milliseconds."""
SEED_UNITS = 32
"""Blocks, evenly spread, that are looked at first: their front discards early what every part of the grid has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """A range of the grid's blocks: one unit of work."""

    first: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """What every chunk starts from: the study, and the front of some of its blocks."""

    study: Study
    points: Floats
    index: Ints


@dataclass(slots=True)
class Found:
    """What some part of a space gave."""

    points: Floats
    index: Ints
    candidates: int = 0
    nearest: int = -1
    """Design that breaks the limits least, while none meets them."""
    nearest_violation: float = field(default=np.inf)
    pruned: bool = False
    """Whether designs were dropped unseen; `candidates` then counts fleets, and parts of them, that were compared."""
    scored: int = 0
    """Of a pruned space: designs scored by the model."""


def enumerate_all(
    study: Study, *, workers: int, address: str, report: Report, stop: Stop, checkpoint: Checkpoint | None = None
) -> Found:
    """The exact frontier of the grid by looking at every design; with a checkpoint, at what is left of it."""
    n_units = study.space.n_units()
    seed = _seed(study, max(1, n_units // SEED_UNITS))
    gathered = _seeded(seed)
    total, done = _begun(gathered, checkpoint)
    estimated_s = study.space.n_designs / SCREENED_PER_S
    with Workers(search_chunk, seed, workers=workers, address=address) as pool:
        on_ray = pool.worth_ray(estimated_s)
        landed = _landed(study, done, pool, gathered, total) if on_ray else _here(study, done, gathered, total)
        for chunk in landed:
            done = _joined(done, chunk)
            report(_progress(done, n_units, total, gathered.front, stop))
            last = stop.asked()
            if checkpoint and (last or checkpoint.due()):
                checkpoint.save(_state(gathered, total, done))
            if last:
                break
    return finished(total, gathered)


def finished(total: Found, gathered: GatheredFront) -> Found:
    """What was found, with the front in the order of the grid, each design once."""
    gathered.settle()
    order = np.unique(gathered.front.index, return_index=True)[1]
    total.points, total.index = gathered.front.points[order], gathered.front.index[order]
    return total


def _begun(gathered: GatheredFront, checkpoint: Checkpoint | None) -> tuple[Found, list[Chunk]]:
    """What earlier sittings found, merged into the front, and the ranges they have done."""
    total, state = Found(gathered.front.points, gathered.front.index), checkpoint.load() if checkpoint else None
    if state is None:
        return total, []
    gathered.add(state["points"], state["index"])
    total.candidates, total.nearest = state["candidates"], state["nearest"]
    total.nearest_violation = state["nearest_violation"]
    return total, [Chunk(first=first, last=last) for first, last in state["done"]]


def _state(gathered: GatheredFront, total: Found, done: Sequence[Chunk]) -> State:
    gathered.settle()
    return {
        "points": gathered.front.points,
        "index": gathered.front.index,
        "candidates": total.candidates,
        "nearest": total.nearest,
        "nearest_violation": total.nearest_violation,
        "done": [(chunk.first, chunk.last) for chunk in done],
    }


def _joined(done: Sequence[Chunk], chunk: Chunk) -> list[Chunk]:
    """Ranges that are done, in order, neighbours as one: ranges say it whatever the size of chunks was.

    >>> _joined([Chunk(first=0, last=4), Chunk(first=8, last=9)], Chunk(first=4, last=8))
    [Chunk(first=0, last=9)]
    """
    joined: list[Chunk] = []
    for part in sorted([*done, chunk], key=lambda c: c.first):
        if joined and joined[-1].last == part.first:
            joined[-1] = Chunk(first=joined[-1].first, last=part.last)
        else:
            joined.append(part)
    return joined


def _left(done: Sequence[Chunk], n_units: int, per_task: int) -> list[Chunk]:
    """What is not done, in chunks.

    >>> _left([Chunk(first=2, last=4)], 7, 2)
    [Chunk(first=0, last=2), Chunk(first=4, last=6), Chunk(first=6, last=7)]
    """
    starts = [0, *(chunk.last for chunk in done)]
    ends = [*(chunk.first for chunk in done), n_units]
    return [
        Chunk(first=first, last=min(first + per_task, end))
        for start, end in zip(starts, ends, strict=True)
        for first in range(start, end, per_task)
    ]


def _landed(
    study: Study, done: Sequence[Chunk], pool: Workers[Shared, Chunk, Found], gathered: GatheredFront, total: Found
) -> Iterator[Chunk]:
    """Chunks as workers finish them, merged."""
    n_units = study.space.n_units()
    n_left = n_units - sum(chunk.last - chunk.first for chunk in done)
    per_task = max(1, min(n_left // (TASKS_PER_WORKER * pool.workers), LONGEST_TASK))
    chunks = _left(done, n_units, per_task)
    for position, found in pool.map(chunks, estimated_s=study.space.n_designs / SCREENED_PER_S):
        gathered.add(found.points, found.index)
        _count(total, found)
        yield chunks[position]


def _here(study: Study, done: Sequence[Chunk], gathered: GatheredFront, total: Found) -> Iterator[Chunk]:
    """The blocks one after the other, against one front, in small chunks."""
    units, at = study.space.units(), 0
    for chunk in _left(done, study.space.n_units(), BLOCKS_HERE):
        for unit in islice(units, chunk.first - at, chunk.last - at):
            _search_unit(study, unit, gathered, total)
        at = chunk.last
        yield chunk


def _progress(done: Sequence[Chunk], n_units: int, total: Found, front: RunningFront, stop: Stop) -> Progress:
    return Progress(
        method="exhaustive",
        done=sum(chunk.last - chunk.first for chunk in done),
        total=n_units,
        candidates=total.candidates,
        front=len(front),
        elapsed_s=stop.elapsed_s,
    )


def _count(total: Found, part: Found) -> None:
    total.candidates += part.candidates
    nearer = (part.nearest_violation, part.nearest) < (total.nearest_violation, total.nearest)
    if part.nearest >= 0 and nearer:
        total.nearest, total.nearest_violation = part.nearest, part.nearest_violation


def _seed(study: Study, every: int) -> Shared:
    """The front of one block in so many."""
    gathered = GatheredFront(len(study.envelope.objectives.names))
    found = Found(gathered.front.points, gathered.front.index)
    for unit in islice(study.space.units(), 0, None, every) if every > 1 else ():
        _search_unit(study, unit, gathered, found)
    found = finished(found, gathered)
    return Shared(study=study, points=found.points, index=found.index)


def _seeded(shared: Shared) -> GatheredFront:
    """A front that knows what the seed found."""
    gathered = GatheredFront(len(shared.study.envelope.objectives.names))
    gathered.add(shared.points, shared.index)
    gathered.settle()
    return gathered


def search_chunk(shared: Shared, chunk: Chunk) -> Found:
    """Front of a range of blocks, less what the seed dominates; what a worker runs."""
    gathered = _seeded(shared)
    found = Found(gathered.front.points, gathered.front.index)
    for unit in islice(shared.study.space.units(), chunk.first, chunk.last):
        _search_unit(shared.study, unit, gathered, found)
    found = finished(found, gathered)
    new = ~np.isin(found.index, shared.index)
    found.points, found.index = found.points[new], found.index[new]
    return found


def _search_unit(study: Study, unit: object, gathered: GatheredFront, found: Found) -> None:
    """Screens one block and merges what may be on the front, scored first where screening only bounds it."""
    screen, legal, first = study.space.screen_unit(unit)
    found.candidates += int(np.count_nonzero(legal))
    possible = np.asarray(legal & screen.feasible)
    shape = possible.shape
    known = {k: np.broadcast_to(v, shape) for k, v in screen.columns.items()}
    bounds = bounds_of(study)
    screened = {name: bound for name, bound in bounds.items() if name in known}
    within = possible & within_bounds(known, screened, exact=screen.exact)
    if gathered.empty:
        _note_nearest(found, possible & ~within, known, bounds, first)
    objectives = study.envelope.objectives.names
    rows = np.flatnonzero(within)
    if not len(rows):
        return
    complete = all(o in known for o in objectives)
    if complete:
        values = {o: known[o].reshape(-1)[rows] for o in objectives}
        keep = gathered.front.may_improve(signed(values, objectives))
        rows, values = rows[keep], {o: v[keep] for o, v in values.items()}
    if not len(rows):
        return
    if complete and screen.exact and all(b in known for b in bounds):
        gathered.add(minimised(values, objectives), rows + first)
    else:
        _score_and_merge(study, rows + first, gathered, bounds)


def _score_and_merge(
    study: Study, index: Ints, gathered: GatheredFront, bounds: Mapping[str, tuple[float, float]]
) -> None:
    """Scores what screening only bounds, and merges what is feasible."""
    columns = study.space.numbers(index)
    good = serves(columns) & within_bounds(columns, bounds, exact=True)
    gathered.add(minimised(columns, study.envelope.objectives.names)[good], index[good])


def _note_nearest(
    found: Found,
    rejected: Bools,
    columns: Mapping[str, Floats],
    bounds: Mapping[str, tuple[float, float]],
    first: int,
) -> None:
    if not rejected.any():
        return
    amount = np.where(rejected, np.broadcast_to(violation(columns, bounds), rejected.shape), np.inf)
    best = int(amount.argmin())
    if amount.reshape(-1)[best] < found.nearest_violation:
        found.nearest, found.nearest_violation = first + best, float(amount.reshape(-1)[best])
