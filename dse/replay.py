"""The referee's engine: a trace of requests replayed on a serving design, event by event (SimPy).

What happens is not what the analytical model assumes: requests arrive when they arrive, each with its own lengths; an
instance batches whatever is there, mixes classes in one decode batch, fills and empties. Only the time of a pass is the
model's, at the batch and the context that the instance has at that moment. Between two changes of a batch, its steps
are summed in one call.

Prefill   prompts go to the instance of their pool with the least work left, first come, first served
Transfer  one KV cache after the other over the link of an ordered pair of pools
Decode    to the instance with the smallest batch that has room for the whole sequence; else they wait for room, first
          come, first served; newcomers join at the next step
Both      on an instance that does both phases prompts go first, as whole passes or chunk by chunk with a step between;
          of instances with equally much prefill left a prompt takes the one with most room
Stealing  pools divide their instances as the design's flows do, one of them in part; an instance with nothing to do
          takes the oldest prompt of the one with most work left if it is done sooner, and a sequence without room goes
          where there is some
"""

from __future__ import annotations

import heapq
from collections.abc import Generator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
import simpy
from numpy.typing import NDArray

from dse.model.phases import n_chunks
from dse.model.serving_flow import Flow
from dse.model.serving_system import System, pair_byte_s
from dse.replay_crew import Crew, Instance, Requests, crew_of

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Event = Generator[Any, Any, None]

MOST_STEPS: Final = 256
"""Steps summed in one call."""


@dataclass(frozen=True, kw_only=True)
class Replayed:
    """What became of each request (N,), and of each pool (P,)."""

    first_s: Floats
    """When its first token was there, its KV cache with it; NaN where that never came."""
    finish_s: Floats
    busy_prefill: Floats
    busy_decode: Floats
    """Share of the pool's time until the last arrival in each phase."""
    stolen: int
    """Prompts and sequences that another pool than the planned one took."""
    output_tok_s: float
    """Tokens generated per second between the two moments asked for; NaN if none were."""


class _Fleet:
    """A design at work."""

    def __init__(self, system: System, rows: Ints, link: Ints, flow: Flow, requests: Requests) -> None:
        self.env = simpy.Environment()
        self.requests = requests
        self.steps = np.maximum(np.round(requests.output_tokens) - 1, 0).astype(np.int64)
        self.crews = [crew_of(system, p, rows, flow, requests) for p in range(len(system.pools))]
        self.stealing = system.stealing and not flow.combined[0].any()
        self.quota = flow.z[0] / np.maximum(flow.z[0].sum(axis=(0, 1)), 1e-300)
        self.given = np.zeros_like(self.quota)
        self.kv_byte = system.pools[0].kv(requests.input_tokens)
        self.byte_s = pair_byte_s(system, link)[0]
        self.link_latency_s = system.links.latency_s[system.wiring.option[link[0]]]
        self.link_free_s = np.zeros(self.byte_s.shape)
        self.pools = np.zeros((len(requests), 2), dtype=np.int64)
        self.at = np.full(len(requests), -1, dtype=np.int64)
        """Instance that a request decodes on, where it is known from the start."""
        self.first_s = np.full(len(requests), np.nan)
        self.finish_s = np.full(len(requests), np.nan)
        self.tokens = 0
        self.stolen = 0
        for crew in self.crews:
            for instance in crew.instances:
                self.env.process(self._work(instance))
        self.env.process(self._arrive())

    # -- requests ---------------------------------------------------------------------------------

    def _arrive(self) -> Event:
        for r, moment in enumerate(self.requests.arrival_s.tolist()):
            if moment > self.env.now:
                yield self.env.timeout(moment - self.env.now)
            c = self.requests.label[r]
            self.given[:, :, c] += self.quota[:, :, c]
            p, o = np.unravel_index(int(self.given[:, :, c].argmax()), self.quota.shape[:2])
            self.given[p, o, c] -= 1.0
            self.pools[r] = p, o
            self._send(r, self.crews[int(p)])

    def _send(self, r: int, crew: Crew) -> None:
        """A prompt to the instance with least prefill left; of equal ones to that with most room, if it stays there."""
        if crew.combined:
            left_s = np.array([i.left_s + max(i.until_s - self.env.now, 0.0) for i in crew.instances])
            k = int(np.lexsort((crew.used_byte, left_s.round(9)))[0])
        else:
            ready_s, k = heapq.heappop(crew.ready)
            work_s = crew.prefill_s[r] / (crew.prefill_part[k] * self._batch_gain(crew, r))
            heapq.heappush(crew.ready, (max(ready_s, self.env.now) + work_s, k))
        crew.instances[k].prompts.append(r)
        crew.instances[k].left_s += crew.prefill_s[r]
        _wake(crew.instances[k])

    def _batch_gain(self, crew: Crew, r: int) -> float:
        """How much faster prompts are in full batches, about."""
        if crew.prefill_batch == 1:
            return 1.0
        full = np.interp(self.requests.input_tokens[r], crew.batched[0], crew.batched[1][-1]) / crew.prefill_batch
        return float(crew.prefill_s[r] / full)

    def _prefilled(self, r: int, instance: Instance, _: object = None) -> None:
        """The prompt's pass is over: on to where it decodes."""
        self.tokens += 1
        crew, (p, o) = instance.crew, self.pools[r].tolist()
        if crew.combined:
            self.first_s[r] = self.env.now
            if self.steps[r]:
                instance.joining.append(r)
            else:
                self.finish_s[r] = self.env.now
                crew.release(instance.number, r)
            return
        if self.stealing and self.steps[r] and self.crews[o].open_for(r) < 0:
            o = next((q for q, other in enumerate(self.crews) if other.open_for(r) >= 0), o)
            self.stolen += o != self.pools[r, 1]
            self.pools[r, 1] = o
        if p == o:
            self._arrived(r)
            return
        end_s = max(self.env.now, self.link_free_s[p, o]) + self.kv_byte[r] / self.byte_s[p, o]
        self.link_free_s[p, o] = end_s
        moved = self.env.timeout(end_s + self.link_latency_s[p, o] - self.env.now)
        moved.callbacks.append(partial(self._arrived, r))

    def _arrived(self, r: int, _: object = None) -> None:
        """First token and KV cache are where the request decodes."""
        self.first_s[r] = self.env.now
        if not self.steps[r]:
            self.finish_s[r] = self.env.now
            return
        crew = self.crews[self.pools[r, 1]]
        k = -1 if crew.waiting else crew.open_for(r)
        if k < 0:
            crew.waiting.append(r)
            return
        self._join(crew, k, r)

    def _join(self, crew: Crew, k: int, r: int) -> None:
        crew.take(k, r)
        crew.instances[k].joining.append(r)
        _wake(crew.instances[k])

    # -- instances --------------------------------------------------------------------------------

    def _work(self, instance: Instance) -> Event:
        """What an instance does, for ever: prompts first, then decode steps, then others' work."""
        crew = instance.crew
        while True:
            for r in instance.joining:
                heapq.heappush(instance.active, (instance.step + int(self.steps[r]), r))
                instance.context += self.requests.input_tokens[r] + 1.0
            instance.joining.clear()
            batch = self._next_prompts(instance)
            if batch:
                yield from self._prefill(instance, batch)
            elif instance.active:
                yield from self._decode(instance, MOST_STEPS)
            elif not (self.stealing and self._steal(instance)):
                instance.signal = self.env.event()
                yield instance.signal
            if not crew.combined:
                self._admit(crew)

    def _next_prompts(self, instance: Instance) -> list[int]:
        """Prompts of the next pass; where they will stay, only as many as there is room for."""
        crew, batch = instance.crew, list[int]()
        while instance.prompts and len(batch) < crew.prefill_batch:
            r = instance.prompts[0]
            if crew.combined:
                if not crew.fits_at(instance.number, r):
                    break
                crew.take(instance.number, r)
            batch.append(instance.prompts.popleft())
            instance.left_s -= crew.prefill_s[r]
        return batch

    def _prefill(self, instance: Instance, batch: list[int]) -> Event:
        """One pass, or its chunks with a decode step between; a pipeline is free again before the pass is through."""
        crew, started = instance.crew, self.env.now
        occupied_s, latency_s = self._pass_s(crew, batch)
        tokens = float(sum(self.requests.input_tokens[r] for r in batch))
        passes = int(n_chunks(tokens * crew.fresh_frac, crew.chunk_tokens)) if crew.combined else 1
        instance.until_s = started + occupied_s
        for k in range(passes):
            yield self.env.timeout(occupied_s / passes)
            crew.prefilling_s += occupied_s / passes
            if k < passes - 1 and instance.active:
                yield from self._decode(instance, 1)
                latency_s = max(latency_s, self.env.now - started)
        for r in batch:
            if self.env.now >= started + latency_s * (1 - 1e-12):
                self._prefilled(r, instance)
            else:
                through = self.env.timeout(started + latency_s - self.env.now)
                through.callbacks.append(partial(self._prefilled_and_wake, r, instance))

    def _prefilled_and_wake(self, r: int, instance: Instance, _: object = None) -> None:
        self._prefilled(r, instance)
        _wake(instance)

    def _pass_s(self, crew: Crew, batch: list[int]) -> tuple[float, float]:
        if len(batch) == 1:
            return float(crew.prefill_s[batch[0]]), float(crew.latency_s[batch[0]])
        tokens = float(np.mean(self.requests.input_tokens[batch]))
        grid, occupancy, latency = crew.batched
        k = len(batch) - 2
        return float(np.interp(tokens, grid, occupancy[k])), float(np.interp(tokens, grid, latency[k]))

    def _decode(self, instance: Instance, most: int) -> Event:
        """Steps until a sequence ends, something arrives, or `most` are done."""
        crew, b = instance.crew, len(instance.active)
        n = min(instance.active[0][0] - instance.step, most)
        contexts = instance.context / b + np.arange(n)
        ends = np.cumsum(np.interp(contexts, crew.contexts, crew.step_s[min(b, len(crew.step_s) - 1)]))
        started = self.env.now
        if n > 1:
            instance.signal = self.env.event()
            alarm = self.env.timeout(float(ends[-1]))
            alarm.callbacks.append(partial(_wake, instance, instance.signal))
            yield instance.signal
            done = int(np.searchsorted(ends, (self.env.now - started) * (1 + 1e-12), side="right"))
            if done < n:  # something arrived: the step that is under way is finished first
                done += 1
                yield self.env.timeout(max(started + float(ends[done - 1]) - self.env.now, 0.0))
        else:
            done = 1
            yield self.env.timeout(float(ends[0]))
        crew.decoding_s += float(ends[done - 1])
        self.tokens += done * b
        instance.step += done
        instance.context += done * b
        while instance.active and instance.active[0][0] <= instance.step:
            _, r = heapq.heappop(instance.active)
            instance.context -= self.requests.input_tokens[r] + 1.0 + self.steps[r]
            self.finish_s[r] = self.env.now
            crew.release(instance.number, r)

    def _admit(self, crew: Crew) -> None:
        """Waiting sequences, first come, first served, as far as there is room."""
        while crew.waiting:
            k = crew.open_for(crew.waiting[0])
            if k < 0:
                return
            self._join(crew, k, crew.waiting.popleft())

    def _steal(self, idle: Instance) -> bool:
        """Takes the oldest prompt of the instance with most work left, if it is done sooner here."""
        others = [i for crew in self.crews for i in crew.instances if i.prompts and i is not idle]
        if not others:
            return False
        victim = max(others, key=lambda i: i.left_s)
        r = victim.prompts[0]
        there_s = max(victim.until_s - self.env.now, 0.0) + victim.crew.latency_s[r]
        if idle.crew.latency_s[r] >= there_s:
            return False
        victim.prompts.popleft()
        victim.left_s -= victim.crew.prefill_s[r]
        self.stolen += idle.crew is not victim.crew
        self.pools[r, 0] = idle.crew.pool
        idle.prompts.append(r)
        idle.left_s += idle.crew.prefill_s[r]
        return True


def _wake(instance: Instance, mine: simpy.Event | None = None, _: object = None) -> None:
    """Tells an instance that there is something to do; an alarm only tells the wait it was set for."""
    signal = instance.signal
    if signal is not None and not signal.triggered and (mine is None or mine is signal):
        signal.succeed()


def replay(
    system: System, rows: Ints, link: Ints, flow: Flow, requests: Requests, between_s: tuple[float, float] | None = None
) -> Replayed:
    """Replays requests on one design; rows (P, 1), link (1,), flow of that design.

    Runs until every request is served; with `between_s` until the second of these moments, and counts the tokens that
    are generated between them.
    """
    fleet = _Fleet(system, rows, link, flow, requests)
    output_tok_s = float("nan")
    span_s = float(requests.arrival_s[-1])
    if between_s is not None:
        fleet.env.run(until=between_s[0])
        before = fleet.tokens
        fleet.env.run(until=between_s[1])
        output_tok_s = (fleet.tokens - before) / (between_s[1] - between_s[0])
    else:
        fleet.env.run(until=span_s or None)
    size = np.array([max(len(c.instances), 1) for c in fleet.crews]) * max(fleet.env.now, 1e-300)
    busy = [np.array([getattr(c, name) for c in fleet.crews]) / size for name in ("prefilling_s", "decoding_s")]
    if between_s is None:
        fleet.env.run()
    return Replayed(
        first_s=fleet.first_s,
        finish_s=fleet.finish_s,
        busy_prefill=busy[0],
        busy_decode=busy[1],
        stolen=fleet.stolen,
        output_tok_s=output_tok_s,
    )
