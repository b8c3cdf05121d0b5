"""Search over purchases: a trial draws what is bought, the model sets it up best.

A trial is a block, not one design: Optuna draws the outer structure (regime, devices per pool); all inner axes
(instance size, role, batches, link) are scored in one call, so a trial's values are the best that this purchase can do.
Limits are constraints, never penalties. Half of each generation after the first is enqueued one step along one axis
from a front design: the sampler finds regions, the steps finish them. Where the trials reach every purchase, most of a
generation is enqueued, filled up with purchases not yet seen, and by the end all have been scored.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dse.cluster import Workers
from dse.columns import OBJECTIVE_SENSE
from dse.convergence import GENERATION
from dse.pareto import RunningFront, minimised
from dse.resolve import Study
from dse.scoring import bounds_of, serves, violation, within_bounds

if TYPE_CHECKING:
    from dse.trials import Trials

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Outer = tuple[int, ...]

TRIAL_S = 5e-3
"""Seconds of one trial, block and sampler together, for estimates (benchmarks/RESULTS.md)."""


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


def run_block(study: Study, outer: Outer) -> Block:
    """Scores every inner design of one outer structure. What a worker runs."""
    objectives, bounds = study.envelope.objectives.names, bounds_of(study)
    index = study.space.inner(outer)
    worst = tuple(0.0 if OBJECTIVE_SENSE[o] == "max" else 1e300 for o in objectives)
    if not len(index):
        return Block(
            points=np.empty((0, len(objectives))),
            index=np.empty(0, dtype=np.int64),
            candidates=0,
            values=worst,
            constraints={"legal": 1.0, **dict.fromkeys(bounds, 1.0)},
            nearest=-1,
            nearest_violation=np.inf,
        )
    columns = study.space.numbers(index)
    points, served = minimised(columns, objectives), serves(columns)
    good = np.asarray(served & within_bounds(columns, bounds, exact=True))
    front = RunningFront(len(objectives))
    front.merge(points[good], index[good])
    broken = np.where(served, np.broadcast_to(violation(columns, bounds), served.shape), np.inf)
    broken = np.where(np.isnan(broken), np.inf, broken)
    nearest = int(broken.argmin())
    chosen = int(np.lexsort((points[:, 0], ~good))[0]) if good.any() else nearest
    constraints = {"legal": -1.0 if served[chosen] else 1.0}
    for name, (low, high) in bounds.items():
        value = columns[name][chosen]
        broken_by = 1e9 if np.isnan(value) else float(violation({name: value}, {name: (low, high)}))
        constraints[name] = min(broken_by, 1e9) if broken_by else -1.0
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


@dataclass(slots=True)
class Purchases:
    """The search among purchases, generation by generation."""

    study: Study
    trials: Trials
    front: RunningFront
    blocks: dict[Outer, Block] = field(default_factory=dict)
    owner: dict[int, Outer] = field(default_factory=dict)
    """The purchase of each design that was on a front."""
    candidates: int = 0
    nearest: int = -1
    nearest_violation: float = float("inf")

    work = staticmethod(run_block)

    @property
    def estimated_s(self) -> float:
        """About how long all trials take."""
        return self.study.envelope.search.trials * TRIAL_S

    @property
    def n_purchases(self) -> int:
        """Purchases that the space has."""
        return n_purchases(self.study)

    @property
    def reaches_all(self) -> bool:
        """Whether the trials reach every purchase, so that the search ends when it has seen them all."""
        return self.n_purchases <= self.study.envelope.search.trials

    @property
    def exhausted(self) -> bool:
        """Whether no purchase is left."""
        return len(self.blocks) >= self.n_purchases

    @property
    def note(self) -> str:
        """Where the search is, in words."""
        return f"{len(self.blocks)} of {self.n_purchases:.4g} purchases"

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps: the blocks, side by side."""
        blocks, n_objectives = list(self.blocks.values()), self.front.points.shape[1]
        return {
            "outer": np.array(list(self.blocks), dtype=np.int64).reshape(len(blocks), len(self.study.space.outer_axes)),
            "block_points": np.concatenate([np.empty((0, n_objectives)), *(b.points for b in blocks)]),
            "block_index": np.concatenate([np.empty(0, dtype=np.int64), *(b.index for b in blocks)]),
            "block_size": np.array([len(b.index) for b in blocks], dtype=np.int64),
            "block_candidates": np.array([b.candidates for b in blocks], dtype=np.int64),
            "block_values": np.array([b.values for b in blocks], dtype=np.float64).reshape(-1, n_objectives),
            "block_constraints": [b.constraints for b in blocks],
            "block_nearest": np.array([b.nearest for b in blocks], dtype=np.int64),
            "block_violation": np.array([b.nearest_violation for b in blocks], dtype=np.float64),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Goes on from a checkpoint."""
        ends = np.cumsum(state["block_size"])
        for i, (outer, last, size) in enumerate(zip(state["outer"].tolist(), ends, state["block_size"], strict=True)):
            block = Block(
                points=state["block_points"][last - size : last],
                index=state["block_index"][last - size : last],
                candidates=int(state["block_candidates"][i]),
                values=tuple(state["block_values"][i].tolist()),
                constraints=state["block_constraints"][i],
                nearest=int(state["block_nearest"][i]),
                nearest_violation=float(state["block_violation"][i]),
            )
            self._take(tuple(outer), block)

    def seed(self, index: Ints) -> None:
        """Scores the purchases of these designs before the first generation."""
        for design in index.tolist():
            outer = self.study.space.outer_of(design)
            if outer not in self.blocks:
                self._take(outer, run_block(self.study, outer))

    def generation(self, number: int, size: int, pool: Workers[Study, Outer, Block]) -> None:
        """Asks, runs and tells trials."""
        search = self.study.envelope.search
        names = [name for name, _ in self.study.space.outer_axes]
        enqueued = self._enqueued(number, size)
        if number == 0:
            enqueued = [*self.blocks, *enqueued][:size]
        asked = self.trials.purchases(
            search.seed, number, search.trials, [dict(zip(names, outer, strict=True)) for outer in enqueued], size
        )
        drawn = [self.study.space.suggest(trial) for trial in asked]
        fresh = list(dict.fromkeys(outer for outer in drawn if outer not in self.blocks))
        landed = dict(pool.map(fresh, estimated_s=self.estimated_s))
        for position, outer in enumerate(fresh):
            self._take(outer, landed[position])
        for trial, outer in zip(asked, drawn, strict=True):
            self.trials.tell(trial, self.blocks[outer].values, self.blocks[outer].constraints)

    def _take(self, outer: Outer, block: Block) -> None:
        self.blocks[outer] = block
        self.candidates += block.candidates
        if block.nearest >= 0 and block.nearest_violation < self.nearest_violation:
            self.nearest, self.nearest_violation = block.nearest, block.nearest_violation
        self.front.merge(block.points, block.index)
        self.owner.update(dict.fromkeys(block.index.tolist(), outer))

    def _enqueued(self, number: int, size: int) -> Sequence[Outer]:
        """Purchases not yet seen: one step along one axis from a purchase on the front; then any, if all are due."""
        rng = np.random.default_rng((self.study.envelope.search.seed, number, 1))
        steps = self._steps()
        unseen = self.n_purchases - len(self.blocks)
        left = self.study.envelope.search.trials - number * GENERATION
        most = size // 2
        if self.reaches_all:
            # the sampler draws what was seen already too; its trials must leave enough for the rest
            most = min(size if unseen > left - size else size - size // 8, unseen)
        chosen = [steps[i] for i in rng.permutation(len(steps))[:most]]
        if not self.reaches_all:
            return chosen
        taken = set(chosen)
        shape = [len(values) for _, values in self.study.space.outer_axes]
        for flat in rng.permutation(self.n_purchases):
            if len(chosen) >= most:
                break
            outer = tuple(int(i) for i in np.unravel_index(flat, shape))
            if outer not in self.blocks and outer not in taken:
                chosen.append(outer)
        return chosen

    def _steps(self) -> list[Outer]:
        """Purchases one step from the front's, not yet seen."""
        axes = self.study.space.outer_axes
        homes = list(dict.fromkeys(self.owner[i] for i in self.front.index.tolist()))
        steps: dict[Outer, None] = {}
        for home, (axis, (_, values)), move in itertools.product(homes, enumerate(axes), (-1, 1)):
            position = home[axis] + move
            if 0 <= position < len(values):
                outer = (*home[:axis], position, *home[axis + 1 :])
                if outer not in self.blocks:
                    steps[outer] = None
        return list(steps)


def n_purchases(study: Study) -> int:
    """Purchases that a study's space has."""
    return math.prod(len(values) for _, values in study.space.outer_axes)
