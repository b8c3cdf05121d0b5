"""Whole designs, line by line in plain arithmetic: what `dse score` prints is this."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from dse.resolve import Study
from dse.scoring import explain, score

GPU = """
name = "hand-gpu"
kind = "gpu"
arrangement = "tensor"
peak_flop_s = { bf16 = 300e12 }
memory_byte = 40e9
memory_bandwidth_byte_s = 1.5e12
node_size = 8
link_byte_s = 300e9
link_latency_s = 10e-6
link_efficiency = 0.5
scale_out_byte_s = 25e9
scale_out_latency_s = 20e-6
idle_w = 50
full_w = 400
host_w = 250
rental_usd_per_h = 1.5
capex_usd = 10000
[efficiency.prefill]
compute = 0.5
memory = 0.8
fixed_layer_s = 60e-6
[efficiency.decode]
compute = 0.4
memory = 0.8
fixed_layer_s = 80e-6
"""
WAFER = """
name = "hand-wse"
kind = "wse"
arrangement = "pipeline"
peak_flop_s = { bf16 = 12.5e15 }
memory_byte = 44e9
memory_bandwidth_byte_s = 20e15
node_size = 16
link_byte_s = 150e9
link_latency_s = 5e-6
link_efficiency = 0.8
scale_out_byte_s = 150e9
scale_out_latency_s = 8e-6
idle_w = 9000
full_w = 23000
host_w = 4000
rental_usd_per_h = 90
capex_usd = 2.5e6
[efficiency.prefill]
compute = 0.05
memory = 0.02
fixed_layer_s = 10e-6
[efficiency.decode]
compute = 0.1
memory = 0.02
fixed_layer_s = 10e-6
"""
N_LIN, N_HEAD, TOTAL = 6_476_005_376, 131_072_000, 6_738_415_616
L, H, AD, KV = 32, 4096, 4096, 524_288
WEIGHTS = 2 * TOTAL
CLASSES = ((0.75, 1000, 200), (0.25, 3000, 101))


def study(folder: Path, **changes: Any) -> dict[str, Any]:
    (folder / "gpu.toml").write_text(GPU, encoding="utf-8")
    (folder / "wse.toml").write_text(WAFER, encoding="utf-8")
    raw: dict[str, Any] = {
        "name": "hand",
        "paradigm": "pd_serving",
        "workload": {
            "model": "llama-2-7b",
            "requests": [
                {"name": f"c{i}", "share": q, "input_tokens": n, "output_tokens": o}
                for i, (q, n, o) in enumerate(CLASSES)
            ],
        },
        "pool": [
            {"device": "gpu.toml", "name": "gpu", "count": [64], "instance_size": [2], "roles": ["prefill"]},
            {"device": "wse.toml", "name": "wse", "count": [2], "instance_size": [2], "roles": ["decode"]},
        ],
        "link": {"bandwidth_gb_s": [100], "latency_s": 0.001},
        "site": {"pue": 1.25, "energy_usd_per_kwh": 0.1, "carbon_g_per_kwh": 400},
    }
    return raw | changes


def forward(n: float) -> float:
    return 2 * N_LIN * n + 2 * L * AD * n * n + 2 * N_HEAD


def token(c: float) -> float:
    return 2 * (N_LIN + N_HEAD) + 4 * L * AD * c


def gpu_prefill(n: float) -> float:
    reduce_s = 10e-6 + 2 * (1 / 2) * n * H * 2 / (300e9 * 0.5)
    body = max(forward(n) / (2 * 300e12 * 0.5), (WEIGHTS + n * KV) / (2 * 1.5e12 * 0.8))
    return L * 60e-6 + body + 2 * L * reduce_s


def wafer_decode(c: float, b: float) -> float:
    b_g = max(1.0, b / 2)
    hop = 5e-6 + b_g * H * 2 / (150e9 * 0.8)
    return L * 10e-6 + max(b_g * token(c) / 1.25e15, (WEIGHTS + b_g * c * KV) / 4e14) + 2 * hop


def test_gpu_prefill_wafer_decode_line_by_line(tmp_path: Path) -> None:
    frame, detail = explain(Study.from_dict(study(tmp_path), folder=tmp_path), {})
    row = frame.iloc[0]

    def check(name: str, want: float) -> None:
        assert row[name] == pytest.approx(want, rel=1e-9), name

    # one instance: two GPUs prefill a prompt, two wafers decode
    pre = [gpu_prefill(n) for _, n, _ in CLASSES]
    usable = 0.9 * 44e9
    batch = [min(256, math.floor((usable - WEIGHTS / 2) / ((n + o) * KV / 2))) for _, n, o in CLASSES]
    assert batch == [104, 40]
    step = [wafer_decode(n + o / 2, b) for (_, n, o), b in zip(CLASSES, batch, strict=True)]
    pre_s = sum(q * t for (q, _, _), t in zip(CLASSES, pre, strict=True))
    dec_s = sum(q * (o - 1) * t / b for (q, _, o), t, b in zip(CLASSES, step, batch, strict=True))
    kv_mean = sum(q * n * KV for q, n, _ in CLASSES)
    rate = min(32 / pre_s, 1 / dec_s, 100e9 / kv_mean)
    assert rate == 100e9 / kv_mean  # the link binds
    out_tok = 0.75 * 200 + 0.25 * 101
    check("requests_s", rate)
    check("throughput_tok_s", rate * out_tok)
    check("input_tok_s", rate * (0.75 * 1000 + 0.25 * 3000))
    check("link_use_frac", 1.0)
    check("kv_transfer_byte_s", 100e9)
    check("kv_out_byte_s_gpu", 100e9)
    check("optimal_gpu_wse_ratio", (1 / dec_s / 2) / (1 / pre_s / 2))

    # waiting: M/G/32
    mean_s = pre_s
    cv2 = sum(q * t * t for (q, _, _), t in zip(CLASSES, pre, strict=True)) / mean_s**2 - 1
    load, b = rate * mean_s, 1.0
    for k in range(1, 33):
        b = load * b / (k + load * b)
    waits = 32 * b / (32 - load * (1 - b))
    wq = waits / (32 / mean_s - rate) * (1 + cv2) / 2
    move = [n * KV / 100e9 + 0.001 for _, n, _ in CLASSES]
    mean = wq + sum(q * (t + m) for (q, _, _), t, m in zip(CLASSES, pre, move, strict=True))
    check("ttft_mean_s", mean)
    tail = max(0.0, wq / waits * math.log(waits / 0.01))
    check("ttft_p99_s", tail + pre[1] + move[1])
    tpot = 0.75 * step[0] + 0.25 * step[1]
    check("tpot_s", tpot)
    check("tok_s_per_user", 1 / tpot)

    # use, power, cost
    busy_gpu, busy_wse = rate * pre_s / 32, rate * dec_s
    check("busy_gpu", busy_gpu)
    check("busy_wse", busy_wse)
    check("eta_gpu", 1 / busy_gpu - 1)
    flop_gpu = sum(q * forward(n) for q, n, _ in CLASSES)
    check("u_gpu", flop_gpu / (2 * 300e12) / pre_s * busy_gpu)
    power = 1.25 * (64 * 650 + 2 * 27000)
    check("power_w", power)
    mean_power = 1.25 * (64 * (300 + 350 * busy_gpu) + 2 * (13000 + 14000 * busy_wse))
    check("power_mean_w", mean_power)
    check("energy_j_per_tok", mean_power / (rate * out_tok))
    check("co2_g_per_mtok", mean_power / (rate * out_tok) * 1e6 / 3.6e6 * 400)
    cost = 64 * 1.5 + 2 * 90
    check("cost_usd_per_h", cost)
    check("usd_per_mtok", cost / (rate * out_tok * 3600 / 1e6))
    check("link_cost_usd_per_h", 0.0)

    # memory: the tightest of prefill (longest prompt) and decode (full batch)
    margins = [0.9 * 40e9 - WEIGHTS / 2 - 3000 * KV / 2]
    for (_, n, o), b in zip(CLASSES, batch, strict=True):
        margins.append(usable - WEIGHTS / 2 - b * (n + o) * KV / 2)
    check("mem_margin_byte", min(margins))

    # eq. (2): f = min(sum g, v S)
    flop_wse = sum(q * (o - 1) * token(n + o / 2) for q, n, o in CLASSES)
    system = detail["system"]
    assert system["sum_g_flop_s"] == pytest.approx(rate * (flop_gpu + flop_wse), rel=1e-9)
    assert system["link_bound_flop_s"] == pytest.approx((flop_gpu + flop_wse) / kv_mean * 100e9, rel=1e-9)
    assert row["feasible"]


def alone(pre: list[float], step: list[float], batch: list[int], instances: int) -> float:
    work = 0.0
    for (q, _, o), p, t, b in zip(CLASSES, pre, step, batch, strict=True):
        work += q * (p + (o - 1) * t / b)
    return instances / work


def gpu_decode(c: float, b: float) -> float:
    reduce_s = 10e-6 + 2 * (1 / 2) * b * H * 2 / (300e9 * 0.5)
    body = max(b * token(c) / (2 * 120e12), (WEIGHTS + b * c * KV) / (2 * 1.2e12))
    return L * 80e-6 + body + 2 * L * reduce_s


def wafer_prefill(n: float) -> tuple[float, float]:
    hop = 5e-6 + n * H * 2 / (150e9 * 0.8)
    flop, byte = forward(n), WEIGHTS + n * KV
    latency = L * 10e-6 + max(flop / 6.25e14, byte / 4e14) + hop
    return latency, L * 5e-6 + max(flop / 1.25e15, byte / 8e14) + hop


def test_baselines_line_by_line(tmp_path: Path) -> None:
    """Each pool doing both phases under the same limits; their sum, and the better of them."""
    row = score(Study.from_dict(study(tmp_path), folder=tmp_path), {}).iloc[0]
    g_batch = [min(256, math.floor((36e9 - WEIGHTS / 2) / ((n + o) * KV / 2))) for _, n, o in CLASSES]
    g_step = [gpu_decode(n + o / 2, b) for (_, n, o), b in zip(CLASSES, g_batch, strict=True)]
    gpu = alone([gpu_prefill(n) for _, n, _ in CLASSES], g_step, g_batch, 32)
    w_step = [wafer_decode(n + o / 2, b) for (_, n, o), b in zip(CLASSES, [104, 40], strict=True)]
    wse = alone([wafer_prefill(n)[1] for _, n, _ in CLASSES], w_step, [104, 40], 1)
    tok = 0.75 * 200 + 0.25 * 101
    assert row["aggregate_tok_s"] == pytest.approx((gpu + wse) * tok, rel=1e-9)
    assert row["best_single_tok_s"] == pytest.approx(max(gpu, wse) * tok, rel=1e-9)
    assert row["complementarity"] == pytest.approx(row["requests_s"] / (gpu + wse), rel=1e-9)
    assert row["gain"] == pytest.approx(row["requests_s"] / max(gpu, wse), rel=1e-9)
    per_usd = max(gpu * tok / 96, wse * tok / 180)
    assert row["gain_equal_cost"] == pytest.approx(row["throughput_tok_s"] / (276 * per_usd), rel=1e-9)


def test_ownership_with_a_tier_and_owned_devices(tmp_path: Path) -> None:
    site = {"pue": 1.25, "energy_usd_per_kwh": 0.1, "cost_basis": "ownership", "life_years": 4.0,
            "upkeep_frac_per_year": 0.05}  # fmt: skip
    raw = study(tmp_path, site=site, link={"tier": ["ndr400"], "count": [4]})
    raw["pool"][0]["owned"] = 40
    row = score(Study.from_dict(raw, folder=tmp_path), {}).iloc[0]
    gpu_w = 64 * (300 + 350 * row["busy_gpu"])
    wse_w = 2 * (13000 + 14000 * row["busy_wse"])
    link_w, link_usd = 4 * 112, 4 * 8260
    assert row["power_w"] == pytest.approx(1.25 * (64 * 650 + 2 * 27000 + link_w), rel=1e-9)
    mean_w = 1.25 * (gpu_w + wse_w + link_w)
    assert row["power_mean_w"] == pytest.approx(mean_w, rel=1e-9)
    capital = (24 * 10000 + 2 * 2.5e6 + link_usd) / 4 / 8760
    upkeep = 0.05 * (64 * 10000 + 2 * 2.5e6 + link_usd) / 8760
    assert row["cost_usd_per_h"] == pytest.approx(capital + upkeep + 0.1 * mean_w / 1000, rel=1e-9)
    assert row["link_gb_s"] == 200.0


def test_rental_of_what_is_not_owned(tmp_path: Path) -> None:
    raw = study(tmp_path)
    raw["pool"][0]["owned"] = 40
    row = score(Study.from_dict(raw, folder=tmp_path), {}).iloc[0]
    mine = 40 * (0.05 * 10000 / 8760 + 0.1 * 1.25 * (300 + 350 * row["busy_gpu"]) / 1000)
    assert row["cost_usd_per_h"] == pytest.approx(24 * 1.5 + mine + 2 * 90, rel=1e-9)


def test_a_hundred_and_thirteen_is_too_many(tmp_path: Path) -> None:
    """Section 6: 7B, 1024/256, 8 A100, TPOT 10 ms: the largest b (113) gives 0.4 requests/s, b = 61 gives 24.

    It is one instance of g = 8 A100 (312 TFLOP/s, 1555 GB/s, 300 GB/s with 3.8 us and e_link 1), with
    prefill e_c .65, 60 us a layer and decode e_m .83, 45 us a layer.
    """
    text = GPU.replace("300e12", "312e12").replace("1.5e12", "1555e9").replace("10e-6", "3.8e-6")
    text = text.replace("link_efficiency = 0.5", "link_efficiency = 1.0")
    text = text.replace("compute = 0.5", "compute = 0.65").replace("memory = 0.8", "memory = 0.83")
    text = text.replace("fixed_layer_s = 80e-6", "fixed_layer_s = 45e-6")
    raw = study(tmp_path, pool=[{"device": "a100.toml", "name": "a100", "count": [8], "instance_size": [8]}])
    (tmp_path / "a100.toml").write_text(text, encoding="utf-8")
    raw["workload"]["requests"] = [{"share": 1.0, "input_tokens": 1024, "output_tokens": 256}]
    raw["workload"]["slo"] = {"tpot_s": 0.01}
    del raw["link"]

    def t(b: int) -> float:
        reduce_s = 3.8e-6 + 2 * 7 / 8 * b * H * 2 / 300e9
        q = WEIGHTS + b * 1152 * KV
        body = max(b * token(1152) / (8 * 312e12 * 0.4), q / (8 * 1555e9 * 0.83))
        return L * 45e-6 + body + 2 * L * reduce_s

    reduce_s = 3.8e-6 + 2 * 7 / 8 * 1024 * H * 2 / 300e9
    occ = L * 60e-6 + forward(1024) / (8 * 312e12 * 0.65) + 2 * L * reduce_s

    def rate(b: int) -> float:
        return min(1 / (occ + 255 * t(b) / b), (1 - t(b) / 0.01) / occ)

    largest = max(b for b in range(1, 257) if t(b) <= 0.01)
    best = max(range(1, largest + 1), key=rate)
    assert (largest, best) == (113, 61)
    assert rate(113) == pytest.approx(0.4, abs=0.05)
    assert rate(61) == pytest.approx(24, abs=0.2)
    row = score(Study.from_dict(raw, folder=tmp_path), {"role_a100": "both"}).iloc[0]
    assert row["requests_s"] == pytest.approx(rate(61), rel=1e-9)
    assert row["decode_batch_a100"] == 61
    assert row["tpot_s"] == pytest.approx(t(61) / (1 - rate(61) * occ), rel=1e-9)
    assert row["tpot_s"] <= 0.01 * (1 + 1e-12)


def test_ttft_limit_holds_the_rate(tmp_path: Path) -> None:
    """The rate reported is the largest whose p99 meets the limit, so p99 equals it."""
    raw = study(tmp_path, link={"bandwidth_gb_s": [1e5]})
    raw["pool"][1]["count"] = [20]
    free = score(Study.from_dict(raw, folder=tmp_path), {}).iloc[0]
    assert free["ttft_p99_s"] == math.inf
    raw["workload"]["slo"] = {"ttft_p99_s": 0.4}
    held = score(Study.from_dict(raw, folder=tmp_path), {}).iloc[0]
    assert held["ttft_p99_s"] == pytest.approx(0.4, rel=1e-9)
    assert 0.5 * free["requests_s"] < held["requests_s"] < free["requests_s"]


def test_a_demand_moves_latency_but_not_capacity(tmp_path: Path) -> None:
    raw = study(tmp_path)
    free = score(Study.from_dict(raw, folder=tmp_path), {}).iloc[0]
    raw["demand"] = {"requests_s": 1.0}
    quiet = score(Study.from_dict(raw, folder=tmp_path), {}).iloc[0]
    assert quiet["requests_s"] == free["requests_s"]
    pre = [gpu_prefill(n) for _, n, _ in CLASSES]
    assert quiet["ttft_p99_s"] == pytest.approx(pre[1] + 3000 * KV / 100e9 + 0.001, rel=1e-9)  # nobody waits
    raw["demand"] = {"requests_s": free["requests_s"] * 2}
    assert not score(Study.from_dict(raw, folder=tmp_path), {}).iloc[0]["feasible"]


NEEDLESS = [("rental", "capex_usd = 10000"), ("ownership", "rental_usd_per_h = 1.5")]


@pytest.mark.parametrize(("basis", "drop"), NEEDLESS)
def test_a_price_that_is_not_needed_may_be_missing(tmp_path: Path, basis: str, drop: str) -> None:
    pool = {"device": "cut.toml", "name": "gpu", "count": [0, 4]}
    raw = study(tmp_path, site={"cost_basis": basis}, pool=[pool])
    del raw["link"]
    (tmp_path / "cut.toml").write_text(GPU.replace(drop, ""), encoding="utf-8")
    row = score(Study.from_dict(raw, folder=tmp_path), {"n_gpu": 4}).iloc[0]
    assert 0 < row["cost_usd_per_h"] < 10


@pytest.mark.parametrize("role", ["prefill", "decode", "both"])
def test_a_pool_alone_keeps_both_phases_in_memory(tmp_path: Path, role: str) -> None:
    """A pool alone does both phases whatever its role: its margin is that of role both."""
    pool = {"device": "gpu.toml", "name": "gpu", "count": [4], "prefill_batch": [16], "max_decode_batch": [4]}
    raw = study(tmp_path, pool=[pool])
    raw["workload"]["requests"] = [{"share": 1.0, "input_tokens": 1000, "output_tokens": 500}]
    row = score(Study.from_dict(raw, folder=tmp_path), {"role_gpu": role}).iloc[0]
    want = 36e9 - WEIGHTS - max(16, 4) * 1500 * KV
    assert row["role_gpu"] == "both"
    assert row["mem_margin_byte"] == pytest.approx(want, rel=1e-9)


def test_requests_of_one_token_need_no_decode(tmp_path: Path) -> None:
    """Prefill yields the first token: a pool too small for any prefill says so, without a warning."""
    raw = study(tmp_path, pool=[{"device": "gpu.toml", "name": "gpu", "count": [4], "prefill_batch": [64]}])
    raw["workload"]["requests"] = [{"share": 1.0, "input_tokens": 2000, "output_tokens": 1}]
    raw["workload"]["slo"] = {"tpot_s": 0.01}
    row = score(Study.from_dict(raw, folder=tmp_path), {}).iloc[0]
    assert not row["feasible"]
    assert row["requests_s"] == 0.0
    row = score(Study.from_dict(raw, folder=tmp_path), {"prefill_batch_gpu": 1}).iloc[0]
    reduce_free = L * 60e-6 + forward(2000) / (300e12 * 0.5)
    assert row["requests_s"] == pytest.approx(4 / reduce_free, rel=1e-9)
    assert row["tpot_s"] == 0.0
