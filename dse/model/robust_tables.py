"""Pools of a fleet that serves several scenarios: phases, and what is up of each pool (docs/robust.md).

Request classes c have one shape in all scenarios; a scenario w has a mix q_w over them, a weight, a demand, and the
share of each pool's devices that is up. A configuration j of a pool is an instance size g with a prefill batch and a
largest decode batch; its phases depend on class shapes only, so they are computed once:

    s[j,c], d[j,c]   seconds of one instance to prefill, to decode a request of class c; infinite where it cannot

Of n devices floor(n up) are up; in instances of g, less the spares, floor(floor(n up)/g) - spares serve, at least 0.
Where devices are divided anew in every scenario, spares are held back as instances of the smallest size.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dse.model.bill import PoolBill
from dse.model.serving_pool import (
    ANY,
    BOTH,
    DECODE,
    PREFILL,
    Mix,
    PhaseTable,
    PoolPhysics,
    Settings,
    combined_table,
    decode_table,
    prefill_table,
)

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

WHOLE = 1e-9
"""A share of devices within this of a whole number is that number."""
NO_WORK_RATE = 1e12
"""Requests/s of one instance for a phase that takes no time (one output token: nothing to decode)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenarios:
    """W scenarios of one workload."""

    names: tuple[str, ...]
    mix: Floats
    """Share of each class (W, C); each row sums to 1."""
    weight: Floats
    """Share of time, or of importance (W,); sums to 1."""
    demand_requests_s: Floats | None
    """What must be served (W,); None where nothing is asked."""
    available_frac: Floats
    """Share of each pool's devices that is up (W, P)."""

    def __len__(self) -> int:
        return len(self.names)

    def of_mix(self, values: Floats) -> Floats:
        """Mean of a value per class over each scenario's requests (W,)."""
        return np.asarray(self.mix @ values)


@dataclass(frozen=True, kw_only=True)
class Configs:
    """The J configurations of one pool."""

    pool: PoolPhysics
    scenarios: Scenarios
    g: Ints
    prefill_batch: Ints
    max_decode_batch: Ints
    prefill: PhaseTable
    """Prompts stay until they are handed on (J, C)."""
    decode: PhaseTable
    """(J, C)"""
    prefill_s: Floats
    """s (J, C); infinite where the pool cannot prefill the class."""
    decode_s: Floats
    """d (J, C)"""
    laid_out: Bools
    """The model's layers and arithmetic allow it (J,)."""

    @cached_property
    def both(self) -> tuple[Floats, Floats]:
        """One instance that does both phases of every request of a scenario: requests/s, 0 where it cannot, and seconds
        that a request takes (W, J). Made when a role asks for it: under a TPOT limit it takes a search."""
        g, batch, most = (a[:, None].astype(np.float64) for a in (self.g, self.prefill_batch, self.max_decode_batch))
        shape = (len(g), len(self.pool.mix.input_tokens))
        whole = np.broadcast_to(self.pool.mix.input_tokens + self.pool.mix.output_tokens, shape)
        rate, seconds = _both(self.pool, self.scenarios, g, most, prefill_table(self.pool, g, batch, whole))
        return np.where(self.laid_out, rate, 0.0), seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class RobustTable:
    """One pool over K settings."""

    settings: Settings
    config: Ints
    """Configuration of each setting (K,); -1 where it is chosen anew in every scenario."""
    devices: Ints
    """Devices that may serve in each scenario (W, K)."""
    instances: Floats
    """Instances that serve in each scenario (W, K); 0 where the configuration is chosen anew."""
    prefill_rate: Floats
    """Requests/s of the mix that the whole pool prefills in its role (W, K)."""
    decode_rate: Floats
    both_rate: Floats
    alone_rate: Floats
    """Requests/s of the pool serving every request by itself, whatever its role (W, K); 0 where it is chosen anew."""
    bill: PoolBill

    @property
    def active(self) -> Bools:
        """Settings with devices (K,)."""
        return np.asarray(self.settings.n > 0)


def mean_s(mix: Floats, seconds: Floats) -> Floats:
    """Seconds per request of each mix (W, C) on each configuration (J, C): (W, J); infinite where a class cannot run.

    >>> mean_s(np.array([[1.0, 0.0], [0.5, 0.5]]), np.array([[2.0, np.inf]])).tolist()
    [[2.0], [inf]]
    """
    finite = np.where(np.isfinite(seconds), seconds, 0.0)
    lacking = (mix > 0).astype(np.float64) @ (~np.isfinite(seconds)).T.astype(np.float64)
    return np.where(lacking > 0, np.inf, mix @ finite.T)


def pool_configs(pool: PoolPhysics, scenarios: Scenarios, axes: Ints) -> Configs:
    """Phases of every configuration; axes (J, 3) are instance size, prefill batch, largest decode batch."""
    g, batch, most = (axes[:, k : k + 1].astype(np.float64) for k in range(3))
    prompt = np.broadcast_to(pool.mix.input_tokens, (len(axes), len(pool.mix.input_tokens)))
    prefill = prefill_table(pool, g, batch, prompt)
    decode = decode_table(pool, g, most, pool.tpot_limit_s)
    laid_out = ((axes[:, 0] <= pool.model.layers) | (pool.device.arrangement == "tensor")) & pool.computes
    return Configs(
        pool=pool,
        scenarios=scenarios,
        g=axes[:, 0],
        prefill_batch=axes[:, 1],
        max_decode_batch=axes[:, 2],
        prefill=prefill,
        decode=decode,
        prefill_s=np.where(laid_out[:, None], prefill.request_s, np.inf),
        decode_s=np.where(laid_out[:, None], decode.request_s, np.inf),
        laid_out=laid_out,
    )


def _both(
    pool: PoolPhysics, scenarios: Scenarios, g: Floats, most: Floats, prefill: PhaseTable
) -> tuple[Floats, Floats]:
    """Rate and seconds per request of one instance that does both phases, in each scenario (W, J).

    Under a TPOT limit prefill interrupts decode, so that the decode batch depends on the mix. A scenario looks at the
    classes that it has; scenarios of the same classes are rows of one table.
    """
    n_configs = len(g)
    rates, seconds = np.zeros((2, len(scenarios), n_configs))
    masks, kind = np.unique(scenarios.mix > 0, axis=0, return_inverse=True)
    for k, has in enumerate(masks):
        at = np.flatnonzero(kind.reshape(-1) == k)
        share = np.repeat(scenarios.mix[at][:, has], n_configs, axis=0)
        tokens = {name: getattr(pool.mix, name)[has] for name in ("input_tokens", "output_tokens")}
        own = _of_classes(prefill, has, len(at))
        sizes, batches = (np.tile(values, (len(at), 1)) for values in (g, most))
        table, rate = combined_table(replace(pool, mix=Mix(share=share, **tokens)), sizes, batches, own)
        able = (own.fits & table.fits & table.meets_slo).all(axis=1) & (rate > 0)
        spent = (share * (own.request_s + table.request_s)).sum(axis=1)
        rates[at] = np.where(able, rate, 0.0).reshape(len(at), n_configs)
        seconds[at] = np.where(able, spent, 0.0).reshape(len(at), n_configs)
    return rates, seconds


def _of_classes(table: PhaseTable, has: Bools, times: int) -> PhaseTable:
    """A phase over some of the classes, its rows so many times."""

    def part(values: Floats) -> Floats:
        return np.tile(np.broadcast_to(values, table.fits.shape)[:, has], (times, 1))

    time = replace(table.time, **{f: part(getattr(table.time, f)) for f in table.time.__slots__})
    return PhaseTable(
        time=time,
        batch=part(table.batch),
        request_s=part(table.request_s),
        fits=np.tile(table.fits[:, has], (times, 1)),
        missing_byte=part(table.missing_byte),
        margin_byte=part(table.margin_byte),
        meets_slo=np.tile(table.meets_slo[:, has], (times, 1)),
    )


def robust_table(
    configs: Configs, scenarios: Scenarios, pool: int, settings: Settings, config: Ints, spares: int, bill: PoolBill
) -> RobustTable:
    """One pool over its settings; config (K,) is each setting's configuration, -1 where chosen anew."""
    up = np.floor(settings.n * scenarios.available_frac[:, pool, None] + WHOLE).astype(np.int64)
    fixed = config >= 0
    j = np.maximum(config, 0)
    size = np.where(fixed, configs.g[j], configs.g.min())
    instances = np.where(fixed, np.maximum(up // size - spares, 0), 0).astype(np.float64)
    devices = np.where(fixed, instances * size, np.maximum(up - spares * size, 0)).astype(np.int64)
    prefill, decode = mean_s(scenarios.mix, configs.prefill_s)[:, j], mean_s(scenarios.mix, configs.decode_s)[:, j]
    role = settings.role
    in_role = bool((role != ANY).any())
    both = instances * configs.both[0][:, j] if in_role else np.zeros_like(instances)

    def rate(seconds: Floats, takes_part: Bools) -> Floats:
        able = takes_part & np.isfinite(seconds)
        return np.where(able, instances / np.maximum(np.where(able, seconds, 1.0), 1.0 / NO_WORK_RATE), 0.0)

    return RobustTable(
        settings=settings,
        config=config,
        devices=devices,
        instances=instances,
        prefill_rate=rate(prefill, role == PREFILL),
        decode_rate=rate(decode, role == DECODE),
        both_rate=np.where(role == BOTH, both, 0.0),
        alone_rate=both if in_role else np.where(fixed, _side_by_side(instances, prefill + decode), 0.0),
        bill=bill,
    )


def _side_by_side(instances: Floats, together: Floats) -> Floats:
    """Rate of a pool that serves by itself under work stealing, its phases side by side (W, K)."""
    able = np.isfinite(together) & (together > 0)
    return np.divide(instances, together, out=np.zeros_like(together), where=able)
