"""One command watched: its time, the time to its first answer, its peak memory; and environments to run it in.

A watcher, a small process that starts one command and waits for it, takes time and memory, so that neither holds
anything of the process that asks.
"""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Timer
from typing import Any

VENVS = Path(__file__).resolve().parent / ".venvs"
TIMEOUT_S = 300.0
"""Of one run; an installation may take three times as long."""


@dataclass(frozen=True, slots=True)
class Run:
    """What a watcher saw of one command."""

    returncode: int
    seconds: float
    first_s: float | None
    """From the start of the process to the line with the marker; None without such a line."""
    peak_mib: float
    output: str


def watch(job: dict[str, Any]) -> Run:
    """Runs one command in this process, which must have had no other child."""
    lines: list[str] = []
    first_s = None
    started = time.perf_counter()
    with subprocess.Popen(
        job["command"],
        env=job["env"],
        cwd=job["folder"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        killer = Timer(job["timeout_s"], os.killpg, (process.pid, signal.SIGKILL))
        killer.start()
        try:
            for line in process.stdout or ():
                lines.append(line)
                if first_s is None and job["marker"] in line:
                    first_s = time.perf_counter() - started
            process.wait()
        finally:
            killer.cancel()
    peak_mib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    return Run(process.returncode, time.perf_counter() - started, first_s, peak_mib, "".join(lines))


def watched(command: Sequence[str], folder: Path, marker: str, **more: str) -> Run:
    """One command in a small environment, one thread, hubs offline; no result is an error with its reason."""
    env = {
        "PATH": os.environ.get("PATH", ""),
        "HOME": str(folder),
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "MPLBACKEND": "Agg",
        "NO_COLOR": "1",
        "COLUMNS": "200",
        "PYTHONUNBUFFERED": "1",
        "PYTHONWARNINGS": "ignore",
        **{f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL", "NUMBA", "RAYON")},
    }
    job = {
        "command": list(command),
        "env": env | more,
        "folder": str(folder),
        "marker": marker,
        "timeout_s": TIMEOUT_S,
    }
    watcher = [sys.executable, "-I", __file__, json.dumps(job)]
    run = Run(**json.loads(subprocess.run(watcher, capture_output=True, text=True, check=True).stdout))
    if run.returncode == -signal.SIGKILL and run.seconds >= TIMEOUT_S:
        raise RuntimeError(f"no answer within {TIMEOUT_S:g} s")
    if run.returncode or run.first_s is None:
        raise RuntimeError(reason(run.output) or f"exit code {run.returncode}, no answer")
    return run


def reason(output: str) -> str:
    """The last line that names an error, without addresses and folders."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    named = [line for line in lines if re.search(r"\b\w*(Error|ERROR|Exception)\b", line)]
    last = (named or lines or [""])[-1]
    return re.sub(r"(https?|file)://\S+|/\S+/", "", last).replace("|", "/")[:300]


def python_of(name: str, packages: Sequence[str]) -> str:
    """The interpreter of an environment with these packages, made anew when it was made with others."""
    venv = VENVS / name
    stamp, pins = venv / "pins.json", json.dumps(list(packages))
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != pins:
        pip = [str(venv / "bin" / "python"), "-m", "pip", "install", "-q"]
        for command in ([sys.executable, "-m", "venv", "--clear", str(venv)], [*pip, *packages]):
            made = subprocess.run(command, capture_output=True, text=True, timeout=3 * TIMEOUT_S, check=False)
            if made.returncode:
                raise RuntimeError(f"does not install: {reason(made.stderr)}")
        stamp.write_text(pins, encoding="utf-8")
    return str(venv / "bin" / "python")


if __name__ == "__main__":
    print(json.dumps(asdict(watch(json.loads(sys.argv[1])))))
