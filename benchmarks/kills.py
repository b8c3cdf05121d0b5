"""Kill -9 of a worker and of the driver at random moments: what a run finds stays the same.

    python benchmarks/kills.py [TIMES] [worker|driver]

Two workers on a space of some 5e7 designs. A worker is killed between 0 and 3 s after the first is at work; its unit
is run again. The driver is killed up to 2 s after its first checkpoint, and again in the next sitting if it is still
at work then; `--resume` ends the run. Frontier, count of designs and proof are compared with a run left alone.
"""

from __future__ import annotations

import sys
import tempfile
import time
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


def main(times: int, only: str) -> None:
    """Prints one line a kill."""
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        study, alone = killing.study_file(folder, n_gpu=2500, n_wse=800), folder / "alone"
        started = time.perf_counter()
        killing.finished(killing.start(study, alone))
        print(f"left alone, one worker: {time.perf_counter() - started:.1f} s", flush=True)
        print("| who | after [s] | what happened | run [s] | same result |\n|---|---|---|---|---|")
        for who, kill, longest_s in (("worker", worker_killed, 3.0), ("driver", driver_killed, 2.0)):
            moments = rng.uniform(0.0, longest_s, times)
            for number, after_s in enumerate(moments if only in {"", who} else []):
                out, started = folder / f"{who}{number}", time.perf_counter()
                what = kill(study, out, float(after_s))
                same = "yes" if killing.same([alone, out]) else "NO"
                print(f"| {who} | {after_s:.2f} | {what} | {time.perf_counter() - started:.1f} | {same} |", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10, sys.argv[2] if len(sys.argv) > 2 else "")
