"""What must hold whatever the numbers: more never hurts, and limits are what they say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from conftest import small_study
from hypothesis import given, settings
from hypothesis import strategies as st

from dse.explore import run
from dse.resolve import Study
from dse.scoring import score

REQUESTS = [
    {"name": "a", "share": 0.5, "input_tokens": 400, "output_tokens": 300},
    {"name": "b", "share": 0.3, "input_tokens": 2500, "output_tokens": 40},
    {"name": "c", "share": 0.2, "input_tokens": 900, "output_tokens": 900},
]


def study(routing: str = "split", **slo: float) -> Study:
    return Study.from_dict(
        small_study(workload={"model": "llama-2-7b", "requests": REQUESTS, "routing": routing, "slo": slo})
    )


def rate(s: Study, **design: Any) -> float:
    return float(score(s, design)["requests_s"].iloc[0])


DESIGN = st.fixed_dictionaries(
    {
        "n_gpu": st.integers(1, 60),
        "n_wse": st.integers(1, 6),
        "role_gpu": st.sampled_from(["prefill", "decode"]),
        "link_gb_s": st.floats(0.5, 400),
    }
)


def _complete(design: dict[str, Any]) -> dict[str, Any]:
    return design | {"role_wse": "decode" if design["role_gpu"] == "prefill" else "prefill"}


@pytest.mark.parametrize("routing", ["split", "work_stealing"])
@given(design=DESIGN, factor=st.floats(1.0, 5.0))
@settings(max_examples=25, deadline=None)
def test_more_bandwidth_never_hurts(routing: str, design: dict[str, Any], factor: float) -> None:
    s, full = study(routing), _complete(design)
    wider = full | {"link_gb_s": full["link_gb_s"] * factor}
    assert rate(s, **wider) >= rate(s, **full) * (1 - 1e-9)


@pytest.mark.parametrize("routing", ["split", "work_stealing"])
@pytest.mark.parametrize("pool", ["gpu", "wse"])
@given(design=DESIGN)
@settings(max_examples=15, deadline=None)
def test_one_more_device_never_lowers_the_rate(routing: str, pool: str, design: dict[str, Any]) -> None:
    s, full = study(routing), _complete(design)
    assert rate(s, **(full | {f"n_{pool}": full[f"n_{pool}"] + 1})) >= rate(s, **full) * (1 - 1e-9)


@given(design=DESIGN)
@settings(max_examples=25, deadline=None)
def test_work_stealing_is_never_below_split_roles(design: dict[str, Any]) -> None:
    full = _complete(design)
    assert rate(study("work_stealing"), **full) >= rate(study("split"), **full) * (1 - 1e-9)


@given(design=DESIGN)
@settings(max_examples=20, deadline=None)
def test_work_stealing_over_a_free_link_is_never_below_the_pools_side_by_side(design: dict[str, Any]) -> None:
    row = score(study("work_stealing"), _complete(design) | {"link_gb_s": 1e9}).iloc[0]
    assert row["complementarity"] >= 1 - 1e-9
    assert row["gain"] >= row["complementarity"] - 1e-9


@pytest.mark.parametrize("routing", ["split", "work_stealing"])
@given(design=DESIGN, ttft=st.floats(0.2, 5.0))
@settings(max_examples=20, deadline=None)
def test_a_ttft_limit_is_held_and_costs_rate(routing: str, design: dict[str, Any], ttft: float) -> None:
    full = _complete(design)
    free, held = rate(study(routing), **full), score(study(routing, ttft_p99_s=ttft), full).iloc[0]
    assert held["requests_s"] <= free * (1 + 1e-9)
    if held["feasible"]:
        assert held["ttft_p99_s"] <= ttft * (1 + 1e-9)
    else:
        assert "ttft_p99_s" in held["infeasible_reason"]


@given(design=DESIGN, tpot=st.floats(0.0005, 0.05))
@settings(max_examples=25, deadline=None)
def test_a_tpot_limit_is_held_also_where_prefill_interrupts(design: dict[str, Any], tpot: float) -> None:
    roles = {"role_gpu": "both", "role_wse": "both"}
    held = score(study(tpot_s=tpot), design | roles).iloc[0]
    if held["feasible"]:
        assert held["tpot_s"] <= tpot * (1 + 1e-9)
    else:
        assert "tpot_s" in held["infeasible_reason"]


def test_more_demand_never_costs_less() -> None:
    costs = []
    for demand in (5, 20, 60, 150):
        result = run(Study.from_dict(small_study(demand={"requests_s": demand})))
        costs.append(float(result.frontier["cost_usd_per_h"].min()))
        assert (result.frontier["requests_s"] >= demand).all()
    assert costs == sorted(costs)


def test_no_front_row_dominates_another_and_limits_hold() -> None:
    result = run(Study.from_dict(small_study(limits={"cost_usd_per_h": 200.0, "power_w": 70e3})))
    frame = result.frontier
    assert (frame["cost_usd_per_h"] <= 200).all()
    assert (frame["power_w"] <= 70e3).all()
    points = np.stack([-frame["throughput_tok_s"], frame["cost_usd_per_h"], frame["power_w"]], axis=1)
    for p in points:
        assert not ((points <= p).all(axis=1) & (points < p * (1 - 1e-9 * np.sign(p))).any(axis=1)).any()


def test_a_raised_limit_buys_what_the_run_says() -> None:
    raw = small_study(limits={"power_w": 50e3})
    result = run(Study.from_dict(raw))
    (raised,) = result.info["raised_limits"]
    wider = run(Study.from_dict(raw | {"limits": {"power_w": raised["needed"]}}))
    best = result.frontier["throughput_tok_s"].max()
    assert wider.frontier["throughput_tok_s"].max() == pytest.approx(best + raised["gain"])
    below = run(Study.from_dict(raw | {"limits": {"power_w": raised["needed"] * (1 - 1e-9)}}))
    assert below.frontier["throughput_tok_s"].max() == pytest.approx(best)
