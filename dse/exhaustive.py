"""Exhaustive exploration: the grid in blocks, screened, and only what may be on the front scored in full."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from dse.checkpoint import Checkpoint, State
from dse.cluster import Workers
from dse.errors import MethodError
from dse.pareto import RunningFront, minimised, signed
from dse.progress import Progress, Report, Stop
from dse.resolve import Study
from dse.scoring import bounds_of, serves, violation, within_bounds

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

SCREENED_PER_S = 2e7
"""Designs screened a second on one core, for estimates (benchmarks/RESULTS.md)."""
TASKS_PER_WORKER = 8
LONGEST_TASK = 256
"""Blocks of one task on a worker: a fifth of a second."""
BLOCKS_HERE = 4
"""Blocks between two looks at the clock without workers: some milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """A range of the grid's blocks: one unit of work."""

    first: int
    last: int


@dataclass(slots=True)
class Found:
    """What some part of a space gave."""

    points: Floats
    index: Ints
    candidates: int = 0
    nearest: int = -1
    """Design that breaks the limits least, while none meets them."""
    nearest_violation: float = field(default=np.inf)


def refusal(study: Study) -> str:
    """Why enumeration cannot answer this study exactly; empty where it can."""
    refused = study.space.enumeration_refusal
    return f"exhaustive: {refused}" if refused else ""


def explore(
    study: Study, *, workers: int, address: str, report: Report, stop: Stop, checkpoint: Checkpoint | None = None
) -> Found:
    """The exact frontier of the whole grid; with a checkpoint, of what an earlier sitting left of it."""
    refused = refusal(study)
    if refused:
        raise MethodError(refused)
    front = RunningFront(len(study.envelope.objectives.names))
    total, done = _begun(front, checkpoint)
    estimated_s = study.space.n_designs / SCREENED_PER_S
    with Workers(search_chunk, study, workers=workers, address=address) as pool:
        on_ray = pool.worth_ray(estimated_s)
        landed = _landed(study, done, pool, front, total) if on_ray else _searched_here(study, done, front, total)
        for chunk in landed:
            done = _joined(done, chunk)
            report(_progress(done, study.space.n_units(), total, front, stop))
            last = stop.asked()
            if checkpoint and (last or checkpoint.due()):
                checkpoint.save(_state(front, total, done))
            if last:
                break
    order = np.argsort(front.index)
    total.points, total.index = front.points[order], front.index[order]
    return total


def _begun(front: RunningFront, checkpoint: Checkpoint | None) -> tuple[Found, list[Chunk]]:
    """What earlier sittings found, merged into the front, and the ranges they have done."""
    total, state = Found(front.points, front.index), checkpoint.load() if checkpoint else None
    if state is None:
        return total, []
    front.merge(state["points"], state["index"])
    total.candidates, total.nearest = state["candidates"], state["nearest"]
    total.nearest_violation = state["nearest_violation"]
    return total, [Chunk(first=first, last=last) for first, last in state["done"]]


def _state(front: RunningFront, total: Found, done: Sequence[Chunk]) -> State:
    return {
        "points": front.points,
        "index": front.index,
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
    study: Study, done: Sequence[Chunk], pool: Workers[Study, Chunk, Found], front: RunningFront, total: Found
) -> Iterator[Chunk]:
    """Chunks as workers finish them, merged."""
    n_units = study.space.n_units()
    n_left = n_units - sum(chunk.last - chunk.first for chunk in done)
    per_task = max(1, min(n_left // (TASKS_PER_WORKER * pool.workers), LONGEST_TASK))
    chunks = _left(done, n_units, per_task)
    for position, found in pool.map(chunks, estimated_s=np.inf):
        front.merge(found.points, found.index)
        _count(total, found)
        yield chunks[position]


def _searched_here(study: Study, done: Sequence[Chunk], front: RunningFront, total: Found) -> Iterator[Chunk]:
    """The blocks one after the other, against one front, in small chunks."""
    units, at = study.space.units(), 0
    for chunk in _left(done, study.space.n_units(), BLOCKS_HERE):
        for unit in islice(units, chunk.first - at, chunk.last - at):
            _search_unit(study, unit, front, total)
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


def search_chunk(study: Study, chunk: Chunk) -> Found:
    """Front of a range of blocks; what a worker runs."""
    front = RunningFront(len(study.envelope.objectives.names))
    found = Found(front.points, front.index)
    for unit in islice(study.space.units(), chunk.first, chunk.last):
        _search_unit(study, unit, front, found)
    found.points, found.index = front.points, front.index
    return found


def _search_unit(study: Study, unit: object, front: RunningFront, found: Found) -> None:
    """Screens one block and merges what may be on the front, scored first where screening only bounds it."""
    screen, legal, first = study.space.screen_unit(unit)
    found.candidates += int(np.count_nonzero(legal))
    possible = np.asarray(legal & screen.feasible)
    shape = possible.shape
    known = {k: np.broadcast_to(v, shape) for k, v in screen.columns.items()}
    bounds = bounds_of(study)
    screened = {name: bound for name, bound in bounds.items() if name in known}
    within = possible & within_bounds(known, screened, exact=screen.exact)
    if not len(front):
        _note_nearest(found, possible & ~within, known, bounds, first)
    objectives = study.envelope.objectives.names
    rows = np.flatnonzero(within)
    if not len(rows):
        return
    complete = all(o in known for o in objectives)
    if complete:
        values = {o: known[o].reshape(-1)[rows] for o in objectives}
        keep = front.may_improve(signed(values, objectives))
        rows, values = rows[keep], {o: v[keep] for o, v in values.items()}
    if not len(rows):
        return
    if complete and screen.exact and all(b in known for b in bounds):
        front.merge(minimised(values, objectives), rows + first)
    else:
        _score_and_merge(study, rows + first, front, bounds)


def _score_and_merge(study: Study, index: Ints, front: RunningFront, bounds: Mapping[str, tuple[float, float]]) -> None:
    """Scores what screening only bounds, and merges what is feasible."""
    columns = study.space.numbers(index)
    good = serves(columns) & within_bounds(columns, bounds, exact=True)
    front.merge(minimised(columns, study.envelope.objectives.names)[good], index[good])


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


def sample_index(n_designs: int, most: int) -> Ints:
    """Grid indices to keep beside the front: all of a small space, an even sample of a large one."""
    if n_designs <= most:
        return np.arange(n_designs, dtype=np.int64)
    return np.unique(np.linspace(0, n_designs - 1, most).astype(np.int64))
