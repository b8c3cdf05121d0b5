"""The program of one fleet in one scenario whose devices may be divided anew; see `dse.model.robust_adaptive`.

Variables are x[k,c], d[k,c], z[p,o,c] and r in this order, then y[k] where the division is asked for; k stands for a
configuration (p, j) that is kept. All rates are divided by one unit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, linprog, milp

from dse.model.robust_flows import Stealer
from dse.quiet import no_output

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

SHARPENED = 1e4
"""The solver stops within 1e-6 of the best objective: it sees this many times the scaled one."""
TIGHT = 1e-7
"""A row with less room than this share of the largest is full."""
USED = 1e-9
"""A flow above this share of the rate is used."""
Term = tuple[int, int, float]
"""Configuration, class, seconds."""


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


class FleetProgram:
    """Rows of one scenario: shares and seconds of the stealer, sizes g (J,) and kept configurations of each pool."""

    def __init__(self, stealer: Stealer, g: Sequence[Ints], kept: Sequence[Ints], byte_s: float) -> None:
        self.stealer, self.g, self.byte_s = stealer, g, byte_s
        self.classes: list[int] = np.flatnonzero(stealer.share > 0).tolist()
        self.configs: list[tuple[int, int]] = [(p, j) for p, own in enumerate(kept) for j in own.tolist()]
        self.pools = sorted({p for p, _ in self.configs})
        self.x, self.d = self._terms(stealer.prefill_s), self._terms(stealer.decode_s)
        self.z = [(p, o, c) for p in self.pools for o in self.pools for c in self.classes]
        self.first_z = len(self.x) + len(self.d)
        self.r = self.first_z + len(self.z)
        quickest = min((s for _, _, s in (*self.x, *self.d) if s > 0), default=1.0)
        self.per_instance = 1.0 / quickest
        """Requests/s that no instance exceeds."""

    def _terms(self, seconds: Sequence[Floats]) -> list[Term]:
        """What can be done: every kept configuration and class with a finite time."""
        return [
            (k, c, float(seconds[p][j, c]))
            for k, (p, j) in enumerate(self.configs)
            for c in self.classes
            if np.isfinite(seconds[p][j, c])
        ]

    def _equal(self) -> Floats:
        """Rows that are 0: flows serve the mix, and what flows is done (rows, variables)."""
        of_class = {c: i for i, c in enumerate(self.classes)}
        places = [(side, p, c) for side in ("x", "d") for p in self.pools for c in self.classes]
        row_of = {place: i for i, place in enumerate(places, start=len(of_class))}
        rows = np.zeros((len(of_class) + len(row_of), self.r + 1))
        for side, terms, start in (("x", self.x, 0), ("d", self.d, len(self.x))):
            for i, (k, c, _) in enumerate(terms, start=start):
                rows[row_of[side, self.configs[k][0], c], i] = 1.0
        for i, (p, o, c) in enumerate(self.z, start=self.first_z):
            rows[row_of["x", p, c], i] = rows[row_of["d", o, c], i] = -1.0
            rows[of_class[c], i] = 1.0
        for c, i in of_class.items():
            rows[i, self.r] = -self.stealer.share[c]
        return rows

    def _use(self, unit: float) -> tuple[Floats, Floats]:
        """Instances busy in each configuration, and KV bytes of each pair as a share of the link, per unit of rate."""
        busy = np.zeros((len(self.configs), self.r + 1))
        for i, (k, _, seconds) in enumerate((*self.x, *self.d)):
            busy[k, i] = seconds * unit
        pairs = sorted({(p, o) for p, o, _ in self.z if p != o}) if np.isfinite(self.byte_s) else []
        crossing = np.zeros((len(pairs), self.r + 1))
        for i, (p, o, c) in enumerate(self.z, start=self.first_z):
            if p != o and pairs:
                crossing[pairs.index((p, o)), i] = self.stealer.kv_byte[c] * unit / self.byte_s
        return busy, crossing

    def division(self, devices: Ints) -> list[list[int]]:
        """The best whole instances of every kept configuration, pool by pool; devices (P,)."""
        n_y = len(self.configs)
        busy, crossing = self._use(self.per_instance * float(devices.sum()))
        own = np.zeros((len(devices), n_y))
        for k, (p, j) in enumerate(self.configs):
            own[p, k] = self.g[p][j]
        held = np.block([[busy, -np.eye(n_y)], [crossing, np.zeros((len(crossing), n_y))]])
        held = np.vstack([held, np.hstack([np.zeros((len(own), self.r + 1)), own])])
        upper = np.concatenate([np.zeros(n_y), np.ones(len(crossing)), devices.astype(np.float64)])
        equal = self._equal()
        objective = np.zeros(self.r + 1 + n_y)
        objective[self.r] = -SHARPENED
        most = np.array([devices[p] // self.g[p][j] for p, j in self.configs], dtype=np.float64)
        with no_output():
            found = milp(
                objective,
                constraints=[
                    LinearConstraint(held, -np.inf, upper),
                    LinearConstraint(np.hstack([equal, np.zeros((len(equal), n_y))]), 0.0, 0.0),
                ],
                integrality=np.concatenate([np.zeros(self.r + 1), np.ones(n_y)]),
                bounds=Bounds(0.0, np.concatenate([np.full(self.r + 1, np.inf), most])),
                options={"mip_rel_gap": 0.0},
            )
        if found.status != 0:
            raise ArithmeticError(f"the division of a fleet ended with: {found.message}")
        y = np.round(found.x[self.r + 1 :]).astype(np.int64).tolist()
        return [[y[k] for k, (q, _) in enumerate(self.configs) if q == p] for p in range(len(self.g))]

    def served(self, instances: Sequence[Floats]) -> Division:
        """The best flows of given instances: the solver's vertex, solved for again from its tight rows."""
        y = np.array([instances[p][j] for p, j in self.configs])
        unit = max(float(y.sum()), 1.0) * self.per_instance
        busy, crossing = self._use(unit)
        held, upper = np.vstack([busy, crossing]), np.concatenate([y, np.ones(len(crossing))])
        size = np.maximum(np.abs(held).max(axis=1), 1e-300)
        held, upper, equal = held / size[:, None], upper / size, self._equal()
        objective = np.zeros(self.r + 1)
        objective[self.r] = -1.0
        zero = np.zeros(len(equal))
        found = linprog(objective, A_ub=held, b_ub=upper, A_eq=equal, b_eq=zero, method="highs-ds")
        if found.status != 0:
            raise ArithmeticError(f"the flows of a division ended with: {found.message}")
        vertex = np.asarray(found.x, dtype=np.float64)
        used, full = vertex > USED * max(float(vertex[self.r]), 1e-12), upper - held @ vertex < TIGHT * upper.max()
        polished = np.zeros_like(vertex)
        system = np.vstack([equal[:, used], held[full][:, used]])
        polished[used] = np.linalg.lstsq(system, np.concatenate([zero, upper[full]]), rcond=None)[0]
        both = [self._scaled(np.maximum(v, 0.0), busy, crossing, y) * unit for v in (vertex, polished)]
        return self._division(max(both, key=lambda v: float(v[self.r])), instances)

    def _scaled(self, v: Floats, busy: Floats, crossing: Floats, y: Floats) -> Floats:
        """A plan as large as the tightest instance or link allows, its equalities met to the last digit."""
        v = self._consistent(v)
        load, link = busy @ v, float((crossing @ v).max(initial=0.0))
        factor = float((y[load > 0] / load[load > 0]).min(initial=np.inf))
        factor = min(factor, 1.0 / link if link > 0 else np.inf)
        return v * factor if np.isfinite(factor) else np.zeros_like(v)

    def _consistent(self, v: Floats) -> Floats:
        """The same plan with z brought to the mix, then x and d to z."""
        v, share, n_pools = v.copy(), self.stealer.share, len(self.g)
        z = np.zeros((n_pools, n_pools, len(share)))
        place = tuple(np.array(self.z).T)
        z[place] = v[self.first_z : self.r]
        total = z.sum(axis=(0, 1))
        if (total[self.classes] <= 0).any() or v[self.r] <= 0:
            return np.zeros_like(v)
        z[:, :, self.classes] *= share[self.classes] * v[self.r] / total[self.classes]
        v[self.first_z : self.r] = z[place]
        for start, terms, wanted in ((0, self.x, z.sum(axis=1)), (len(self.x), self.d, z.sum(axis=0))):
            done = np.zeros_like(wanted)
            for i, (k, c, _) in enumerate(terms, start=start):
                done[self.configs[k][0], c] += v[i]
            factor = np.divide(wanted, done, out=np.ones_like(wanted), where=done > 0)
            for i, (k, c, _) in enumerate(terms, start=start):
                v[i] *= factor[self.configs[k][0], c]
        return v

    def _division(self, v: Floats, instances: Sequence[Floats]) -> Division:
        """Requests/s of a plan, by pool."""
        prefilled, decoded = ([np.zeros_like(s) for s in self.stealer.prefill_s] for _ in range(2))
        for done, start, terms in ((prefilled, 0, self.x), (decoded, len(self.x), self.d)):
            for i, (k, c, _) in enumerate(terms, start=start):
                p, j = self.configs[k]
                done[p][j, c] = v[i]
        across = np.zeros((len(self.g), len(self.g)))
        for i, (p, o, c) in enumerate(self.z, start=self.first_z):
            across[p, o] += v[i] * self.stealer.kv_byte[c] if p != o else 0.0
        return Division(
            rate=float(v[self.r]),
            instances=tuple(instances),
            prefilled=tuple(prefilled),
            decoded=tuple(decoded),
            crossing_byte_s=across,
        )
