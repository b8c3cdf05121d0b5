"""The exact frontier of six device kinds: its time, proof and memory, and what samplers reach in the same time.

Run alone: `python benchmarks/frontiers.py`; `run.py` puts the tables into RESULTS.md. A sampler's trial is one design
(an option of every pool and a link), as a user of plain Optuna would write it; limits are constraints.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import optuna

from dse import frontier, search
from dse.columns import OBJECTIVE_SENSE
from dse.pareto import RunningFront, hypervolume, minimised
from dse.progress import Stop, silent
from dse.resolve import Study

STUDY = Path(__file__).with_name("six_kinds.toml")
SEEDS = (0, 1, 2)


def sampled(study: Study, sampler: optuna.samplers.BaseSampler, time_s: float) -> tuple[np.ndarray, int]:
    """Frontier of one design a trial, and the trials made in the time."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    space: Any = study.space
    objectives = study.envelope.objectives.names
    sizes = space.grid.sizes[0]
    directions = ["maximize" if OBJECTIVE_SENSE[o] == "max" else "minimize" for o in objectives]
    trials = optuna.create_study(directions=directions, sampler=sampler)
    front, started, n = RunningFront(len(objectives)), time.perf_counter(), 0
    while time.perf_counter() - started < time_s:
        trial = trials.ask()
        drawn = [trial.suggest_int(f"axis{i}", 0, size - 1) for i, size in enumerate(sizes)]
        rows = np.array(drawn[1:], dtype=np.int64)[:, None]
        index = space.grid.encode(0, np.array(drawn[:1], dtype=np.int64), rows)
        columns = space.numbers(index)
        good = bool(space.legal(index)[0]) and columns["throughput_tok_s"][0] > 0
        trial.set_constraint("runs", -1.0 if good else 1.0)
        trials.tell(trial, [float(np.nan_to_num(columns[o][0], posinf=1e300)) for o in objectives])
        if good:
            front.merge(minimised(columns, objectives), index)
        n += 1
    return front.points, n


def frontier_tables() -> Iterator[str]:
    """The exact run, then hypervolume against it at equal wall time."""
    study = Study.load(STUDY)
    started = time.perf_counter()
    exact = frontier.explore(study, report=silent, stop=Stop())
    spent = time.perf_counter() - started
    own, workers = (
        resource.getrusage(who).ru_maxrss / 1024 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    gap = max(c.gap for c in exact.certificates)
    yield f"{study.space.n_designs:,} designs, resolution {study.envelope.search.resolution_frac:g} of each range."
    yield ""
    yield "| frontier points | boxes | solves | largest gap | unproven | time, 2 workers | driver | largest worker |"
    yield "|---|---|---|---|---|---|---|---|"
    yield (
        f"| {len(exact.plans)} | {exact.boxes} | {exact.solves} | {gap:.1g} | {len(exact.unproven)} | {spent:.0f} s | "
        f"{own:.0f} MiB | {workers:.0f} MiB |"
    )
    yield ""
    yield "Hypervolume as a share of the exact frontier's, at its wall time, seeds " + ", ".join(map(str, SEEDS)) + "."
    yield ""
    yield "| method | trials | share of the exact hypervolume |"
    yield "|---|---|---|"
    reference = exact.points.max(axis=0) + 0.01 * np.abs(exact.points.max(axis=0))
    whole = hypervolume(exact.points, reference)
    yield f"| exact programs | - | {1:.4f} |"
    makers: dict[str, Any] = {
        "NSGA-II, one design a trial": lambda seed: optuna.samplers.NSGAIISampler(seed=seed),
        "TPE, multivariate, one design a trial": lambda seed: optuna.samplers.TPESampler(seed=seed, multivariate=True),
        "random, one design a trial": lambda seed: optuna.samplers.RandomSampler(seed=seed),
    }
    for name, make in makers.items():
        runs = [sampled(study, make(seed), spent) for seed in SEEDS]
        shares = ", ".join(f"{hypervolume(points, reference) / whole:.4f}" for points, _ in runs)
        yield f"| {name} | {', '.join(f'{n:,}' for _, n in runs)} | {shares} |"
    found = search.explore(study, workers=1, address="local", report=silent, stop=Stop(time_limit_s=spent))
    share = hypervolume(found.points, reference) / whole
    yield f'| `method = "optuna"`, a block a trial | {found.trials:,} | {share:.4f} |'


if __name__ == "__main__":
    for line in frontier_tables():
        print(line, flush=True)
