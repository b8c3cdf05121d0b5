"""Rate, cost and power of a block of serving designs, at memory speed (docs/model.md, section 6)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dse.model.fleet import share_of, total_of
from dse.model.links import links_bill
from dse.model.pool_table import PoolTable
from dse.model.routing import split_rate
from dse.model.screening import Screen
from dse.model.serving_pool import DECODE, PREFILL
from dse.model.serving_system import System, held_by_ttft, pairs_bought, plans_of
from dse.model.stealing import stealing_rate

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


def screen(system: System, rows: Sequence[Ints], link: int | Ints) -> Screen:
    """Rate, cost and power of a block of designs that are linked alike, or of N designs each with its link (N,).

    `rows` holds, per pool, rows of its table in shapes that broadcast together, so that a block of
    a grid costs one pass over its product. Under work stealing the rate is an upper bound, and only a block
    that is linked alike can be screened.
    """
    tables, option = system.tables, system.wiring.option[link]
    n_active = total_of([t.active[r].astype(np.float64) for t, r in zip(tables, rows, strict=True)])
    feasible = np.ones(n_active.shape, dtype=np.bool_)
    for t, r in zip(tables, rows, strict=True):
        feasible = feasible & t.feasible[r]
    link_usd, link_w = links_bill(system.links, option, pairs_bought(system, rows))
    busy_usd = any(bool(t.bill.busy_usd_per_h.any()) for t in tables) or system.site.cost_basis == "ownership"
    cost = total_of([t.bill.idle_usd_per_h[r] for t, r in zip(tables, rows, strict=True)])
    if system.stealing:
        rate, exact = _stealing_bound(system, rows, link, n_active), False
    else:
        prefill = [t.prefill_rate[r] for t, r in zip(tables, rows, strict=True)]
        decode = [t.decode_rate[r] for t, r in zip(tables, rows, strict=True)]
        held = None
        if np.isfinite(system.limits.ttft_p99_s):
            held = held_by_ttft(system, rows, option)
        byte_s = system.links.byte_s[option]
        if byte_s.ndim > 2:
            byte_s = np.moveaxis(byte_s, 0, -1)
        part = split_rate(prefill, decode, byte_s, system.request_kv_byte, held)
        rate = part + total_of([t.both_rate[r] for t, r in zip(tables, rows, strict=True)])
        exact = True
        if busy_usd:
            u_prefill, u_decode = share_of(part, total_of(prefill)), share_of(part, total_of(decode))
            for t, r in zip(tables, rows, strict=True):
                role = t.settings.role[r]
                busy = np.where(role == PREFILL, u_prefill, np.where(role == DECODE, u_decode, t.alone_busy[r]))
                cost = cost + (t.bill.usd_per_h(r, busy) - t.bill.usd_per_h(r, 0.0))
    feasible = feasible & (rate > 0)
    power = total_of([t.bill.provisioned_w[r] for t, r in zip(tables, rows, strict=True)])
    return Screen(
        columns={
            "requests_s": rate,
            "throughput_tok_s": rate * system.output_tok,
            "input_tok_s": rate * system.input_tok,
            "cost_usd_per_h": cost + link_usd,
            "power_w": power + link_w,
        },
        feasible=feasible,
        exact=exact,
    )


def _stealing_bound(system: System, rows: Sequence[Ints], link: int | Ints, n_active: Floats) -> Floats:
    """Upper bound on the rate of work stealing, nearly always attained; one active pool alone does both phases."""
    tables = system.tables
    alone = total_of([np.where(t.active[r], t.alone_rate[r], 0.0) for t, r in zip(tables, rows, strict=True)])
    if len(tables) == 2:
        capacity = _two_pool_bound(system, rows, float(system.links.byte_s[system.wiring.option[link, 0, 1]]))
    else:
        # more than two pools: every piece of work at its best pool bounds the rate from above
        capacity = total_of([_best_case_rate(t)[r] for t, r in zip(tables, rows, strict=True)])
    return np.where(n_active > 1, capacity, alone)


def _two_pool_bound(system: System, rows: Sequence[Ints], link_byte_s: float) -> Floats:
    """The bound of `stealing_rate` over a block of rows (R, 1) by (1, K), configuration pair by pair."""
    (table_a, table_b), (rows_a, rows_b) = system.tables, rows
    n_a, n_b = table_a.instances[rows_a].reshape(-1), table_b.instances[rows_b].reshape(-1)
    config_a, config_b = table_a.config[rows_a].reshape(-1), table_b.config[rows_b].reshape(-1)
    rate = np.zeros((len(n_a), len(n_b)))
    for a in np.unique(config_a):
        for b in np.unique(config_b):
            at_a, at_b = np.flatnonzero(config_a == a), np.flatnonzero(config_b == b)
            plans = plans_of(system, int(a), int(b))
            rate[np.ix_(at_a, at_b)] = stealing_rate(plans, n_a[at_a, None], n_b[None, at_b], link_byte_s)
    return rate


def _best_case_rate(table: PoolTable) -> Floats:
    """Requests/s of a pool if it only ever did its cheapest phase of every request (K,); an upper bound."""
    cheapest = np.minimum(table.prefill.request_s.min(axis=1), table.decode.request_s.min(axis=1))[table.config]
    return np.divide(table.instances, cheapest, out=np.zeros_like(cheapest), where=cheapest > 0)
