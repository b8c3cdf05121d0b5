"""N designs of a fleet, each named by a row of every pool's table: what is added up over pools alike everywhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from dse.model.bill import PoolBill
from dse.model.cost import usd_per_mtok
from dse.model.power import co2_g_per_mtok, energy_j_per_tok
from dse.study import Site

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Cell = TypeVar("Cell", bound=np.generic)


def total_of(parts: Sequence[Floats]) -> Floats:
    """Sum of arrays that broadcast together."""
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def share_of(part: Floats, whole: Floats) -> Floats:
    """part / whole, 0 where the whole is 0."""
    return np.divide(part, whole, out=np.zeros(np.broadcast(part, whole).shape), where=whole > 0)


def gathered(arrays: Sequence[NDArray[Cell]], rows: Ints | Sequence[Ints]) -> NDArray[Cell]:
    """One array per pool, read at each design's row of that pool: (N, P), or (N, P, C) of arrays with classes."""
    return np.stack([a[r] for a, r in zip(arrays, rows, strict=True)], axis=1)


def gpu_wse_ratio(kinds: Sequence[str], n: NDArray[np.generic]) -> Floats:
    """GPUs bought per wafer bought, of devices (N, P); infinite without wafers, NaN without either (N,)."""
    kind, count = np.array(kinds), n.astype(np.float64)
    gpus, wafers = count[:, kind == "gpu"].sum(axis=1), count[:, kind == "wse"].sum(axis=1)
    return np.divide(gpus, wafers, out=np.where(gpus > 0, np.inf, np.nan), where=wafers > 0)


def cost_usd_per_h(bills: Sequence[PoolBill], rows: Ints, busy_frac: Floats, link_usd_per_h: Floats) -> Floats:
    """Cost of pools, busy for shares (N, P) of the time, and links (N,)."""
    of_pools = [b.usd_per_h(r, busy) for b, r, busy in zip(bills, rows, busy_frac.T, strict=True)]
    return total_of(of_pools) + link_usd_per_h


def power_w(bills: Sequence[PoolBill], rows: Ints, link_w: Floats) -> Floats:
    """Provisioned power of pools and links (N,)."""
    return total_of([b.provisioned_w[r] for b, r in zip(bills, rows, strict=True)]) + link_w


def bill_columns(
    bills: Sequence[PoolBill],
    rows: Ints,
    busy_frac: Floats,
    link_usd_per_h: Floats,
    link_w: Floats,
    tok_s: Floats,
    site: Site,
) -> dict[str, Floats]:
    """Cost, power and what follows from them per token; busy_frac (N, P), links (N,)."""
    mean_w = total_of([b.power_mean_w(r, busy) for b, r, busy in zip(bills, rows, busy_frac.T, strict=True)]) + link_w
    cost = cost_usd_per_h(bills, rows, busy_frac, link_usd_per_h)
    energy = energy_j_per_tok(mean_w, tok_s)
    return {
        "cost_usd_per_h": cost,
        "usd_per_mtok": usd_per_mtok(cost, tok_s),
        "power_w": power_w(bills, rows, link_w),
        "power_mean_w": mean_w,
        "energy_j_per_tok": energy,
        "co2_g_per_mtok": co2_g_per_mtok(energy, site.carbon_g_per_kwh),
        "link_cost_usd_per_h": link_usd_per_h,
    }


def baseline_columns(alone_tok_s: Sequence[Floats], tok_s: Floats) -> dict[str, Floats]:
    """Designs against their own pools, each working alone."""
    aggregate, best = total_of(alone_tok_s), np.stack(alone_tok_s).max(axis=0)

    def over(base: Floats) -> Floats:
        return np.divide(tok_s, base, out=np.where(tok_s > 0, np.inf, np.nan), where=base > 0)

    return {
        "aggregate_tok_s": aggregate,
        "best_single_tok_s": best,
        "complementarity": over(aggregate),
        "gain": over(best),
    }
