"""Pipeline training on any number of pools: every number of a design (docs/training.md).

eta of a pool is the idle share of its stages: fill, drain, and waiting for the slowest.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dse.model.fleet import cost_usd_per_h, power_w
from dse.model.pp_chain import Placement, PpSystem, placement
from dse.model.pp_step import Steps, steps_of
from dse.model.screening import Screen
from dse.model.training_run import TrainingUse, tokens_per_s, training_columns, training_pool_columns, training_use

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def screen(system: PpSystem, rows: Ints, link: Ints) -> Screen:
    """Throughput, cost and power of designs (P, N). 1F1B: bounds on the good side."""
    place = placement(system, rows)
    found = steps_of(system, place, rows, link, screening=True)
    exact = system.schedule != "1f1b"
    fleet = system.fleet
    possible = found.possible
    busy = np.zeros_like(found.total_s)
    if exact:
        np.divide(found.total_s, found.step_s[:, None], out=busy, where=possible[:, None])
    pairs = links_bought(system, place)
    columns = {
        "throughput_tok_s": np.where(possible, tokens_per_s(fleet.batch_tokens, found.step_s), 0.0),
        "step_time_s": found.step_s,
        "cost_usd_per_h": cost_usd_per_h(fleet.bills, rows, np.minimum(busy, 1.0), pairs * fleet.links.usd_per_h[link]),
        "power_w": power_w(fleet.bills, rows, pairs * fleet.links.power_w[link]),
    }
    return Screen(columns=columns, feasible=possible, exact=exact)


def links_bought(system: PpSystem, place: Placement) -> Floats:
    """Links between neighbours of the chain; with offload, between the wafers and each pool of the chain."""
    on_chain = place.chain.sum(axis=1).astype(np.float64)
    return on_chain if system.offload_layers else np.maximum(on_chain - 1.0, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Every number of N designs: columns of the result frame, and what explains them."""

    columns: dict[str, Floats]
    pool_columns: dict[str, Floats]
    place: Placement
    steps: Steps
    use: TrainingUse
    pairs: Floats


def evaluate(system: PpSystem, rows: Ints, link: Ints) -> Evaluation:
    """Score N designs in full; rows (P, N) of the pools' settings, link (N,)."""
    place = placement(system, rows)
    found = steps_of(system, place, rows, link)
    fleet, possible = system.fleet, found.possible
    step = np.where(possible, found.step_s, np.inf)
    runs = possible[:, None]
    parts = tuple(np.where(runs, part, 0.0) for part in (found.compute_s, found.communication_s, found.fixed_s))
    total, flop, model_flop = (np.where(runs, v, 0.0) for v in (found.total_s, found.flop, found.model_flop))
    use = training_use(fleet.pools, fleet.devices(rows), flop, model_flop, step, (parts[0], parts[1], parts[2]), total)
    pairs = links_bought(system, place)
    stages = place.stages.astype(np.float64)
    busy = np.where(place.chain, use.busy_frac, 0.0)
    columns = {
        **training_columns(fleet, rows, link, pairs, use),
        "bubble_frac": 1.0 - (busy * stages).sum(axis=1) / np.maximum(stages.sum(axis=1), 1.0),
        "sync_s": np.where(possible, found.gradient_s, 0.0),
        "link_use_frac": found.crossing_byte / fleet.links.byte_s[link] / step,
        "mem_margin_byte": found.margin_byte.min(axis=1),
    }
    return Evaluation(
        columns=columns,
        pool_columns=training_pool_columns(fleet, use),
        place=place,
        steps=found,
        use=use,
        pairs=pairs,
    )
