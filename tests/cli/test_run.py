"""The main job end to end: run folder, exit codes, interruption, JSON for machines."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import one_process
import pandas as pd
import pytest
import tomli_w
from conftest import small_study
from killing import BLANK_PAGE

from dse.resolve import Study

pytestmark = pytest.mark.usefixtures("blank_page")
EXPERIMENTS = Path(__file__).parents[2] / "experiments"


def brief(*arguments: str | Path) -> list[str]:
    """A command line; runs without the what-ifs, which take their time."""
    return [*map(str, arguments), *(["--no-what-if"] if arguments[0] == "run" else [])]


def dse(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Runs the command in this process."""
    return one_process.dse(*brief(*arguments))


def command(*, page: bool) -> list[str]:
    """The command for a process of its own; without the page, whose drawing takes most of a short run's time."""
    return [sys.executable, *(("-m", "dse") if page else ("-c", BLANK_PAGE + "from dse.cli import main; main()"))]


def dse_apart(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Runs the command in its own process, as a shell does."""
    line = [*command(page=True), *brief(*arguments)]
    return subprocess.run(line, capture_output=True, text=True, check=False, timeout=120)


@pytest.fixture
def study_file(tmp_path: Path) -> Path:
    path = tmp_path / "study.toml"
    path.write_text(tomli_w.dumps(small_study()))
    return path


def test_run_folder_stands_alone(study_file: Path, tmp_path: Path) -> None:
    done = dse_apart("run", study_file, "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "Report:" in done.stdout
    names = sorted(p.name for p in (tmp_path / "run").iterdir())
    assert names == ["candidates.parquet", "frontier.csv", "plan.json", "report.html", "run.json", "study.toml"]
    info = json.loads((tmp_path / "run" / "run.json").read_text())
    assert info["proof"] == {"kind": "exhaustive", "designs": info["designs_in_grid"]}
    assert info["complete"] is True
    assert info["candidates"] > 0
    frontier = pd.read_csv(tmp_path / "run" / "frontier.csv")
    candidates = pd.read_parquet(tmp_path / "run" / "candidates.parquet")
    assert list(frontier.columns) == list(candidates.columns)
    assert set(frontier["design_id"]) <= set(candidates["design_id"])
    assert len(candidates) == info["candidates"]
    assert candidates["on_front"].sum() == len(frontier)
    assert (candidates.loc[~candidates["feasible"], "infeasible_reason"] != "").all()
    again = dse("run", tmp_path / "run" / "study.toml", "--out", tmp_path / "again")
    assert again.returncode == 0
    assert (tmp_path / "again" / "frontier.csv").read_text() == (tmp_path / "run" / "frontier.csv").read_text()
    rebuilt = dse("report", tmp_path / "run", "--out", tmp_path / "page.html")
    assert rebuilt.returncode == 0, rebuilt.stderr
    assert (tmp_path / "page.html").stat().st_size > 100_000


def test_study_with_a_trace_and_files_moves_with_its_run(tmp_path: Path) -> None:
    done = dse("run", EXPERIMENTS / "trace_both_routings.toml", "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    moved = tmp_path / "elsewhere"
    (tmp_path / "run").rename(moved)
    again = dse("run", moved / "study.toml", "--out", tmp_path / "again")
    assert again.returncode == 0, again.stderr
    assert (tmp_path / "again" / "frontier.csv").read_text() == (moved / "frontier.csv").read_text()


def test_json_is_one_object(study_file: Path, tmp_path: Path) -> None:
    done = dse_apart("run", study_file, "--out", tmp_path / "run", "--json", "--progress", "json")
    assert done.returncode == 0
    result = json.loads(done.stdout)
    assert result["run"]["method"] == "exhaustive"
    assert len(result["frontier"]) > 1
    for line in done.stderr.splitlines():
        assert {"done", "total", "rate_per_s", "eta_s"} <= set(json.loads(line))
    scored = dse("score", study_file, "--set", "n_gpu=16", "--set", "n_wse=1", "--set", "role_wse=decode", "--json")
    row = json.loads(scored.stdout)
    assert row["requests_s"] > 0
    assert set(row["explain"]) == {"pools", "system", "uncertainty"}
    pool = row["explain"]["pools"]["wse"]
    assert {"u_ho", "eta", "u", "g_flop_s", "binding", "memory"} <= set(pool)
    assert pool["u"] == pytest.approx(pool["u_ho"] / (1 + pool["eta"]))
    total = row["explain"]["system"]
    assert total["sum_g_flop_s"] == pytest.approx(total["f_flop_s"])


LARGE = [
    {"device": "a100-40gb-sxm", "name": "gpu", "count": {"min": 0, "max": 9000}},
    {"device": "wse-3", "name": "wse", "count": {"min": 0, "max": 3000}},
]


def test_resume_goes_on_where_the_time_limit_stopped_a_run(tmp_path: Path) -> None:
    path, out = tmp_path / "study.toml", tmp_path / "run"
    whole = dse("run", _written(path, small_study()), "--out", tmp_path / "whole", "--method", "milp")
    assert whole.returncode == 0, whole.stderr
    short = small_study(search={"time_limit_s": 0.3})
    stopped = dse("run", _written(path, short), "--out", out, "--method", "milp")
    assert stopped.returncode == 4, stopped.stderr
    assert "--resume goes on" in stopped.stderr
    assert (out / "checkpoint").is_dir()
    other = dse(
        "run", _written(path, small_study(limits={"power_w": 1e4})), "--out", out, "--method", "milp", "--resume"
    )
    assert other.returncode == 2
    assert "another run" in other.stderr
    assert "limits" in other.stderr
    done = dse("run", _written(path, small_study()), "--out", out, "--method", "milp", "--resume")
    assert done.returncode == 0, done.stderr
    assert not (out / "checkpoint").exists()
    assert (out / "frontier.csv").read_text() == (tmp_path / "whole" / "frontier.csv").read_text()
    infos = [json.loads((f / "run.json").read_text()) for f in (out, tmp_path / "whole")]
    assert infos[0]["proof"]["boxes"] == infos[1]["proof"]["boxes"]
    assert infos[0]["candidates"] == infos[1]["candidates"]


def test_resume_of_a_complete_run_says_so_and_never_writes_over_another(study_file: Path, tmp_path: Path) -> None:
    first = dse("run", study_file, "--out", tmp_path / "run")
    assert first.returncode == 0, first.stderr
    written = (tmp_path / "run" / "run.json").read_text()
    again = dse("run", study_file, "--out", tmp_path / "run", "--resume")
    assert again.returncode == 0
    assert "the run is complete; nothing is left to do" in again.stderr
    assert again.stdout.splitlines()[0] == first.stdout.splitlines()[0]
    other = _written(tmp_path / "other.toml", small_study(limits={"power_w": 5e4}))
    refused = dse("run", other, "--out", tmp_path / "run", "--resume")
    assert refused.returncode == 2
    assert "holds a run of another study" in refused.stderr
    assert (tmp_path / "run" / "run.json").read_text() == written


def test_a_folder_that_cannot_be_written_is_told_before_the_search(study_file: Path) -> None:
    done = dse("run", study_file, "--out", "/proc/nowhere")
    assert done.returncode == 2
    assert "cannot be written" in done.stderr
    assert done.stdout == ""


def test_a_run_killed_before_its_first_result_can_be_resumed(study_file: Path, tmp_path: Path) -> None:
    (tmp_path / "run" / "checkpoint").mkdir(parents=True)
    done = dse("run", study_file, "--out", tmp_path / "run", "--resume")
    assert done.returncode == 0, done.stderr


def _written(path: Path, raw: dict[str, Any]) -> Path:
    path.write_text(tomli_w.dumps(raw))
    return path


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_run_leaves_what_was_found_and_exits_4(number: int, tmp_path: Path) -> None:
    path = _written(tmp_path / "large.toml", small_study(pool=LARGE))
    with subprocess.Popen(
        [*command(page=number == signal.SIGINT), "run", path, "--out", tmp_path / "run", "--progress", "json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as job:
        assert job.stderr is not None
        job.stderr.readline()
        time.sleep(0.3)
        os.kill(job.pid, number)
        shown, _ = job.communicate(timeout=60)
    assert job.returncode == 4
    assert "Incomplete" in shown
    info = json.loads((tmp_path / "run" / "run.json").read_text())
    assert info["complete"] is False
    assert info["stopped"] == ("Ctrl-C" if number == signal.SIGINT else "SIGTERM")
    assert len(pd.read_csv(tmp_path / "run" / "frontier.csv")) > 0


def test_time_limit_stops_and_exits_4(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    path.write_text(tomli_w.dumps(small_study(search={"time_limit_s": 1e-6})))
    for method in ("exhaustive", "milp", "optuna"):
        done = dse("run", path, "--out", tmp_path / method, "--method", method)
        assert done.returncode == 4, done.stderr
        assert "time limit" in done.stdout


@pytest.mark.parametrize("study", sorted(EXPERIMENTS.glob("*.toml")), ids=lambda p: p.stem)
def test_shipped_studies_are_valid(study: Path) -> None:
    loaded = Study.load(study)
    assert loaded.space.n_designs > 100
    done = dse("check", study)
    assert done.returncode == 0, done.stderr


def test_catalog_and_schema_speak() -> None:
    for kind in ("devices", "models", "links"):
        listed = dse("catalog", kind)
        assert listed.returncode == 0
        names = json.loads(dse("catalog", kind, "--json").stdout)
        assert all(name in listed.stdout for name in names)
    one = json.loads(dse("catalog", "devices", "wse-3", "--json").stdout)
    assert all(row["source"] and row["date"] and row["grade"] in "ABCD" for row in one)
    assert any(row["grade"] == "D" and row["low"] and row["high"] for row in one)
    schema = json.loads(dse("schema").stdout)
    assert schema["oneOf"][0]["properties"]["paradigm"]["const"] == "pd_serving"


def test_python_interface_needs_four_names(study_file: Path, tmp_path: Path) -> None:
    from dse import Study, load_catalog, run, score

    study = Study.load(study_file)
    result = run(study)
    assert len(result.frontier) > 1
    assert result.frontier["on_front"].all()
    page = result.report(tmp_path / "out.html")
    assert page.exists()
    row = score(study, {"n_gpu": 8, "n_wse": 1}).iloc[0]
    assert row["n_gpu"] == 8
    assert load_catalog().device("h100-80gb-sxm").memory_byte == 80e9
