"""Latencies under load: limits, monotony, percentiles, goodput, chunked prefill."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from conftest import CHAT, small_study

from dse.errors import InputError
from dse.explore import run
from dse.model.first_token import FirstToken, least
from dse.model.serving_load import LOAD_COLUMNS, latencies_of_stream
from dse.resolve import Study
from dse.scoring import score, score_index

SPLIT = {"n_gpu": "16", "n_wse": "2", "role_gpu": "prefill", "role_wse": "decode", "link_gb_s": "400"}
BOTH = {"n_gpu": "16", "n_wse": "0", "role_gpu": "both"}


def at(settings: dict[str, str], demand: float | None = None, **changes: Any) -> Any:
    """A design's row at a demand."""
    tables = dict(changes)
    if demand is not None:
        tables["demand"] = {"requests_s": demand}
    return score(Study.from_dict(small_study(**tables)), settings).iloc[0]


@pytest.mark.parametrize("settings", [SPLIT, BOTH])
def test_an_idle_fleet_takes_what_one_request_takes_alone(settings: dict[str, str]) -> None:
    row = at(settings, 1e-6)
    pool = Study.from_dict(small_study()).space.laid_out(settings).system.pools[0]  # type: ignore[attr-defined]
    one = np.ones((1, 1))
    transfer_s = float(pool.kv(np.array([1024.0]))[0]) / 400e9 if settings is SPLIT else 0.0
    lone_s = float(pool.prefill(one, one).latency_s[0, 0]) + transfer_s
    assert row["ttft_load_mean_s"] == pytest.approx(lone_s, rel=1e-6)
    assert row["ttft_load_p50_s"] == pytest.approx(row["ttft_load_mean_s"], rel=1e-3)
    lone = at({**settings, "max_decode_batch_gpu": "1", "max_decode_batch_wse": "1"})["tpot_s"]
    assert row["tpot_load_mean_s"] <= lone * (1 + 1e-6)
    assert row["load_requests_s"] == 1e-6


@pytest.mark.parametrize("settings", [SPLIT, BOTH])
def test_more_load_never_shortens_a_latency_and_capacity_is_where_they_end(settings: dict[str, str]) -> None:
    capacity = at(settings)["requests_s"]
    rows = [at(settings, capacity * part) for part in (0.1, 0.4, 0.7, 0.9, 0.97, 1.05)]
    for name in ("ttft_load_mean_s", "ttft_load_p50_s", "ttft_load_p99_s", "tpot_load_mean_s", "tpot_load_p99_s"):
        values = np.array([row[name] for row in rows])
        assert (np.diff(values[:-1]) >= -1e-9 * values[:-2]).all(), name
        assert np.isfinite(values[:-1]).all(), name
    assert np.isinf(rows[-1]["ttft_load_mean_s"]) or np.isinf(rows[-1]["tpot_load_mean_s"])
    for row in rows[:-1]:
        assert row["ttft_load_p50_s"] <= row["ttft_load_p99_s"] * (1 + 1e-7)
        assert row["tpot_load_mean_s"] <= row["tpot_load_p99_s"] * (1 + 1e-9)


def test_without_a_demand_the_load_is_a_share_of_the_capacity() -> None:
    workload = {"model": "llama-2-7b", "requests": [dict(CHAT)], "load_frac": 0.5}
    row = at(SPLIT, workload=workload)
    assert row["load_requests_s"] == pytest.approx(0.5 * row["requests_s"])
    asked = at(SPLIT, 0.5 * row["requests_s"])
    for name in LOAD_COLUMNS[1:7]:
        assert row[name] == pytest.approx(asked[name])


def test_a_wider_link_never_lengthens_a_time_to_first_token() -> None:
    values = [at({**SPLIT, "link_gb_s": s}, 20)["ttft_load_p99_s"] for s in ("25", "100", "400")]
    assert values == sorted(values, reverse=True)
    assert values[0] > values[-1]


def test_the_percentile_of_one_queue_is_its_closed_form() -> None:
    first = FirstToken(
        share=np.array([[1.0]]), fixed_s=np.array([[0.3]]), waits=np.array([[0.5]]), decay_s=np.array([[2.0]])
    )
    assert first.percentile(0.99)[0] == pytest.approx(0.3 + 2.0 * np.log(50.0), rel=1e-6)
    assert first.percentile(0.4)[0] == pytest.approx(0.3, rel=1e-6)
    assert first.below(np.array([0.29]))[0, 0] == 0.0
    assert least(lambda x: x >= 0.7, np.array([1.0]))[0] == pytest.approx(0.7, rel=1e-6)


def test_a_changing_rate_lies_between_its_ends_and_the_busy_hour_makes_the_tail() -> None:
    study = Study.from_dict(small_study())
    space = study.space
    design = space.laid_out(SPLIT)  # type: ignore[attr-defined]
    parts = (design.system, design.rows, design.link, design.flow)
    capacity = float(design.flow.rate[0])

    def of(rates: list[float], weight: list[float]) -> Any:
        return latencies_of_stream(*parts, np.array(rates) * capacity, np.array(weight))

    low, high, both = of([0.3], [1.0]), of([0.95], [1.0]), of([0.3, 0.95], [0.5, 0.5])
    assert both.ttft_mean_s == pytest.approx(0.5 * (low.ttft_mean_s + high.ttft_mean_s))
    assert low.ttft_p99_s < both.ttft_p99_s < high.ttft_p99_s
    assert low.tpot_mean_s < both.tpot_mean_s < high.tpot_mean_s
    assert np.isinf(of([0.3, 1.2], [0.9, 0.1]).ttft_p99_s)


def limited(ttft_s: float, tpot_s: float) -> dict[str, Any]:
    return {
        "model": "llama-2-7b",
        "requests": [dict(CHAT)],
        "goodput": {"ttft_s": ttft_s, "tpot_s": tpot_s},
    }


def test_goodput_goes_from_nothing_to_all_as_its_limits_widen() -> None:
    capacity = at(SPLIT)["requests_s"]
    rows = [at(SPLIT, 0.9 * capacity, workload=limited(t, 1.0)) for t in (1e-3, 0.1, 0.3, 1.0, 30.0)]
    shares = [row["goodput_frac"] for row in rows]
    assert shares == sorted(shares)
    assert shares[0] == 0
    assert 0 < shares[2] < 1
    assert shares[-1] == pytest.approx(1.0, abs=1e-6)
    assert rows[2]["goodput_requests_s"] == pytest.approx(shares[2] * 0.9 * capacity)
    slow = at(SPLIT, 0.9 * capacity, workload=limited(30.0, 1e-6))
    assert slow["goodput_frac"] == 0
    assert at(SPLIT, 1.1 * capacity, workload=limited(30.0, 1.0))["goodput_frac"] == 0


def test_the_p99_is_where_the_goodput_of_ttft_alone_is_99_percent() -> None:
    capacity = at(SPLIT)["requests_s"]
    p99 = at(SPLIT, 0.9 * capacity)["ttft_load_p99_s"]
    row = at(SPLIT, 0.9 * capacity, workload=limited(float(p99), 1.0))
    assert row["goodput_frac"] == pytest.approx(0.99, abs=1e-4)


def test_goodput_as_an_objective_has_the_frontier_of_brute_force() -> None:
    study = Study.from_dict(
        small_study(
            workload=limited(0.12, 0.015),
            demand={"requests_s": 30},
            objectives={"maximise": ["goodput_frac"], "minimise": ["cost_usd_per_h"]},
        )
    )
    found = run(study, method="exhaustive").frontier
    space = study.space
    every = np.arange(space.n_designs)
    frame = score_index(study, every[space.legal(every)])
    frame = frame[frame["feasible"]]
    points = frame[["goodput_frac", "cost_usd_per_h"]].to_numpy().round(9)
    beaten = [
        ((points[:, 0] >= g) & (points[:, 1] <= c) & ((points[:, 0] > g) | (points[:, 1] < c))).any() for g, c in points
    ]
    best = {(round(g, 9), round(c, 9)) for g, c in points[~np.array(beaten)]}
    assert {(round(g, 9), round(c, 9)) for g, c in found[["goodput_frac", "cost_usd_per_h"]].to_numpy()} == best
    assert found["goodput_frac"].nunique() > 1


def test_goodput_without_limits_or_demand_is_refused_with_what_is_missing() -> None:
    with pytest.raises(InputError, match=r"goodput_frac: .*\[workload.goodput\].* and \[demand\] requests_s"):
        Study.from_dict(small_study(objectives={"maximise": ["goodput_frac"], "minimise": ["power_w"]}))


def test_chunks_cost_capacity_and_shorten_the_longest_pause() -> None:
    pools = small_study()["pool"]
    long = [{"name": "long", "share": 1.0, "input_tokens": 6000, "output_tokens": 200}]
    workload = {"model": "llama-2-7b", "requests": long}

    def chunked(tokens: int | None) -> Any:
        gpu = {**pools[0], **({} if tokens is None else {"prefill_chunk_tokens": tokens})}
        return at(BOTH, workload=workload, pool=[gpu, pools[1]])

    whole, large, small = chunked(None), chunked(2000), chunked(250)
    assert small["decode_stall_s"] < large["decode_stall_s"] < whole["decode_stall_s"]
    assert small["requests_s"] < large["requests_s"] < whole["requests_s"]
    assert chunked(6000)["requests_s"] == pytest.approx(whole["requests_s"], rel=1e-12)
    assert large["ttft_load_p50_s"] > whole["ttft_load_p50_s"]


def test_chunks_are_refused_where_no_prompt_interrupts() -> None:
    pools = small_study()["pool"]
    pools[0]["prefill_chunk_tokens"] = 512
    workload = {"model": "llama-2-7b", "requests": [dict(CHAT)], "routing": "work_stealing"}
    with pytest.raises(InputError, match=r"pool\[0\]: prefill_chunk_tokens goes with routing split"):
        Study.from_dict(small_study(pool=pools, workload=workload))


def test_random_designs_are_the_same_one_by_one_and_together() -> None:
    study = Study.from_dict(small_study(workload={**limited(0.5, 0.02), "routing": ["split", "work_stealing"]}))
    space = study.space
    every = np.arange(space.n_designs)
    index = np.random.default_rng(0).choice(every[space.legal(every)], 40, replace=False)
    together = space.score(index)
    for k, i in enumerate(index):
        one = space.score(np.array([i]))
        for name in LOAD_COLUMNS:
            np.testing.assert_allclose(float(one[name][0]), float(together[name][k]), rtol=1e-9, err_msg=name)


def test_no_designs_have_all_columns_and_no_rows() -> None:
    columns = Study.from_dict(small_study()).space.score(np.zeros(0, dtype=np.int64))
    assert all(len(columns[name]) == 0 for name in LOAD_COLUMNS[:7])


def test_bursts_lengthen_the_wait_and_nothing_else() -> None:
    capacity = at(SPLIT)["requests_s"]
    workload = {"model": "llama-2-7b", "requests": [dict(CHAT)]}
    poisson, bursty = (at(SPLIT, 0.9 * capacity, workload={**workload, "arrival_cv2": v}) for v in (1.0, 4.0))
    assert bursty["ttft_load_mean_s"] > poisson["ttft_load_mean_s"]
    for name in ("requests_s", "ttft_mean_s", "ttft_p99_s", "tpot_load_mean_s"):
        assert bursty[name] == poisson[name]
