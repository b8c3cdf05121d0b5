"""docs/training.md for both paradigms once more, in scalar Python: what the program is held to.

Written from the page, not from the program: loops and `math` only, no formula of `dse.model` is called. Devices are
tables of device files; cost and power of a pool are those of `plain_model`. `dp_score` and `pp_score` give the columns
of one design. Readings of the page where it is silent are marked "reading:".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations, pairwise
from typing import Any

import plain_model as plain

from dse.workload import Transformer

INF = math.inf
ACT_BYTE = 2.0
"""reading: activations, weights and gradients travel in 2 byte."""
FEASIBLE, BROKEN, NO_ROOM = "feasible", "structurally infeasible", "memory violation"
FORWARDS = {"none": 3, "selective": 3, "full": 4}
ALLREDUCES = {"none": 4, "selective": 4, "full": 6}


# -- section 3 --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Work:
    """One sequence through a model, under one recompute mode."""

    sequence: float
    recompute: str
    layers: int
    hidden: int
    heads: int
    score: float
    """flop of the attention scores, all layers, one forward"""
    forward: float
    """F(s), a logit per token"""
    head: float
    """flop of the head, one forward"""
    feed_forward: float
    """E: feed-forward numbers kept per token, mean over layers"""
    total: float
    layer_parameters: float
    embedding: float
    head_parameters: float

    @property
    def layer(self) -> float:
        """flop of one layer, one forward: the mean over layers"""
        return (self.forward - self.head) / self.layers

    @property
    def layer_score(self) -> float:
        return self.score / self.layers

    @property
    def train_scores(self) -> float:
        """flop of the attention scores of one sequence in a step"""
        return (FORWARDS[self.recompute] + (1 if self.recompute == "selective" else 0)) * self.score

    @property
    def train(self) -> float:
        """flop of one sequence in a step; selective recompute adds its attention scores once more."""
        again = self.score if self.recompute == "selective" else 0.0
        return FORWARDS[self.recompute] * self.forward + again

    @property
    def boundary_byte(self) -> float:
        """What one sequence carries from layer to layer"""
        return self.sequence * self.hidden * ACT_BYTE


@lru_cache(maxsize=256)
def work_of(m: Transformer, sequence: float, recompute: str) -> Work:
    shape = plain.shape_of(m)
    score = shape.prefill_score * plain.squared_tokens(shape, sequence)
    head = 2 * shape.head * sequence
    kept = 0.0
    for layer in range(m.layers):
        if m.experts and layer >= m.n_dense_layers:
            kept += 3 * m.expert_feed_forward * (m.experts_per_token + m.shared_experts)
        else:
            kept += (3 if m.gated else 2) * m.feed_forward
    outside = shape.head * (1 if m.tied_embedding else 2) + m.hidden
    return Work(
        sequence=sequence, recompute=recompute, layers=m.layers, hidden=m.hidden, heads=m.heads, score=score,
        forward=2 * shape.linear * sequence + score + head, head=head, feed_forward=kept / m.layers, total=shape.total,
        layer_parameters=(shape.total - outside) / m.layers, embedding=shape.head,
        head_parameters=shape.head + m.hidden,
    )  # fmt: skip


# -- the design -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pool:
    """One pool of a design."""

    device: plain.Device
    n: int
    g: int = 1
    micro: int = 1
    zero: int = 1
    stages: int = 1
    reserve: float = 0.1
    owned: int = 0
    mtbf_s: float = INF

    @property
    def streams(self) -> bool:
        return self.device.get("streaming_byte", 0.0) > self.device["memory_byte"]

    @property
    def replicas(self) -> int:
        return self.n // (self.g * self.stages)

    @property
    def all_reduces(self) -> bool:
        """Whether a layer is divided over the instance, so that every pass needs its all-reduces."""
        return self.device["arrangement"] == "tensor" and not self.streams


@dataclass(frozen=True)
class Case:
    """Everything about a design but its pools."""

    model: Transformer
    sequence: float
    batch: int
    recompute: str = "selective"
    dtype: str = "bf16"
    overlap: float = 0.0
    schedule: str = "1f1b"
    chunks: int = 1
    offload: int = 0
    collect: int = 1
    layers: tuple[int, ...] = ()
    """Layers of each stage where the design fixes them"""
    order: tuple[int, ...] = ()
    """Pools that are bought, in the order in which a pipeline runs through them; the study's where not given"""
    modes: tuple[str, ...] = ()
    """Recompute mode of each stage where the design fixes them"""
    link_byte_s: float = INF
    link_latency_s: float = 0.0
    link_usd_per_h: float = 0.0
    link_w: float = 0.0
    pue: float = 1.2
    usd_per_kwh: float = 0.08
    g_per_kwh: float = 350.0
    basis: str = "rental"
    life_years: float = 4.0
    upkeep_frac: float = 0.05
    tokens: float | None = None
    checkpoint_s: float = 0.0
    restart_s: float = 0.0
    interval_s: float | None = None

    @property
    def work(self) -> Work:
        return work_of(self.model, self.sequence, self.recompute)


def at_stage(case: Case, s: int) -> Case:
    """The case as stage s sees it, counted from 0"""
    return replace(case, recompute=case.modes[s]) if case.modes else case


def numbers_of(case: Case, pool: Pool) -> Mapping[str, Any]:
    return plain.numbers_of(pool.device, "train", case.dtype)


def tau_of(case: Case, pool: Pool) -> float:
    return float(numbers_of(case, pool)["fixed_layer_s"])


def speed(case: Case, pool: Pool) -> float:
    """flop/s of an instance at work, attention scores aside."""
    return float(pool.g * plain.peak_of(pool.device, case.dtype) * numbers_of(case, pool)["compute"])


def arithmetic_s(case: Case, pool: Pool, flop: float, scores: float) -> float:
    """Of an instance, for so many flop, attention scores among them."""
    return plain.arithmetic_s(flop, scores, pool.g * plain.peak_of(pool.device, case.dtype), numbers_of(case, pool))


def gradients_s(case: Case, pool: Pool, byte: float, replicas: int) -> float:
    """What a step waits of the gradients' all-reduce over the replicas of a pool; scale-out where it spans nodes."""
    if replicas == 1:
        return 0.0
    d = pool.device
    inside = pool.n <= d["node_size"]
    link = d["link_byte_s"] if inside else d["scale_out_byte_s"]
    l0 = d["link_latency_s"] if inside else d["scale_out_latency_s"]
    whole = l0 + 2 * (replicas - 1) / replicas * byte / (link * d["link_efficiency"])
    return float(whole * numbers_of(case, pool).get("exposed", 1.0))


# -- section 4: memory ------------------------------------------------------------------------------


def state_byte(pool: Pool, parameters: float, replicas: int) -> float:
    """Weights, gradients, and what the optimiser keeps, of one device."""
    shared = [parameters / pool.g / (replicas if pool.zero >= stage else 1) for stage in (1, 2, 3)]
    return 12 * shared[0] + 2 * shared[1] + 2 * shared[2]


def activation_byte(w: Work, g: int, samples: float) -> float:
    """Kept of one layer by one of g devices, with sequence parallelism."""
    s, h = w.sequence, w.hidden
    if w.recompute == "full":
        return 2 * s * samples * h
    scores = 5 * w.heads * s / h if w.recompute == "none" else 0.0
    return s * samples * h * (18 + 2 * w.feed_forward / h + scores) / g


def inner_byte(w: Work) -> float:
    """One layer of one sample at work on a streaming device.

    reading: no layer is divided, so that one device holds all of it; full recompute makes all of it again.
    """
    mode = "selective" if w.recompute == "selective" else "none"
    return activation_byte(replace(w, recompute=mode), 1, 1)


def usable(pool: Pool) -> float:
    return float(pool.device["memory_byte"] * (1 - pool.reserve))


# -- section 6: data parallel -----------------------------------------------------------------------


@dataclass(frozen=True)
class Share:
    """A share of b samples on one pool [s]."""

    total: float
    compute: float
    comm: float
    fixed: float


def share_of(case: Case, pool: Pool, b: int) -> Share:
    """T_i(b) and its parts, whether or not it fits."""
    if b == 0:
        return Share(0.0, 0.0, 0.0, 0.0)
    w = case.work
    p = math.ceil(b / pool.replicas)
    m = p if pool.streams else pool.micro
    k = math.ceil(p / m)
    compute = p * arithmetic_s(case, pool, w.train, w.train_scores)
    fixed = k * FORWARDS[case.recompute] * w.layers * tau_of(case, pool)
    table = numbers_of(case, pool)
    if table.get("table_flop"):  # reading: the table gives all passes of one micro-step, over its flop per device
        x, y = table["table_flop"], table["table_s"]
        last = p - (k - 1) * m
        compute = (k - 1) * measured_s(m * w.train / pool.g, x, y) + measured_s(last * w.train / pool.g, x, y)
        fixed = 0.0
    comm = gradients_s(case, pool, ACT_BYTE * w.total / pool.g, pool.replicas)
    if pool.all_reduces:
        one = plain.allreduce(pool.device, pool.micro * w.boundary_byte, pool.g)
        comm += k * w.layers * ALLREDUCES[case.recompute] * one
    return Share(compute + comm + fixed, compute, comm, fixed)


def measured_s(flop: float, x: Sequence[float], y: Sequence[float]) -> float:
    """Linear between points, the last slope beyond.

    reading: below the first point the first slope, but never less than its share of the first time.
    """
    i = 0
    while i < len(x) - 2 and flop > x[i + 1]:
        i += 1
    along = y[i] + (flop - x[i]) * (y[i + 1] - y[i]) / (x[i + 1] - x[i])
    return max(along, y[0] * flop / x[0]) if flop < x[0] else along


def dp_margin(case: Case, pool: Pool, b: int) -> float:
    """Memory left on the tightest of a pool's devices with a share of b samples."""
    w = case.work
    states = state_byte(pool, w.total, pool.replicas)
    if not pool.streams:
        return usable(pool) - states - w.layers * activation_byte(w, pool.g, pool.micro)
    p = math.ceil(b / pool.replicas)
    outside = pool.device["streaming_byte"] - states - p * w.layers * w.boundary_byte / pool.g
    return float(min(outside, usable(pool) - inner_byte(w)))


def largest_share(case: Case, pool: Pool) -> float:
    """b_max: what memory allows; 0 where the pool does not fit at all."""
    if dp_margin(case, pool, 1) < 0:
        return 0
    if not pool.streams:
        return INF
    w = case.work
    left = pool.device["streaming_byte"] - state_byte(pool, w.total, pool.replicas)
    return pool.replicas * math.floor(left / (w.layers * w.boundary_byte / pool.g))


def alone_dp_s(case: Case, pool: Pool) -> float:
    """Step of the whole batch on one pool; infinite where it does not fit."""
    return share_of(case, pool, case.batch).total if case.batch <= largest_share(case, pool) else INF


def exchange_s(case: Case, n_active: int) -> float:
    """The whole exchange of gradients between pools."""
    if n_active < 2:
        return 0.0
    return case.link_latency_s + 2 * (n_active - 1) / n_active * ACT_BYTE * case.work.total / case.link_byte_s


def with_exchange_s(case: Case, slowest_s: float, n_active: int) -> float:
    """Step of pools that take so long; eq. (2) at full overlap: no shorter than the exchange."""
    whole = exchange_s(case, n_active)
    return max(slowest_s + (1 - case.overlap) * whole, whole)


def best_step_s(case: Case, pools: Sequence[Pool]) -> float:
    """Shortest step over every active subset and every division of the batch among it.

    For a subset: the smallest T among all T_i(b) such that the pools together take the batch within T.
    """
    limits = [min(largest_share(case, p), case.batch) for p in pools]
    if any(x == 0 for x in limits):
        return INF
    times = [
        [share_of(case, p, b).total for b in range(1, int(most) + 1)] for p, most in zip(pools, limits, strict=True)
    ]
    best = INF
    for size in range(1, min(len(pools), case.batch) + 1):
        for subset in combinations(range(len(pools)), size):
            candidates = sorted({t for i in subset for t in times[i]})

            def enough(t: float, subset: tuple[int, ...] = subset) -> bool:
                took = [sum(1 for x in times[i] if x <= t) for i in subset]
                return min(took) >= 1 and sum(took) >= case.batch

            found = first_true(candidates, enough)
            if found is not None:
                best = min(best, with_exchange_s(case, found, size))
    return best


def first_true(ascending: Sequence[float], test: Callable[[float], bool]) -> float | None:
    """The first that passes, by bisection."""
    low, high = 0, len(ascending)
    while low < high:
        middle = (low + high) // 2
        if test(ascending[middle]):
            high = middle
        else:
            low = middle + 1
    return ascending[low] if low < len(ascending) else None


def dp_score(case: Case, pools: Sequence[Pool], batches: Sequence[int]) -> dict[str, Any]:
    """Columns of one design; `pools` are those bought, `batches` the division, of equally good ones, to follow."""
    w = case.work
    best = best_step_s(case, pools)
    if best == INF:
        margin = min(dp_margin(case, p, 1) for p in pools)
        alone = [alone_dp_s(case, p) for p in pools]
        return {"mem_margin_byte": margin, **_infeasible(case, pools, alone, ring(len(pools)))}
    shares = [share_of(case, p, b) for p, b in zip(pools, batches, strict=True)]
    active = sum(b > 0 for b in batches)
    slowest = max(s.total for s in shares)
    step = with_exchange_s(case, slowest, active)
    per_pool: list[dict[str, float]] = []
    margin = INF
    for p, b, s in zip(pools, batches, shares, strict=True):
        margin = min(margin, dp_margin(case, p, max(b, 1)))
        busy = s.total / step
        peak = plain.peak_of(p.device, case.dtype)
        u_ho = 0.0
        if b:
            u_ho = s.comm / s.total if s.comm > s.compute else b * w.train / (p.n * peak) / s.total
        per_pool.append({
            "busy": busy,
            "eta": 1 / busy - 1 if b else INF,
            "u": u_ho * busy,
            "mfu": 3 * w.forward * b / (step * p.n * peak),
            "replicas": p.replicas,
        })  # fmt: skip
    sent = 2 * (active - 1) / active * ACT_BYTE * w.total if active > 1 else 0.0
    return {
        "best_step_s": best,
        "step_time_s": step,
        "sync_s": step - slowest,
        "link_use_frac": sent / step / case.link_byte_s,
        "mem_margin_byte": margin,
        "feasible": True,
        "pools": per_pool,
        **_system(case, pools, step, [x["busy"] for x in per_pool], ring(len(pools))),
        **_against(case, step, [alone_dp_s(case, p) for p in pools]),
    }


def ring(n_pools: int) -> int:
    """Links bought: one between two pools, a ring from three on."""
    return n_pools if n_pools > 2 else n_pools - 1


# -- section 6: pipelines ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Stage:
    """One stage: seconds of l layers are front/back times l, and what else it does."""

    pool: int
    compute_f: float
    compute_b: float
    comm: float
    """All-reduces of one layer, forward and backward together"""
    fixed_f: float
    fixed_b: float
    comm_f: float
    head_f: float
    head_b: float
    out_f: float
    out_b: float
    inside: float
    """Of both, what does not leave the pool"""

    def forward(self, n: int) -> float:
        return n * (self.fixed_f + self.compute_f + self.comm_f) + self.head_f + self.out_f

    def backward(self, n: int) -> float:
        return n * (self.fixed_b + self.compute_b + self.comm - self.comm_f) + self.head_b + self.out_b

    def paced(self, n: int) -> float:
        """reading: layers are laid out as if nothing between pools took time."""
        own = self.fixed_f + self.fixed_b + self.compute_f + self.compute_b + self.comm
        return n * own + self.head_f + self.head_b + self.inside


def link_s(case: Case, byte: float) -> float:
    """What is exposed of a transfer between pools."""
    return (1 - case.overlap) * (case.link_latency_s + byte / case.link_byte_s)


def inside_s(pool: Pool, byte: float) -> float:
    """A stage boundary inside a pool."""
    d = pool.device
    near = pool.g * pool.stages <= d["node_size"]
    link = d["link_byte_s"] if near else d["scale_out_byte_s"]
    l0 = d["link_latency_s"] if near else d["scale_out_latency_s"]
    return float(l0 + byte / (link * d["link_efficiency"]))


def stages_of(case: Case, pools: Sequence[Pool], chain: Sequence[int], micro: int) -> list[Stage]:
    """The chain's stages, first to last."""
    where = [i for i in chain for _ in range(pools[i].stages)]
    byte = micro * case.work.boundary_byte
    crossing, near = [], [0.0]  # between a stage and the next; near: 0 where it leaves the pool, and at both ends
    for a, b in pairwise(where):
        leaves = case.offload or a != b
        crossing.append(link_s(case, byte) if leaves else inside_s(pools[a], byte))
        near.append(0.0 if leaves else crossing[-1])
    near.append(0.0)
    found = []
    for s, i in enumerate(where):
        p, mode = pools[i], at_stage(case, s).recompute
        w = at_stage(case, s).work
        again = 1 if mode == "full" else 0
        one = plain.allreduce(p.device, byte, p.g) if p.all_reduces else 0.0
        layer_s = micro * arithmetic_s(case, p, w.layer, w.layer_score)
        scores_s = micro * arithmetic_s(case, p, w.layer_score, w.layer_score)
        head_s = micro * arithmetic_s(case, p, w.head, 0.0)
        tau = tau_of(case, p)
        last = s == len(where) - 1
        back = crossing[s - 1] if s else (link_s(case, byte) if case.offload else 0.0)
        found.append(Stage(
            pool=i,
            compute_f=layer_s,
            compute_b=(2 + again) * layer_s + (scores_s if mode == "selective" else 0.0),
            comm=ALLREDUCES[mode] * one,
            comm_f=2 * one,
            fixed_f=tau,
            fixed_b=(2 + again) * tau,
            head_f=head_s if last else 0.0,
            head_b=(2 + again) * head_s if last else 0.0,
            out_f=0.0 if last else crossing[s],
            out_b=back,
            inside=sum(near[s : s + 2]),
        ))  # fmt: skip
    return found


def laid_out(stages: Sequence[Stage], n_layers: int) -> list[int]:
    """Layers of each stage: the slowest is as fast as can be; surplus leaves the slowest, the first of equals."""
    times = sorted({s.paced(n) for s in stages for n in range(1, n_layers + 1)})

    def counts(t: float) -> list[int]:
        return [sum(1 for n in range(1, n_layers + 1) if s.paced(n) <= t) for s in stages]

    best = first_true(times, lambda t: min(counts(t)) >= 1 and sum(counts(t)) >= n_layers)
    assert best is not None
    found = counts(best)
    while sum(found) > n_layers:
        slowest, at = -INF, 0
        for i, (s, n) in enumerate(zip(stages, found, strict=True)):
            if n > 1 and s.paced(n) > slowest:
                slowest, at = s.paced(n), i
        found[at] -= 1
    return found


def one_forward_one_backward(front: Sequence[float], back: Sequence[float], n: int) -> float:
    """End of N micro-batches: every stage in its order, each piece once stage and input are there."""
    k = len(front)
    orders = []
    for s in range(k):
        warm = min(n, k - 1 - s)
        order = [("F", i) for i in range(warm)]
        for i in range(n - warm):
            order += [("F", warm + i), ("B", i)]
        order += [("B", i) for i in range(n - warm, n)]
        orders.append(order)
    done_f = [[-1.0] * n for _ in range(k)]
    done_b = [[-1.0] * n for _ in range(k)]
    at, free = [0] * k, [0.0] * k
    left = 2 * n * k
    while left:
        for s in range(k):
            while at[s] < 2 * n:
                kind, i = orders[s][at[s]]
                if kind == "F":
                    ready = 0.0 if s == 0 else done_f[s - 1][i]
                    spent, done = front[s], done_f[s]
                else:
                    ready = done_f[s][i] if s == k - 1 else done_b[s + 1][i]
                    spent, done = back[s], done_b[s]
                if ready < 0:
                    break
                free[s] = done[i] = max(free[s], ready) + spent
                at[s] += 1
                left -= 1
    return max(free)


def schedule_s(case: Case, front: Sequence[float], back: Sequence[float], outs: float, n: int) -> float:
    """Time of N micro-batches through the stages."""
    both = [f + b for f, b in zip(front, back, strict=True)]
    if case.schedule == "gpipe":
        return sum(both) + (n - 1) * (max(front) + max(back))
    if case.schedule == "interleaved":
        return n * max(both) + (sum(both) - max(both)) / case.chunks + case.chunks * outs
    return one_forward_one_backward(front, back, n)


def in_flight(case: Case, s: int, k: int, n: int) -> float:
    """Micro-batches whose activations stage s of k (from 1) holds at once."""
    if case.schedule == "gpipe":
        return n
    if case.schedule == "interleaved":
        return min(n, (2 * (k - s) + (case.chunks - 1) * k + 1) / case.chunks)
    # reading: with a wafer between any two stages the chain is twice as long
    return min(n, 2 * (k - s) + 1 if case.offload else k - s + 1)


def stage_parameters(w: Work, n_layers: int, *, first: bool, last: bool) -> float:
    if first and last:
        return n_layers * w.layer_parameters + w.total - w.layers * w.layer_parameters
    return n_layers * w.layer_parameters + (w.embedding if first else 0.0) + (w.head_parameters if last else 0.0)


def pp_margin(case: Case, p: Pool, parameters: float, n_layers: int, samples: float) -> float:
    """Memory left on a device of a stage that keeps n layers' activations of so many samples."""
    w = case.work
    states = state_byte(p, parameters, p.replicas)
    if not p.streams:
        return usable(p) - states - n_layers * activation_byte(w, p.g, samples)
    outside = p.device["streaming_byte"] - states - n_layers * samples * w.boundary_byte / p.g
    return float(min(outside, usable(p) - inner_byte(w)))


@dataclass(frozen=True)
class Piped:
    """One pipeline design, timed."""

    step: float = INF
    sync: float = 0.0
    margin: float = INF
    crossing: float = 0.0
    """Bytes over the busiest direction of a link in a step"""
    bubble: float = 0.0
    layers: tuple[int, ...] = ()
    pools: tuple[dict[str, float], ...] = ()
    verdict: str = FEASIBLE


def whole_models(case: Case, p: Pool) -> Piped:
    """A single streaming pool with one stage: every device runs the whole model."""
    w = case.work
    margin = dp_margin(case, p, case.batch)
    if margin < 0:
        return Piped(margin=margin, verdict=NO_ROOM)
    t = share_of(case, p, case.batch)
    peak = plain.peak_of(p.device, case.dtype)
    u_ho = t.comm / t.total if t.comm > t.compute else case.batch * w.train / (p.n * peak) / t.total
    numbers = {"busy": 1.0, "eta": 0.0, "u": u_ho, "mfu": 3 * w.forward * case.batch / (t.total * p.n * peak)}
    sync = gradients_s(case, p, ACT_BYTE * w.total / p.g, p.replicas)
    return Piped(step=t.total, sync=sync, margin=margin, layers=(w.layers,), pools=(numbers,))


def piped(case: Case, pools: Sequence[Pool]) -> Piped:  # noqa: PLR0911, PLR0912 - the cases of the page in their order
    """Time and memory of one design; `pools` are those bought."""
    w, k = case.work, case.offload
    servers = [i for i, p in enumerate(pools) if k and p.streams]
    chain = [i for i in case.order or range(len(pools)) if i not in servers]
    if len(servers) != (1 if k else 0) or not chain:
        return Piped(verdict=BROKEN)
    if len(chain) == 1 and not k and pools[chain[0]].streams and pools[chain[0]].stages == 1:
        return whole_models(case, pools[chain[0]])
    micros = {pools[i].micro for i in chain if not pools[i].streams} or {pools[chain[0]].micro}
    replicas = {pools[i].replicas for i in chain}
    if len(micros) > 1 or len(replicas) > 1:
        return Piped(verdict=BROKEN)
    (m,), (r,) = micros, replicas
    if case.batch % (r * m):
        return Piped(verdict=BROKEN)
    n = case.batch // (r * m)
    stages = stages_of(case, pools, chain, m)
    n_stages = len(stages)
    kept = w.layers - k * n_stages
    if kept < n_stages:
        return Piped(verdict=BROKEN)
    layers = list(case.layers) or laid_out(stages, kept)
    if case.layers:
        layers = [x - k for x in case.layers]
    front = [s.forward(x) for s, x in zip(stages, layers, strict=True)]
    back = [s.backward(x) for s, x in zip(stages, layers, strict=True)]
    outs = sum(s.out_f + s.out_b for s in stages)
    if case.schedule == "interleaved" and (n % n_stages or min(layers) < case.chunks):
        # reading: pieces are dealt out in rounds of K micro-batches, and none is without a layer
        return Piped(verdict=BROKEN)
    calls = handed = 0.0
    per_server = 1
    if k:
        server = pools[servers[0]]
        per_server, rest = divmod(r, server.replicas)
        if rest or per_server % case.collect:
            return Piped(verdict=BROKEN)
        layer_s = arithmetic_s(case, server, w.layer, w.layer_score)
        scores = w.layer_score if case.recompute == "selective" else 0.0
        scores_s = arithmetic_s(case, server, scores, scores)

        def wafer_s(samples: float, passes: float, *, again: bool) -> float:
            return passes * (tau_of(case, server) + samples * layer_s) + (samples * scores_s if again else 0.0)

        returns = (2 * n_stages - 1) * link_s(case, m * w.boundary_byte)
        if case.collect == 1 and per_server == 1:
            f = n_stages * k * wafer_s(m, 1, again=False)
            b = n_stages * k * wafer_s(m, FORWARDS[case.recompute] - 1, again=True)
            time = schedule_s(case, [f, *front], [b, *back], outs, n) + returns
            calls, handed = n, f + b
        else:
            handed = n_stages * k * wafer_s(case.collect * m, FORWARDS[case.recompute], again=True)
            calls = n * per_server / case.collect
            period = per_server / case.collect * handed
            slowest = max(f + b for f, b in zip(front, back, strict=True))
            # reading: and no shorter than all the wafer's work
            time = max(sum(front) + sum(back) + handed + (n - 1) * max(slowest, period), n * period) + returns
    else:
        time = schedule_s(case, front, back, outs, n)
    sample = w.boundary_byte
    if k:
        most = max(pools[i].stages for i in chain)
        crossing = (2 * most - (len(chain) == 1)) * case.batch * sample
    else:
        crossing = case.batch * sample if len(chain) > 1 else 0.0
    time = max(time, crossing / case.link_byte_s)

    sync, margin = 0.0, INF
    for s, (stage, x) in enumerate(zip(stages, layers, strict=True)):
        p = pools[stage.pool]
        parameters = stage_parameters(w, x, first=s == 0, last=s == n_stages - 1)
        sync = max(sync, gradients_s(case, p, ACT_BYTE * parameters / p.g, r))
        samples = m * in_flight(case, s + 1, n_stages, n)
        margin = min(margin, pp_margin(at_stage(case, s), p, parameters, x, samples))
    if k:
        parameters = n_stages * k * w.layer_parameters
        sync = max(sync, gradients_s(case, server, ACT_BYTE * parameters / server.g, server.replicas))
        # reading: as many micro-batches of every pipeline as a chain of twice the stages holds
        samples = m * per_server * (n if case.schedule == "gpipe" else min(n, 2 * n_stages))
        margin = min(margin, pp_margin(case, server, parameters, n_stages * k, samples))
    if margin < 0:
        return Piped(margin=margin, verdict=NO_ROOM)
    step = time + sync

    numbers: list[dict[str, float]] = []
    for i, p in enumerate(pools):
        peak = plain.peak_of(p.device, case.dtype)
        if i in servers:
            total = calls * handed
            flop = case.batch * n_stages * k * (FORWARDS[case.recompute] * w.layer + scores)
            busy, useful = total / step, case.batch * n_stages * k * w.layer
            each_s = FORWARDS[case.recompute] * layer_s + scores_s
            compute, comm = case.batch * n_stages * k * each_s / (p.n / p.g), 0.0
        else:
            mine = [s for s, stage in enumerate(stages) if stage.pool == i]
            total = n * sum(front[s] + back[s] for s in mine) / p.stages
            busy = total / step
            compute = (
                n
                / p.stages
                * sum(
                    layers[s] * (stages[s].compute_f + stages[s].compute_b) + stages[s].head_f + stages[s].head_b
                    for s in mine
                )
            )
            comm = n / p.stages * sum(layers[s] * stages[s].comm + stages[s].out_f + stages[s].out_b for s in mine)
            useful = case.batch * sum(layers[s] * w.layer + (w.head if s == n_stages - 1 else 0.0) for s in mine)
            flop = 0.0
            for s in mine:
                mode = at_stage(case, s).recompute
                forward = layers[s] * w.layer + (w.head if s == n_stages - 1 else 0.0)
                again = layers[s] * w.layer_score if mode == "selective" else 0.0
                flop += case.batch * (FORWARDS[mode] * forward + again)
        numbers.append({
            "busy": busy,
            "eta": 1 / busy - 1,
            "u": (comm if comm > compute else flop / (p.n * peak)) / total * busy,
            "mfu": 3 * useful / (step * p.n * peak),
            "replicas": p.replicas,
        })  # fmt: skip
    bubble = 1 - n * (sum(front) + sum(back)) / n_stages / step
    return Piped(step, sync, margin, crossing, bubble, tuple(layers), tuple(numbers))


def alone_pp_s(case: Case, pool: Pool) -> float:
    """Step of one pool without offload under the same regime; infinite where it cannot run."""
    return piped(replace(case, offload=0, collect=1, layers=(), order=(), modes=()), [pool]).step


def pp_score(case: Case, pools: Sequence[Pool]) -> dict[str, Any]:
    """Columns of one design; `pools` are those bought, in the order of the study."""
    found = piped(case, pools)
    n_links = sum(not p.streams for p in pools) if case.offload else len(pools) - 1
    alone = [alone_pp_s(case, p) for p in pools]
    if found.verdict != FEASIBLE:
        row = _infeasible(case, pools, alone, n_links)
        return row | ({"mem_margin_byte": found.margin} if found.verdict == NO_ROOM else {})
    return {
        "step_time_s": found.step,
        "sync_s": found.sync,
        "link_use_frac": found.crossing / found.step / case.link_byte_s,
        "mem_margin_byte": found.margin,
        "bubble_frac": found.bubble,
        "feasible": True,
        "pools": list(found.pools),
        **_system(case, pools, found.step, [x["busy"] for x in found.pools], n_links),
        **_against(case, found.step, alone),
    }


# -- sections 5 and 7 -------------------------------------------------------------------------------


def goodput(case: Case, pools: Sequence[Pool]) -> float:
    """Daly: useful share of time with a checkpoint after every tau of work; the best tau where none is given."""
    failures = sum(p.n / p.mtbf_s for p in pools)
    delta = case.checkpoint_s
    if failures == 0:
        if case.interval_s is None:
            return 1.0
        return case.interval_s / (case.interval_s + delta)
    m = 1 / failures
    if case.interval_s is None:
        if delta == 0:
            return math.exp(-case.restart_s / m)
        low, high = 0.0, 1.0  # tau/M, which solves 1 - tau/M = e^-(tau + delta)/M
        for _ in range(200):
            x = (low + high) / 2
            low, high = (low, x) if -math.expm1(-(x + delta / m)) < x else (x, high)
        tau = low * m
    else:
        tau = case.interval_s
    return math.exp(-case.restart_s / m) * (tau / m) / math.expm1((tau + delta) / m)


def link_cost(case: Case, n_links: int) -> float:
    """Price of the links; their energy is in power_mean_w, which `ownership` bills."""
    energy = case.usd_per_kwh * case.pue * case.link_w / 1000 if case.basis == "ownership" else 0.0
    return n_links * (case.link_usd_per_h + energy)


def _static(case: Case, pools: Sequence[Pool], n_links: int) -> dict[str, Any]:
    """What depends on the purchase only."""
    site = sum(p.n * (p.device["full_w"] + p.device["host_w"]) for p in pools)
    return {
        "power_w": case.pue * (site + n_links * case.link_w),
        "link_cost_usd_per_h": link_cost(case, n_links),
    }


def _cost(case: Case, pools: Sequence[Pool], busy: Sequence[float], n_links: int) -> float:
    return sum(plain.pool_cost(case, p, x) for p, x in zip(pools, busy, strict=True)) + link_cost(case, n_links)


def _infeasible(case: Case, pools: Sequence[Pool], alone: Sequence[float], n_links: int) -> dict[str, Any]:
    tok = case.batch * case.sequence
    return {
        "throughput_tok_s": 0.0,
        "feasible": False,
        "aggregate_tok_s": sum(tok / t for t in alone),
        "best_single_tok_s": max(tok / t for t in alone),
        **_static(case, pools, n_links),
    }


def _system(case: Case, pools: Sequence[Pool], step: float, busy: Sequence[float], n_links: int) -> dict[str, Any]:
    tok = case.batch * case.sequence / step
    drawn = sum(plain.mean_power(p, x) for p, x in zip(pools, busy, strict=True)) + n_links * case.link_w
    power, cost = case.pue * drawn, _cost(case, pools, busy, n_links)
    useful = goodput(case, pools)
    row = {
        "throughput_tok_s": tok,
        "throughput_samples_s": case.batch / step,
        "goodput_frac": useful,
        "power_mean_w": power,
        "cost_usd_per_h": cost,
        "usd_per_mtok": cost * 1e6 / 3600 / tok,
        "energy_j_per_tok": power / tok,
        "co2_g_per_mtok": power / tok / 3.6e6 * case.g_per_kwh * 1e6,
        **_static(case, pools, n_links),
    }
    if case.tokens is not None:
        time = case.tokens / (tok * useful) if useful else INF
        row |= {"train_time_s": time, "train_energy_j": time * power, "train_cost_usd": time / 3600 * cost}
    gpus = sum(p.n for p in pools if p.device["kind"] == "gpu")
    wafers = sum(p.n for p in pools if p.device["kind"] == "wse")
    row["gpu_wse_ratio"] = gpus / wafers if wafers else (INF if gpus else math.nan)
    return row


def _against(case: Case, step: float, alone: Sequence[float]) -> dict[str, Any]:
    """The design next to its own pools alone at the same global batch."""
    tok = case.batch * case.sequence
    aggregate, best = sum(tok / t for t in alone), max(tok / t for t in alone)
    return {
        "aggregate_tok_s": aggregate,
        "best_single_tok_s": best,
        "complementarity": tok / step / aggregate if aggregate else INF,
        "gain": tok / step / best if best else INF,
    }


def dp_alone(case: Case, pool: Pool) -> tuple[float, float]:
    """Step and busy share of a pool alone."""
    return alone_dp_s(case, pool), 1.0


def pp_alone(case: Case, pool: Pool) -> tuple[float, float]:
    found = piped(replace(case, offload=0, collect=1, layers=(), order=(), modes=()), [pool])
    return found.step, (found.pools[0]["busy"] if found.pools else 0.0)


def best_alone(
    menu: Iterable[tuple[Case, Pool]], alone: Callable[[Case, Pool], tuple[float, float]]
) -> tuple[float, float]:
    """Most tokens/s per USD/h, and per W, of any pool of the study alone in any setting and regime."""
    per_usd = per_w = 0.0
    for case, pool in menu:
        step, busy = alone(case, pool)
        if step < INF:
            tok = case.batch * case.sequence / step
            cost, power = _cost(case, [pool], [busy], 0), _static(case, [pool], 0)["power_w"]
            per_usd = max(per_usd, tok / cost if cost else 0.0)
            per_w = max(per_w, tok / power if power else 0.0)
    return per_usd, per_w
