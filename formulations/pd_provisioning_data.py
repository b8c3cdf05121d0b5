"""Coefficients of the prefill/decode provisioning programs, taken from the model's pool tables.

An option is one setting of a pool (count, instance size, role, batches) with its rates, cost and power, so
everything nonlinear inside one pool is in the table, and what is left for the program is exact.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dse.model.pool_table import PoolTable
from dse.model.serving_pool import BOTH, DECODE, PREFILL
from dse.model.serving_system import System

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

RATE, COST, POWER = "rate", "cost", "power"
PHASES = ("prefill", "decode")
RATE_COLUMNS = ("throughput_tok_s", "requests_s", "input_tok_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolOptions:
    """One pool's options (K,); `row` is each option's row in the search space."""

    row: Ints
    active: NDArray[np.bool_]
    listed: NDArray[np.bool_]
    """May be used beside other pools."""
    prefills: NDArray[np.bool_]
    decodes: NDArray[np.bool_]
    prefill_rate: Floats
    decode_rate: Floats
    both_rate: Floats
    alone_rate: Floats
    ttft_rate: Floats | None
    """(K, L), where there is a TTFT limit."""
    idle_usd_per_h: Floats
    busy_usd_per_h: Floats
    both_busy: Floats
    power_w: Floats
    instances: Floats
    devices: Floats
    config: Ints
    config_prefill_s: Floats
    """(J, C); infinite where it cannot run."""
    config_decode_s: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvisioningData:
    """One regime in numbers. `bounds` holds what the user allows; objectives are minimised."""

    regime: int
    pools: Sequence[PoolOptions]
    stealing: bool
    alone_allowed: bool
    per_pair: bool
    """Every pair of pools has its own link, instead of one for all."""
    link_byte_s: Floats
    link_usd_per_h: Floats
    link_power_w: Floats
    request_kv_byte: float
    class_kv_byte: Floats
    class_share: Floats
    bounds: Mapping[str, tuple[float, float]]
    """RATE, COST, POWER -> (low, high)."""
    objectives: Sequence[str]
    """RATE, COST or POWER, in the order of the study's objective columns."""
    column_units: Floats
    """Factor from each objective to its column (tok/s per request/s)."""

    @property
    def limits(self) -> dict[str, tuple[float, float]]:
        """The user's bounds, scaled."""
        return {i: (low / self.scale[i], high / self.scale[i]) for i, (low, high) in self.bounds.items()}

    @property
    def may_idle(self) -> bool:
        """Whether rate is no objective."""
        return RATE not in self.objectives

    def scaled(self, point: Floats) -> Floats:
        """The program's objectives for a point of minimised columns."""
        return np.asarray(point / (np.array([self.scale[o] for o in self.objectives]) * self.column_units))

    @property
    def metered(self) -> bool:
        """Whether busy devices cost more than idle ones."""
        return any(bool((p.busy_usd_per_h > 0).any()) for p in self.pools)

    @property
    def widest_byte_s(self) -> float:
        """Largest link bandwidth, the unit of the link rows."""
        return float(self.link_byte_s.max())

    @property
    def scale(self) -> dict[str, float]:
        """Rate, cost and power that no plan exceeds."""
        rate = sum(_best_rate(p) for p in self.pools) if self.stealing else _split_rate(self.pools)
        cost = sum(float((p.idle_usd_per_h + p.busy_usd_per_h).max()) for p in self.pools)
        power = sum(float(p.power_w.max()) for p in self.pools)
        n_pairs = len(self.pools) * (len(self.pools) - 1) / 2
        return {
            RATE: rate or 1.0,
            COST: cost + n_pairs * float(self.link_usd_per_h.max()) or 1.0,
            POWER: power + n_pairs * float(self.link_power_w.max()) or 1.0,
        }


class Regimes(Protocol):
    """What the program needs of a search space: per regime, tables and which options are on offer."""

    @property
    def n_regimes(self) -> int:
        """Combinations of data types and routing."""
        ...

    @property
    def pool_names(self) -> tuple[str, ...]:
        """Names of the pools."""
        ...

    @property
    def per_pair(self) -> bool:
        """Whether every pair of pools has its own link."""
        ...

    def system(self, regime: int) -> System:
        """Tables of one regime."""
        ...

    def listed(self, regime: int) -> list[NDArray[np.bool_]]:
        """Per pool, the options with a role that the study lists."""
        ...

    def first_routing(self, regime: int) -> bool:
        """Whether a pool alone is counted under this regime."""
        ...

    def canonical(self, regime: int, option: Ints, rows: Sequence[int]) -> int | None:
        """Number of a plan, with the first link where nothing crosses; None where the grid lacks its links."""
        ...

    def settings_at(self, regime: int, option: Ints, rows: Sequence[int]) -> dict[str, str]:
        """The same plan as `--set` keys."""
        ...


def refusal(space: Regimes, objectives: Sequence[str], bounds: Mapping[str, tuple[float, float]]) -> str:
    """Why the programs cannot answer a study exactly; empty where they can."""
    for regime in range(space.n_regimes):
        refused = _refusal(space.system(regime), objectives, bounds)
        if refused:
            return refused
    return ""


def programs(
    space: Regimes, objectives: Sequence[str], bounds: Mapping[str, tuple[float, float]]
) -> list[ProvisioningData]:
    """One program a regime; none for a regime in which some pool has no option left."""
    found = (_provisioning_data(space, regime, objectives, bounds) for regime in range(space.n_regimes))
    return [data for data in found if data is not None]


def _refusal(system: System, objectives: Sequence[str], bounds: Mapping[str, tuple[float, float]]) -> str:
    known = (*RATE_COLUMNS, "cost_usd_per_h", "power_w")
    names = ", ".join(known)
    strange = ", ".join(o for o in objectives if o not in known)
    unbounded = ", ".join(b for b in bounds if b not in known and not b.startswith("n_"))
    capped = ", ".join(b for b in bounds if b in RATE_COLUMNS and np.isfinite(bounds[b][1]))
    dearest = ", ".join(b for b in ("cost_usd_per_h", "power_w") if bounds.get(b, (0.0, 0.0))[0] > 0)
    metered = any(bool((t.bill.busy_usd_per_h > 0).any()) for t in system.tables)
    reasons = (
        (bool(strange), f"objective {strange} is not linear in the plan; it knows {names}"),
        (
            sum(o in RATE_COLUMNS for o in objectives) > 1,
            "the throughput objectives are multiples of one another; keep one of them",
        ),
        (bool(unbounded), f"a limit on {unbounded} is not linear in the plan; it knows {names} and n_<pool>"),
        (bool(dearest), f"a lower limit on {dearest} would let a plan buy what it has no use for"),
        (bool(capped), f"an upper limit on {capped} would let a plan run below its capacity"),
        (
            not system.mix.steps.any(),
            "no request has a decode step, so decode capacity has no bound to scale by",
        ),
        (
            system.stealing and bool(np.isfinite(system.limits.ttft_p99_s)),
            "a TTFT limit under work stealing depends on the flows in a nonlinear way",
        ),
        (
            system.stealing and metered,
            "under work stealing the energy bill of ownership or owned devices depends on the flows at capacity",
        ),
    )
    return next((f"milp: {reason}" for applies, reason in reasons if applies), "")


def _provisioning_data(
    space: Regimes,
    regime: int,
    objectives: Sequence[str],
    bounds: Mapping[str, tuple[float, float]],
) -> ProvisioningData | None:
    system = space.system(regime)
    per_request = {"requests_s": 1.0, "throughput_tok_s": system.output_tok, "input_tok_s": system.input_tok}
    limits = {RATE: (0.0, np.inf), COST: (-np.inf, np.inf), POWER: (-np.inf, np.inf)}
    for column, (low, high) in bounds.items():
        if column in RATE_COLUMNS:
            limits[RATE] = (max(limits[RATE][0], low / per_request[column]), np.inf)
        elif column in ("cost_usd_per_h", "power_w"):
            limits[COST if column == "cost_usd_per_h" else POWER] = (low, high)
    pools = [
        _pool_options(t, ok, system, bounds.get(f"n_{name}", (-np.inf, np.inf)))
        for t, ok, name in zip(system.tables, space.listed(regime), space.pool_names, strict=True)
    ]
    if any(not len(p.row) for p in pools):
        return None
    pools = worth_picking(pools, system)
    axis = {**dict.fromkeys(RATE_COLUMNS, RATE), "cost_usd_per_h": COST, "power_w": POWER}
    return ProvisioningData(
        regime=regime,
        pools=pools,
        stealing=system.stealing,
        alone_allowed=space.first_routing(regime),
        per_pair=space.per_pair,
        link_byte_s=np.minimum(system.links.byte_s, _most_byte_s(pools, system)),
        link_usd_per_h=system.links.usd_per_h,
        link_power_w=system.links.power_w,
        request_kv_byte=system.request_kv_byte,
        class_kv_byte=system.class_kv_byte,
        class_share=system.mix.share,
        bounds=limits,
        objectives=[axis[o] for o in objectives],
        column_units=np.array([per_request.get(o, 1.0) for o in objectives]),
    )


def _most_byte_s(pools: Sequence[PoolOptions], system: System) -> float:
    """KV traffic that no plan exceeds; a wider link is never full, so it counts as this wide (twice, to be clear)."""
    rate = sum(_best_rate(p) for p in pools) or 1.0
    return 2.0 * rate * float(system.class_kv_byte.max())


def _pool_options(t: PoolTable, listed: NDArray[np.bool_], system: System, counts: tuple[float, float]) -> PoolOptions:
    role = t.settings.role
    able = t.feasible & (t.settings.n >= counts[0]) & (t.settings.n <= counts[1])
    row = np.flatnonzero(able)
    limited = np.isfinite(system.limits.ttft_p99_s)
    return PoolOptions(
        row=row,
        active=t.active[row],
        listed=(listed | ~t.active)[row],
        prefills=(t.active & (role == PREFILL))[row],
        decodes=(t.active & (role == DECODE))[row],
        prefill_rate=t.prefill_rate[row],
        decode_rate=t.decode_rate[row],
        both_rate=t.both_rate[row],
        alone_rate=np.where(t.active, t.alone_rate, 0.0)[row],
        ttft_rate=t.prefill_rate_ttft[row] if limited else None,
        idle_usd_per_h=t.bill.idle_usd_per_h[row],
        busy_usd_per_h=t.bill.busy_usd_per_h[row],
        both_busy=np.where(role == BOTH, t.alone_busy, 0.0)[row],
        power_w=t.bill.provisioned_w[row],
        instances=t.instances[row],
        devices=t.settings.n[row].astype(np.float64),
        config=t.config[row],
        config_prefill_s=t.prefill.request_s,
        config_decode_s=t.decode.request_s,
    )


def worth_picking(pools: Sequence[PoolOptions], system: System) -> list[PoolOptions]:
    """The options that another of the same pool does not make pointless: no dearer, in the same role, no slower.

    Lossless, since a plan's rate does not fall when one of its pools is faster: under work stealing the flows are
    free; under split the pool takes a larger share, which hurts only where its link then fills, so a faster option
    counts only if no link can fill. Where busy devices cost more nothing is dropped: there a slower one is cheaper.
    """
    if any(bool((p.busy_usd_per_h > 0).any()) for p in pools):
        return list(pools)
    narrowest = float(system.links.byte_s.min()) / system.request_kv_byte
    most_prefill, most_decode = (max(float(getattr(p, f"{phase}_rate").max()) for p in pools) for phase in PHASES)
    kept = []
    for p in pools:
        if system.stealing:
            better, held = _stolen(p), np.ones(len(p.row), dtype=np.bool_)
        else:
            better = np.column_stack([p.prefill_rate, p.decode_rate, p.both_rate, *_held_rates(p)])
            held = (np.minimum(p.prefill_rate, most_decode) <= narrowest) & (
                np.minimum(p.decode_rate, most_prefill) <= narrowest
            )
        kept.append(_only(p, ~_pointless(p, better, held)))
    return kept


def _held_rates(p: PoolOptions) -> list[Floats]:
    """Rates that meet the TTFT limit, and as a share of the prefill rate, by link."""
    if p.ttft_rate is None:
        return []
    share = np.divide(p.ttft_rate, p.prefill_rate[:, None], out=np.zeros_like(p.ttft_rate), where=p.prefills[:, None])
    return [*np.where(p.prefills[:, None], p.ttft_rate, 0.0).T, *share.T]


def _stolen(p: PoolOptions) -> Floats:
    """Rates of every class in both phases, and alone (K, 2 C + 1)."""
    seconds = np.concatenate([p.config_prefill_s, p.config_decode_s], axis=1)[p.config]
    with np.errstate(divide="ignore", invalid="ignore"):
        rates = np.where(p.active[:, None], p.instances[:, None] / seconds, 0.0)
    return np.column_stack([rates, p.alone_rate])


def _pointless(p: PoolOptions, better: Floats, held: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Options (K,) that another, `held` one equals or betters in everything; of equals all but the first."""
    gain = np.column_stack([better, p.listed, ~p.active, -p.idle_usd_per_h, -p.power_w])
    found = np.zeros(len(p.row), dtype=np.bool_)
    for k in range(len(p.row)):
        no_worse = (gain >= gain[k]).all(axis=1) & held & ~found
        equal = (gain == gain[k]).all(axis=1)
        no_worse &= ~equal | (np.arange(len(found)) < k)
        found[k] = bool(no_worse.any())
    return found


def _only(p: PoolOptions, keep: NDArray[np.bool_]) -> PoolOptions:
    """The same pool with fewer options."""
    of_configs = ("config_prefill_s", "config_decode_s")
    taken = {f.name: getattr(p, f.name) for f in fields(p)}
    return replace(p, **{k: v[keep] for k, v in taken.items() if v is not None and k not in of_configs})


def least_rate(data: ProvisioningData) -> float:
    """A rate below that of every plan that serves anything: capacities and links are all at least this."""

    def smallest(*arrays: Floats) -> float:
        positive = np.concatenate([a[np.isfinite(a) & (a > 0)].reshape(-1) for a in arrays])
        return float(positive.min(initial=np.inf))

    through_link = smallest(data.link_byte_s) / data.request_kv_byte
    if data.stealing:
        slowest_s = sum(
            float(np.where(np.isfinite(s), s, 0.0).max())
            for p in data.pools
            for s in (p.config_prefill_s, p.config_decode_s)
        )
        capacity = smallest(*(p.instances for p in data.pools)) / slowest_s
        alone = smallest(*(p.alone_rate for p in data.pools))
        return 0.5 * min(capacity, alone, through_link)
    rates = [r for p in data.pools for r in (p.prefill_rate, p.decode_rate, p.both_rate)]
    held = [p.ttft_rate for p in data.pools if p.ttft_rate is not None]
    return 0.5 * min(smallest(*rates, *held), through_link)


def _split_rate(pools: Sequence[PoolOptions]) -> float:
    """Requests/s that no split fleet exceeds."""
    prefill, decode, both = (
        sum(float(getattr(p, f"{phase}_rate").max()) for p in pools) for phase in ("prefill", "decode", "both")
    )
    return max(min(prefill, decode) + both, *(float(p.alone_rate.max()) for p in pools))


def _best_rate(p: PoolOptions) -> float:
    """Most requests/s that any option could take part in, whatever the other pools do."""
    with np.errstate(divide="ignore"):
        per_instance = 1.0 / np.minimum(
            p.config_prefill_s.min(axis=1),
            np.where(p.config_decode_s > 0, p.config_decode_s, np.inf).min(axis=1),
        )
    stolen = p.instances * per_instance[p.config]
    return float(
        np.max([p.prefill_rate.max(), p.decode_rate.max(), p.both_rate.max(), p.alone_rate.max(), stolen.max()])
    )
