"""Placement programs against every placement of small studies, and against what a grid of balanced layouts reaches."""

from __future__ import annotations

import math
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pyomo.environ as pyo
import pytest
from placement_dp import best_step_s
from placement_driver import best, frontier, programs
from pyomo.repn import generate_standard_repn
from random_placements import Small, draw, two_pools

from dse import exhaustive
from dse.model.pp_critical import critical_passes
from dse.model.pp_schedule import one_f_one_b_s
from dse.progress import Stop, silent
from dse.resolve import Study
from dse.scoring import score
from formulations import pp_placement

Points = list[tuple[float, float]]


def brute_force(small: Small) -> Points:
    """Points that no other dominates."""
    found: Points = []
    for step, spent in sorted(small.points()):
        if not found or spent < found[-1][1] * (1 - 1e-12):
            found.append((step, spent))
    return found


def check(small: Small, folder: Path) -> int:
    wanted = brute_force(small)
    study = Study.from_dict(small.raw, folder=folder)
    batch_tokens = small.cases[0].batch * small.cases[0].sequence
    got = sorted((batch_tokens / -x, y) for x, y in frontier(study)) if wanted else []
    assert len(got) == len(wanted), (got, wanted)
    for p, q in zip(got, wanted, strict=True):
        assert all(math.isclose(a, b, rel_tol=1e-9) for a, b in zip(p, q, strict=True)), (got, wanted)
    return len(wanted)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved"])
def test_the_frontier_is_that_of_all_placements(schedule: str, seed: int, tmp_path: Path) -> None:
    check(draw(seed, tmp_path, schedule), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_the_frontier_beside_wafers_is_that_of_all_placements(schedule: str, seed: int, tmp_path: Path) -> None:
    check(draw(seed, tmp_path, schedule, offload=True), tmp_path)


@pytest.mark.parametrize(("schedule", "offload", "seed"), [("gpipe", False, 2), ("1f1b", False, 4), ("1f1b", True, 7)])
def test_a_few_frontiers(schedule: str, offload: bool, seed: int, tmp_path: Path) -> None:
    assert check(draw(seed, tmp_path, schedule, offload=offload), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("schedule", ["gpipe", "interleaved"])
def test_the_program_is_as_fast_as_the_dynamic_program(schedule: str, seed: int, tmp_path: Path) -> None:
    small = two_pools(seed, tmp_path, schedule, n_layers=30, stages=(5, 3))
    pools, case = [s[0] for s in small.settings], small.cases[0]
    wanted = min(best_step_s(case, pools, chain, small.modes) for chain in permutations(range(2)))
    found = best(Study.from_dict(small.raw, folder=tmp_path))
    crossing = case.batch * case.work.boundary_byte / case.link_byte_s
    assert float(found.row["step_time_s"]) == pytest.approx(max(wanted, crossing), rel=1e-9)


def test_the_longest_path_is_the_step_and_bounds_every_other() -> None:
    rng = np.random.default_rng(1)
    for _ in range(200):
        k, n, empty = int(rng.integers(1, 9)), int(rng.integers(1, 40)), int(rng.integers(0, 3))
        f, b = rng.uniform(0.1, 1, k), rng.uniform(0.1, 2, k)
        padded = np.concatenate([np.zeros(empty), f]), np.concatenate([np.zeros(empty), b])
        u, w = critical_passes(*padded, n)
        step = float(one_f_one_b_s(f[None], b[None], n)[0])
        # stages that take no time, before the first, change nothing
        assert float(u @ padded[0] + w @ padded[1]) == pytest.approx(step, rel=1e-12)
        other = rng.uniform(0.1, 1, (2, k + empty))
        bound = float(one_f_one_b_s(other[:1], other[1:], n)[0])
        assert float(u @ other[0] + w @ other[1]) <= bound * (1 + 1e-12)


GRID: dict[str, Any] = {
    "name": "grid",
    "paradigm": "pp_training",
    "workload": {"model": "llama-2-7b", "sequence_tokens": 2048, "global_batch": [32], "recompute": ["none", "full"]},
    "pool": [
        {"device": "a100-40gb-sxm", "name": "old", "count": [0, 8], "instance_size": [2], "stages": [4],
         "schedule": ["1f1b"], "zero_stage": [1]},
        {"device": "h100-80gb-sxm", "name": "new", "count": [0, 4, 8], "instance_size": [2], "stages": [2, 4]},
        {"device": "wse-3", "name": "wse", "count": [0, 1]},
    ],
    "link": {"tier": ["eth100", "ndr400"], "count": [1]},
    "objectives": {"maximise": ["throughput_tok_s"], "minimise": ["cost_usd_per_h"]},
}  # fmt: skip


@pytest.mark.slow
def test_placements_never_lose_to_the_grid_and_may_win() -> None:
    study = Study.from_dict(GRID)
    grid = exhaustive.explore(study, workers=1, address="local", report=silent, stop=Stop()).points
    placed = np.array(frontier(study))
    assert len(grid) > 1
    for point in grid:
        assert (placed <= point + 1e-9 * np.abs(point)).all(axis=1).any()
    assert any((p < q - 1e-3 * np.abs(q)).any() and (p <= q).all() for p in placed for q in grid)


def test_a_placed_row_gives_its_settings_again() -> None:
    study = Study.from_dict(GRID)
    given = {
        "n_old": "8", "n_new": "4", "n_wse": "0", "stages_old": "4", "stages_new": "2", "pool_order": "new,old",
        "link": "1 x ndr400",
        **{f"layers_{i}": str(n) for i, n in enumerate([11, 9, 3, 3, 3, 3], 1)},
        **{f"recompute_{i}": mode for i, mode in enumerate(["none"] * 4 + ["full"] * 2, 1)},
    }  # fmt: skip
    row = score(study, given).iloc[0]
    assert (row["layers"], row["layout"], row["pool_order"]) == ("1x11 1x9 4x3", "placed", "new,old")
    assert row["stage_recompute"] == "4xnone 2xfull"
    again = score(study, study.space.settings_of(row)).iloc[0]
    assert row.equals(again)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"site": {"cost_basis": "ownership"}}, "energy bill"),
        ({"objectives": {"maximise": ["throughput_tok_s"], "minimise": ["usd_per_mtok"]}}, "on their frontier"),
        ({"objectives": {"maximise": ["throughput_tok_s"], "minimise": ["bubble_frac"]}}, "bubble_frac is not linear"),
        ({"objectives": {"maximise": ["throughput_tok_s"], "minimise": ["step_time_s"]}}, "keep one of them"),
        ({"limits": {"mem_margin_byte": {"min": 1e9}}}, "mem_margin_byte is not linear"),
        ({"limits": {"throughput_tok_s": {"max": 1e5}}}, "wait for nothing"),
    ],
)
def test_what_the_programs_cannot_answer_is_refused_with_the_reason(changes: dict[str, Any], reason: str) -> None:
    study = Study.from_dict(GRID | changes)
    bounds = study.envelope.limits.bounds()
    assert reason in pp_placement.refusal(study.space, study.envelope.objectives.names, bounds)


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_eighty_layers_on_sixteen_stages_of_two_kinds_are_proven(schedule: str) -> None:
    kinds = (("a100-80gb-sxm", 8), ("h100-80gb-sxm", 8))
    pools = [
        {"device": device, "count": [64], "instance_size": [8], "stages": [k], "schedule": [schedule]}
        for device, k in kinds
    ]
    work = {"model": "llama-3.1-70b", "sequence_tokens": 4096, "global_batch": [128]}
    modes = {"recompute": ["none", "selective", "full"]}
    found = best(Study.from_dict(GRID | {"pool": pools, "workload": work | modes}))
    assert found.outcome.gap < 1e-8


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_coefficients_lie_within_a_factor_of_a_million(schedule: str) -> None:
    pools = [dict(GRID["pool"][0], schedule=[schedule]), *GRID["pool"][1:]]
    for data in programs(Study.from_dict(GRID | {"pool": pools})):
        model = pp_placement.build_model(data)
        sizes = [
            abs(c)
            for row in model.component_data_objects(pyo.Constraint, active=True)
            for c in generate_standard_repn(row.body).linear_coefs
            if c
        ]
        assert max(sizes) / min(sizes) < 1e6
