"""Work stealing between two pools in closed form: the dual of a small linear program, solved once per pair of settings.

Every class of requests takes one of four routes: prefill and decode on A, prefill on A and decode on B, the other
way round, both on B. With prices x = (x_A, x_B, x_S) >= 0 on seconds of A, seconds of B and bytes through the link,
every plan satisfies r h(x) <= x_A n_A + x_B n_B + x_S S, where h(x) = sum_c q_c min over routes of its priced use; and
by linear-programming duality the largest rate is the smallest of these bounds. h is concave and piecewise
linear, so the smallest is at a ray where the cheapest routes change: where two classes (or one class and an edge of
the price cone) are indifferent between two routes. Those rays do not depend on how many instances
there are, so they are found once and each design costs one pass over them.

One direction of the link is priced at a time. Where both directions bind, the bound is not attained and the plan
that is read off it fails its check; the caller then solves the program itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

ROUTES = ((0, 0), (0, 1), (1, 0), (1, 1))
"""Pool that prefills, pool that decodes; 0 is A."""
TIE = 1e-9
NEARLY_PARALLEL = 1e-12
CHECK = 1e-9
BLOCK_ELEMENTS = 200_000


@dataclass(frozen=True, slots=True)
class StealingPlans:
    """Bounds r <= a n_A + b n_B + s S of one pair of settings (V,), and the plan at each.

    A plan is a route per class (V, C), and up to two moves: a class that may shift from one route to
    another, (V, 2) each, class -1 where there is none.
    """

    a: Floats
    b: Floats
    s: Floats
    route: Ints
    move_class: Ints
    move_from: Ints
    move_to: Ints


def stealing_plans(
    prefill_s: tuple[Floats, Floats], decode_s: tuple[Floats, Floats], share: Floats, kv_byte: Floats
) -> StealingPlans:
    """Every bound that can be the smallest, for one pair of settings; times and bytes per request, (C,) each.

    Infinite time marks a phase that cannot run on that pool.

    >>> one = np.array([1.0])
    >>> p = stealing_plans((one, 4 * one), (4 * one, one), one, one)
    >>> float((p.a * 1 + p.b * 1 + p.s * 1e9).min()), float((p.a * 1 + p.b * 1 + p.s * 0.5).min())
    (1.0, 0.7)
    """
    times = np.stack([_route_times(prefill_s, decode_s, pool) for pool in (0, 1)], axis=2)
    possible: Bools = np.asarray(np.isfinite(times).all(axis=2))
    finite = np.where(possible[:, :, None], times, 0.0)
    unit_s = float(finite.mean()) or 1.0
    unit_byte = float(kv_byte.mean()) or 1.0
    parts = [_directed(finite / unit_s, possible, share, kv_byte / unit_byte, forward) for forward in (True, False)]
    price, *plan = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    return StealingPlans(price[:, 0] / unit_s, price[:, 1] / unit_s, price[:, 2] / unit_byte, *plan)


def _route_times(prefill_s: tuple[Floats, Floats], decode_s: tuple[Floats, Floats], pool: int) -> Floats:
    """Seconds of one pool per request on each route (C, 4)."""
    columns = []
    for prefills, decodes in ROUTES:
        own_prefill = prefill_s[pool] if prefills == pool else np.zeros_like(prefill_s[pool])
        own_decode = decode_s[pool] if decodes == pool else np.zeros_like(decode_s[pool])
        columns.append(own_prefill + own_decode)
    return np.stack(columns, axis=1)


def _directed(
    times: Floats, possible: Bools, share: Floats, kv: Floats, forward: bool
) -> tuple[Floats, Ints, Ints, Ints, Ints]:
    """Prices, routes and moves with one direction of the link priced."""
    n_classes = len(share)
    moved = np.zeros((n_classes, 4, 1))
    moved[:, 1 if forward else 2, 0] = kv
    use = np.concatenate([times, moved], axis=2)
    tie = [
        (c, r, t)
        for c in range(n_classes)
        for r, t in combinations(range(4), 2)
        if possible[c, r] and possible[c, t] and np.abs(use[c, r] - use[c, t]).max() > 0
    ]
    normals = np.array([use[c, r] - use[c, t] for c, r, t in tie] + list(np.eye(3)))
    label = np.array(tie + [(-1, 0, 0)] * 3, dtype=np.int64)
    normals /= np.linalg.norm(normals, axis=1, keepdims=True)
    first, second = np.triu_indices(len(normals), 1)
    ray = np.cross(normals[first], normals[second])
    length = np.linalg.norm(ray, axis=1)
    keep = length > NEARLY_PARALLEL
    first, second, ray = first[keep], second[keep], ray[keep] / length[keep, None]
    ray = np.where(np.abs(ray) < NEARLY_PARALLEL, 0.0, ray)
    ray *= np.where(ray.sum(axis=1) < 0, -1.0, 1.0)[:, None]
    keep = (ray >= 0).all(axis=1)
    first, second, ray = first[keep], second[keep], ray[keep]
    cost = np.where(possible, np.einsum("vk,crk->vcr", ray, use), np.inf)
    cheapest = cost.min(axis=2)
    worth = (share * cheapest).sum(axis=1)
    keep = worth > NEARLY_PARALLEL
    for side in (first, second):
        c, r, _ = label[side].T
        at = (np.arange(len(side)), np.maximum(c, 0))
        keep &= (c < 0) | (cost[(*at, r)] <= cheapest[at] * (1 + TIE))
    label_pair = np.stack([label[first[keep]], label[second[keep]]], axis=1)
    route, moves = _plan(cost[keep].argmin(axis=2), label_pair)
    return ray[keep] / worth[keep, None], route, moves[:, :, 0], moves[:, :, 1], moves[:, :, 2]


def _plan(route: Ints, ties: Ints) -> tuple[Ints, Ints]:
    """Routes, and moves (V, 2, 3) of class, from, to: a tied class sits on one route and may move to the other."""
    moves = ties.copy()
    for v in range(len(route)):
        (c1, r1, t1), (c2, r2, t2) = ties[v]
        if c1 >= 0 and c1 == c2:
            base = next((r for r in (r1, t1) if r in (r2, t2)), r1)
            moves[v] = [(c1, base, t1 if base == r1 else r1), (c1, base, t2 if base == r2 else r2)]
            route[v, c1] = base
        else:
            for c, r in ((c1, r1), (c2, r2)):
                if c >= 0:
                    route[v, c] = r
    return route, moves


def stealing_rate(plans: StealingPlans, n_a: Floats, n_b: Floats, link_byte_s: float) -> Floats:
    """Largest rate of two pools, an upper bound where both directions of the link bind; n_a, n_b broadcast."""
    shape = np.broadcast_shapes(n_a.shape, n_b.shape)
    size = int(np.prod(shape))
    through = plans.s * link_byte_s if np.isfinite(link_byte_s) else np.where(plans.s > 0, np.inf, 0.0)
    if size * len(plans.a) <= BLOCK_ELEMENTS:
        lift = (slice(None),) + (None,) * len(shape)
        return np.asarray((plans.a[lift] * n_a + plans.b[lift] * n_b + through[lift]).min(axis=0, initial=np.inf))
    rate = np.full(shape, np.inf)
    for a, b, s in zip(plans.a, plans.b, through, strict=True):
        np.minimum(rate, (a * n_a + s) + b * n_b, out=rate)
    return rate


def stealing_flows(
    plans: StealingPlans,
    seconds: tuple[tuple[Floats, Floats], tuple[Floats, Floats]],
    share: Floats,
    kv_byte: Floats,
    n_a: Floats,
    n_b: Floats,
    link_byte_s: Floats,
) -> tuple[Floats, Floats, Bools]:
    """Rate (N,), flows z[p, p', c] (N, 2, 2, C), and whether the plan passes its check (N,).

    At the smallest bound the moved shares follow from what is tight: the priced pools and link work at
    capacity. `seconds` is (prefill, decode), each (A, B), of (C,).
    """
    bounds = plans.a[:, None] * n_a + plans.b[:, None] * n_b + plans.s[:, None] * link_byte_s
    v = bounds.argmin(axis=0)
    rate = bounds[v, np.arange(len(v))]
    times = np.stack([_route_times(*seconds, pool) for pool in (0, 1)], axis=2)
    moved = np.zeros((len(share), 4, 2))
    moved[:, 1, 0], moved[:, 2, 1] = kv_byte, kv_byte
    use = np.concatenate([times, moved], axis=2)  # (C, 4, A s, B s, forward byte, backward byte)
    use = np.nan_to_num(use, nan=0.0, posinf=0.0)
    capacity = np.stack([n_a, n_b, link_byte_s, link_byte_s], axis=1)
    classes = np.arange(len(share))
    base = (share[:, None] * use[classes, plans.route[v]]).sum(axis=1)
    c, r, t = plans.move_class[v], plans.move_from[v], plans.move_to[v]
    delta = np.where((c >= 0)[:, :, None], share[c][:, :, None] * (use[c, t] - use[c, r]), 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        need = capacity / rate[:, None]
        tight = np.stack([plans.a[v] > 0, plans.b[v] > 0, plans.s[v] > 0, plans.s[v] > 0], axis=1)
        moving: Bools = np.asarray(np.abs(delta[:, :, 2:]).max(axis=1) > 0)
        tight[:, 2:] &= moving
        weight = np.where(tight, 1.0 / np.maximum(need, 1e-300), 0.0)
        gap = np.where(tight, (need - base) * weight, 0.0)
        part = _two_unknowns(delta * weight[:, None, :], gap)
    known: Bools = np.asarray(np.isfinite(part).all(axis=1))
    part = np.where(known[:, None], part, 0.0)
    inside = known & (part >= -CHECK).all(axis=1) & (part <= 1 + CHECK).all(axis=1)
    together = (c[:, 0] != c[:, 1]) | (c[:, 0] < 0) | (part.sum(axis=1) <= 1 + CHECK)
    part = np.clip(part, 0.0, 1.0)
    spent = base + (part[:, :, None] * delta).sum(axis=1)
    fits = (rate[:, None] * spent <= capacity * (1 + CHECK)).all(axis=1)
    flows = _flows(plans.route[v], share, c, r, t, part)
    return rate, flows, inside & together & fits & (rate > 0)


def _two_unknowns(delta: Floats, gap: Floats) -> Floats:
    """Least-squares shares of two moves (N, 2) that close the gaps (N, 4); 0 for a move that changes nothing."""
    normal = np.einsum("nik,njk->nij", delta, delta)
    right = np.einsum("nik,nk->ni", delta, gap)
    idle = np.diagonal(normal, axis1=1, axis2=2) <= 0
    normal[:, [0, 1], [0, 1]] += np.where(idle, 1.0, 0.0)
    det = normal[:, 0, 0] * normal[:, 1, 1] - normal[:, 0, 1] ** 2
    first = (right[:, 0] * normal[:, 1, 1] - right[:, 1] * normal[:, 0, 1]) / det
    second = (right[:, 1] * normal[:, 0, 0] - right[:, 0] * normal[:, 0, 1]) / det
    return np.stack([first, second], axis=1)


def _flows(route: Ints, share: Floats, c: Ints, r: Ints, t: Ints, part: Floats) -> Floats:
    """Flows (N, 2, 2, C) of routes and moves."""
    n, n_classes = route.shape
    z = np.zeros((n, 4, n_classes))
    rows = np.arange(n)
    z[rows[:, None], route, np.arange(n_classes)] = share
    for k in range(2):
        moving = c[:, k] >= 0
        at, cls = rows[moving], c[moving, k]
        amount = part[moving, k] * share[cls]
        z[at, r[moving, k], cls] -= amount
        z[at, t[moving, k], cls] += amount
    return np.maximum(z, 0.0).reshape(n, 2, 2, n_classes)
