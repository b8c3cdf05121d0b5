"""The page of a training study: it speaks of training only, says what eta is there, and shows memory outside."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from conftest import small_study
from small_training import MIXED, data_parallel, pipelined

from dse.explore import Result, run
from dse.report import load_run
from dse.report.designs import bill_of_materials, headline_figures
from dse.report.frontier_rows import distinct_rows, frontier_table
from dse.report.layout import setup
from dse.report.load import read_frontier
from dse.report.page import page
from dse.report.system import figure_lines
from dse.report.why import Why, system_lines, why
from dse.resolve import Study
from dse.run_folder import write_run
from dse.scoring import explain, score

SERVING_WORDS = r"(?i)prefill|decode\b|kv cache|output throughput|\brequests?\b|\bttft|\btpot|phases|user\b"
TRAINING_WORDS = r"(?i)zero stage|micro-batch|global batch|training throughput|\bmfu\b|recompute|\bstep time"


def found_in(raw: dict[str, Any]) -> Result:
    return run(Study.from_dict(raw))


@pytest.fixture(scope="module")
def shares() -> Result:
    """The pick is a mix of both pools, data parallel."""
    return found_in(data_parallel(limits=MIXED))


@pytest.fixture(scope="module")
def stages() -> Result:
    """The pick is a pipeline whose wafers serve the stages."""
    return found_in(pipelined(limits=MIXED | {"offload_layers": {"min": 1}}))


def words_of_page(text: str) -> str:
    """What a reader sees, without the sources, which speak for themselves, and the study file."""
    text = re.sub(r"<(script|style|pre|ol)\b.*?</\1>", "", text, flags=re.S)
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", " ", text)))


def tooltips(text: str) -> set[str]:
    spec = re.search(r'<script type="application/json" id="spec">(.*?)</script>', text, re.S)
    assert spec
    return set(re.findall(r'"title":"([^"]+)"', spec[1]))


def pick_of(result: Result) -> pd.Series:
    assert result.recommended is not None
    return result.recommended


def why_of(result: Result) -> Why:
    row = result.recommended
    assert row is not None
    found = why(result, row, recommended=True)
    assert found is not None
    return found


def test_a_training_page_speaks_of_training_only(shares: Result, stages: Result) -> None:
    for result in (shares, stages):
        text = page(result)
        seen = words_of_page(text)
        assert re.search(SERVING_WORDS, seen) is None
        assert not [t for t in tooltips(text) if re.search(SERVING_WORDS, t)]
        for word in ("Training throughput", "Step time", "MFU of gpu / wse", "Time to train", "train: compute"):
            assert word in seen
        assert {"Training throughput", "Step time", "Set-up", "MFU of gpu"} <= tooltips(text)
    assert "waiting at the barrier" in words_of_page(page(shares))
    assert "Pipeline bubble" not in words_of_page(page(shares))
    assert "Pipeline bubble" in words_of_page(page(stages))


def test_a_serving_page_speaks_of_serving_only() -> None:
    text = page(found_in(small_study()))
    assert re.search(TRAINING_WORDS, words_of_page(text)) is None
    assert not [t for t in tooltips(text) if re.search(TRAINING_WORDS, t)]
    assert "what the matched flow of requests leaves unused" in words_of_page(text)


def test_the_sentence_divides_the_batch(shares: Result) -> None:
    row = pick_of(shares)
    sentence = bill_of_materials(shares.study, row)
    mine = [int(n.replace(",", "")) for n in re.findall(r"for ([\d,]+) of 512 samples of a step", sentence)]
    assert mine == [row["batch_gpu"], row["batch_wse"]]
    assert sum(mine) == row["global_batch"] == 512
    assert sentence.endswith(f"joined by links of {row['link']}.")
    assert html.escape(sentence) in page(shares)
    words = "; ".join(setup(shares.study, row))
    assert words.startswith("global batch 512 samples; ")
    assert f"micro-batch {row['micro_batch_gpu']}" in words
    assert "wse: " in words
    assert "its share as one batch" in words


def test_the_sentence_lays_out_a_pipeline(stages: Result) -> None:
    row = pick_of(stages)
    assert row["offload_layers"] == 1
    sentence = bill_of_materials(stages.study, row)
    assert re.search(rf"for {row['stages_gpu']} stages? of {row['replicas_gpu']} pipelines?", sentence)
    assert "wse for 1 layer of each stage" in sentence
    words = "; ".join(setup(stages.study, row))
    assert f"schedule {row['schedule']}" in words
    assert f"layers {row['layers']}" in words


def test_the_run_is_told_in_days_and_megawatt_hours(shares: Result) -> None:
    row = pick_of(shares)
    shown = {f.label: f"{f.value} {f.unit}" for f in headline_figures(shares.study, row)}
    days, energy = row["train_time_s"] / 86_400, row["train_energy_j"] / 3.6e9
    assert 2 < days < 100
    assert shown["Time to train"] == f"{days:.2f} days"
    assert shown["Energy of the run"].endswith(" MWh")
    assert float(shown["Energy of the run"].split()[0]) == pytest.approx(energy, rel=1e-2)
    assert shown["Goodput"] == f"{row['goodput_frac']:.1%}".replace("%", " %")
    assert "Requests" not in shown


def test_goodput_is_left_out_where_nothing_fails() -> None:
    raw = data_parallel()
    del raw["failures"]
    result = found_in(raw)
    assert pick_of(result)["goodput_frac"] == 1
    assert "Goodput" not in {f.label for f in headline_figures(result.study, pick_of(result))}


def test_eta_is_named_for_what_it_is(shares: Result, stages: Result) -> None:
    for result, name in ((shares, "η, waiting over working"), (stages, "η, bubble over working")):
        row = pick_of(result)
        for pool in why_of(result).pools:
            assert float(pool.lines[name]) == pytest.approx(row[f"eta_{pool.name}"], rel=1e-2)
            assert pool.lines["MFU"] == f"{row[f'mfu_{pool.name}']:.1%}".replace("%", " %")
            assert {b.name for b in pool.time} == {"compute", "communication", "fixed"}


def test_memory_outside_is_drawn_of_streaming_devices_only(shares: Result) -> None:
    gpu, wse = why_of(shares).pools
    for bars in (gpu.memory, wse.memory, wse.outside):
        assert sum(b.share for b in bars) == pytest.approx(1.0)
    assert gpu.outside == []
    assert [b.name for b in wse.outside] == ["states", "activations", "headroom"]
    assert [b.name for b in gpu.memory] == ["states", "activations", "headroom", "reserve"]
    assert "Streamed from outside" in page(shares)
    only_gpus = found_in(data_parallel(limits={"n_wse": {"max": 0}}))
    assert "Streamed from outside" not in page(only_gpus)


def test_both_bounds_of_the_rate_are_shown(shares: Result) -> None:
    settings = shares.study.space.settings_of(dict(pick_of(shares)))
    system = explain(shares.study, settings)[1]["system"]
    lines = {name: value for name, value, _ in system_lines(system, "dp_training")}
    assert {"Σ g", "v·S", "f at full overlap", "f reached", "Threshold 1", "Least link"} <= set(lines)
    halved = system | {"link_bound_flop_s": system["sum_g_flop_s"] / 2}
    changed = {name: value for name, value, _ in system_lines(halved, "dp_training")}
    assert changed["f at full overlap"] == changed["v·S"] != changed["f reached"]
    hidden = system | {"f_overlap_flop_s": system["sum_g_flop_s"] * 1.5}
    faster = {name: value for name, value, _ in system_lines(hidden, "dp_training")}
    assert faster["f reached"] == lines["f reached"] != faster["f at full overlap"]


def test_figures_of_any_paradigm_are_printed_if_they_are_there() -> None:
    odd = {"idle_frac": 0.25, "names": ["a", "b"], "exact": True, "nested": {"a": 1}, "nothing": None,
           "tick_s": np.float64(0.5), "threshold_1_batch": float("inf"), "calls": np.int64(3)}  # fmt: skip
    lines = {name: value for name, value, _ in figure_lines(odd, "pp_training")}
    assert lines == {
        "Threshold 1": "at no batch tried",
        "idle frac": "25.0 %",
        "names": "a, b",
        "exact": "yes",
        "tick s": "500 ms",
        "calls": "3",
    }


def test_the_table_has_the_columns_of_training(shares: Result) -> None:
    distinct = distinct_rows(shares.frontier, shares.study.envelope.objectives.names, 0)
    table = frontier_table(shares.study, distinct)
    assert {"Samples of a step", "Step [s]", "Batch", "Run [days]"} <= set(table.heads)
    assert not [h for h in table.heads if re.search(SERVING_WORDS, h)]
    batch = table.heads.index("Batch")
    assert {cells[batch] for _, _, cells in table.rows} <= {"128", "512"}
    assert all(len(cells) == len(table.heads) for _, _, cells in table.rows)


@pytest.mark.parametrize("raw", [data_parallel(), pipelined()], ids=["shares", "stages"])
def test_a_training_run_folder_comes_back_equal(raw: dict[str, Any], tmp_path: Path) -> None:
    result = found_in(raw)
    write_run(result, tmp_path)
    again = load_run(tmp_path)
    pd.testing.assert_frame_equal(again.frontier, result.frontier)
    assert again.frontier["replicas_gpu"].dtype == np.int64
    assert again.frontier["global_batch"].dtype == np.float64
    assert again.info["verdict"] == result.info["verdict"]
    assert page(again) == page(result)


def test_an_infeasible_training_run_says_so_and_comes_back(tmp_path: Path) -> None:
    result = found_in(data_parallel(limits={"power_w": 100.0}))
    text = page(result)
    assert "No feasible design" in text
    assert "lower the demand" not in text
    assert result.info["verdict"]["word"] == "not defined"
    write_run(result, tmp_path)
    again = load_run(tmp_path)
    pd.testing.assert_frame_equal(again.frontier, result.frontier)
    assert page(again) == text


def test_counts_are_whole_unless_they_are_means_or_missing(tmp_path: Path) -> None:
    path = tmp_path / "frontier.csv"
    path.write_text(
        "design_id,n_a,stages_a,batch_a,decode_batch_a,layers,feasible,on_front\n"
        "d0,8,2,12.0,3.5,2x20,True,True\nd1,16,4,,inf,4x10,True,True\n"
    )
    frame = read_frontier(path)
    assert frame[["n_a", "stages_a"]].dtypes.eq(np.int64).all()
    assert frame[["batch_a", "decode_batch_a"]].dtypes.eq(np.float64).all()
    assert np.isnan(frame["batch_a"].iloc[1])
    assert frame["layers"].tolist() == ["2x20", "4x10"]


def test_a_run_without_a_verdict_gets_one(shares: Result, tmp_path: Path) -> None:
    write_run(shares, tmp_path)
    info = json.loads((tmp_path / "run.json").read_text())
    del info["verdict"]
    (tmp_path / "run.json").write_text(json.dumps(info))
    assert page(load_run(tmp_path)) == page(shares)


def test_serving_explains_itself_in_the_same_shape() -> None:
    study = Study.from_dict(small_study())
    settings = {"n_gpu": 16, "n_wse": 1, "role_gpu": "prefill", "role_wse": "decode"}
    trained = Study.from_dict(data_parallel())
    _, serving = explain(study, settings)
    _, training = explain(trained, {"n_gpu": 8, "n_wse": 1})
    for name in ("gpu", "wse"):
        assert set(training["pools"][name]) <= set(serving["pools"][name])
        memory = serving["pools"][name]["memory"]
        assert set(memory) == set(training["pools"][name]["memory"])
        left = memory["usable_byte"] - sum(memory["held"].values())
        assert left == pytest.approx(memory["margin_byte"])
    alone = score(study, {"n_gpu": 16, "n_wse": 0, "role_gpu": "both"}).iloc[0]
    assert serving["pools"]["gpu"]["alone_tok_s"] == pytest.approx(alone["throughput_tok_s"])
