"""Settings of the pools of a serving study, their tables under one regime, and which designs are legal.

A pool's options are its settings: absent, or a count, an instance size that divides it, a role, batch axes.
Settings that cannot matter are held at one value (no prefill batch where a pool only decodes), so that
no design appears twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from dse.model.bill import pool_bill
from dse.model.links import Wiring
from dse.model.pool_table import PoolTable, pool_table
from dse.model.serving_pool import (
    ANY,
    BOTH,
    DECODE,
    PREFILL,
    ROLE_NAMES,
    PoolPhysics,
    Precision,
    Settings,
)
from dse.model.serving_system import System, pairs_bought

from .pd_serving_problem import PoolOffer, ServingProblem
from .pd_serving_study import Routing

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Regime:
    """What holds for a whole fleet: data types and routing."""

    precision: Precision
    routing: Routing


def pool_options(offer: PoolOffer, *, stealing: bool) -> Settings:
    """Every setting of a pool under one routing; counts ascending, absent first where 0 is on offer."""
    rows: list[tuple[int, int, int, int, int]] = []
    if 0 in offer.counts:
        rows.append(absent_setting(offer))
    roles = [ANY] if stealing else sorted({ROLE_NAMES.index(r) for r in offer.roles} | {BOTH})
    for n in offer.counts:
        for g in offer.instance_size:
            if n == 0 or n % g:
                continue
            for role in roles:
                prefill = offer.prefill_batch if role != DECODE else offer.prefill_batch[:1]
                decode = offer.max_decode_batch if role != PREFILL else (max(offer.max_decode_batch),)
                rows += [(n, g, role, b, d) for b in prefill for d in decode]
    table = np.array(rows, dtype=np.int64).reshape(-1, 5)
    return Settings(
        n=table[:, 0],
        g=table[:, 1],
        role=table[:, 2],
        prefill_batch=table[:, 3],
        max_decode_batch=table[:, 4],
    )


def absent_setting(offer: PoolOffer) -> tuple[int, int, int, int, int]:
    """The one setting of a pool that is not bought."""
    return (0, offer.instance_size[0], BOTH, offer.prefill_batch[0], max(offer.max_decode_batch))


def place_of(options: Settings, one: Settings) -> int | None:
    """Position of a single setting among a pool's options; None where they lack it."""
    same = np.ones(len(options), dtype=np.bool_)
    for name in ("n", "g", "role", "prefill_batch", "max_decode_batch"):
        if name == "n" or one.n[0] > 0:  # the settings of a pool that is not bought do not matter
            same &= getattr(options, name) == getattr(one, name)[0]
    found = np.flatnonzero(same)
    return int(found[0]) if len(found) else None


def physics(problem: ServingProblem, offer: PoolOffer, precision: Precision) -> PoolPhysics:
    """A pool's shared pieces under one precision."""
    return PoolPhysics(
        device=offer.device,
        model=problem.model,
        mix=problem.mix,
        precision=precision,
        limits=problem.limits,
        hit_frac=problem.hit_frac,
        reserve_frac=offer.reserve_frac,
        chunk_tokens=offer.chunk_tokens,
    )


def known_table(known: ServingProblem, wanted: ServingProblem, pool: int, table: PoolTable) -> PoolTable | None:
    """A pool's table for another problem, if the pool is the same there but for price and site; None if it is not.

    The problems may differ in pools, links and site only. Links enter a table where there is a TTFT limit.
    """
    before, after = known.pools[pool], wanted.pools[pool]
    if wanted.links is not known.links and np.isfinite(wanted.limits.ttft_p99_s):
        same = (getattr(wanted.links, name) == getattr(known.links, name) for name in ("byte_s", "latency_s"))
        if not all(part.all() for part in same):
            return None
    if after is before and wanted.site == known.site:
        return table
    alike = all(getattr(before, f.name) is getattr(after, f.name) for f in fields(before) if f.name != "device")
    prices = {"rental_usd_per_h", "capex_usd", "rental_range_usd_per_h", "capex_range_usd"}
    physics = [f.name for f in fields(before.device) if f.name not in prices]
    if not alike or any(getattr(before.device, name) is not getattr(after.device, name) for name in physics):
        return None
    return replace(table, bill=pool_bill(after.device, wanted.site, table.settings.n, after.owned))


def build_system(
    problem: ServingProblem,
    wiring: Wiring,
    regime: Regime,
    settings: Sequence[Settings],
    known: Sequence[PoolTable | None] = (),
) -> System:
    """Tables of every pool over the given settings, but for those that are known, under one regime, and the links."""
    stealing = regime.routing == "work_stealing"
    pools = tuple(physics(problem, o, regime.precision) for o in problem.pools)
    tables = tuple(
        pool_table(
            pool,
            rows,
            problem.links.byte_s,
            problem.links.latency_s,
            pool_bill(offer.device, problem.site, rows.n, offer.owned),
        )
        if table is None
        else table
        for pool, rows, offer, table in zip(pools, settings, problem.pools, known or [None] * len(pools), strict=True)
    )
    return System(
        pools=pools,
        tables=tables,
        stealing=stealing,
        links=problem.links,
        wiring=wiring,
        mix=problem.mix,
        limits=problem.limits,
        demand_requests_s=problem.demand_requests_s,
        load=problem.load,
        site=problem.site,
    )


def is_legal(
    system: System, rows: Sequence[Ints], link: int | Ints, listed: Sequence[Bools], first_routing: bool
) -> Bools:
    """Whether designs are on offer; rows broadcast together.

    At least one pool is bought. A pool alone does both phases, whatever roles are listed, under the
    first routing only (routing does not matter there). With several pools each has a listed role.
    Where nothing can cross between pools only the first link stands for all; where links are chosen pair by
    pair, it does for each pair that exchanges nothing.
    """
    tables = system.tables
    active = [t.active[r] for t, r in zip(tables, rows, strict=True)]
    roles = [t.settings.role[r] for t, r in zip(tables, rows, strict=True)]
    count = sum(a.astype(np.int8) for a in active)
    shape = np.broadcast_shapes(*(a.shape for a in active))
    alone_ok, together_ok = np.ones(shape, np.bool_), np.ones(shape, np.bool_)
    prefills, decodes = np.zeros(shape, np.bool_), np.zeros(shape, np.bool_)
    for a, role, ok, r in zip(active, roles, listed, rows, strict=True):
        alone_ok = alone_ok & (~a | (role == BOTH) | (role == ANY))
        together_ok = together_ok & (~a | ok[r])
        prefills = prefills | (a & (role == PREFILL))
        decodes = decodes | (a & (role == DECODE))
    legal = np.where(count > 1, together_ok, (count == 1) & alone_ok & first_routing)
    if system.wiring.per_pair:
        option = system.wiring.option[link]
        for (p, o), used in pairs_bought(system, rows).items():
            legal = legal & (used | (option[..., p, o] == 0))
        return np.asarray(legal, dtype=np.bool_)
    crosses = (count > 1) if system.stealing else (prefills & decodes)
    return np.asarray(legal & (crosses | (np.asarray(link) == 0)), dtype=np.bool_)
