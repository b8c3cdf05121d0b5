"""Large spaces are pruned without loss: the frontier is that of full enumeration."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import small_study
from random_spaces import random_space

from dse import exhaustive, explore
from dse.pareto import GatheredFront, nondominated
from dse.progress import Stop, silent
from dse.resolve import Study
from search_spaces import partial_fleets
from search_spaces.partial_fleets import Parts, added, best_of_tiles, front_of, in_tiles, joined


def check(seed: int) -> bool:
    """Whether a random space can be pruned; then its frontier must be that of every design looked at."""
    study = Study.from_dict(random_space(seed))
    if exhaustive.pruning_refusal(study):
        return False
    every = exhaustive.enumerate_all(study, workers=1, address="local", report=silent, stop=Stop())
    some = exhaustive.explore_pruned(study, report=silent, stop=Stop())
    expected = np.unique(every.points, axis=0)
    found = np.unique(some.points, axis=0)
    assert found.shape == expected.shape
    assert np.allclose(found, expected, rtol=1e-9, atol=0.0)
    assert len(found) == len(some.points), "one design a point"
    assert study.space.legal(some.index).all()
    return True


def test_quick_random_spaces_have_the_frontier_of_full_enumeration() -> None:
    assert sum(check(seed) for seed in range(30)) >= 20


@pytest.mark.slow
def test_random_spaces_have_the_frontier_of_full_enumeration() -> None:
    assert sum(check(seed) for seed in range(1000, 1300)) >= 200
