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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, linprog, milp

from dse.model.robust_flows import Stealer

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

FEW_DIVISIONS = 4
"""Up to so many divisions of all pools are tried one by one: a linear program each."""
SHARPENED = 1e4
"""The solver stops within 1e-6 of the best objective: it sees this many times the scaled one."""
TIGHT = 1e-7
USED = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Division:
    """One fleet in one scenario: how its devices are divided, and what they serve."""

    rate: float
    instances: tuple[Floats, ...]
    """Per pool, instances of each configuration (J,)."""
    prefilled: tuple[Floats, ...]
    """Per pool, requests/s prefilled by configuration and class (J, C)."""
    decoded: tuple[Floats, ...]
    crossing_byte_s: Floats
    """KV cache from pool to pool (P, P)."""


def worth_having(g: Ints, prefill_s: Floats, decode_s: Floats) -> Ints:
    """Configurations (J,) that no other makes pointless; seconds (J, C).

    >>> worth_having(np.array([1, 2]), np.array([[2.0], [1.0]]), np.array([[2.0], [1.1]])).tolist()
    [0]
    """
    cost = np.concatenate([prefill_s, decode_s], axis=1) * g[:, None]
    dropped = ~np.isfinite(cost).any(axis=1)
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
        single = [len(s) <= 1 for s in sizes]
        if all(single) or math.prod(_at_most(int(n), s) for n, s in zip(devices, sizes, strict=True)) <= FEW_DIVISIONS:
            every = product(*(divisions(int(n), s) for n, s in zip(devices, sizes, strict=True)))
        else:
            every = iter([_Program(self, devices, byte_s).division()])
        found = [self._divided(division, byte_s) for division in every]
        return max(found, key=lambda one: one.rate)

    def _divided(self, division: Sequence[Sequence[int]], byte_s: float) -> Division:
        """What a given division serves."""
        instances = [np.zeros(len(g)) for g in self.g]
        for p, (kept, counts) in enumerate(zip(self.kept, division, strict=True)):
            instances[p][kept] = counts
        if all((own > 0).sum() <= 1 for own in instances):
            return self._as_stealing(instances, byte_s)
        return _Program(self, None, byte_s).served(instances)

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


class _Program:
    """The program of one fleet; y are variables where devices are given. Columns: x, d, z, r, then y."""

    def __init__(self, adapter: Adapter, devices: Ints | None, byte_s: float) -> None:
        self.adapter, self.devices, self.byte_s = adapter, devices, byte_s
        steal = adapter.stealer
        has = np.flatnonzero(steal.share > 0)
        self.configs = [(p, int(j)) for p, kept in enumerate(adapter.kept) for j in kept]
        self.x, self.d = (
            [(k, c, float(s[p][j, c])) for k, (p, j) in enumerate(self.configs) for c in has if np.isfinite(s[p][j, c])]
            for s in (steal.prefill_s, steal.decode_s)
        )
        pools = sorted({p for p, _ in self.configs})
        self.z = [(p, o, int(c)) for p in pools for o in pools for c in has]
        self.r = len(self.x) + len(self.d) + len(self.z)
        slow = [t for *_, t in (*self.x, *self.d) if t > 0]
        most = float(devices.sum()) if devices is not None else 1.0
        self.unit = most / min(slow) if slow else 1.0
        self.classes = has

    def _equal(self) -> Floats:
        """Rows that are 0: flows serve the mix, and what flows is done."""
        share, n = self.adapter.stealer.share, self.r + 1
        pools = sorted({p for p, _ in self.configs})
        row_of = {("q", c): i for i, c in enumerate(self.classes.tolist())}
        for kind in ("x", "d"):
            for p in pools:
                for c in self.classes.tolist():
                    row_of[kind, p, c] = len(row_of)
        rows = np.zeros((len(row_of), n))
        for i, (k, c, _) in enumerate(self.x):
            rows[row_of["x", self.configs[k][0], int(c)], i] = 1.0
        for i, (k, c, _) in enumerate(self.d, start=len(self.x)):
            rows[row_of["d", self.configs[k][0], int(c)], i] = 1.0
        for i, (p, o, c) in enumerate(self.z, start=len(self.x) + len(self.d)):
            rows[row_of["x", p, c], i] = rows[row_of["d", o, c], i] = -1.0
            rows[row_of["q", c], i] = 1.0
        for c in self.classes.tolist():
            rows[row_of["q", c], self.r] = -share[c]
        return rows

    def _use(self) -> tuple[Floats, Floats]:
        """Instance-seconds of each configuration (K, columns), and KV bytes of each pair as a share of the link."""
        n, kv = self.r + 1, self.adapter.stealer.kv_byte
        busy = np.zeros((len(self.configs), n))
        for i, (k, _, seconds) in enumerate((*self.x, *self.d)):
            busy[k, i] = seconds * self.unit
        pairs = sorted({(p, o) for p, o, _ in self.z if p != o}) if np.isfinite(self.byte_s) else []
        crossing = np.zeros((len(pairs), n))
        for i, (p, o, c) in enumerate(self.z, start=len(self.x) + len(self.d)):
            if p != o and pairs:
                crossing[pairs.index((p, o)), i] = kv[c] * self.unit / self.byte_s
        return busy, crossing

    def division(self) -> list[list[int]]:
        """The best whole instances of every kept configuration."""
        assert_devices = self.devices if self.devices is not None else np.zeros(0, dtype=np.int64)
        busy, crossing = self._use()
        n_y = len(self.configs)
        g = np.array([self.adapter.g[p][j] for p, j in self.configs], dtype=np.float64)
        own = np.zeros((len(assert_devices), n_y))
        for k, (p, _) in enumerate(self.configs):
            own[p, k] = g[k]
        held = np.block([[busy, -np.eye(n_y)], [crossing, np.zeros((len(crossing), n_y))]])
        held = np.vstack([held, np.hstack([np.zeros((len(own), self.r + 1)), own])])
        upper = np.concatenate([np.zeros(n_y), np.ones(len(crossing)), assert_devices.astype(np.float64)])
        equal = np.hstack([self._equal(), np.zeros((len(self._equal()), n_y))])
        objective = np.zeros(self.r + 1 + n_y)
        objective[self.r] = -SHARPENED
        most = np.array([assert_devices[p] // self.adapter.g[p][j] for p, j in self.configs], dtype=np.float64)
        found = milp(
            objective,
            constraints=[LinearConstraint(held, -np.inf, upper), LinearConstraint(equal, 0.0, 0.0)],
            integrality=np.concatenate([np.zeros(self.r + 1), np.ones(n_y)]),
            bounds=Bounds(0.0, np.concatenate([np.full(self.r + 1, np.inf), most])),
            options={"mip_rel_gap": 0.0},
        )
        if found.status != 0:
            raise ArithmeticError(f"the division of a fleet ended with: {found.message}")
        y = np.round(found.x[self.r + 1 :]).astype(np.int64)
        return [[int(y[k]) for k, (q, _) in enumerate(self.configs) if q == p] for p in range(len(self.adapter.g))]

    def served(self, instances: Sequence[Floats]) -> Division:
        """The best flows of given instances: the solver's vertex, solved for again from its tight rows."""
        y = np.array([instances[p][j] for p, j in self.configs])
        self.unit = max(float(y.sum()), 1.0) * self.unit
        busy, crossing = self._use()
        held, upper = np.vstack([busy, crossing]), np.concatenate([y, np.ones(len(crossing))])
        size = np.maximum(np.abs(held).max(axis=1), 1e-300)
        held, upper, equal = held / size[:, None], upper / size, self._equal()
        objective = np.zeros(self.r + 1)
        objective[self.r] = -1.0
        found = linprog(
            objective,
            A_ub=held,
            b_ub=upper,
            A_eq=equal,
            b_eq=np.zeros(len(equal)),
            method="highs-ds",
        )
        if found.status != 0:
            raise ArithmeticError(f"the flows of a division ended with: {found.message}")
        used, full = found.x > USED * max(float(found.x[self.r]), 1e-12), upper - held @ found.x < TIGHT * upper.max()
        system = np.vstack([equal[:, used], held[full][:, used]])
        target = np.concatenate([np.zeros(len(equal)), upper[full]])
        polished = np.zeros_like(found.x)
        polished[used] = np.linalg.lstsq(system, target, rcond=None)[0]
        both = [self._division(np.maximum(v, 0.0), instances, busy, crossing, y) for v in (found.x, polished)]
        return max(both, key=lambda one: one.rate)

    def _division(self, v: Floats, instances: Sequence[Floats], busy: Floats, crossing: Floats, y: Floats) -> Division:
        """Flows scaled to the tightest instance or link, after what is done is brought to what flows exactly."""
        steal, n_x, n_d = self.adapter.stealer, len(self.x), len(self.d)
        v = self._consistent(v.copy(), n_x, n_d)
        load, link = busy @ v, (crossing @ v).max(initial=0.0)
        worked = load > 0
        factor = float((y[worked] / load[worked]).min(initial=np.inf))
        factor = min(factor, 1.0 / link if link > 0 else np.inf)
        if not np.isfinite(factor) or v[self.r] <= 0:
            v, factor = np.zeros_like(v), 1.0
        v = v * factor * self.unit
        prefilled, decoded = ([np.zeros_like(s) for s in steal.prefill_s] for _ in range(2))
        for done, start, terms in ((prefilled, 0, self.x), (decoded, n_x, self.d)):
            for i, (k, c, _) in enumerate(terms, start=start):
                p, j = self.configs[k]
                done[p][j, c] = v[i]
        across = np.zeros((len(self.adapter.g),) * 2)
        for i, (p, o, c) in enumerate(self.z, start=n_x + n_d):
            across[p, o] += v[i] * steal.kv_byte[c] if p != o else 0.0
        return Division(
            rate=float(v[self.r]),
            instances=tuple(instances),
            prefilled=tuple(prefilled),
            decoded=tuple(decoded),
            crossing_byte_s=across,
        )

    def _consistent(self, v: Floats, n_x: int, n_d: int) -> Floats:
        """The same plan with its equalities met to the last digit: z to the mix, then x and d to z."""
        share = self.adapter.stealer.share
        z = np.zeros((len(self.adapter.g), len(self.adapter.g), len(share)))
        place = tuple(np.array(self.z).T)
        z[place] = v[n_x + n_d : self.r]
        total = z.sum(axis=(0, 1))
        if (total[self.classes] <= 0).any() or v[self.r] <= 0:
            return np.zeros_like(v)
        z[:, :, self.classes] *= share[self.classes] * v[self.r] / total[self.classes]
        v[n_x + n_d : self.r] = z[place]
        for start, terms, wanted in ((0, self.x, z.sum(axis=1)), (n_x, self.d, z.sum(axis=0))):
            done = np.zeros_like(wanted)
            for i, (k, c, _) in enumerate(terms, start=start):
                done[self.configs[k][0], c] += v[i]
            factor = np.divide(wanted, done, out=np.ones_like(wanted), where=done > 0)
            for i, (k, c, _) in enumerate(terms, start=start):
                v[i] *= factor[self.configs[k][0], c]
        return v
