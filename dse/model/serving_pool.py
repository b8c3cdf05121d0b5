"""The phases of one pool for serving: batches, times, what fits, what meets a limit (docs/model.md, section 4 and 6).

Shapes: J configurations (settings of a pool less its count) by C request classes, unless said otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dse.hardware import Accelerator
from dse.model.memory import largest_batch, resident_byte, usable_byte
from dse.model.phases import PassTime, decode_time, prefill_time
from dse.model.queueing import largest_rate
from dse.model.transformer import Arithmetic, kv_byte, kv_share, weight_byte
from dse.units import DTYPE_BYTE

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]

PREFILL, DECODE, BOTH, ANY = 0, 1, 2, 3
ROLE_NAMES = ("prefill", "decode", "both", "any")
"""`any`: work stealing, where roles are ignored and the flows decide."""

NO_LIMIT_S = 1e300
"""Stands for no limit where infinity would meet a zero."""

P99_SHARE = 0.01
"""p99 looks at the slowest class that is at least this share of all requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """Request classes: shares that sum to 1, input and output tokens, each of shape (C,)."""

    share: Floats
    input_tokens: Floats
    output_tokens: Floats

    @property
    def steps(self) -> Floats:
        """Decode steps: prefill yields the first token, the rest take one step each."""
        return np.maximum(self.output_tokens - 1.0, 0.0)

    @property
    def counted(self) -> Bools:
        """Classes that p99 looks at: those of at least 1 % share, or all if none is."""
        large = self.share >= P99_SHARE
        return large if large.any() else self.share > 0

    @property
    def context_tokens(self) -> Floats:
        """Mean context of a decode step: input + output/2."""
        return self.input_tokens + self.output_tokens / 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """Data types of one regime."""

    weight: str
    kv: str
    compute: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """K settings of a pool: devices, devices per instance, role code, batch axes; each of shape (K,)."""

    n: Ints
    g: Ints
    role: Ints
    prefill_batch: Ints
    max_decode_batch: Ints

    def __len__(self) -> int:
        return len(self.n)

    def rows(self, index: Ints) -> Settings:
        """The settings at these rows."""
        return Settings(
            n=self.n[index],
            g=self.g[index],
            role=self.role[index],
            prefill_batch=self.prefill_batch[index],
            max_decode_batch=self.max_decode_batch[index],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseTable:
    """One phase of one pool: the pass at the batch it runs at, and whether it can run at all (K, C)."""

    time: PassTime
    batch: Floats
    request_s: Floats
    """Seconds of one instance that one request takes; infinite where the phase cannot run."""
    fits: Bools
    missing_byte: Floats
    """Bytes per device by which the smallest batch does not fit; 0 where it fits."""
    margin_byte: Floats
    """Usable bytes per device left at this batch; negative by `missing_byte` where it does not fit."""
    meets_slo: Bools

    @property
    def service_s(self) -> Floats:
        """Occupancy over batch: `request_s` of one pass, finite whether or not the phase fits."""
        return self.time.occupancy_s / self.batch


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingLimits:
    """Service limits; infinite where there is none."""

    ttft_p99_s: float = np.inf
    tpot_s: float = np.inf


def largest_whole(meets: Callable[[Floats], Bools], upper: Floats) -> Floats:
    """Largest whole number in [1, upper] that meets a limit which smaller ones meet more easily; else 0."""
    low, high = np.zeros_like(upper), np.maximum(upper, 0.0)
    whole = meets(np.maximum(high, 1.0))
    for _ in range(int(np.ceil(np.log2(max(float(high.max(initial=1.0)), 1.0) + 1.0)))):
        middle = np.ceil((low + high) / 2.0)
        ok = meets(np.maximum(middle, 1.0))
        low = np.where(ok, np.maximum(low, middle), low)
        high = np.where(ok, high, np.minimum(high, middle - 1.0))
        high = np.maximum(high, low)
    return np.where(whole, np.maximum(upper, 0.0), low)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolPhysics:
    """The pieces that all settings of one pool share."""

    device: Accelerator
    model: Arithmetic
    mix: Mix
    precision: Precision
    limits: ServingLimits
    hit_frac: float
    reserve_frac: float
    chunk_tokens: float = np.inf
    """Prompt tokens of one pass where the instance also decodes: between two such passes it makes a decode step."""

    @property
    def computes(self) -> bool:
        """Whether the device has the arithmetic at all."""
        return self.device.peak(self.precision.compute) is not None

    def prefill(self, g: Floats, batch: Floats, chunk_tokens: float | Floats = np.inf) -> PassTime:
        """Prefill pass of every class (K, C), or the passes it takes in chunks."""
        return prefill_time(
            self.device,
            self.model,
            g=g,
            batch=batch,
            input_tokens=self.mix.input_tokens,
            hit_frac=self.hit_frac,
            weight_dtype_byte=DTYPE_BYTE[self.precision.weight],
            kv_dtype_byte=DTYPE_BYTE[self.precision.kv],
            compute_dtype=self.precision.compute,
            chunk_tokens=chunk_tokens,
        )

    def decode(self, g: Floats, batch: Floats) -> PassTime:
        """Decode step of every class (K, C)."""
        return decode_time(
            self.device,
            self.model,
            g=g,
            batch=batch,
            context_tokens=self.mix.context_tokens,
            weight_dtype_byte=DTYPE_BYTE[self.precision.weight],
            kv_dtype_byte=DTYPE_BYTE[self.precision.kv],
            compute_dtype=self.precision.compute,
        )

    def share(self, g: Floats) -> Floats:
        """Part of a sequence's KV cache on one device: heads (tensor) or layers (pipeline)."""
        return kv_share(self.model, g) if self.device.arrangement == "tensor" else 1.0 / g

    def kv(self, tokens: Floats) -> Floats:
        """KV bytes of one sequence."""
        return kv_byte(self.model, tokens, DTYPE_BYTE[self.precision.kv])

    @property
    def weights_byte(self) -> float:
        """All weights [byte]."""
        return weight_byte(self.model, DTYPE_BYTE[self.precision.weight])

    @property
    def usable(self) -> float:
        """Usable bytes per device."""
        return float(usable_byte(self.device.memory_byte, self.reserve_frac))

    def device_memory(self, g: float, margin_byte: float) -> dict[str, Any]:
        """What one device of an instance of g holds while serving, for explanations; nothing is kept outside [byte]."""
        weights = self.weights_byte / g
        return {
            "device_byte": self.device.memory_byte,
            "usable_byte": self.usable,
            "held": {"weights": weights, "caches and work": self.usable - margin_byte - weights},
            "outside_byte": 0.0,
            "outside": {},
            "margin_byte": margin_byte,
        }

    @property
    def tpot_limit_s(self) -> Floats:
        """TPOT limit per class (C,); infinite for a class that never decodes."""
        return np.where(self.mix.steps > 0, self.limits.tpot_s, np.inf)


def prefill_table(
    pool: PoolPhysics, g: Floats, batch: Floats, tokens: Floats, chunk_tokens: float | Floats = np.inf
) -> PhaseTable:
    """Prefill at a given batch; `tokens` (K, C) is what a sequence keeps resident meanwhile."""
    time = pool.prefill(g, batch, chunk_tokens)
    need = resident_byte(pool.weights_byte, g, batch, pool.kv(tokens), pool.share(g))
    margin = pool.usable - need
    fits = margin >= 0
    return PhaseTable(
        time=time,
        batch=np.broadcast_to(batch, fits.shape),
        request_s=np.where(fits, time.occupancy_s / batch, np.inf),
        fits=fits,
        missing_byte=np.maximum(-margin, 0.0),
        margin_byte=margin,
        meets_slo=np.ones_like(fits),
    )


def decode_table(pool: PoolPhysics, g: Floats, max_batch: Floats, step_limit_s: Floats) -> PhaseTable:
    """Decode at the largest batch that memory, the axis and the step limit allow: b/t(b) only grows."""
    tokens = pool.mix.input_tokens + pool.mix.output_tokens
    sequence, share = pool.kv(tokens), pool.share(g)
    cap = np.minimum(largest_batch(pool.usable, pool.weights_byte, g, sequence, share), max_batch)
    fits = cap >= 1.0
    batch = largest_whole(lambda b: pool.decode(g, b).occupancy_s <= step_limit_s, cap)
    meets = batch >= 1.0
    running = np.maximum(batch, 1.0)
    time = pool.decode(g, running)
    margin = pool.usable - resident_byte(pool.weights_byte, g, running, sequence, share)
    return PhaseTable(
        time=time,
        batch=batch,
        request_s=np.where(fits & meets, pool.mix.steps * time.occupancy_s / running, np.inf),
        fits=fits,
        missing_byte=np.where(fits, 0.0, np.maximum(-margin, 0.0)),
        margin_byte=margin,
        meets_slo=meets | ~fits,
    )


def combined_table(pool: PoolPhysics, g: Floats, max_batch: Floats, prefill: PhaseTable) -> tuple[PhaseTable, Floats]:
    """Decode beside prefill on one instance, and the instance's rate in requests/s (K,).

    Without a TPOT limit: rate = 1/sum_c q_c (occ_c/b_pre + steps_c t_c/b_c) at the largest b_c.
    With one, prefill interrupts decode, TPOT_c = t_c/(1 - rate sum_c q_c occ_c/b_pre), and the rate is
    min(that, min_c (1 - t_c(b_c)/tpot)/sum_c q_c occ_c/b_pre), maximised over b_c. At a rate r every
    class takes the largest b_c with t_c(b_c) <= tpot (1 - r O), since b/t(b) only grows; the first
    term then falls in r, so bisection finds the largest r that both terms allow.
    """
    q = pool.mix.share
    prefill_s = np.where(prefill.fits, prefill.service_s, np.inf)
    occupied_s = (q * prefill_s).sum(axis=1)
    limit_s = pool.tpot_limit_s

    def at(rate: Floats) -> PhaseTable:
        spare = np.maximum(1.0 - rate * np.where(np.isfinite(occupied_s), occupied_s, 0.0), 0.0)
        step_limit_s = np.where(np.isinf(limit_s), np.inf, np.minimum(limit_s, NO_LIMIT_S) * spare[:, None])
        return decode_table(pool, g, max_batch, step_limit_s)

    def work_rate(table: PhaseTable) -> Floats:
        total_s = occupied_s + (q * table.request_s).sum(axis=1)
        return np.where(np.isfinite(total_s), 1.0 / total_s, 0.0)

    start = at(np.zeros_like(occupied_s))
    if np.isinf(pool.limits.tpot_s):
        return start, work_rate(start)
    upper = work_rate(start)
    rate = largest_rate(lambda r: r <= work_rate(at(r)), upper)
    table = at(rate)
    interrupted = np.where(np.isinf(limit_s), np.inf, 1.0 - table.time.occupancy_s / limit_s).min(axis=1)
    runs = upper > 0
    safe = np.where(runs, occupied_s, 1.0)
    bound = np.minimum(work_rate(table), np.where(runs, np.maximum(interrupted, 0.0), 0.0) / safe)
    return table, np.where(runs, bound, 0.0)


def slowest_class(pool: PoolPhysics, prefill: PhaseTable) -> Ints:
    """Per setting, the class with the longest prefill among those of at least 1 % share (K,)."""
    counted = pool.mix.counted
    result: Ints = np.where(counted, prefill.time.latency_s, -np.inf).argmax(axis=1)
    return result


def half_step_s(mix: Mix, combined: PhaseTable) -> Floats:
    """Half a decode step, averaged over the time that classes decode: what a prompt waits more (K,)."""
    weight = mix.share * np.where(np.isfinite(combined.request_s), combined.request_s, 0.0)
    total = weight.sum(axis=1)
    mean = np.divide((weight * combined.time.occupancy_s).sum(axis=1), total, out=np.zeros_like(total), where=total > 0)
    return 0.5 * mean


def service_moments(mix: Mix, prefill: PhaseTable) -> tuple[Floats, Floats]:
    """Mean and squared variation of the M/G/c service time occupancy/b over the mix (K,)."""
    service = prefill.service_s
    mean = (mix.share * service).sum(axis=1)
    second = (mix.share * service**2).sum(axis=1)
    return mean, np.maximum(second / mean**2 - 1.0, 0.0)


def whole_servers(prefill_frac: Floats, instances: Floats) -> Floats:
    """Instances that prefill where a pool divides between the phases: the share it needs, in whole instances.

    >>> whole_servers(np.array([0.3, 0.0, 1.0]), np.array([8.0, 8.0, 8.0])).tolist()
    [3.0, 1.0, 8.0]
    """
    return np.clip(np.ceil(prefill_frac * instances - 1e-9), 1.0, np.maximum(instances, 1.0))
