"""Exhaustive, MILP and Optuna give one frontier, and brute force confirms it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import small_study
from numpy.typing import NDArray

from dse import exhaustive, search
from dse import frontier as milp
from dse.choice import choose_method
from dse.errors import MethodError
from dse.pareto import minimised
from dse.progress import Stop, silent
from dse.resolve import Study
from dse.scoring import score_index, score_plans
from search_spaces import pd_serving_links

TWO_CLASSES = [
    {"name": "short", "share": 0.7, "input_tokens": 300, "output_tokens": 500},
    {"name": "long", "share": 0.3, "input_tokens": 4000, "output_tokens": 60},
]
THREE_POOLS = [
    {"device": "a100-40gb-sxm", "name": "gpu", "count": [0, 4, 8]},
    {"device": "h100-80gb-sxm", "name": "h100", "count": [0, 2, 4], "roles": ["prefill", "decode"]},
    {"device": "wse-3", "name": "wse", "count": [0, 1], "roles": ["prefill", "decode"]},
]

FEW_POOLS = [
    {"device": "a100-40gb-sxm", "name": "gpu", "count": [0, 8, 16], "roles": ["prefill"]},
    {"device": "h100-80gb-sxm", "name": "h100", "count": [0, 4], "roles": ["prefill", "decode"]},
    {"device": "wse-3", "name": "wse", "count": [0, 1], "roles": ["prefill", "decode"]},
]
DEAR_LINKS = {"life_years": 0.05}
"""Devices are rented, links are bought: where links do not last, a narrow one that is full may be worth it."""
FOUR_POOLS = [
    {"device": "a100-40gb-sxm", "name": "gpu", "count": [0, 8], "roles": ["prefill"]},
    {"device": "h100-80gb-sxm", "name": "h100", "count": [0, 4], "roles": ["prefill"]},
    {"device": "h100-80gb-sxm", "name": "late", "count": [0, 2, 4], "roles": ["decode"]},
    {"device": "wse-3", "name": "wse", "count": [0, 1], "roles": ["decode"]},
]

STUDIES: dict[str, dict[str, Any]] = {
    "split, link tiers, limits": small_study(
        link={"tier": ["eth100", "ndr400"], "count": [1, 2]}, limits={"cost_usd_per_h": 250, "power_w": 90e3}
    ),
    "work stealing, link that binds": small_study(
        workload={"model": "llama-2-7b", "requests": TWO_CLASSES, "routing": ["split", "work_stealing"]},
        link={"bandwidth_gb_s": [2, 20]},
    ),
    "three pools in proportion": small_study(pool=THREE_POOLS, link={"bandwidth_gb_s": [1.5, 12.5, 100]}),
    "three pools, work stealing": small_study(
        workload={"model": "llama-2-7b", "requests": TWO_CLASSES, "routing": ["work_stealing"]},
        pool=THREE_POOLS,
        link={"bandwidth_gb_s": [5, 50]},
    ),
    "a link a pair": small_study(
        pool=FEW_POOLS, site=DEAR_LINKS, link={"tier": ["eth100", "ndr400"], "count": [1, 4], "per_pair": True}
    ),
    "a link a pair, four pools": small_study(
        pool=FOUR_POOLS, site=DEAR_LINKS, link={"tier": ["eth100", "ndr400"], "count": [1], "per_pair": True}
    ),
    "a link a pair, work stealing": small_study(
        workload={"model": "llama-2-7b", "requests": TWO_CLASSES, "routing": ["work_stealing"]},
        pool=FEW_POOLS,
        site=DEAR_LINKS,
        link={"tier": ["eth100", "ndr400"], "per_pair": True},
    ),
    "a link a pair, TTFT limit": small_study(
        workload={"model": "llama-2-7b", "requests": TWO_CLASSES, "slo": {"ttft_p99_s": 1.1, "tpot_s": 0.05}},
        pool=FEW_POOLS,
        site=DEAR_LINKS,
        link={"tier": ["eth100", "ndr400"], "count": [1, 2], "latency_s": 0.01, "per_pair": True},
    ),
    "a link a pair, TTFT limit, ownership": small_study(
        workload={"model": "llama-2-7b", "requests": TWO_CLASSES, "slo": {"ttft_p99_s": 1.1}},
        site={"cost_basis": "ownership"},
        pool=FEW_POOLS,
        link={"tier": ["eth100", "ndr400"], "count": [1, 2], "per_pair": True},
    ),
    "service limits and a demand": small_study(
        workload={
            "model": "llama-2-7b",
            "requests": TWO_CLASSES,
            "slo": {"ttft_p99_s": 1.5, "tpot_s": 0.02},
        },
        demand={"requests_s": 4},
    ),
    "ownership, some devices owned": small_study(
        site={"cost_basis": "ownership"},
        pool=[
            {"device": "a100-40gb-sxm", "name": "gpu", "count": {"min": 0, "max": 24, "step": 8}, "owned": 8},
            {"device": "wse-3", "name": "wse", "count": {"min": 0, "max": 2}},
        ],
    ),
    "data types and instance sizes": small_study(
        workload={
            "model": "llama-2-13b",
            "requests": TWO_CLASSES,
            "weight_dtype": ["bf16", "int8"],
            "kv_dtype": ["bf16", "fp8"],
        },
        pool=[
            {"device": "a100-40gb-sxm", "name": "gpu", "count": [0, 4, 8], "instance_size": [1, 2]},
            {"device": "wse-3", "name": "wse", "count": [0, 1, 2], "instance_size": [1, 2]},
        ],
        link={"bandwidth_gb_s": [25]},
    ),
}


def brute_force(study: Study) -> NDArray[np.float64]:
    """Distinct non-dominated points of every legal design, by comparing all pairs."""
    index = np.arange(study.space.n_designs)
    frame = score_index(study, index[study.space.legal(index)])
    frame = frame[frame["feasible"]]
    names = study.envelope.objectives.names
    points = np.unique(minimised({o: frame[o].to_numpy() for o in names}, names), axis=0)
    keep = [not any((q <= p).all() and (q < p).any() for q in points) for p in points]
    return points[keep]


def same(points: NDArray[np.float64], expected: NDArray[np.float64]) -> bool:
    distinct = np.unique(points, axis=0)
    return distinct.shape == expected.shape and np.allclose(distinct, expected, rtol=1e-9, atol=0.0)


@pytest.mark.parametrize("name", STUDIES)
def test_every_method_gives_the_brute_force_frontier(name: str) -> None:
    study = Study.from_dict(STUDIES[name] | {"search": {"resolution_frac": 0}})
    expected = brute_force(study)
    assert len(expected) > 1
    if exhaustive.refusal(study):
        assert "linear program" in exhaustive.refusal(study)
        with pytest.raises(MethodError, match="milp"):
            exhaustive.explore(study, workers=1, address="local", report=silent, stop=Stop())
    else:
        grid = exhaustive.explore(study, workers=1, address="local", report=silent, stop=Stop())
        assert same(grid.points, expected)
    exact = milp.explore(study, report=silent, stop=Stop())
    assert same(exact.points, expected)
    assert not exact.unproven
    assert [c.design_id for c in exact.certificates] == [p.design_id for p in exact.plans]
    assert all(c.gap <= 1e-6 for c in exact.certificates)
    sampled = search.explore(study, workers=1, address="local", report=silent, stop=Stop())
    assert same(sampled.points, expected)


@pytest.mark.parametrize("name", [n for n in STUDIES if n.startswith("a link a pair")])
def test_plans_that_the_grid_lacks_are_given_by_their_keys(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = brute_force(Study.from_dict(STUDIES[name]))
    monkeypatch.setattr(pd_serving_links, "MOST_WIRINGS", 1)
    study = Study.from_dict(STUDIES[name] | {"search": {"resolution_frac": 0}})
    exact = milp.explore(study, report=silent, stop=Stop())
    assert same(exact.points, expected)
    assert any(plan.index is None for plan in exact.plans)
    frame = score_plans(study, exact.plans)
    for plan, link in zip(exact.plans, frame["link"], strict=True):
        assert (plan.index is None) == ("~" in link)


@pytest.mark.slow
def test_quickstart_agrees() -> None:
    study = Study.load(Path(__file__).parents[1] / "experiments" / "quickstart.toml")
    raw = study.envelope.model_dump(mode="json", exclude_unset=True)
    study = Study.from_dict({**raw, "search": {**raw.get("search", {}), "resolution_frac": 0}}, folder=study.folder)
    grid = exhaustive.explore(study, workers=1, address="local", report=silent, stop=Stop())
    expected = brute_force(study)
    assert same(grid.points, expected)
    exact = milp.explore(study, report=silent, stop=Stop())
    assert same(exact.points, expected)
    assert not exact.unproven
    assert max(c.gap for c in exact.certificates) <= 1e-7
    sampled = search.explore(study, workers=1, address="local", report=silent, stop=Stop())
    assert same(sampled.points, expected)


REFUSED = {
    "ttft": (
        {
            "workload": {
                "model": "llama-2-7b",
                "requests": TWO_CLASSES,
                "routing": "work_stealing",
                "slo": {"ttft_p99_s": 2},
            }
        },
        "TTFT limit under work stealing",
    ),
    "energy": (
        {
            "workload": {"model": "llama-2-7b", "requests": TWO_CLASSES, "routing": "work_stealing"},
            "site": {"cost_basis": "ownership"},
        },
        "depends on the flows",
    ),
    "objective": ({"objectives": {"minimise": ["usd_per_mtok"]}}, "not linear"),
    "limit": ({"limits": {"tpot_s": 0.1}}, "not linear"),
    "ceiling": ({"limits": {"requests_s": {"max": 10}}}, "below its capacity"),
    "prefill only": (
        {
            "workload": {
                "model": "llama-2-7b",
                "requests": [{"share": 1.0, "input_tokens": 512, "output_tokens": 1}],
            }
        },
        "no request has a decode step",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_milp_refuses_what_it_cannot_answer_exactly_and_auto_goes_round_it(name: str) -> None:
    changes, reason = REFUSED[name]
    study = Study.from_dict(small_study(**changes))
    assert reason in milp.refusal(study)
    with pytest.raises(MethodError, match=reason):
        milp.explore(study, report=silent, stop=Stop())
    grid = exhaustive.explore(study, workers=1, address="local", report=silent, stop=Stop())
    assert same(grid.points, brute_force(study))


def test_optuna_with_a_seed_repeats_itself() -> None:
    raw = small_study(search={"trials": 96, "seed": 7}, pool=[
        {"device": "a100-40gb-sxm", "name": "gpu", "count": {"min": 0, "max": 400}},
        {"device": "wse-3", "name": "wse", "count": {"min": 0, "max": 40}},
    ])  # fmt: skip
    first, second = (
        search.explore(Study.from_dict(raw), workers=1, address="local", report=silent, stop=Stop()) for _ in range(2)
    )
    assert first.index.tolist() == second.index.tolist()
    other = search.explore(
        Study.from_dict(raw | {"search": {"trials": 96, "seed": 8}}),
        workers=1,
        address="local",
        report=silent,
        stop=Stop(),
    )
    assert first.index.tolist() != other.index.tolist()


def test_a_limit_that_asks_for_dear_plans_is_refused() -> None:
    study = Study.from_dict(small_study(limits={"cost_usd_per_h": {"min": 100}}, search={"method": "milp"}))
    assert "no use for" in milp.refusal(study)
    assert choose_method(Study.from_dict(small_study(limits={"power_w": {"min": 1e4}})))[0] == "exhaustive"


CAUGHT: dict[str, dict[str, Any]] = {
    "a box that tight tolerances call empty": {
        "name": "x",
        "paradigm": "pd_serving",
        "workload": {
            "model": "llama-2-7b",
            "routing": ["work_stealing"],
            "requests": [
                {"share": 0.333, "input_tokens": 64, "output_tokens": 60},
                {"share": 0.333, "input_tokens": 4000, "output_tokens": 500},
                {"share": 0.334, "input_tokens": 4000, "output_tokens": 60},
            ],
        },
        "pool": [
            {"device": "a100-80gb-sxm", "name": "p0", "count": [0, 4], "roles": ["prefill"]},
            {"device": "h200-141gb-sxm", "name": "p1", "count": [0, 8, 16], "roles": ["decode"]},
            {"device": "h200-141gb-sxm", "name": "p2", "count": [0, 4], "roles": ["prefill"]},
            {"device": "h200-141gb-sxm", "name": "p3", "count": [0, 2, 8], "roles": ["prefill"], "instance_size": [2]},
        ],
        "link": {"bandwidth_gb_s": [12.5, 2]},
    },
    "a better plan of another data type": {
        "name": "a",
        "paradigm": "pd_serving",
        "workload": {
            "model": "llama-3.1-8b",
            "kv_dtype": ["bf16", "fp8"],
            "requests": [
                {"share": 0.5, "input_tokens": 64, "output_tokens": 500},
                {"share": 0.5, "input_tokens": 4000, "output_tokens": 2},
            ],
        },
        "pool": [{"device": "h200-141gb-sxm", "name": "p0", "count": [2, 4, 6], "max_decode_batch": [8, 64]}],
    },
}


@pytest.mark.parametrize("name", CAUGHT)
def test_a_coarse_frontier_is_made_of_points_of_the_whole_one_and_covers_it(name: str) -> None:
    study = Study.from_dict(CAUGHT[name])
    expected = brute_force(study)
    found = milp.explore(study, report=silent, stop=Stop())
    assert not found.unproven
    for point in found.points:
        assert np.isclose(expected, point, rtol=1e-9).all(axis=1).any()
    ranges = np.array([found.ranges[o] for o in study.envelope.objectives.names])
    for point in expected:
        assert (found.points - 0.01 * ranges <= point + 1e-9 * np.abs(point)).all(axis=1).any()
