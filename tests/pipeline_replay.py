"""A pipeline step played through event by event, in plain Python: what the formulas of pp_schedule are held to.

A pass is (kind, chunk, micro-batch, stage), kind "F" or "B", all counted from 0. A schedule is one list of passes per
stage, run in that order; a pass starts once its stage is free and the pass it needs has ended. The pipeline runs
through all stages once per chunk, and back.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

Pass = tuple[str, int, int, int]
Schedule = list[list[Pass]]


def gpipe(n_stages: int, n_micro: int, *, last_first: bool = False, eager_end: bool = False) -> Schedule:
    """All forwards, then all backwards; `eager_end`: the last stage sends each micro-batch back at once."""
    back = range(n_micro - 1, -1, -1) if last_first else range(n_micro)
    schedule: Schedule = [
        [("F", 0, i, s) for i in range(n_micro)] + [("B", 0, i, s) for i in back] for s in range(n_stages)
    ]
    if eager_end:
        schedule[-1] = [(kind, 0, i, n_stages - 1) for i in range(n_micro) for kind in "FB"]
    return schedule


def one_f_one_b(n_stages: int, n_micro: int) -> Schedule:
    """Warm-up forwards, a forward and a backward in turn, the backwards left."""
    schedule: Schedule = []
    for s in range(n_stages):
        warm = min(n_micro, n_stages - 1 - s)
        passes: list[Pass] = [("F", 0, i, s) for i in range(warm)]
        for i in range(n_micro - warm):
            passes += [("F", 0, warm + i, s), ("B", 0, i, s)]
        passes += [("B", 0, i, s) for i in range(n_micro - warm, n_micro)]
        schedule.append(passes)
    return schedule


def interleaved(n_stages: int, n_micro: int, chunks: int) -> Schedule:
    """1F1B over chunks (arXiv:2104.04473, Fig. 4): K micro-batches through one chunk, then through the next."""
    groups = range(0, n_micro, n_stages)
    forward = [(c, g + i) for g in groups for c in range(chunks) for i in range(n_stages)]
    backward = [(c, g + i) for g in groups for c in range(chunks - 1, -1, -1) for i in range(n_stages)]
    schedule: Schedule = []
    for s in range(n_stages):
        warm = min(len(forward), 2 * (n_stages - 1 - s) + (chunks - 1) * n_stages)
        order = [("F", *p) for p in forward[:warm]]
        for to, fro in zip(forward[warm:], backward, strict=False):
            order += [("F", *to), ("B", *fro)]
        order += [("B", *p) for p in backward[len(forward) - warm :]]
        schedule.append([(kind, c, i, s) for kind, c, i in order])
    return schedule


def _needs(kind: str, chunk: int, micro: int, stage: int, n_stages: int, chunks: int) -> Pass | None:
    place = chunk * n_stages + stage
    if kind == "F":
        return ("F", (place - 1) // n_stages, micro, (place - 1) % n_stages) if place else None
    if place == chunks * n_stages - 1:
        return ("F", chunk, micro, stage)
    return ("B", (place + 1) // n_stages, micro, (place + 1) % n_stages)


def replay_s(
    schedule: Schedule, forward_s: Sequence[float], backward_s: Sequence[float], *, chunks: int = 1, flush: bool = False
) -> float:
    """Time at which the last pass ends. A chunk takes 1/chunks of its stage's time.

    `flush`: no backward starts anywhere before every forward has ended everywhere.
    """
    n_stages = len(schedule)
    done: set[Pass] = set()
    head = [0] * n_stages
    busy = [False] * n_stages
    waiting_forwards = sum(p[0] == "F" for passes in schedule for p in passes)
    events: list[tuple[float, Pass]] = []
    now = 0.0

    def start_what_can() -> None:
        for s, passes in enumerate(schedule):
            if busy[s] or head[s] == len(passes):
                continue
            kind, chunk, micro, stage = passes[head[s]]
            need = _needs(kind, chunk, micro, stage, n_stages, chunks)
            if (need is None or need in done) and not (flush and kind == "B" and waiting_forwards):
                busy[s] = True
                duration = (forward_s if kind == "F" else backward_s)[s] / chunks
                heapq.heappush(events, (now + duration, passes[head[s]]))

    start_what_can()
    while events:
        now, ended = heapq.heappop(events)
        done.add(ended)
        waiting_forwards -= ended[0] == "F"
        busy[ended[3]] = False
        head[ended[3]] += 1
        start_what_can()
    if len(done) != sum(map(len, schedule)):
        raise AssertionError(f"the schedule stalls after {len(done)} passes")
    return now


def held(passes: Sequence[Pass], chunks: int = 1) -> float:
    """Most micro-batches of which a stage that runs `passes` holds activations at once; a chunk counts 1/chunks."""
    most = count = 0
    for kind, *_ in passes:
        count += 1 if kind == "F" else -1
        most = max(most, count)
    return most / chunks
