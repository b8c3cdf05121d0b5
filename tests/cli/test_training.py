"""Training studies at the command line: what is printed, what machines get, what is refused; never a traceback."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import tomli_w
from conftest import small_study
from small_training import MIXED, data_parallel, pipelined
from test_run import dse

SERVING_WORDS = r"(?i)prefill|decode|kv cache|output throughput|request|req/s|ttft|tpot|phases"


def written(tmp_path: Path, raw: dict[str, Any]) -> Path:
    path = tmp_path / "study.toml"
    path.write_text(tomli_w.dumps(raw))
    return path


def test_run_prints_training_and_its_verdict(tmp_path: Path) -> None:
    done = dse("run", written(tmp_path, data_parallel(limits=MIXED)), "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert re.search(SERVING_WORDS, done.stdout) is None
    frontier = pd.read_csv(tmp_path / "run" / "frontier.csv")
    info = json.loads((tmp_path / "run" / "run.json").read_text())
    pick = frontier.iloc[info["recommended"]["position"]]
    head = done.stdout.splitlines()[0].split()
    assert {"samples", "step", "batch", "run"} <= set(head)
    text = re.sub(r"\s+", " ", done.stdout)
    assert f"{pick['n_gpu']} x gpu ({pick['batch_gpu']:,.0f} of {pick['global_batch']:,.0f} samples of a step" in text
    assert f"micro-batch {pick['micro_batch_gpu']}" in text
    assert f"MFU of gpu {pick['mfu_gpu']:.1%}".replace("%", " %") in text
    assert f"the whole run: {pick['train_time_s'] / 86400:.2f} days, {pick['train_cost_usd']:,.0f} USD" in text
    assert f"{pick['gain_equal_power']:.3g} at equal power" in text
    verdict = info["verdict"]
    assert f"Does mixing pay? {verdict['word']}. {verdict['sentence']}" in done.stdout
    assert verdict["design_id"] == pick["design_id"]
    rebuilt = dse("report", tmp_path / "run", "--out", tmp_path / "page.html")
    assert rebuilt.returncode == 0, rebuilt.stderr
    assert (tmp_path / "page.html").read_text() == (tmp_path / "run" / "report.html").read_text()


@pytest.mark.usefixtures("blank_page")
def test_run_prints_pipelines(tmp_path: Path) -> None:
    limits = MIXED | {"offload_layers": {"min": 1}}
    done = dse("run", written(tmp_path, pipelined(limits=limits)), "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert re.search(SERVING_WORDS, done.stdout) is None
    assert {"stages", "bubble"} <= set(done.stdout.splitlines()[0].split())
    text = re.sub(r"\s+", " ", done.stdout)
    assert re.search(r"\d+ x wse \(1 layer of each stage", text)
    assert re.search(r"\d stages? of \d+ pipelines?", text)
    assert "schedule " in text
    assert re.search(r"bubble \d+\.\d %", text)


@pytest.mark.usefixtures("blank_page")
def test_run_as_json_holds_everything(tmp_path: Path) -> None:
    done = dse("run", written(tmp_path, data_parallel()), "--out", tmp_path / "run", "--json")
    result = json.loads(done.stdout)
    assert set(result["run"]["verdict"]) == {
        "word", "caveat", "design_id", "of_pick", "complementarity", "gain", "gain_equal_cost", "gain_equal_power",
        "sentence",
    }  # fmt: skip
    assert result["run"] == json.loads((tmp_path / "run" / "run.json").read_text())
    assert {"step_time_s", "train_time_s", "mfu_gpu", "goodput_frac"} <= set(result["frontier"][0])
    assert not [k for k in result["frontier"][0] if k.startswith(("gain_apart", "requests", "ttft"))]


@pytest.mark.usefixtures("blank_page")
def test_serving_runs_print_their_verdict_too(tmp_path: Path) -> None:
    done = dse("run", written(tmp_path, small_study()), "--out", tmp_path / "run")
    verdict = json.loads((tmp_path / "run" / "run.json").read_text())["verdict"]
    assert f"Does mixing pay? {verdict['word']}" in done.stdout
    assert verdict["sentence"] in done.stdout
    assert "with its phases on separate instances" in done.stdout
    assert "samples" not in done.stdout


@pytest.mark.parametrize(
    ("raw", "more", "eta"),
    [
        (data_parallel(), ["--set", "global_batch=512"], "waiting over working"),
        (pipelined(), ["--set", "global_batch=512", "--set", "offload_layers=1"], "bubble over working"),
    ],
    ids=["shares", "stages"],
)
def test_score_explains_training(raw: dict[str, Any], more: list[str], eta: str, tmp_path: Path) -> None:
    path = written(tmp_path, raw)
    design = ["--set", "n_gpu=8", "--set", "n_wse=1", *more]
    done = dse("score", path, *design, "--explain")
    assert done.returncode == 0, done.stderr
    assert re.search(SERVING_WORDS, done.stdout) is None
    assert done.stdout.count(f"({eta})") == 2
    assert re.search(r"streamed from outside: 1\.5 TB usable, .* left", done.stdout)
    bounds = re.search(
        r"f at full overlap (.*) = min\(sum g without waiting for the link (.*), link (.*)\)", done.stdout
    )
    assert bounds
    assert bounds[1] in (bounds[2], bounds[3])
    for name in ("complementarity", "gain_equal_cost", "gain_equal_power"):
        assert re.search(rf"^{name} +\d", done.stdout, re.MULTILINE)
    assert re.search(r"^train_time_s +[\d.,]+ days$", done.stdout, re.MULTILINE)
    row = json.loads(dse("score", path, *design, "--explain", "--json").stdout)
    for pool in row["explain"]["pools"].values():
        assert pool["u"] == pytest.approx(pool["u_ho"] / (1 + pool["eta"]))
        assert {"held", "outside", "outside_byte", "usable_byte"} <= set(pool["memory"])
    assert row["explain"]["system"]["step_s"] == row["step_time_s"]


def test_score_of_what_does_not_fit_says_so(tmp_path: Path) -> None:
    path = written(tmp_path, data_parallel())
    done = dse("score", path, "--set", "n_gpu=8", "--set", "micro_batch_gpu=512", "--set", "n_wse=0", "--explain")
    assert done.returncode == 0
    assert re.search(r"^feasible +False$", done.stdout, re.MULTILINE)
    assert "gpu lacks" in done.stdout
    assert "eta inf" in done.stdout


def test_check_names_the_method_and_milp_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, pipelined())
    facts = json.loads(dse("check", path, "--json").stdout)
    assert (facts["paradigm"], facts["method"]) == ("pp_training", "exhaustive")
    assert "method   exhaustive" in dse("check", path).stdout
    owned = written(tmp_path, pipelined(site={"cost_basis": "ownership"}))
    refused = dse("run", owned, "--method", "milp", "--out", tmp_path / "run")
    assert refused.returncode == 2
    assert "energy bill" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_limits_that_no_fleet_meets_exit_3(tmp_path: Path) -> None:
    done = dse("run", written(tmp_path, data_parallel(limits={"train_time_s": 1.0})), "--out", tmp_path / "run")
    assert done.returncode == 3
    assert "No feasible design" in done.stderr
    assert "train_time_s" in done.stderr
    assert json.loads((tmp_path / "run" / "run.json").read_text())["verdict"]["word"] == "not defined"
