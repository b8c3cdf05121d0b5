"""Fig. 16 of arXiv 2610.39222: the optimal GPU:WSE ratio for 7B over 128..8K tokens in and out.

A100-40GB, one device per instance, prefill e_c .58 and 60 us a layer (catalogue). WSE-3 decode: 10.5 us a
layer, e_c .1, e_m 1.9 % of 20 PB/s, as WSE-2's data sheet has it; the catalogue has 21 PB/s for WSE-3.
"""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path

import pytest
import tomli_w

from dse.catalog import load_catalog
from dse.resolve import Study
from dse.scoring import score

TOKENS = (128, 256, 512, 1024, 2048, 4096, 8192)
N_LIN, N_HEAD, TOTAL, L, KV = 6_476_005_376, 131_072_000, 6_738_415_616, 32, 524_288


def plain_ratio(n: int, o: int) -> float:
    flop = 2 * N_LIN * n + 2 * L * 4096 * n * n + 2 * N_HEAD
    prefill = L * 60e-6 + max(flop / (312e12 * 0.58), (2 * TOTAL + n * KV) / (1555e9 * 0.8))
    b = min(256, math.floor((0.9 * 44e9 - 2 * TOTAL) / ((n + o) * KV)))
    c = n + o / 2
    token = 2 * (N_LIN + N_HEAD) + 4 * L * 4096 * c
    step = L * 10.5e-6 + max(b * token / (12.5e15 * 0.1), (2 * TOTAL + b * c * KV) / (20e15 * 0.019))
    return prefill / ((o - 1) * step / b)


def program_ratio(folder: Path, n: int, o: int, gpus: int = 8, wafers: int = 1) -> float:
    wse = load_catalog().device("wse-3")
    phase = {"compute": 0.1, "memory": 0.019, "fixed_layer_s": 10.5e-6}
    device = {
        "name": "wafer", "kind": "wse", "arrangement": "pipeline", "peak_flop_s": {"bf16": 12.5e15},
        "memory_byte": 44e9, "memory_bandwidth_byte_s": 20e15, "node_size": 16,
        "link_byte_s": wse.link_byte_s,
        "link_latency_s": wse.link_latency_s, "link_efficiency": wse.link_efficiency,
        "scale_out_byte_s": wse.scale_out_byte_s, "scale_out_latency_s": wse.scale_out_latency_s,
        "idle_w": 9200, "full_w": 23000, "host_w": 4000, "rental_usd_per_h": 88, "capex_usd": 2.5e6,
        "efficiency": {"prefill": phase, "decode": phase},
    }  # fmt: skip
    (folder / "wafer.toml").write_text(tomli_w.dumps(device), encoding="utf-8")
    study = {
        "name": "fig16",
        "paradigm": "pd_serving",
        "workload": {
            "model": "llama-2-7b",
            "requests": [{"share": 1.0, "input_tokens": n, "output_tokens": o}],
        },
        "pool": [
            {"device": "a100-40gb-sxm", "name": "gpu", "count": [gpus], "roles": ["prefill"]},
            {"device": "wafer.toml", "name": "wse", "count": [wafers], "roles": ["decode"]},
        ],
        "link": {"bandwidth_gb_s": [400]},
    }
    return float(score(Study.from_dict(study, folder=folder), {}).iloc[0]["optimal_gpu_wse_ratio"])


def test_corners_of_the_map(tmp_path: Path) -> None:
    for n, o, want in ((8192, 128, 64.0), (128, 8192, 1 / 50)):
        got = program_ratio(tmp_path, n, o)
        assert got == pytest.approx(plain_ratio(n, o), rel=1e-9)
        assert got == pytest.approx(want, rel=0.1)


@pytest.fixture(scope="module")
def whole_map(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[int, int], float]:
    """The program's ratio for every shape."""
    folder = tmp_path_factory.mktemp("map")
    return {(n, o): program_ratio(folder, n, o) for n in TOKENS for o in TOKENS}


def test_the_whole_map(whole_map: dict[tuple[int, int], float]) -> None:
    for (n, o), got in whole_map.items():
        assert got == pytest.approx(plain_ratio(n, o), rel=1e-9)


def test_toward_gpus_with_input_and_wafers_with_output(whole_map: dict[tuple[int, int], float]) -> None:
    """Monotone but for steps from whole batches, which stay below 10 %."""
    for fixed in TOKENS:
        by_input = [whole_map[n, fixed] for n in TOKENS]
        by_output = [whole_map[fixed, o] for o in TOKENS]
        assert all(later > 0.9 * earlier for earlier, later in pairwise(by_input))
        assert all(later < 1.1 * earlier for earlier, later in pairwise(by_output))
        assert by_input[-1] > by_input[0]
        assert by_output[-1] < by_output[0]


def test_more_gpus_or_wafers_leave_the_ratio(tmp_path: Path) -> None:
    """It is per device: a property of the two kinds, not of the fleet."""
    for gpus, wafers in ((8, 1), (64, 1), (8, 5)):
        got = program_ratio(tmp_path, 1024, 256, gpus, wafers)
        assert got == pytest.approx(plain_ratio(1024, 256), rel=1e-9)


def test_without_decode_work_wafers_are_never_short(tmp_path: Path) -> None:
    """One output token: a wafer keeps up with any number of GPUs."""
    assert math.isinf(program_ratio(tmp_path, 1024, 1))
