"""The most that a fleet serves in one scenario where each pool's devices are divided anew (docs/robust.md).

Variables   y[p,j] whole instances of configuration j of pool p;  x[p,j,c], d[p,j,c] requests/s prefilled, decoded
            there;  z[p,o,c] requests/s prefilled on p and decoded on o
Maximise    r
Subject to  sum_{p,o} z[p,o,c] = q_c r;  sum_j x[p,j,c] = sum_o z[p,o,c];  sum_j d[o,j,c] = sum_p z[p,o,c]
            sum_c (s x + d d) <= y[p,j];  sum_j g_j y[p,j] <= devices of p;  sum_c v_c z[p,o,c] <= S for p != o

A configuration is left out where another of the same pool does every phase of every class in no more device-seconds
and divides its size: instances of the one can always take its place. Where one is left in every pool this is work
stealing. Few divisions are tried one by one, more are found by branch and bound.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product

import numpy as np
from numpy.typing import NDArray

from dse.model.robust_division import Division, FleetProgram
from dse.model.robust_flows import Stealer

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

FEW_DIVISIONS = 4
"""Up to so many divisions of all pools are tried one by one: a linear program each."""


def worth_having(g: Ints, prefill_s: Floats, decode_s: Floats) -> Ints:
    """Configurations (J,) that no other makes pointless; seconds (J, C).

    >>> worth_having(np.array([1, 2]), np.array([[2.0], [1.0]]), np.array([[2.0], [1.1]])).tolist()
    [0]
    """
    cost = np.concatenate([prefill_s, decode_s], axis=1) * g[:, None]
    dropped = np.array([not np.isfinite(own).any() for own in cost])
    for j in range(len(g)):
        for other in range(len(g)):
            if other == j or dropped[other] or dropped[j] or g[j] % g[other]:
                continue
            no_worse = bool((cost[other] <= cost[j]).all())
            same = g[j] == g[other] and bool((cost[other] == cost[j]).all())
            dropped[j] = no_worse and (not same or other < j)
    return np.flatnonzero(~dropped)


def divisions(devices: int, g: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Ways to divide devices among instances of these sizes such that no further instance fits.

    >>> sorted(divisions(5, [1, 2]))
    [(1, 2), (3, 1), (5, 0)]
    """
    if not g:
        yield ()
        return
    *others, last = g
    if not others:
        yield (devices // last,)
        return
    for n in range(devices // last + 1):
        left = devices - n * last
        for rest in divisions(left, others):
            if left - sum(a * b for a, b in zip(rest, others, strict=True)) < last:
                yield (*rest, n)


@dataclass(slots=True)
class Adapter:
    """Fleets whose devices are divided anew, in one scenario; arrays as in `Stealer`, sizes (J,) a pool."""

    stealer: Stealer
    g: Sequence[Ints]
    kept: tuple[Ints, ...] = ()
    known: dict[tuple[object, ...], Division] = field(default_factory=dict)

    def __post_init__(self) -> None:
        has = self.stealer.share > 0
        self.kept = tuple(
            worth_having(g, s[:, has], d[:, has])
            for g, s, d in zip(self.g, self.stealer.prefill_s, self.stealer.decode_s, strict=True)
        )

    def best(self, devices: Ints, byte_s: float) -> Division:
        """The division that serves most; devices (P,)."""
        key = (tuple(devices.tolist()), byte_s)
        if key not in self.known:
            self.known[key] = self._best(devices, byte_s)
        return self.known[key]

    def _best(self, devices: Ints, byte_s: float) -> Division:
        sizes = [self.g[p][kept].tolist() for p, kept in enumerate(self.kept)]
        counts = [int(n) for n in devices]
        every: Iterable[Sequence[Sequence[int]]]
        if math.prod(_at_most(n, own) for n, own in zip(counts, sizes, strict=True)) <= FEW_DIVISIONS:
            every = product(*(divisions(n, own) for n, own in zip(counts, sizes, strict=True)))
        else:
            every = [self._program(byte_s).division(devices)]
        return max((self._divided(division, byte_s) for division in every), key=lambda one: one.rate)

    def _program(self, byte_s: float) -> FleetProgram:
        return FleetProgram(self.stealer, self.g, self.kept, byte_s)

    def _divided(self, division: Sequence[Sequence[int]], byte_s: float) -> Division:
        """What a given division serves."""
        instances = [np.zeros(len(g)) for g in self.g]
        for p, (kept, counts) in enumerate(zip(self.kept, division, strict=True)):
            instances[p][kept] = counts
        if all((own > 0).sum() <= 1 for own in instances):
            return self._as_stealing(instances, byte_s)
        return self._program(byte_s).served(instances)

    def _as_stealing(self, instances: Sequence[Floats], byte_s: float) -> Division:
        config = np.array([[int(own.argmax()) for own in instances]], dtype=np.int64)
        routed = self.stealer.routed(config, np.array([[own.max() for own in instances]]), np.array([byte_s]))
        prefilled, decoded = ([np.zeros_like(s) for s in self.stealer.prefill_s] for _ in range(2))
        for p, j in enumerate(config[0]):
            prefilled[p][j], decoded[p][j] = routed.prefilled[0, p], routed.decoded[0, p]
        return Division(
            rate=float(routed.rate[0]),
            instances=tuple(instances),
            prefilled=tuple(prefilled),
            decoded=tuple(decoded),
            crossing_byte_s=routed.crossing_byte_s[0],
        )


def _at_most(devices: int, sizes: Sequence[int]) -> int:
    """No fewer than the divisions of a pool."""
    return math.prod(devices // g + 1 for g in sizes[1:])
