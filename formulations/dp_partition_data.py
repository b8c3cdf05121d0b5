"""Coefficients of the data-parallel programs, taken from the model's pool tables, and what they cannot answer.

An option is one setting of a pool (devices, instance size, micro-batch, ZeRO stage) with its staircase: the time of
p samples per replica. What no plan needs is left out beforehand, without loss: see `undominated`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dse.model.dp_training import DpSystem, ring_links, synchronisation_s
from dse.model.goodput import goodput_frac

from .dp_partition_options import COST, MOST_LEVELS, POWER, TimedOptions, n_levels, options_of, undominated

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

TIME = "time"
RATE_COLUMNS = ("throughput_tok_s", "throughput_samples_s")
TIME_COLUMNS = (*RATE_COLUMNS, "step_time_s", "train_time_s")
QUANTITY = {**dict.fromkeys(TIME_COLUMNS, TIME), "cost_usd_per_h": COST, "power_w": POWER}


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

    @property
    def may_idle(self) -> bool:
        """Whether the step's time is no objective."""
        return TIME not in self.objectives

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
    slowed = ", ".join(b for b, (low, high) in bounds.items() if _slows(b, low, high))
    twice = sum(o in TIME_COLUMNS for o in objectives) > 1
    systems = [space.system(r) for r in space.regimes]
    levels = max(n_levels(s) for s in systems)
    reasons = (
        (strange, f"objective {strange} is not linear in the plan; it knows {names}"),
        (twice, "throughput and time objectives follow from one another; keep one of them"),
        (
            unbounded,
            f"a limit on {unbounded} is not linear in the plan; it knows {names}, global_batch and n_<pool>",
        ),
        (slowed, f"a limit on {slowed} that asks for slow steps would let a plan run slower than it can"),
        *_nonlinear(systems, {*objectives, *bounds}),
        (
            levels > MOST_LEVELS,
            f"{levels:,} points of measured micro-steps are too many; at most {MOST_LEVELS:,}",
        ),
    )
    return next((f"milp: {reason}" for applies, reason in reasons if applies), "")


def _slows(column: str, low: float, high: float) -> bool:
    """Whether a bound can only be met by running no faster than so."""
    return bool(np.isfinite(high)) if column in RATE_COLUMNS else column in TIME_COLUMNS and low > 0


def _nonlinear(systems: Sequence[DpSystem], asked: set[str]) -> list[tuple[bool, str]]:
    """What cost and time depend on besides the step."""
    metered = any(bool((bill.busy_usd_per_h > 0).any()) for s in systems for bill in s.fleet.bills)
    failing = any(bool(np.isfinite(s.fleet.run.mtbf_device_s).any()) for s in systems)
    return [
        (
            metered and "cost_usd_per_h" in asked,
            "the energy bill of ownership or owned devices depends on the shares in a nonlinear way",
        ),
        (
            failing and "train_time_s" in asked,
            "with failures train_time_s depends on the number of devices in a nonlinear way",
        ),
    ]


def _known(bound: str) -> bool:
    return bound in QUANTITY or bound == "global_batch" or bound.startswith("n_")


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
    pools = [options_of(system, p, rows) for p, rows in enumerate(kept)]
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
