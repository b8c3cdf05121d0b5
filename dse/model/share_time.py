"""Time of one pool as a function of its share of a training batch (docs/training.md)."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Protocol, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dse.model.roofline import table_time_s

Floats = NDArray[np.float64]
Rows = NDArray[np.intp]

NUDGE_FRAC = 1e-12
"""Added to a time before it is rounded down to samples or layers, so that rounding loses none."""
MOST_SAMPLES = 2.0**40
"""Largest share of a measured pool that nothing else limits."""


class ShareTime(Protocol):
    """Time of one pool by its share of the batch, one row per design."""

    @property
    def replicas(self) -> Floats:
        """Copies of the model that divide the share; 0 where the pool is absent."""

    def time_s(self, samples: ArrayLike) -> Floats:
        """Time for so many samples [s]."""

    def most_within(self, time_s: ArrayLike, limit: ArrayLike = np.inf) -> Floats:
        """Most samples, up to `limit`, whose time does not exceed this one."""

    def rows(self, index: Rows) -> Self:
        """The same pool for some of the designs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Staircase:
    """T(b) = once + k step + p sample, with p = ceil(b / r) and k = ceil(p / m), for b > 0.

    Every field has one value per design. A device that runs its share as one micro-step has an m
    beyond any share, but finite: say 2**40.

    >>> one = np.ones(1)
    >>> pool = Staircase(replicas=2 * one, micro_batch=4 * one, once_s=one, step_s=0.5 * one,
    ...                  sample_s=0.25 * one, most=64 * one)
    >>> [float(pool.time_s(b)[0]) for b in (0, 8, 9, 65)]
    [0.0, 2.5, 3.25, inf]
    >>> [float(pool.most_within(t)[0]) for t in (1.7, 2.5, 3.24, 3.25, 1e9)]
    [0.0, 8.0, 8.0, 10.0, 64.0]
    """

    replicas: Floats
    """r; 0 where the pool is absent."""
    micro_batch: Floats
    """m, samples of one replica in one micro-step."""
    once_s: Floats
    """Paid once: gradient all-reduce [s]."""
    step_s: Floats
    """Paid per micro-step: fixed time of the passes, activation all-reduce [s]."""
    sample_s: Floats
    """Paid per sample of a replica: arithmetic [s]."""
    most: Floats
    """Samples that the pool's memory holds; may be infinite."""

    def time_s(self, samples: ArrayLike) -> Floats:
        """Time for so many samples [s]."""
        b = np.asarray(samples, dtype=np.float64)
        with np.errstate(divide="ignore", invalid="ignore"):
            p = b / self.replicas
            t = self._replica_s(np.ceil(p, out=p))
        return _bounded_s(t, b, self.replicas, self.most)

    def most_within(self, time_s: ArrayLike, limit: ArrayLike = np.inf) -> Floats:
        """Most samples, up to `limit`, whose `time_s` does not exceed this one.

        With x = t - once and w = step + m sample, q = floor(x / w) full micro-steps fit, and
        floor((x - q w - step) / sample) samples more, within 0 .. m - 1. The nudge can add one too many:
        `time_s` itself decides.
        """
        t, m = np.asarray(time_s, dtype=np.float64), self.micro_batch
        with np.errstate(divide="ignore", invalid="ignore"):
            full_s = self.step_s + m * self.sample_s
            x = t * (1.0 + NUDGE_FRAC) - self.once_s
            p = x / full_s
            np.floor(p, out=p)
            x -= p * full_s
            x -= self.step_s
            x /= self.sample_s
            np.floor(x, out=x)
            np.fmax(x, 0.0, out=x)  # NaN after an infinite time: nothing to add
            np.minimum(x, m - 1.0, out=x)
            p *= m
            p += x
            p -= self._replica_s(p) > t
            p *= self.replicas
            np.fmin(p, _room(self.replicas, self.most, limit), out=p)
        return np.maximum(p, 0.0, out=p)

    def rows(self, index: Rows) -> Self:
        """The same pool for some of the designs."""
        return replace(self, **{f.name: getattr(self, f.name)[index] for f in fields(self)})

    def _replica_s(self, p: Floats) -> Floats:
        t = p / self.micro_batch
        np.ceil(t, out=t)
        t *= self.step_s
        t += self.once_s
        t += p * self.sample_s
        return t


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredStaircase:
    """T(b) = once + k step + (k - 1) t(m) + t(p - (k - 1) m): micro-steps of measured time t, for b > 0.

    p, k and the fields are those of `Staircase`; t(x) reads the table at x sample_flop. The table serves
    every design; it must not decrease, nor give a negative time to one sample.

    >>> one = np.ones(1)
    >>> pool = MeasuredStaircase(replicas=2 * one, micro_batch=2 * one, once_s=one, step_s=0.5 * one, most=64 * one,
    ...     sample_flop=1e12 * one, table_flop=np.array([1e12, 2e12]), table_s=np.array([1.0, 1.25]))
    >>> [float(pool.time_s(b)[0]) for b in (0, 4, 5)]
    [0.0, 2.75, 4.25]
    >>> [float(pool.most_within(t)[0]) for t in (2.4, 2.75, 4.25)]
    [0.0, 4.0, 6.0]
    """

    replicas: Floats
    micro_batch: Floats
    once_s: Floats
    step_s: Floats
    """Paid per micro-step besides t: communication [s]."""
    most: Floats
    sample_flop: Floats
    """Work of one sample, as the table counts it [flop]."""
    table_flop: Floats
    """Work of the measured micro-steps, increasing [flop]."""
    table_s: Floats
    """Their times [s]."""

    def time_s(self, samples: ArrayLike) -> Floats:
        """Time for so many samples [s]."""
        b, m = np.asarray(samples, dtype=np.float64), self.micro_batch
        with np.errstate(divide="ignore", invalid="ignore"):
            p = np.ceil(b / self.replicas)
            k = np.ceil(p / m)
            micro_steps_s = (k - 1.0) * self._micro_s(m) + self._micro_s(p - (k - 1.0) * m)
            t = self.once_s + k * self.step_s + micro_steps_s
        return _bounded_s(t, b, self.replicas, self.most)

    def most_within(self, time_s: ArrayLike, limit: ArrayLike = np.inf) -> Floats:
        """Most samples, up to `limit`, whose `time_s` does not exceed this one: bisection per replica."""
        t, r = np.asarray(time_s, dtype=np.float64), self.replicas
        most = np.minimum(_room(r, self.most, limit), MOST_SAMPLES)
        low, high = np.zeros(np.broadcast_shapes(most.shape, t.shape)), np.ceil(most / np.maximum(r, 1.0))
        while (low < high).any():
            middle = np.ceil(0.5 * (low + high))
            fits = self.time_s(np.minimum(middle * r, most)) <= t
            low, high = np.where(fits, middle, low), np.where(fits, high, middle - 1.0)
        return np.minimum(low * r, most)

    def rows(self, index: Rows) -> Self:
        """The same pool for some of the designs."""
        per_design = (f.name for f in fields(self) if f.name not in ("table_flop", "table_s"))
        return replace(self, **{name: getattr(self, name)[index] for name in per_design})

    def _micro_s(self, samples: Floats) -> Floats:
        return table_time_s(samples * self.sample_flop, self.table_flop, self.table_s)


def _bounded_s(time_s: Floats, samples: Floats, replicas: Floats, most: Floats) -> Floats:
    """T with its ends: 0 for no samples, infinite where the pool is absent or cannot hold them [s]."""
    beyond, none = (samples > most) | (replicas <= 0.0), samples <= 0.0
    if beyond.any():
        time_s = np.where(beyond, np.inf, time_s)
    return np.where(none, 0.0, time_s) if none.any() else time_s


def _room(replicas: Floats, most: Floats, limit: ArrayLike) -> Floats:
    """Samples that the pool may take, however long it has."""
    room, absent = np.minimum(most, limit), replicas <= 0.0
    return np.where(absent, 0.0, room) if absent.any() else room
