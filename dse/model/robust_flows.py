"""How much a fleet serves in one scenario, under each of three policies (docs/robust.md).

    fixed split     every pool keeps its role; all classes are routed alike:
                    maximise sum_{p,o} z[p,o] + sum B;  sum_o z[p,o] <= R_p, sum_p z[p,o] <= D_o, z[p,o] <= S/v
    work stealing   roles are ignored; z[p,o,c] free: see `dse.model.routing.stealing_flows_lp`
    adaptive        as work stealing, with y[p,j] whole instances of configuration j, sum_j g_j y[p,j] <= devices

R, D, B: requests/s of the scenario's mix that a pool prefills, decodes, serves by itself; v: KV bytes of a request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog

from dse.model.routing import stealing_flows_lp
from dse.model.stealing import StealingPlans, stealing_flows, stealing_plans

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

ROUNDING = 1e-12


def split_capacity(prefill: Floats, decode: Floats, most: Floats) -> Floats:
    """Largest sum of flows from prefill pools (N, P) to decode pools (N, P), each pair at most `most` (N,).

    By its smallest cut: the a fastest prefill pools and the b slowest decode pools stay on the source's side,

        min_{a,b} sum of the other prefill + sum of the b decode + most a (P - b).

    >>> split_capacity(np.array([[30.0, 0.0]]), np.array([[0.0, 20.0]]), np.array([16.0])).tolist()
    [16.0]
    """
    n, n_pools = prefill.shape
    by_speed, by_slowness = -np.sort(-prefill, axis=1), np.sort(decode, axis=1)
    left = np.concatenate([np.cumsum(by_speed[:, ::-1], axis=1)[:, ::-1], np.zeros((n, 1))], axis=1)
    taken = np.concatenate([np.zeros((n, 1)), np.cumsum(by_slowness, axis=1)], axis=1)
    best = np.full(n, np.inf)
    for a in range(n_pools + 1):
        for b in range(n_pools + 1):
            pairs = a * (n_pools - b)
            best = np.minimum(best, left[:, a] + taken[:, b] + (most * pairs if pairs else 0.0))
    return best


def split_flows(prefill: Floats, decode: Floats, most: Floats, rate: Floats) -> Floats:
    """Flows z (N, P, P) that reach the capacity: in proportion to what pools can do, unless a link then overflows."""
    total_prefill, total_decode = (np.maximum(r.sum(axis=1), 1e-300) for r in (prefill, decode))
    z = (rate / total_prefill / total_decode)[:, None, None] * prefill[:, :, None] * decode[:, None, :]
    for i in np.flatnonzero((z > (most * (1.0 + ROUNDING))[:, None, None]).any(axis=(1, 2))):
        z[i] = _transported(prefill[i], decode[i], float(most[i]), float(rate[i]))
    return z


def _transported(prefill: Floats, decode: Floats, most: float, rate: float) -> Floats:
    """The same of one design whose links fill, by a linear program; scaled to the rate."""
    pools = len(prefill)
    p, o = np.nonzero((prefill > 0)[:, None] & (decode > 0)[None, :])
    rows = np.zeros((2 * pools, len(p)))
    rows[p, np.arange(len(p))] = 1.0
    rows[pools + o, np.arange(len(p))] = 1.0
    held = np.concatenate([prefill, decode]) / rate
    found = linprog(-np.ones(len(p)), A_ub=rows, b_ub=held, bounds=(0.0, most / rate), method="highs-ds")
    z = np.zeros((pools, pools))
    z[p, o] = np.maximum(np.asarray(found.x, dtype=np.float64), 0.0)
    return np.asarray(z * (rate / max(float(z.sum()), 1e-300)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Routed:
    """N designs in one scenario: requests/s, and what each pool prefills and decodes of each class [requests/s]."""

    rate: Floats
    """(N,)"""
    prefilled: Floats
    """(N, P, C)"""
    decoded: Floats
    crossing_byte_s: Floats
    """KV cache from pool to pool (N, P, P)."""


@dataclass(slots=True)
class Stealer:
    """Work stealing in one scenario: shares (C,), KV bytes (C,), seconds of each pool's configurations (J, C)."""

    share: Floats
    kv_byte: Floats
    prefill_s: Sequence[Floats]
    decode_s: Sequence[Floats]
    plans: dict[tuple[int, int, int, int], StealingPlans]
    """Of two pools and their configurations; made when first needed."""
    known: dict[tuple[object, ...], tuple[float, Floats]]
    """Answers of linear programs."""

    def routed(self, config: Ints, instances: Floats, byte_s: Floats) -> Routed:
        """Best flows of N designs: configurations and instances (N, P), bandwidth (N,)."""
        n, n_pools = instances.shape
        has = self.share > 0
        rate, z = np.zeros(n), np.zeros((n, n_pools, n_pools, len(self.share)))
        active = instances > 0
        group = np.where(active, config, -1)
        for key in np.unique(group, axis=0):
            at = np.flatnonzero((group == key).all(axis=1))
            pools = np.flatnonzero(key >= 0).tolist()
            if len(pools) == 1:
                self._alone(pools[0], int(key[pools[0]]), at, instances, rate, z)
            elif len(pools) == 2:
                self._two(pools, key, at, instances, byte_s, rate, z)
            elif pools:
                for i in at:
                    rate[i], z[i] = self._program(pools, key, instances[i], float(byte_s[i]))
        z *= has
        served = rate[:, None, None, None] * z
        crossing = (served * self.kv_byte).sum(axis=3)
        crossing[:, np.arange(n_pools), np.arange(n_pools)] = 0.0
        return Routed(rate=rate, prefilled=served.sum(axis=2), decoded=served.sum(axis=1), crossing_byte_s=crossing)

    def _alone(self, p: int, j: int, at: Ints, instances: Floats, rate: Floats, z: Floats) -> None:
        has = self.share > 0
        seconds = float((self.share[has] * (self.prefill_s[p][j] + self.decode_s[p][j])[has]).sum())
        if np.isfinite(seconds):
            rate[at] = instances[at, p] / seconds
            z[at, p, p] = self.share

    def _two(
        self, pools: list[int], key: Ints, at: Ints, instances: Floats, byte_s: Floats, rate: Floats, z: Floats
    ) -> None:
        a, b = pools
        has = np.flatnonzero(self.share > 0)
        ja, jb = int(key[a]), int(key[b])
        prefill = (self.prefill_s[a][ja][has], self.prefill_s[b][jb][has])
        decode = (self.decode_s[a][ja][has], self.decode_s[b][jb][has])
        name = (a, b, ja, jb)
        if name not in self.plans:
            self.plans[name] = stealing_plans(prefill, decode, self.share[has], self.kv_byte[has])
        share, kv, plans = self.share[has], self.kv_byte[has], self.plans[name]
        with np.errstate(divide="ignore", invalid="ignore"):
            found, flows, sound = stealing_flows(
                plans, (prefill, decode), share, kv, instances[at, a], instances[at, b], byte_s[at]
            )
        good = at[sound]
        rate[good] = found[sound]
        for x, p in enumerate(pools):
            for y, o in enumerate(pools):
                z[good[:, None], p, o, has[None, :]] = flows[sound, x, y]
        for i in at[~sound]:
            rate[i], z[i] = self._program(pools, key, instances[i], float(byte_s[i]))

    def _program(self, pools: list[int], key: Ints, instances: Floats, byte_s: float) -> tuple[float, Floats]:
        """One design by its linear program."""
        name = (tuple(key.tolist()), tuple(instances.tolist()), byte_s)
        if name not in self.known:
            has = np.flatnonzero(self.share > 0)
            rate, flows = stealing_flows_lp(
                instances[pools],
                np.stack([self.prefill_s[p][key[p]][has] for p in pools]),
                np.stack([self.decode_s[p][key[p]][has] for p in pools]),
                self.share[has],
                self.kv_byte[has],
                byte_s,
            )
            z = np.zeros((len(instances), len(instances), len(self.share)))
            z[np.array(pools)[:, None, None], np.array(pools)[:, None], has] = flows
            self.known[name] = rate, z
        return self.known[name]
