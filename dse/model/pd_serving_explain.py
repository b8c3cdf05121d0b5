"""What binds a serving design and why an infeasible one fails, in words and numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dse.model.fleet import gathered
from dse.model.links import links_bill
from dse.model.pd_serving import SATURATED, Evaluation
from dse.model.roofline import TERMS, binding_term
from dse.model.screening import Explanation
from dse.model.serving_flow import crossing_byte
from dse.model.serving_pool import ANY, BOTH, DECODE, PREFILL, ROLE_NAMES, PhaseTable
from dse.model.serving_system import System, narrowest_byte_s, pair_byte_s
from dse.units import quantity

Ints = NDArray[np.int64]
Objects = NDArray[np.object_]

NOTICED_FRAC = 0.005
"""A pool is said to do a phase where at least this share of all requests flows to it."""

STAGES = {PREFILL: "prefill", DECODE: "decode", BOTH: "prefill and decode", ANY: "prefill and decode"}


def bottlenecks(system: System, rows: Ints, link: Ints, e: Evaluation, names: Sequence[str]) -> Objects:
    """What holds the rate of each design: a saturated pool with its binding term, a link, or a limit."""
    use = e.use
    term = binding_term(use.compute_s, use.memory_s, use.communication_s, use.fixed_s)
    prefills, decodes = (e.pool_columns[c] >= NOTICED_FRAC for c in ("prefill_frac", "decode_frac"))
    link_full = e.columns["link_use_frac"] >= SATURATED
    labels = np.empty(rows.shape[1], dtype=object)
    for i in range(rows.shape[1]):
        if e.flow.rate[i] <= 0:
            labels[i] = "none"
            continue
        full = [
            f"{_stages(prefills[i, p], decodes[i, p])} on {names[p]} ({TERMS[term[i, p]]})"
            for p in range(len(names))
            if use.busy_frac[i, p] >= SATURATED
        ]
        if link_full[i]:
            full += _full_links(system, link, e, names, i)
        labels[i] = ", ".join(full) if full else _held_back(system)
    return labels


def _full_links(system: System, link: Ints, e: Evaluation, names: Sequence[str], i: int) -> list[str]:
    """The full links of one design: by name where pairs have different ones."""
    option = system.wiring.option[link[i]]
    if len({int(option[pair]) for pair, used in e.bought.items() if used[i]}) <= 1:
        return ["link"]
    full = e.link_use[i] >= SATURATED
    return [f"link {names[p]}~{names[o]}" for p, o in e.bought if full[p, o] or full[o, p]]


def _stages(prefills: bool, decodes: bool) -> str:
    return " and ".join(name for name, does in (("prefill", prefills), ("decode", decodes)) if does) or "work"


def _held_back(system: System) -> str:
    held = [
        name
        for name, value in (("ttft_p99_s", system.limits.ttft_p99_s), ("tpot_s", system.limits.tpot_s))
        if np.isfinite(value)
    ]
    return " and ".join(held) + " limit" if held else "balance"


def infeasible_reasons(
    system: System, rows: Ints, e: Evaluation, names: Sequence[str], classes: Sequence[str]
) -> Objects:
    """Why each design cannot run or does not meet service limits; empty where it does.

    Demand and the user's limits are added by the caller: they are the same for every paradigm.
    """
    n_active = gathered([t.active for t in system.tables], rows).sum(axis=1)
    reasons = np.full(rows.shape[1], "", dtype=object)
    memo: dict[tuple[int, int, bool], str] = {}
    for i in range(rows.shape[1]):
        found = []
        for p, table in enumerate(system.tables):
            row = int(rows[p, i])
            alone = bool(n_active[i] == 1)
            if not table.active[row] or (table.feasible[row] and not alone):
                continue
            if (p, row, alone) not in memo:
                memo[p, row, alone] = pool_fault(system, p, row, names[p], classes, alone=alone)
            if memo[p, row, alone]:
                found.append(memo[p, row, alone])
        if not found and e.flow.rate[i] <= 0:
            found.append(_no_rate(system, rows[:, i], n_active[i]))
        reasons[i] = "; ".join(found)
    return reasons


def _no_rate(system: System, rows: Ints, n_active: int) -> str:
    if n_active == 0:
        return "nothing is bought"
    if system.stealing:
        if np.isfinite(system.limits.ttft_p99_s):
            return f"slo: ttft_p99_s {system.limits.ttft_p99_s:g} s cannot be met by any pool through this link"
        return "some request class fits on no pool in some phase"
    roles = [int(t.settings.role[r]) for t, r in zip(system.tables, rows, strict=True) if t.active[r]]
    missing = [STAGES[phase] for phase in (PREFILL, DECODE) if phase not in roles]
    if missing:
        return f"roles: no pool does {' or '.join(missing)}"
    return f"slo: ttft_p99_s {system.limits.ttft_p99_s:g} s cannot be met through this link"


def pool_fault(system: System, p: int, row: int, name: str, classes: Sequence[str], *, alone: bool) -> str:
    """What keeps one pool's setting from doing its part: memory with the missing bytes, or a limit."""
    table, pool = system.tables[p], system.pools[p]
    role, config = int(table.settings.role[row]), int(table.config[row])
    together = role == BOTH or alone
    if pool.device.arrangement == "pipeline" and table.settings.g[row] > pool.model.layers:
        return f"layout: {name} lays {pool.model.layers} layers on {table.settings.g[row]} devices"
    if not pool.computes:
        return f"dtype: {name} has no {pool.precision.compute} arithmetic"
    phases: list[tuple[str, PhaseTable]] = []
    if together or role in (PREFILL, ANY):
        phases.append(("prefill", table.prefill))
    if together:
        phases.append(("decode", table.combined))
    elif role in (DECODE, ANY):
        phases.append(("decode", table.decode))
    lacking = []
    for phase, t in phases:
        worst = int(t.missing_byte[config].argmax())
        if not t.fits[config, worst]:
            lacking.append((float(t.missing_byte[config, worst]), phase, classes[worst]))
    if role == ANY and not together:
        some = table.prefill.fits[config].any() or table.decode.fits[config].any()
        lacking = [] if some else [min(lacking)]
    if lacking:
        missing, phase, which = max(lacking)
        size = int(table.settings.g[row])
        each = f" in instances of {size}" if size > 1 else ""
        return f"memory: {name} lacks {quantity(missing, 'B')} per device{each} to {phase} class {which}"
    slow = [(phase, t) for phase, t in phases if not t.meets_slo[config].all()]
    if slow or (
        together and np.isfinite(pool.limits.tpot_s) and table.alone_rate[row] <= 0 and np.isinf(pool.limits.ttft_p99_s)
    ):
        steps = phases[-1][1].time.occupancy_s[config]
        worst = int(np.where(pool.mix.steps > 0, steps, -np.inf).argmax())
        return (
            f"slo: {name} needs at least {quantity(float(steps[worst]), 's')} per token of class {classes[worst]}, "
            f"tpot_s is {quantity(pool.limits.tpot_s, 's')}"
        )
    if (np.isfinite(pool.limits.ttft_p99_s) and not table.feasible[row]) or (together and table.alone_rate[row] <= 0):
        slowest = float(table.prefill.time.latency_s[config].max())
        return (
            f"slo: {name} needs at least {quantity(slowest, 's')} for its slowest prefill, "
            f"ttft_p99_s is {quantity(pool.limits.ttft_p99_s, 's')}"
        )
    return ""


def explanation(system: System, rows: Ints, link: Ints, e: Evaluation, names: Sequence[str]) -> Explanation:
    """One design explained: per pool u_HO, eta, u, g and the binding term; the system's bounds."""
    bought = [p for p, table in enumerate(system.tables) if table.active[rows[p, 0]]]
    return {
        "pools": {names[p]: _pool(system, rows, e, p) for p in bought},
        "system": _system(system, link, e),
    }


def _pool(system: System, rows: Ints, e: Evaluation, p: int) -> dict[str, Any]:
    """One pool's figures."""
    use, table, row = e.use, system.tables[p], int(rows[p, 0])
    parts = {
        "compute": float(use.compute_s[0, p]),
        "memory": float(use.memory_s[0, p]),
        "communication": float(use.communication_s[0, p]),
        "fixed": float(use.fixed_s[0, p]),
    }
    total_s = float(use.total_s[0, p])
    role = BOTH if e.flow.combined[0, p] else int(table.settings.role[row])
    busy = use.busy_frac[:1, p]
    return {
        "n": int(table.settings.n[row]),
        "instances": float(table.instances[row]),
        "role": ROLE_NAMES[role],
        "binding": TERMS[int(binding_term(*parts.values()))],
        "u_ho": float(use.u_ho[0, p]),
        "eta": float(use.eta[0, p]),
        "u": float(use.u[0, p]),
        "g_flop_s": float(e.flow.rate[0] * use.flop[0, p]),
        "busy_frac": float(busy[0]),
        "time_frac": {name: part / total_s if total_s else 0.0 for name, part in parts.items()},
        "memory": _memory(system, p, row, role),
        "phases": _phases(e, p),
        "alone_tok_s": float(table.alone_rate[row] * system.output_tok),
        "kv_out_byte_s": float(e.pool_columns["kv_out_byte_s"][0, p]),
        "cost_usd_per_h": float(table.bill.usd_per_h(rows[p, :1], busy)[0]),
        "power_w": float(table.bill.provisioned_w[row]),
        "power_mean_w": float(table.bill.power_mean_w(rows[p, :1], busy)[0]),
    }


def _system(system: System, link: Ints, e: Evaluation) -> dict[str, Any]:
    """The whole: eq. (2), the link and the baselines."""
    rate, flop = float(e.flow.rate[0]), float(e.use.flop[0].sum())
    byte_s, crossing = _fullest_link(system, link, e)
    return {
        "sum_g_flop_s": float((e.flow.rate[0] * e.use.flop[0]).sum()),
        "link_bound_flop_s": byte_s * flop / crossing if crossing else None,
        "f_flop_s": rate * flop,
        "requests_s": rate,
        "link_byte_s": byte_s if e.pairs[0] else None,
        "link_need_byte_s": rate * crossing,
        "links_bought": float(e.pairs[0]),
        "link_cost_usd_per_h": float(e.columns["link_cost_usd_per_h"][0]),
        "link_power_w": float(links_bill(system.links, system.wiring.option[link], e.bought)[1][0]),
        "aggregate_tok_s": float(e.columns["aggregate_tok_s"][0]),
        "best_single_tok_s": float(e.columns["best_single_tok_s"][0]),
    }


def _fullest_link(system: System, link: Ints, e: Evaluation) -> tuple[float, float]:
    """Bandwidth of the link that is fullest in one direction, and what crosses it per request [byte].

    Where nothing crosses, the narrowest link that is bought.
    """
    byte_s, crossing = pair_byte_s(system, link)[0], crossing_byte(system, e.flow)[0]
    if not crossing.any():
        return float(narrowest_byte_s(system, link, e.bought)[0]), 0.0
    at = np.unravel_index((crossing / byte_s).argmax(), byte_s.shape)
    return float(byte_s[at]), float(crossing[at])


def _memory(system: System, p: int, row: int, role: int) -> dict[str, Any]:
    """One device's memory; a pool that serves keeps nothing outside."""
    table, pool = system.tables[p], system.pools[p]
    config = int(table.config[row])
    phases = [table.prefill] if role == PREFILL else [table.decode] if role == DECODE else [table.prefill, table.decode]
    margin = float(min(t.margin_byte[config].min() for t in phases))
    if role == BOTH:
        margin = float(table.combined_margin_byte[config])
    return pool.device_memory(float(table.settings.g[row]), margin)


def _phases(e: Evaluation, p: int) -> dict[str, Any]:
    """Per phase, what runs here: share of requests, batch and pass time per class."""
    result: dict[str, Any] = {}
    for phase, flow, parts in (
        ("prefill", e.flow.prefilled[0, p], e.prefill),
        ("decode", e.flow.decoded[0, p], e.decode),
    ):
        if flow.sum() <= 0:
            continue
        result[phase] = {
            "request_frac": float(flow.sum()),
            "batch": parts.batch[0, p].tolist(),
            "pass_s": parts.occupancy_s[0, p].tolist(),
            "latency_s": parts.latency_s[0, p].tolist(),
            "compute_s": parts.compute_s[0, p].tolist(),
            "memory_s": parts.memory_s[0, p].tolist(),
            "communication_s": parts.communication_s[0, p].tolist(),
            "fixed_s": parts.fixed_s[0, p].tolist(),
            "request_s": parts.request_s[0, p].tolist(),
        }
    return result
