"""Fig. 16 of arXiv 2610.39222: the optimal GPU:WSE ratio for 7B over 128..8K tokens in and out, by plain arithmetic.

A100-40GB, one device per instance, prefill e_c .58 and 60 us a layer; WSE-3 decode at 10.5 us a layer, e_c .1, e_m
1.9 % of 21 PB/s (the catalogue's profile `hardware`, as in experiments/paper). The figure itself, its choices and
its verdicts are in experiments/paper/fig16.py.
"""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

from experiments.paper.pd_fleet import PAIRS, TOKENS, design, optimal_ratio

N_LIN, N_HEAD, TOTAL, L, KV = 6_476_005_376, 131_072_000, 6_738_415_616, 32, 524_288
PAIR = PAIRS["7B"]


def plain_ratio(n: int, o: int) -> float:
    flop = 2 * N_LIN * n + 2 * L * 4096 * n * n + 2 * N_HEAD
    prefill = L * 60e-6 + max(flop / (312e12 * 0.58), (2 * TOTAL + n * KV) / (1555e9 * 0.8))
    b = min(256, math.floor((0.9 * 44e9 - 2 * TOTAL) / ((n + o) * KV)))
    c = n + o / 2
    token = 2 * (N_LIN + N_HEAD) + 4 * L * 4096 * c
    step = L * 10.5e-6 + max(b * token / (12.5e15 * 0.1), (2 * TOTAL + b * c * KV) / (21e15 * 0.019))
    return prefill / ((o - 1) * step / b)


@pytest.fixture(scope="module")
def whole_map() -> dict[tuple[int, int], float]:
    """The program's ratio for every shape."""
    return {(n, o): optimal_ratio(PAIR, n, o) for n in TOKENS for o in TOKENS}


def test_the_whole_map(whole_map: dict[tuple[int, int], float]) -> None:
    for (n, o), got in whole_map.items():
        assert got == pytest.approx(plain_ratio(n, o), rel=1e-9)
    assert whole_map[8192, 128] == pytest.approx(64, rel=0.1)
    assert whole_map[128, 8192] == pytest.approx(1 / 50, rel=0.1)


def test_toward_gpus_with_input_and_wafers_with_output(whole_map: dict[tuple[int, int], float]) -> None:
    """Monotone but for steps from whole batches, which stay below 10 %."""
    for fixed in TOKENS:
        by_input = [whole_map[n, fixed] for n in TOKENS]
        by_output = [whole_map[fixed, o] for o in TOKENS]
        assert all(later > 0.9 * earlier for earlier, later in pairwise(by_input))
        assert all(later < 1.1 * earlier for earlier, later in pairwise(by_output))
        assert by_input[-1] > by_input[0]
        assert by_output[-1] < by_output[0]


def test_more_gpus_or_wafers_leave_the_ratio() -> None:
    """It is per device: a property of the two kinds, not of the fleet."""
    for gpus, wafers in ((8, 1), (64, 1), (8, 5)):
        got = design(PAIR, 1024, 256, n_gpu=gpus, n_wse=wafers)["optimal_gpu_wse_ratio"]
        assert got == pytest.approx(plain_ratio(1024, 256), rel=1e-9)


def test_without_decode_work_wafers_are_never_short() -> None:
    """One output token: a wafer keeps up with any number of GPUs."""
    assert math.isinf(optimal_ratio(PAIR, 1024, 1))
