"""The job as a whole: which method, what a bound on any column does, and what a bug looks like."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import tomli_w
from conftest import small_study
from small_robust import robust_study
from small_training import data_parallel, pipelined

from dse import checks, exhaustive
from dse.choice import choose_method
from dse.cli import main
from dse.columns import NUMERIC_COLUMNS
from dse.errors import MethodError, SelfCheckError
from dse.explore import run
from dse.paradigms import PARADIGMS
from dse.pareto import minimised
from dse.progress import Progress, Stop, silent, throttled
from dse.resolve import Study
from dse.scoring import MET, score_index
from dse.whatif import one_more
from formulations.plan import Plan

THREE = [
    {"device": "a100-40gb-sxm", "name": "gpu", "count": [0, 4]},
    {"device": "h100-80gb-sxm", "name": "h100", "count": [0, 2]},
    {"device": "wse-3", "name": "wse", "count": [0, 1]},
]
CHAT = [{"share": 1.0, "input_tokens": 512, "output_tokens": 128}]


def stealing(pools: list[dict[str, object]] | None = None, **slo: float) -> Study:
    work = {"model": "llama-2-7b", "requests": CHAT, "routing": "work_stealing", "slo": slo}
    return Study.from_dict(small_study(workload=work, **({"pool": pools} if pools else {})))


def test_auto_enumerates_what_is_small_enough() -> None:
    method, why = choose_method(Study.from_dict(small_study()))
    assert method == "exhaustive"
    assert "designs" in why


def test_auto_takes_the_program_where_enumeration_is_refused() -> None:
    method, why = choose_method(stealing(THREE))
    assert method == "milp"
    assert "linear program for every design" in why


def test_auto_samples_where_nothing_is_exact() -> None:
    method, why = choose_method(stealing(THREE, ttft_p99_s=2.0))
    assert method == "optuna"
    assert "TTFT limit under work stealing" in why


def test_auto_samples_a_space_too_large_for_both() -> None:
    pools = [
        {"device": "a100-40gb-sxm", "name": "gpu", "count": {"min": 0, "max": 100_000}},
        {"device": "wse-3", "name": "wse", "count": {"min": 0, "max": 9_000}},
    ]
    method, why = choose_method(Study.from_dict(small_study(pool=pools)))
    assert method == "optuna"
    assert "too many" in why


def test_a_method_asked_for_is_refused_with_the_reason() -> None:
    raw = small_study(pool=THREE, search={"method": "exhaustive"})
    raw["workload"]["routing"] = "work_stealing"
    with pytest.raises(MethodError, match="exhaustive: work stealing among 3 pools"):
        choose_method(Study.from_dict(raw))


SERVING = small_study()
SERVING["pool"][0]["prefill_batch"] = [1, 2]
SERVING["workload"]["goodput"] = {"ttft_s": 0.3, "tpot_s": 0.02}
SERVING["demand"] = {"requests_s": 1}


@cache
def feasible(paradigm: str) -> tuple[dict[str, Any], pd.DataFrame]:
    """A small study of a paradigm, and all its feasible designs."""
    several = {"pd_serving": SERVING, "dp_training": data_parallel(), "pp_training": pipelined()}
    raw = (several | {"robust_serving": robust_study(adaptation=["fixed_split", "work_stealing"])})[paradigm]
    plain = Study.from_dict(raw)
    index = np.arange(plain.space.n_designs)
    frame = score_index(plain, index[plain.space.legal(index)])
    return raw, frame[frame["feasible"]]


@pytest.mark.parametrize("column", NUMERIC_COLUMNS)
def test_a_bound_on_any_numeric_column_holds_in_enumeration(column: str) -> None:
    name = column.replace("<pool>", "gpu")
    raw, frame = next(found for found in map(feasible, PARADIGMS) if name in found[1])
    values = frame[name].to_numpy(dtype=np.float64)
    finite = np.unique(values[np.isfinite(values)])
    middle = float(finite[len(finite) // 2])
    study = Study.from_dict(raw | {"limits": {name: {"max": middle}}})
    found = exhaustive.explore(study, workers=1, address="local", report=silent, stop=Stop())
    allowed = frame[values <= middle + MET * abs(middle)]
    names = study.envelope.objectives.names
    points = np.unique(minimised({o: allowed[o].to_numpy() for o in names}, names), axis=0)
    expected = [p for p in points if not any((q <= p).all() and (q < p).any() for q in points)]
    assert np.unique(found.points, axis=0) == pytest.approx(np.array(expected), rel=1e-9)


def test_a_design_that_scores_differently_twice_exits_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "study.toml"
    path.write_text(tomli_w.dumps(small_study()))
    true_score = checks.score_plans

    def wrong(study: Study, plans: Sequence[Plan]) -> object:
        frame = true_score(study, plans)
        frame["throughput_tok_s"] *= 1.001
        return frame

    monkeypatch.setattr(checks, "score_plans", wrong)
    with pytest.raises(SelfCheckError):
        run(Study.load(path))
    monkeypatch.setattr("sys.argv", ["dse", "run", str(path), "--out", str(tmp_path / "out")])
    with pytest.raises(SystemExit) as exit_info:
        main()
    assert exit_info.value.code == 1
    shown = capsys.readouterr()
    assert "self-check failed" in shown.err
    assert shown.out == ""
    assert not (tmp_path / "out").exists()


def test_one_more_is_a_score_of_the_changed_design() -> None:
    study = Study.from_dict(small_study(limits={"power_w": 60e3}))
    result = run(study)
    row = result.recommended
    assert row is not None
    for _, step in one_more(study, row).iterrows():
        assert step["d_throughput_tok_s"] == pytest.approx(step["throughput_tok_s"] - row["throughput_tok_s"])
        assert step["d_throughput_tok_s"] >= -1e-6


def test_progress_is_throttled_but_the_last_report_comes() -> None:
    seen: list[float] = []
    report = throttled(lambda p: seen.append(p.done), every_s=1.0)
    for done, at in ((1, 0.0), (2, 0.2), (3, 1.1), (4, 1.2), (5, 1.3)):
        report(Progress(method="m", done=done, total=5, candidates=0, front=0, elapsed_s=at))
    assert seen == [1, 3, 5]


def test_runs_repeat_themselves() -> None:
    first, second = (run(Study.from_dict(small_study())) for _ in range(2))
    assert first.frontier.equals(second.frontier)
    assert first.candidates.equals(second.candidates)


def test_a_data_type_that_one_pool_lacks_is_still_open_to_the_others() -> None:
    work = {
        "model": "llama-2-7b",
        "requests": CHAT,
        "compute_dtype": ["bf16", "fp8"],
        "weight_dtype": ["bf16", "fp8"],
    }
    pools = [
        {"device": "h100-80gb-sxm", "name": "gpu", "count": [0, 2, 4]},
        {"device": "wse-3", "name": "wse", "count": [0, 1]},
    ]
    result = run(Study.from_dict(small_study(workload=work, pool=pools, demand={"requests_s": 1.0})))
    pick = result.recommended
    assert pick is not None
    assert (pick["n_wse"], pick["compute_dtype"]) == (0, "fp8")
    mixed = result.candidates[(result.candidates["n_wse"] > 0) & (result.candidates["compute_dtype"] == "fp8")]
    assert not mixed["feasible"].any()
    assert mixed["infeasible_reason"].str.contains("wse has no fp8 arithmetic").all()
    assert len(one_more(result.study, pick)) >= 1
    alone = run(Study.from_dict(small_study(workload=work, pool=pools[:1], demand={"requests_s": 1.0})))
    assert alone.recommended is not None
    assert alone.recommended["cost_usd_per_h"] == pytest.approx(pick["cost_usd_per_h"])


def test_ports_are_counted_and_can_be_held_to() -> None:
    long = [{"share": 1.0, "input_tokens": 2000, "output_tokens": 20}]
    pools = [
        {"device": "a100-40gb-sxm", "name": "gpu", "count": {"min": 0, "max": 96, "step": 8}},
        {"device": "wse-3", "name": "wse", "count": [0, 1]},
    ]
    work = {"model": "llama-2-7b", "requests": long, "slo": {"tpot_s": 0.01}}
    raw = small_study(link={"bandwidth_gb_s": [100, 400]}, pool=pools, workload=work)
    free = run(Study.from_dict(raw)).frontier
    assert free["io_use_wse"].max() > 1
    row = free.iloc[int(free["io_use_wse"].argmax())]
    assert row["io_use_wse"] == pytest.approx(row["kv_transfer_byte_s"] / (row["n_wse"] * 150e9))
    held = run(Study.from_dict(raw | {"limits": {"io_use_wse": 1.0}})).frontier
    assert held["io_use_wse"].max() <= 1
    assert len(held) > 1
