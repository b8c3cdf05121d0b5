"""One regime of a serving study as a system of pools: the values that its mathematics reads, and small pieces of it.

Arrays hold one entry a design; a design names, per pool, a row of that pool's table, and one way to
link the pools.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from dse.model.fleet import gathered
from dse.model.links import LinkTable, Pair, Wiring, pairs_of
from dse.model.pool_table import PoolTable
from dse.model.serving_pool import DECODE, PREFILL, Mix, PhaseTable, PoolPhysics, ServingLimits
from dse.model.stealing import StealingPlans, stealing_plans
from dse.study import Site

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Cell = TypeVar("Cell", bound=np.generic)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadAsked:
    """At which load latencies are given, and what counts as good."""

    load_frac: float = 0.8
    """Share of the capacity, where there is no demand."""
    arrival_cv2: float = 1.0
    """Squared coefficient of variation of the gaps between requests; 1 for a Poisson stream."""
    limits: tuple[float, float] | None = None
    """TTFT and TPOT that a good request keeps [s]; infinite where there is no such limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """One regime of a study: pools with their tables, one routing, one precision."""

    pools: tuple[PoolPhysics, ...]
    tables: tuple[PoolTable, ...]
    stealing: bool
    """Work stealing instead of split."""
    links: LinkTable
    wiring: Wiring
    mix: Mix
    limits: ServingLimits
    demand_requests_s: float | None
    site: Site
    load: LoadAsked = LoadAsked()
    plans: dict[tuple[int, int], StealingPlans] = field(default_factory=dict)
    """Work stealing between two pools: the plans of each pair of configurations, made when first needed."""

    @property
    def output_tok(self) -> float:
        """Mean output tokens per request."""
        return float((self.mix.share * self.mix.output_tokens).sum())

    @property
    def input_tok(self) -> float:
        """Mean input tokens per request."""
        return float((self.mix.share * self.mix.input_tokens).sum())

    @property
    def class_kv_byte(self) -> Floats:
        """KV cache that a request of each class hands from prefill to decode [byte] (C,)."""
        return self.pools[0].kv(self.mix.input_tokens)

    @property
    def request_kv_byte(self) -> float:
        """The same, averaged over the mix [byte]."""
        return float((self.mix.share * self.class_kv_byte).sum())


def plans_of(system: System, config_a: int, config_b: int) -> StealingPlans:
    """Plans of work stealing for one configuration of each of two pools."""
    key = (config_a, config_b)
    if key not in system.plans:
        prefill, decode = seconds_of(system, *key)
        system.plans[key] = stealing_plans(prefill, decode, system.mix.share, system.class_kv_byte)
    return system.plans[key]


def seconds_of(system: System, *configs: int) -> tuple[tuple[Floats, Floats], tuple[Floats, Floats]]:
    """Seconds of one instance per request, prefill and decode, of one configuration of each of two pools (C,)."""
    (a, b), (config_a, config_b) = system.tables, configs
    return (
        (a.prefill.request_s[config_a], b.prefill.request_s[config_b]),
        (a.decode.request_s[config_a], b.decode.request_s[config_b]),
    )


def pairs_bought(system: System, rows: Sequence[Ints]) -> dict[Pair, Bools]:
    """Links to buy: for every pair of pools, whether both are active and KV cache may flow between them."""
    active = [t.active[r] for t, r in zip(system.tables, rows, strict=True)]
    roles = [t.settings.role[r] for t, r in zip(system.tables, rows, strict=True)]
    bought = {}
    for p, q in pairs_of(len(rows)):
        used = active[p] & active[q]
        if not system.stealing:
            forward = (roles[p] == PREFILL) & (roles[q] == DECODE)
            used = used & (forward | ((roles[p] == DECODE) & (roles[q] == PREFILL)))
        bought[p, q] = used
    return bought


def pair_byte_s(system: System, link: Ints) -> Floats:
    """Bandwidth of every ordered pair of pools (N, P, P)."""
    return system.links.byte_s[system.wiring.option[link]]


def narrowest_byte_s(system: System, link: Ints, bought: Mapping[Pair, Bools]) -> Floats:
    """Bandwidth of the narrowest link that is bought; infinite where none is (N,)."""
    byte_s, narrowest = pair_byte_s(system, link), np.full(len(link), np.inf)
    for (p, q), used in bought.items():
        narrowest = np.where(used, np.minimum(narrowest, byte_s[:, p, q]), narrowest)
    return narrowest


def held_by_ttft(system: System, rows: Sequence[Ints], option: Ints) -> list[Floats]:
    """Prefill rate of each pool that meets the TTFT limit through the slowest link it sends over.

    `option` is the link of every pair, (P, P) of a block or (N, P, P). A pool sends to every pool that decodes.
    """
    receives = [t.decode_rate[r] > 0 for t, r in zip(system.tables, rows, strict=True)]
    held = []
    for p, (table, r) in enumerate(zip(system.tables, rows, strict=True)):
        others = [o for o in range(len(rows)) if o != p] or [p]
        first = option[..., p, others[0]]
        slowest = table.prefill_rate_ttft[r, first]
        if any((option[..., p, o] != first).any() for o in others):
            through = [table.prefill_rate_ttft[r, option[..., p, o]] for o in others]
            reached = [np.where(receives[o], rate, np.inf) for o, rate in zip(others, through, strict=True)]
            slowest = np.minimum.reduce(np.broadcast_arrays(*reached))
        held.append(slowest)
    return held


def stacked(tables: Sequence[PoolTable], rows: Ints, name: str, field: str) -> Floats:
    """One (J, C) array of a phase of every pool, gathered to (N, P, C)."""
    phases: list[PhaseTable] = [getattr(t, name) for t in tables]
    arrays = [getattr(f, field) if hasattr(f, field) else getattr(f.time, field) for f in phases]
    full = [np.broadcast_to(a, f.fits.shape) for a, f in zip(arrays, phases, strict=True)]
    return gathered(full, [t.config[r] for t, r in zip(tables, rows, strict=True)])


def weighted(weight: Floats, value: Floats) -> Floats:
    """Product that reads nothing where the weight is 0 (a phase that cannot run takes infinite time)."""
    return np.multiply(weight, value, out=np.zeros(np.broadcast(weight, value).shape), where=weight > 0)
