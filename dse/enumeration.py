"""Every design of a grid, in blocks: screened, merged, and only what may be on the front scored in full."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dse.checkpoint import Checkpoint, State
from dse.cluster import Workers
from dse.pareto import GatheredFront, minimised, signed
from dse.progress import Progress, Report, Stop
from dse.resolve import Study
from dse.scoring import bounds_of, serves, violation, within_bounds

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

TASKS_PER_WORKER = 8
LONGEST_TASK_S = 1.0
"""About as long a task on a worker may take: a stop waits for it, and so do the other workers at the end."""
BLOCKS_HERE = 8
"""Blocks between two looks at the clock without workers: some milliseconds."""
SPREAD_UNITS = 32
"""Blocks, evenly spread, that are looked at first: their front discards early what every part of the grid has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """A range of the grid's blocks: one unit of work."""

    first: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """What every chunk starts from: the study, and the front of what is done."""

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
    """Of a pruned space: designs scored by the model, some more than once."""


def enumerate_all(
    study: Study, *, workers: int, address: str, report: Report, stop: Stop, checkpoint: Checkpoint | None = None
) -> Found:
    """The exact frontier of the grid by looking at every design; with a checkpoint, at what is left of it."""
    grid = _Enumeration(study, report, stop, checkpoint)
    if grid.land(grid.spread()):
        shared = Shared(study=study, points=grid.gathered.front.points, index=grid.gathered.front.index)
        with Workers(search_chunk, shared, workers=workers, address=address) as pool:
            estimated_s = grid.block_s * grid.n_left
            grid.land(grid.on(pool) if pool.worth_ray(estimated_s) else grid.here())
    return finished(grid.total, grid.gathered)


class _Enumeration:
    """One pass over a grid: what is done, and what it gave."""

    def __init__(self, study: Study, report: Report, stop: Stop, checkpoint: Checkpoint | None) -> None:
        self.study, self.report, self.stop, self.checkpoint = study, report, stop, checkpoint
        self.n_units = study.space.n_units()
        self.gathered = GatheredFront(len(study.envelope.objectives.names))
        self.total = Found(self.gathered.front.points, self.gathered.front.index)
        self.done: list[Chunk] = []
        self.block_s = 0.0
        """About how long a block takes."""
        state = checkpoint.load() if checkpoint else None
        if state is not None:
            self._restore(state)

    @property
    def n_left(self) -> int:
        """Blocks that are not done."""
        return self.n_units - sum(chunk.last - chunk.first for chunk in self.done)

    def land(self, chunks: Iterable[Chunk]) -> bool:
        """Notes chunks as they are done; False where the run is to stop."""
        for chunk in chunks:
            self.done = joined(self.done, chunk)
            self.report(self._progress())
            last = self.stop.asked()
            if self.checkpoint and (last or self.checkpoint.due()):
                self.checkpoint.save(self._state())
            if last:
                return False
        self.gathered.settle()
        return True

    def spread(self) -> Iterator[Chunk]:
        """Some blocks, evenly spread, unless an earlier sitting has; how long they take."""
        if self.block_s:
            return
        started, searched = time.perf_counter(), 0
        for at in np.unique(np.linspace(0, self.n_units - 1, SPREAD_UNITS).astype(int)).tolist():
            if any(chunk.first <= at < chunk.last for chunk in self.done):
                continue
            if searched == 1:  # the first block builds tables, too
                started = time.perf_counter()
            yield from self._searched(Chunk(first=at, last=at + 1))
            searched += 1
        self.block_s = (time.perf_counter() - started) / max(searched - 1, 1)

    def here(self) -> Iterator[Chunk]:
        """The blocks one after the other, against one front, in small chunks."""
        for chunk in left(self.done, self.n_units, BLOCKS_HERE):
            yield from self._searched(chunk)

    def on(self, pool: Workers[Shared, Chunk, Found]) -> Iterator[Chunk]:
        """Chunks as workers finish them, merged."""
        most = LONGEST_TASK_S / self.block_s if self.block_s else np.inf
        per_task = max(1, int(min(self.n_left // (TASKS_PER_WORKER * pool.workers), most)))
        chunks = left(self.done, self.n_units, per_task)
        for position, found in pool.map(chunks, estimated_s=np.inf):
            self.gathered.add(found.points, found.index)
            _count(self.total, found)
            yield chunks[position]

    def _searched(self, chunk: Chunk) -> Iterator[Chunk]:
        for unit in self.study.space.units(chunk.first, chunk.last):
            _search_unit(self.study, unit, self.gathered, self.total)
        yield chunk

    def _progress(self) -> Progress:
        return Progress(
            method="exhaustive",
            done=self.n_units - self.n_left,
            total=self.n_units,
            candidates=self.total.candidates,
            front=len(self.gathered.front),
            elapsed_s=self.stop.elapsed_s,
        )

    def _state(self) -> State:
        self.gathered.settle()
        return {
            "points": self.gathered.front.points,
            "index": self.gathered.front.index,
            "candidates": self.total.candidates,
            "nearest": self.total.nearest,
            "nearest_violation": self.total.nearest_violation,
            "done": [(chunk.first, chunk.last) for chunk in self.done],
            "block_s": self.block_s,
        }

    def _restore(self, state: State) -> None:
        self.gathered.add(state["points"], state["index"])
        self.total.candidates, self.total.nearest = state["candidates"], state["nearest"]
        self.total.nearest_violation, self.block_s = state["nearest_violation"], state["block_s"]
        self.done = [Chunk(first=first, last=last) for first, last in state["done"]]


def finished(total: Found, gathered: GatheredFront) -> Found:
    """What was found, with the front in the order of the grid, each design once."""
    gathered.settle()
    order = np.unique(gathered.front.index, return_index=True)[1]
    total.points, total.index = gathered.front.points[order], gathered.front.index[order]
    return total


def joined(done: Sequence[Chunk], chunk: Chunk) -> list[Chunk]:
    """Ranges that are done, in order, neighbours as one: ranges say it whatever the size of chunks was.

    >>> joined([Chunk(first=0, last=4), Chunk(first=8, last=9)], Chunk(first=4, last=8))
    [Chunk(first=0, last=9)]
    """
    joined: list[Chunk] = []
    for part in sorted([*done, chunk], key=lambda c: c.first):
        if joined and joined[-1].last == part.first:
            joined[-1] = Chunk(first=joined[-1].first, last=part.last)
        else:
            joined.append(part)
    return joined


def left(done: Sequence[Chunk], n_units: int, per_task: int) -> list[Chunk]:
    """What is not done, in chunks.

    >>> left([Chunk(first=2, last=4)], 7, 2)
    [Chunk(first=0, last=2), Chunk(first=4, last=6), Chunk(first=6, last=7)]
    """
    starts = [0, *(chunk.last for chunk in done)]
    ends = [*(chunk.first for chunk in done), n_units]
    return [
        Chunk(first=first, last=min(first + per_task, end))
        for start, end in zip(starts, ends, strict=True)
        for first in range(start, end, per_task)
    ]


def _count(total: Found, part: Found) -> None:
    total.candidates += part.candidates
    nearer = (part.nearest_violation, part.nearest) < (total.nearest_violation, total.nearest)
    if part.nearest >= 0 and nearer:
        total.nearest, total.nearest_violation = part.nearest, part.nearest_violation


def _seeded(shared: Shared) -> GatheredFront:
    """A front that knows what every chunk starts from."""
    gathered = GatheredFront(len(shared.study.envelope.objectives.names))
    gathered.add(shared.points, shared.index)
    gathered.settle()
    return gathered


def search_chunk(shared: Shared, chunk: Chunk) -> Found:
    """Front of a range of blocks, less what was known before; what a worker runs."""
    gathered = _seeded(shared)
    found = Found(gathered.front.points, gathered.front.index)
    for unit in shared.study.space.units(chunk.first, chunk.last):
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
    if (float(amount.reshape(-1)[best]), first + best) < (found.nearest_violation, found.nearest):
        found.nearest, found.nearest_violation = first + best, float(amount.reshape(-1)[best])
