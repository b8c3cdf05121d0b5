"""A link for each pair of pools: worked cases, the grid that holds them, `--set` keys, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from conftest import CHAT, small_study
from small_training import data_parallel, pipelined

from dse import exhaustive, search
from dse.catalog import load_catalog
from dse.choice import choose_method
from dse.errors import InputError, MethodError
from dse.explore import run
from dse.model.routing import split_rate, stealing_flows_lp
from dse.pareto import minimised
from dse.progress import Stop, silent
from dse.resolve import Study
from dse.scoring import score, score_index
from search_spaces import pd_serving_links

KV_BYTE = 1024 * 524_288
"""KV cache of a prompt of 1024 tokens, Llama-2-7B in 16 bit."""
POOLS = [
    {"device": "a100-40gb-sxm", "name": "gpu", "count": [0, 8, 16], "roles": ["prefill"]},
    {"device": "h100-80gb-sxm", "name": "h.1_x", "count": [0, 4], "roles": ["prefill", "decode"]},
    {"device": "wse-3", "name": "wse-3", "count": [0, 1], "roles": ["decode"]},
]
ONE = {"n_gpu": "8", "role_gpu": "prefill", "n_h.1_x": "4", "role_h.1_x": "prefill", "n_wse-3": "1",
       "role_wse-3": "decode"}  # fmt: skip


def three_pools(**changes: Any) -> dict[str, Any]:
    return small_study(pool=POOLS, link={"bandwidth_gb_s": [1, 4, 1000], "per_pair": True}, **{} | changes)


def raw(pools: int, **link: Any) -> dict[str, Any]:
    gpu = {"device": "a100-40gb-sxm", "count": [0, 8]}
    return small_study(pool=[gpu | {"name": f"p{i}"} for i in range(pools)], link=link | {"per_pair": True})


# -- worked cases -----------------------------------------------------------------------------------


def test_split_through_two_links_by_hand() -> None:
    """30/s and 10/s prefill, 20/s decode, 1 GB a request: 3/4 cross the one link, 1/4 the other."""
    prefill, decode = [np.array(30.0), np.array(10.0), np.array(0.0)], [np.array(0.0), np.array(0.0), np.array(20.0)]
    byte_s = np.full((3, 3), 1e18)
    byte_s[0, 2] = byte_s[2, 0] = 9e9
    assert float(split_rate(prefill, decode, byte_s, 1e9)) == pytest.approx(12.0, rel=1e-12)
    byte_s[1, 2] = byte_s[2, 1] = 2e9
    assert float(split_rate(prefill, decode, byte_s, 1e9)) == pytest.approx(8.0, rel=1e-12)


def test_work_stealing_through_two_links_by_hand() -> None:
    """One pool prefills 10/s for two that decode 5/s each; 1 GB a request: 2/s through the narrow link, 5/s else."""
    byte_s = np.full((3, 3), 1e18)
    byte_s[0, 1] = byte_s[1, 0] = 2e9
    never = np.inf
    rate, z = stealing_flows_lp(
        np.ones(3),
        np.array([[0.1], [never], [never]]),
        np.array([[never], [0.2], [0.2]]),
        np.array([1.0]),
        np.array([1e9]),
        byte_s,
    )
    assert rate == pytest.approx(7.0, rel=1e-9)
    assert z[0, 1, 0] == pytest.approx(2 / 7, rel=1e-9)


def test_three_pools_and_two_links_by_hand() -> None:
    study = Study.from_dict(three_pools())
    free = score(study, ONE | {"link": "1000 GB/s"}).iloc[0]
    share = float(free["prefill_frac_gpu"])
    assert 0.2 < share < 0.8
    assert free["link"] == "1000 GB/s"
    row = score(study, ONE | {"link": "1000 GB/s", "link_gpu~wse-3": "1 GB/s"}).iloc[0]
    assert row["requests_s"] == pytest.approx(1e9 / KV_BYTE / share, rel=1e-9)
    assert row["requests_s"] < free["requests_s"]
    assert row["prefill_frac_gpu"] == pytest.approx(share, rel=1e-9)
    assert row["link"] == "gpu~wse-3: 1 GB/s, h.1_x~wse-3: 1000 GB/s"
    assert row["bottleneck"] == "link gpu~wse-3"
    assert row["link_gb_s"] == 1.0
    assert row["link_use_frac"] == pytest.approx(1.0, rel=1e-9)
    other = score(study, ONE | {"link": "1000 GB/s", "link_wse-3~h.1_x": "1 GB/s"}).iloc[0]
    assert other["requests_s"] == pytest.approx(min(free["requests_s"], 1e9 / KV_BYTE / (1 - share)), rel=1e-9)


def test_time_to_first_token_through_two_links_by_hand() -> None:
    """A low demand: next to no wait, so the mean is weighted by flow and p99 is the slower pool's."""
    study = Study.from_dict(three_pools(demand={"requests_s": 0.01}))
    free = score(study, ONE | {"link": "1000 GB/s"}).iloc[0]
    row = score(study, ONE | {"link": "1000 GB/s", "link_gpu~wse-3": "1 GB/s"}).iloc[0]
    slower_s = KV_BYTE / 1e9 - KV_BYTE / 1e12
    assert row["ttft_mean_s"] - free["ttft_mean_s"] == pytest.approx(free["prefill_frac_gpu"] * slower_s, rel=1e-6)
    assert row["ttft_p99_s"] - free["ttft_p99_s"] == pytest.approx(slower_s, rel=1e-6)


def test_each_pair_pays_for_its_own_tier() -> None:
    link = {"tier": ["eth100", "ndr400"], "count": [1, 2], "per_pair": True}
    study = Study.from_dict(small_study(pool=POOLS, link=link))
    row = score(study, ONE | {"link_gpu~wse-3": "2 x ndr400", "link_h.1_x~wse-3": "1 x eth100"}).iloc[0]
    wide, narrow = load_catalog().link("ndr400"), load_catalog().link("eth100")
    per_hour = 1 / 4 / 8760 + 0.05 / 8760
    capex = 2 * wide.capex_usd + narrow.capex_usd
    assert row["link_cost_usd_per_h"] == pytest.approx(capex * per_hour, rel=1e-12)
    same = score(study, ONE | {"link": "1 x eth100"}).iloc[0]
    extra_w = 1.2 * (2 * wide.power_w - narrow.power_w)
    assert row["power_w"] - same["power_w"] == pytest.approx(extra_w, rel=1e-6)
    assert row["link_gb_s"] == narrow.bandwidth_byte_s / 1e9


# -- the grid ---------------------------------------------------------------------------------------


def test_with_two_pools_it_changes_nothing() -> None:
    one, paired = (Study.from_dict(small_study(link={"bandwidth_gb_s": [2, 20], "per_pair": p})) for p in (False, True))
    index = np.arange(one.space.n_designs)
    assert np.array_equal(one.space.legal(index), paired.space.legal(index))
    assert score_index(one, index).equals(score_index(paired, index))


@pytest.mark.parametrize("routing", ["split", "work_stealing"])
def test_the_grid_has_every_assignment_once(routing: str) -> None:
    work = {"model": "llama-2-7b", "requests": [dict(CHAT)], "routing": routing}
    study = Study.from_dict(small_study(workload=work, pool=POOLS, link={"bandwidth_gb_s": [1, 9], "per_pair": True}))
    index = np.arange(study.space.n_designs)
    legal = index[study.space.legal(index)]
    frame = score_index(study, legal)
    keys = [tuple(sorted(study.space.settings_of(row).items())) for _, row in frame.iterrows()]
    assert len(set(keys)) == len(keys)
    whole = frame[(frame["n_gpu"] == 8) & (frame["n_h.1_x"] == 4) & (frame["n_wse-3"] == 1)]
    linked = {"split": 2, "work_stealing": 3}[routing]
    by_roles = whole.groupby(["role_gpu", "role_h.1_x", "role_wse-3"]).size()
    assert set(by_roles) == {2**linked}


def test_the_link_of_every_design_is_given_again_by_its_keys() -> None:
    study = Study.from_dict(small_study(pool=POOLS, link={"tier": ["eth100", "ndr400"], "per_pair": True}))
    index = np.arange(study.space.n_designs)
    frame = score_index(study, index[study.space.legal(index)])
    frame = frame[frame["link"].str.contains("~") | (frame["link"] == "none")]
    assert len(frame) > 4
    for _, row in frame.iterrows():
        again = score(study, study.space.settings_of(row)).iloc[0]
        for name in ("link", "link_gb_s", "throughput_tok_s", "cost_usd_per_h", "power_w", "ttft_p99_s"):
            assert again[name] == row[name]


def test_blocks_screen_what_scoring_says() -> None:
    work = {"model": "llama-2-7b", "requests": [dict(CHAT)], "slo": {"ttft_p99_s": 0.5}}
    study = Study.from_dict(three_pools(workload=work, site={"cost_basis": "ownership"}))
    for unit in study.space.units():
        block, legal, first = study.space.screen_unit(unit)
        at = np.flatnonzero(legal & block.feasible)
        if not len(at):
            continue
        scored = study.space.numbers(at + first)
        for name in ("throughput_tok_s", "cost_usd_per_h", "power_w"):
            screened = np.broadcast_to(block.columns[name], legal.shape).reshape(-1)[at]
            np.testing.assert_allclose(screened, scored[name], rtol=1e-12)


def test_a_link_a_pair_is_never_worse_than_one_link() -> None:
    names = ("throughput_tok_s", "cost_usd_per_h", "power_w")
    fronts = []
    for per_pair in (False, True):
        link = {"tier": ["eth100", "ndr400"], "count": [1, 4], "per_pair": per_pair}
        study = Study.from_dict(small_study(pool=POOLS, link=link))
        found = exhaustive.explore(study, workers=1, address="local", report=silent, stop=Stop())
        frame = score_index(study, found.index)
        fronts.append(minimised({n: frame[n].to_numpy() for n in names}, names))
    one, paired = fronts
    assert all(any((q <= p * (1 + np.sign(p) * 1e-12)).all() for q in paired) for p in one)
    assert any(all((q < p).any() for p in one) for q in paired)


def test_a_step_more_widens_one_pair() -> None:
    study = Study.from_dict(three_pools())
    row = score(study, ONE | {"link_gpu~wse-3": "4 GB/s"}).iloc[0]
    steps = {s.label: s.settings for s in study.space.next_steps(row)}
    assert steps["link 1000 GB/s instead of 4 GB/s between gpu and wse-3"] == {"link_gpu~wse-3": "1000 GB/s"}
    assert steps["link 4 GB/s instead of 1 GB/s between h.1_x and wse-3"] == {"link_h.1_x~wse-3": "4 GB/s"}


# -- more assignments than a grid numbers -----------------------------------------------------------


def test_too_many_assignments_are_left_to_the_program() -> None:
    study = Study.from_dict(raw(6, bandwidth_gb_s=[1, 2]))
    assert "3.277e+04 ways to link 6 pools" in exhaustive.refusal(study)
    assert exhaustive.refusal(study).startswith("exhaustive: ")
    assert search.refusal(study).startswith("optuna: ")
    assert choose_method(study)[0] == "milp"
    for explorer in (exhaustive, search):
        with pytest.raises(MethodError, match="ways to link 6 pools"):
            explorer.explore(study, workers=1, address="local", report=silent, stop=Stop())
    with pytest.raises(MethodError, match="optuna: a link per pair"):
        choose_method(Study.from_dict(raw(6, bandwidth_gb_s=[1, 2]) | {"search": {"method": "optuna"}}))
    nothing_answers = raw(6, bandwidth_gb_s=[1, 2]) | {"objectives": {"minimise": ["usd_per_mtok"]}}
    with pytest.raises(MethodError, match=r"ways to link 6 pools.*not linear"):
        choose_method(Study.from_dict(nothing_answers))


def test_a_run_reports_plans_that_the_grid_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pd_serving_links, "MOST_WIRINGS", 1)
    few = [POOLS[0] | {"count": [8]}, POOLS[1] | {"roles": ["prefill"]}, POOLS[2]]
    link = {"tier": ["eth100", "ndr400"], "count": [1, 2], "per_pair": True}
    limits = {"n_h.1_x": {"min": 4}, "n_wse-3": {"min": 1}}
    result = run(Study.from_dict(small_study(pool=few, link=link, site={"life_years": 0.05}, limits=limits)))
    assert result.info["method"] == "milp"
    assert result.info["complete"]
    placed = result.frontier[result.frontier["design_id"].str.startswith("p")]
    assert len(placed)
    assert placed["link"].str.contains("gpu~wse-3: ").all()
    assert (placed["throughput_low_tok_s"] <= placed["throughput_tok_s"]).all()
    assert set(placed["design_id"]) <= set(result.candidates["design_id"])


def test_more_designs_than_numbers_are_left_to_the_program() -> None:
    gpu = {"device": "a100-40gb-sxm", "count": {"min": 0, "max": 8000}}
    study = Study.from_dict(raw(4, bandwidth_gb_s=[1, 2, 4]) | {"pool": [gpu | {"name": f"p{i}"} for i in range(4)]})
    assert "more than can be numbered" in exhaustive.refusal(study)


# -- bad input --------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [data_parallel, pipelined])
def test_training_refuses_it(make: Any) -> None:
    with pytest.raises(InputError, match=r"link\.per_pair: .* only pd_serving"):
        Study.from_dict(make(link={"bandwidth_gb_s": [10], "per_pair": True}))


def test_bad_keys_are_told() -> None:
    with pytest.raises(InputError, match=r"link\.per_pair"):
        Study.from_dict(small_study(link={"bandwidth_gb_s": [10], "per_pair": "yes"}))
    study = Study.from_dict(three_pools())
    with pytest.raises(InputError, match="link_gpu~wse") as unknown:
        score(study, ONE | {"link_gpu~wse": "1 GB/s"})
    assert "did you mean link_gpu~wse-3" in str(unknown.value)
    with pytest.raises(InputError, match="must be one of 1 GB/s, 4 GB/s, 1000 GB/s"):
        score(study, ONE | {"link_gpu~wse-3": "2 GB/s"})
    with pytest.raises(InputError, match="the same pair"):
        score(study, ONE | {"link_gpu~wse-3": "1 GB/s", "link_wse-3~gpu": "4 GB/s"})


def test_a_pairs_link_goes_before_the_one_for_all() -> None:
    study = Study.from_dict(three_pools())
    row = score(study, ONE | {"link_gb_s": "7", "link_gpu~wse-3": "4 GB/s"}).iloc[0]
    assert row["link"] == "gpu~wse-3: 4 GB/s, h.1_x~wse-3: 7 GB/s"
