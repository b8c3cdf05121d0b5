"""Every rule picks the row that it says, and orders the others."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import small_study

from dse.errors import InputError
from dse.explore import run
from dse.recommend import LOWEST, ranking
from dse.resolve import Study


@pytest.mark.parametrize(("rule", "column"), LOWEST.items())
def test_a_rule_picks_the_lowest_of_its_column(rule: str, column: str) -> None:
    result = run(Study.from_dict(small_study(objectives={"pick": rule})))
    row = result.recommended
    assert row is not None
    assert row[column] == result.frontier[column].min()
    assert result.info["recommended"]["rule"] == f"lowest {column}"
    order, _ = ranking(result.study, result.frontier)
    assert sorted(order) == list(range(len(result.frontier)))
    assert (np.diff(result.frontier[column].to_numpy()[order]) >= 0).all()


def test_the_fastest_is_picked_without_limits_too() -> None:
    result = run(Study.from_dict(small_study(objectives={"pick": "fastest"})))
    row = result.recommended
    assert row is not None
    assert row["throughput_tok_s"] == result.frontier["throughput_tok_s"].max()
    assert result.info["recommended"]["rule"] == "highest throughput_tok_s"


def test_the_knee_may_be_asked_for_under_a_limit() -> None:
    limits = {"cost_usd_per_h": 200}
    knee = run(Study.from_dict(small_study(objectives={"pick": "knee"}, limits=limits))).info["recommended"]
    auto = run(Study.from_dict(small_study(limits=limits))).info["recommended"]
    assert knee["rule"].startswith("knee")
    assert auto["rule"].startswith("highest")


def test_an_unknown_rule_is_refused_with_those_that_are() -> None:
    with pytest.raises(InputError, match="knee"):
        Study.from_dict(small_study(objectives={"pick": "best"}))
