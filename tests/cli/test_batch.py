"""Many studies as one job: failures apart, one summary, and nothing run twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any, Protocol

import pandas as pd
import pytest
import tomli_w
from conftest import small_study
from test_run import LARGE, command, dse

from dse import cli
from dse.errors import ClusterError, DseError

pytestmark = pytest.mark.usefixtures("blank_page")
TINY = small_study(
    pool=[
        {"device": "a100-40gb-sxm", "name": "gpu", "count": {"min": 0, "max": 8, "step": 4}},
        {"device": "wse-3", "name": "wse", "count": {"min": 0, "max": 1}},
    ]
)

PLANE = {"maximise": ["throughput_tok_s"], "minimise": ["cost_usd_per_h"]}


def jobs_file(folder: Path, **tables: Any) -> Path:
    """A jobs file beside two studies, one of them wrong."""
    (folder / "tiny.toml").write_text(tomli_w.dumps(TINY))
    (folder / "wrong.toml").write_text(tomli_w.dumps({**TINY, "name": "wrong", "paradigm": "nothing"}))
    path = folder / "jobs.toml"
    path.write_text(tomli_w.dumps({"name": "prices", "out": "runs", **tables}))
    return path


SWEEP = {"study": "tiny.toml", "sweep": {"limits.cost_usd_per_h": [1e-3, 20, 400]}}


class Batch(Protocol):
    """Calls `dse batch` in this process."""

    def __call__(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]: ...


@pytest.fixture
def batch(capsys: pytest.CaptureFixture[str]) -> Batch:
    def call(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        words = ["batch", *map(str, arguments)]
        try:
            code: Any = cli._run(words)
        except SystemExit as end:
            code = end.code
        except DseError as error:
            code = cli._explained(error)
        shown = capsys.readouterr()
        return subprocess.CompletedProcess(words, code, shown.out, shown.err)

    return call


def events(text: str) -> list[tuple[str, str]]:
    """What the JSON lines say of jobs."""
    lines = [json.loads(line) for line in text.splitlines()]
    return [(line["event"], line["status"]) for line in lines if line["event"] not in ("progress", "stopped")]


def numbers(text: str) -> list[tuple[int, str]]:
    """Number and job of each end."""
    lines = [json.loads(line) for line in text.splitlines()]
    return [(line["number"], line["job"]) for line in lines if line["event"] == "end"]


def test_a_batch_runs_all_it_can_and_says_what_failed(batch: Batch, tmp_path: Path) -> None:
    path = jobs_file(tmp_path, job=[{"study": "wrong.toml"}, SWEEP])
    done = batch(path, "--progress", "json")
    assert done.returncode == 5, done.stderr
    assert events(done.stderr) == [
        *[("end", "failed")],
        *[("start", "running"), ("end", "infeasible")],
        *[("start", "running"), ("end", "done")] * 2,
    ]
    assert "1 failed" in done.stdout
    summed = pd.read_csv(tmp_path / "runs" / "summary.csv")
    assert numbers(done.stderr) == list(enumerate(summed["job"], start=1))
    assert "no paradigm named 'nothing'" in done.stdout
    frame = pd.read_csv(tmp_path / "runs" / "summary.csv")
    assert frame["status"].tolist() == ["failed", "infeasible", "done", "done"]
    assert frame["limits.cost_usd_per_h"].tolist()[1:] == [1e-3, 20, 400]
    assert frame["cost_usd_per_h"][2] <= 20
    assert frame["design"].notna().tolist() == [False, False, True, True]
    assert pd.read_parquet(tmp_path / "runs" / "summary.parquet")["job"].tolist() == frame["job"].tolist()
    for job in frame["job"][3:]:
        names = sorted(p.name for p in (tmp_path / "runs" / job).iterdir())
        assert names == ["candidates.parquet", "frontier.csv", "plan.json", "report.html", "run.json", "study.toml"]
        alone = dse("run", tmp_path / "runs" / job / "study.toml", "--out", tmp_path / "alone")
        assert alone.returncode == 0
        assert (tmp_path / "alone" / "frontier.csv").read_text() == (
            tmp_path / "runs" / job / "frontier.csv"
        ).read_text()


def test_resume_skips_what_is_finished_and_runs_what_changed(batch: Batch, tmp_path: Path) -> None:
    first = batch(jobs_file(tmp_path, job=[SWEEP]), "--progress", "json")
    assert first.returncode == 0, first.stderr
    more = [SWEEP, {"study": "tiny.toml", "sweep": {"limits.cost_usd_per_h": [500]}}]
    second = batch(jobs_file(tmp_path, job=more), "--resume", "--progress", "json")
    assert second.returncode == 0, second.stderr
    assert [what for what, _ in events(second.stderr)] == ["skip"] * 3 + ["start", "end"]
    (tmp_path / "tiny.toml").write_text(tomli_w.dumps({**TINY, "link": {"bandwidth_gb_s": [25]}}))
    third = batch(tmp_path / "jobs.toml", "--resume", "--progress", "json")
    assert [what for what, _ in events(third.stderr)] == ["start", "end"] * 4


def test_a_jobs_own_time_limit_stops_it_alone_and_resume_gives_it_more(batch: Batch, tmp_path: Path) -> None:
    job = [{"study": "tiny.toml", "sweep": {"search.method": ["milp", "exhaustive"]}}]
    short = batch(jobs_file(tmp_path, job=job, time_limit_s=1e-6))
    assert short.returncode == 4, short.stderr
    frame = pd.read_csv(tmp_path / "runs" / "summary.csv")
    assert frame["status"].tolist() == ["stopped", "stopped"] or frame["status"].tolist() == ["stopped", "done"]
    assert "time limit" in frame["note"][0]
    longer = batch(jobs_file(tmp_path, job=job, time_limit_s=60), "--resume", "--json")
    assert longer.returncode == 0, longer.stderr
    rows = json.loads(longer.stdout)["jobs"]
    assert [row["status"] for row in rows] == ["done", "done"]
    assert rows[0]["design_id"] == rows[1]["design_id"]


def test_a_full_folder_stops_before_the_next_job(batch: Batch, tmp_path: Path) -> None:
    done = batch(jobs_file(tmp_path, job=[SWEEP], max_disk_gb=1e-4))
    assert done.returncode == 4, done.stderr
    assert "max_disk_gb allows, before small-" in done.stderr
    statuses = pd.read_csv(tmp_path / "runs" / "summary.csv")["status"].tolist()
    assert statuses[-1] == "waiting"
    more = batch(jobs_file(tmp_path, job=[SWEEP], max_disk_gb=1), "--resume")
    assert more.returncode == 0, more.stderr
    nothing_left = batch(jobs_file(tmp_path, job=[SWEEP], max_disk_gb=1e-4), "--resume")
    assert nothing_left.returncode == 0, nothing_left.stderr


def test_a_failed_job_goes_on_from_its_checkpoint(
    batch: Batch, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = []

    def fail(*_: Any, resume: bool, **__: Any) -> None:
        asked.append(resume)
        raise ClusterError("a unit of work ended its worker")

    monkeypatch.setattr("dse.batch.run", fail)
    path = jobs_file(tmp_path, job=[{"study": "tiny.toml"}])
    assert batch(path).returncode == 5
    assert batch(path, "--resume").returncode == 5
    assert asked == [False, True]


def test_jobs_taken_out_and_put_back_are_not_run_again(batch: Batch, tmp_path: Path) -> None:
    one, two = ({"study": "tiny.toml", "sweep": {"limits.cost_usd_per_h": [usd]}} for usd in (20, 400))
    assert batch(jobs_file(tmp_path, job=[one, two])).returncode == 0
    assert batch(jobs_file(tmp_path, job=[two]), "--resume").returncode == 0
    back = batch(jobs_file(tmp_path, job=[one, two]), "--resume", "--progress", "json")
    assert [what for what, _ in events(back.stderr)] == ["skip", "skip"]


def test_bad_jobs_files_and_foreign_folders_exit_2(batch: Batch, tmp_path: Path) -> None:
    assert batch(tmp_path / "none.toml").returncode == 2
    assert batch(jobs_file(tmp_path, job=[{"study": "none.toml"}])).returncode == 2
    path = jobs_file(tmp_path, job=[SWEEP])
    foreign = batch(path, "--out", tmp_path)
    assert foreign.returncode == 2
    assert "no batch" in foreign.stderr


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_stopped_or_killed_batch_goes_on_with_the_jobs_that_are_left(number: int, tmp_path: Path) -> None:
    large = small_study(pool=LARGE, name="large", objectives=PLANE, limits={"power_w": 2e5})
    large["pool"][0]["count"]["max"] = 4000
    (tmp_path / "large.toml").write_text(tomli_w.dumps(large))
    path = jobs_file(tmp_path, job=[{"study": "tiny.toml"}, {"study": "large.toml"}])
    line = [*command(page=number == signal.SIGTERM), "batch", path, "--progress", "json"]
    with subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as job:
        assert job.stderr is not None
        for line in job.stderr:
            if json.loads(line)["job"] == "large" and json.loads(line)["event"] == "progress":
                break
        os.kill(job.pid, number)
        job.communicate(timeout=120)
    assert job.returncode == (4 if number == signal.SIGTERM else -signal.SIGKILL)
    more = dse("batch", path, "--resume", "--progress", "json")
    assert more.returncode == 0, more.stderr
    assert events(more.stderr)[0] == ("skip", "done")
    assert pd.read_csv(tmp_path / "runs" / "summary.csv")["status"].tolist() == ["done", "done"]
