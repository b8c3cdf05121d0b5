"""Kill -9 of a worker and of the driver at random moments: what a run finds stays the same.

    python benchmarks/kills.py [TIMES]

Two workers on a space of some 2e8 designs. A worker is killed between 0 and 3 s after the first is at work; its unit
is run again. The driver is killed up to 2 s after its first checkpoint, and again in the next sitting if it is still
at work then; `--resume` ends the run. Frontier, count of designs and proof are compared with a run left alone.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import killing

WORKERS = ("--workers", "2")
SITTINGS = 3
"""Of one run whose driver is killed; the last is left alone."""


def worker_killed(study: Path, out: Path, after_s: float) -> str:
    """One run with a worker killed."""
    job = killing.start(study, out, *WORKERS)
    killed = killing.kill_a_worker(job, after_s)
    killing.finished(job)
    return "killed" if killed else "over before"


def driver_killed(study: Path, out: Path, after_s: float) -> str:
    """One run whose driver is killed, then resumed."""
    kills = 0
    for sitting in range(SITTINGS - 1):
        job = killing.start(study, out, *WORKERS, *(["--resume"] if sitting else []))
        kills += bool(killing.kill_driver(job, out, after_s))
    killing.finished(killing.start(study, out, *WORKERS, "--resume"))
    return f"killed {kills} times"


def kill_table(times: int = 10) -> Iterator[str]:
    """One line a kill."""
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        study, alone = killing.study_file(folder, n_gpu=6000, n_wse=2000), folder / "alone"
        started = time.perf_counter()
        killing.finished(killing.start(study, alone))
        yield f"Left alone, one worker: {time.perf_counter() - started:.1f} s."
        yield ""
        yield "| who | after | what happened | run | same result |"
        yield "|---|---|---|---|---|"
        for who, kill, longest_s in (("worker", worker_killed, 3.0), ("driver", driver_killed, 2.0)):
            for number, after_s in enumerate(rng.uniform(0.0, longest_s, times)):
                out, started = folder / f"{who}{number}", time.perf_counter()
                what = kill(study, out, float(after_s))
                same = "yes" if killing.same([alone, out]) else "NO"
                yield f"| {who} | {after_s:.2f} s | {what} | {time.perf_counter() - started:.1f} s | {same} |"


if __name__ == "__main__":
    for line in kill_table(int(sys.argv[1]) if len(sys.argv) > 1 else 10):
        print(line, flush=True)
