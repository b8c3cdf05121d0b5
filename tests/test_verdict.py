"""The verdict on mixing: of which design, its word at each threshold, and what is said of equal cost and power."""

from __future__ import annotations

import json
from typing import Any

import pandas as pd
import pytest
from conftest import small_study
from small_training import MIXED, data_parallel

from dse.explore import run
from dse.resolve import Study
from dse.verdict import EXPLOITED, OBSTRUCTED, Verdict, study_verdict

SERVING = Study.from_dict(small_study())
TRAINING = Study.from_dict(data_parallel())


def frame(*designs: dict[str, Any]) -> pd.DataFrame:
    """Designs d0, d1, ...: a mix of 8 GPUs and a wafer that ties with everything, but for what is given."""
    tie = {"n_gpu": 8, "n_wse": 1, "busy_gpu": 1.0, "busy_wse": 1.0, "feasible": True, "throughput_tok_s": 100.0,
           "complementarity": 1.0, "gain": 1.5, "gain_equal_cost": 1.0, "gain_equal_power": 1.0}  # fmt: skip
    return pd.DataFrame([{"design_id": f"d{i}", **tie, **d} for i, d in enumerate(designs)])


def of_pick(study: Study = TRAINING, **changes: Any) -> Verdict:
    only = frame(changes)
    return study_verdict(study, only.iloc[0], only, only)


@pytest.mark.parametrize(
    ("complementarity", "word"),
    [
        (EXPLOITED + 1e-9, "exploited"),
        (EXPLOITED, "absorbed"),
        (OBSTRUCTED, "absorbed"),
        (OBSTRUCTED - 1e-9, "obstructed"),
        (float("inf"), "not defined"),
        (float("nan"), "not defined"),
    ],
)
def test_the_word_turns_at_the_thresholds(complementarity: float, word: str) -> None:
    found = of_pick(complementarity=complementarity)
    assert found["word"] == word
    assert found["design_id"] == "d0"
    assert found["caveat"] == ""
    json.dumps(found, allow_nan=False)
    assert ("only together they run it" in found["sentence"]) == (word == "not defined")


def test_it_is_about_the_pick_where_the_pick_mixes() -> None:
    both = frame({"complementarity": 0.5}, {"complementarity": 2.0, "gain_equal_cost": 9.0})
    found = study_verdict(TRAINING, both.iloc[0], both, both)
    assert (found["design_id"], found["word"]) == ("d0", "obstructed")
    assert "The pick is of one kind" not in found["sentence"]


def test_else_about_the_feasible_mix_that_gains_most_at_equal_cost() -> None:
    candidates = frame(
        {"n_wse": 0},
        {"gain_equal_cost": 0.9, "complementarity": 1.5},
        {"gain_equal_cost": 3.0, "feasible": False},
        {"gain_equal_cost": 0.95, "complementarity": 0.7, "n_gpu": 16},
        {"gain_equal_cost": float("nan"), "complementarity": 3.0},
    )
    found = study_verdict(TRAINING, candidates.iloc[0], candidates.head(1), candidates)
    assert (found["design_id"], found["word"], found["gain_equal_cost"]) == ("d3", "obstructed", 0.95)
    assert found["sentence"].startswith("The pick is of one kind of device; the best mix at equal cost")
    assert "16 x gpu + 1 x wse" in found["sentence"]


def test_single_pool_where_nothing_mixes() -> None:
    alone = frame({"n_wse": 0}, {"n_gpu": 0}, {"feasible": False})
    found = study_verdict(TRAINING, alone.iloc[0], alone.head(2), alone)
    assert (found["word"], found["design_id"], found["complementarity"]) == ("single pool", None, None)
    one = Study.from_dict(data_parallel(pool=data_parallel()["pool"][:1]))
    assert "has one pool" in study_verdict(one, alone.iloc[0], alone.head(2), alone)["sentence"]


def test_nothing_feasible_has_no_verdict() -> None:
    none = frame({"feasible": False})
    assert study_verdict(TRAINING, None, none.head(0), none)["word"] == "not defined"


@pytest.mark.parametrize(
    ("complementarity", "cost", "power", "said"),
    [
        (
            0.9,
            1.2,
            0.8,
            "Even so it beats the best fleet of one device: 1.2 times its throughput at equal cost, but 0.8",
        ),
        (
            0.9,
            0.7,
            0.8,
            "It also falls short of the best fleet of one device: 0.7 times its throughput at equal cost and",
        ),
        (1.5, 0.7, 1.3, "It also beats the best fleet of one device: 1.3 times its throughput at equal power, but 0.7"),
        (1.5, 0.7, 0.8, "But it falls short of the best fleet of one device"),
        (1.0, 1.0, 0.8, "It equals the best fleet of one device: 1 times its throughput at equal cost, but 0.8 times"),
        (1.0, 1.1, 1.2, "It beats the best fleet of one device: 1.1 times its throughput at equal cost and 1.2 times"),
    ],
)
def test_the_sentence_says_who_wins_at_equal_cost_and_power(
    complementarity: float, cost: float, power: float, said: str
) -> None:
    found = of_pick(complementarity=complementarity, gain_equal_cost=cost, gain_equal_power=power)
    assert said in found["sentence"]
    times = "as much as" if complementarity == 1 else f"{complementarity:.3g} times what"
    assert f"The mix gives {times} its pools give side by side" in found["sentence"]


def test_a_sum_of_one_pool_is_called_that() -> None:
    said = "Only one of its pools can do the work alone"
    assert said in of_pick(complementarity=1.06, gain=1.06)["sentence"]
    assert said not in of_pick(complementarity=1.06, gain=1.5)["sentence"]


def test_a_pool_that_stands_idle_is_named() -> None:
    assert "wse stands idle" in of_pick(complementarity=0.8, busy_wse=0.0)["sentence"]


@pytest.mark.parametrize(
    ("cost", "power", "caveat", "said"),
    [
        (0.9, 0.8, "by separating the phases", "the gain is in separating the phases"),
        (0.9, 1.1, "", "At equal power, but not at equal cost, it also beats one device"),
        (1.2, 1.1, "", "At equal cost and power it also beats one device"),
    ],
)
def test_an_exploited_mix_that_serves_is_held_against_one_device_with_its_phases_apart(
    cost: float, power: float, caveat: str, said: str
) -> None:
    apart = {"gain_apart_equal_cost": cost, "gain_apart_equal_power": power}
    found = of_pick(SERVING, complementarity=1.5, **apart)
    assert (found["word"], found["caveat"]) == ("exploited", caveat)
    assert said in found["sentence"]
    assert "phases" not in of_pick(SERVING, complementarity=0.9, **apart)["sentence"]


def test_a_run_keeps_the_verdict_of_its_own_rows() -> None:
    for raw in (data_parallel(), data_parallel(limits=MIXED)):
        result = run(Study.from_dict(raw))
        found, pick = result.info["verdict"], result.recommended
        assert pick is not None
        row = result.candidates.set_index("design_id").loc[found["design_id"]]
        for key in ("complementarity", "gain", "gain_equal_cost", "gain_equal_power"):
            assert found[key] == row[key]
        mixed = result.candidates[
            (result.candidates[["n_gpu", "n_wse"]] > 0).all(axis=1) & result.candidates["feasible"]
        ]
        if pick["n_wse"] > 0 and pick["n_gpu"] > 0:
            assert found["of_pick"]
            assert found["design_id"] == pick["design_id"]
        else:
            assert not found["of_pick"]
            assert found["gain_equal_cost"] == mixed["gain_equal_cost"].max()
