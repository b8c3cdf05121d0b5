"""Exhaustive exploration: the grid in blocks, screened, and only what may be on the front scored in full."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dse.cluster import Workers
from dse.errors import MethodError
from dse.pareto import GatheredFront, RunningFront, minimised, signed
from dse.progress import Progress, Report, Stop
from dse.resolve import Study
from dse.scoring import bounds_of, serves, violation, within_bounds
from search_spaces.partial_fleets import TooManyPartsError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

SCREENED_PER_S = 2e7
"""Designs screened and merged a second on one core, for estimates (benchmarks/RESULTS.md)."""
TASKS_PER_WORKER = 8
MOST_UNITS_PER_TASK = 512
"""Long tasks pay for their start; a stop waits for the tasks that run."""
SEED_UNITS = 32
"""Blocks, evenly spread, that are looked at first: their front discards early what every part of the grid has."""
TOO_MANY_PARTS = "too many partial fleets of which none is worse than another"
PRUNED_DESIGNS = 20_000_000
"""Larger spaces are pruned where that loses nothing; below, looking at every design takes about a second."""


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


def refusal(study: Study) -> str:
    """Why enumeration cannot answer this study exactly; empty where it can."""
    refused = study.space.enumeration_refusal
    return f"exhaustive: {refused}" if refused else ""


def prunes(study: Study) -> bool:
    """Whether `explore` drops designs unseen: a space worth it, and a study that loses nothing by it."""
    return study.space.n_designs > PRUNED_DESIGNS and not pruning_refusal(study)


def pruning_refusal(study: Study) -> str:
    """Why every design has to be looked at; empty where some can be dropped unseen and the frontier stays exact."""
    return study.space.pruning_refusal(study.envelope.objectives.names, bounds_of(study))


def pruning(study: Study, found: Found) -> dict[str, Any]:
    """What a proof says of pruning: how much was compared and scored for a large space, or why it was not pruned."""
    if study.space.n_designs <= PRUNED_DESIGNS:
        return {}
    if not found.pruned:
        return {"pruned": None, "not_pruned_because": pruning_refusal(study) or TOO_MANY_PARTS}
    unseen = study.space.n_designs - found.scored
    return {"pruned": {"judged_in_bulk": unseen, "fleets_compared": found.candidates, "scored": found.scored}}


def explore(study: Study, *, workers: int, address: str, report: Report, stop: Stop) -> Found:
    """The exact frontier of the whole grid."""
    refused = refusal(study)
    if refused:
        raise MethodError(refused)
    if prunes(study):
        with suppress(TooManyPartsError):
            return explore_pruned(study, report=report, stop=stop)
    return enumerate_all(study, workers=workers, address=address, report=report, stop=stop)


def explore_pruned(study: Study, *, report: Report, stop: Stop) -> Found:
    """The exact frontier of the grid, one design for each of its points, by what no design can be better than."""
    objectives, bounds = study.envelope.objectives.names, bounds_of(study)
    best = GatheredFront(len(objectives), distinct=True)
    total = Found(best.front.points, best.front.index, pruned=True)
    for lot in study.space.pruned(objectives, bounds, best.front):
        total.candidates += lot.n_compared
        if len(lot.designs):
            total.scored += len(lot.designs)
            screen = study.space.screen_index(lot.designs)
            known = {name: bound for name, bound in bounds.items() if name in screen.columns}
            good = np.flatnonzero(screen.feasible & within_bounds(screen.columns, known, exact=screen.exact))
            values = {o: screen.columns[o][good] for o in objectives}
            best.add(minimised(values, objectives), lot.designs[good])
        report(_progress(0, 0, total, best.front, stop))
        if stop.asked():
            break
    return _finished(total, best)


def enumerate_all(study: Study, *, workers: int, address: str, report: Report, stop: Stop) -> Found:
    """The exact frontier of the grid by looking at every design."""
    n_units = study.space.n_units()
    per_task = max(1, n_units // (TASKS_PER_WORKER * max(workers, 1)) if workers > 1 else 64)
    per_task = min(per_task, MOST_UNITS_PER_TASK)
    chunks = [Chunk(first=i, last=min(i + per_task, n_units)) for i in range(0, n_units, per_task)]
    seed = _seed(study, max(1, n_units // SEED_UNITS))
    gathered = _seeded(seed)
    total = Found(gathered.front.points, gathered.front.index)
    estimated_s = study.space.n_designs / SCREENED_PER_S
    with Workers(search_chunk, seed, workers=workers, address=address) as pool:
        if not pool.worth_ray(estimated_s):
            _search_here(study, gathered, total, report, stop)
        else:
            for done, (_, found) in enumerate(pool.map(chunks, estimated_s=estimated_s), start=1):
                gathered.add(found.points, found.index)
                _count(total, found)
                report(_progress(done * per_task, n_units, total, gathered.front, stop))
                if stop.asked():
                    break
    return _finished(total, gathered)


def _finished(total: Found, gathered: GatheredFront) -> Found:
    """What was found, with the front in the order of the grid, each design once."""
    gathered.settle()
    order = np.unique(gathered.front.index, return_index=True)[1]
    total.points, total.index = gathered.front.points[order], gathered.front.index[order]
    return total


def _search_here(study: Study, gathered: GatheredFront, total: Found, report: Report, stop: Stop) -> None:
    """All blocks one after the other, until there is no time left."""
    n_units = study.space.n_units()
    for done, unit in enumerate(study.space.units(), start=1):
        _search_unit(study, unit, gathered, total)
        if done % 16 == 0 or done == n_units:
            report(_progress(done, n_units, total, gathered.front, stop))
        if stop.asked():
            return


def _progress(done: float, n_units: int, total: Found, front: RunningFront, stop: Stop) -> Progress:
    return Progress(
        method="exhaustive",
        done=min(done, n_units),
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
    found = _finished(found, gathered)
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
    found = _finished(found, gathered)
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


def sample_index(n_designs: int, most: int) -> Ints:
    """Grid indices to keep beside the front: all of a small space, an even sample of a large one."""
    if n_designs <= most:
        return np.arange(n_designs, dtype=np.int64)
    return np.unique(np.linspace(0, n_designs - 1, most).astype(np.int64))
