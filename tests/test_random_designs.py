"""Random designs scored by the program and by `plain_model`: every column that both define, to 1e-9."""

from __future__ import annotations

import math
from pathlib import Path

import plain_model as plain
import pytest
from random_designs import draw

from dse.resolve import Study
from dse.scoring import explain

TOLERANCE = 1e-9


def same(want: float, got: float) -> bool:
    if math.isnan(want) or math.isnan(got):
        return math.isnan(want) and math.isnan(got)
    if math.isinf(want) or math.isinf(got):
        return want == got
    return abs(want - got) <= TOLERANCE * max(abs(want), abs(got))


def differences(seed: int, folder: Path, *, per_pair: bool = False) -> list[str]:
    """Columns of one random design in which program and plain model differ."""
    d = draw(seed, folder, per_pair=per_pair)
    want = plain.plain_score(d.case, d.pools)
    try:
        frame, detail = explain(Study.from_dict(d.raw, folder=folder), d.settings)
    except RuntimeWarning as warning:
        return [f"seed {seed}: the program warns: {warning}"]
    row = frame.iloc[0]
    pools = want.pop("pools", [])
    pairs = [(name, value, row[name]) for name, value in want.items()]
    nobody_decodes = all(o <= 1 for _, _, o in d.case.classes)
    for name, p, numbers in zip(d.names, d.pools, pools, strict=False):
        shown = [k for k in ("busy", "u", "eta", "kv_out_byte_s", "decode_batch") if k in numbers]
        pairs += [(f"{k}_{name}", numbers[k], row[f"{k}_{name}"]) for k in shown]
        found = detail["pools"][name]
        pairs += [(f"explain.{name}.{k}", numbers[k], found[k]) for k in ("u_ho", "g_flop_s") if k in numbers]
        assert p.n == row[f"n_{name}"]
    faults = []
    for name, value, got in pairs:
        if name == "optimal_gpu_wse_ratio" and nobody_decodes:
            continue  # see test_ratio_map: no decode work, no ratio
        if name.startswith("eta") and abs(float(value) - float(got)) < 1e-9:
            continue  # eta = 1/busy - 1 cancels
        if not same(float(value), float(got)):
            faults.append(f"seed {seed} {name}: plain {value!r}, program {got!r}")
    return faults


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 150, 25))
def test_random_designs_score_as_the_page_says(first: int, tmp_path: Path) -> None:
    faults = [f for seed in range(first, first + 25) for f in differences(seed, tmp_path)]
    assert not faults, "\n".join(faults)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 150, 25))
def test_random_designs_with_a_link_a_pair(first: int, tmp_path: Path) -> None:
    faults = [f for seed in range(first, first + 25) for f in differences(seed, tmp_path, per_pair=True)]
    assert not faults, "\n".join(faults)


def test_a_few_random_designs_with_a_link_a_pair(tmp_path: Path) -> None:
    faults = [f for seed in range(1000, 1008) for f in differences(seed, tmp_path, per_pair=True)]
    assert not faults, "\n".join(faults)


def test_a_few_random_designs(tmp_path: Path) -> None:
    faults = [f for seed in range(1000, 1012) for f in differences(seed, tmp_path)]
    assert not faults, "\n".join(faults)


def test_draws_cover_what_matters(tmp_path: Path) -> None:
    drawn = [draw(seed, tmp_path) for seed in range(150)]
    pools = [p for d in drawn for p in d.pools]
    assert {p.role for p in pools} == {"prefill", "decode", "both"}
    assert {p.device["arrangement"] for p in pools} == {"tensor", "pipeline"}
    assert {len(d.pools) for d in drawn} == {1, 2, 3}
    assert any(d.case.stealing for d in drawn)
    assert any(d.case.shape.latent for d in drawn)
    assert any(d.case.shape.experts for d in drawn)
    assert any(d.case.shape.window for d in drawn)
    assert any(d.case.tpot_limit < math.inf and len(d.case.classes) > 1 for d in drawn)
    assert any(d.case.ttft_limit < math.inf for d in drawn)


def test_the_plain_scan_of_batches_is_the_brute_force_one() -> None:
    """Role both with a TPOT limit and three classes: every combination of batches tried."""
    from itertools import product

    from dse.catalog import load_catalog

    shape = plain.shape_of(load_catalog().model("llama-2-7b"))
    phase = {"compute": 0.5, "memory": 0.5, "fixed_layer_s": 2e-5}
    device = {
        "kind": "gpu", "arrangement": "tensor", "peak_flop_s": {"bf16": 1e14}, "memory_byte": 40e9,
        "memory_bandwidth_byte_s": 1e12, "node_size": 8, "link_byte_s": 1e11, "link_latency_s": 5e-6,
        "link_efficiency": 0.8, "scale_out_byte_s": 1e10, "scale_out_latency_s": 1e-5,
        "efficiency": {"prefill": phase, "decode": phase},
    }  # fmt: skip
    classes = [(0.5, 512.0, 64.0), (0.3, 1500.0, 128.0), (0.2, 256.0, 400.0)]
    pool = plain.Pool(device=device, n=1, max_decode_batch=9)
    free = plain.Case(shape=shape, classes=classes)
    slowest = max(plain.decode_pass(free, pool, i, o, 1).occupancy for _, i, o in classes)
    for factor in (1.05, 1.2, 1.5, 3.0):
        case = plain.Case(shape=shape, classes=classes, tpot_limit=slowest * factor)
        pre = plain.prefill_seconds(case, pool, keeps_output=True)
        occupied = sum(q * p for (q, _, _), p in zip(classes, pre, strict=True))
        best = 0.0
        for batch in product(range(1, 10), repeat=3):
            t = [plain.decode_pass(case, pool, i, o, b).occupancy for (_, i, o), b in zip(classes, batch, strict=True)]
            work = occupied + sum(q * (o - 1) * x / b for (q, _, o), b, x in zip(classes, batch, t, strict=True))
            best = max(best, min(1 / work, min(1 - x / case.tpot_limit for x in t) / occupied))
        assert plain.both_on_one(case, pool)[0] == pytest.approx(best, rel=1e-12)
