"""What binds a data-parallel design and why an infeasible one fails, in words and numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dse.model.dp_pool import DpTable, margin_byte, samples_byte
from dse.model.dp_thresholds import batch_axis, batch_scaling, least_link_byte_s
from dse.model.dp_training import DpSystem, Evaluation, crossing_byte
from dse.model.roofline import TERMS, binding_term
from dse.model.screening import Explanation
from dse.model.training_explain import link_lines, pool_lines, too_large
from dse.model.training_pool import TrainingPool

Ints = NDArray[np.int64]
Objects = NDArray[np.object_]

NOTICED_FRAC = 0.05
"""Share of the step from which on the exchange between pools is named among what binds."""


def bottlenecks(system: DpSystem, e: Evaluation) -> Objects:
    """The pool that the others wait for with its longest term, and the link where its exchange is noticed."""
    use, names = e.use, [p.name for p in system.fleet.pools]
    term = binding_term(use.compute_s, np.zeros_like(use.compute_s), use.communication_s, use.fixed_s)
    slowest = use.total_s.argmax(axis=1)
    exchange = e.columns["sync_s"] >= NOTICED_FRAC * use.step_s
    labels = np.empty(len(use.step_s), dtype=object)
    for i, p in enumerate(slowest):
        runs = bool(np.isfinite(use.step_s[i]))
        link = ", link" if exchange[i] else ""
        labels[i] = f"{names[p]} ({TERMS[term[i, p]]}){link}" if runs else "none"
    return labels


def infeasible_reasons(system: DpSystem, rows: Ints, e: Evaluation) -> Objects:
    """Why each design cannot run; empty where it does."""
    reasons = np.full(rows.shape[1], "", dtype=object)
    for i in range(rows.shape[1]):
        found = [
            fault
            for pool, table, r in zip(system.fleet.pools, system.tables, rows[:, i], strict=True)
            if (fault := _pool_fault(pool, table, int(r)))
        ]
        if not found and not np.isfinite(e.use.step_s[i]):
            found.append(
                f"memory: the pools together hold fewer than the {system.fleet.global_batch:,} samples of a step "
                "in what they keep outside"
            )
        reasons[i] = "; ".join(found)
    return reasons


def _pool_fault(pool: TrainingPool, table: DpTable, row: int) -> str:
    if not table.active[row] or table.fits[row]:
        return ""
    if not pool.computes:
        return f"dtype: {pool.name} lacks the arithmetic"
    outside = float(table.outside_byte[row] - table.sample_byte[row])
    inside = float(table.inside_byte[row])
    return too_large(pool, int(table.settings.g[row]), inside, outside)


def explanation(system: DpSystem, rows: Ints, link: Ints, e: Evaluation) -> Explanation:
    """One design explained: per pool u_HO, eta, u, g and the binding term; the barrier and the thresholds."""
    fleet = system.fleet
    bought = [p for p, t in enumerate(system.tables) if t.active[rows[p, 0]]]
    return {
        "pools": {fleet.pools[p].name: _pool(system, rows, e, p) for p in bought},
        "system": _system(system, rows, link, e, bought),
    }


def _pool(system: DpSystem, rows: Ints, e: Evaluation, p: int) -> dict[str, Any]:
    table, row = system.tables[p], int(rows[p, 0])
    share = int(e.partition.samples[0, p])
    held = {
        "states": 0.0 if system.fleet.pools[p].device.streams else float(table.states_byte[row]),
        "activations": float(table.activations_byte[row]),
    }
    outside = {}
    if system.fleet.pools[p].device.streams:
        inputs = samples_byte(table, rows[p], e.partition.samples[:, p].astype(np.float64))
        outside = {"states": float(table.states_byte[row]), "activations": float(inputs[0])}
    margin = float(margin_byte(table, rows[p], e.partition.samples[:, p].astype(np.float64))[0])
    role = f"{share:,} of {system.fleet.global_batch:,} samples a step"
    return pool_lines(system.fleet, rows, e.use, p, role=role, held=held, outside=outside, margin_byte=margin)


def _system(system: DpSystem, rows: Ints, link: Ints, e: Evaluation, bought: list[int]) -> dict[str, Any]:
    fleet, work = system.fleet, system.fleet.pools[0].work
    crossing = float(crossing_byte(e.partition.n_active, work.parameters)[0])
    shares = [t.share.rows(rows[p]) for p, t in enumerate(system.tables) if p in bought]
    batch = np.array([float(fleet.global_batch)])
    latency_s = float(fleet.links.latency_s[link[0]])
    least = least_link_byte_s(shares, batch, work.parameters, latency_s, system.overlap_frac)
    scaling = batch_scaling(
        shares,
        batch_axis(),
        work.parameters,
        float(fleet.links.byte_s[link[0]]),
        latency_s,
        system.overlap_frac,
    )
    several, compute_s = len(bought) > 1, float(e.partition.compute_s[0])
    return {
        **link_lines(fleet, link, e.columns, e.pairs, e.use, crossing),
        "compute_s": compute_s,
        "f_overlap_flop_s": float(e.use.flop[0].sum()) / compute_s if np.isfinite(compute_s) else 0.0,
        "exposed_s": float(e.columns["sync_s"][0]),
        "threshold_1_batch": scaling.threshold_1 if several else None,
        "threshold_2_batch": scaling.threshold_2 if several else None,
        "least_link_byte_s": float(least[0]) if several else None,
    }
