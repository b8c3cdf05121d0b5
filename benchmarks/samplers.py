"""Hypervolume against time: enumeration, exact programs, our search, plain samplers, random, and pymoo's NSGA-II.

Run alone: `python benchmarks/samplers.py`, some fifteen minutes. Two spaces, both of `six_kinds.toml`: four of its
pools, and all six with finer axes. The exact front of either is enumerated, of the larger by pruning. pymoo lives in an
environment of its own.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from numpy.typing import NDArray
from watching import python_of

from dse import exhaustive, frontier, search
from dse.columns import OBJECTIVE_SENSE
from dse.pareto import RunningFront, hypervolume, minimised
from dse.progress import Stop, silent
from dse.resolve import Study
from dse.screening import absorbed, judged

HERE = Path(__file__).parent
SEEDS = (0, 1, 2)
PYMOO = ("pymoo==0.6.2",)
SEARCH = '`method = "optuna"`'
Floats = NDArray[np.float64]
Front = tuple[Floats, int]
"""Points, and how many designs were scored (or programs solved) for them."""
Method = Callable[[Study, int, float], Front]


def enumerable() -> Study:
    """Four pools of the six: about 1e7 designs."""
    study = Study.load(HERE / "six_kinds.toml")
    pools = study.envelope.model_dump(mode="json", exclude_unset=True)["pool"]
    return study.changed({"pool": [pools[i] for i in (1, 2, 3, 5)], "compute.workers": 1})


def large() -> Study:
    """Six pools up to 96 devices, wafers up to 40, eight counts of links: about 1e12 designs."""
    study = Study.load(HERE / "six_kinds.toml")
    pools = study.envelope.model_dump(mode="json", exclude_unset=True)["pool"]
    most = [96, 96, 96, 96, 96, 40]
    pools = [p | {"count": p["count"] | {"max": n}} for p, n in zip(pools, most, strict=True)]
    return study.changed({"pool": pools, "link.count": [1, 2, 3, 4, 6, 8, 12, 16], "compute.workers": 1})


def enumerated(study: Study, _: int, time_s: float) -> Front:
    """The grid from its start, or joined pool by pool where it is large."""
    found = exhaustive.explore(study, workers=1, address="local", report=silent, stop=Stop(time_limit_s=time_s))
    return found.points, found.candidates


def solved(study: Study, _: int, time_s: float) -> Front:
    """Exact programs, the widest gaps first."""
    found = frontier.explore(study, report=silent, stop=Stop(time_limit_s=time_s))
    return found.points, found.solves


def searched(study: Study, seed: int, time_s: float) -> Front:
    """`method = "optuna"`."""
    seeded = study.changed({"search.seed": seed})
    stop = Stop(time_limit_s=time_s)
    found = search.explore(seeded, workers=1, address="local", report=silent, stop=stop)
    return found.points, found.candidates


def drawn(study: Study, seed: int, time_s: float, most: float = np.inf) -> Front:
    """Random designs, screened as fast as the search screens its own."""
    rng, started, n = np.random.default_rng(seed), time.perf_counter(), 0
    front = RunningFront(len(study.envelope.objectives.names))
    while time.perf_counter() - started < time_s and n < most:
        found = judged(study, np.unique(study.space.drawn(rng, 4096)), front)
        front, n = absorbed(front, found.points, found.index), n + found.candidates
    return front.points, n


def a_design_a_trial(make: Callable[[int], optuna.samplers.BaseSampler]) -> Method:
    """A sampler as a user of plain Optuna would run it; legality is a constraint."""

    def run(study: Study, seed: int, time_s: float) -> Front:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        space, objectives = study.space, study.envelope.objectives.names
        directions = ["maximize" if OBJECTIVE_SENSE[o] == "max" else "minimize" for o in objectives]
        trials = optuna.create_study(directions=directions, sampler=make(seed))
        front, started, n = RunningFront(len(objectives)), time.perf_counter(), 0
        while time.perf_counter() - started < time_s:
            trial = trials.ask()
            digits = [trial.suggest_int(name, 0, size - 1) for name, size in space.digit_axes]
            index = grid_index(study, np.array([digits]))
            screen, legal = space.screen_designs(index)
            good = bool(legal[0] and screen.feasible[0])
            trial.set_constraint("runs", -1.0 if good else 1.0)
            trials.tell(trial, [float(screen.columns[o][0]) for o in objectives])
            if good:
                front.merge(minimised(screen.columns, objectives), index)
            n += 1
        return front.points, n

    return run


def grid_index(study: Study, digits: NDArray[np.int64]) -> NDArray[np.int64]:
    """Grid indices of designs given by their digits, one regime."""
    grid: Any = study.space.grid  # type: ignore[attr-defined]
    index: NDArray[np.int64] = grid.encode(0, digits[:, 1], list(digits[:, 2:].T))
    return index


def pymoo_nsga2(study: Study, seed: int, time_s: float) -> Front:
    """NSGA-II of pymoo, 200 designs a generation, scored by our screen in one call; every design it saw counts."""
    from pymoo.algorithms.moo.nsga2 import NSGA2
    from pymoo.core.problem import Problem
    from pymoo.operators.crossover.sbx import SBX
    from pymoo.operators.mutation.pm import PM
    from pymoo.operators.repair.rounding import RoundingRepair
    from pymoo.operators.sampling.rnd import IntegerRandomSampling
    from pymoo.optimize import minimize

    space, objectives = study.space, study.envelope.objectives.names
    sizes = np.array([size for _, size in space.digit_axes])
    seen: dict[str, Any] = {"front": RunningFront(len(objectives)), "n": 0}

    class Designs(Problem):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(n_var=len(sizes), n_obj=len(objectives), n_ieq_constr=1, xl=0, xu=sizes - 1, vtype=int)

        def _evaluate(self, x: Any, out: dict[str, Any], *_: Any, **__: Any) -> None:
            index = grid_index(study, np.asarray(x, dtype=np.int64))
            screen, legal = space.screen_designs(index)
            good = legal & screen.feasible
            out["F"], out["G"] = minimised(screen.columns, objectives), np.where(good, -1.0, 1.0)
            seen["front"] = absorbed(seen["front"], out["F"][good], index[good])
            seen["n"] += len(index)

    repair = RoundingRepair()
    algorithm = NSGA2(
        pop_size=200,
        sampling=IntegerRandomSampling(),
        crossover=SBX(prob=0.9, eta=10, vtype=float, repair=repair),
        mutation=PM(eta=10, vtype=float, repair=repair),
        eliminate_duplicates=True,
    )
    minimize(Designs(), algorithm, ("time", time_s), seed=seed, verbose=False)
    return seen["front"].points, seen["n"]


def methods(*, small: bool) -> dict[str, tuple[Method, bool]]:
    """Name -> method, and whether it depends on a seed."""
    known: dict[str, tuple[Method, bool]] = {
        "enumeration" if small else "enumeration, pruned": (enumerated, False),
        "exact programs": (solved, False),
        SEARCH: (searched, True),
        "random, screened by the thousand": (drawn, True),
        "Optuna NSGA-II, a design a trial": (a_design_a_trial(lambda s: optuna.samplers.NSGAIISampler(seed=s)), True),
        "Optuna TPE, multivariate, a design a trial": (
            a_design_a_trial(lambda s: optuna.samplers.TPESampler(seed=s, multivariate=True)),
            True,
        ),
        "Optuna random, a design a trial": (a_design_a_trial(lambda s: optuna.samplers.RandomSampler(seed=s)), True),
    }
    for packages in Path(python_of("pymoo", PYMOO)).parents[1].glob("lib/python*/site-packages"):
        sys.path.append(str(packages))  # last: all but pymoo and what only it needs comes from the project
        known["pymoo NSGA-II, 200 a generation"] = (pymoo_nsga2, True)
    return known


def table(study: Study, marks_s: tuple[float, ...], *, small: bool) -> Iterator[str]:
    """Share of the exact hypervolume that each method has after so many seconds, seed by seed."""
    started = time.perf_counter()
    exact, n = enumerated(study, 0, np.inf)
    spent_s = time.perf_counter() - started
    distinct = len(np.unique(exact, axis=0))
    yield f"{study.space.n_designs:,} designs, {distinct:,} points on the exact frontier, found in {spent_s:.1f} s " + (
        f"({n:,} designs looked at)." if small else f"by pruning ({n:,} fleets and parts of fleets compared)."
    )
    yield ""
    rows: dict[str, list[list[Front]]] = {}
    for name, (method, seeded) in methods(small=small).items():
        rows[name] = [[method(study, seed, mark) for seed in (SEEDS if seeded else SEEDS[:1])] for mark in marks_s]
    searched_most = zip(SEEDS, rows[SEARCH][-1], strict=True)
    equal = [drawn(study, seed, np.inf, most=n) for seed, (_, n) in searched_most]
    rows["random, as many designs as the search"] = [*[[] for _ in marks_s[1:]], equal]
    reference = exact.max(axis=0) + 0.01 * np.abs(exact.max(axis=0))
    whole = hypervolume(exact, reference)
    yield f"| method | {' | '.join(f'{mark:g} s' for mark in marks_s)} | designs or solves at the end |"
    yield "|---" * (len(marks_s) + 2) + "|"
    for name, row in rows.items():
        cells = [", ".join(f"{hypervolume(p, reference) / whole:.4f}" for p, _ in fronts) or "-" for fronts in row]
        yield f"| {name} | {' | '.join(cells)} | {', '.join(f'{n:,}' for _, n in row[-1])} |"


def sampler_tables() -> Iterator[str]:
    """Both spaces."""
    yield "Share of the exact hypervolume after so many seconds; seeds 0, 1, 2."
    for study, marks_s in ((enumerable(), (1.0, 2.0, 5.0)), (large(), (5.0, 20.0))):
        yield ""
        yield from table(study, marks_s, small=len(marks_s) == 3)


if __name__ == "__main__":
    for line in sampler_tables():
        print(line, flush=True)
