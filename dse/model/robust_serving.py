"""A fleet bought once that serves several scenarios, each with its own routing (docs/robust.md).

Counts, and the link between pools, are bought once; in every scenario w the fleet serves what it can, r_w requests/s,
under one of three policies (`dse.model.robust_flows`); they are nested: what is served grows from fixed split through
work stealing to adaptive.

    throughput         sum_w weight_w r_w out_w        out_w: mean output tokens of the scenario's requests
    worst throughput   min_w r_w out_w
    headroom           min_w r_w / demand_w            at least 1 where every demand is met
    busy share         of a pool's devices, spares and those that are down included, averaged over scenarios

A fleet that cannot serve some scenario at all counts as serving nothing. There are no TTFT limits here: routing that
changes with the scenario has no queue of its own in this model; a TPOT limit bounds the decode batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dse.model.fleet import baseline_columns, bill_columns, gathered, gpu_wse_ratio, share_of
from dse.model.links import LinkTable, Pair, links_bill, one_link_for_all, pairs_of
from dse.model.robust_adaptive import Adapter
from dse.model.robust_division import Division
from dse.model.robust_flows import Stealer, split_capacity, split_flows
from dse.model.robust_tables import Configs, RobustTable, Scenarios
from dse.model.serving_pool import DECODE, PREFILL, Mix, PoolPhysics
from dse.study import Site

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

FIXED, STEALING, ADAPTIVE = "fixed_split", "work_stealing", "adaptive"
ROUNDING = 1e-9


@dataclass(kw_only=True)
class RobustSystem:
    """One way to adapt: pools with their tables, the scenarios, and the links on offer."""

    adaptation: str
    pools: tuple[PoolPhysics, ...]
    configs: tuple[Configs, ...]
    tables: tuple[RobustTable, ...]
    scenarios: Scenarios
    links: LinkTable
    mix: Mix
    """Class shapes; the shares are those of no scenario."""
    site: Site
    _alone: list[Floats] = field(default_factory=list)

    @cached_property
    def class_kv_byte(self) -> Floats:
        """KV cache that a request of each class hands from prefill to decode [byte] (C,)."""
        return self.pools[0].kv(self.mix.input_tokens)

    @cached_property
    def output_tok(self) -> Floats:
        """Mean output tokens of a request (W,)."""
        return self.scenarios.of_mix(self.mix.output_tokens)

    @cached_property
    def stealers(self) -> tuple[Stealer, ...]:
        """Work stealing in each scenario."""
        prefill, decode = [c.prefill_s for c in self.configs], [c.decode_s for c in self.configs]
        return tuple(
            Stealer(share=q, kv_byte=self.class_kv_byte, prefill_s=prefill, decode_s=decode, plans={}, known={})
            for q in self.scenarios.mix
        )

    @cached_property
    def adapters(self) -> tuple[Adapter, ...]:
        """Devices divided anew in each scenario."""
        return tuple(Adapter(s, [c.g for c in self.configs]) for s in self.stealers)

    def alone_rate(self, pool: int, rows: Ints) -> Floats:
        """Requests/s of one pool by itself in each scenario (W, N)."""
        if self.adaptation != ADAPTIVE:
            return self.tables[pool].alone_rate[:, rows]
        devices = self.tables[pool].devices[:, rows]
        found = np.zeros(devices.shape)
        own = np.zeros(len(self.pools), dtype=np.int64)
        for w, adapter in enumerate(self.adapters):
            for n in np.unique(devices[w]):
                own[pool] = n
                found[w, devices[w] == n] = adapter.best(own, np.inf).rate if n else 0.0
        return found

    def expected_tok_s(self, rate: Floats) -> Floats:
        """Expected output tok/s of rates (W, N); 0 where some scenario is not served."""
        weighted = (self.scenarios.weight * self.output_tok) @ rate
        return np.where((rate > 0).all(axis=0), weighted, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """N designs in one scenario."""

    rate: Floats
    """Requests/s (N,)."""
    busy_devices: Floats
    """Devices at work at that rate (N, P)."""
    crossing_byte_s: Floats
    """KV cache from pool to pool (N, P, P)."""
    prefilled: Floats
    """Requests/s that each pool prefills (N, P)."""
    decoded: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class RobustEvaluation:
    """Every number of N designs: columns of the result frame, and what explains them."""

    columns: dict[str, Floats]
    pool_columns: dict[str, Floats]
    """Columns that exist per pool (N, P)."""
    rate: Floats
    """Requests/s in each scenario (W, N)."""
    score: Floats
    """What the worst scenario is told by: rate over demand, or output tok/s (W, N)."""
    busy_devices: Floats
    """(W, N, P)"""
    link_use: Floats
    """Share of the busiest link in use (W, N)."""
    bought: Mapping[Pair, Bools]

    @property
    def binding(self) -> Ints:
        """The scenario that is worst off (N,)."""
        return np.asarray(self.score.argmin(axis=0))

    @property
    def pairs(self) -> Floats:
        """Links bought (N,)."""
        total = np.zeros(self.rate.shape[1])
        for used in self.bought.values():
            total += used
        return total


def served(system: RobustSystem, w: int, rows: Ints, link: Ints) -> Served:
    """What N designs serve in one scenario; rows (P, N) of the tables, link (N,)."""
    byte_s = system.links.byte_s[link]
    if system.adaptation == FIXED:
        return _fixed_split(system, w, rows, byte_s)
    if system.adaptation == STEALING:
        return _work_stealing(system, w, rows, byte_s)
    return _adaptive(system, w, rows, byte_s)


def _fixed_split(system: RobustSystem, w: int, rows: Ints, byte_s: Floats) -> Served:
    q, tables = system.scenarios.mix[w], system.tables
    prefill, decode, both = (
        gathered([getattr(t, f"{part}_rate")[w] for t in tables], rows) for part in ("prefill", "decode", "both")
    )
    kv = float(q @ system.class_kv_byte)
    most = byte_s / kv
    through = split_capacity(prefill, decode, most)
    z = split_flows(prefill, decode, most, through)
    instances = gathered([t.instances[w] for t in tables], rows)
    size = np.stack([t.settings.g[r] for t, r in zip(tables, rows, strict=True)], axis=1)
    busy = share_of(z.sum(axis=2), prefill) * (prefill > 0) + share_of(z.sum(axis=1), decode) * (decode > 0)
    spent = [c.both[1][w][np.maximum(t.config[r], 0)] for c, t, r in zip(system.configs, tables, rows, strict=True)]
    own = share_of(both * np.stack(spent, axis=1), instances)
    return Served(
        rate=through + both.sum(axis=1),
        busy_devices=np.minimum(busy + own, 1.0) * instances * size,
        crossing_byte_s=z * kv,
        prefilled=z.sum(axis=2) + both,
        decoded=z.sum(axis=1) + both,
    )


def _work_stealing(system: RobustSystem, w: int, rows: Ints, byte_s: Floats) -> Served:
    tables = system.tables
    config = np.stack([t.config[r] for t, r in zip(tables, rows, strict=True)], axis=1)
    found = system.stealers[w].routed(config, gathered([t.instances[w] for t in tables], rows), byte_s)
    busy = np.zeros((*found.rate.shape, len(tables)))
    for p, configs in enumerate(system.configs):
        for done, seconds in ((found.prefilled, configs.prefill_s), (found.decoded, configs.decode_s)):
            busy[:, p] += _worked(done[:, p], seconds[config[:, p]]) * configs.g[config[:, p]]
    return Served(
        rate=found.rate,
        busy_devices=busy,
        crossing_byte_s=found.crossing_byte_s,
        prefilled=found.prefilled.sum(axis=2),
        decoded=found.decoded.sum(axis=2),
    )


def _worked(done: Floats, seconds: Floats) -> Floats:
    """Instances kept busy by requests/s (..., C) of so many seconds; what is not done counts nothing."""
    return np.asarray(np.where(done > 0, done * np.where(np.isfinite(seconds), seconds, 0.0), 0.0).sum(axis=-1))


def _adaptive(system: RobustSystem, w: int, rows: Ints, byte_s: Floats) -> Served:
    n, n_pools = rows.shape[1], len(system.tables)
    rate, busy, crossing = np.zeros(n), np.zeros((n, n_pools)), np.zeros((n, n_pools, n_pools))
    prefilled, decoded = np.zeros((n, n_pools)), np.zeros((n, n_pools))
    for i in range(n):
        found = division(system, w, rows[:, i], float(byte_s[i]))
        rate[i], crossing[i] = found.rate, found.crossing_byte_s
        for p, c in enumerate(system.configs):
            work = _worked(found.prefilled[p], c.prefill_s) + _worked(found.decoded[p], c.decode_s)
            busy[i, p] = float((work * c.g).sum())
            prefilled[i, p], decoded[i, p] = found.prefilled[p].sum(), found.decoded[p].sum()
    return Served(rate=rate, busy_devices=busy, crossing_byte_s=crossing, prefilled=prefilled, decoded=decoded)


def division(system: RobustSystem, w: int, rows: Ints, byte_s: float) -> Division:
    """How one design's devices are divided in one scenario; rows (P,)."""
    devices = np.array([t.devices[w][r] for t, r in zip(system.tables, rows, strict=True)], dtype=np.int64)
    return system.adapters[w].best(devices, byte_s if (devices > 0).sum() > 1 else np.inf)


def pairs_bought(system: RobustSystem, rows: Ints) -> dict[Pair, Bools]:
    """Links to buy: for every pair of pools, whether both are bought and KV cache may flow between them."""
    active = [t.active[r] for t, r in zip(system.tables, rows, strict=True)]
    roles = [t.settings.role[r] for t, r in zip(system.tables, rows, strict=True)]
    bought = {}
    for p, o in pairs_of(len(system.tables)):
        used = active[p] & active[o]
        if system.adaptation == FIXED:
            forward = (roles[p] == PREFILL) & (roles[o] == DECODE)
            used = used & (forward | ((roles[p] == DECODE) & (roles[o] == PREFILL)))
        bought[p, o] = used
    return bought


def evaluate(system: RobustSystem, rows: Ints, link: Ints) -> RobustEvaluation:
    """Score N designs in full; rows (P, N) of the pool tables, link (N,)."""
    parts = [served(system, w, rows, link) for w in range(len(system.scenarios))]
    rate, busy = np.stack([p.rate for p in parts]), np.stack([p.busy_devices for p in parts])
    weight, out = system.scenarios.weight, system.output_tok
    n = np.stack([t.settings.n[r] for t, r in zip(system.tables, rows, strict=True)], axis=1).astype(np.float64)
    busy_frac = share_of(np.tensordot(weight, busy, axes=1), n)
    busy_frac = np.where(np.abs(busy_frac - 1.0) < ROUNDING, 1.0, busy_frac)
    bought = pairs_bought(system, rows)
    option = one_link_for_all(len(system.links.byte_s), len(system.tables)).option[link]
    link_usd, link_w = links_bill(system.links, option, bought)
    link_use = np.stack([p.crossing_byte_s.max(axis=(1, 2)) / system.links.byte_s[link] for p in parts])
    serves = (rate > 0).all(axis=0)
    tok_s = system.expected_tok_s(rate)
    alone = [
        np.where(t.active[r], system.expected_tok_s(system.alone_rate(p, r)), 0.0)
        for p, (t, r) in enumerate(zip(system.tables, rows, strict=True))
    ]
    demand = system.scenarios.demand_requests_s
    score = rate * out[:, None] if demand is None else rate / demand[:, None]
    columns: dict[str, Floats] = {
        "gpu_wse_ratio": gpu_wse_ratio([p.device.kind for p in system.pools], n),
        "throughput_tok_s": tok_s,
        "throughput_worst_tok_s": np.where(serves, (rate * out[:, None]).min(axis=0), 0.0),
        "requests_s": np.where(serves, weight @ rate, 0.0),
        "input_tok_s": np.where(serves, (weight * system.scenarios.of_mix(system.mix.input_tokens)) @ rate, 0.0),
        **({} if demand is None else {"headroom": np.where(serves, score.min(axis=0), 0.0)}),
        **bill_columns([t.bill for t in system.tables], rows, busy_frac, link_usd, link_w, tok_s, system.site),
        "link_use_frac": link_use.max(axis=0),
        "kv_transfer_byte_s": np.tensordot(weight, [p.crossing_byte_s.sum(axis=(1, 2)) for p in parts], axes=1),
        **baseline_columns(alone, tok_s),
    }
    return RobustEvaluation(
        columns=columns,
        pool_columns={"busy": busy_frac, **_phase_shares(parts, weight, weight @ rate)},
        rate=rate,
        score=score,
        busy_devices=busy,
        link_use=link_use,
        bought=bought,
    )


def _phase_shares(parts: Sequence[Served], weight: Floats, rate: Floats) -> dict[str, Floats]:
    """Share of all requests that each pool prefills, and decodes (N, P); rate (N,) is the mean over scenarios."""

    def share(of_scenarios: Sequence[Floats]) -> Floats:
        return share_of(np.tensordot(weight, np.stack(of_scenarios), axes=1), rate[:, None])

    return {"prefill_frac": share([p.prefilled for p in parts]), "decode_frac": share([p.decoded for p in parts])}


def usable_devices(system: RobustSystem, w: int, rows: Ints) -> Any:
    """Devices that may serve in one scenario (N, P)."""
    return np.stack([t.devices[w][r] for t, r in zip(system.tables, rows, strict=True)], axis=1)
