"""What binds a fleet that serves several scenarios, and why an infeasible one fails, in words and numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dse.model.links import links_bill, one_link_for_all
from dse.model.robust_serving import (
    ADAPTIVE,
    FIXED,
    RobustEvaluation,
    RobustSystem,
    division,
    served,
    usable_devices,
)
from dse.model.robust_tables import Configs
from dse.model.roofline import TERMS, binding_term, idle_over_busy, u_ho
from dse.model.screening import Explanation
from dse.model.serving_pool import BOTH, DECODE, PREFILL, ROLE_NAMES, PhaseTable

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Objects = NDArray[np.object_]

SATURATED = 1.0 - 1e-7
"""A pool or link busier than this is what binds."""
PARTS = ("compute_s", "memory_s", "communication_s", "fixed_s")


def bottlenecks(system: RobustSystem, rows: Ints, e: RobustEvaluation, names: Sequence[str]) -> Objects:
    """What holds the scenario that is worst off: saturated pools, a link."""
    binding = e.binding
    found = np.empty(rows.shape[1], dtype=object)
    for i, w in enumerate(binding):
        if e.rate[w, i] <= 0:
            found[i] = "none"
            continue
        usable = usable_devices(system, int(w), rows[:, i : i + 1])[0]
        full = [name for p, name in enumerate(names) if usable[p] and e.busy_devices[w, i, p] >= SATURATED * usable[p]]
        full += ["link"] if e.link_use[w, i] >= SATURATED else []
        found[i] = f"{', '.join(full) or 'balance'} in {system.scenarios.names[w]}"
    return found


def infeasible_reasons(system: RobustSystem, rows: Ints, e: RobustEvaluation, names: Sequence[str]) -> Objects:
    """Why each design cannot serve some scenario; empty where it serves all."""
    reasons = np.full(rows.shape[1], "", dtype=object)
    for i in np.flatnonzero((e.rate <= 0).any(axis=0)):
        w = int(np.flatnonzero(e.rate[:, i] <= 0)[0])
        reasons[i] = _reason(system, w, rows[:, i], names)
    return reasons


def _reason(system: RobustSystem, w: int, rows: Ints, names: Sequence[str]) -> str:
    scenario = system.scenarios.names[w]
    bought = [p for p, t in enumerate(system.tables) if t.active[rows[p]]]
    up = usable_devices(system, w, rows[:, None])[0]
    if not bought:
        return "nothing is bought"
    if not up.any():
        return f"scenario {scenario}: no instance is left of {', '.join(names[p] for p in bought)}"
    if system.adaptation == FIXED:
        roles = [int(system.tables[p].settings.role[rows[p]]) for p in bought if up[p]]
        missing = [
            phase for phase, r in (("prefill", PREFILL), ("decode", DECODE)) if r not in roles and BOTH not in roles
        ]
        if missing:
            return f"scenario {scenario}: no pool does {' or '.join(missing)}"
        return f"scenario {scenario}: a class does not fit in memory, or misses tpot_s, on a pool of its phase"
    return f"scenario {scenario}: some class fits in memory and meets tpot_s on no pool in some phase"


def explanation(system: RobustSystem, rows: Ints, link: Ints, e: RobustEvaluation, names: Sequence[str]) -> Explanation:
    """One design explained, averaged over its scenarios: per pool its work; and what each scenario is served."""
    bought = [p for p, table in enumerate(system.tables) if table.active[rows[p, 0]]]
    volumes = [_volumes(system, w, rows[:, 0], int(link[0])) for w in range(len(system.scenarios))]
    pools = {names[p]: _pool(system, rows, e, p, [v[p] for v in volumes]) for p in bought}
    scenarios = _scenarios(system, rows[:, 0], int(link[0]), e, volumes, names)
    return {"pools": pools, "system": {**_system(system, link, e, pools), "scenarios": scenarios}}


def _volumes(system: RobustSystem, w: int, rows: Ints, link: int) -> list[tuple[Floats, Floats]]:
    """Per pool, requests/s prefilled and decoded by configuration and class, each (J, C)."""
    byte_s = float(system.links.byte_s[link])
    if system.adaptation == ADAPTIVE:
        found = division(system, w, rows, byte_s)
        return list(zip(found.prefilled, found.decoded, strict=True))
    config = np.array([t.config[r] for t, r in zip(system.tables, rows, strict=True)], dtype=np.int64)
    at = [np.array([link]), rows[:, None]]
    if system.adaptation == FIXED:
        prefilled, decoded = _split_volumes(system, w, at[1], at[0])
    else:
        instances = np.array([[t.instances[w][r] for t, r in zip(system.tables, rows, strict=True)]])
        routed = system.stealers[w].routed(config[None, :], instances, np.array([byte_s]))
        prefilled, decoded = routed.prefilled[0], routed.decoded[0]
    volumes = []
    for p, c in enumerate(system.configs):
        x, d = np.zeros_like(c.prefill_s), np.zeros_like(c.prefill_s)
        x[config[p]], d[config[p]] = prefilled[p], decoded[p]
        volumes.append((x, d))
    return volumes


def _split_volumes(system: RobustSystem, w: int, rows: Ints, link: Ints) -> tuple[Floats, Floats]:
    """Requests/s of each class that each pool prefills and decodes in its role (P, C)."""
    q, kv = system.scenarios.mix[w], float(system.scenarios.mix[w] @ system.class_kv_byte)
    z = served(system, w, rows, link).crossing_byte_s[0] / kv
    own = np.array([t.both_rate[w][r[0]] for t, r in zip(system.tables, rows, strict=True)])
    return (z.sum(axis=1) + own)[:, None] * q, (z.sum(axis=0) + own)[:, None] * q


def _pool(
    system: RobustSystem, rows: Ints, e: RobustEvaluation, p: int, volumes: Sequence[tuple[Floats, Floats]]
) -> dict[str, Any]:
    """One pool's figures, averaged over the scenarios by weight."""
    table, pool, configs, row = system.tables[p], system.pools[p], system.configs[p], int(rows[p, 0])
    weight = system.scenarios.weight
    x, d = (sum(k * v[side] for k, v in zip(weight, volumes, strict=True)) for side in (0, 1))
    work = [(x, configs.prefill, 1.0 / configs.prefill.batch), (d, configs.decode, _passes(system, configs))]
    parts = np.array([sum(_sum(v, getattr(t.time, part), k) for v, t, k in work) for part in PARTS])
    total = float(sum(_sum(v, t.time.occupancy_s, k) for v, t, k in work))
    flop, moved = (float(sum(_sum(v, getattr(t.time, f), k) for v, t, k in work)) for f in ("flop", "moved_byte"))
    n, fixed = int(table.settings.n[row]), table.config[row] >= 0
    size = float((configs.g[:, None] * (x + d)).sum() / max((x + d).sum(), 1e-300)) or 1.0
    peak = pool.device.peak(pool.precision.compute) or np.inf
    ideal = [flop / (size * peak), moved / (size * pool.device.memory_bandwidth_byte_s), parts[2]]
    reached = float(u_ho([[i] for i in ideal], [[v] for v in parts[:3]], [total])[0])
    busy = e.pool_columns["busy"][:1, p]
    eta = float(idle_over_busy(busy)[0])
    return {
        "n": n,
        "instances": float(n / table.settings.g[row]) if fixed else float(n / configs.g.min()),
        "role": ROLE_NAMES[int(table.settings.role[row])],
        "binding": TERMS[int(binding_term(*parts))],
        "u_ho": reached,
        "eta": eta,
        "u": reached / (1.0 + eta),
        "g_flop_s": flop,
        "busy_frac": float(busy[0]),
        "time_frac": {
            name: float(v) / total if total else 0.0
            for name, v in zip(("compute", "memory", "communication", "fixed"), parts, strict=True)
        },
        "memory": _memory(system, p, x, d),
        "phases": _phases(configs, x, d, float(weight @ e.rate[:, 0])),
        "alone_tok_s": float(system.expected_tok_s(system.alone_rate(p, rows[p, :1]))[0]),
        "kv_out_byte_s": float((x * system.class_kv_byte).sum()),
        "cost_usd_per_h": float(table.bill.usd_per_h(rows[p, :1], busy)[0]),
        "power_w": float(table.bill.provisioned_w[row]),
        "power_mean_w": float(table.bill.power_mean_w(rows[p, :1], busy)[0]),
    }


def _passes(system: RobustSystem, configs: Configs) -> Floats:
    """Decode passes per request over the batch (J, C)."""
    return np.asarray(system.mix.steps / np.maximum(configs.decode.batch, 1.0))


def _sum(volume: Floats, value: Floats, passes: Floats) -> Any:
    """Value of all passes together; what is not done counts nothing, even where it would take infinitely long."""
    return np.where(volume > 0, volume * np.where(np.isfinite(value), value, 0.0) * passes, 0.0).sum()


def _memory(system: RobustSystem, p: int, x: Floats, d: Floats) -> dict[str, Any]:
    """One device's memory in the configuration that is used most."""
    pool, configs = system.pools[p], system.configs[p]
    j = int((x + d).sum(axis=1).argmax())
    used = [(configs.prefill, x), (configs.decode, d)]
    margins = [t.margin_byte[j][v[j] > 0].min() for t, v in used if (v[j] > 0).any()]
    g = float(configs.g[j])
    return pool.device_memory(g, float(min(margins)) if margins else pool.usable - pool.weights_byte / g)


def _phases(configs: Configs, x: Floats, d: Floats, rate: float) -> dict[str, Any]:
    """Per phase, what runs here in the configuration used most: share of requests, batch and pass time per class."""
    result: dict[str, Any] = {}
    for phase, volume, table, seconds in (
        ("prefill", x, configs.prefill, configs.prefill_s),
        ("decode", d, configs.decode, configs.decode_s),
    ):
        if volume.sum() <= 0:
            continue
        j = int(volume.sum(axis=1).argmax())
        result[phase] = {"request_frac": float(volume.sum()) / rate, **_at(table, j), "request_s": seconds[j].tolist()}
    return result


def _at(table: PhaseTable, j: int) -> dict[str, list[float]]:
    whole = {f: np.broadcast_to(getattr(table.time, f), table.fits.shape)[j].tolist() for f in ("latency_s", *PARTS)}
    pass_s = np.broadcast_to(table.time.occupancy_s, table.fits.shape)[j].tolist()
    return {"batch": table.batch[j].tolist(), "pass_s": pass_s, **whole}


def _system(system: RobustSystem, link: Ints, e: RobustEvaluation, pools: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The whole, over all scenarios."""
    byte_s, bought = float(system.links.byte_s[link[0]]), bool(e.pairs[0])
    option = one_link_for_all(len(system.links.byte_s), len(system.tables)).option[link]
    need = float(e.link_use[:, 0].max() * byte_s) if e.link_use[:, 0].max() > 0 else 0.0
    flop_s = sum(p["g_flop_s"] for p in pools.values())
    return {
        "sum_g_flop_s": flop_s,
        "link_bound_flop_s": flop_s * byte_s / need if need else None,
        "f_flop_s": flop_s,
        "requests_s": float(e.columns["requests_s"][0]),
        "link_byte_s": byte_s if bought else None,
        "link_need_byte_s": need,
        "links_bought": float(e.pairs[0]),
        "link_cost_usd_per_h": float(e.columns["link_cost_usd_per_h"][0]),
        "link_power_w": float(links_bill(system.links, option, e.bought)[1][0]),
        "aggregate_tok_s": float(e.columns["aggregate_tok_s"][0]),
        "best_single_tok_s": float(e.columns["best_single_tok_s"][0]),
    }


def _scenarios(
    system: RobustSystem,
    rows: Ints,
    link: int,
    e: RobustEvaluation,
    volumes: Sequence[Sequence[tuple[Floats, Floats]]],
    names: Sequence[str],
) -> list[dict[str, Any]]:
    """What each scenario is served, by which pool, and how devices are divided where that changes."""
    known, byte_s = system.scenarios, float(system.links.byte_s[link])
    demand, found = known.demand_requests_s, []
    for w, name in enumerate(known.names):
        rate = float(e.rate[w, 0])
        one: dict[str, Any] = {
            "name": name,
            "weight": float(known.weight[w]),
            "requests_s": rate,
            "demand_requests_s": None if demand is None else float(demand[w]),
            "tok_s": rate * float(system.output_tok[w]),
            "link_use_frac": float(e.link_use[w, 0]),
        }
        for side, phase in enumerate(("prefill", "decode")):
            shares = [float(v[side].sum()) / rate if rate else 0.0 for v in volumes[w]]
            one[f"{phase}_frac"] = dict(zip(names, shares, strict=True))
        if system.adaptation == ADAPTIVE:
            instances = division(system, w, rows, byte_s).instances
            one["instances"] = {
                name: _by_config(c, own) for name, c, own in zip(names, system.configs, instances, strict=True)
            }
        found.append(one)
    return found


def _by_config(configs: Configs, instances: Floats) -> list[dict[str, int]]:
    """Instances of each configuration in use."""
    return [
        {
            "instances": int(instances[j]),
            "instance_size": int(configs.g[j]),
            "prefill_batch": int(configs.prefill_batch[j]),
            "max_decode_batch": int(configs.max_decode_batch[j]),
        }
        for j in np.flatnonzero(instances > 0)
    ]
