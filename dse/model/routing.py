"""How requests flow between pools, and the rate that follows (docs/model.md, section 6, routing).

Arrays are per pool (a sequence of length P) over designs that broadcast together; rates in requests/s.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import linprog

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

LP_TOLERANCE = 1e-10


def split_rate(
    prefill_rate: Sequence[Floats],
    decode_rate: Sequence[Floats],
    link_byte_s: ArrayLike,
    request_kv_byte: float,
    prefill_rate_ttft: Sequence[Floats] | None = None,
) -> Floats:
    """Requests/s of the pools that prefill or decode, sharing in proportion to capacity.

    r = min(sum R, sum D); through the link of pool p to pool p' goes the share (R_p/sum R)(D_p'/sum D)
    of all requests, so r <= S/(kv share), S one number or one a pair (P, P, ...); and where a TTFT
    limit holds pool p to R'_p, r <= R'_p sum R/R_p.

    One A100 pool prefills 30/s, one wafer pool decodes 20/s, 0.5 GB a request over 8 GB/s:

    >>> float(split_rate([np.array(30.0), np.array(0.0)], [np.array(0.0), np.array(20.0)], 8e9, 0.5e9))
    16.0
    """
    total_prefill = sum(prefill_rate[1:], prefill_rate[0])
    total_decode = sum(decode_rate[1:], decode_rate[0])
    rate = np.minimum(total_prefill, total_decode)
    byte_s = by_pair(link_byte_s, len(prefill_rate))
    with np.errstate(divide="ignore", invalid="ignore"):
        for p, r in enumerate(prefill_rate):
            for q, d in enumerate(decode_rate):
                if p == q:
                    continue
                crossing = r * d * request_kv_byte
                cap = byte_s[p, q] * (total_prefill * total_decode) / crossing
                rate = np.where(crossing > 0, np.minimum(rate, cap), rate)
        if prefill_rate_ttft is not None:
            for r, held in zip(prefill_rate, prefill_rate_ttft, strict=True):
                rate = np.where(r > 0, np.minimum(rate, held * total_prefill / r), rate)
    return rate


def stealing_flows_lp(
    instances: Floats,
    prefill_s: Floats,
    decode_s: Floats,
    share: Floats,
    kv_byte: Floats,
    link_byte_s: float | Floats,
    allowed: NDArray[np.bool_] | None = None,
) -> tuple[float, Floats]:
    """Best rate and flows of one design with any number of pools, link limits included.

    Minimise T subject to sum_{p,p'} z[p,p',c] = q_c; per pool sum_c (prefill_s x + decode_s w) <=
    instances T; per ordered pair of different pools sum_c kv_c z <= S T. The rate is 1/T.

    Shapes: instances (P,), prefill_s and decode_s (P, C), share and kv_byte (C,), S one number or (P, P),
    allowed routes (P, P, C), all if not given. Returns the rate and z (P, P, C); rate 0 where some class can run
    nowhere.

    >>> r, z = stealing_flows_lp(np.array([1.0, 1.0]), np.array([[1.0], [4.0]]), np.array([[4.0], [1.0]]),
    ...     np.array([1.0]), np.array([1e9]), 1e12)
    >>> round(r, 9), z[0, 1, 0].round(9)
    (1.0, np.float64(1.0))
    """
    n_pools, n_classes = prefill_s.shape
    flow_s = prefill_s[:, None, :] + decode_s[None, :, :]
    possible = np.isfinite(flow_s) & (instances[:, None, None] > 0) & (instances[None, :, None] > 0)
    if allowed is not None:
        possible &= allowed
    p, q, c = np.nonzero(possible)
    empty = np.zeros((n_pools, n_pools, n_classes))
    if len(set(c.tolist())) < n_classes:
        return 0.0, empty
    unit_s = float((share[c] * flow_s[p, q, c]).sum() / instances.sum())
    link_byte = by_pair(link_byte_s, n_pools) * unit_s
    rows = _capacity_rows(p, q, c, instances * unit_s, prefill_s, decode_s, kv_byte, link_byte)
    served = np.zeros((n_classes, len(p) + 1))
    served[c, np.arange(len(p))] = 1.0
    vertex = _least_time(rows, served, share)
    best, best_rate = empty, 0.0
    for x in (vertex, _polished(vertex, rows, served, share)):
        flows = np.zeros_like(empty)
        flows[p, q, c] = np.maximum(x[:-1], 0.0)
        flows *= share / flows.sum(axis=(0, 1))
        rate = exact_rate(instances, prefill_s, decode_s, kv_byte, link_byte_s, flows)
        if rate > best_rate:
            best, best_rate = flows, rate
    return best_rate, best


def _capacity_rows(
    p: Ints,
    q: Ints,
    c: Ints,
    instance_s: Floats,
    prefill_s: Floats,
    decode_s: Floats,
    kv_byte: Floats,
    link_byte: Floats,
) -> Floats:
    """Rows of use - capacity T <= 0, one a pool and one an ordered pair of pools, each scaled to 1."""
    n_pools, n_flows = len(instance_s), len(p)
    busy = np.zeros((n_pools, n_flows + 1))
    np.add.at(busy, (p, np.arange(n_flows)), prefill_s[p, c])
    np.add.at(busy, (q, np.arange(n_flows)), decode_s[q, c])
    busy[:, -1] = -instance_s
    pairs = [(i, j) for i in range(n_pools) for j in range(n_pools) if i != j]
    crossing = np.zeros((len(pairs), n_flows + 1))
    for row, (i, j) in enumerate(pairs):
        crossing[row, :-1] = np.where((p == i) & (q == j), kv_byte[c], 0.0)
        crossing[row, -1] = -link_byte[i, j]
    rows = np.vstack([busy, crossing])
    return np.asarray(rows / np.maximum(np.abs(rows).max(axis=1, keepdims=True), 1e-300))


def _least_time(rows: Floats, served: Floats, share: Floats) -> Floats:
    """The vertex that minimises T, the last variable."""
    objective = np.zeros(rows.shape[1])
    objective[-1] = 1.0
    result = linprog(
        objective,
        A_ub=rows,
        b_ub=np.zeros(len(rows)),
        A_eq=served,
        b_eq=share,
        method="highs-ds",
        options={"primal_feasibility_tolerance": LP_TOLERANCE, "dual_feasibility_tolerance": LP_TOLERANCE},
    )
    if result.status != 0:
        raise ArithmeticError(f"the routing LP ended with: {result.message}")
    return np.asarray(result.x, dtype=np.float64)


def _polished(vertex: Floats, rows: Floats, served: Floats, share: Floats) -> Floats:
    """The vertex that the solver found, solved for again from its tight rows, free of the solver's tolerance."""
    used = vertex > 1e-9
    tight = np.abs(rows @ vertex) < 1e-7
    system = np.vstack([served[:, used], rows[tight][:, used]])
    target = np.concatenate([share, np.zeros(int(tight.sum()))])
    polished = np.zeros_like(vertex)
    polished[used] = np.linalg.lstsq(system, target, rcond=None)[0]
    return polished


def exact_rate(
    instances: Floats, prefill_s: Floats, decode_s: Floats, kv_byte: Floats, link_byte_s: float | Floats, flows: Floats
) -> float:
    """Largest rate that given flows per request (P, P, C) allow: the tightest pool or link."""
    load_s = np.zeros(len(instances))
    for p in range(len(instances)):
        for used, seconds in ((flows[p].sum(axis=0), prefill_s[p]), (flows[:, p].sum(axis=0), decode_s[p])):
            load_s[p] += float((used[used > 0] * seconds[used > 0]).sum())
    busy = load_s > 0
    rate = float((instances[busy] / load_s[busy]).min(initial=np.inf))
    crossing = (flows * kv_byte).sum(axis=2)
    np.fill_diagonal(crossing, 0.0)
    through = crossing > 0
    return min(rate, float((by_pair(link_byte_s, len(instances))[through] / crossing[through]).min(initial=np.inf)))


def by_pair(link_byte_s: ArrayLike, n_pools: int) -> Floats:
    """Bandwidth of every ordered pair of pools (P, P, ...): as given, or one for all."""
    given = np.asarray(link_byte_s, dtype=np.float64)
    return np.broadcast_to(given, (n_pools, n_pools, *given.shape[2:]))
