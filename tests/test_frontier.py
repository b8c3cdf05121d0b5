"""The box search behind the exact frontier, and its honesty about time."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from conftest import small_study
from hypothesis import given, settings
from hypothesis import strategies as st

from dse.boxes import Box, shrink
from dse.errors import SelfCheckError
from dse.explore import run
from dse.frontier import explore
from dse.pareto import nondominated
from dse.points import check_agreement
from dse.progress import Stop
from dse.resolve import Study


@given(st.integers(1, 4), st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None)
def test_boxes_find_every_point_of_a_finite_set(n_objectives: int, seed: int) -> None:
    points = np.random.default_rng(seed).integers(0, 7, (25, n_objectives)).astype(float)
    expected = {tuple(p) for p in points[nondominated(points)]}
    boxes, found, solves = [Box(np.full(n_objectives, np.inf))], set(), 0
    while boxes:
        box = boxes.pop()
        inside = [p for p in points if (p < box.upper).all()]
        solves += 1
        if inside:
            best = min(inside, key=lambda p: float(p.sum()))
            found.add(tuple(best))
            boxes = shrink([*boxes, box], best)
    assert found == expected
    if n_objectives <= 3:
        assert solves <= 3 * len(expected) + 1


def test_no_box_lies_inside_another() -> None:
    boxes = [Box(np.full(3, np.inf))]
    for point in itertools.permutations([1.0, 2.0, 3.0]):
        boxes = shrink(boxes, np.array(point))
    for u, v in itertools.permutations(boxes, 2):
        assert not (u.upper <= v.upper).all()


def test_time_limit_leaves_what_was_found_and_says_what_is_unproven() -> None:
    study = Study.from_dict(small_study())
    stop = Stop()
    seen = 0

    def report(_: object) -> None:
        nonlocal seen
        seen += 1
        if seen == 5:
            stop.ask("test")

    found = explore(study, report=report, stop=stop)
    assert 0 < len(found.plans) <= 5 + 8
    assert found.unproven
    assert all(set(corner) == set(study.envelope.objectives.names) for corner in found.unproven)
    stopped = Stop()
    stopped.ask("test")
    result = run(study, method="milp", stop=stopped)
    assert not result.complete
    assert result.info["proof"]["kind"] == "none"


def test_certificates_carry_gap_and_time() -> None:
    result = run(Study.from_dict(small_study()), method="milp")
    points = result.info["proof"]["points"]
    assert len(points) == len(result.frontier)
    assert all(p["gap"] <= 1e-9 and p["time_s"] > 0 and np.isfinite(p["bound"]) for p in points)


def test_a_plan_that_scores_differently_stops_the_run() -> None:
    names = ("throughput_tok_s", "power_w")
    check_agreement(np.array([-0.5, 0.1]), np.array([-0.5, 0.1 + 1e-11]), names, design_id="d3")
    with pytest.raises(SelfCheckError, match="scoring gives"):
        check_agreement(np.array([-0.5, 0.1]), np.array([-0.5, 0.11]), names, design_id="d3")
