"""Infeasible studies: the smallest change of the limits, by enumeration and by program, run again to prove it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from conftest import small_study

from dse.explore import run
from dse.report.relaxed import relaxation_text
from dse.resolve import Study
from dse.scoring import bounds_of, score_index, violation

STRICT = {
    "model": "llama-2-7b",
    "requests": [{"share": 1.0, "input_tokens": 1024, "output_tokens": 256}],
    "slo": {"tpot_s": 1e-4, "ttft_p99_s": 0.5},
}
INFEASIBLE: dict[str, dict[str, Any]] = {
    "budget": {"limits": {"cost_usd_per_h": 1.0}},
    "budget and power for a demand": {
        "limits": {"power_w": 500, "cost_usd_per_h": 3},
        "demand": {"requests_s": 3},
    },
    "demand beyond every fleet": {"demand": {"requests_s": 1e4}},
    "a least throughput within a power cap": {"limits": {"power_w": {"max": 20e3}, "requests_s": {"min": 150}}},
    "demand far beyond the fleet, and a cap": {"limits": {"power_w": 80e3}, "demand": {"requests_s": 1e4}},
    "service limit": {"workload": STRICT},
}


def needed(result: Any) -> list[dict[str, float]]:
    return [{c["limit"]: c["needed"] for c in r["changes"]} for r in result.info["infeasible"]["relaxations"]]


@pytest.mark.slow
@pytest.mark.parametrize("name", INFEASIBLE)
def test_every_relaxation_makes_the_study_feasible_and_none_is_larger_than_needed(name: str) -> None:
    study = Study.from_dict(small_study(**INFEASIBLE[name]))
    found = run(study, method="exhaustive")
    assert not len(found.frontier)
    assert needed(found)
    for changes in needed(found):
        assert len(run(study.changed(changes)).frontier)
        tighter = {}
        for key, value in changes.items():
            now = next(
                c["now"] for r in found.info["infeasible"]["relaxations"] for c in r["changes"] if c["limit"] == key
            )
            tighter[key] = value + (now - value) * 2e-3
        assert not len(run(study.changed(tighter)).frontier)


@pytest.mark.parametrize("name", [name for name in INFEASIBLE if name != "service limit"])
def test_no_design_breaks_the_limits_by_less_than_the_elastic_program_says(name: str) -> None:
    study = Study.from_dict(small_study(**INFEASIBLE[name]))
    index = np.arange(study.space.n_designs)
    frame = score_index(study, index[study.space.legal(index)])
    served = frame[frame["throughput_tok_s"] > 0]
    bounds = bounds_of(study)
    least = float(violation({b: served[b].to_numpy(dtype=np.float64) for b in bounds}, bounds).min())
    together, *_ = run(study, method="milp").info["infeasible"]["relaxations"]
    broken = sum(abs(c["needed"] - c["now"]) / c["now"] for c in together["changes"])
    assert broken == pytest.approx(least, rel=1e-7)


def test_a_limit_alone_moves_least_when_the_others_hold() -> None:
    study = Study.from_dict(small_study(**INFEASIBLE["a least throughput within a power cap"]))
    now = {"limits.power_w.max": 20e3, "limits.requests_s.min": 150}
    moved = [{key: abs(v / now[key] - 1) for key, v in changes.items()} for changes in needed(run(study))]
    assert {key for changes in moved for key in changes if len(changes) == 1} == set(now)
    assert sum(moved[0].values()) == min(sum(changes.values()) for changes in moved)


def test_a_study_that_nothing_can_run_has_no_relaxation() -> None:
    study = Study.from_dict(
        small_study(
            workload={"model": "llama-3.1-405b", "requests": [{"share": 1.0, "input_tokens": 64, "output_tokens": 64}]},
            limits={"cost_usd_per_h": 10},
        )
    )
    assert needed(run(study)) == []


def test_words_are_rounded_to_the_side_that_lets_the_design_in() -> None:
    change = {"limit": "limits.power_w", "now": 1e4, "needed": 13400.0001}
    assert relaxation_text({"changes": [change]}).startswith("limits.power_w = 13410 ")
    assert relaxation_text({"changes": [change | {"needed": 9999.9}]}).startswith("limits.power_w = 9999 ")
