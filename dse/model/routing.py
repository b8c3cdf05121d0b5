"""How requests flow between pools, and the rate that follows (MODEL section 6, routing).

Arrays are per pool (a sequence of length P) over designs that broadcast together; rates in requests/s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

LP_TOLERANCE = 1e-10


def split_rate(
    prefill_rate: Sequence[Floats],
    decode_rate: Sequence[Floats],
    link_byte_s: float | Floats,
    request_kv_byte: float,
    prefill_rate_ttft: Sequence[Floats] | None = None,
) -> Floats:
    """Requests/s of the pools that prefill or decode, sharing in proportion to capacity.

    r = min(sum R, sum D); through the link of pool p to pool p' goes the share (R_p/sum R)(D_p'/sum D)
    of all requests, so r <= S/(kv share); and where a TTFT limit holds pool p to R'_p, r <= R'_p sum R/R_p.

    One A100 pool prefills 30/s, one wafer pool decodes 20/s, 0.5 GB a request over 8 GB/s:

    >>> float(split_rate([np.array(30.0), np.array(0.0)], [np.array(0.0), np.array(20.0)], 8e9, 0.5e9))
    16.0
    """
    total_prefill = _sum(prefill_rate)
    total_decode = _sum(decode_rate)
    rate = np.minimum(total_prefill, total_decode)
    with np.errstate(divide="ignore", invalid="ignore"):
        for p, r in enumerate(prefill_rate):
            for q, d in enumerate(decode_rate):
                if p == q:
                    continue
                crossing = r * d * request_kv_byte
                cap = link_byte_s * (total_prefill * total_decode) / crossing
                rate = np.where(crossing > 0, np.minimum(rate, cap), rate)
        if prefill_rate_ttft is not None:
            for r, held in zip(prefill_rate, prefill_rate_ttft, strict=True):
                rate = np.where(r > 0, np.minimum(rate, held * total_prefill / r), rate)
    return rate


def _sum(parts: Sequence[Floats]) -> Floats:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


@dataclass(frozen=True, slots=True)
class StealingLines:
    """Dual bounds of work stealing between two pools: r <= alpha n_A + beta n_B for every line (J, M)."""

    alpha: Floats
    beta: Floats


def stealing_lines(work_a_s: Floats, work_b_s: Floats) -> StealingLines:
    """The lines that bound the rate of two pools, for M pairs of settings and J pieces of work (M, J).

    A piece of work (one phase of one class, seconds per request of the mix) may be divided between A and
    B. By linear-programming duality the largest rate is the smallest over prices (mu_A, mu_B) of
    (mu_A n_A + mu_B n_B) / sum_j min(mu_A a_j, mu_B b_j), and the minimum lies at a price where some
    piece is indifferent: mu_A a_k = mu_B b_k, its speed ratio. Infinite work cannot run there.

    Two pieces, A fast at the first, B at the second; one instance each gives one request a second:

    >>> lines = stealing_lines(np.array([[1.0, 4.0]]), np.array([[4.0, 1.0]]))
    >>> float((lines.alpha * 1 + lines.beta * 1).min())
    1.0
    """
    a, b = work_a_s, work_b_s
    with np.errstate(divide="ignore", invalid="ignore"):
        price_a = np.where(np.isinf(b), 1.0, b / (a + b))
        price_b = np.where(np.isinf(a), 1.0, a / (a + b))
    price_a = np.where(np.isinf(a), 0.0, np.nan_to_num(price_a, nan=0.5))
    price_b = np.where(np.isinf(b), 0.0, np.nan_to_num(price_b, nan=0.5))
    impossible = np.isinf(a) & np.isinf(b)
    alpha, beta = np.empty(a.T.shape), np.empty(a.T.shape)
    for k in range(a.shape[1]):
        mu_a, mu_b = price_a[:, k : k + 1], price_b[:, k : k + 1]
        on_a = np.where(np.isinf(a), np.inf, mu_a * np.where(np.isinf(a), 0.0, a))
        on_b = np.where(np.isinf(b), np.inf, mu_b * np.where(np.isinf(b), 0.0, b))
        cheapest = np.minimum(on_a, on_b).sum(axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            alpha[k] = np.where(mu_a[:, 0] > 0, mu_a[:, 0] / cheapest, 0.0)
            beta[k] = np.where(mu_b[:, 0] > 0, mu_b[:, 0] / cheapest, 0.0)
    never = impossible.any(axis=1)
    alpha[:, never], beta[:, never] = 0.0, 0.0
    return StealingLines(alpha, beta)


def stealing_shares(work_a_s: Floats, work_b_s: Floats, budget_a: Floats) -> Floats:
    """Share of each piece of work that pool A takes when it has `budget_a` seconds per request (N, J).

    Greedy by speed ratio a/b, which is optimal while the link is slack: A fills up with the work
    it is comparatively best at.

    >>> stealing_shares(np.array([[1.0, 4.0]]), np.array([[4.0, 1.0]]), np.array([3.0])).tolist()
    [[1.0, 0.5]]
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(np.isinf(work_b_s), 0.0, work_a_s / work_b_s)
    ratio = np.where(np.isinf(work_a_s), np.inf, np.nan_to_num(ratio, nan=0.0, posinf=np.inf))
    order = np.argsort(ratio, axis=1, kind="stable")
    a = np.take_along_axis(work_a_s, order, axis=1)
    finite = np.where(np.isinf(a), 0.0, a)
    before = np.cumsum(finite, axis=1) - finite
    left = budget_a[:, None] - before
    with np.errstate(divide="ignore", invalid="ignore"):
        taken = np.where(finite > 0, np.clip(left / finite, 0.0, 1.0), 1.0)
    taken = np.where(np.isinf(a), 0.0, taken)
    shares = np.empty_like(taken)
    np.put_along_axis(shares, order, taken, axis=1)
    return shares


def two_pool_flows(share: Floats, prefill_on_a: Floats, decode_on_a: Floats) -> Floats:
    """Flows z[p, p', c] of two pools from A's share of each class's prefill and decode: (N, 2, 2, C).

    As much as possible stays where it was prefilled.

    >>> two_pool_flows(np.array([1.0]), np.array([[0.7]]), np.array([[0.2]]))[0, :, :, 0].round(9).tolist()
    [[0.2, 0.5], [0.0, 0.3]]
    """
    flows = np.zeros((len(prefill_on_a), 2, 2, prefill_on_a.shape[1]))
    flows[:, 0, 0] = np.minimum(prefill_on_a, decode_on_a)
    flows[:, 0, 1] = np.maximum(prefill_on_a - decode_on_a, 0.0)
    flows[:, 1, 0] = np.maximum(decode_on_a - prefill_on_a, 0.0)
    flows[:, 1, 1] = 1.0 - np.maximum(prefill_on_a, decode_on_a)
    return flows * share


def stealing_flows_lp(
    instances: Floats,
    prefill_s: Floats,
    decode_s: Floats,
    share: Floats,
    kv_byte: Floats,
    link_byte_s: float,
    allowed: NDArray[np.bool_] | None = None,
) -> tuple[float, Floats]:
    """Best rate and flows of one design with any number of pools, link limits included.

    Minimise T subject to sum_{p,p'} z[p,p',c] = q_c; per pool sum_c (prefill_s x + decode_s w) <=
    instances T; per ordered pair of different pools sum_c kv_c z <= S T. The rate is 1/T.

    Shapes: instances (P,), prefill_s and decode_s (P, C), share and kv_byte (C,), allowed routes
    (P, P, C), all if not given. Returns the rate and z (P, P, C); rate 0 where some class can run nowhere.

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
    scale_s = float((share[c] * flow_s[p, q, c]).sum() / instances.sum())
    n_flows = len(p)
    busy = np.zeros((n_pools, n_flows + 1))
    np.add.at(busy, (p, np.arange(n_flows)), prefill_s[p, c])
    np.add.at(busy, (q, np.arange(n_flows)), decode_s[q, c])
    busy[:, -1] = -instances * scale_s
    pairs = [(i, j) for i in range(n_pools) for j in range(n_pools) if i != j]
    crossing = np.zeros((len(pairs), n_flows + 1))
    for row, (i, j) in enumerate(pairs):
        crossing[row, :-1] = np.where((p == i) & (q == j), kv_byte[c], 0.0)
        crossing[row, -1] = -link_byte_s * scale_s
    rows = np.vstack(
        [
            busy / np.maximum(np.abs(busy).max(axis=1, keepdims=True), 1e-300),
            crossing / np.maximum(np.abs(crossing).max(axis=1, keepdims=True), 1e-300),
        ]
    )
    served = np.zeros((n_classes, n_flows + 1))
    served[c, np.arange(n_flows)] = 1.0
    objective = np.zeros(n_flows + 1)
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
    vertex = np.asarray(result.x, dtype=np.float64)
    best, best_rate = empty, 0.0
    for x in (vertex, _polished(vertex, rows, served, share)):
        flows = np.zeros_like(empty)
        flows[p, q, c] = np.maximum(x[:-1], 0.0)
        flows *= share / flows.sum(axis=(0, 1))
        rate = exact_rate(instances, prefill_s, decode_s, kv_byte, link_byte_s, flows)
        if rate > best_rate:
            best, best_rate = flows, rate
    return best_rate, best


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
    instances: Floats, prefill_s: Floats, decode_s: Floats, kv_byte: Floats, link_byte_s: float, flows: Floats
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
    if (crossing > 0).any():
        rate = min(rate, link_byte_s / float(crossing.max()))
    return rate
