"""Section 3: parameters, flop and KV bytes, against published totals and plain arithmetic."""

from __future__ import annotations

import numpy as np
import plain_model as plain
import pytest

from dse.catalog import load_catalog
from dse.model.transformer import (
    Arithmetic,
    arithmetic,
    attended_tokens,
    causal_pairs,
    decode_flop,
    kv_byte,
    kv_share,
    prefill_flop,
    touched_weight_byte,
    weight_byte,
)

PUBLISHED = {
    "llama-2-7b": 6.738e9,
    "llama-2-13b": 13.016e9,
    "codellama-34b": 33.74e9,
    "llama-2-70b": 68.98e9,
    "llama-3.1-8b": 8.030e9,
    "llama-3.1-70b": 70.55e9,
    "llama-3.1-405b": 405.9e9,
    "mixtral-8x7b": 46.70e9,
    "deepseek-v3": 671e9,
    "llama-2-70b-mha": 78.37e9,
}


def of(name: str) -> Arithmetic:
    return arithmetic(load_catalog().model(name))


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_totals(name: str) -> None:
    assert of(name).total_parameters == pytest.approx(PUBLISHED[name], rel=5e-3)


@pytest.mark.parametrize(("name", "active"), [("mixtral-8x7b", 12.9e9), ("deepseek-v3", 37.5e9)])
def test_active_parameters(name: str, active: float) -> None:
    a = of(name)
    assert a.linear_parameters + 2 * a.head_parameters == pytest.approx(active, rel=0.01)


@pytest.mark.parametrize("name", sorted(load_catalog().models))
def test_total_is_the_page_formula(name: str) -> None:
    """Total = matmuls + norms (2h per layer + h) + embedding, head unless tied, biases: to 1e-9."""
    want = plain.shape_of(load_catalog().model(name)).total
    assert of(name).total_parameters == pytest.approx(want, rel=1e-9)


@pytest.mark.parametrize("name", sorted(load_catalog().models))
def test_every_coefficient_is_the_page_formula(name: str) -> None:
    a, p = of(name), plain.shape_of(load_catalog().model(name))
    got = (
        a.linear_parameters,
        a.head_parameters,
        a.routed_parameters,
        a.prefill_score_flop,
        a.decode_score_flop,
        a.kv_entries,
    )
    assert got == (p.linear, p.head, p.routed, p.prefill_score, p.decode_score, p.kv_numbers)


def test_llama_2_7b_by_hand() -> None:
    a = of("llama-2-7b")
    attention = 4096 * 32 * 128 + 2 * 4096 * 32 * 128 + 32 * 128 * 4096
    layer = attention + 3 * 4096 * 11008
    assert a.linear_parameters == 32 * layer == 6_476_005_376
    assert a.total_parameters == 32 * layer + 2 * 32000 * 4096 + (2 * 32 + 1) * 4096 == 6_738_415_616
    assert weight_byte(a, 0.5) == 6_738_415_616 / 2
    n = 1024
    assert float(prefill_flop(a, n)) == 2 * 6_476_005_376 * n + 2 * 32 * 32 * 128 * n**2 + 2 * 32000 * 4096
    assert float(decode_flop(a, 1152)) == 2 * (6_476_005_376 + 32000 * 4096) + 4 * 32 * 32 * 128 * 1152


def test_deepseek_layer_by_hand() -> None:
    a = of("deepseek-v3")
    attention = 7168 * 1536 + 1536 * 128 * (128 + 64) + 7168 * (512 + 64) + 512 * 128 * (128 + 128) + 128 * 128 * 7168
    dense, expert = 3 * 7168 * 18432, 3 * 7168 * 2048
    assert a.linear_parameters == 61 * attention + 3 * dense + 58 * (7168 * 256 + 9 * expert)
    assert float(kv_byte(a, 1, 2.0)) == 61 * (512 + 64) * 2
    assert float(decode_flop(a, 1000)) == pytest.approx(
        2 * (a.linear_parameters + 129280 * 7168) + 2 * 61 * 128 * (2 * 512 + 64) * 1000, rel=1e-12
    )
    assert float(prefill_flop(a, 100)) == pytest.approx(
        2 * a.linear_parameters * 100 + 61 * 128 * (128 + 64 + 128) * 100**2 + 2 * 129280 * 7168, rel=1e-12
    )
    assert kv_share(a, [1, 4, 8]).tolist() == [1.0, 1.0, 1.0]


def test_kv_bytes_of_table_3() -> None:
    assert float(kv_byte(of("llama-2-7b"), 1, 2.0)) == 524_288
    assert float(kv_byte(of("llama-2-70b-mha"), 1, 2.0)) == 2_621_440
    assert float(kv_byte(of("llama-2-70b"), 1, 2.0)) * 8 == 2_621_440
    per_device = 12_500 * float(kv_byte(of("llama-2-7b"), 1, 2.0))
    assert per_device / 1e9 == pytest.approx(6.55, abs=0.005)
    assert 4 * per_device / 1e9 == pytest.approx(26.2, abs=0.05)
    assert 32 * per_device / 1e9 == pytest.approx(209.7, abs=0.05)


def test_prefix_hits_save_what_is_not_computed() -> None:
    a = of("llama-3.1-8b")
    n, fresh = 2000, 500
    want = 2 * a.linear_parameters * fresh + 2 * 32 * 32 * 128 * (n**2 - (n - fresh) ** 2) + 2 * 128256 * 4096
    assert float(prefill_flop(a, n, 0.75)) == pytest.approx(want, rel=1e-12)
    assert float(prefill_flop(a, n, 0.0)) > want


def test_windows_cap() -> None:
    a = of("mistral-7b")
    assert float(kv_byte(a, 10_000, 2.0)) == 2 * 32 * 8 * 128 * 2 * 4096
    assert float(kv_byte(a, 100, 2.0)) == 2 * 32 * 8 * 128 * 2 * 100
    assert float(decode_flop(a, 10_000)) == float(decode_flop(a, 4096))
    assert float(attended_tokens(10_000, 4096, 0.25)) == 0.25 * 4096 + 0.75 * 10_000
    # a token at position x attends min(x, w): the sum, against its closed form
    exact = 2 * sum(min(x, 4096) for x in range(10_000))
    assert float(causal_pairs(10_000, 4096, 1.0)) == pytest.approx(exact, rel=3e-4)


def test_kv_share_stops_at_the_heads() -> None:
    assert kv_share(of("llama-2-70b"), [1, 2, 8, 16]).tolist() == [1.0, 0.5, 0.125, 0.125]


def test_touched_experts() -> None:
    a = of("mixtral-8x7b")
    routed = 32 * 8 * 3 * 4096 * 14336
    rest = a.total_parameters - routed
    for b in (1, 2.5, 7):
        touched = 8 * (1 - (1 - 2 / 8) ** b)
        assert float(touched_weight_byte(a, b, 1.0)) == pytest.approx(rest + routed / 8 * touched, rel=1e-12)
    assert float(touched_weight_byte(a, 1, 1.0)) == pytest.approx(rest + routed * 2 / 8, rel=1e-12)
    assert float(touched_weight_byte(a, 1e6, 1.0)) == pytest.approx(a.total_parameters, rel=1e-12)
    assert float(touched_weight_byte(of("llama-2-7b"), 5, 2.0)) == weight_byte(of("llama-2-7b"), 2.0)


def test_a_latent_model_without_query_compression_keeps_its_query_projection() -> None:
    """DeepSeek-V2-Lite has q_lora_rank null: queries are projected h -> a (d_nope + d_rope) directly."""
    from dataclasses import replace

    lite = replace(load_catalog().model("deepseek-v3"), q_rank=0)
    attention = 7168 * 128 * (128 + 64) + 7168 * (512 + 64) + 512 * 128 * (128 + 128) + 128 * 128 * 7168
    ffn = 3 * 3 * 7168 * 18432 + 58 * (7168 * 256 + 9 * 3 * 7168 * 2048)
    assert arithmetic(lite).linear_parameters == 61 * attention + ffn


def test_arrays_equal_scalars() -> None:
    for name in ("mistral-7b", "mixtral-8x7b", "deepseek-v3"):
        a = of(name)
        n = [1, 100, 4096, 9000]
        assert prefill_flop(a, n, 0.3).tolist() == [float(prefill_flop(a, x, 0.3)) for x in n]
        assert decode_flop(a, n).tolist() == [float(decode_flop(a, x)) for x in n]
        assert kv_byte(a, n, 1.0).tolist() == [float(kv_byte(a, x, 1.0)) for x in n]
        assert touched_weight_byte(a, n, 1.0).tolist() == [float(touched_weight_byte(a, x, 1.0)) for x in n]
        assert kv_share(a, n).tolist() == [float(kv_share(a, x)) for x in n]
        assert np.all(np.diff(prefill_flop(a, n)) > 0)
