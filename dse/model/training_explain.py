"""One training design explained: what both paradigms say of a pool, of the link, and of what does not fit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dse.model.roofline import TERMS, binding_term
from dse.model.training_pool import TrainingPool
from dse.model.training_run import TrainingFleet, TrainingUse, tokens_per_s
from dse.units import quantity

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


def too_large(pool: TrainingPool, g: int, inside_byte: float, outside_byte: float) -> str:
    """A pool whose devices cannot hold what they must, with the missing bytes."""
    each = f" in instances of {g}" if g > 1 else ""
    if inside_byte < 0:
        return f"memory: {pool.name} lacks {quantity(-inside_byte, 'B')} per device{each}"
    return f"memory: {pool.name} lacks {quantity(-outside_byte, 'B')} of streaming memory per device{each}"


def pool_lines(
    fleet: TrainingFleet,
    rows: Ints,
    use: TrainingUse,
    p: int,
    *,
    role: str,
    held: Mapping[str, float],
    outside: Mapping[str, float],
    margin_byte: float,
) -> dict[str, Any]:
    """One pool's figures; `held` is what a device's memory holds, `outside` what it streams, by name [byte]."""
    pool, settings, bill, row = fleet.pools[p], fleet.settings[p], fleet.bills[p], int(rows[p, 0])
    parts = {
        "compute": float(use.compute_s[0, p]),
        "memory": 0.0,
        "communication": float(use.communication_s[0, p]),
        "fixed": float(use.fixed_s[0, p]),
    }
    total_s, step_s = float(use.total_s[0, p]), float(use.step_s[0])
    busy = use.busy_frac[:1, p]
    return {
        "n": int(settings.n[row]),
        "instances": float(settings.n[row] / settings.g[row]),
        "role": role,
        "binding": TERMS[int(binding_term(*parts.values()))],
        "u_ho": float(use.u_ho[0, p]),
        "eta": float(use.eta[0, p]),
        "u": float(use.u[0, p]),
        "g_flop_s": float(use.flop[0, p]) / step_s if np.isfinite(step_s) else 0.0,
        "busy_frac": float(busy[0]),
        "time_frac": {name: part / total_s if total_s else 0.0 for name, part in parts.items()},
        "memory": {
            "device_byte": pool.device.memory_byte,
            "usable_byte": pool.usable,
            "held": dict(held),
            "outside_byte": pool.device.streaming_byte if outside else 0.0,
            "outside": dict(outside),
            "margin_byte": margin_byte,
        },
        "alone_tok_s": float(tokens_per_s(fleet.batch_tokens, fleet.alone_s[p][[row]])[0]),
        "cost_usd_per_h": float(bill.usd_per_h(rows[p, :1], busy)[0]),
        "power_w": float(bill.provisioned_w[row]),
        "power_mean_w": float(bill.power_mean_w(rows[p, :1], busy)[0]),
    }


def link_lines(
    fleet: TrainingFleet, link: Ints, columns: Mapping[str, Floats], pairs: Floats, use: TrainingUse, crossing: float
) -> dict[str, Any]:
    """The whole: eq. (2), the link and the baselines. `crossing` is what one direction carries a step [byte]."""
    step_s, flop = float(use.step_s[0]), float(use.flop[0].sum())
    byte_s = float(fleet.links.byte_s[link[0]])
    rate = 1.0 / step_s if np.isfinite(step_s) and step_s > 0 else 0.0
    return {
        "sum_g_flop_s": float(sum(flop_p * rate for flop_p in use.flop[0])),
        "link_bound_flop_s": byte_s * flop / crossing if crossing else None,
        "f_flop_s": flop * rate,
        "step_s": step_s,
        "link_byte_s": byte_s if pairs[0] else None,
        "link_need_byte_s": crossing * rate,
        "links_bought": float(pairs[0]),
        "link_cost_usd_per_h": float(columns["link_cost_usd_per_h"][0]),
        "link_power_w": float(pairs[0] * fleet.links.power_w[link[0]]),
        "aggregate_tok_s": float(columns["aggregate_tok_s"][0]),
        "best_single_tok_s": float(columns["best_single_tok_s"][0]),
    }
