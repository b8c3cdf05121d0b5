"""Coefficients of the data-parallel programs, taken from the model's pool tables.

An option is one setting of a pool (devices, instance size, micro-batch, ZeRO stage) with its staircase: the time of
p samples per replica. What no plan needs is left out beforehand, without loss: see `undominated`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dse.model.dp_pool import DpTable
from dse.model.dp_training import DpSystem, ring_links, synchronisation_s
from dse.model.goodput import goodput_frac
from dse.model.share_time import MeasuredStaircase

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

TIME, COST, POWER = "time", "cost", "power"
RATE_COLUMNS = ("throughput_tok_s", "throughput_samples_s")
TIME_COLUMNS = (*RATE_COLUMNS, "step_time_s", "train_time_s")
QUANTITY = {**dict.fromkeys(TIME_COLUMNS, TIME), "cost_usd_per_h": COST, "power_w": POWER}
MOST_LEVELS = 20_000
"""Measured points of all options of a program together: more take the solver too long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedOptions:
    """One pool's options (K,), those not bought included; `row` is each option's row in the search space."""

    row: Ints
    active: Bools
    """Bought."""
    usd_per_h: Floats
    power_w: Floats
    replicas: Floats
    most: Floats
    """Samples that the option may take: what fits, at most the global batch."""
    first_s: Floats
    """Time of one sample per replica."""
    sample_s: Floats
    """Time of each further sample per replica; 0 with levels."""
    micro_step_s: Floats
    """Time of each further micro-step; with levels: a full one."""
    micro_batch: Floats
    levels_s: Sequence[Floats]
    """Where micro-steps are measured: the time of 1, 2, ... samples per replica in one of them. Else empty."""
    whole_s: Floats
    """Time of the most samples."""

    @property
    def most_samples(self) -> Floats:
        """P: most samples per replica; 0 where nothing is bought."""
        return np.ceil(self.most / np.maximum(self.replicas, 1.0))

    @property
    def most_steps(self) -> Floats:
        """Most micro-steps of a replica."""
        return np.ceil(self.most_samples / self.micro_batch)


@dataclass(frozen=True, kw_only=True)
class PartitionData:
    """One regime in numbers: objectives are minimised, limits are the user's."""

    regime: int
    pools: Sequence[TimedOptions]
    global_batch: float
    exchange_s: Floats
    """Exposed exchange, by number of pools that work and link (P + 1, L)."""
    floor_s: Floats
    """The whole exchange: no step is shorter (P + 1, L)."""
    ring: Floats
    """Links of a ring, by number of pools that are bought (P + 1,)."""
    link_usd_per_h: Floats
    link_power_w: Floats
    bounds: Mapping[str, tuple[float, float]]
    """TIME, COST, POWER -> (low, high), of those that are an objective or limited."""
    objectives: Sequence[str]
    """TIME, COST or POWER, in the order of the study's objective columns."""
    work: Floats
    """Of each objective that is a rate, what one step does (tokens, samples); 0 where it is none."""
    per_step: Floats
    """Of each objective that is a time, its multiple of the step's."""

    @cached_property
    def scale(self) -> dict[str, float]:
        """Largest step time of a best division, cost and power that the options reach.

        A pool that holds the whole batch bounds the step by its time alone; the others by their time for the most
        samples, and an exchange.
        """
        widest_s = float(np.maximum(self.exchange_s, self.floor_s).max())
        spans = [np.where(t.most < self.global_batch, t.whole_s + widest_s, t.whole_s)[t.active] for t in self.pools]
        rings = float(self.ring.max())
        scale = {TIME: float(np.concatenate(spans).max())}
        if COST in self.bounds:
            scale[COST] = self._most([t.usd_per_h for t in self.pools], rings * self.link_usd_per_h)
        if POWER in self.bounds:
            scale[POWER] = self._most([t.power_w for t in self.pools], rings * self.link_power_w)
        return scale

    @staticmethod
    def _most(of_pools: Sequence[Floats], of_links: Floats) -> float:
        return sum(float(v.max()) for v in of_pools) + float(of_links.max()) or 1.0

    @property
    def limits(self) -> dict[str, tuple[float, float]]:
        """The user's bounds, scaled."""
        return {i: (low / self.scale[i], high / self.scale[i]) for i, (low, high) in self.bounds.items()}

    def scaled(self, point: Floats) -> Floats:
        """The program's objectives for a point of minimised columns: a rate of r steps of work w/r, at 0 no end."""
        rate = -np.asarray(point, dtype=np.float64)
        step_s = np.divide(self.work, rate, out=np.full(len(rate), np.inf), where=rate > 0)
        minimised = np.where(self.work > 0, step_s, point / self.per_step)
        return np.asarray(minimised / np.array([self.scale[o] for o in self.objectives]))


class Regimes(Protocol):
    """What the program needs of a search space."""

    @property
    def pool_names(self) -> tuple[str, ...]:
        """Names of the pools."""
        ...

    @property
    def regimes(self) -> Sequence[Any]:
        """Combinations of data type, recompute mode and global batch."""
        ...

    def system(self, regime: Any) -> DpSystem:
        """Tables of one regime."""
        ...

    def canonical(self, regime: int, link: int, rows: Sequence[int]) -> int:
        """Number of a plan, with the one link that stands for all where nothing crosses."""
        ...


Bounds = Mapping[str, tuple[float, float]]
UNBOUNDED = (-np.inf, np.inf)


def refusal(space: Regimes, objectives: Sequence[str], bounds: Bounds) -> str:
    """Why the programs cannot answer a study exactly; empty where they can."""
    names = ", ".join(QUANTITY)
    strange = ", ".join(o for o in objectives if o not in QUANTITY)
    unbounded = ", ".join(b for b in bounds if not _known(b))
    slowed = ", ".join(b for b, (low, high) in bounds.items() if np.isfinite(high if b in RATE_COLUMNS else low)
                       and b in TIME_COLUMNS and (b in RATE_COLUMNS or low > 0))  # fmt: skip
    asked = {*objectives, *bounds}
    systems = [space.system(r) for r in space.regimes]
    metered = any(bool((bill.busy_usd_per_h > 0).any()) for s in systems for bill in s.fleet.bills)
    failing = any(bool(np.isfinite(s.fleet.run.mtbf_device_s).any()) for s in systems)
    levels = max(_n_levels(s) for s in systems)
    reasons = (
        (bool(strange), f"objective {strange} is not linear in the plan; it knows {names}"),
        (
            sum(o in TIME_COLUMNS for o in objectives) > 1,
            "throughput and time objectives follow from one another; keep one of them",
        ),
        (bool(unbounded), f"a limit on {unbounded} is not linear in the plan; it knows {names}, "
         "global_batch and n_<pool>"),
        (bool(slowed), f"a limit on {slowed} that asks for slow steps would let a plan run slower than it can"),
        (
            metered and "cost_usd_per_h" in asked,
            "the energy bill of ownership or owned devices depends on the shares in a nonlinear way",
        ),
        (
            failing and "train_time_s" in asked,
            "with failures train_time_s depends on the number of devices in a nonlinear way",
        ),
        (levels > MOST_LEVELS, f"{levels:,} points of measured micro-steps are too many; at most {MOST_LEVELS:,}"),
    )  # fmt: skip
    return next((f"milp: {reason}" for applies, reason in reasons if applies), "")


def _known(bound: str) -> bool:
    return bound in QUANTITY or bound == "global_batch" or bound.startswith("n_")


def _n_levels(system: DpSystem) -> int:
    """Measured points of all options."""
    n = 0
    for table in system.tables:
        if isinstance(table.share, MeasuredStaircase):
            most = np.minimum(table.share.most, system.fleet.global_batch)
            samples = np.ceil(most / np.maximum(table.share.replicas, 1.0))
            n += int(np.minimum(samples, table.share.micro_batch)[table.active & table.fits].sum())
    return n


def programs(space: Regimes, objectives: Sequence[str], bounds: Bounds) -> list[PartitionData]:
    """One program a regime; none for a regime that the limits rule out, or in which nothing can run."""
    found = (_partition_data(space, regime, objectives, bounds) for regime in range(len(space.regimes)))
    return [data for data in found if data is not None]


def _partition_data(space: Regimes, regime: int, objectives: Sequence[str], bounds: Bounds) -> PartitionData | None:
    system = space.system(space.regimes[regime])
    batch = float(system.fleet.global_batch)
    low, high = bounds.get("global_batch", UNBOUNDED)
    if not low <= batch <= high:
        return None
    limits = _limits(system, objectives, bounds)
    # a lower limit on cost or power turns round what is better: then every option stays
    whole = any(limits[i][0] > 0 for i in (COST, POWER) if i in limits)
    kept = []
    for p, name in enumerate(space.pool_names):
        low, high = bounds.get(f"n_{name}", UNBOUNDED)
        table = system.tables[p]
        rows = np.flatnonzero(table.fits & (table.settings.n >= low) & (table.settings.n <= high))
        kept.append(rows if whole else rows[undominated(system, p, rows, [i for i in (COST, POWER) if i in limits])])
    pools = [_options(system, p, rows) for p, rows in enumerate(kept)]
    if any(not len(t.row) for t in pools) or sum(float(t.most.max()) for t in pools) < batch:
        return None
    return _data(system, regime, pools, objectives, limits)


def _data(
    system: DpSystem,
    regime: int,
    pools: Sequence[TimedOptions],
    objectives: Sequence[str],
    limits: Mapping[str, tuple[float, float]],
) -> PartitionData:
    links, parameters = system.fleet.links, system.fleet.pools[0].work.parameters
    counts = np.arange(len(pools) + 1)
    exchange, floor = (
        synchronisation_s(counts[:, None], parameters, links.byte_s, links.latency_s, hidden)
        for hidden in (system.overlap_frac, 0.0)
    )
    work, per_step = _work(system), _per_step(system)
    return PartitionData(
        regime=regime,
        pools=pools,
        global_batch=float(system.fleet.global_batch),
        exchange_s=exchange,
        floor_s=floor,
        ring=np.array([float(ring_links([np.array(i < n) for i in range(len(pools))])) for n in counts]),
        link_usd_per_h=links.usd_per_h,
        link_power_w=links.power_w,
        bounds=limits,
        objectives=[QUANTITY[o] for o in objectives],
        work=np.array([work.get(o, 0.0) for o in objectives]),
        per_step=np.array([per_step.get(o, 1.0) for o in objectives]),
    )


def _work(system: DpSystem) -> dict[str, float]:
    """What one step does, by the rate that counts it."""
    return {"throughput_tok_s": system.fleet.batch_tokens, "throughput_samples_s": float(system.fleet.global_batch)}


def _per_step(system: DpSystem) -> dict[str, float]:
    """The run's time per second of a step, where nothing fails."""
    run = system.fleet.run
    useful = float(goodput_frac(np.inf, run.checkpoint_s, run.restart_s, run.interval_s))
    return {"train_time_s": (run.tokens or 0.0) / (system.fleet.batch_tokens * useful)}


def _limits(system: DpSystem, objectives: Sequence[str], bounds: Bounds) -> dict[str, tuple[float, float]]:
    """Bounds on time, cost and power, of those that matter."""
    limits = dict.fromkeys((TIME, *(QUANTITY[o] for o in objectives)), UNBOUNDED)
    work, per_step = _work(system), _per_step(system)
    for column, (low, high) in bounds.items():
        if column in TIME_COLUMNS:
            if column in RATE_COLUMNS:
                longest = work[column] / low if low > 0 else np.inf
            else:
                longest = high / per_step.get(column, 1.0)
            limits[TIME] = (-np.inf, min(limits[TIME][1], longest))
        elif column in QUANTITY:
            limits[QUANTITY[column]] = (low, high)
    return limits


def undominated(system: DpSystem, pool: int, rows: Ints, prices: Sequence[str]) -> Bools:
    """Which of a pool's rows a plan may need: another one bought costs no more, draws no more and is never slower.

    Lossless: swapped for one that dominates it, an option leaves every share and every link as they are, and no step
    gets longer. Of equals the one with less sharding stays, then the first.
    """
    table, bill = system.tables[pool], system.fleet.bills[pool]
    samples = np.arange(1.0, system.fleet.global_batch + 1.0)
    if len(system.tables) == 1:
        samples = samples[-1:]
    price = {COST: bill.idle_usd_per_h[rows], POWER: bill.provisioned_w[rows]}
    keys = np.stack([price[i] for i in prices] or [np.zeros(len(rows))], axis=1)
    bought = np.flatnonzero(table.active[rows])
    order = np.lexsort((bought, table.settings.zero_stage[rows][bought], *keys[bought].T[::-1]))
    kept = np.empty(0, dtype=np.int64)
    times = np.empty((0, len(samples)))
    for i in bought[order]:
        time_s = table.share.rows(rows[i : i + 1]).time_s(samples)
        better = (keys[kept] <= keys[i]).all(axis=1) & (times <= time_s).all(axis=1)
        if better.any():
            continue
        stays = ~((keys[kept] >= keys[i]).all(axis=1) & (times >= time_s).all(axis=1))
        kept, times = np.append(kept[stays], i), np.vstack([times[stays], time_s])
    return np.asarray(~table.active[rows] | np.isin(np.arange(len(rows)), kept), dtype=np.bool_)


def _options(system: DpSystem, pool: int, rows: Ints) -> TimedOptions:
    """Coefficients of a pool's rows; T is read off the model's own staircase."""
    table: DpTable = system.tables[pool]
    share, bill = table.share.rows(rows), system.fleet.bills[pool]
    most = np.where(table.active[rows], np.minimum(share.most, system.fleet.global_batch), 0.0)
    most = np.floor(most)
    unlimited = replace(share, most=np.full(len(rows), np.inf))
    levels: list[Floats] = [np.empty(0)] * len(rows)
    first_s = unlimited.time_s(share.replicas)
    if isinstance(share, MeasuredStaircase):
        m = share.micro_batch
        sample_s = np.zeros(len(rows))
        step_s = unlimited.time_s((m + 1.0) * share.replicas) - first_s
        for i in np.flatnonzero(most > 0):
            n = min(float(m[i]), float(np.ceil(most[i] / share.replicas[i])))
            levels[i] = unlimited.rows(np.array([i])).time_s(np.arange(1.0, n + 1.0) * share.replicas[i])
    else:
        sample_s, step_s = share.sample_s, share.step_s
    return TimedOptions(
        row=rows,
        active=table.active[rows],
        usd_per_h=bill.idle_usd_per_h[rows],
        power_w=bill.provisioned_w[rows],
        replicas=share.replicas,
        most=most,
        first_s=first_s,
        sample_s=sample_s,
        micro_step_s=step_s,
        micro_batch=share.micro_batch,
        levels_s=levels,
        whole_s=share.time_s(most),
    )
