"""The best fleets of one device each: equal to the study run with that device alone, and never above the mix."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest
from conftest import small_study
from small_training import data_parallel, pipelined

from dse.baselines import alone, baselines
from dse.explore import run
from dse.progress import Stop
from dse.resolve import Study

STUDIES = {"pd_serving": small_study(), "dp_training": data_parallel(), "pp_training": pipelined()}


@pytest.mark.parametrize("raw", STUDIES.values(), ids=STUDIES)
def test_a_baseline_is_the_frontier_of_the_study_with_one_device(raw: dict[str, Any]) -> None:
    study = Study.from_dict(raw)
    found = {one["device"]: one for one in baselines(study, Stop())}
    assert set(found) == {offer.device.name for offer in study.problem.pools}
    for device, one in found.items():
        single = alone(study, device)
        assert {offer.device.name for offer in single.problem.pools} == {device}
        frontier = run(single).frontier
        assert bool(one["missing"]) == (not len(frontier))
        names = list(study.envelope.objectives.names)
        expected = frontier[names].drop_duplicates().sort_values(names).to_numpy() if len(frontier) else []
        got = pd.DataFrame(one["points"])[names].sort_values(names).to_numpy() if one["points"] else []
        assert got == pytest.approx(expected)
        assert one["total"] == len(got)


@pytest.mark.parametrize("raw", STUDIES.values(), ids=STUDIES)
def test_no_fleet_of_one_device_beats_the_frontier(raw: dict[str, Any]) -> None:
    result = run(Study.from_dict(raw))
    names = result.study.envelope.objectives
    for one in result.info["baselines"]:
        for point in one["points"]:
            better = result.frontier
            for name in names.maximise:
                better = better[better[name] >= point[name] * (1 - 1e-9)]
            for name in names.minimise:
                better = better[better[name] <= point[name] * (1 + 1e-9)]
            assert len(better), f"{point} is beyond the frontier"


def test_pools_that_hand_over_take_both_phases_alone() -> None:
    raw = small_study()
    raw["pool"][0]["roles"], raw["pool"][1]["roles"] = ["prefill"], ["decode"]
    found = baselines(Study.from_dict(raw), Stop())
    assert [bool(one["points"]) for one in found] == [True, True]


def test_limits_of_the_other_pools_do_not_bind_and_one_device_has_no_baseline() -> None:
    raw = small_study(limits={"n_wse": {"min": 1}})
    found = baselines(Study.from_dict(raw), Stop())
    assert found[0]["points"]
    single = {**small_study(), "pool": small_study()["pool"][:1]}
    single.pop("link")
    assert baselines(Study.from_dict(single), Stop()) == []


def test_a_device_that_cannot_serve_alone_says_so() -> None:
    raw = small_study(limits={"power_w": 20e3})
    found = {one["device"]: one for one in baselines(Study.from_dict(raw), Stop())}
    assert found["wse-3"]["missing"] == "no fleet of this device alone is feasible"
    assert found["wse-3"]["points"] == []
