"""Section 4, memory in training: states, activations, and what a streaming device holds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dse.catalog import load_catalog
from dse.errors import UnknownNameError
from dse.model.training_memory import (
    RECOMPUTE,
    activation_byte,
    boundary_byte,
    feed_forward_entries,
    layer_activation_streaming_byte,
    state_byte,
)
from dse.workload import Transformer

SHAPE = {"sequence_tokens": 2048, "micro_batch": 2, "hidden": 4096, "heads": 32, "feed_forward_entries": 3 * 11008}


def shape(**changes: float) -> dict[str, float]:
    return SHAPE | changes


PLAIN = Transformer(
    name="m", layers=4, hidden=64, heads=4, kv_heads=4, head_size=16, feed_forward=256, vocabulary=100, gated=False
)


def test_states_by_hand() -> None:
    # 8e9 parameters on 4 devices: 2e9 each; of the 16 bytes 12 (then 14, then all) are shared by 3 replicas
    assert [float(state_byte(8e9, 4, 3, z)) for z in range(4)] == pytest.approx(
        [2e9 * 16, 2e9 * (4 + 4), 2e9 * (2 + 14 / 3), 2e9 * 16 / 3], rel=1e-12
    )


@pytest.mark.parametrize("zero_stage", range(4))
def test_one_replica_has_nothing_to_shard(zero_stage: int) -> None:
    assert float(state_byte(1e9, 2, 1, zero_stage)) == 8e9


def test_states_broadcast() -> None:
    got = state_byte(1e9, [[1], [2]], [1, 8, 64], np.array([[0], [3]]))
    assert got.shape == (2, 3)
    assert got.tolist() == [[float(state_byte(1e9, g, r, z)) for r in (1, 8, 64)] for g, z in ((1, 0), (2, 3))]


@given(st.floats(1e6, 1e13), st.integers(1, 64), st.integers(1, 512), st.integers(1, 512), st.integers(0, 2))
def test_more_sharding_never_needs_more(n: float, g: int, r: int, more: int, z: int) -> None:
    assert state_byte(n, g, r, z + 1) <= state_byte(n, g, r, z)
    assert state_byte(n, g, r + more, z) <= state_byte(n, g, r, z)
    assert state_byte(n, g + more, r, z) <= state_byte(n, g, r, z)
    # every replica together holds at least one whole copy
    assert float(state_byte(n, g, r, z) * g * r) >= 16 * n * (1 - 1e-12)


@pytest.mark.parametrize("s", [512, 2048])
@pytest.mark.parametrize("g", [1, 8])
def test_plain_four_h_is_table_2_of_the_source(s: int, g: int) -> None:
    m, h, a = 3, 1024, 16
    smh, scores, entries = s * m * h, 5 * a * s / h, 8 * h
    want = {
        ("none", True): smh * (34 + scores) / g,
        ("selective", True): smh * 34 / g,
        ("full", True): 2 * smh,
        ("none", False): smh * (10 + 24 / g + scores / g),
        ("selective", False): smh * (10 + 24 / g),
        ("full", False): 2 * smh,
    }
    got = {(r, sp): float(activation_byte(s, m, h, a, entries, g, r, sp)) for r, sp in want}
    assert got == pytest.approx(want, rel=1e-12)


def test_activations_by_hand_term_by_term() -> None:
    # attention 11 s m h + 5 a s^2 m, gated feed-forward 2 s m h + 2 * 3 f s m + s m h, two norms 4 s m h
    s, m, h, a, f = 100, 2, 64, 4, 172
    want = 11 * s * m * h + 5 * a * s * s * m + 2 * s * m * h + 2 * 3 * f * s * m + s * m * h + 4 * s * m * h
    assert float(activation_byte(s, m, h, a, 3 * f, 1, "none")) == pytest.approx(want, rel=1e-12)
    assert float(activation_byte(s, m, h, a, 3 * f, 1, "none", False)) == pytest.approx(want, rel=1e-12)


def test_sequence_parallelism_splits_the_replicated_part() -> None:
    for recompute in ("none", "selective"):
        whole = activation_byte(**shape(), g=8, recompute=recompute, sequence_parallel=False)
        split = activation_byte(**shape(), g=8, recompute=recompute)
        assert float(whole - split) == pytest.approx(2048 * 2 * 4096 * 10 * (1 - 1 / 8), rel=1e-12)
        assert float(split * 8) == pytest.approx(float(activation_byte(**shape(), g=1, recompute=recompute)), rel=1e-12)


@given(st.integers(1, 65536), st.integers(1, 8), st.integers(1, 128), st.integers(1, 64), st.booleans())
def test_recomputing_and_splitting_never_need_more(s: int, m: int, a: int, g: int, sp: bool) -> None:
    h = a * 128
    args = {"sequence_tokens": s, "micro_batch": m, "hidden": h, "heads": a, "feed_forward_entries": 8 * h}
    none, selective, full = (float(activation_byte(**args, g=g, recompute=r, sequence_parallel=sp)) for r in RECOMPUTE)
    assert selective <= none
    assert full <= selective or (sp and g > 17)  # a whole input outgrows 34 split bytes beyond g = 17
    for r in RECOMPUTE:
        assert activation_byte(**args, g=2 * g, recompute=r, sequence_parallel=sp) <= activation_byte(
            **args, g=g, recompute=r, sequence_parallel=sp
        )
        assert activation_byte(**args, g=g, recompute=r) <= activation_byte(
            **args, g=g, recompute=r, sequence_parallel=False
        )


@pytest.mark.parametrize("recompute", RECOMPUTE)
@pytest.mark.parametrize("sequence_parallel", [True, False])
def test_arrays_equal_scalars(recompute: str, sequence_parallel: bool) -> None:
    s, g = np.array([[512], [4096]]), np.array([1, 2, 8])
    got = activation_byte(s, 2, 4096, 32, 33024, g, recompute, sequence_parallel)
    assert got.shape == (2, 3)
    want = [
        [float(activation_byte(x, 2, 4096, 32, 33024, y, recompute, sequence_parallel)) for y in g] for x in (512, 4096)
    ]
    assert got.tolist() == want


def test_an_unknown_recomputation_is_named() -> None:
    with pytest.raises(UnknownNameError, match="no recomputation named 'selectiv'; did you mean selective"):
        activation_byte(**shape(), g=1, recompute="selectiv")
    with pytest.raises(UnknownNameError, match="no recomputation named 'whole'"):
        layer_activation_streaming_byte(128, 64, 4, 512, "whole")


def test_feed_forward_entries_by_hand() -> None:
    assert feed_forward_entries(PLAIN) == 2 * 256
    assert feed_forward_entries(replace(PLAIN, gated=True)) == 3 * 256
    experts = {"experts": 8, "experts_per_token": 2, "expert_feed_forward": 32, "shared_experts": 1}
    assert feed_forward_entries(replace(PLAIN, gated=True, **experts)) == 3 * (2 + 1) * 32
    # one dense layer of four
    assert feed_forward_entries(replace(PLAIN, **experts, n_dense_layers=1)) == 2 * (256 + 3 * 3 * 32) / 4


@pytest.mark.parametrize(
    ("name", "want"),
    [
        ("llama-2-70b", 3 * 28672),
        ("mixtral-8x7b", 3 * 2 * 14336),
        ("deepseek-v3", 3 * (3 * 18432 + 58 * 9 * 2048) / 61),
    ],
)
def test_feed_forward_entries_of_the_catalogue(name: str, want: float) -> None:
    assert feed_forward_entries(load_catalog().model(name)) == pytest.approx(want, rel=1e-12)


def test_streaming_layer_is_one_sample_of_one_device() -> None:
    s, h, a, entries = 2048, 4096, 32, 33024
    smh = s * h
    assert float(layer_activation_streaming_byte(s, h, a, entries, "none")) == pytest.approx(
        smh * (18 + 2 * entries / h + 5 * a * s / h), rel=1e-12
    )
    assert float(layer_activation_streaming_byte(s, h, a, entries, "selective")) == pytest.approx(
        smh * (18 + 2 * entries / h), rel=1e-12
    )
    full, none = (layer_activation_streaming_byte([s, 2 * s], h, a, entries, r) for r in ("full", "none"))
    assert full.tolist() == none.tolist()


def test_boundary_is_full_recomputation_of_all_layers() -> None:
    assert float(boundary_byte(2048, 6, 4096, 32)) == 2 * 2048 * 6 * 4096 * 32
    one_layer = activation_byte(2048, 6, 4096, 32, 33024, 1, "full")
    assert float(boundary_byte(2048, 6, 4096, 32)) == 32 * float(one_layer)
    assert boundary_byte([1, 2], [[1], [3]], 4, 5).tolist() == [[40.0, 80.0], [120.0, 240.0]]
    assert float(boundary_byte(2048, 0, 4096, 32)) == 0.0
