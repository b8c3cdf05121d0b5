"""Section 4: time of a prefill pass and of a decode step, in plain arithmetic."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dse.catalog import load_catalog
from dse.hardware import Accelerator, Efficiency
from dse.model.phases import PassTime, decode_time, prefill_time
from dse.model.transformer import arithmetic

N_LIN, N_HEAD, TOTAL, L, H = 6_476_005_376, 32000 * 4096, 6_738_415_616, 32, 4096
KV = 524_288
LLAMA = arithmetic(load_catalog().model("llama-2-7b"))

TENSOR = Accelerator(
    name="toy", kind="gpu", arrangement="tensor", peak_flop_s={"bf16": 1e15, "fp8": 2e15}, memory_byte=80e9,
    memory_bandwidth_byte_s=2e12, streaming_byte=0.0, node_size=4, rack_size=4, link_byte_s=200e9,
    link_latency_s=4e-6, link_efficiency=0.5, scale_out_byte_s=20e9, scale_out_latency_s=2e-5, idle_w=100,
    full_w=700, host_w=300, rental_usd_per_h=2.0, capex_usd=None,
    efficiency={
        "train": Efficiency(compute=0.5, memory=0.8, fixed_layer_s=1e-4),
        "prefill": Efficiency(compute=0.5, memory=0.8, fixed_layer_s=5e-5),
        "decode": Efficiency(compute=0.4, memory=0.75, fixed_layer_s=2e-5),
    },
)  # fmt: skip
WAFER = replace(TENSOR, kind="wse", arrangement="pipeline")


def prefill(device: Accelerator, **changes: Any) -> PassTime:
    given = {"g": 1, "batch": 1, "input_tokens": 1000, "hit_frac": 0.0, "weight_dtype_byte": 2.0}
    given |= {"kv_dtype_byte": 2.0, "compute_dtype": "bf16"}
    return prefill_time(device, LLAMA, **(given | changes))


def decode(device: Accelerator, **changes: Any) -> PassTime:
    given = {"g": 1, "batch": 1, "context_tokens": 1000, "weight_dtype_byte": 2.0, "kv_dtype_byte": 2.0}
    given |= {"compute_dtype": "bf16"}
    return decode_time(device, LLAMA, **(given | changes))


def forward(n: float) -> float:
    return 2 * N_LIN * n + 2 * L * 4096 * n * n + 2 * N_HEAD


def token(c: float) -> float:
    return 2 * (N_LIN + N_HEAD) + 4 * L * 4096 * c


def test_prefill_on_one_device_is_compute_bound() -> None:
    t = prefill(TENSOR, batch=3)
    assert float(t.occupancy_s) == pytest.approx(L * 5e-5 + 3 * forward(1000) / (1e15 * 0.5), rel=1e-12)
    assert float(t.latency_s) == float(t.occupancy_s)
    assert float(t.communication_s) == 0.0
    assert float(t.moved_byte) == 2 * TOTAL + 3 * 1000 * KV


def test_prefill_of_few_tokens_is_memory_bound() -> None:
    t = prefill(TENSOR, input_tokens=8)
    assert float(t.occupancy_s) == pytest.approx(L * 5e-5 + (2 * TOTAL + 8 * KV) / (2e12 * 0.8), rel=1e-12)


@pytest.mark.parametrize(("g", "link", "l0"), [(2, 200e9, 4e-6), (4, 200e9, 4e-6), (8, 20e9, 2e-5)])
def test_tensor_prefill_with_collectives(g: int, link: float, l0: float) -> None:
    t = prefill(TENSOR, g=g, batch=2)
    reduce_s = l0 + 2 * (g - 1) / g * 2 * 1000 * H * 2 / (link * 0.5)
    want = L * 5e-5 + 2 * forward(1000) / (g * 1e15 * 0.5) + 2 * L * reduce_s
    assert float(t.occupancy_s) == pytest.approx(want, rel=1e-12)


def test_prefill_of_a_cached_prefix() -> None:
    t = prefill(TENSOR, g=2, hit_frac=0.6)
    flop = 2 * N_LIN * 400 + 2 * L * 4096 * (1000**2 - 600**2) + 2 * N_HEAD
    assert float(t.flop) == pytest.approx(flop, rel=1e-12)
    reduce_s = 4e-6 + 400 * H * 2 / (200e9 * 0.5)
    assert float(t.communication_s) == pytest.approx(2 * L * reduce_s, rel=1e-12)
    assert float(t.moved_byte) == 2 * TOTAL + 1000 * KV


def test_pipeline_prefill() -> None:
    t = prefill(WAFER, g=4, batch=2)
    flop, byte = 2 * forward(1000), 2 * TOTAL + 2 * 1000 * KV
    hop = 4e-6 + 2 * 1000 * H * 2 / (200e9 * 0.5)
    assert float(t.latency_s) == pytest.approx(L * 5e-5 + max(flop / 5e14, byte / 1.6e12) + 3 * hop, rel=1e-12)
    assert float(t.occupancy_s) == pytest.approx(L * 5e-5 / 4 + max(flop / 2e15, byte / 6.4e12) + hop, rel=1e-12)


def test_pipeline_hops_stay_on_scale_up() -> None:
    t = prefill(WAFER, g=8)
    hop = 4e-6 + 1000 * H * 2 / (200e9 * 0.5)
    assert float(t.communication_s) == pytest.approx(hop, rel=1e-12)


def test_pipeline_of_one_is_tensor_of_one() -> None:
    assert float(prefill(WAFER).latency_s) == float(prefill(WAFER).occupancy_s) == float(prefill(TENSOR).latency_s)
    assert float(decode(WAFER, batch=7).occupancy_s) == pytest.approx(
        float(decode(TENSOR, batch=7).occupancy_s), rel=1e-12
    )


def test_decode_of_one_is_memory_bound() -> None:
    want = L * 2e-5 + (2 * TOTAL + 1000 * KV) / (2e12 * 0.75)
    assert float(decode(TENSOR).occupancy_s) == pytest.approx(want, rel=1e-12)


def test_decode_without_context_or_bytes_is_compute_bound() -> None:
    t = decode(TENSOR, batch=5000, context_tokens=1)
    assert float(t.occupancy_s) == pytest.approx(L * 2e-5 + 5000 * token(1) / (1e15 * 0.4), rel=1e-12)


def test_tensor_decode_shares_kv() -> None:
    t = decode(TENSOR, g=4, batch=16)
    reduce_s = 4e-6 + 1.5 * 16 * H * 2 / (200e9 * 0.5)
    want = L * 2e-5 + (2 * TOTAL + 16 * 1000 * KV) / (4 * 2e12 * 0.75) + 2 * L * reduce_s
    assert float(t.occupancy_s) == pytest.approx(want, rel=1e-12)


def test_kv_heads_limit_the_share() -> None:
    """16 devices, 8 KV heads: each holds an eighth, so twice the cache is read."""
    a = arithmetic(load_catalog().model("llama-3.1-8b"))
    t = decode_time(
        TENSOR,
        a,
        g=16,
        batch=10,
        context_tokens=1000,
        weight_dtype_byte=2.0,
        kv_dtype_byte=1.0,
        compute_dtype="fp8",
    )
    assert float(t.moved_byte) == pytest.approx(2 * a.total_parameters + 10 * 1000 * 2 * 32 * 8 * 128 * 2, rel=1e-12)
    assert float(t.compute_s) == pytest.approx(float(t.flop) / (16 * 2e15 * 0.4), rel=1e-12)


@pytest.mark.parametrize("b", [1, 3, 4, 10])
def test_pipeline_decode(b: int) -> None:
    t = decode(WAFER, g=4, batch=b)
    b_g = max(1.0, b / 4)
    hop = 4e-6 + b_g * H * 2 / (200e9 * 0.5)
    body = max(b_g * token(1000) / (1e15 * 0.4), (2 * TOTAL + b_g * 1000 * KV) / (2e12 * 0.75))
    assert float(t.occupancy_s) == pytest.approx(L * 2e-5 + body + 4 * hop, rel=1e-12)
    assert float(t.flop) == pytest.approx(b * token(1000), rel=1e-12)


def test_half_filled_pipeline_reads_what_its_groups_read() -> None:
    """Two sequences on four wafers: each reads all weights once, two wafers idle; Q of eq. (3) is that."""
    t = decode(WAFER, g=4, batch=2)
    assert float(t.moved_byte) == pytest.approx(2 * (2 * TOTAL + 1000 * KV), rel=1e-12)


def test_experts_of_one_group() -> None:
    a = arithmetic(load_catalog().model("mixtral-8x7b"))
    routed = 32 * 8 * 3 * 4096 * 14336
    t = decode_time(
        WAFER,
        a,
        g=4,
        batch=8,
        context_tokens=100,
        weight_dtype_byte=2.0,
        kv_dtype_byte=2.0,
        compute_dtype="bf16",
    )
    read = 2 * (a.total_parameters - routed * (1 - 2 / 8) ** 2) + 2 * 100 * 2 * 32 * 8 * 128 * 2
    assert float(t.memory_s) == pytest.approx(read / (2e12 * 0.75), rel=1e-12)


@pytest.mark.parametrize(("name", "ms"), [("llama-3.1-8b", 0.37), ("qwen2.5-72b", 1.2)])
def test_section_8_wafer_decode(name: str, ms: float) -> None:
    """WSE-2 at work, batch 1: 0.37 ms (8B) to 1.2 ms (72B) a token; the default profile is slower, by at most 15 %."""

    def token_ms(profile: str) -> float:
        t = decode_time(
            load_catalog().device("wse-2", profile),
            arithmetic(load_catalog().model(name)),
            g=1,
            batch=1,
            context_tokens=1,
            weight_dtype_byte=2.0,
            kv_dtype_byte=2.0,
            compute_dtype="bf16",
        )
        return float(t.occupancy_s) * 1e3

    assert token_ms("hardware") == pytest.approx(ms, rel=0.05)
    assert 1.0 < token_ms("default") / token_ms("hardware") < 1.15


def test_arrays_equal_scalars() -> None:
    g, b = [1, 2, 4, 8], [1, 3, 64]
    for device in (TENSOR, WAFER):
        table = decode(device, g=np.array(g)[:, None], batch=np.array(b)[None, :])
        first = prefill(device, g=np.array(g)[:, None], batch=np.array(b)[None, :])
        for i, x in enumerate(g):
            for j, y in enumerate(b):
                assert table.occupancy_s[i, j] == float(decode(device, g=x, batch=y).occupancy_s)
                assert first.occupancy_s[i, j] == float(prefill(device, g=x, batch=y).occupancy_s)
                assert first.latency_s[i, j] == float(prefill(device, g=x, batch=y).latency_s)


def test_measured_table_takes_the_place_of_the_law() -> None:
    law = load_catalog().device("a100-40gb-sxm")
    model = arithmetic(load_catalog().model("llama-2-7b"))
    measured = Efficiency(
        compute=0.5, memory=0.5, fixed_layer_s=1.0, table_flop=(1e12, 2e13, 4e13), table_s=(0.01, 0.1, 0.3)
    )
    device = replace(law, efficiency={**law.efficiency, "prefill": measured})
    common = {"hit_frac": 0.0, "weight_dtype_byte": 2.0, "kv_dtype_byte": 2.0, "compute_dtype": "bf16"}
    for g in (1, 2):
        found = prefill_time(device, model, g=g, batch=1, input_tokens=1024, **common)
        plain = prefill_time(law, model, g=g, batch=1, input_tokens=1024, **common)
        flop = float(plain.flop) / g
        expected = 0.01 + (flop - 1e12) * 0.09 / 1.9e13 + float(plain.communication_s)
        assert float(found.occupancy_s) == pytest.approx(expected, rel=1e-12)
        assert float(found.fixed_s) == 0.0
