"""Prefill/decode serving on several pools, scored in full: latency, cost, power, and why (docs/model.md, section 5-7).

`dse.model.serving_screen` gives only what a search needs, at memory speed; `evaluate` gives every column of a result
row; both read the same pool tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dse.model.fleet import baseline_columns, bill_columns, gathered, gpu_wse_ratio, share_of
from dse.model.links import Pair, links_bill
from dse.model.pool_table import PoolTable
from dse.model.roofline import idle_over_busy, u_ho
from dse.model.serving_flow import Flow, crossing_byte, flows, time_to_first_token
from dse.model.serving_load import latency_at_load
from dse.model.serving_pool import BOTH, DECODE, PREFILL
from dse.model.serving_system import System, pair_byte_s, pairs_bought, stacked, weighted

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

ROUNDING = 1e-9
"""A share within this of 1 is 1."""

SATURATED = 1.0 - 1e-9
"""A pool or link busier than this is what binds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolParts:
    """One phase as it runs in N designs (N, P, C): batch, pass time and its parts."""

    batch: Floats
    occupancy_s: Floats
    latency_s: Floats
    compute_s: Floats
    memory_s: Floats
    communication_s: Floats
    fixed_s: Floats
    flop: Floats
    moved_byte: Floats
    request_s: Floats
    passes: Floats
    """Passes that one request takes part in, over the batch: 1/b, or steps/b."""


_PARTS = (
    "batch", "occupancy_s", "latency_s", "compute_s", "memory_s", "communication_s", "fixed_s",
    "flop", "moved_byte", "request_s",
)  # fmt: skip


def phase_parts(system: System, rows: Ints, flow: Flow) -> tuple[PoolParts, PoolParts]:
    """Prefill and decode of N designs; decode is the combined table where one instance does both."""
    tables = system.tables
    prefill = {f: stacked(tables, rows, "prefill", f) for f in _PARTS}
    alone = flow.combined[:, :, None]
    decode = {
        f: np.where(alone, stacked(tables, rows, "combined", f), stacked(tables, rows, "decode", f)) for f in _PARTS
    }
    return (
        PoolParts(**prefill, passes=1.0 / prefill["batch"]),
        PoolParts(**decode, passes=system.mix.steps / np.maximum(decode["batch"], 1.0)),
    )


def _tpot(system: System, rows: Ints, flow: Flow, rate: Floats, decode: PoolParts) -> Floats:
    """Time per output token at a given rate, averaged over requests that decode (N,)."""
    tables = system.tables
    instances = gathered([t.instances for t in tables], rows)
    service = stacked(tables, rows, "prefill", "service_s")
    prefilling = rate[:, None] * weighted(flow.prefilled, service).sum(axis=2) / np.maximum(instances, 1e-9)
    spare = np.where(flow.combined, 1.0 - prefilling, 1.0)[:, :, None]
    step = np.divide(decode.occupancy_s, spare, out=np.full(decode.occupancy_s.shape, np.inf), where=spare > 1e-12)
    weight = np.where(system.mix.steps > 0, flow.decoded, 0.0)
    return share_of(weighted(weight, step).sum(axis=(1, 2)), weight.sum(axis=(1, 2)))


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolUse:
    """What each pool does per request of the mix, in seconds of one instance (N, P); eq. (3)-(4)."""

    rate: Floats
    """Requests/s of the whole design (N,)."""
    busy_frac: Floats
    total_s: Floats
    compute_s: Floats
    memory_s: Floats
    communication_s: Floats
    fixed_s: Floats
    flop: Floats
    moved_byte: Floats
    u_ho: Floats
    """Utilisation of the binding resource when the pool is never idle."""
    eta: Floats
    u: Floats


def pool_use(system: System, rows: Ints, flow: Flow, prefill: PoolParts, decode: PoolParts) -> PoolUse:
    """Sum both phases over what flows to each pool, and read u_HO, eta and u off the sums.

    1 + eta = 1/busy: in serving eta is what the matched flow leaves unused.
    """
    x, w = flow.prefilled, flow.decoded

    def per_request(field: str) -> Floats:
        in_prefill = weighted(x * prefill.passes, getattr(prefill, field))
        in_decode = weighted(w * decode.passes, getattr(decode, field))
        return (in_prefill + in_decode).sum(axis=2)

    instances = gathered([t.instances for t in system.tables], rows)
    g = gathered([t.settings.g for t in system.tables], rows)
    total = per_request("occupancy_s")
    busy = share_of(flow.rate[:, None] * total, instances)
    busy = np.where(np.abs(busy - 1.0) < ROUNDING, 1.0, busy)
    compute, memory = per_request("compute_s"), per_request("memory_s")
    comm, fixed = per_request("communication_s"), per_request("fixed_s")
    flop, moved = per_request("flop"), per_request("moved_byte")
    peak = np.array([p.device.peak(p.precision.compute) or np.inf for p in system.pools])
    bandwidth = np.array([p.device.memory_bandwidth_byte_s for p in system.pools])
    ideal = np.stack([flop / (g * peak), moved / (g * bandwidth), comm])
    reached, eta = u_ho(ideal, np.stack([compute, memory, comm]), total), idle_over_busy(busy)
    return PoolUse(
        rate=flow.rate,
        busy_frac=busy,
        total_s=total,
        compute_s=compute,
        memory_s=memory,
        communication_s=comm,
        fixed_s=fixed,
        flop=flop,
        moved_byte=moved,
        u_ho=reached,
        eta=eta,
        u=reached / (1.0 + eta),
    )


def _margin(system: System, rows: Ints, flow: Flow) -> Floats:
    """Usable bytes left on the tightest device of a design; where something does not fit, minus the missing."""
    margins = []
    for p, (table, r) in enumerate(zip(system.tables, rows, strict=True)):
        role, config = table.settings.role[r], table.config[r]
        prefill, decode = table.prefill.margin_byte.min(axis=1), table.decode.margin_byte.min(axis=1)
        if system.stealing:
            margin = _loosest_margin(table)[config]
        else:
            margin = np.where(role == PREFILL, prefill[config], np.where(role == DECODE, decode[config], np.inf))
        together = (role == BOTH) | flow.combined[:, p]
        margin = np.where(together, table.combined_margin_byte[config], margin)
        margins.append(np.where(table.active[r], margin, np.inf))
    return np.stack(margins).min(axis=0)


def _loosest_margin(table: PoolTable) -> Floats:
    """Under work stealing: the tightest of what a pool can run; if it can run nothing, the least missing (J,)."""
    prefill, decode = table.prefill, table.decode
    runs = np.minimum(
        np.where(prefill.fits, prefill.margin_byte, np.inf).min(axis=1),
        np.where(decode.fits, decode.margin_byte, np.inf).min(axis=1),
    )
    least = np.maximum(prefill.margin_byte.max(axis=1), decode.margin_byte.max(axis=1))
    return np.where(np.isfinite(runs), runs, least)


def _optimal_ratio(system: System, rows: Ints) -> Floats:
    """GPUs that feed one wafer: requests/s decoded per wafer over requests/s prefilled per GPU (N,)."""
    decoded, wafers = np.zeros(rows.shape[1]), np.zeros(rows.shape[1])
    prefilled, gpus = np.zeros(rows.shape[1]), np.zeros(rows.shape[1])
    for pool, table, r in zip(system.pools, system.tables, rows, strict=True):
        n = table.settings.n[r].astype(np.float64)
        if pool.device.kind == "wse":
            seconds = (system.mix.share * table.decode.request_s).sum(axis=1)[table.config[r]]
            free = (n > 0) & (seconds == 0)  # nothing to decode: a wafer keeps up with any number of GPUs
            decoded += np.where(free, np.inf, share_of(table.instances[r], seconds))
            wafers += n
        elif pool.device.kind == "gpu":
            seconds = (system.mix.share * table.prefill.request_s).sum(axis=1)[table.config[r]]
            prefilled += share_of(table.instances[r], seconds)
            gpus += n
    per_gpu = np.divide(prefilled, gpus, out=np.full(gpus.shape, np.nan), where=gpus > 0)
    per_wafer = np.divide(decoded, wafers, out=np.full(gpus.shape, np.nan), where=wafers > 0)
    return np.divide(per_wafer, per_gpu, out=np.full(gpus.shape, np.nan), where=per_gpu > 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Every number of N designs: columns of the result frame, and what explains them."""

    columns: dict[str, Floats]
    pool_columns: dict[str, Floats]
    """Columns that exist per pool, each (N, P): n, busy, u, eta, kv_out_byte_s, decode_batch."""
    flow: Flow
    prefill: PoolParts
    decode: PoolParts
    use: PoolUse
    link_use: Floats
    """Share of the link from pool p to pool o in use at capacity (N, P, P)."""
    bought: Mapping[Pair, Bools]
    """For every pair of pools, whether a link between them is bought (N,)."""

    @property
    def pairs(self) -> Floats:
        """Links bought (N,)."""
        total = np.zeros(len(self.flow.rate))
        for used in self.bought.values():
            total += used
        return total


def evaluate(system: System, rows: Ints, link: Ints, *, loaded: bool = False) -> Evaluation:
    """Score N designs in full; rows (P, N) of the pool tables, link (N,) of the system's wiring.

    `loaded` adds the latencies under load, which take longer than all the rest.
    """
    flow = flows(system, rows, link)
    prefill, decode = phase_parts(system, rows, flow)
    use = pool_use(system, rows, flow, prefill, decode)
    bought = pairs_bought(system, list(rows))
    link_usd, link_w = links_bill(system.links, system.wiring.option[link], bought)
    rate, crossing = flow.rate, crossing_byte(system, flow)
    link_use = rate[:, None, None] * crossing / pair_byte_s(system, link)
    tok_s = rate * system.output_tok
    alone = [
        np.where(t.active[r], t.alone_rate[r], 0.0) * system.output_tok
        for t, r in zip(system.tables, rows, strict=True)
    ]
    columns = {
        "gpu_wse_ratio": gpu_wse_ratio(
            [p.device.kind for p in system.pools], gathered([t.settings.n for t in system.tables], rows)
        ),
        "throughput_tok_s": tok_s,
        "requests_s": rate,
        "input_tok_s": rate * system.input_tok,
        **_latency_columns(system, rows, link, flow, decode),
        **bill_columns([t.bill for t in system.tables], rows, use.busy_frac, link_usd, link_w, tok_s, system.site),
        "link_use_frac": link_use.max(axis=(1, 2), initial=0.0),
        "kv_transfer_byte_s": rate * crossing.sum(axis=(1, 2)),
        "mem_margin_byte": _margin(system, rows, flow),
        "optimal_gpu_wse_ratio": _optimal_ratio(system, rows),
        **baseline_columns(alone, tok_s),
        **(latency_at_load(system, rows, link, flow) if loaded else {}),
    }
    weight = np.where(system.mix.steps > 0, flow.decoded, 0.0)
    pool_columns = {
        "io_use": _io_use(system, rows, rate, crossing),
        "busy": use.busy_frac,
        "u": use.u,
        "eta": use.eta,
        "kv_out_byte_s": rate[:, None] * (flow.prefilled * system.class_kv_byte).sum(axis=2),
        "decode_batch": share_of(weighted(weight, decode.batch).sum(axis=2), weight.sum(axis=2)),
        "prefill_frac": np.minimum(flow.prefilled.sum(axis=2), 1.0),
        "decode_frac": np.minimum(flow.decoded.sum(axis=2), 1.0),
    }
    return Evaluation(
        columns=columns,
        pool_columns=pool_columns,
        flow=flow,
        prefill=prefill,
        decode=decode,
        use=use,
        link_use=link_use,
        bought=bought,
    )


def _latency_columns(system: System, rows: Ints, link: Ints, flow: Flow, decode: PoolParts) -> dict[str, Floats]:
    """Latencies at the demand if one is given, else at capacity; infinite for a design that serves nothing."""
    demand = system.demand_requests_s
    asked = flow.rate if demand is None else np.full_like(flow.rate, demand)
    mean, p99 = time_to_first_token(system, rows, link, flow, asked)
    tpot = np.where(flow.rate > 0, _tpot(system, rows, flow, asked, decode), np.inf)
    return {
        "ttft_mean_s": np.where(flow.rate > 0, mean, np.inf),
        "ttft_p99_s": np.where(flow.rate > 0, p99, np.inf),
        "tpot_s": tpot,
        "tok_s_per_user": np.divide(1.0, tpot, out=np.full_like(tpot, np.inf), where=tpot > 0),
    }


def _io_use(system: System, rows: Ints, rate: Floats, crossing: Floats) -> Floats:
    """Busier direction of KV cache through each pool's devices, over their scale-out bandwidth together (N, P)."""
    busiest = np.maximum(crossing.sum(axis=2), crossing.sum(axis=1))
    n = gathered([t.settings.n for t in system.tables], rows)
    ports = n * np.array([p.device.scale_out_byte_s for p in system.pools])
    return share_of(rate[:, None] * busiest, ports)
