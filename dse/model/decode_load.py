"""The decode batch that settles at a load, and the step time that goes with it (docs/model.md, section 6).

The sequences b of one instance settle where they are as many as arrive while they are served (Little):

    b = Lambda t(s)/(1 - phi),  s = b + 1/I

Lambda are the steps/s of the instance, phi its share of time in prefill; s is the batch that a sequence sees, itself
in it, of I instances among which the pool balances. Classes share a batch: t is averaged over their steps, and room is
shared as steps are. The batch spreads about its mean with the variance of an M/G/infinity with state-dependent rates,
(b/I)/(1 - dln t/dln b). Room is for I b_max sequences: an Erlang queue, each held for its steps at the full batch.

Source: processor sharing with state-dependent rates and its insensitivity: Cohen, Acta Informatica 12 (1979),
doi:10.1007/BF00264581.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from dse.model.fleet import share_of
from dse.model.queueing import erlang_c, mean_wait_s
from dse.model.serving_flow import Flow
from dse.model.serving_pool import PoolPhysics
from dse.model.serving_system import System, weighted

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

GRID: Final = 40
"""Batches at which step times are tabulated, between 1 and the largest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeLoad:
    """How one pool decodes at a load (N,)."""

    step_s: Floats
    """Time of a step at the batch that settles, prefill's share of the time included; infinite beyond capacity."""
    join_s: Floats
    """Until a sequence takes part that has room: half a step, while others decode."""
    room_s: Floats
    """Mean wait for room, and the probability of one."""
    full: Floats
    seen: Floats
    spread: Floats
    """Batch that a sequence sees, and its standard deviation."""
    active: Floats
    """Share of an instance's time in which it decodes at all."""
    most: Floats
    """Largest batch, of this mix."""
    grid: Floats
    """Batches (G,), and the time of a step at each, as `step_s` (N, G)."""
    grid_s: Floats

    def step_at(self, batch: Floats) -> Floats:
        """Time of a step at a batch a design (N,)."""
        return _between(self.grid, self.grid_s, np.minimum(batch, self.most))

    def within(self, limit_s: Floats) -> Floats:
        """Probability that the batch is one whose step takes at most so long; limit (N, C)."""
        fast = (self.grid_s[:, None, :] <= limit_s[:, :, None] * (1 + 1e-12)).sum(axis=2)
        low = np.clip(fast - 1, 0, len(self.grid) - 2)
        rows = np.arange(len(self.grid_s))[:, None]
        t0, t1 = self.grid_s[rows, low], self.grid_s[rows, low + 1]
        part = np.clip(np.divide(limit_s - t0, t1 - t0, out=np.ones_like(t0), where=t1 > t0), 0.0, 1.0)
        batch = self.grid[low] + part * (self.grid[low + 1] - self.grid[low])
        sure = (fast > 0) & (batch >= self.most[:, None])
        chance = ndtr((batch - self.seen[:, None]) / np.maximum(self.spread, 1e-9)[:, None])
        return np.where(sure, 1.0, np.where(fast > 0, chance, 0.0)) * np.isfinite(self.step_s)[:, None]


def _between(grid: Floats, values: Floats, at: Floats) -> Floats:
    """Linear between grid points: values (N, G) at `at` (N,)."""
    low = np.clip(np.searchsorted(grid, at, side="right") - 1, 0, len(grid) - 2)
    rows = np.arange(len(values))
    part = np.clip((at - grid[low]) / (grid[low + 1] - grid[low]), 0.0, 1.0)
    return np.asarray(values[rows, low] * (1.0 - part) + values[rows, low + 1] * part)


def step_grid(pool: PoolPhysics, g: Floats, most: float) -> tuple[Floats, Floats]:
    """Batches from 1 to `most` (G,), and the decode step of every class at each (J, G, C) [s]."""
    grid = np.unique(np.concatenate([np.geomspace(1.0, max(most, 2.0), GRID), [1.0, 2.0]]))
    sizes, batches = np.repeat(g, len(grid), axis=0), np.tile(grid[:, None], (len(g), 1))
    times = pool.decode(sizes, batches).occupancy_s
    return grid, times.reshape(len(g), len(grid), times.shape[1])


def decode_load(system: System, p: int, rows: Ints, flow: Flow, rate: Floats, busy_prefill: Floats) -> DecodeLoad:
    """Pool p of N designs; `busy_prefill` is the share of a decoding instance's time that prefill takes (N,)."""
    table, steps = system.tables[p], system.mix.steps
    most = largest_mixed_batch(system, p, rows, flow)
    first, inverse = np.unique(table.config[rows[p]], return_inverse=True)
    first_row = np.array([int(np.flatnonzero(table.config == c)[0]) for c in first], dtype=np.int64)
    size = table.settings.g[first_row].astype(np.float64)[:, None]
    grid, by_class = step_grid(system.pools[p], size, float(most.max(initial=1.0)))
    spare = np.maximum(1.0 - busy_prefill, 1e-12)
    grid_s = np.einsum("nc,ngc->ng", _step_weights(system, p, flow), by_class[inverse.reshape(-1)]) / spare[:, None]
    instances, decoded = _decoders(system, p, rows, flow), flow.decoded[:, p]
    steps_s = share_of(rate * (decoded * steps).sum(axis=1), instances)
    sequences_s = rate * (decoded * (steps > 0)).sum(axis=1)
    crowd = np.maximum(instances, 1.0)
    return _settled(grid, grid_s, steps_s, sequences_s, crowd, most, _steps_cv2(decoded, steps))


def _settled(
    grid: Floats, grid_s: Floats, steps_s: Floats, sequences_s: Floats, instances: Floats, most: Floats, cv2: Floats
) -> DecodeLoad:
    """Where the batch settles, (s - 1/I)/t(s) = Lambda on the grid; steps/s an instance, sequences/s of all (N,)."""
    served = (grid - 1.0 / instances[:, None]) / grid_s
    found = np.clip((served < steps_s[:, None]).sum(axis=1), 1, len(grid) - 1)
    at = np.arange(len(grid_s))
    s0, s1 = served[at, found - 1], served[at, found]
    part = np.clip(np.divide(steps_s - s0, s1 - s0, out=np.zeros_like(s0), where=s1 > s0), 0.0, 1.0)
    seen = np.clip(grid[found - 1] + part * (grid[found] - grid[found - 1]), 1.0, most)
    step_s, full_s = _between(grid, grid_s, seen), _between(grid, grid_s, most)
    slope = np.log(_between(grid, grid_s, seen * 1.1) / step_s) / np.log(1.1)
    mean = steps_s * step_s
    hold_s = share_of(steps_s * instances * full_s, sequences_s)  # of a sequence, all steps at the full batch
    room = np.maximum(most * instances, 1.0)
    wait_s = np.where(hold_s > 0, mean_wait_s(sequences_s, room, np.where(hold_s > 0, hold_s, 1.0), cv2), 0.0)
    stable = (steps_s * full_s < most * (1 - 1e-9)) | (steps_s == 0)
    active = np.minimum(mean, 1.0)
    return DecodeLoad(
        step_s=np.where(stable, step_s, np.inf),
        join_s=0.5 * step_s * active,
        room_s=np.where(stable, wait_s, np.inf),
        full=erlang_c(room, sequences_s * hold_s),
        seen=seen,
        spread=np.sqrt(mean / instances / np.clip(1.0 - slope, 0.05, 1.0)),
        active=active,
        most=most,
        grid=grid,
        grid_s=grid_s,
    )


def _steps_cv2(decoded: Floats, steps: Floats) -> Floats:
    """Squared variation of the steps of a sequence, over classes (N,)."""
    total = decoded.sum(axis=1)
    mean = share_of((decoded * steps).sum(axis=1), total)
    second = share_of((decoded * steps**2).sum(axis=1), total)
    return np.maximum(share_of(second, mean**2) - 1.0, 0.0)


def decode_frac(system: System, p: int, rows: Ints, flow: Flow) -> Floats:
    """Share of pool p's working time that decoding takes; 1 where it does nothing (N,)."""
    table = system.tables[p]
    config = table.config[rows[p]]
    prefill_s = weighted(flow.prefilled[:, p], table.prefill.request_s[config]).sum(axis=1)
    decode_s = weighted(flow.decoded[:, p], table.decode.request_s[config]).sum(axis=1)
    return np.divide(decode_s, prefill_s + decode_s, out=np.ones_like(decode_s), where=decode_s > 0)


def _decoders(system: System, p: int, rows: Ints, flow: Flow) -> Floats:
    """Instances that decode: all of a pool, and under work stealing the share of its time that decoding takes (N,)."""
    instances = system.tables[p].instances[rows[p]]
    if not system.stealing:
        return instances
    return np.where(flow.combined[:, p], instances, instances * decode_frac(system, p, rows, flow))


def _step_weights(system: System, p: int, flow: Flow) -> Floats:
    """Share of each class in the decode steps of pool p; even where it has none (N, C)."""
    tokens = flow.decoded[:, p] * system.mix.steps
    total = tokens.sum(axis=1, keepdims=True)
    return np.divide(tokens, total, out=np.full_like(tokens, 1.0 / tokens.shape[1]), where=total > 0)


def largest_mixed_batch(system: System, p: int, rows: Ints, flow: Flow) -> Floats:
    """Largest decode batch of pool p with its classes side by side: room is shared as steps are (N,)."""
    table = system.tables[p]
    config = table.config[rows[p]]
    caps = np.where(flow.combined[:, p][:, None], table.combined.batch[config], table.decode.batch[config])
    return np.asarray(1.0 / weighted(_step_weights(system, p, flow), 1.0 / np.maximum(caps, 1.0)).sum(axis=1))
