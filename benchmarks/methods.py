"""The three explorers on the quickstart: time, points, and share of the exact hypervolume.

Run alone: `python benchmarks/methods.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dse import exhaustive, frontier, search
from dse.pareto import hypervolume
from dse.progress import Stop, silent
from dse.resolve import Study


def method_table() -> Iterator[str]:
    """The three explorers on the quickstart: time, points, and hypervolume against the exact front."""
    path = Path(__file__).parents[1] / "experiments" / "quickstart.toml"
    yield "| method | time | candidates | frontier points | hypervolume, share of exact |"
    yield "|---|---|---|---|---|"
    exact_volume, reference = 0.0, np.empty(0)
    explorers: dict[str, Callable[[Study], Any]] = {
        "exhaustive": lambda s: exhaustive.explore(s, workers=1, address="local", report=silent, stop=Stop()),
        "milp": lambda s: frontier.explore(s, report=silent, stop=Stop()),
        "optuna, 1000 trials": lambda s: search.explore(s, workers=1, address="local", report=silent, stop=Stop()),
    }
    for name, explorer in explorers.items():
        s = Study.load(path)
        start = time.perf_counter()
        found = explorer(s)
        spent = time.perf_counter() - start
        if not exact_volume:
            reference = found.points.max(axis=0) + np.abs(found.points.max(axis=0)) * 0.01
            exact_volume = hypervolume(found.points, reference)
        share = hypervolume(found.points, reference) / exact_volume
        n = found.solves if hasattr(found, "solves") else found.candidates
        kind = "solves" if hasattr(found, "solves") else "designs"
        distinct = len(np.unique(found.points, axis=0))
        yield f"| {name} | {spent:.2f} s | {n:,} {kind} | {distinct} | {share:.6f} |"


if __name__ == "__main__":
    for line in method_table():
        print(line, flush=True)
