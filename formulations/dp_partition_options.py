"""One pool's options in data parallel training: coefficients from the model's table, without what no plan needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dse.model.dp_pool import DpTable
from dse.model.dp_training import DpSystem
from dse.model.share_time import MeasuredStaircase

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

COST, POWER = "cost", "power"
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


def options_of(system: DpSystem, pool: int, rows: Ints) -> TimedOptions:
    """Coefficients of a pool's rows; times are read off the model's own staircase."""
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


def n_levels(system: DpSystem) -> int:
    """Measured points of all options."""
    n = 0
    for table in system.tables:
        if isinstance(table.share, MeasuredStaircase):
            most = np.minimum(table.share.most, system.fleet.global_batch)
            samples = np.ceil(most / np.maximum(table.share.replicas, 1.0))
            n += int(np.minimum(samples, table.share.micro_batch)[table.active & table.fits].sum())
    return n
