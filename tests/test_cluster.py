"""Work units: here, and on Ray with the same result."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from conftest import small_study

from dse import cluster, exhaustive
from dse.errors import InputError
from dse.progress import Stop, silent
from dse.resolve import Study


def triple(shared: int, unit: int) -> int:
    return shared * unit


def test_units_run_here_in_order() -> None:
    with cluster.Workers(triple, 3) as pool:
        assert list(pool.map([1, 2, 5])) == [(0, 3), (1, 6), (2, 15)]


def test_little_work_never_starts_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("Ray was started")

    monkeypatch.setattr(cluster.Workers, "_start", refuse)
    with cluster.Workers(triple, 2, workers=2) as pool:
        assert dict(pool.map([4], estimated_s=1.0)) == {0: 8}


def test_a_cluster_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "WORTH_RAY_S", 0.0)
    with (
        pytest.raises(InputError, match=r"no Ray cluster answers at '127.0.0.1:1'"),
        cluster.Workers(triple, 2, workers=2, address="127.0.0.1:1") as pool,
    ):
        list(pool.map([1]))


@pytest.mark.slow
def test_two_workers_give_the_same_frontier() -> None:
    raw = small_study(
        pool=[
            {"device": "a100-40gb-sxm", "name": "gpu", "count": {"min": 0, "max": 900}},
            {"device": "wse-3", "name": "wse", "count": {"min": 0, "max": 90}},
        ]
    )
    study = Study.from_dict(raw)
    alone = exhaustive.explore(study, workers=1, address="local", report=silent, stop=Stop())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray warns about its own future defaults
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(cluster, "WORTH_RAY_S", 0.0)
            shared = exhaustive.explore(study, workers=2, address="local", report=silent, stop=Stop())
    assert shared.index.tolist() == alone.index.tolist()
    assert shared.candidates == alone.candidates
