"""Data-parallel training on any number of pools: the batch is divided so that the step is shortest.

    T = max_i T_i(b_i) + (1 - overlap) (2 (p-1)/p 2 parameters/S + l)       sum b_i = G, p pools active

and no less than the whole exchange, 2 (p-1)/p 2 parameters/S + l, whatever of it hides behind arithmetic.

T_i is in `dp_pool`, the exact division in `partition` (docs/training.md). Eq. (2): with f = F/T, f is at
most the pools' useful rates together, and at most v S, v the arithmetic per byte that crosses between pools.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dse.model.dp_pool import DpTable, margin_byte, micro_steps
from dse.model.fleet import cost_usd_per_h, power_w, total_of
from dse.model.partition import Partition, best_partition
from dse.model.screening import Screen
from dse.model.training_run import (
    TrainingFleet,
    TrainingUse,
    tokens_per_s,
    training_columns,
    training_pool_columns,
    training_use,
)
from dse.model.training_work import ACTIVATION_BYTE

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class DpSystem:
    """One regime of a study: pools with their tables, one global batch."""

    fleet: TrainingFleet
    tables: tuple[DpTable, ...]
    overlap_frac: float
    """Share of the exchange between pools that hides behind arithmetic."""


def crossing_byte(n_active: Ints | Floats, parameters: float) -> Floats:
    """What each of p active pools sends in one step: 2 (p-1)/p 2 parameters, a ring all-reduce of 16-bit gradients.

    >>> crossing_byte(np.array([1, 2, 3]), 3e9).tolist()
    [0.0, 6000000000.0, 8000000000.0]
    """
    p = np.maximum(np.asarray(n_active, dtype=np.float64), 1.0)
    return 2.0 * (p - 1.0) / p * (ACTIVATION_BYTE * parameters)


def synchronisation_s(
    n_active: Ints | Floats, parameters: float, link_byte_s: Floats, latency_s: Floats, overlap_frac: float
) -> Floats:
    """Exposed exchange of gradients between p active pools [s]; 0 for one.

    (1 - overlap) (2 (p-1)/p 2 parameters/S + l).

    >>> synchronisation_s(np.array([1, 2]), 3e9, np.array([12e9]), np.array([0.1]), 0.0).tolist()
    [0.0, 0.6]
    """
    several = np.asarray(n_active) > 1
    return np.where(several, crossing_byte(n_active, parameters) / link_byte_s + latency_s, 0.0) * (1.0 - overlap_frac)


def divide(system: DpSystem, rows: Ints, link: Ints) -> Partition:
    """The shortest step of N designs; infinite where a pool that is bought does not fit."""
    links, parameters = system.fleet.links, system.fleet.pools[0].work.parameters
    counts = np.arange(len(rows) + 1)[:, None]
    sync = synchronisation_s(counts, parameters, links.byte_s[link], links.latency_s[link], system.overlap_frac)
    whole = synchronisation_s(counts, parameters, links.byte_s[link], links.latency_s[link], 0.0)
    shares = [t.share.rows(r) for t, r in zip(system.tables, rows, strict=True)]
    return best_partition(shares, float(system.fleet.global_batch), sync, whole)


def fits(system: DpSystem, rows: Ints) -> Bools:
    """Whether every pool that is bought can hold the model."""
    return np.logical_and.reduce([t.fits[r] for t, r in zip(system.tables, rows, strict=True)])


def ring_links(active: Sequence[Bools]) -> Floats:
    """Links to buy for an exchange around a ring of the pools that are bought: one for two, p from three on."""
    n = total_of([np.asarray(a, dtype=np.float64) for a in active])
    return np.where(n > 2, n, np.maximum(n - 1.0, 0.0))


def screen(system: DpSystem, rows: Ints, link: Ints) -> Screen:
    """Throughput, cost and power of designs (P, N). All exact."""
    found = divide(system, rows, link)
    possible = np.isfinite(found.step_s) & fits(system, rows)
    busy = np.divide(found.busy_s, found.step_s[:, None], out=np.zeros_like(found.busy_s), where=possible[:, None])
    pairs = ring_links([t.active[r] for t, r in zip(system.tables, rows, strict=True)])
    links, bills = system.fleet.links, system.fleet.bills
    columns = {
        "throughput_tok_s": tokens_per_s(system.fleet.batch_tokens, found.step_s),
        "step_time_s": found.step_s,
        "cost_usd_per_h": cost_usd_per_h(bills, rows, busy, pairs * links.usd_per_h[link]),
        "power_w": power_w(bills, rows, pairs * links.power_w[link]),
    }
    return Screen(columns=columns, feasible=possible, exact=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Every number of N designs: columns of the result frame, and what explains them."""

    columns: dict[str, Floats]
    pool_columns: dict[str, Floats]
    partition: Partition
    use: TrainingUse
    pairs: Floats


def evaluate(system: DpSystem, rows: Ints, link: Ints) -> Evaluation:
    """Score N designs in full; rows (P, N) of the pool tables, link (N,)."""
    found = divide(system, rows, link)
    possible = np.isfinite(found.step_s) & fits(system, rows)
    step = np.where(possible, found.step_s, np.inf)
    use = _use(system, rows, found, step)
    tables, fleet = system.tables, system.fleet
    pairs = ring_links([t.active[r] for t, r in zip(tables, rows, strict=True)])
    samples = found.samples.astype(np.float64)
    crossing = crossing_byte(found.n_active, fleet.pools[0].work.parameters)
    margins = [margin_byte(t, r, samples[:, p]) for p, (t, r) in enumerate(zip(tables, rows, strict=True))]
    columns = {
        **training_columns(fleet, rows, link, pairs, use),
        "sync_s": np.where(possible, found.sync_s, 0.0),
        "link_use_frac": crossing / fleet.links.byte_s[link] / step,
        "mem_margin_byte": np.stack(margins).min(axis=0),
    }
    return Evaluation(
        columns=columns,
        pool_columns={"batch": samples, **training_pool_columns(fleet, use)},
        partition=found,
        use=use,
        pairs=pairs,
    )


def _use(system: DpSystem, rows: Ints, found: Partition, step_s: Floats) -> TrainingUse:
    """Parts of each pool's time; what is neither a collective nor fixed is arithmetic."""
    communication, fixed = [], []
    for p, (t, r) in enumerate(zip(system.tables, rows, strict=True)):
        share = found.samples[:, p].astype(np.float64)
        k = np.where(share > 0, micro_steps(t.share.rows(r), share), 0.0)
        communication.append(k * t.collective_step_s[r] + np.where(share > 0, t.gradient_s[r], 0.0))
        fixed.append(k * t.fixed_step_s[r])
    parts = np.stack(communication, axis=1), np.stack(fixed, axis=1)
    works = np.isfinite(step_s)[:, None]
    busy = np.where(works, found.busy_s, 0.0)
    compute = np.maximum(busy - parts[0] - parts[1], 0.0)
    work, samples = system.fleet.pools[0].work, np.where(works, found.samples.astype(np.float64), 0.0)
    return training_use(
        system.fleet.pools,
        system.fleet.devices(rows),
        samples * work.train_flop,
        samples * work.model_flop,
        step_s,
        (compute, *parts),
        busy,
    )
