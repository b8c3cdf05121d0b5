"""Training: more of what helps never hurts, and time, energy and money add up."""

from __future__ import annotations

import math
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dse.exhaustive import explore
from dse.progress import Stop, silent
from dse.resolve import Study
from dse.scoring import explain, score

SLACK = 1 + 1e-9
GPU = {
    "device": "a100-80gb-sxm", "name": "gpu", "count": [16], "instance_size": [4], "micro_batch": [1, 2],
    "zero_stage": [0, 1, 2, 3],
}  # fmt: skip
NEW = {"device": "h100-80gb-sxm", "name": "new", "count": [0, 8], "instance_size": [4], "micro_batch": [1, 2]}
WSE = {"device": "wse-3", "name": "wse", "count": [1]}


@cache
def dp_study() -> Study:
    return Study.from_dict(dp_tables())


def dp_tables(**workload: Any) -> dict[str, Any]:
    work = {"model": "llama-2-7b", "sequence_tokens": 2048, "global_batch": [96], "recompute": ["selective"]}
    return {
        "name": "monotone",
        "paradigm": "dp_training",
        "workload": work | workload,
        "pool": [GPU, NEW, WSE],
        "link": {"bandwidth_gb_s": [25]},
    }


@cache
def pp_study() -> Study:
    pools = [GPU | {"stages": [4], "schedule": ["1f1b"]}, NEW | {"stages": [2]}, WSE | {"count": [0, 1]}]
    return Study.from_dict(dp_tables() | {"paradigm": "pp_training", "pool": pools})


def row(study: Study, **design: Any) -> Any:
    return score(study, design).iloc[0]


DP = st.fixed_dictionaries(
    {
        "n_gpu": st.integers(0, 20).map(lambda k: 4 * k),
        "n_new": st.integers(1, 20).map(lambda k: 4 * k),
        "n_wse": st.integers(0, 4),
        "global_batch": st.integers(1, 600),
        "micro_batch_gpu": st.sampled_from([1, 2, 3]),
        "zero_stage_gpu": st.integers(0, 3),
        "zero_stage_new": st.just(3),
        "recompute": st.sampled_from(["none", "selective", "full"]),
        "link_gb_s": st.floats(0.5, 400),
    }
)
CHAIN = st.fixed_dictionaries(
    {
        "n_gpu": st.sampled_from([16, 32]),
        "stages_gpu": st.just(4),
        "n_new": st.sampled_from([0, 8, 16]),
        "stages_new": st.sampled_from([1, 2]),
        "n_wse": st.integers(0, 2),
        "schedule": st.sampled_from(["gpipe", "1f1b", "interleaved"]),
        "recompute": st.sampled_from(["none", "selective", "full"]),
        "link_gb_s": st.floats(0.5, 400),
    }
)


@given(design=DP, factor=st.floats(1.0, 20.0))
@settings(max_examples=40, deadline=None)
def test_dp_more_bandwidth_never_slows(design: dict[str, Any], factor: float) -> None:
    s = dp_study()
    wider = design | {"link_gb_s": design["link_gb_s"] * factor}
    assert row(s, **wider)["step_time_s"] <= row(s, **design)["step_time_s"] * SLACK


@given(design=DP, low=st.floats(0, 1), high=st.floats(0, 1))
@settings(max_examples=30, deadline=None)
def test_dp_more_overlap_never_slows(design: dict[str, Any], low: float, high: float) -> None:
    low, high = sorted((low, high))
    less, more = (row(Study.from_dict(dp_tables(overlap_frac=o)), **design) for o in (low, high))
    assert more["step_time_s"] <= less["step_time_s"] * SLACK


@given(design=DP)
@settings(max_examples=40, deadline=None)
def test_dp_a_mix_over_a_free_link_is_never_below_its_best_pool(design: dict[str, Any]) -> None:
    found = row(dp_study(), **design | {"link_gb_s": 1e9})
    if found["feasible"]:
        assert found["gain"] >= 1 - 1e-9
        assert found["step_time_s"] >= max(found[f"busy_{p}"] for p in ("gpu", "new", "wse")) * found["step_time_s"]


@given(design=DP)
@settings(max_examples=30, deadline=None)
def test_recomputing_less_is_never_slower_and_keeps_more(design: dict[str, Any]) -> None:
    found = [row(dp_study(), **design | {"recompute": r}) for r in ("none", "selective", "full")]
    for less, more in pairwise(found):
        assert more["mem_margin_byte"] >= less["mem_margin_byte"] or design["n_wse"]
        if less["feasible"] and more["feasible"]:
            assert less["step_time_s"] <= more["step_time_s"] * SLACK


@given(design=DP)
@settings(max_examples=20, deadline=None)
def test_dp_more_sharding_never_needs_more_memory(design: dict[str, Any]) -> None:
    margins = [row(dp_study(), **design | {"zero_stage_gpu": z})["mem_margin_byte"] for z in range(4)]
    assert margins == sorted(margins)


@given(design=CHAIN)
@settings(max_examples=15, deadline=None)
def test_pp_more_sharding_never_needs_more_memory(design: dict[str, Any]) -> None:
    margins = [row(pp_study(), **design | {"zero_stage_gpu": z})["mem_margin_byte"] for z in range(4)]
    assert margins == sorted(margins)


def layers_of(n_stages: int) -> dict[str, int]:
    """32 layers as evenly as can be; a layout that does not follow the link."""
    return {f"layers_{s + 1}": 32 // n_stages + (s < 32 % n_stages) for s in range(n_stages)}


@given(design=CHAIN, factor=st.floats(1.0, 20.0))
@settings(max_examples=30, deadline=None)
def test_pp_more_bandwidth_never_slows_a_layout(design: dict[str, Any], factor: float) -> None:
    n_stages = 4 + (design["stages_new"] if design["n_new"] else 0) + (1 if design["n_wse"] else 0)
    fixed = design | layers_of(n_stages)
    wider = fixed | {"link_gb_s": design["link_gb_s"] * factor}
    assert row(pp_study(), **wider)["step_time_s"] <= row(pp_study(), **fixed)["step_time_s"] * SLACK


@given(design=CHAIN, offload=st.integers(0, 3), times=st.integers(2, 6))
@settings(max_examples=30, deadline=None)
def test_pp_more_micro_batches_fill_better_and_offload_needs_the_link(
    design: dict[str, Any], offload: int, times: int
) -> None:
    """Wafers one a pipeline: those that serve several are in test_training_corners."""
    if offload:
        design = design | {"offload_layers": offload, "n_new": 0, "n_wse": design["n_gpu"] // 16, "schedule": "gpipe"}
    few = row(pp_study(), **design | {"global_batch": 24})
    many = row(pp_study(), **design | {"global_batch": 24 * times})
    if few["feasible"] and many["feasible"]:
        assert many["throughput_tok_s"] >= few["throughput_tok_s"] / SLACK
        assert many["bubble_frac"] <= few["bubble_frac"] + 1e-9
        assert max(few["link_use_frac"], many["link_use_frac"]) <= 1


@given(design=CHAIN)
@settings(max_examples=20, deadline=None)
def test_1f1b_is_never_slower_than_gpipe_and_keeps_no_more(design: dict[str, Any]) -> None:
    eager, flushed = (row(pp_study(), **design | {"schedule": s, "global_batch": 96}) for s in ("1f1b", "gpipe"))
    assert eager["mem_margin_byte"] >= flushed["mem_margin_byte"]
    if flushed["feasible"]:
        assert eager["step_time_s"] <= flushed["step_time_s"] * SLACK


@given(n=st.integers(1, 8), batch=st.integers(1, 40), micro=st.sampled_from([1, 2]))
@settings(max_examples=20, deadline=None)
def test_a_pipeline_of_one_stage_is_data_parallel(n: int, batch: int, micro: int) -> None:
    design = {
        "n_gpu": 4 * n, "n_new": 0, "n_wse": 0, "micro_batch_gpu": micro, "global_batch": n * batch * micro,
        "recompute": "full", "zero_stage_gpu": 3,
    }  # fmt: skip
    dp, pp = row(dp_study(), **design), row(pp_study(), **design, stages_gpu=1, schedule="1f1b")
    assert pp["step_time_s"] == pytest.approx(dp["step_time_s"], rel=1e-12)
    assert pp["mem_margin_byte"] == pytest.approx(dp["mem_margin_byte"], rel=1e-12)


def optimum(study: Study) -> float:
    found = explore(study, workers=1, address="local", report=silent, stop=Stop())
    return -float(found.points[:, 0].min()) if len(found.points) else 0.0


@pytest.mark.parametrize("paradigm", ["dp_training", "pp_training"])
def test_more_on_offer_never_lowers_the_best(paradigm: str) -> None:
    """One purchase step more of either pool, and one link more."""
    stages = {"stages": [2, 4]} if paradigm == "pp_training" else {}
    best = []
    for gpus, wafers, links in ((16, 1, [5]), (32, 1, [5]), (48, 1, [5]), (48, 2, [5]), (48, 2, [5, 50])):
        pools = [
            GPU | stages | {"count": {"min": 0, "max": gpus, "step": 16}},
            WSE | {"count": {"min": 0, "max": wafers}} | ({"offload_layers": [0, 1]} if stages else {}),
        ]
        raw = dp_tables() | {"paradigm": paradigm, "pool": pools, "link": {"bandwidth_gb_s": links}}
        best.append(optimum(Study.from_dict(raw)))
    assert best[0] > 0
    assert all(more >= less / SLACK for less, more in pairwise(best))


@pytest.mark.parametrize("basis", ["rental", "ownership"])
@given(design=DP)
@settings(max_examples=15, deadline=None)
def test_time_energy_and_money_add_up(basis: str, design: dict[str, Any]) -> None:
    raw = dp_tables(train_tokens=1e12) | {
        "site": {"cost_basis": basis, "pue": 1.3},
        "link": {"tier": ["ndr400"], "count": [2]},
        "failures": {"mtbf_device_h": 50_000, "checkpoint_s": 60, "restart_s": 600},
    }
    del design["link_gb_s"]
    frame, detail = explain(Study.from_dict(raw), design)
    found, pools, system = frame.iloc[0], detail["pools"].values(), detail["system"]
    if not found["feasible"]:
        assert found["throughput_tok_s"] == 0
        return
    tokens = found["global_batch"] * 2048
    step = found["step_time_s"]
    assert step == pytest.approx(max(p["busy_frac"] for p in pools) * step + found["sync_s"], rel=1e-9)
    assert found["power_w"] == pytest.approx(sum(p["power_w"] for p in pools) + system["link_power_w"], rel=1e-9)
    mean = sum(p["power_mean_w"] for p in pools) + system["link_power_w"]
    assert found["power_mean_w"] == pytest.approx(mean, rel=1e-9)
    assert found["power_mean_w"] <= found["power_w"] * SLACK
    assert found["energy_j_per_tok"] * tokens == pytest.approx(step * mean, rel=1e-9)
    cost = sum(p["cost_usd_per_h"] for p in pools) + found["link_cost_usd_per_h"]
    assert found["cost_usd_per_h"] == pytest.approx(cost, rel=1e-9)
    assert found["usd_per_mtok"] * tokens / 1e6 == pytest.approx(step * cost / 3600, rel=1e-9)
    # the run: 1e12 tokens, longer by what failures cost
    assert found["train_time_s"] * found["goodput_frac"] == pytest.approx(1e12 / tokens * step, rel=1e-9)
    assert found["train_energy_j"] == pytest.approx(found["train_time_s"] * mean, rel=1e-9)
    assert found["train_cost_usd"] == pytest.approx(found["train_time_s"] / 3600 * cost, rel=1e-9)
    # what the pools do is the work of the step; eq. (3)-(4)
    done = sum(p["g_flop_s"] for p in pools)
    assert done == pytest.approx(system["f_flop_s"], rel=1e-9)
    for p in pools:
        if p["busy_frac"] > 0:
            assert p["busy_frac"] * (1 + p["eta"]) == pytest.approx(1, rel=1e-9)
            assert sum(p["time_frac"].values()) == pytest.approx(1, rel=1e-9)
        else:
            assert math.isinf(p["eta"])
