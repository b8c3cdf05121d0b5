"""Uniform offload event by event: stages in the order of 1F1B, and a wafer that takes what comes first.

The model counts the wafer as one more stage of a pipeline, so it never makes a stage wait for the way there and back.
This holds if stage s starts with 2 (K - s) forwards, which keeps in flight the 2 (K - s) + 1 micro-batches that memory
counts. With the K - s of a chain without offload, a round of two neighbours, f_s + b_s + f_s+1 + b_s+1 and two visits
to the wafer, passes only two micro-batches: the period is longer by half of what two visits take, and by their queue.

Times of passes are the model's; the ways between wafer and stages are left out, as they are in its period.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from dse.model.pp_chain import chain_of, placement
from dse.model.pp_stage import layer_time
from search_spaces.pp_training_design import PpDesign

from .pp_fleet import GLOBAL_BATCH, Layout, settings_of, space

WARM_UP: Final = 2
"""Forwards of stage s before its first backward, over K - s: the order whose memory the model counts."""
Pass = tuple[int, bool, int]
"""Stage from 0 on, whether it is the backward, micro-batch."""


def replayed_samples_s(
    at: Layout, offload: int, *, micro_batch: int = 1, pipelines: int = 1, collect: int = 1, warm_up: int = WARM_UP
) -> float:
    """Throughput of a design whose stages start with warm_up (K - s) forwards.

    Only where the wafer collects a micro-batch of every pipeline, so that all of them run alike.
    """
    if collect != pipelines:
        raise ValueError(f"replay: {pipelines} pipelines of which the wafer collects {collect}; they must be the same")
    keys = settings_of(at, offload=offload, micro_batch=micro_batch, pipelines=pipelines, collect=collect)
    forward, backward, visits = _pass_times(at.model, keys)
    ahead = [warm_up * (at.stages - 1 - s) for s in range(at.stages)]
    n = GLOBAL_BATCH // (pipelines * micro_batch)
    return GLOBAL_BATCH / Replay(forward=forward, backward=backward, visits=visits, ahead=ahead, n=n).run()


def _pass_times(model: str, keys: Mapping[str, str]) -> tuple[list[float], list[float], tuple[float, float]]:
    """Forward and backward of each stage, and of the layers of one stage on the wafer."""
    found = space(model)
    design = PpDesign(found.problem, keys)
    problem, chosen = design.finish(design.rows)
    system = found.build(problem, design.regime, chosen)
    rows, first = np.zeros((len(chosen), 1), dtype=np.int64), np.zeros(1, dtype=np.int64)
    place = placement(system, rows)
    chain = chain_of(system, place, first, np.array([design.link], dtype=np.int64))
    server = int(place.server[0].argmax())
    wafer = layer_time(system.fleet.pools[server], place.micro_batch * system.collect, place.g[:, server])
    visits = (float(system.offload_layers * np.max(t)) for t in (wafer.forward_s, wafer.backward_s))
    return [*map(float, chain.forward_s[0])], [*map(float, chain.backward_s[0])], (next(visits), next(visits))


@dataclass(kw_only=True)
class Replay:
    """One step of n micro-batches; wafer layers of a stage come before its own."""

    forward: Sequence[float]
    backward: Sequence[float]
    visits: tuple[float, float]
    ahead: Sequence[int]
    """Forwards of each stage before its first backward."""
    n: int
    _ends: list[tuple[float, int, bool, Pass]] = field(default_factory=list)
    _count: int = 0
    _ready: set[Pass] = field(default_factory=set)
    _at_wafer: deque[Pass] = field(default_factory=deque)
    _wafer_busy: bool = False
    _entered: int = 0

    def run(self) -> float:
        """Length of the step [s]."""
        orders = [deque(self._order(s)) for s in range(len(self.forward))]
        busy, now = [False] * len(orders), 0.0
        self._serve(now)
        while self._ends:
            now, _, from_wafer, (s, back, i) = heapq.heappop(self._ends)
            if from_wafer:
                self._wafer_busy = False
                at = s - 1 if back else s
                if at >= 0:
                    self._ready.add((at, back, i))
                    self._start(at, orders[at], busy, now)
            else:
                busy[s] = False
                self._pass_on(s, back, i)
                self._start(s, orders[s], busy, now)
            self._serve(now)
        return now

    def _order(self, s: int) -> list[Pass]:
        """1F1B: some forwards ahead, then one of each in turn, then the backwards left."""
        w = min(self.n, self.ahead[s])
        turns = [p for i in range(self.n - w) for p in ((s, False, i + w), (s, True, i))]
        return [*((s, False, i) for i in range(w)), *turns, *((s, True, i) for i in range(self.n - w, self.n))]

    def _start(self, s: int, order: deque[Pass], busy: list[bool], now: float) -> None:
        """Begins a stage's next pass if it is free and the pass is ready."""
        if not busy[s] and order and order[0] in self._ready:
            one = order.popleft()
            self._ready.discard(one)
            busy[s] = True
            self._end(now + (self.backward if one[1] else self.forward)[s], False, one)

    def _pass_on(self, s: int, back: bool, i: int) -> None:
        """What ends on a stage goes to the wafer, but for the turn on the last stage."""
        if back:
            self._at_wafer.append((s, True, i))
        elif s < len(self.forward) - 1:
            self._at_wafer.append((s + 1, False, i))
        else:
            self._ready.add((s, True, i))

    def _serve(self, now: float) -> None:
        """The wafer takes the first in its queue, or the next micro-batch if the first stage has none waiting."""
        if self._wafer_busy:
            return
        if self._at_wafer:
            one = self._at_wafer.popleft()
        elif self._entered < self.n and (0, False, self._entered - 1) not in self._ready:
            one = (0, False, self._entered)
            self._entered += 1
        else:
            return
        self._wafer_busy = True
        self._end(now + self.visits[one[1]], True, one)

    def _end(self, at: float, from_wafer: bool, one: Pass) -> None:
        self._count += 1
        heapq.heappush(self._ends, (at, self._count, from_wafer, one))
