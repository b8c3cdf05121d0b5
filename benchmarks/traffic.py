"""A trace of a million requests: cut into classes, counted in windows, against a bare read of the same file.

Run: `python benchmarks/traffic.py`. Each row is a process of its own; its memory is what it peaks at above the imports.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

SIZES = (100_000, 1_000_000, 4_000_000)
WINDOWS = 24


def traffic_table() -> Iterator[str]:
    """Rows of RESULTS.md."""
    yield "| requests | file | bare read (pandas) | classes | with 24 windows | over the bare read | memory |"
    yield "|---|---|---|---|---|---|---|"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.csv"
        for n in SIZES:
            write_trace(path, n)
            bare, _ = measured("bare", path)
            cut, _ = measured("classes", path)
            whole, memory = measured("windows", path)
            size = path.stat().st_size / 2**20
            yield (
                f"| {n:,} | {size:.0f} MiB | {bare:.2f} s | {cut:.2f} s | {whole:.2f} s | {whole / bare:.1f} x | "
                f"{memory:.0f} MiB |"
            )


def write_trace(path: Path, n: int) -> None:
    """Log-normal lengths, Poisson arrivals."""
    rng = np.random.default_rng(0)
    n_input = np.clip(rng.lognormal(6.5, 1.2, n).astype(int), 1, 128_000)
    n_output = np.clip(rng.lognormal(5.0, 1.0, n).astype(int), 1, 8_000)
    rows = np.stack([np.cumsum(rng.exponential(0.01, n)), n_input, n_output], axis=1)
    with path.open("w") as file:
        file.write("arrival_s,input_tokens,output_tokens\n")
        np.savetxt(file, rows, fmt=["%.6f", "%d", "%d"], delimiter=",")


def measured(what: str, path: Path) -> tuple[float, float]:
    """Seconds, and MiB above what the imports take, of one task in its own process."""
    done = subprocess.run([sys.executable, __file__, what, str(path)], capture_output=True, text=True, check=True)
    spent, memory = done.stdout.split()
    return float(spent), float(memory)


def _task(what: str, path: Path) -> None:
    import pandas as pd

    from dse.traffic import trace_classes, trace_tally, trace_windows

    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew: what a parent held counts as its children's
    before = _peak_kib()
    started = time.perf_counter()
    if what == "bare":
        pd.read_csv(path)
    else:
        tally = trace_tally(path)
        cut = trace_classes(tally)
        if what == "windows":
            trace_windows(path, cut, (tally.last_s - tally.first_s) / WINDOWS * (1 + 1e-9))
    spent = time.perf_counter() - started
    print(spent, (_peak_kib() - before) / 1024)


def _peak_kib() -> int:
    """Peak resident memory of this process (Linux)."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0])


if __name__ == "__main__":
    if len(sys.argv) == 3:
        _task(sys.argv[1], Path(sys.argv[2]))
    else:
        print("\n".join(traffic_table()))
