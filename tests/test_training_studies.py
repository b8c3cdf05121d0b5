"""Training studies from file to page: the run, the page, the verdict, and spoiled input."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from test_bad_input import invoke

from dse.choice import choose_method
from dse.columns import NUMERIC_COLUMNS, defined_in
from dse.errors import InputError, MethodError
from dse.explore import Result, run
from dse.pareto import minimised
from dse.report import load_run
from dse.report.page import page
from dse.resolve import Study
from dse.run_folder import write_run
from dse.scoring import score, score_index
from dse.verdict import study_verdict
from dse.whatif import one_more

DATA_PARALLEL: dict[str, Any] = {
    "name": "train",
    "paradigm": "dp_training",
    "workload": {
        "model": "llama-2-7b",
        "sequence_tokens": 2048,
        "global_batch": [256, 512],
        "recompute": ["selective", "full"],
        "train_tokens": 1e11,
    },
    "pool": [
        {"device": "a100-80gb-sxm", "name": "gpu", "count": {"min": 0, "max": 32, "step": 8}, "instance_size": [4],
         "micro_batch": [1, 2]},
        {"device": "wse-3", "name": "wse", "count": [0, 1, 2]},
    ],
    "link": {"bandwidth_gb_s": [25, 100]},
    "failures": {"mtbf_device_h": 40_000, "checkpoint_s": 60, "restart_s": 300},
}  # fmt: skip
PIPELINE = DATA_PARALLEL | {
    "paradigm": "pp_training",
    "pool": [
        DATA_PARALLEL["pool"][0]
        | {"stages": [2, 4], "schedule": ["1f1b", "gpipe"], "offload_layers": [0, 1], "collect": [1, 2]},
        DATA_PARALLEL["pool"][1],
    ],
}
STUDIES = {"dp_training": DATA_PARALLEL, "pp_training": PIPELINE}
SERVING_WORDS = r"prefill|decode|TTFT|TPOT|output token|requests/s|KV cache|phases apart|service limit"


@pytest.fixture(scope="module", params=STUDIES)
def result(request: pytest.FixtureRequest) -> Result:
    return run(Study.from_dict(copy.deepcopy(STUDIES[request.param])))


def test_the_page_speaks_of_training_only(result: Result) -> None:
    text = re.sub(r"<script.*?</script>|<style.*?</style>|<pre.*?</pre>", "", page(result), flags=re.S)
    words = re.sub(r"<[^>]+>", " ", text.split('id="facts"')[0])
    assert not re.findall(SERVING_WORDS, words)
    assert "Time to train" in words
    assert "Step" in words
    assert "useful" in words or "Goodput" in words or "Exchange" in words
    assert ("barrier" in words) == (result.study.envelope.paradigm == "dp_training")
    assert ("bubble" in words) == (result.study.envelope.paradigm == "pp_training")


def test_the_folder_reads_back_as_it_was_written(result: Result, tmp_path: Path) -> None:
    write_run(result, tmp_path / "run")
    again = load_run(tmp_path / "run")
    assert page(again) == page(result)
    for name in result.frontier:
        assert again.frontier[name].dtype.kind == result.frontier[name].dtype.kind, name


def test_frontier_is_what_brute_force_finds(result: Result) -> None:
    study = result.study
    index = np.arange(study.space.n_designs)
    frame = score_index(study, index[study.space.legal(index)])
    frame = frame[frame["feasible"]]
    names = study.envelope.objectives.names
    points = np.unique(minimised({o: frame[o].to_numpy() for o in names}, names), axis=0)
    best = [p for p in points if not any((q <= p).all() and (q < p).any() for q in points)]
    found = minimised({o: result.frontier[o].to_numpy() for o in names}, names)
    assert np.unique(found, axis=0) == pytest.approx(np.array(best), rel=1e-9)
    assert len(best) > 5


def test_every_column_of_the_paradigm_is_there_and_no_other(result: Result) -> None:
    paradigm = result.study.envelope.paradigm
    pools = result.study.space.pool_names
    for column in NUMERIC_COLUMNS:
        names = [column.replace("<pool>", p) for p in pools] if "<pool>" in column else [column]
        assert all((n in result.frontier) == defined_in(column, paradigm) for n in names), column


def test_settings_of_a_row_give_the_row_again(result: Result) -> None:
    study = result.study
    for _, row in result.frontier.iloc[:: max(1, len(result.frontier) // 12)].iterrows():
        again = score(study, study.space.settings_of({str(k): v for k, v in row.items()})).iloc[0]
        for name in ("throughput_tok_s", "cost_usd_per_h", "power_w", "step_time_s", "gain_equal_cost"):
            assert again[name] == pytest.approx(row[name], rel=1e-12)


def test_one_step_more_is_scored_and_can_run(result: Result) -> None:
    row = result.recommended
    assert row is not None
    more = one_more(result.study, row)
    assert len(more)
    assert not more["breaks"].str.contains("structure").any()


def test_verdict_is_of_the_pick_or_of_the_best_mix(result: Result) -> None:
    verdict = result.info["verdict"]
    assert verdict["word"] in ("exploited", "absorbed", "obstructed")
    rows = result.candidates.set_index("design_id")
    judged = rows.loc[verdict["design_id"]]
    assert judged["n_gpu"] > 0
    assert judged["n_wse"] > 0
    assert verdict["gain_equal_cost"] == pytest.approx(judged["gain_equal_cost"])
    if not verdict["of_pick"]:
        mixed = rows[(rows["n_gpu"] > 0) & (rows["n_wse"] > 0) & rows["feasible"]]
        assert verdict["gain_equal_cost"] == pytest.approx(mixed["gain_equal_cost"].max())
        assert "of one kind" in verdict["sentence"]


def test_a_study_without_mixes_has_nothing_to_judge() -> None:
    raw = copy.deepcopy(DATA_PARALLEL)
    raw["pool"], raw["link"] = raw["pool"][:1], None
    del raw["link"]
    found = run(Study.from_dict(raw))
    assert found.info["verdict"]["word"] == "single pool"
    assert study_verdict(found.study, None, found.frontier, found.candidates)["gain"] is None


def test_milp_is_refused_for_owned_pipelines_and_auto_enumerates() -> None:
    study = Study.from_dict(copy.deepcopy(PIPELINE))
    assert choose_method(study)[0] == "exhaustive"
    owned = {"search": {"method": "milp"}, "site": {"cost_basis": "ownership"}}
    with pytest.raises(MethodError, match="energy bill"):
        choose_method(Study.from_dict(copy.deepcopy(PIPELINE) | owned))


def changed(base: dict[str, Any], path: str, value: object) -> dict[str, Any]:
    study = copy.deepcopy(base)
    node: Any = study
    *parents, last = path.split(".")
    for part in parents:
        node = node[int(part)] if part.isdigit() else node.setdefault(part, {})
    node[last] = value
    return study


SPOILED = {
    "a column of serving": (changed(DATA_PARALLEL, "limits", {"tpot_s": 1.0}), ["limits.tpot_s", "no such column"]),
    "an objective of serving": (
        changed(DATA_PARALLEL, "objectives", {"maximise": ["requests_s"]}),
        ["requests_s", "no such column"],
    ),
    "train time without tokens": (
        changed(changed(DATA_PARALLEL, "workload.train_tokens", 1e9), "limits", {"train_time_s": 1e6})
        | {"workload": {k: v for k, v in DATA_PARALLEL["workload"].items() if k != "train_tokens"}},
        ["train_time_s", "workload.train_tokens"],
    ),
    "unknown recompute": (changed(DATA_PARALLEL, "workload.recompute", "some"), ["recompute", "selective"]),
    "zero stage 4": (changed(DATA_PARALLEL, "pool.0.zero_stage", [4]), ["zero_stage", "3"]),
    "no batch": (changed(DATA_PARALLEL, "workload.global_batch", []), ["global_batch", "at least one value"]),
    "stages in data parallel": (changed(DATA_PARALLEL, "pool.0.stages", [2]), ["stages"]),
    "requests in training": (changed(DATA_PARALLEL, "workload.requests", []), ["requests"]),
    "offload without wafers": (
        changed(changed(PIPELINE, "pool.1.device", "h100-80gb-sxm"), "pool.1.count", [0, 8]),
        ["offload_layers", "streaming"],
    ),
    "collect without offload": (changed(PIPELINE, "pool.0.offload_layers", [0]), ["collect", "offload_layers"]),
    "count fits no stages": (changed(PIPELINE, "pool.0.count", [12]), ["instance size x stage count"]),
    "wafers only and all handed over": (
        changed(changed(PIPELINE, "pool.0.device", "wse-2"), "pool.0.offload_layers", [1]),
        ["none is left for the stages"],
    ),
    "negative failure rate": (changed(DATA_PARALLEL, "failures.mtbf_device_h", -1), ["mtbf_device_h"]),
}


@pytest.mark.parametrize("case", SPOILED)
def test_spoiled_studies_say_where_and_what(case: str) -> None:
    raw, parts = SPOILED[case]
    with pytest.raises(InputError) as caught:
        Study.from_dict(raw)
    text = "\n".join(caught.value.faults)
    assert all(part in text for part in parts), text
    assert "Traceback" not in text


BAD_DESIGNS = {
    "unknown key": ({"role_gpu": "prefill"}, "role_gpu"),
    "n is no multiple": ({"n_gpu": 10}, "multiple of"),
    "replicas against n": ({"n_gpu": 8, "replicas_gpu": 3}, "replicas_gpu = 3"),
    "nothing bought": ({"n_gpu": 0, "n_wse": 0}, "0 devices"),
    "recompute": ({"n_gpu": 8, "recompute": "half"}, "none, selective, full"),
    "batch of 0": ({"n_gpu": 8, "global_batch": 0}, "global_batch"),
}
BAD_PIPELINES = {
    "layers of some stages": ({"n_gpu": 8, "stages": 2, "layers_1": 16}, "layers_2"),
    "layers that do not sum": ({"n_gpu": 8, "stages": 2, "layers_1": 16, "layers_2": 17}, "sum to 33"),
    "a stage too many": (
        {"n_gpu": 8, "stages": 2, "layers_1": 10, "layers_2": 12, "layers_3": 10},
        "layers_3",
    ),
    "collect without offload": ({"n_gpu": 8, "stages": 2, "offload_layers": 0, "collect": 2}, "collect"),
    "stages twice": ({"n_gpu": 8, "stages": 2, "stages_gpu": 1}, "stages_gpu = 1"),
    "chunks without interleaving": ({"n_gpu": 8, "stages": 2, "chunks": 3}, "only an interleaved stage"),
    "chunks that are no number": ({"n_gpu": 8, "stages": 2, "chunks": "abc"}, "whole number"),
    "stages of a server": ({"n_gpu": 8, "n_wse": 1, "offload_layers": 1, "stages_wse": 3}, "stages_wse"),
    "stages and replicas": ({"n_gpu": 16, "stages": 2, "replicas_gpu": 4}, "stages"),
}


@pytest.mark.parametrize("case", BAD_DESIGNS)
def test_bad_designs_are_refused(case: str) -> None:
    settings, part = BAD_DESIGNS[case]
    with pytest.raises(InputError, match=re.escape(part)):
        score(Study.from_dict(copy.deepcopy(DATA_PARALLEL)), settings)


@pytest.mark.parametrize("case", BAD_PIPELINES)
def test_bad_pipelines_are_refused(case: str) -> None:
    settings, part = BAD_PIPELINES[case]
    with pytest.raises(InputError, match=re.escape(part)):
        score(Study.from_dict(copy.deepcopy(PIPELINE)), settings)


def test_replicas_stand_for_devices() -> None:
    study = Study.from_dict(copy.deepcopy(PIPELINE))
    by_n = score(study, {"n_gpu": 32, "stages": 4}).iloc[0]
    by_replicas = score(study, {"replicas_gpu": 2, "stages_gpu": 4}).iloc[0]
    assert by_n["step_time_s"] == by_replicas["step_time_s"]
    assert by_replicas["n_gpu"] == 32


def test_verdicts_of_placements() -> None:
    study = Study.from_dict(copy.deepcopy(PIPELINE))
    base = {"n_gpu": 16, "stages": 4, "n_wse": 1, "offload_layers": 1, "global_batch": 512}
    odd = score(study, base | {"global_batch": 511, "micro_batch_gpu": 2}).iloc[0]
    assert "whole number of micro-batches" in odd["infeasible_reason"]
    large = score(study, base | {"micro_batch_gpu": 64}).iloc[0]
    assert large["infeasible_reason"].startswith("memory violation: gpu lacks")
    deep = score(study, {"n_gpu": 64 * 4, "stages": 64, "global_batch": 512}).iloc[0]
    assert "32 layers are too few for 64 stages" in deep["infeasible_reason"]
    assert score(study, base).iloc[0]["infeasible_reason"] == ""


def test_score_and_run_from_the_shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "study.toml"
    path.write_text(tomli_w.dumps(PIPELINE))
    assert invoke(monkeypatch, "run", str(path), "--out", str(tmp_path / "run")) == 0
    out = capsys.readouterr().out
    assert "Does mixing pay?" in out
    assert "the whole run:" in out
    assert not re.findall(SERVING_WORDS, out)
    keys = ["--set", "n_gpu=32", "--set", "stages=4", "--set", "n_wse=1", "--set", "offload_layers=1"]
    assert invoke(monkeypatch, "score", str(path), *keys, "--explain") == 0
    out = capsys.readouterr().out
    assert "offload threshold" in out
    assert "bubble" in out
    assert invoke(monkeypatch, "score", str(path), *keys, "--explain", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["explain"]["system"]["verdict"] == "feasible"
    pools = told["explain"]["pools"]
    for pool in pools.values():
        assert pool["u"] == pytest.approx(pool["u_ho"] / (1 + pool["eta"]))
    assert sum(p["g_flop_s"] for p in pools.values()) == pytest.approx(told["explain"]["system"]["f_flop_s"])


def test_layers_are_handed_to_one_pool_of_wafers_and_no_other_number() -> None:
    raw = copy.deepcopy(PIPELINE)
    raw["pool"].append({"device": "wse-2", "name": "old", "count": [0, 1]})
    study = Study.from_dict(raw)
    base = {"n_gpu": 16, "stages": 4, "offload_layers": 1}
    for wafers in ({"n_wse": 0}, {"n_wse": 1, "n_old": 1}):
        row = score(study, base | wafers).iloc[0]
        assert "needs one pool of streaming devices" in row["infeasible_reason"], wafers
    none = score(study, {"n_gpu": 0, "n_wse": 1, "offload_layers": 1}).iloc[0]
    assert "no pool is left to hold stages" in none["infeasible_reason"]


def test_what_if_never_leaves_what_a_study_may_hold() -> None:
    raw = copy.deepcopy(DATA_PARALLEL)
    raw["pool"][0]["count"], raw["pool"][1]["count"] = [10_000_000], [1]
    raw["workload"]["global_batch"] = [10_000_000]
    raw["link"] = {"bandwidth_gb_s": [1e9]}
    study = Study.from_dict(raw)
    row = score(study, {}).iloc[0]
    assert one_more(study, row)["change"].tolist() == ["1 more wse (beyond the study's count)"]


@pytest.mark.parametrize("base", STUDIES.values(), ids=STUDIES)
def test_a_pool_without_the_arithmetic_is_left_out_in_little_time(base: dict[str, Any]) -> None:
    raw = changed(base, "workload.compute_dtype", ["bf16", "int8"])
    found = run(Study.from_dict(raw))
    lacking = found.candidates[(found.candidates["compute_dtype"] == "int8") & (found.candidates["n_wse"] > 0)]
    assert len(lacking)
    assert not lacking["feasible"].any()
    assert lacking["infeasible_reason"].str.contains("dtype: wse lacks").any()
