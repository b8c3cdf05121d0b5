"""What binds a pipeline design and why an infeasible one fails, in words and numbers."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dse.model.pp_chain import PpSystem
from dse.model.pp_stage import layer_time, offload_threshold_s
from dse.model.pp_training import Evaluation
from dse.model.roofline import TERMS, binding_term
from dse.model.screening import Explanation
from dse.model.training_explain import link_lines, pool_lines
from dse.units import quantity

Ints = NDArray[np.int64]
Objects = NDArray[np.object_]

WHOLE_MODEL = "whole model"
"""Layers of a pool of streaming devices that each hold all of them."""

FULL = 1.0 - 1e-9
"""A link busy this share of the step is what the step waits for."""

STRUCTURE = {
    "stages": "no pool is left to hold stages",
    "servers": "offload_layers needs one pool of streaming devices, and only one, to take the layers",
    "chain": "the pools of a chain form as many pipelines each, with one micro-batch",
    "micro_batches": "global batch {batch:,} is not a whole number of micro-batches on each pipeline",
    "layers": "{layers} layers are too few for {stages} stages",
    "sharing": "pipelines, wafers and collected micro-batches do not divide",
    "interleaving": "interleaved pieces need a layer each, and micro-batches a multiple of the stages",
}


def layer_texts(system: PpSystem, e: Evaluation) -> Objects:
    """Layers of each stage, runs of equal ones together: `3x11 1x9`; with offload, what goes to the wafers."""
    texts = np.empty(len(e.steps.step_s), dtype=object)
    for i, kept in enumerate(e.steps.kept):
        if e.steps.whole[i]:
            texts[i] = WHOLE_MODEL
            continue
        runs = [f"{len(list(run))}x{count}" for count, run in groupby(kept[kept > 0].tolist())]
        handed = f" + {system.offload_layers} each on wafers" if system.offload_layers else ""
        texts[i] = (" ".join(runs) + handed).strip()
    return texts


def order_texts(system: PpSystem, e: Evaluation) -> Objects:
    """The pools that hold stages, in the order of a pipeline: `a,b`."""
    order = system.order or range(len(system.fleet.pools))
    texts = np.empty(len(e.steps.step_s), dtype=object)
    for i, chain in enumerate(e.place.chain):
        texts[i] = ",".join(system.fleet.pools[p].name for p in order if chain[p])
    return texts


def recompute_text(system: PpSystem) -> str:
    """Recompute modes of the stages where they are given and differ, runs of equal ones together: `4xfull 12xnone`."""
    if len(set(system.stage_recompute)) < 2:
        return ""
    return " ".join(f"{len(list(run))}x{mode}" for mode, run in groupby(system.stage_recompute))


def bottlenecks(system: PpSystem, rows: Ints, e: Evaluation) -> Objects:
    """The pool whose instances are busiest with its longest term; the link where it is full."""
    use, names = e.use, [p.name for p in system.fleet.pools]
    term = binding_term(use.compute_s, np.zeros_like(use.compute_s), use.communication_s, use.fixed_s)
    slowest = use.total_s.argmax(axis=1)
    labels = np.empty(rows.shape[1], dtype=object)
    for i, p in enumerate(slowest):
        if not np.isfinite(use.step_s[i]):
            labels[i] = "none"
            continue
        full = e.columns["link_use_frac"][i] >= FULL
        idle = f", bubble {e.columns['bubble_frac'][i]:.0%}" if e.columns["bubble_frac"][i] >= 0.05 else ""
        labels[i] = "link" if full else f"{names[p]} ({TERMS[term[i, p]]}){idle}"
    return labels


def verdict(e: Evaluation, i: int) -> str:
    """One of the three words of [paper] Fig. 11."""
    if any(fault[i] for fault in e.steps.fault.values()):
        return "structurally infeasible"
    return "feasible" if e.steps.possible[i] else "memory violation"


def infeasible_reasons(system: PpSystem, rows: Ints, e: Evaluation) -> Objects:
    """Why each design cannot run; empty where it does."""
    reasons = np.full(rows.shape[1], "", dtype=object)
    place = e.place
    for i in np.flatnonzero(~e.steps.possible):
        layers = system.fleet.pools[0].work.layers
        known = {"batch": system.fleet.global_batch, "layers": layers, "stages": int(place.n_stages[i])}
        found = [f"structure: {text.format(**known)}" for name, text in STRUCTURE.items() if e.steps.fault[name][i]]
        if not found:
            found = [_too_large(system, place.g[i], e, int(i), p) for p in range(len(rows))]
        reasons[i] = "; ".join(filter(None, found)) or "time: no step ends"
    return reasons


def _too_large(system: PpSystem, g: Ints, e: Evaluation, i: int, p: int) -> str:
    pool, margin = system.fleet.pools[p], float(e.steps.margin_byte[i, p])
    if margin >= 0:
        return ""
    if not pool.computes:
        return f"dtype: {pool.name} lacks the arithmetic"
    each = f" in instances of {int(g[p])}" if g[p] > 1 else ""
    return f"memory violation: {pool.name} lacks {quantity(-margin, 'B')} per device{each} on its tightest stage"


def explanation(system: PpSystem, rows: Ints, link: Ints, e: Evaluation) -> Explanation:
    """One design explained: per pool u_HO, eta, u, g and the binding term; path, bubble and layers."""
    bought = [p for p, s in enumerate(system.fleet.settings) if s.n[rows[p, 0]] > 0]
    return {
        "pools": {system.fleet.pools[p].name: _pool(system, rows, e, p) for p in bought},
        "system": _system(system, link, e),
    }


def _pool(system: PpSystem, rows: Ints, e: Evaluation, p: int) -> dict[str, Any]:
    pool, place = system.fleet.pools[p], e.place
    margin = float(e.steps.margin_byte[0, p])
    if place.server[0, p]:
        role = f"serves {system.offload_layers} layers of each of {int(place.n_stages[0])} stages"
    elif e.steps.whole[0]:
        role = "whole model on each device"
    else:
        role = f"{int(place.stages[0, p])} of {int(place.n_stages[0])} stages, {int(place.replicas[0])} pipelines"
    beyond = float(e.steps.outside_byte[0, p])
    outside, held = {}, {}
    if np.isfinite(beyond):
        outside = {"states and inputs of layers": pool.device.streaming_byte - beyond}
        held = {"activations of one layer": pool.one_layer_byte}
    elif np.isfinite(margin):
        held = {"states and activations": pool.usable - margin}
    return pool_lines(system.fleet, rows, e.use, p, role=role, held=held, outside=outside, margin_byte=margin)


def _system(system: PpSystem, link: Ints, e: Evaluation) -> dict[str, Any]:
    place, steps = e.place, e.steps
    lines: dict[str, Any] = {
        **link_lines(system.fleet, link, e.columns, e.pairs, e.use, float(steps.crossing_byte[0])),
        "verdict": verdict(e, 0),
        "path_s": float(steps.path_s[0]),
        "micro_batches": float(steps.n_micro[0]),
        "bubble_frac": float(e.columns["bubble_frac"][0]),
        "exposed_s": float(steps.gradient_s[0]),
        "layers": str(layer_texts(system, e)[0]),
    }
    if system.offload_layers and place.chain[0].any():
        first, server = int(place.chain[0].argmax()), int(place.server[0].argmax())
        pools, m = system.fleet.pools, place.micro_batch[:1]
        stage = layer_time(pools[first], m, place.g[:1, first]).both_s
        wafer = layer_time(pools[server], m * system.collect, place.g[:1, server]).both_s
        per_stage = pools[first].work.layers / place.n_stages[:1]
        threshold = offload_threshold_s(stage, per_stage, place.n_stages[:1].astype(np.float64))
        lines |= {"offload_threshold_s": float(threshold[0]), "wafer_layer_s": float(wafer[0] / system.collect)}
    return lines
