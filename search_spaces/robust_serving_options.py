"""Settings of the pools of a study of several scenarios, their tables under one way to adapt, and what is legal.

Under a fixed split a pool's setting is a count, an instance size, a role and its batches; under work stealing there is
no role; where devices are divided anew in every scenario only the count is bought, and size and batches are 0.
Settings that cannot matter are held at one value, so that no design appears twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
from numpy.typing import NDArray

from dse.model.bill import pool_bill
from dse.model.robust_serving import ADAPTIVE, FIXED, RobustSystem
from dse.model.robust_tables import Configs, Scenarios, pool_configs, robust_table
from dse.model.serving_pool import ANY, BOTH, DECODE, PREFILL, ROLE_NAMES, PoolPhysics, ServingLimits, Settings

from .robust_serving_problem import RobustOffer, RobustProblem
from .robust_serving_study import Adaptation

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Row = tuple[int, int, int, int, int]


def pool_options(offer: RobustOffer, adaptation: Adaptation) -> Settings:
    """Every setting of a pool; counts ascending, absent first where 0 is on offer."""
    rows = [absent_setting(offer, adaptation)] if 0 in offer.counts else []
    for n in offer.counts:
        if adaptation == ADAPTIVE:
            rows += [(n, 0, ANY, 0, 0)] if n and any(n % g == 0 for g in offer.instance_size) else []
            continue
        roles = sorted(ROLE_NAMES.index(r) for r in offer.roles) if adaptation == FIXED else [ANY]
        for g, role in product(offer.instance_size, roles):
            if n and n % g == 0:
                prefill = offer.prefill_batch if role != DECODE else offer.prefill_batch[:1]
                decode = offer.max_decode_batch if role != PREFILL else (max(offer.max_decode_batch),)
                rows += [(n, g, role, b, d) for b in prefill for d in decode]
    return settings_of_rows(rows)


def absent_setting(offer: RobustOffer, adaptation: Adaptation) -> Row:
    """The one setting of a pool that is not bought."""
    if adaptation == ADAPTIVE:
        return (0, 0, ANY, 0, 0)
    role = BOTH if adaptation == FIXED else ANY
    return (0, offer.instance_size[0], role, offer.prefill_batch[0], max(offer.max_decode_batch))


def settings_of_rows(rows: Sequence[Row]) -> Settings:
    """Rows of (n, g, role, prefill batch, largest decode batch) as columns."""
    n, g, role, prefill, decode = np.array(rows, dtype=np.int64).reshape(-1, 5).T
    return Settings(n=n, g=g, role=role, prefill_batch=prefill, max_decode_batch=decode)


def physics(problem: RobustProblem, offer: RobustOffer) -> PoolPhysics:
    """A pool's shared pieces."""
    return PoolPhysics(
        device=offer.device,
        model=problem.model,
        mix=problem.mix,
        precision=problem.precision,
        limits=ServingLimits(tpot_s=problem.tpot_s),
        hit_frac=problem.hit_frac,
        reserve_frac=offer.reserve_frac,
    )


def configs_of(offer: RobustOffer, pool: PoolPhysics, scenarios: Scenarios) -> Configs:
    """Phases of every configuration that a pool's axes give."""
    axes = list(product(offer.instance_size, offer.prefill_batch, offer.max_decode_batch))
    return pool_configs(pool, scenarios, np.array(axes, dtype=np.int64))


def config_of(configs: Configs, settings: Settings) -> Ints:
    """Configuration of each setting (K,); -1 where it is chosen anew in every scenario."""
    found = np.full(len(settings), -1, dtype=np.int64)
    for j in range(len(configs.g)):
        same = (settings.g == configs.g[j]) & (settings.prefill_batch == configs.prefill_batch[j])
        found[same & (settings.max_decode_batch == configs.max_decode_batch[j])] = j
    return found


def build_system(
    problem: RobustProblem,
    adaptation: Adaptation,
    pools: Sequence[PoolPhysics],
    configs: Sequence[Configs],
    settings: Sequence[Settings],
) -> RobustSystem:
    """Tables of every pool over its settings under one way to adapt."""
    tables = tuple(
        robust_table(
            own,
            problem.scenarios,
            p,
            rows,
            config_of(own, rows),
            offer.spares,
            pool_bill(offer.device, problem.site, rows.n, offer.owned),
        )
        for p, (offer, own, rows) in enumerate(zip(problem.pools, configs, settings, strict=True))
    )
    return RobustSystem(
        adaptation=adaptation,
        pools=tuple(pools),
        configs=tuple(configs),
        tables=tables,
        scenarios=problem.scenarios,
        links=problem.links,
        mix=problem.mix,
        site=problem.site,
    )


def is_legal(system: RobustSystem, rows: Ints, link: Ints) -> Bools:
    """Whether designs (P, N) are on offer: both phases have a pool, and where nothing crosses the first link stands."""
    active = np.stack([t.active[r] for t, r in zip(system.tables, rows, strict=True)])
    count = active.sum(axis=0)
    if system.adaptation != FIXED:
        return np.asarray((count > 0) & ((count > 1) | (link == 0)), dtype=np.bool_)
    role = np.stack([t.settings.role[r] for t, r in zip(system.tables, rows, strict=True)])
    prefills, decodes, both = ((active & (role == r)).any(axis=0) for r in (PREFILL, DECODE, BOTH))
    crosses = prefills & decodes
    return np.asarray((crosses | both) & (crosses | (link == 0)), dtype=np.bool_)
