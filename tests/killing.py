"""Runs of one study whose driver or worker is killed at a moment of one's choice; for tests and benchmarks."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import tomli_w
from conftest import small_study

DRIVER = """
import sys
from dse import checkpoint, cluster, pruning
checkpoint.EVERY_S = 0.2  # so that short runs have something to lose
cluster.WORTH_RAY_S = 0.0
pruning.PRUNED_DESIGNS = 10**18  # every design is looked at
from dse.cli import main
main()
"""
"""The command with Ray from the first unit on, and frequent checkpoints."""


BLANK_PAGE = """
from dse.report import folder
folder.write_report = lambda _, path: path
"""


def study_file(folder: Path, *, n_gpu: int = 4000, n_wse: int = 1500, method: str = "exhaustive") -> Path:
    """A study of some 1e8 designs whose frontier is short."""
    raw = small_study(
        pool=[
            {"device": "a100-40gb-sxm", "name": "gpu", "count": {"min": 0, "max": n_gpu}},
            {"device": "wse-3", "name": "wse", "count": {"min": 0, "max": n_wse}},
        ],
        objectives={"maximise": ["throughput_tok_s"], "minimise": ["cost_usd_per_h"]},
        limits={"power_w": 2e5},
        search={"method": method, "resolution_frac": 0.0},
    )
    path = folder / "study.toml"
    path.write_text(tomli_w.dumps(raw))
    return path


def start(study: Path, out: Path, *options: str, page: bool = True) -> subprocess.Popen[str]:
    """Starts a run; without the page, whose drawing takes most of a short run's time, if nothing asks for it."""
    command = [
        sys.executable,
        "-c",
        DRIVER if page else BLANK_PAGE + DRIVER,
        "run",
        str(study),
        "--out",
        str(out),
        "--progress",
        "none",
        "--no-what-if",
        *options,
    ]
    return subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def workers_of(driver: int) -> list[int]:
    """Processes below a driver that run its units."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            title = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if title.startswith(b"ray::") and b"search_chunk" in title and driver in _ancestors(int(folder.name)):
            found.append(int(folder.name))
    return found


def _ancestors(process: int) -> list[int]:
    found: list[int] = []
    while process > 1:
        try:
            process = int((Path("/proc") / str(process) / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            break
        found.append(process)
    return found


def kill_a_worker(job: subprocess.Popen[str], after_s: float) -> int:
    """Kills one worker at work, so many seconds after the first is; its number, or 0 if the run was over before."""
    while job.poll() is None and not workers_of(job.pid):
        time.sleep(0.02)
    time.sleep(after_s)
    while job.poll() is None:
        at_work = workers_of(job.pid)
        if at_work:
            os.kill(at_work[0], signal.SIGKILL)
            return at_work[0]
        time.sleep(0.02)
    return 0


def kill_driver(job: subprocess.Popen[str], out: Path, after_s: float) -> float:
    """Kills a run so many seconds after its first checkpoint; how long that checkpoint is known to be, 0 if over."""
    while job.poll() is None and not list(out.glob("checkpoint/*.npz")):
        time.sleep(0.02)
    time.sleep(after_s)
    over = job.poll() is not None
    job.kill()
    job.communicate()
    return 0.0 if over else after_s


def finished(job: subprocess.Popen[str], within_s: float = 120) -> None:
    """Waits for a run's good end."""
    _, said = job.communicate(timeout=within_s)
    assert job.returncode == 0, said


def same(runs: Sequence[Path]) -> bool:
    """Whether runs found the same: frontier to the letter, designs counted, proof."""
    facts = []
    for run in runs:
        info = json.loads((run / "run.json").read_text())
        proof = {k: v for k, v in info["proof"].items() if k != "points"}
        facts.append(((run / "frontier.csv").read_text(), info["candidates"], info["complete"], proof))
    return all(fact == facts[0] for fact in facts)


def left_behind(driver: int) -> list[int]:
    """Processes of a driver's Ray that outlive it by ten seconds: none should."""
    # Ray's folder ends in the driver's number
    end, session = time.monotonic() + 10, f"_{driver}/".encode()
    while time.monotonic() < end:
        found = []
        for folder in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                command = (folder / "cmdline").read_bytes() if folder.name.isdigit() else b""
                if b"/session_" in command and session in command:
                    found.append(int(folder.name))
        if not found:
            return []
        time.sleep(0.2)
    return found
