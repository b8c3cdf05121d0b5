"""The instances of a design's pools as a replay needs them: times of passes by table, room for sequences.

Times are the model's, tabulated once a design; linear between entries.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dse.model.decode_load import decode_frac, largest_mixed_batch
from dse.model.serving_flow import Flow
from dse.model.serving_pool import Mix, PoolPhysics
from dse.model.serving_system import System

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

CONTEXTS: Final = 65
"""Contexts at which step times are tabulated; linear between, as the model is but for one kink."""
LEAST_PART: Final = 0.02
"""A part of an instance smaller than this is not set aside for a phase."""


@dataclass(frozen=True, kw_only=True)
class Requests:
    """What is replayed (N,): arrival times in order, lengths, and the class of each in the study's mix."""

    arrival_s: Floats
    input_tokens: Floats
    output_tokens: Floats
    label: Ints

    def __len__(self) -> int:
        return len(self.arrival_s)

    def at_rate(self, requests_s: float) -> Requests:
        """The same requests, time stretched so that they arrive at this mean rate, from 0 on."""
        since = self.arrival_s - self.arrival_s[0]
        mean = (len(self) - 1) / since[-1] if len(self) > 1 and since[-1] > 0 else requests_s
        return replace(self, arrival_s=since * (mean / requests_s))


@dataclass(slots=True, eq=False)
class Instance:
    """One instance: what waits at it, what it decodes, and how long it was busy."""

    number: int
    crew: Crew
    prompts: deque[int] = field(default_factory=deque)
    joining: list[int] = field(default_factory=list)
    active: list[tuple[int, int]] = field(default_factory=list)
    """(step at which it ends, request), smallest first."""
    step: int = 0
    context: float = 0.0
    """Tokens of all active sequences together."""
    left_s: float = 0.0
    """Prefill that waits at it."""
    until_s: float = 0.0
    """When the pass under way ends."""
    signal: Any = None
    """What the instance waits for, an event of the engine."""


@dataclass(slots=True, eq=False)
class Crew:
    """The instances of one pool and what they know: times of passes, room for sequences."""

    pool: int
    prefill_part: Floats
    decode_part: Floats
    """Share of each instance that is meant for each phase (I,)."""
    combined: bool
    prefill_batch: int
    chunk_tokens: float
    fresh_frac: float
    """Share of a prompt that no cache holds."""
    most: int
    """Sequences that an instance may decode at once."""
    room_byte: float
    need_byte: Floats
    """Memory of a sequence on a device (N,)."""
    prefill_s: Floats
    latency_s: Floats
    batched: tuple[Floats, Floats, Floats]
    """Input tokens (T,), occupancy and latency of a pass of 2, 3, ... prompts of so many tokens (B, T)."""
    contexts: Floats
    step_s: Floats
    """Step at batch b and each context (most + 1, T)."""
    ready: list[tuple[float, int]] = field(default_factory=list)
    """(when it will have done all prompts, instance): a heap."""
    load: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    used_byte: Floats = field(default_factory=lambda: np.zeros(0))
    instances: list[Instance] = field(default_factory=list)
    waiting: deque[int] = field(default_factory=deque)
    prefilling_s: float = 0.0
    decoding_s: float = 0.0

    def open_for(self, request: int) -> int:
        """The instance with the smallest batch that has room; -1 where none has."""
        ok = (self.decode_part > 0) & (self.load < self.most)
        ok &= self.used_byte + self.need_byte[request] <= self.room_byte
        if not ok.any():
            return -1
        fill = np.where(ok, (self.load + 1) / np.maximum(self.decode_part, 1e-9), np.inf)
        return int(fill.argmin())

    def fits_at(self, k: int, request: int) -> bool:
        """Whether an instance has room for a sequence."""
        return (
            bool(self.load[k] < self.most and self.used_byte[k] + self.need_byte[request] <= self.room_byte)
            or not self.load[k]
        )

    def take(self, k: int, request: int) -> None:
        """Sets room aside."""
        self.load[k] += 1
        self.used_byte[k] += self.need_byte[request]

    def release(self, k: int, request: int) -> None:
        """Gives it back."""
        self.load[k] -= 1
        self.used_byte[k] -= self.need_byte[request]


def crew_of(system: System, p: int, rows: Ints, flow: Flow, requests: Requests) -> Crew:
    """Pool p of a design."""
    table, pool, row = system.tables[p], system.pools[p], int(rows[p, 0])
    settings, combined = table.settings, bool(flow.combined[0, p])
    n, g = round(float(table.instances[row])), float(settings.g[row])
    batch = int(settings.prefill_batch[row])
    chunk = pool.chunk_tokens if combined else np.inf
    passes = replace(pool, mix=_mix(requests.input_tokens, requests.output_tokens))
    alone = passes.prefill(np.array([[g]]), np.ones((1, 1)), chunk)
    fits = np.broadcast_to(alone.occupancy_s[0], len(requests))
    most = min(int(settings.max_decode_batch[row]), int(np.floor(largest_mixed_batch(system, p, rows, flow)[0] + 1e-9)))
    if not np.isfinite(system.limits.tpot_s):
        most = int(settings.max_decode_batch[row])
    crew = Crew(
        pool=p,
        prefill_part=np.zeros(n),
        decode_part=np.zeros(n),
        combined=combined,
        prefill_batch=batch,
        chunk_tokens=float(chunk),
        fresh_frac=1.0 - pool.hit_frac,
        most=most,
        room_byte=pool.usable - pool.weights_byte / g,
        need_byte=pool.kv(requests.input_tokens + requests.output_tokens) * float(pool.share(np.array(g))),
        prefill_s=fits,
        latency_s=np.broadcast_to(alone.latency_s[0], len(requests)),
        batched=_batched(pool, g, batch, requests.input_tokens, chunk),
        contexts=np.zeros(0),
        step_s=np.zeros((0, 0)),
    )
    crew.contexts, crew.step_s = _step_table(pool, g, most, requests)
    crew.prefill_part, crew.decode_part = _parts(system, p, rows, flow, n)
    crew.load, crew.used_byte = np.zeros(n, dtype=np.int64), np.zeros(n)
    crew.instances = [Instance(k, crew) for k in range(n)]
    crew.ready = [(0.0, k) for k in range(n) if crew.prefill_part[k] > 0]
    return crew


def _mix(input_tokens: Floats, output_tokens: Floats) -> Mix:
    """A mix whose classes are these lengths, so that a pool's physics answers for them."""
    share = np.full(len(input_tokens), 1.0 / max(len(input_tokens), 1))
    return Mix(share=share, input_tokens=input_tokens, output_tokens=output_tokens)


def _batched(pool: PoolPhysics, g: float, most: int, tokens: Floats, chunk: float) -> tuple[Floats, Floats, Floats]:
    grid = np.unique(np.geomspace(tokens.min(), tokens.max() + 1.0, 129))
    if most < 2:
        return grid, np.zeros((0, len(grid))), np.zeros((0, len(grid)))
    sizes = np.arange(2.0, most + 1.0)[:, None]
    time = replace(pool, mix=_mix(grid, np.ones_like(grid))).prefill(np.full_like(sizes, g), sizes, chunk)
    shape = (len(sizes), len(grid))
    return grid, np.broadcast_to(time.occupancy_s, shape), np.broadcast_to(time.latency_s, shape)


def _step_table(pool: PoolPhysics, g: float, most: int, requests: Requests) -> tuple[Floats, Floats]:
    whole = requests.input_tokens + requests.output_tokens
    contexts = np.linspace(float(requests.input_tokens.min()), float(whole.max()) + 1.0, CONTEXTS)
    sizes = np.maximum(np.arange(most + 1.0), 1.0)[:, None]
    at = replace(pool, mix=_mix(contexts, np.zeros_like(contexts)))
    return contexts, np.broadcast_to(at.decode(np.full_like(sizes, g), sizes).occupancy_s, (most + 1, CONTEXTS))


def _parts(system: System, p: int, rows: Ints, flow: Flow, n: int) -> tuple[Floats, Floats]:
    """What part of each instance is meant for each phase (I,)."""
    if flow.combined[0, p]:
        return np.ones(n), np.ones(n)
    prefills, decodes = bool(flow.prefilled[0, p].any()), bool(flow.decoded[0, p].any())
    if not (prefills and decodes):
        return np.full(n, float(prefills)), np.full(n, float(decodes))
    wanted = n * (1.0 - float(decode_frac(system, p, rows, flow)[0]))
    prefill = np.clip(wanted - np.arange(n), 0.0, 1.0)
    prefill[prefill < LEAST_PART] = 0.0
    prefill[prefill > 1.0 - LEAST_PART] = 1.0
    if prefill.max() == 0.0:
        prefill[0] = LEAST_PART
    if prefill.min() == 1.0:
        prefill[-1] = 1.0 - LEAST_PART
    return prefill, 1.0 - prefill
