"""The only door to Optuna: a trial draws what is bought, the model sets it up best.

A trial is a block, not one design: Optuna draws the outer structure (regime, devices per pool); all
inner axes (instance size, role, batches, link) are screened in one call, so a trial's values are the
best that this purchase can do. Limits are constraints, never penalties. Generations of fixed size are asked,
run and told in order, so a seed gives the same result on any number of workers. Half of each
generation after the first is enqueued one step along one axis from a front design: the sampler finds
regions, the steps finish them.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dse.cluster import Workers
from dse.columns import OBJECTIVE_SENSE
from dse.errors import MethodError
from dse.pareto import RunningFront, minimised
from dse.progress import Progress, Report, Stop
from dse.resolve import Study
from dse.scoring import bounds_of, finish, violation

if TYPE_CHECKING:
    import optuna

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Outer = tuple[int, ...]

GENERATION = 32
TRIAL_S = 5e-3
"""Seconds of one trial, block and sampler together, for estimates (benchmarks/RESULTS.md)."""
TPE_TRIALS = 2000
"""Up to here multivariate TPE; beyond, its overhead grows faster than NSGA-II's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One trial's result: its best designs, and the values and constraints of its representative."""

    points: Floats
    index: Ints
    candidates: int
    values: tuple[float, ...]
    """Objectives in their own sense, of the best feasible design, else of the one nearest to feasible."""
    constraints: dict[str, float]
    """Share by which each bound is broken; -1 where it is met."""
    nearest: int
    nearest_violation: float


@dataclass(slots=True)
class Sampled:
    """What a search found."""

    index: Ints
    points: Floats
    candidates: int = 0
    trials: int = 0
    nearest: int = -1
    nearest_violation: float = field(default=np.inf)

    def take(self, block: Block) -> None:
        """Counts a block, and keeps its nearest design if it is nearer than any before."""
        self.candidates += block.candidates
        if block.nearest >= 0 and block.nearest_violation < self.nearest_violation:
            self.nearest, self.nearest_violation = block.nearest, block.nearest_violation


def run_block(study: Study, outer: Outer) -> Block:
    """Scores every inner design of one outer structure."""
    space, objectives, bounds = study.space, study.envelope.objectives.names, bounds_of(study)
    index = space.inner(outer)
    worst = tuple(0.0 if OBJECTIVE_SENSE[o] == "max" else 1e300 for o in objectives)
    nothing = Block(
        points=np.empty((0, len(objectives))),
        index=np.empty(0, dtype=np.int64),
        candidates=0,
        values=worst,
        constraints={"legal": 1.0, **dict.fromkeys(bounds, 1.0)},
        nearest=-1,
        nearest_violation=np.inf,
    )
    if not len(index):
        return nothing
    frame = finish(study, space.score(index))
    good = frame["feasible"].to_numpy(dtype=np.bool_)
    columns = {name: frame[name].to_numpy(dtype=np.float64) for name in {*objectives, *bounds}}
    points = minimised(columns, objectives)
    served = frame["throughput_tok_s"].to_numpy(dtype=np.float64) > 0
    front = RunningFront(len(objectives))
    front.merge(points[good], index[good])
    broken = np.where(served, np.broadcast_to(violation(columns, bounds), served.shape), np.inf)
    broken = np.where(np.isnan(broken), np.inf, broken)
    nearest = int(broken.argmin())
    chosen = int(np.lexsort((points[:, 0], ~good))[0]) if good.any() else nearest
    constraints = {"legal": -1.0 if served[chosen] else 1.0}
    for name, (low, high) in bounds.items():
        value = float(columns[name][chosen])
        broken_by = float(violation({name: np.array(value)}, {name: (low, high)}))
        constraints[name] = float(np.nan_to_num(broken_by, nan=1e9, posinf=1e9)) if broken_by else -1.0
    values = tuple(
        float(np.nan_to_num(columns[o][chosen], nan=w, posinf=1e300)) for o, w in zip(objectives, worst, strict=True)
    )
    return Block(
        points=front.points,
        index=front.index,
        candidates=len(index),
        values=values,
        constraints=constraints,
        nearest=int(index[nearest]) if np.isfinite(broken[nearest]) and not good.any() else -1,
        nearest_violation=float(broken[nearest]),
    )


def refusal(study: Study) -> str:
    """Why the search cannot see every design of this study; empty where it can."""
    refused = study.space.numbering_refusal
    return f"optuna: {refused}" if refused else ""


def explore(study: Study, *, workers: int, address: str, report: Report, stop: Stop) -> Sampled:
    """Multi-objective search over purchases; the archive keeps every design worth keeping."""
    refused = refusal(study)
    if refused:
        raise MethodError(refused)
    search = study.envelope.search
    trials = _optuna_study(study)
    front = RunningFront(len(study.envelope.objectives.names))
    found = Sampled(front.index, front.points)
    rng = np.random.default_rng(search.seed)
    blocks: dict[Outer, Block] = {}
    owner: dict[int, Outer] = {}
    n_purchases = math.prod(len(values) for _, values in study.space.outer_axes)
    with Workers(run_block, study, workers=workers, address=address) as pool:
        while found.trials < search.trials and len(blocks) < n_purchases and not stop.asked():
            size = min(GENERATION, search.trials - found.trials)
            for step in _steps(study, front, owner, blocks, rng, size // 2):
                trials.enqueue_trial(step)
            asked = [trials.ask() for _ in range(size)]
            drawn = [study.space.suggest(t) for t in asked]
            fresh = list(dict.fromkeys(o for o in drawn if o not in blocks))
            landed = dict(pool.map(fresh, estimated_s=search.trials * TRIAL_S))
            for position, outer in enumerate(fresh):
                blocks[outer] = landed[position]
                found.take(landed[position])
                front.merge(landed[position].points, landed[position].index)
                owner.update(dict.fromkeys(landed[position].index.tolist(), outer))
            for trial, outer in zip(asked, drawn, strict=True):
                _tell(trials, trial, blocks[outer])
            found.trials += size
            report(_progress(found, search.trials, len(front), f"{len(blocks)} of {n_purchases:.4g} purchases", stop))
    order = np.argsort(front.index)
    found.index, found.points = front.index[order], front.points[order]
    return found


def _optuna_study(study: Study) -> optuna.Study:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    search = study.envelope.search
    sampler: optuna.samplers.BaseSampler
    if search.trials <= TPE_TRIALS:
        sampler = optuna.samplers.TPESampler(seed=search.seed, multivariate=True, n_startup_trials=2 * GENERATION)
    else:
        sampler = optuna.samplers.NSGAIISampler(seed=search.seed, population_size=GENERATION)
    senses = [OBJECTIVE_SENSE[o] for o in study.envelope.objectives.names]
    return optuna.create_study(
        directions=["maximize" if sense == "max" else "minimize" for sense in senses],
        sampler=sampler,
        study_name=study.name,
    )


def _progress(found: Sampled, n_trials: int, n_front: int, note: str, stop: Stop) -> Progress:
    return Progress(
        method="optuna",
        done=found.trials,
        total=n_trials,
        candidates=found.candidates,
        front=n_front,
        elapsed_s=stop.elapsed_s,
        note=note,
    )


def _tell(trials: optuna.Study, trial: optuna.Trial, block: Block) -> None:
    for name, value in block.constraints.items():
        trial.set_constraint(name, value)
    trials.tell(trial, block.values)


def _steps(
    study: Study,
    front: RunningFront,
    owner: dict[int, Outer],
    blocks: dict[Outer, Block],
    rng: np.random.Generator,
    most: int,
) -> list[dict[str, int]]:
    """Purchases not yet seen, one step along one axis from a purchase on the front, in a seeded order."""
    axes = study.space.outer_axes
    homes = list(dict.fromkeys(owner[i] for i in front.index.tolist()))
    if not homes:
        return []
    steps: dict[Outer, None] = {}
    for home, (axis, (_, values)), move in itertools.product(homes, enumerate(axes), (-1, 1)):
        position = home[axis] + move
        if 0 <= position < len(values):
            outer = (*home[:axis], position, *home[axis + 1 :])
            if outer not in blocks:
                steps[outer] = None
    choices = list(steps)
    picked = rng.permutation(len(choices))[:most]
    names = [name for name, _ in axes]
    return [dict(zip(names, choices[i], strict=True)) for i in picked]
