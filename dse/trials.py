"""The only door to Optuna: the study in memory, its samplers, and its journal for optuna-dashboard.

The study lives on the driver. Its sampler is made anew for every generation, seeded by the study's seed and the
generation's number, so that a search that continues from a checkpoint draws what it would have drawn. The journal file
is written in bulk: an append per trial would cost more than the trial.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution, IntDistribution
from optuna.samplers import BaseSampler, NSGAIISampler, RandomSampler, TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial

from dse.columns import OBJECTIVE_SENSE
from dse.errors import InputError

Ints = NDArray[np.int64]

TPE_TRIALS = 2000
"""Up to here multivariate TPE; beyond, its overhead grows faster than NSGA-II's."""
STARTUP_TRIALS = 64
POPULATION = 32


class ScreeningSampler(BaseSampler):
    """Proposes designs that an archive search has screened; where none is offered, random ones."""

    def __init__(self, axes: Sequence[tuple[str, int]], seed: int) -> None:
        self._space: dict[str, BaseDistribution] = {name: IntDistribution(0, size - 1) for name, size in axes}
        self._offered: list[dict[str, int]] = []
        self._random = RandomSampler(seed=seed)

    def offer(self, digits: Ints) -> None:
        """The designs (N, axes) that the next trials take, in their order."""
        self._offered += [dict(zip(self._space, row, strict=True)) for row in digits.tolist()]

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:  # noqa: ARG002
        """All axes, always: a design is offered whole."""
        return dict(self._space)

    def sample_relative(
        self,
        study: optuna.Study,  # noqa: ARG002
        trial: FrozenTrial,  # noqa: ARG002
        search_space: dict[str, BaseDistribution],  # noqa: ARG002
    ) -> dict[str, Any]:
        """The next design offered."""
        return self._offered.pop(0) if self._offered else {}

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """What was not offered is drawn at random."""
        return self._random.sample_independent(study, trial, param_name, param_distribution)


class Trials:
    """One Optuna study in memory: trials asked and told in generations, kept in a journal on request."""

    def __init__(self, name: str, objectives: Sequence[str], journal: Path | None) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._name, self._journal = name, journal
        self._directions = [
            StudyDirection.MAXIMIZE if OBJECTIVE_SENSE[o] == "max" else StudyDirection.MINIMIZE for o in objectives
        ]
        self._study = optuna.create_study(directions=self._directions, study_name=name)
        self._stored: optuna.Study | None = None
        self._n_stored = 0

    def __len__(self) -> int:
        return len(self._study.get_trials(deepcopy=False))

    def state(self) -> list[dict[str, Any]]:
        """All trials told, as plain values, in their order."""
        return [
            {
                "params": t.params,
                "highs": {name: d.high for name, d in t.distributions.items() if isinstance(d, IntDistribution)},
                "values": t.values,
                "attrs": t.system_attrs,
            }
            for t in self._told()
        ]

    def restore(self, state: Sequence[Mapping[str, Any]]) -> None:
        """Takes over the trials of a search that was stopped."""
        self._study.add_trials(
            create_trial(
                params=dict(t["params"]),
                distributions={name: IntDistribution(0, high) for name, high in t["highs"].items()},
                values=t["values"],
                system_attrs=dict(t["attrs"]),
            )
            for t in state
        )

    def _told(self) -> list[FrozenTrial]:
        return list(self._study.get_trials(deepcopy=False, states=[TrialState.COMPLETE]))

    def purchases(
        self, seed: int, generation: int, n_trials: int, enqueued: Sequence[Mapping[str, int]], size: int
    ) -> list[Trial]:
        """Trials of one generation among purchases; `n_trials`, all that are wanted, says by which sampler."""
        drawn_by = int(np.random.default_rng((seed, generation)).integers(2**32))
        sampler: BaseSampler = NSGAIISampler(seed=drawn_by, population_size=POPULATION)
        if n_trials <= TPE_TRIALS:
            sampler = TPESampler(seed=drawn_by, multivariate=True, n_startup_trials=STARTUP_TRIALS)
        self._study.sampler = sampler
        for purchase in enqueued:
            self._study.enqueue_trial(dict(purchase))
        return [self._study.ask() for _ in range(size)]

    def designs(self, axes: Sequence[tuple[str, int]], seed: int, digits: Ints) -> list[Trial]:
        """Trials of one generation among screened designs (N, axes)."""
        sampler = ScreeningSampler(axes, seed)
        sampler.offer(digits)
        self._study.sampler = sampler
        trials = [self._study.ask() for _ in range(len(digits))]
        for trial in trials:
            for name, size in axes:
                trial.suggest_int(name, 0, size - 1)
        return trials

    def tell(self, trial: Trial, values: Sequence[float], constraints: Mapping[str, float]) -> None:
        """A trial's objectives in their own senses, and its constraints (at most 0 where met)."""
        for name, value in constraints.items():
            trial.set_constraint(name, value)
        self._study.tell(trial, list(values))

    def persist(self) -> None:
        """Appends to the journal the trials that it lacks; the first call writes it anew.

        A journal that a killed run left may end in half a line, and may be ahead of the checkpoint.
        """
        if self._journal is None:
            return
        try:
            if self._stored is None:
                self._journal.parent.mkdir(parents=True, exist_ok=True)
                self._journal.unlink(missing_ok=True)
                for lock in self._journal.parent.glob(f"{self._journal.name}.lock*"):  # of a run that was killed
                    lock.unlink()
                storage = JournalStorage(JournalFileBackend(str(self._journal)))
                self._stored = optuna.create_study(storage=storage, study_name=self._name, directions=self._directions)
            trials = self._told()
            self._stored.add_trials(trials[self._n_stored :])
            self._n_stored = len(trials)
        except OSError as error:
            raise InputError(f"{self._journal}: cannot be written: {error.strerror}") from None
