"""The Optuna explorer: generations of fixed size, until nothing is left, nothing is gained, or time is up.

Two ways to search, chosen by the size of the space alone:

- among purchases (`dse.purchases`): a trial is a block of all designs that buy the same. Where the trials reach
  every purchase and a block is small, or where a design costs a linear program;
- among designs (`dse.screening`): an archive search screens designs by the thousand; Optuna is told of the best. Where
  the space is only large.

Either starts from the ends of the frontier that exact programs find, where the study has some and they are
quick. What a generation does depends on the seed, its number and the generations before it, so a seed gives
the same result on any number of workers, and a search that was stopped goes on as if it had not been.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dse import frontier
from dse.checkpoint import Checkpoint
from dse.cluster import Workers
from dse.convergence import GENERATION, Convergence
from dse.errors import MethodError
from dse.pareto import RunningFront
from dse.progress import PartStop, Progress, Report, Stop, silent
from dse.purchases import Purchases, n_purchases
from dse.resolve import Study
from dse.screening import Archive, Screened

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MOST_PURCHASES = 100_000
MOST_BLOCK = 4096
"""Larger blocks are searched, not scored whole."""
SAVE_EVERY_S = 5.0
"""Between two writes of the journal, where no checkpoint says when."""


@dataclass(slots=True)
class Sampled:
    """What a search found."""

    index: Ints
    points: Floats
    candidates: int = 0
    trials: int = 0
    nearest: int = -1
    history: list[list[float]] = field(default_factory=list)
    """[seconds, designs scored, hypervolume as a share of the last] per generation."""
    converged: bool = False
    """The stopping rule ended the search."""


def refusal(study: Study) -> str:
    """Why the search cannot see every design of this study; empty where it can."""
    refused = study.space.numbering_refusal
    return f"optuna: {refused}" if refused else ""


def among_purchases(study: Study) -> bool:
    """Whether trials are purchases; else they are single designs."""
    if study.space.largest_inner > MOST_BLOCK:
        return False
    few = n_purchases(study) <= min(study.envelope.search.trials, MOST_PURCHASES)
    return few or bool(study.space.enumeration_refusal)


def explore(
    study: Study,
    *,
    workers: int,
    address: str,
    report: Report,
    stop: Stop,
    checkpoint: Checkpoint | None = None,
    journal: Path | None = None,
) -> Sampled:
    """Multi-objective search; the archive keeps every design worth keeping."""
    refused = refusal(study)
    if refused:
        raise MethodError(refused)
    search = _Search(study, report, stop, checkpoint, journal)
    with Workers(search.mode.work, study, workers=workers, address=address) as pool:
        search.run(pool)
    return search.found()


class _Search:
    """One search: its mode, its trials, and how it converges."""

    def __init__(
        self, study: Study, report: Report, stop: Stop, checkpoint: Checkpoint | None, journal: Path | None
    ) -> None:
        from dse.trials import Trials

        self.study, self.report, self.stop, self.checkpoint = study, report, stop, checkpoint
        self.rule = study.envelope.search
        n_objectives = len(study.envelope.objectives.names)
        self.trials = Trials(study.name, study.envelope.objectives.names, journal)
        front = RunningFront(n_objectives)
        self.mode: Purchases | Screened = (
            Purchases(study, self.trials, front)
            if among_purchases(study)
            else Screened(study, self.trials, Archive(front))
        )
        self.convergence = Convergence(n_objectives)
        self.generation, self.before_s = 0, 0.0
        self.saved_s = time.monotonic()

    @property
    def elapsed_s(self) -> float:
        """Seconds of the search, those before a stop included."""
        return self.before_s + self.stop.elapsed_s

    @property
    def n_generations(self) -> int:
        """Generations that the study's trials allow."""
        return math.ceil(self.rule.trials / GENERATION)

    @property
    def converged(self) -> bool:
        """Whether the last generations gained too little. Not asked where every purchase is tried anyway."""
        if self.mode.reaches_all:
            return False
        return self.convergence.gain_frac(self.rule.stop_generations) <= self.rule.stop_gain_frac

    def run(self, pool: Workers[Study, Any, Any]) -> None:
        """All generations, from the checkpoint on."""
        saved = self.checkpoint.load() if self.checkpoint else None
        if saved is not None:
            self._restore(saved)
        elif self.rule.warm_start:
            self._warm_start()
        while not (self.generation >= self.n_generations or self.mode.exhausted or self.converged):
            if self.stop.asked():
                break
            size = min(GENERATION, self.rule.trials - self.generation * GENERATION)
            self.mode.generation(self.generation, size, pool)
            self.generation += 1
            front = self.mode.front
            self.convergence.add(front.points, front.index, self.elapsed_s, self.mode.candidates)
            self._report()
            if self.checkpoint.due() if self.checkpoint else time.monotonic() - self.saved_s >= SAVE_EVERY_S:
                self._save()
        self._save()

    def found(self) -> Sampled:
        """What the search found, in the order of the grid."""
        front = self.mode.front
        order = np.argsort(front.index, kind="stable")
        return Sampled(
            index=front.index[order],
            points=front.points[order],
            candidates=self.mode.candidates,
            trials=len(self.trials),
            nearest=self.mode.nearest,
            history=self.convergence.history(),
            converged=self.converged,
        )

    def _warm_start(self) -> None:
        """The best designs in each objective alone, from the study's exact programs."""
        if self.study.space.n_options > self.study.paradigm.quick_options or frontier.refusal(self.study):
            return
        ends = self.study.changed({"search.resolution_frac": 1.0, "compute.workers": 1})
        left = PartStop(time_limit_s=max(self.stop.left_s, 1e-3), whole=self.stop)
        plans = frontier.explore(ends, report=silent, stop=left).plans
        index = sorted({p.index for p in plans if p.index is not None})
        if index:
            self.mode.seed(np.array(index, dtype=np.int64))

    def _save(self) -> None:
        self.saved_s = time.monotonic()
        self.trials.persist()
        if self.checkpoint is not None:
            state = {
                "generation": self.generation,
                "elapsed_s": self.elapsed_s,
                "trials": self.trials.state(),
                **self.convergence.state(),
                **self.mode.state(),
            }
            self.checkpoint.save(state)

    def _restore(self, state: dict[str, Any]) -> None:
        self.mode.restore(state)
        self.trials.restore(state["trials"])
        self.convergence.restore(state, self.mode.front.points)
        self.generation, self.before_s = state["generation"], state["elapsed_s"]

    def _report(self) -> None:
        self.report(
            Progress(
                method="optuna",
                done=min(self.generation * GENERATION, self.rule.trials),
                total=self.rule.trials,
                candidates=self.mode.candidates,
                front=len(self.mode.front),
                elapsed_s=self.elapsed_s,
                note=", ".join(filter(None, (self.mode.note, self._gain_text()))),
            )
        )

    def _gain_text(self) -> str:
        """How much the last generations gained, beside what ends the search."""
        gain = self.convergence.gain_frac(self.rule.stop_generations)
        if self.mode.reaches_all or not np.isfinite(gain):
            return ""
        last = self.rule.stop_generations
        return f"hypervolume +{gain:.2g} in {last} generations (ends at {self.rule.stop_gain_frac:g})"
