"""Placement programs against every placement of small studies, and against what a grid of balanced layouts reaches."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from placement_driver import frontier
from random_placements import Small, draw

from dse.resolve import Study

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
