"""Coefficients of the programs for several scenarios, taken from the model's tables.

An option is one setting of a pool: what is bought once. Everything nonlinear inside one pool is in the tables, and
what is left for the program is exact.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dse.model.robust_adaptive import worth_having
from dse.model.robust_serving import ADAPTIVE, FIXED, RobustSystem
from dse.model.serving_pool import DECODE, PREFILL

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

EXPECTED, WORST, REQUESTS, HEADROOM = "throughput_tok_s", "throughput_worst_tok_s", "requests_s", "headroom"
COST, POWER = "cost_usd_per_h", "power_w"
MAXIMISED = (EXPECTED, WORST, REQUESTS, HEADROOM)
QUANTITIES = (*MAXIMISED, COST, POWER)
"""Result columns that are linear in the plan."""
OF_OPTIONS = ("instances", "usable", "prefill_rate", "decode_rate", "both_rate")
OF_CONFIGS = ("kept", "g", "prefill_s", "decode_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class RobustOptions:
    """One pool's options (K,); `row` is each option's row in the search space."""

    row: Ints
    active: Bools
    prefills: Bools
    decodes: Bools
    idle_usd_per_h: Floats
    power_w: Floats
    config: Ints
    instances: Floats
    """(W, K), and so the next four."""
    usable: Floats
    """Devices that may serve."""
    prefill_rate: Floats
    decode_rate: Floats
    both_rate: Floats
    kept: Ints
    """Configurations that some plan may use."""
    g: Ints
    """Devices of an instance (J,)."""
    prefill_s: Floats
    """(J, C); infinite where it cannot run."""
    decode_s: Floats

    def most(self, w: int, j: int) -> float:
        """Most instances of a configuration in a scenario, over the options."""
        if (self.config >= 0).all():
            return float(self.instances[w][self.config == j].max(initial=0.0))
        return float(self.usable[w].max(initial=0.0) // self.g[j])


@dataclass(frozen=True, kw_only=True)
class RobustData:
    """One way to adapt in numbers; objectives are minimised."""

    regime: int
    adaptation: str
    pools: Sequence[RobustOptions]
    mix: Floats
    """Share of each class in each scenario (W, C)."""
    weight: Floats
    output_tok: Floats
    """Mean output tokens of a request (W,)."""
    demand: Floats | None
    """Requests/s asked for (W,)."""
    class_kv_byte: Floats
    link_byte_s: Floats
    link_usd_per_h: Floats
    link_power_w: Floats
    bounds: Mapping[str, tuple[float, float]]
    objectives: Sequence[str]

    @property
    def limits(self) -> dict[str, tuple[float, float]]:
        """The user's bounds, scaled."""
        found = {}
        for name in self.quantities:
            low, high = self.bounds.get(name, (0.0, np.inf))
            found[name] = (low / self.scale[name], high / self.scale[name])
        return found

    @property
    def quantities(self) -> tuple[str, ...]:
        """Columns that the program knows."""
        return tuple(name for name in QUANTITIES if name != HEADROOM or self.demand is not None)

    @property
    def may_idle(self) -> bool:
        """Whether no objective asks for capacity."""
        return not set(self.objectives) & set(MAXIMISED)

    def scaled(self, point: Floats) -> Floats:
        """The program's objectives for a point of minimised columns."""
        return np.asarray(point / np.array([self.scale[o] for o in self.objectives]))

    @cached_property
    def most_rate(self) -> Floats:
        """Requests/s that no plan exceeds in each scenario (W,)."""
        return np.array([_most_rate(self, w) or 1.0 for w in range(len(self.weight))])

    @cached_property
    def scale(self) -> dict[str, float]:
        """What no plan exceeds of each quantity."""
        rate, n_pairs = self.most_rate, len(self.pools) * (len(self.pools) - 1) / 2
        cost = sum(float(p.idle_usd_per_h.max()) for p in self.pools) + n_pairs * float(self.link_usd_per_h.max())
        power = sum(float(p.power_w.max()) for p in self.pools) + n_pairs * float(self.link_power_w.max())
        found = {
            EXPECTED: float(self.weight @ (rate * self.output_tok)),
            WORST: float((rate * self.output_tok).min()),
            REQUESTS: float(self.weight @ rate),
            COST: cost or 1.0,
            POWER: power or 1.0,
        }
        return found if self.demand is None else found | {HEADROOM: float((rate / self.demand).min())}


class Regimes(Protocol):
    """What the program needs of a search space: per regime, tables."""

    @property
    def n_regimes(self) -> int:
        """Ways to adapt."""
        ...

    @property
    def pool_names(self) -> tuple[str, ...]:
        """Names of the pools."""
        ...

    def system(self, regime: int) -> RobustSystem:
        """Tables of one regime."""
        ...

    def canonical(self, regime: int, link: int, rows: Any) -> int:
        """Number of a plan, with the first link where nothing crosses."""
        ...


def refusal(space: Regimes, objectives: Sequence[str], bounds: Mapping[str, tuple[float, float]]) -> str:
    """Why the programs cannot answer a study exactly; empty where they can."""
    names = ", ".join(QUANTITIES)
    strange = ", ".join(o for o in objectives if o not in QUANTITIES)
    unbounded = ", ".join(b for b in bounds if b not in QUANTITIES and not b.startswith("n_"))
    capped = ", ".join(b for b in bounds if b in MAXIMISED and np.isfinite(bounds[b][1]))
    dearest = ", ".join(b for b in (COST, POWER) if bounds.get(b, (0.0, 0.0))[0] > 0)
    tables = [t for regime in range(space.n_regimes) for t in space.system(regime).tables]
    metered = any(bool((t.bill.busy_usd_per_h > 0).any()) for t in tables)
    reasons = (
        (bool(strange), f"objective {strange} is not linear in the plan; it knows {names}"),
        (bool(unbounded), f"a limit on {unbounded} is not linear in the plan; it knows {names} and n_<pool>"),
        (bool(dearest), f"a lower limit on {dearest} would let a plan buy what it has no use for"),
        (bool(capped), f"an upper limit on {capped} would let a plan run below its capacity"),
        (metered, "the energy bill of ownership or owned devices depends on the flows at capacity"),
    )
    return next((f"milp: {reason}" for applies, reason in reasons if applies), "")


def programs(space: Regimes, objectives: Sequence[str], bounds: Mapping[str, tuple[float, float]]) -> list[RobustData]:
    """One program a way to adapt; none for one in which some pool has no option left, or a scenario no service."""
    found = [_robust_data(space, regime, objectives, bounds) for regime in range(space.n_regimes)]
    return [data for data in found if data is not None]


def _robust_data(
    space: Regimes, regime: int, objectives: Sequence[str], bounds: Mapping[str, tuple[float, float]]
) -> RobustData | None:
    system = space.system(regime)
    no_bound = (-np.inf, np.inf)
    pools = [_options(system, p, bounds.get(f"n_{name}", no_bound)) for p, name in enumerate(space.pool_names)]
    if any(not len(p.row) for p in pools) or not all(_able(pools, system, w) for w in range(len(system.scenarios))):
        return None
    pools = [_only(p, ~_pointless(p, system)) for p in pools]
    known = system.scenarios
    return RobustData(
        regime=regime,
        adaptation=system.adaptation,
        pools=pools,
        mix=known.mix,
        weight=known.weight,
        output_tok=system.output_tok,
        demand=known.demand_requests_s,
        class_kv_byte=system.class_kv_byte,
        link_byte_s=system.links.byte_s,
        link_usd_per_h=system.links.usd_per_h,
        link_power_w=system.links.power_w,
        bounds=bounds,
        objectives=list(objectives),
    )


def _options(system: RobustSystem, p: int, counts: tuple[float, float]) -> RobustOptions:
    t, c = system.tables[p], system.configs[p]
    row = np.flatnonzero((t.settings.n >= counts[0]) & (t.settings.n <= counts[1]))
    has = (system.scenarios.mix > 0).any(axis=0)
    every = np.unique(t.config[row][t.active[row] & (t.config[row] >= 0)])
    adaptive = system.adaptation == ADAPTIVE
    return RobustOptions(
        row=row,
        active=t.active[row],
        prefills=(t.active & (t.settings.role == PREFILL))[row],
        decodes=(t.active & (t.settings.role == DECODE))[row],
        idle_usd_per_h=t.bill.idle_usd_per_h[row],
        power_w=t.bill.provisioned_w[row],
        config=t.config[row],
        instances=t.instances[:, row],
        usable=t.devices[:, row].astype(np.float64),
        prefill_rate=t.prefill_rate[:, row],
        decode_rate=t.decode_rate[:, row],
        both_rate=t.both_rate[:, row],
        kept=worth_having(c.g, c.prefill_s[:, has], c.decode_s[:, has]) if adaptive else every,
        g=c.g,
        prefill_s=c.prefill_s,
        decode_s=c.decode_s,
    )


def _able(pools: Sequence[RobustOptions], system: RobustSystem, w: int) -> bool:
    """Whether some plan may serve a scenario, as far as is quickly seen."""
    if system.adaptation == FIXED:
        rates = [sum(float(getattr(p, f"{r}_rate")[w].max()) for p in pools) for r in ("prefill", "decode", "both")]
        return rates[2] > 0 or min(rates[:2]) > 0
    used = [(p, j) for p in pools for j in p.kept if p.most(w, int(j)) > 0]
    has = system.scenarios.mix[w] > 0
    phases = ([p.prefill_s[j][has] for p, j in used], [p.decode_s[j][has] for p, j in used])
    return bool(used) and all(bool(np.isfinite(np.stack(s)).any(axis=0).all()) for s in phases)


def _pointless(p: RobustOptions, system: RobustSystem) -> Bools:
    """Options that another equals or betters in everything, in every scenario; of equals all but the first.

    Lossless: routing is free, so no plan serves less when one of its pools can do more.
    """
    if system.adaptation == FIXED:
        better = np.concatenate([p.prefill_rate, p.decode_rate, p.both_rate]).T
    elif system.adaptation == ADAPTIVE:
        better = p.usable.T
    else:
        seconds = np.concatenate([p.prefill_s, p.decode_s], axis=1)[p.config]
        with np.errstate(divide="ignore", invalid="ignore"):
            rates = np.where(p.active[:, None], 1.0 / np.maximum(seconds, 1e-300), 0.0)
        better = (p.instances.T[:, :, None] * rates[:, None, :]).reshape(len(p.row), -1)
    gain = np.column_stack([better, ~p.active, -p.idle_usd_per_h, -p.power_w])
    found = np.zeros(len(p.row), dtype=np.bool_)
    for k in range(len(p.row)):
        no_worse = (gain >= gain[k]).all(axis=1) & ~found
        equal = (gain == gain[k]).all(axis=1)
        found[k] = bool((no_worse & (~equal | (np.arange(len(found)) < k))).any())
    return found


def _only(p: RobustOptions, keep: Bools) -> RobustOptions:
    """The same pool with fewer options."""
    taken = {f.name: getattr(p, f.name) for f in fields(p) if f.name not in OF_CONFIGS}
    return replace(p, **{k: v[:, keep] if k in OF_OPTIONS else v[keep] for k, v in taken.items()})


def least_rate(data: RobustData, w: int) -> float:
    """Requests/s below those of every plan that serves the scenario: what one instance and the narrowest link do."""

    def smallest(values: Sequence[Floats]) -> float:
        return min((float(v[np.isfinite(v) & (v > 0)].min(initial=np.inf)) for v in values), default=np.inf)

    through_link = smallest([data.link_byte_s]) / float(data.class_kv_byte.max())
    if data.adaptation == FIXED:
        rates = [getattr(p, f"{r}_rate")[w] for p in data.pools for r in ("prefill", "decode", "both")]
        return 0.5 * min(smallest(rates), through_link)
    has = data.mix[w] > 0
    slowest_s = sum(
        float(np.where(np.isfinite(s), s, 0.0).max(initial=0.0))
        for p in data.pools
        for s in (p.prefill_s[p.kept][:, has], p.decode_s[p.kept][:, has])
    )
    return 0.5 * min(1.0 / slowest_s, through_link)


def _most_rate(data: RobustData, w: int) -> float:
    """Requests/s that no plan exceeds: every request is prefilled and decoded somewhere, each class at its quickest."""
    if data.adaptation == FIXED:
        rates = [
            sum(float(getattr(p, f"{r}_rate")[w].max()) for p in data.pools) for r in ("prefill", "decode", "both")
        ]
        return min(rates[:2]) + rates[2]
    q = data.mix[w]
    return min(
        sum(_phase_rate(p, getattr(p, f"{phase}_s"), w, q) for p in data.pools) for phase in ("prefill", "decode")
    )


def _phase_rate(p: RobustOptions, seconds: Floats, w: int, q: Floats) -> float:
    """Requests/s of one phase that a pool reaches on its quickest class, in its best configuration."""
    quickest = [float(seconds[j][q > 0].min()) for j in p.kept]
    return max((p.most(w, int(j)) / s for j, s in zip(p.kept, quickest, strict=True) if np.isfinite(s)), default=0.0)
