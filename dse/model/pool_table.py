"""One pool tabulated over its settings: rates, feasibility, power and cost (docs/model.md, section 6 and 7).

A pool's times depend on nothing but its own settings, so they are computed once per configuration (a setting less
its count) and gathered per design.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dse.model.bill import PoolBill
from dse.model.queueing import largest_rate, tail_wait_s
from dse.model.serving_pool import (
    BOTH,
    DECODE,
    PREFILL,
    PhaseTable,
    PoolPhysics,
    Settings,
    combined_table,
    decode_table,
    half_step_s,
    prefill_table,
    service_moments,
    slowest_class,
)

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]

NO_WORK_RATE = 1e12
"""Requests/s of one instance for a phase that takes no time (one output token: nothing to decode)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolTable:
    """One pool over K settings; phases over its J configurations.

    Rates are requests/s of the whole pool, 0 where the role has no part (K,).
    """

    settings: Settings
    config: Ints
    """Row of each setting among the distinct configurations (settings less the count) (K,)."""
    instances: Floats
    prefill: PhaseTable
    decode: PhaseTable
    combined: PhaseTable
    """Decode as it runs when the same instance also prefills (role both)."""
    combined_margin_byte: Floats
    """Bytes left on a device that does both phases: the tighter of them, over all classes (J,)."""
    prefill_rate: Floats
    decode_rate: Floats
    both_rate: Floats
    alone_busy: Floats
    """Share of time that the pool is busy at its stand-alone rate (below 1 where a limit holds it back)."""
    alone_rate: Floats
    """Stand-alone: the pool doing both phases under the same limits, whatever its role here."""
    apart_device_s: float
    """Device-seconds per request with each phase of each class on instances of its own best size, KV cache moving
    between them for free and nothing waiting: no fleet of this device needs less. Infinite where it cannot serve."""
    prefill_rate_ttft: Floats
    """(K, n_links): prefill rate that meets the TTFT limit through each link."""
    feasible: Bools
    """The role's phases fit in memory, the hardware has the dtype, and the limits can be met at some rate."""
    active: Bools
    bill: PoolBill


def ttft_rate(
    limit_s: float, upper: Floats, instances: Floats, mean_s: Floats, cv2: Floats, unqueued_s: Floats
) -> Floats:
    """Largest rate up to `upper` whose p99 of wait + unqueued_s meets the limit (K,)."""

    def meets(rate: Floats) -> Bools:
        return np.asarray(tail_wait_s(rate, instances, mean_s, cv2) + unqueued_s <= limit_s)

    ok = (unqueued_s <= limit_s) & (instances > 0) & (upper > 0)
    return np.where(ok, largest_rate(meets, np.where(ok, upper, 0.0)), 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Phases:
    """The phases of every configuration of a pool, and which of them it can run (J,)."""

    role: Ints
    prefill: PhaseTable
    """At the memory its role leaves it: a pool that also decodes keeps whole sequences."""
    decode: PhaseTable
    combined: PhaseTable
    prefill_whole: PhaseTable
    """Prefill beside decode: whole sequences stay."""
    prefill_only: PhaseTable
    """Prefill that hands its sequences on: prompts stay."""
    combined_rate: Floats
    """Requests/s of one instance that does both."""
    can_prefill: Bools
    can_decode: Bools
    can_both: Bools
    does_its_part: Bools


def _phases(pool: PoolPhysics, unique: Ints) -> _Phases:
    g, batch, most = (unique[:, k : k + 1].astype(np.float64) for k in (0, 2, 3))
    role, mix = unique[:, 1], pool.mix
    whole = np.broadcast_to(mix.input_tokens + mix.output_tokens, (len(unique), len(mix.share)))
    prompt = np.broadcast_to(mix.input_tokens, whole.shape)
    both = (role == BOTH)[:, None]
    prefill = prefill_table(pool, g, batch, np.where(both, whole, prompt), np.where(both, pool.chunk_tokens, np.inf))
    prefill_whole = prefill_table(pool, g, batch, whole, pool.chunk_tokens)
    prefill_only = prefill_table(pool, g, batch, prompt)
    decode = decode_table(pool, g, most, pool.tpot_limit_s)
    if not pool.computes:
        prefill, decode, prefill_whole = (_unable(t) for t in (prefill, decode, prefill_whole))
    combined, combined_rate = combined_table(pool, g, most, prefill_whole)
    laid_out = (unique[:, 0] <= pool.model.layers) | (pool.device.arrangement == "tensor")
    laid_out &= pool.computes
    decodes = decode.fits & decode.meets_slo
    can_prefill = prefill.fits.all(axis=1) & laid_out
    can_decode = decodes.all(axis=1) & laid_out
    fits_both = prefill_whole.fits & combined.fits & combined.meets_slo
    can_both = fits_both.all(axis=1) & (combined_rate > 0) & laid_out
    anything = (prefill.fits.any(axis=1) | decodes.any(axis=1)) & laid_out
    return _Phases(
        role=role,
        prefill=prefill,
        decode=decode,
        combined=combined,
        prefill_whole=prefill_whole,
        prefill_only=prefill_only,
        combined_rate=combined_rate,
        can_prefill=can_prefill,
        can_decode=can_decode,
        can_both=can_both,
        does_its_part=np.select(
            [role == PREFILL, role == DECODE, role == BOTH], [can_prefill, can_decode, can_both], anything
        ),
    )


def _unable(table: PhaseTable) -> PhaseTable:
    """The same phase on a device that lacks the arithmetic: no request of any class can run."""
    return replace(table, request_s=np.full_like(table.request_s, np.inf), meets_slo=np.zeros_like(table.meets_slo))


def _apart_device_s(pool: PoolPhysics, phases: _Phases, g: Ints) -> float:
    """sum_c q_c (min over sizes of g prefill_s + min over sizes of g decode_s)."""
    if not pool.computes:
        return float("inf")
    best = (g * phases.prefill_only.request_s).min(axis=0) + (g * phases.decode.request_s).min(axis=0)
    return float((pool.mix.share * best).sum())


@dataclass(slots=True, kw_only=True)
class _Rates:
    """Rates of every setting (K,), before and then under a TTFT limit."""

    prefill: Floats
    decode: Floats
    alone: Floats
    prefill_ttft: Floats
    """(K, L)"""


def _rates(pool: PoolPhysics, phases: _Phases, config: Ints, instances: Floats, n_links: int) -> _Rates:
    share = pool.mix.share

    def per_request(table: PhaseTable, where: Bools) -> Floats:
        return np.where(where, (share * table.request_s).sum(axis=1), 1.0)

    def pooled(per_instance: Floats, where: Bools) -> Floats:
        return np.where(where[config], instances * per_instance[config], 0.0)

    prefills, decodes = phases.can_prefill & (phases.role == PREFILL), phases.can_decode & (phases.role == DECODE)
    prefill = pooled(1.0 / per_request(phases.prefill, prefills), prefills)
    decode = pooled(1.0 / np.maximum(per_request(phases.decode, decodes), 1.0 / NO_WORK_RATE), decodes)
    return _Rates(
        prefill=prefill,
        decode=decode,
        alone=pooled(phases.combined_rate, phases.can_both),
        prefill_ttft=np.repeat(prefill[:, None], n_links, axis=1),
    )


def _hold_ttft(
    pool: PoolPhysics,
    phases: _Phases,
    config: Ints,
    instances: Floats,
    rates: _Rates,
    links: tuple[Floats, Floats],
) -> None:
    """Lowers every rate to the largest that keeps the p99 of TTFT within its limit."""
    limit_s = pool.limits.ttft_p99_s
    mean_s, cv2 = (m[config] for m in service_moments(pool.mix, phases.prefill))
    slow = slowest_class(pool, phases.prefill)
    latency_s = phases.prefill.time.latency_s[np.arange(len(slow)), slow][config]
    transfer_byte = pool.kv(pool.mix.input_tokens)[slow][config]
    for link, (byte_s, link_latency_s) in enumerate(zip(*links, strict=True)):
        unqueued_s = latency_s + transfer_byte / byte_s + link_latency_s
        rates.prefill_ttft[:, link] = ttft_rate(limit_s, rates.prefill, instances, mean_s, cv2, unqueued_s)
    interrupted_s = latency_s + half_step_s(pool.mix, phases.combined)[config]
    rates.alone = ttft_rate(limit_s, rates.alone, instances, mean_s, cv2, interrupted_s)


def pool_table(
    pool: PoolPhysics, settings: Settings, link_byte_s: Floats, link_latency_s: Floats, bill: PoolBill
) -> PoolTable:
    """Everything the system needs to know of one pool, over K settings."""
    keys = np.stack([settings.g, settings.role, settings.prefill_batch, settings.max_decode_batch], axis=1)
    unique, config = np.unique(keys, axis=0, return_inverse=True)
    config = config.reshape(-1)
    phases = _phases(pool, unique)
    active = settings.n > 0
    instances = np.where(active, settings.n / settings.g, 0.0)
    rates = _rates(pool, phases, config, instances, len(link_byte_s))
    in_time = np.ones(len(settings), dtype=np.bool_)
    if np.isfinite(pool.limits.ttft_p99_s):
        _hold_ttft(pool, phases, config, instances, rates, (link_byte_s, link_latency_s))
        reached = [(rates.prefill_ttft > 0).any(axis=1), rates.alone > 0]
        in_time = np.select([settings.role == PREFILL, settings.role == BOTH], reached, in_time)
    together_s = (pool.mix.share * (phases.prefill_whole.request_s + phases.combined.request_s)).sum(axis=1)
    spent = np.where(phases.can_both, together_s, 0.0)[config]
    return PoolTable(
        settings=settings,
        config=config,
        instances=instances,
        prefill=phases.prefill,
        decode=phases.decode,
        combined=phases.combined,
        combined_margin_byte=np.minimum(phases.prefill_whole.margin_byte, phases.combined.margin_byte).min(axis=1),
        prefill_rate=rates.prefill,
        decode_rate=rates.decode,
        both_rate=np.where(settings.role == BOTH, rates.alone, 0.0),
        alone_busy=np.divide(rates.alone * spent, instances, out=np.zeros_like(instances), where=instances > 0),
        alone_rate=rates.alone,
        apart_device_s=_apart_device_s(pool, phases, unique[:, :1]),
        prefill_rate_ttft=rates.prefill_ttft,
        feasible=(phases.does_its_part[config] & in_time) | ~active,
        active=active,
        bill=bill,
    )
