"""Exhaustive exploration: the exact frontier of a grid, by looking at every design or at those that can matter."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dse.checkpoint import Checkpoint
from dse.enumeration import Found, enumerate_all
from dse.errors import MethodError
from dse.progress import Report, Stop
from dse.pruning import explore_pruned, prunes
from dse.resolve import Study
from search_spaces.partial_fleets import TooManyPartsError

ENUMERABLE = 10_000_000_000
"""Designs that can be looked at one by one: some ten minutes on one core."""


def refusal(study: Study) -> str:
    """Why enumeration cannot answer this study exactly; empty where it can."""
    refused = study.space.enumeration_refusal
    return f"exhaustive: {refused}" if refused else ""


def explore(
    study: Study, *, workers: int, address: str, report: Report, stop: Stop, checkpoint: Checkpoint | None = None
) -> Found:
    """The exact frontier of the whole grid; a checkpoint keeps what enumeration has found (pruning takes seconds)."""
    refused = refusal(study)
    if refused:
        raise MethodError(refused)
    if prunes(study):
        if checkpoint:
            checkpoint.load()  # refuses that of another run; nothing is kept of pruning
        try:
            return explore_pruned(study, report=report, stop=stop)
        except TooManyPartsError as error:
            if study.space.n_designs > ENUMERABLE:
                raise MethodError(f'exhaustive: {error}; shorten an axis, or use method = "optuna"') from None
    return enumerate_all(study, workers=workers, address=address, report=report, stop=stop, checkpoint=checkpoint)


def sample_index(n_designs: int, most: int) -> NDArray[np.int64]:
    """Grid indices to keep beside the front: all of a small space, an even sample of a large one."""
    if n_designs <= most:
        return np.arange(n_designs, dtype=np.int64)
    return np.unique(np.linspace(0, n_designs - 1, most).astype(np.int64))
