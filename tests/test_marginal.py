"""Prices of a plan's rows against what scoring says of one unit more."""

from __future__ import annotations

from typing import Any

import pytest
from conftest import small_study
from test_explorers_agree import THREE_POOLS, TWO_CLASSES

from dse.explore import run
from dse.marginal import marginal_values
from dse.progress import Stop
from dse.resolve import Study
from dse.scoring import score
from dse.whatif import one_more, raised_limits

STUDIES: dict[str, dict[str, Any]] = {
    "stealing, a link that fills": {
        "workload": {"model": "llama-2-7b", "requests": TWO_CLASSES, "routing": ["work_stealing"]},
        "link": {"bandwidth_gb_s": [2, 20]},
    },
    "split": {
        "pool": [
            {"device": "a100-40gb-sxm", "name": "gpu", "count": [4, 8, 16], "roles": ["prefill"]},
            {"device": "wse-3", "name": "wse", "count": [1], "roles": ["decode"]},
        ],
        "link": {"bandwidth_gb_s": [1.5]},
    },
    "three pools in proportion": {"pool": THREE_POOLS, "link": {"bandwidth_gb_s": [1.5, 12.5]}},
}


def rescored(study: Study, row: Any, changes: dict[str, str]) -> float:
    settings = {k: v for k, v in study.space.settings_of(dict(row)).items() if k not in ("link", "link_gb_s")}
    return float(score(study, {**settings, **changes})["requests_s"].iloc[0])


@pytest.mark.parametrize("name", STUDIES)
def test_one_gigabyte_a_second_more_is_worth_its_price(name: str) -> None:
    study = Study.from_dict(small_study(**STUDIES[name], search={"resolution_frac": 0.0}))
    seen = 0
    for _, row in run(study, method="milp").frontier.iterrows():
        prices = [m for m in marginal_values(study, row) if m["per"] == "GB/s"]
        if not prices:
            continue
        seen += 1
        step = 1e-6
        more = rescored(study, row, {"link_gb_s": repr(float(row["link_gb_s"]) + step)})
        assert sum(m["requests_s"] for m in prices) * step == pytest.approx(more - float(row["requests_s"]), rel=1e-3)
    assert seen


def test_one_device_more_is_worth_its_price_where_pools_steal_work() -> None:
    study = Study.from_dict(small_study(**STUDIES["stealing, a link that fills"], search={"resolution_frac": 0.0}))
    row = run(study, method="milp").frontier.iloc[-1]
    prices = {m["resource"]: m["requests_s"] for m in marginal_values(study, row) if m["per"] == "device"}
    assert set(prices) == {"gpu", "wse"}
    steps = one_more(study, row)
    tok = float(row["throughput_tok_s"] / row["requests_s"])
    wafer = float(steps.loc[steps["change"].str.contains("wse"), "d_throughput_tok_s"].iloc[0])
    assert prices["wse"] * tok == pytest.approx(wafer, rel=1e-6)


def test_capacity_that_does_not_bind_has_no_price() -> None:
    study = Study.from_dict(small_study(link={"bandwidth_gb_s": [400]}))
    frontier = run(study, method="milp").frontier
    split = frontier[(frontier["role_gpu"] == "prefill") & (frontier["role_wse"] == "decode")]
    assert len(split)
    for _, row in split.iterrows():
        rows = {m["row"] for m in marginal_values(study, row)}
        assert rows in ({"prefill_at_capacity"}, {"decode_at_capacity"})


def test_no_prices_where_the_rate_is_no_linear_program() -> None:
    study = Study.from_dict(small_study(site={"cost_basis": "ownership"}))
    result = run(study, method="milp")
    assert len(result.frontier)
    assert marginal_values(study, result.frontier.iloc[-1]) == []


def test_the_least_raise_of_a_limit_is_the_same_by_program_and_by_enumeration(monkeypatch: pytest.MonkeyPatch) -> None:
    study = Study.from_dict(small_study(limits={"cost_usd_per_h": 100, "power_w": 60e3}))
    frontier = run(study, method="exhaustive").frontier
    enumerated, _ = raised_limits(study, frontier, Stop())
    monkeypatch.setattr("dse.whatif.EXPLORED_AGAIN", 0)
    assert enumerated
    solved = {r["limit"]: r for r in raised_limits(study, frontier, Stop())[0]}
    for one in enumerated:
        for key in ("needed", "gain"):
            assert solved[one["limit"]][key] == pytest.approx(one[key], rel=1e-9)
