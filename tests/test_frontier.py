"""The box search behind the exact frontier, and its honesty about time."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import numpy as np
import pytest
from conftest import small_study
from hypothesis import given, settings
from hypothesis import strategies as st

from dse import exhaustive
from dse.boxes import Box, shrink
from dse.errors import SelfCheckError
from dse.explore import run
from dse.frontier import explore
from dse.frontier import explore as milp_explore
from dse.pareto import nondominated
from dse.points import check_agreement
from dse.progress import Stop, silent
from dse.resolve import Study
from dse.solve import Solver


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


def test_a_coarse_frontier_covers_every_design_to_its_resolution() -> None:
    study = Study.from_dict(small_study(search={"resolution_frac": 0.05}))
    found = explore(study, report=silent, stop=Stop())
    every = exhaustive.explore(study, workers=1, address="local", report=silent, stop=Stop()).points
    ranges = np.array([found.ranges[o] for o in study.envelope.objectives.names])
    assert 1 < len(found.plans) < len(np.unique(every, axis=0))
    for point in every:
        assert (found.points - 0.05 * ranges <= point + 1e-9 * np.abs(point)).all(axis=1).any()
    ends = {tuple(p) for p in found.points}
    for axis in range(every.shape[1]):
        assert min(p[axis] for p in ends) == pytest.approx(every[:, axis].min(), rel=1e-9)


def test_an_answer_that_its_integers_refute_is_asked_for_another_way(monkeypatch: pytest.MonkeyPatch) -> None:
    study = Study.from_dict(small_study(search={"resolution_frac": 0}))
    honest = explore(study, report=silent, stop=Stop())
    checked, calls = Solver._checked, 0

    def doubtful(self: Solver, reported: float, bound: float, *, proven: bool) -> tuple[float, str]:
        nonlocal calls
        calls += 1
        objective, wrong = checked(self, reported, bound, proven=proven)
        return objective, wrong or ("refuted for the test" if calls % 5 == 0 else "")

    monkeypatch.setattr(Solver, "_checked", doubtful)
    found = explore(study, report=silent, stop=Stop())
    assert found.rejected > 0
    assert np.allclose(np.sort(found.points, axis=0), np.sort(honest.points, axis=0), rtol=1e-9)
    monkeypatch.setattr(Solver, "_checked", lambda *_, **__: (0.0, "always wrong"))
    with pytest.raises(SelfCheckError, match="always wrong; nothing is reported"):
        explore(study, report=silent, stop=Stop())


def test_a_missed_design_stops_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    study = Study.from_dict(small_study(search={"resolution_frac": 0}))
    true_explore = milp_explore

    def without_its_best(study: Study, **kwargs: Any) -> Any:
        found = true_explore(study, **kwargs)
        best = int(found.points[:, 0].argmin())
        keep = [i for i in range(len(found.plans)) if i != best]
        found.plans, found.points = [found.plans[i] for i in keep], found.points[keep]
        return found

    monkeypatch.setattr("dse.explore.milp.explore", without_its_best)
    with pytest.raises(SelfCheckError, match="beats a frontier that was proven"):
        run(study, method="milp")


@pytest.mark.slow
@pytest.mark.parametrize("workers", [2, 3])
def test_the_frontier_is_the_same_on_any_number_of_workers(workers: int) -> None:
    study = Study.from_dict(small_study())
    alone = explore(study, report=silent, stop=Stop())
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore")  # Ray warns about its own future defaults
        patch.setattr("dse.cluster.WORTH_RAY_S", 0.0)
        shared = explore(study.changed({"compute.workers": workers}), report=silent, stop=Stop())
    assert [p.design_id for p in shared.plans] == [p.design_id for p in alone.plans]
    assert (shared.solves, shared.boxes) == (alone.solves, alone.boxes)
