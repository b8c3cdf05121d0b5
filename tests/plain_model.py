"""docs/model.md once more, in scalar Python: what the program is held to.

Written from the page, not from the program: loops and `math` only, no formula of `dse.model` is called.
A device is the table of a device file, a model is its shape. `plain_score` gives the columns of one design.
Readings of the page where it is silent are marked "reading:".
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from scipy.optimize import linprog

from dse.workload import Transformer

BYTES = {"bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0, "fp4": 0.5, "int4": 0.5}
ACT_BYTE = 2.0
"""reading: activations cross links in 16 bit."""
INF = math.inf
Device = Mapping[str, Any]
Flows = list[list[list[float]]]
"""z[p][p'][c]: share of all requests of class c prefilled on p and decoded on p'."""


# -- section 3 --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shape:
    """A model in the numbers of section 3; a test may replace `total` to check only what follows from it."""

    layers: int
    hidden: int
    linear: float
    head: float
    total: float
    routed: float
    experts: int
    top_k: int
    prefill_score: float
    decode_score: float
    kv_numbers: float
    kv_heads: int
    latent: bool
    window: int
    n_window: int


def shape_of(m: Transformer) -> Shape:
    h = m.hidden
    latent = m.kv_rank > 0
    if latent:
        attention = (
            h * m.q_rank
            + m.q_rank * m.heads * (m.head_nope + m.head_rope)
            + h * (m.kv_rank + m.head_rope)
            + m.kv_rank * m.heads * (m.head_nope + m.head_v)
            + m.heads * m.head_v * h
        )
        prefill_score = m.layers * m.heads * (m.head_nope + m.head_rope + m.head_v)
        decode_score = 2 * m.layers * m.heads * (2 * m.kv_rank + m.head_rope)
        kv_numbers = m.layers * (m.kv_rank + m.head_rope)
    else:
        attention = h * m.heads * m.head_size + 2 * h * m.kv_heads * m.head_size + m.heads * m.head_size * h
        prefill_score = 2 * m.layers * m.heads * m.head_size
        decode_score = 4 * m.layers * m.heads * m.head_size
        kv_numbers = 2 * m.layers * m.kv_heads * m.head_size
    active = stored = routed = 0
    for layer in range(m.layers):
        active += attention
        stored += attention
        if m.experts and layer >= m.n_dense_layers:
            one = 3 * h * m.expert_feed_forward
            active += h * m.experts + (m.experts_per_token + m.shared_experts) * one
            stored += h * m.experts + (m.experts + m.shared_experts) * one
            routed += m.experts * one
        else:
            block = (3 if m.gated else 2) * h * m.feed_forward
            active += block
            stored += block
    head = m.vocabulary * h
    total = stored + 2 * h * m.layers + h + head * (1 if m.tied_embedding else 2)
    if m.attention_bias:
        total += m.layers * (m.heads + 2 * m.kv_heads) * m.head_size
    return Shape(
        layers=m.layers, hidden=h, linear=active, head=head, total=total, routed=routed, experts=m.experts,
        top_k=m.experts_per_token, prefill_score=prefill_score, decode_score=decode_score,
        kv_numbers=kv_numbers, kv_heads=m.kv_heads, latent=latent, window=m.sliding_window,
        n_window=m.n_window_layers if m.sliding_window else 0,
    )  # fmt: skip


def seen_tokens(s: Shape, n: float) -> float:
    """Tokens attended to at context n, averaged over layers; a window layer caps at its window."""
    return (s.n_window * min(n, s.window) + (s.layers - s.n_window) * n) / s.layers if s.n_window else n


def squared_tokens(s: Shape, n: float) -> float:
    """n^2; reading: in a window layer twice the integral of min(x, w), 2nw - w^2 beyond the window."""
    if not s.n_window:
        return n * n
    capped = n * n if n <= s.window else 2 * n * s.window - s.window**2
    return (s.n_window * capped + (s.layers - s.n_window) * n * n) / s.layers


def forward_scores(s: Shape, n: float, hit: float) -> float:
    """flop of the attention scores of a prompt"""
    return s.prefill_score * (squared_tokens(s, n) - squared_tokens(s, n * hit))


def forward_flop(s: Shape, n: float, hit: float) -> float:
    return 2 * s.linear * n * (1 - hit) + forward_scores(s, n, hit) + 2 * s.head


def decode_token_scores(s: Shape, c: float) -> float:
    return s.decode_score * seen_tokens(s, c)


def decode_token_flop(s: Shape, c: float) -> float:
    return 2 * (s.linear + s.head) + decode_token_scores(s, c)


def kv_of(s: Shape, n: float, kv_dtype: str) -> float:
    return s.kv_numbers * BYTES[kv_dtype] * seen_tokens(s, n)


def read_weight_byte(s: Shape, b: float, dtype: str) -> float:
    """What a decode step of b tokens reads: touched experts, and all that is always read."""
    if not s.experts:
        return s.total * BYTES[dtype]
    touched = s.experts * (1 - (1 - s.top_k / s.experts) ** b)
    return (s.total - s.routed + s.routed / s.experts * touched) * BYTES[dtype]


# -- section 4 --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pass:
    """flop, byte: of the whole instance; parts of the occupancy [s]."""

    flop: float
    moved: float
    compute: float
    memory: float
    comm: float
    fixed: float
    occupancy: float
    latency: float


@dataclass(frozen=True)
class PairLink:
    """One link: bandwidth, latency, and what it costs and draws for one pair of pools."""

    byte_s: float
    latency_s: float = 0.0
    usd_per_h: float = 0.0
    w: float = 0.0


@dataclass(frozen=True)
class Case:
    """Everything about a design but its pools."""

    shape: Shape
    classes: Sequence[tuple[float, float, float]]
    """(share, input, output)"""
    weight_dtype: str = "bf16"
    kv_dtype: str = "bf16"
    compute_dtype: str = "bf16"
    hit: float = 0.0
    ttft_limit: float = INF
    tpot_limit: float = INF
    demand: float | None = None
    link_byte_s: float = INF
    link_latency_s: float = 0.0
    link_usd_per_h: float = 0.0
    link_w: float = 0.0
    pair_links: Mapping[tuple[int, int], PairLink] = field(default_factory=dict)
    """Links of pairs (i, j), i < j, where each pair has its own."""
    offered: Sequence[PairLink] = ()
    """All links of the study, where each pair has its own."""
    pue: float = 1.2
    usd_per_kwh: float = 0.08
    g_per_kwh: float = 350.0
    basis: str = "rental"
    life_years: float = 4.0
    upkeep_frac: float = 0.05
    stealing: bool = False


@dataclass(frozen=True)
class Pool:
    """One pool of a design."""

    device: Device
    n: int
    g: int = 1
    role: str = "both"
    prefill_batch: int = 1
    max_decode_batch: int = 256
    reserve: float = 0.1
    owned: int = 0

    @property
    def instances(self) -> float:
        return self.n / self.g


def peak_of(device: Device, dtype: str) -> float:
    peaks = device["peak_flop_s"]
    if dtype in peaks:
        return peaks[dtype]
    return peaks[{"bf16": "fp16", "fp16": "bf16"}[dtype]]


def numbers_of(device: Device, phase: str, dtype: str) -> Mapping[str, Any]:
    """What a phase achieves in this arithmetic; reading: bf16 and fp16 stand in for each other here too."""
    e: Mapping[str, Any] = device["efficiency"][phase]
    own = e.get("by_dtype", {})
    twin = {"bf16": "fp16", "fp16": "bf16"}.get(dtype, dtype)
    return own[dtype] if dtype in own else own.get(twin, e)


def arithmetic_s(flop: float, scores: float, peak: float, e: Mapping[str, Any]) -> float:
    """Attention scores at their own share of the peak, the rest at e_c."""
    slow = e.get("attention")
    if slow is None:
        return flop / (peak * e["compute"])
    return (flop - scores) / (peak * e["compute"]) + scores / (peak * slow)


def allreduce(device: Device, x: float, g: int) -> float:
    if g == 1:
        return 0.0
    inside = g <= device["node_size"]
    link = device["link_byte_s"] if inside else device["scale_out_byte_s"]
    l0 = device["link_latency_s"] if inside else device["scale_out_latency_s"]
    return l0 + 2 * (g - 1) / g * x / (link * device["link_efficiency"])


def hop(device: Device, x: float) -> float:
    return device["link_latency_s"] + x / (device["link_byte_s"] * device["link_efficiency"])


def share_of_device(case: Case, pool: Pool) -> float:
    if pool.device["arrangement"] == "pipeline":
        return 1 / pool.g
    return 1.0 if case.shape.latent else max(1 / pool.g, 1 / case.shape.kv_heads)


def prefill_pass(case: Case, pool: Pool, n: float) -> Pass:
    s, d, g, b = case.shape, pool.device, pool.g, pool.prefill_batch
    e = numbers_of(d, "prefill", case.compute_dtype)
    bandwidth = d["memory_bandwidth_byte_s"] * e["memory"]
    flop, scores = b * forward_flop(s, n, case.hit), b * forward_scores(s, n, case.hit)
    alone_s = arithmetic_s(flop, scores, peak_of(d, case.compute_dtype), e)
    moved = s.total * BYTES[case.weight_dtype] + b * kv_of(s, n, case.kv_dtype) * share_of_device(case, pool) * g
    message = b * n * (1 - case.hit) * s.hidden * ACT_BYTE
    tau = s.layers * e["fixed_layer_s"] + b * e.get("sequence_s", 0.0)
    if d["arrangement"] == "tensor":
        comm = 2 * s.layers * allreduce(d, message, g)
        t = tau + max(alone_s / g, moved / (g * bandwidth)) + comm
        return Pass(flop, moved, alone_s / g, moved / (g * bandwidth), comm, tau, t, t)
    comm = hop(d, message) if g > 1 else 0.0
    latency = tau + max(alone_s, moved / bandwidth) + (g - 1) * hop(d, message)
    occupancy = tau / g + max(alone_s / g, moved / (g * bandwidth)) + comm
    return Pass(flop, moved, alone_s / g, moved / (g * bandwidth), comm, tau / g, occupancy, latency)


def decode_pass(case: Case, pool: Pool, n_in: float, n_out: float, b: float) -> Pass:
    s, d, g = case.shape, pool.device, pool.g
    e = numbers_of(d, "decode", case.compute_dtype)
    bandwidth = d["memory_bandwidth_byte_s"] * e["memory"]
    c = n_in + n_out / 2
    flop = b * decode_token_flop(s, c)
    token_s = arithmetic_s(decode_token_flop(s, c), decode_token_scores(s, c), peak_of(d, case.compute_dtype), e)
    at_once = b if d["arrangement"] == "tensor" else max(1.0, b / g)
    tau = s.layers * e["fixed_layer_s"] + at_once * e.get("sequence_s", 0.0)
    kv = kv_of(s, c, case.kv_dtype)
    if d["arrangement"] == "tensor":
        moved = read_weight_byte(s, b, case.weight_dtype) + b * kv * share_of_device(case, pool) * g
        comm = 2 * s.layers * allreduce(d, b * s.hidden * ACT_BYTE, g)
        compute, memory = b * token_s / g, moved / (g * bandwidth)
    else:
        b_g = at_once
        group = read_weight_byte(s, b_g, case.weight_dtype) + b_g * kv
        comm = g * hop(d, b_g * s.hidden * ACT_BYTE) if g > 1 else 0.0
        compute, memory = b_g * token_s, group / bandwidth
        moved = b / b_g * group  # b/b_g groups pass through in one t
    t = tau + max(compute, memory) + comm
    return Pass(flop, moved, compute, memory, comm, tau, t, t)


def resident(case: Case, pool: Pool, b: float, tokens: float) -> float:
    weights = case.shape.total * BYTES[case.weight_dtype] / pool.g
    return weights + b * kv_of(case.shape, tokens, case.kv_dtype) * share_of_device(case, pool)


def usable(pool: Pool) -> float:
    return pool.device["memory_byte"] * (1 - pool.reserve)


def memory_batch(case: Case, pool: Pool, tokens: float) -> int:
    left = usable(pool) - case.shape.total * BYTES[case.weight_dtype] / pool.g
    if left <= 0:
        return 0
    return math.floor(left / (kv_of(case.shape, tokens, case.kv_dtype) * share_of_device(case, pool)))


# -- section 6: one pool ----------------------------------------------------------------------------


def steps_of(n_out: float) -> float:
    return max(n_out - 1, 0)


@dataclass
class Decode:
    """Decode of each class on one pool: batch (0: cannot), seconds per request, the pass."""

    batch: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    passes: list[Pass] = field(default_factory=list)


def decode_alone(case: Case, pool: Pool) -> Decode:
    """The largest batch that memory, axis and TPOT allow."""
    out = Decode()
    for _, n_in, n_out in case.classes:
        b = min(memory_batch(case, pool, n_in + n_out), pool.max_decode_batch)
        limit = case.tpot_limit if steps_of(n_out) > 0 else INF
        while b > 0 and decode_pass(case, pool, n_in, n_out, b).occupancy > limit:
            b -= 1
        step = decode_pass(case, pool, n_in, n_out, max(b, 1))
        out.batch.append(b)
        out.passes.append(step)
        out.seconds.append(steps_of(n_out) * step.occupancy / b if b else INF)
    return out


def prefill_seconds(case: Case, pool: Pool, *, keeps_output: bool) -> list[float]:
    found = []
    for _, n_in, n_out in case.classes:
        tokens = n_in + n_out if keeps_output else n_in
        fits = resident(case, pool, pool.prefill_batch, tokens) <= usable(pool)
        found.append(prefill_pass(case, pool, n_in).occupancy / pool.prefill_batch if fits else INF)
    return found


def both_on_one(case: Case, pool: Pool) -> tuple[float, Decode]:
    """Rate of one instance that does both, and its decode batches; rate 0 where it cannot.

    With a TPOT limit: min(1/sum q (occ/b_pre + steps t/b), min_c (1 - t_c/tpot)/O) at the best b_c. The
    second term takes one of few values (one per class and batch); at each every class takes the largest b_c
    whose own term is at least that, since b/t(b) only grows.
    """
    pre = prefill_seconds(case, pool, keeps_output=True)
    caps = [min(memory_batch(case, pool, n_in + n_out), pool.max_decode_batch) for _, n_in, n_out in case.classes]
    times = [
        [decode_pass(case, pool, n_in, n_out, b).occupancy for b in range(1, cap + 1)]
        for (_, n_in, n_out), cap in zip(case.classes, caps, strict=True)
    ]
    if min(caps) < 1 or INF in pre:
        return 0.0, Decode()
    occupied = sum(q * p for (q, _, _), p in zip(case.classes, pre, strict=True))

    def rate_of(batch: Sequence[int]) -> float:
        work, bound = occupied, INF
        for (q, _, n_out), b, t in zip(case.classes, batch, times, strict=True):
            work += q * steps_of(n_out) * t[b - 1] / b
            if steps_of(n_out) > 0 and case.tpot_limit < INF:
                bound = min(bound, (1 - t[b - 1] / case.tpot_limit) / occupied)
        return min(1 / work, bound)

    best, chosen = (rate_of(caps), list(caps)) if case.tpot_limit == INF else (0.0, [])
    if case.tpot_limit < INF:
        decodes = [steps_of(n_out) > 0 for _, _, n_out in case.classes]
        levels = {t for ts, d in zip(times, decodes, strict=True) if d for t in ts if t <= case.tpot_limit}
        for level in sorted(levels) if any(decodes) else [INF]:
            batch = []
            for ts, d in zip(times, decodes, strict=True):
                batch.append(sum(1 for t in ts if t <= level) if d else len(ts))
            if min(batch) >= 1 and rate_of(batch) >= best * (1 - 1e-13):  # reading: ties go to large batches
                best, chosen = max(best, rate_of(batch)), batch
    if best <= 0:
        return 0.0, Decode()
    out = Decode()
    for (_, n_in, n_out), b in zip(case.classes, chosen, strict=True):
        step = decode_pass(case, pool, n_in, n_out, b)
        out.batch.append(b)
        out.passes.append(step)
        out.seconds.append(steps_of(n_out) * step.occupancy / b)
    return best, out


# -- section 6: waiting -----------------------------------------------------------------------------


def erlang_c_plain(servers: int, load: float) -> float:
    if load >= servers:
        return 1.0
    blocked = 1.0
    for k in range(1, servers + 1):
        blocked = load * blocked / (k + load * blocked)
    return servers * blocked / (servers - load * (1 - blocked))


def waits(rate: float, servers: int, mean: float, cv2: float) -> tuple[float, float]:
    """Mean wait, and the wait that 1 % exceed [s]."""
    spare = servers / mean - rate
    if spare <= 1e-12 * servers / mean:  # utilisation 1 but for rounding
        return INF, INF
    c = erlang_c_plain(servers, rate * mean)
    mean_wait = c / spare * (1 + cv2) / 2
    decay = (1 + cv2) / 2 / spare  # Wq / C
    return mean_wait, max(0.0, decay * math.log(c / 0.01)) if c > 0 else 0.0


def service_of(weights: Sequence[float], seconds: Sequence[float]) -> tuple[float, float]:
    total = sum(weights)
    mean = sum(w * s for w, s in zip(weights, seconds, strict=True)) / total
    second = sum(w * s * s for w, s in zip(weights, seconds, strict=True)) / total
    return mean, max(second / mean**2 - 1, 0.0)


def slow_class(case: Case, pool: Pool) -> int:
    """The class with the longest prefill among those of at least 1 % share."""
    found, longest = 0, -INF
    for i, (q, n_in, _) in enumerate(case.classes):
        latency = prefill_pass(case, pool, n_in).latency
        if q >= 0.01 and latency > longest:
            found, longest = i, latency
    return found


def half_step(case: Case, dec: Decode) -> float:
    """reading: half of the decode step that a prompt finds running, weighted by time spent in each class."""
    weight = [q * s for (q, _, _), s in zip(case.classes, dec.seconds, strict=True)]
    if not sum(weight):
        return 0.0
    steps = [p.occupancy for p in dec.passes]
    return 0.5 * sum(w * t for w, t in zip(weight, steps, strict=True)) / sum(weight)


def link_between(case: Case, i: int, j: int) -> PairLink:
    one = PairLink(case.link_byte_s, case.link_latency_s, case.link_usd_per_h, case.link_w)
    return case.pair_links.get((min(i, j), max(i, j)), one)


def through_s(case: Case, n_in: float, link: PairLink) -> float:
    return kv_of(case.shape, n_in, case.kv_dtype) / link.byte_s + link.latency_s


def transfer_s(case: Case, n_in: float, i: int = 0, j: int = 1) -> float:
    return through_s(case, n_in, link_between(case, i, j))


def rate_within_ttft(case: Case, pool: Pool, upper: float, extra: float) -> float:
    """Largest rate up to `upper` whose p99 of wait + prefill latency + extra meets the limit."""
    if case.ttft_limit == INF or upper <= 0:
        return upper
    seconds = [prefill_pass(case, pool, n_in).occupancy / pool.prefill_batch for _, n_in, _ in case.classes]
    mean, cv2 = service_of([q for q, _, _ in case.classes], seconds)
    fixed = prefill_pass(case, pool, case.classes[slow_class(case, pool)][1]).latency + extra

    def meets(rate: float) -> bool:
        return waits(rate, round(pool.instances), mean, cv2)[1] + fixed <= case.ttft_limit

    if fixed > case.ttft_limit:
        return 0.0
    if meets(upper):
        return upper
    low, high = 0.0, upper
    while high - low > 1e-14 * upper:
        middle = (low + high) / 2
        low, high = (middle, high) if meets(middle) else (low, middle)
    return low


def alone_rate(case: Case, pool: Pool) -> tuple[float, Decode]:
    """A pool doing both phases under the same limits [requests/s]."""
    if pool.n == 0 or (pool.device["arrangement"] == "pipeline" and pool.g > case.shape.layers):
        return 0.0, Decode()
    one, dec = both_on_one(case, pool)
    rate = one * pool.instances
    return (rate_within_ttft(case, pool, rate, half_step(case, dec)) if rate > 0 else 0.0), dec


# -- section 7 --------------------------------------------------------------------------------------


def mean_power(pool: Pool, busy: float) -> float:
    d = pool.device
    return pool.n * (d["host_w"] + d["idle_w"] + (d["full_w"] - d["idle_w"]) * busy)


def pool_cost(case: Case, pool: Pool, busy: float) -> float:
    if pool.n == 0:
        return 0.0
    d, mine = pool.device, min(pool.n, pool.owned)
    bought = pool.n - mine
    energy_each = case.usd_per_kwh * case.pue * mean_power(pool, busy) / pool.n / 1000
    upkeep_each = case.upkeep_frac * d.get("capex_usd", INF) / 8760 if mine or case.basis == "ownership" else 0.0
    if case.basis == "rental":
        bought_each = d["rental_usd_per_h"] if bought else 0.0
    else:
        bought_each = d["capex_usd"] / case.life_years / 8760 + upkeep_each + energy_each
    return bought * bought_each + (mine * (upkeep_each + energy_each) if mine else 0.0)


def link_cost(case: Case, linked: Sequence[tuple[int, int]]) -> float:
    """Price of the links; their energy is in power_mean_w, which `ownership` bills."""
    cost = 0.0
    for i, j in linked:
        link = link_between(case, i, j)
        cost += link.usd_per_h
        cost += case.usd_per_kwh * case.pue * link.w / 1000 if case.basis == "ownership" else 0.0
    return cost


# -- section 6: the system --------------------------------------------------------------------------


def stealing_rate(case: Case, pools: Sequence[Pool]) -> float:
    """Largest rate over flows z[p, p', c], as a linear programme in rates [requests/s]."""
    active = [p for p in pools if p.n > 0]
    number = [i for i, p in enumerate(pools) if p.n > 0]
    pre = [prefill_seconds(case, p, keeps_output=False) for p in active]
    dec = [decode_alone(case, p).seconds for p in active]
    keys = [
        (i, j, c)
        for c in range(len(case.classes))
        for i in range(len(active))
        for j in range(len(active))
        if pre[i][c] < INF and dec[j][c] < INF
    ]
    if len({c for _, _, c in keys}) < len(case.classes):
        return 0.0
    typical = [x for a, b in zip(pre, dec, strict=True) for x in a + b if 0 < x < INF]
    scale = sum(p.instances for p in active) / max(typical)
    rows, bounds = [], []
    for i, p in enumerate(active):
        row = [0.0] * (len(keys) + 1)
        for k, (a, b, c) in enumerate(keys):
            row[k] += (pre[i][c] if a == i else 0.0) + (dec[i][c] if b == i else 0.0)
        rows.append([x * scale / p.instances for x in row])
        bounds.append(1.0)
    for i in range(len(active)):
        for j in range(len(active)):
            byte_s = link_between(case, number[i], number[j]).byte_s
            row = [kv_of(case.shape, case.classes[c][1], case.kv_dtype) * scale / byte_s
                   if (a, b) == (i, j) and i != j else 0.0 for a, b, c in keys]  # fmt: skip
            if any(row):
                rows.append([*row, 0.0])
                bounds.append(1.0)
    equal = []
    for c, (q, _, _) in enumerate(case.classes):
        equal.append([1.0 if key[2] == c else 0.0 for key in keys] + [-q])
    found = linprog(
        [0.0] * len(keys) + [-1.0],
        A_ub=rows,
        b_ub=bounds,
        A_eq=equal,
        b_eq=[0.0] * len(equal),
        method="highs-ds",
        options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
    )
    # the rate that these flows truly allow: a bound from below, free of the solver's tolerance
    through = [max(float(x), 0.0) for x in found.x[:-1]]
    total = [sum(x for x, key in zip(through, keys, strict=True) if key[2] == c) for c in range(len(case.classes))]
    flow = [case.classes[key[2]][0] * x / total[key[2]] for x, key in zip(through, keys, strict=True)]
    rate = INF
    for i, p in enumerate(active):
        load = sum(
            f * ((pre[i][c] if a == i else 0.0) + (dec[i][c] if b == i else 0.0))
            for f, (a, b, c) in zip(flow, keys, strict=True)
        )
        rate = min(rate, p.instances / load if load > 0 else INF)
        for j in range(len(active)):
            byte = sum(
                f * kv_of(case.shape, case.classes[c][1], case.kv_dtype)
                for f, (a, b, c) in zip(flow, keys, strict=True)
                if (a, b) == (i, j) and i != j
            )
            rate = min(rate, link_between(case, number[i], number[j]).byte_s / byte if byte > 0 else INF)
    return rate


def plain_score(case: Case, pools: Sequence[Pool]) -> dict[str, Any]:
    """Columns of one design; per pool as lists under `pools`."""
    k, q = len(pools), [c[0] for c in case.classes]
    active = [p.n > 0 for p in pools]
    single = sum(active) == 1
    alone = [alone_rate(case, p) if a else (0.0, Decode()) for p, a in zip(pools, active, strict=True)]
    kv = [kv_of(case.shape, n_in, case.kv_dtype) for _, n_in, _ in case.classes]
    out_tok = sum(s * o for s, _, o in case.classes)
    in_tok = sum(s * i for s, i, _ in case.classes)
    role = ["none" if not a else ("both" if single else p.role) for p, a in zip(pools, active, strict=True)]
    flows: Flows | None
    if case.stealing and not single:
        rate = stealing_rate(case, pools)
        flows, faulty = None, False
    else:
        rate, flows, faulty = _split(case, pools, role, alone, kv)
    tok = rate * out_tok
    linked = []
    for i in range(k):
        for j in range(i + 1, k):
            crossing = {role[i], role[j]} == {"prefill", "decode"}
            if active[i] and active[j] and (crossing or (case.stealing and not single)):
                linked.append((i, j))
    aggregate = sum(a[0] for a in alone) * out_tok
    best = max(a[0] for a in alone) * out_tok
    link_w = sum(link_between(case, i, j).w for i, j in linked)
    power = case.pue * (sum(p.n * (p.device["full_w"] + p.device["host_w"]) for p in pools) + link_w)
    row: dict[str, Any] = {
        "requests_s": rate,
        "throughput_tok_s": tok,
        "input_tok_s": rate * in_tok,
        "power_w": power,
        "link_cost_usd_per_h": link_cost(case, linked),
        "aggregate_tok_s": aggregate,
        "best_single_tok_s": best,
        "complementarity": tok / aggregate if aggregate else (INF if tok else math.nan),
        "gain": tok / best if best else (INF if tok else math.nan),
        "feasible": rate > 0 and not faulty and (case.demand is None or rate >= case.demand),
        "optimal_gpu_wse_ratio": optimal_ratio(case, pools),
    }
    per_usd, per_w = single_best(case, pools, out_tok)
    if per_w > 0:
        row["gain_equal_power"] = tok / (power * per_w)
    if flows is not None and rate > 0:
        row |= _columns(case, pools, role, alone, rate, flows, kv, linked, tok, q)
        if per_usd > 0:
            row["gain_equal_cost"] = tok / (row["cost_usd_per_h"] * per_usd)
    return row


def single_best(case: Case, pools: Sequence[Pool], out_tok: float) -> tuple[float, float]:
    """Best throughput per USD/h and per W of any pool alone, in a study that offers these counts only."""
    per_usd = per_w = 0.0
    for p in pools:
        rate, dec = alone_rate(case, p)
        if rate > 0:
            pre = prefill_seconds(case, p, keeps_output=True)
            each = sum(q * (a + b) for (q, _, _), a, b in zip(case.classes, pre, dec.seconds, strict=True))
            cost = pool_cost(case, p, rate * each / p.instances)
            site_w = case.pue * p.n * (p.device["full_w"] + p.device["host_w"])
            per_usd, per_w = max(per_usd, rate * out_tok / cost), max(per_w, rate * out_tok / site_w)
    return per_usd, per_w


def _split(  # noqa: PLR0912 - the cases of the page, one after the other
    case: Case,
    pools: Sequence[Pool],
    role: Sequence[str],
    alone: Sequence[tuple[float, Decode]],
    kv: Sequence[float],
) -> tuple[float, Flows, bool]:
    """Capacity, flows z[p][p'][c] per request of the mix, and whether some pool cannot do its part."""
    k, q = len(pools), [c[0] for c in case.classes]
    pre, dec, own = [0.0] * k, [0.0] * k, [0.0] * k
    held = [INF] * k
    faulty = False
    for i, p in enumerate(pools):
        if role[i] == "none":
            continue
        layers_ok = p.device["arrangement"] == "tensor" or p.g <= case.shape.layers
        if role[i] == "prefill":
            seconds = sum(w * s for w, s in zip(q, prefill_seconds(case, p, keeps_output=False), strict=True))
            pre[i] = p.instances / seconds if layers_ok else 0.0
            slow = case.classes[slow_class(case, p)][1]
            fastest = min([through_s(case, slow, link) for link in case.offered] or [transfer_s(case, slow)])
            extra = max([transfer_s(case, slow, i, j) for j in range(k) if role[j] == "decode"] or [fastest])
            held[i] = rate_within_ttft(case, p, pre[i], extra)
            # reading: a pool is faulty where no link of the study would do
            faulty |= rate_within_ttft(case, p, pre[i], fastest) <= 0
        elif role[i] == "decode":
            seconds = sum(w * s for w, s in zip(q, decode_alone(case, p).seconds, strict=True))
            if seconds > 0:
                dec[i] = p.instances / seconds if layers_ok else 0.0
            else:
                dec[i] = INF
            faulty |= dec[i] <= 0
        else:
            own[i] = alone[i][0]
            faulty |= own[i] <= 0
    total_pre, total_dec = sum(pre), sum(dec)
    part = min(total_pre, total_dec)
    mean_kv = sum(w * x for w, x in zip(q, kv, strict=True))
    shares_in = [x / total_pre if total_pre else 0.0 for x in pre]
    if total_dec == INF:  # no class decodes; reading: pools without work to do share by instances
        dec = [p.instances if x == INF else 0.0 for x, p in zip(dec, pools, strict=True)]
        total_dec = sum(dec)
    shares_out = [x / total_dec if total_dec else 0.0 for x in dec]
    for i in range(k):
        if shares_in[i] > 0:
            part = min(part, held[i] / shares_in[i])
        for j in range(k):
            if i != j and shares_in[i] * shares_out[j] > 0:
                part = min(part, link_between(case, i, j).byte_s / (shares_in[i] * shares_out[j] * mean_kv))
    rate = part + sum(own)
    flows = [[[0.0] * len(q) for _ in range(k)] for _ in range(k)]
    if rate > 0:
        for i in range(k):
            for j in range(k):
                for c, w in enumerate(q):
                    flows[i][j][c] = w * part / rate * shares_in[i] * shares_out[j]
                    if i == j:
                        flows[i][j][c] += w * own[i] / rate
    return rate, flows, faulty


def _columns(  # noqa: PLR0912 - the columns of the page, one after the other
    case: Case, pools: Sequence[Pool], role: Sequence[str], alone: Sequence[tuple[float, Decode]],
    rate: float, z: Flows, kv: Sequence[float], linked: Sequence[tuple[int, int]], tok: float, q: Sequence[float],
) -> dict[str, Any]:  # fmt: skip
    """What follows from the flows: busy shares, latencies, margins, mean power, cost."""
    k, n_c = len(pools), len(q)
    asked = rate if case.demand is None else case.demand
    margin, ttft_mean, ttft_p99 = INF, 0.0, -INF
    tpot_sum = tpot_weight = 0.0
    cost = link_cost(case, linked)
    power = sum(link_between(case, i, j).w for i, j in linked)
    per_pool: list[dict[str, float]] = []
    for i, p in enumerate(pools):
        if role[i] == "none":
            per_pool.append({"busy": 0.0, "kv_out_byte_s": 0.0})
            continue
        x = [sum(z[i][j][c] for j in range(k)) for c in range(n_c)]
        w = [sum(z[j][i][c] for j in range(k)) for c in range(n_c)]
        pre = [prefill_pass(case, p, n_in) for _, n_in, _ in case.classes]
        dec = alone[i][1] if role[i] == "both" else decode_alone(case, p)
        sums = {
            "total": 0.0,
            "compute": 0.0,
            "memory": 0.0,
            "comm": 0.0,
            "fixed": 0.0,
            "flop": 0.0,
            "moved": 0.0,
        }

        def add(weight: float, t: Pass, sums: dict[str, float] = sums) -> None:
            if weight > 0:
                sums["total"] += weight * t.occupancy
                sums["compute"] += weight * t.compute
                sums["memory"] += weight * t.memory
                sums["comm"] += weight * t.comm
                sums["fixed"] += weight * t.fixed
                sums["flop"] += weight * t.flop
                sums["moved"] += weight * t.moved

        for c, (_, n_in, n_out) in enumerate(case.classes):
            add(x[c] / p.prefill_batch, pre[c])
            tokens = n_in + n_out if role[i] == "both" else n_in
            if role[i] != "decode":
                margin = min(margin, usable(p) - resident(case, p, p.prefill_batch, tokens))
            if role[i] != "prefill" and dec.batch:
                margin = min(margin, usable(p) - resident(case, p, max(dec.batch[c], 1), n_in + n_out))
                if dec.batch[c]:
                    add(w[c] * steps_of(n_out) / dec.batch[c], dec.passes[c])
        busy = rate * sums["total"] / p.instances
        peak = p.g * peak_of(p.device, case.compute_dtype)
        ideal = {
            "compute": sums["flop"] / peak,
            "memory": sums["moved"] / (p.g * p.device["memory_bandwidth_byte_s"]),
            "comm": sums["comm"],
        }
        binding = max(("compute", "memory", "comm"), key=lambda t: sums[t])
        u_ho = ideal[binding] / sums["total"] if sums["total"] else 0.0
        decoded = sum(w[c] for c in range(n_c) if steps_of(case.classes[c][2]) > 0)
        decode_batch = 0.0
        if decoded > 0:
            decode_batch = sum(w[c] * dec.batch[c] for c in range(n_c) if steps_of(case.classes[c][2]) > 0) / decoded
        per_pool.append(
            {
                "busy": busy,
                "eta": 1 / busy - 1 if busy > 0 else INF,
                "u": u_ho * busy,
                "u_ho": u_ho,
                "kv_out_byte_s": rate * sum(x[c] * kv[c] for c in range(n_c)),
                "decode_batch": decode_batch,
                "g_flop_s": rate * sums["flop"],
                "flop": sums["flop"],
                "memory_binds": float(binding == "memory"),
                "starved": float(p.device["arrangement"] == "pipeline" and dec.batch != [] and min(dec.batch) < p.g),
            }
        )
        cost += pool_cost(case, p, busy)
        power += mean_power(p, busy)
        if sum(x) > 0:
            mean, cv2 = service_of(x, [t.occupancy / p.prefill_batch for t in pre])
            wait_mean, wait_tail = waits(asked * sum(x), round(p.instances), mean, cv2)
            half = half_step(case, dec) if role[i] == "both" else 0.0
            slow = slow_class(case, p)
            moves = [[transfer_s(case, n_in, i, j) if j != i else 0.0 for _, n_in, _ in case.classes] for j in range(k)]
            ttft_mean += sum(x) * (wait_mean + half)
            ttft_mean += sum(x[c] * pre[c].latency for c in range(n_c) if x[c])
            ttft_mean += sum(z[i][j][c] * moves[j][c] for j in range(k) for c in range(n_c))
            crossing = max(moves[j][slow] if z[i][j][slow] > 1e-12 else 0.0 for j in range(k))
            ttft_p99 = max(ttft_p99, wait_tail + half + pre[slow].latency + crossing)
        spare = 1.0
        if role[i] == "both":
            spare -= asked * sum(x[c] * pre[c].occupancy / p.prefill_batch for c in range(n_c)) / p.instances
        for c, (_, _, n_out) in enumerate(case.classes):
            if w[c] > 0 and steps_of(n_out) > 0:
                tpot_sum += w[c] * (dec.passes[c].occupancy / spare if spare > 0 else INF)
                tpot_weight += w[c]
    tpot = tpot_sum / tpot_weight if tpot_weight else 0.0
    fullest = moved = 0.0
    for i in range(k):
        for j in range(k):
            if i != j:
                byte = sum(z[i][j][c] * kv[c] for c in range(n_c))
                fullest, moved = max(fullest, byte / link_between(case, i, j).byte_s), moved + byte
    power_mean = case.pue * power
    return {
        "ttft_mean_s": ttft_mean,
        "ttft_p99_s": ttft_p99,
        "tpot_s": tpot,
        "tok_s_per_user": 1 / tpot if tpot else INF,
        "cost_usd_per_h": cost,
        "usd_per_mtok": cost * 1e6 / 3600 / tok,
        "power_mean_w": power_mean,
        "energy_j_per_tok": power_mean / tok,
        "co2_g_per_mtok": power_mean / tok / 3.6e6 * case.g_per_kwh * 1e6,
        "link_use_frac": rate * fullest,
        "kv_transfer_byte_s": rate * moved,
        "mem_margin_byte": margin,
        "pools": per_pool,
    }


def optimal_ratio(case: Case, pools: Sequence[Pool]) -> float:
    """Requests/s decoded per wafer over requests/s prefilled per GPU; of several pools the mean device."""
    prefilled = gpus = decoded = wafers = 0.0
    q = [c[0] for c in case.classes]
    for p in pools:
        if p.n and p.device["kind"] == "gpu":
            each = prefill_seconds(case, p, keeps_output=p.role == "both")
            prefilled += p.instances / sum(w * s for w, s in zip(q, each, strict=True))
            gpus += p.n
        if p.n and p.device["kind"] == "wse":
            seconds = sum(w * s for w, s in zip(q, decode_alone(case, p).seconds, strict=True))
            decoded += p.instances / seconds if seconds else INF
            wafers += p.n
    if not gpus or not wafers:
        return math.nan
    return (decoded / wafers) / (prefilled / gpus) if prefilled else math.nan
