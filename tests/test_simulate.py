"""dse simulate: which designs are replayed on what, what it writes, and bad input."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from conftest import small_study
from small_training import data_parallel
from typer.testing import CliRunner

from dse.cli.app import app
from dse.errors import InputError
from dse.explore import Result, run
from dse.report import load_run, write_whole_run
from dse.resolve import Study
from dse.simulate import QUANTITIES, simulate, summary_of

SHORT = {"n_requests": 400}
HEADER = "arrival_s,input_tokens,output_tokens\n"


@pytest.fixture(scope="module")
def result() -> Result:
    workload = {**small_study()["workload"], "goodput": {"ttft_s": 0.3, "tpot_s": 0.02}}
    return run(Study.from_dict(small_study(workload=workload)))


@pytest.fixture(scope="module")
def written(result: Result, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("written") / "run"
    write_whole_run(result, path)
    return path


@pytest.fixture
def folder(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "run"))


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    n = 500
    rows = np.stack([np.cumsum(rng.exponential(1, n)), rng.integers(10, 3000, n), rng.integers(2, 500, n)], axis=1)
    path = tmp_path / "trace.csv"
    path.write_text(HEADER + "".join(f"{a:.3f},{i:.0f},{o:.0f}\n" for a, i, o in rows))
    return path


def invoke(*arguments: str | Path) -> Any:
    return CliRunner().invoke(app, ["simulate", *map(str, arguments), "--progress", "none"])


def test_the_recommended_design_is_among_those_replayed(result: Result) -> None:
    assert result.recommended is not None
    for top in (1, 3):
        found = simulate(result, top=top, **SHORT)
        assert str(result.recommended["design_id"]) in set(found.frame["design_id"])
        assert len(found.frame) == top


def test_predictions_are_near_what_happens(result: Result) -> None:
    """A sane engine and a sane model on Poisson arrivals; benchmarks/RESULTS.md has the figures on real traces."""
    found = simulate(result, top=5, n_requests=3000)
    assert found.summary["throughput_tok_s"]["median"] < 0.08
    assert found.summary["ttft_mean_s"]["median"] < 0.2
    assert found.summary["tpot_mean_s"]["median"] < 0.1
    predicted = result.frontier.set_index("design_id").loc[list(found.frame["design_id"]), "goodput_frac"]
    np.testing.assert_allclose(found.frame["goodput_frac"], predicted, atol=0.1)


def test_same_seed_same_replay_on_any_number_of_workers(result: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    one = simulate(result, top=2, **SHORT)
    monkeypatch.setattr("dse.cluster.WORTH_RAY_S", 1e9)
    two = simulate(result, top=2, workers=2, **SHORT)
    pd.testing.assert_frame_equal(one.frame, two.frame)
    other = simulate(result, top=2, seed=1, **SHORT)
    assert (other.frame["ttft_mean_s_simulated"] != one.frame["ttft_mean_s_simulated"]).any()


def test_gaps_are_predicted_over_replayed_and_the_summary_is_theirs(result: Result) -> None:
    frame = simulate(result, top=4, **SHORT).frame
    for name in QUANTITIES:
        gap = frame[f"{name}_predicted"] / frame[f"{name}_simulated"] - 1
        np.testing.assert_allclose(frame[f"{name}_gap"], gap)
        assert summary_of(frame)[name]["median"] == pytest.approx(gap.abs().median())


def test_beyond_capacity_there_is_no_prediction_of_latencies(result: Result) -> None:
    frame = simulate(result, top=1, load_requests_s=1e3, **SHORT).frame
    assert np.isinf(frame["ttft_mean_s_predicted"]).all()
    assert frame["ttft_mean_s_gap"].isna().all()
    assert np.isfinite(frame["throughput_tok_s_gap"]).all()


def test_the_command_writes_a_table_the_run_and_the_page(folder: Path, trace: Path) -> None:
    done = invoke(folder, "--top", 2, "--trace", trace, "--arrivals", "recorded")
    assert done.exit_code == 0, done.output
    assert "TTFT, p99: median error" in done.output
    frame = pd.read_csv(folder / "simulation.csv")
    assert len(frame) == 2
    info = json.loads((folder / "run.json").read_text())["simulation"]
    assert (info["arrivals"], info["requests"], info["seed"]) == ("recorded", 500, 0)
    page = (folder / "report.html").read_text()
    assert "Checked by replay" in page
    assert "Lengths of trace.csv, 500 requests" in page
    again = load_run(folder)
    assert again.info["simulation"]["rows"][0]["design_id"] == frame["design_id"][0]


def test_a_new_run_drops_the_old_replay(folder: Path, result: Result) -> None:
    assert invoke(folder, "--top", 1, "--requests", 100).exit_code == 0
    write_whole_run(result, folder)
    assert not (folder / "simulation.csv").exists()
    assert "Checked by replay" not in (folder / "report.html").read_text()


def test_json_is_what_run_json_holds(folder: Path) -> None:
    done = invoke(folder, "--top", 1, "--requests", 100, "--json")
    assert json.loads(done.stdout) == json.loads((folder / "run.json").read_text())["simulation"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--design", "d1x"], "no design of the run named 'd1x'"),
        (["--arrivals", "recorded"], "the run has no trace; name one with --trace"),
        (["--trace", "none.csv"], "no such trace"),
    ],
)
def test_bad_input_is_one_sentence(folder: Path, arguments: list[str], expected: str) -> None:
    done = invoke(folder, *arguments)
    assert isinstance(done.exception, InputError)
    assert expected in str(done.exception)
    assert not (folder / "simulation.csv").exists()


def test_a_malformed_trace_is_named_with_its_line(folder: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.csv"
    bad.write_text(HEADER + "0,10,5\n3,10,5\n2,10,5\n")
    with pytest.raises(InputError, match=r"bad.csv:4: arrival_s goes back"):
        raise invoke(folder, "--trace", bad).exception


def test_training_has_no_requests() -> None:
    with pytest.raises(InputError, match="dse simulate replays requests"):
        simulate(run(Study.from_dict(data_parallel())), top=1)


def test_a_study_of_a_trace_is_replayed_on_it(trace: Path, tmp_path: Path) -> None:
    study = small_study(workload={"model": "llama-2-7b", "trace": trace.name, "classes": 6})
    result = run(Study.from_dict(study, folder=trace.parent))
    assert result.info["traffic"]["n_requests"] == 500
    assert max(map(abs, result.info["traffic"]["loss"].values())) < 0.3
    write_whole_run(result, tmp_path / "run")
    again = load_run(tmp_path / "run")
    found = simulate(again, top=1)
    assert found.info["source"] == "lengths of trace.csv"
    assert found.info["requests"] == 500
