"""The search: seeds, workers, resume, constraints, the stopping rule, and what Optuna gets to see."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from conftest import small_study
from test_explorers_agree import STUDIES, brute_force, same
from test_training_explorers import STUDIES as TRAINING

from dse import exhaustive, search
from dse.convergence import Convergence
from dse.pareto import RunningFront, hypervolume
from dse.progress import Progress, Stop, silent
from dse.report.proof import convergence_rows
from dse.resolve import Study
from dse.screening import Archive, absorbed, judged

LARGE = small_study(
    pool=[
        {"device": "a100-40gb-sxm", "name": "gpu", "count": {"min": 0, "max": 400}, "instance_size": [1, 2, 4]},
        {"device": "wse-3", "name": "wse", "count": {"min": 0, "max": 40}},
    ],
    search={"trials": 192, "seed": 7, "warm_start": False},
)
"""Too many purchases for its trials: designs are screened."""
SPARSE = LARGE | {
    "workload": {"model": "llama-2-7b", "requests": LARGE["workload"]["requests"], "routing": ["work_stealing"]},
    "pool": [
        {"device": "a100-40gb-sxm", "name": "gpu", "count": {"min": 0, "max": 30}},
        {"device": "h100-80gb-sxm", "name": "h100", "count": {"min": 0, "max": 30}},
        {"device": "wse-3", "name": "wse", "count": {"min": 0, "max": 3}},
    ],
    "search": {"trials": 192, "seed": 7, "warm_start": False},
}
"""A design costs a linear program: purchases are tried."""
KINDS = {"designs": LARGE, "purchases": SPARSE}


class Kept:
    """A checkpoint in memory that takes only what a file of arrays and JSON can hold."""

    def __init__(self) -> None:
        self.state: dict[str, Any] | None = None

    def load(self) -> dict[str, Any] | None:
        return self.state

    def due(self) -> bool:
        return True

    def save(self, state: dict[str, Any]) -> None:
        arrays = {k: v.copy() for k, v in state.items() if isinstance(v, np.ndarray)}
        assert all(v.dtype != object for v in arrays.values())
        plain = {k: v for k, v in state.items() if k not in arrays}
        self.state = {**json.loads(json.dumps(plain)), **arrays}


def explored(raw: dict[str, Any], **keywords: Any) -> search.Sampled:
    settings = {"workers": 1, "address": "local", "report": silent, "stop": Stop()} | keywords
    return search.explore(Study.from_dict(raw), **settings)


def alike(a: search.Sampled, b: search.Sampled) -> bool:
    return (
        a.index.tolist() == b.index.tolist()
        and np.array_equal(a.points, b.points)
        and (a.trials, a.candidates, a.converged) == (b.trials, b.candidates, b.converged)
    )


@pytest.mark.parametrize("kind", KINDS)
def test_the_size_of_the_space_says_what_a_trial_is(kind: str) -> None:
    assert search.among_purchases(Study.from_dict(KINDS[kind])) == (kind == "purchases")


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_repeats_itself_and_a_stopped_search_goes_on_as_if_it_had_not_been(kind: str) -> None:
    raw = KINDS[kind] if kind == "designs" else KINDS[kind] | {"search": KINDS[kind]["search"] | {"trials": 128}}
    whole = explored(raw)
    stop, kept = Stop(), Kept()

    def until_the_second(p: Progress) -> None:
        if p.done >= 64:
            stop.ask("the test")

    part = explored(raw, stop=stop, report=until_the_second, checkpoint=kept)
    assert part.trials < whole.trials
    assert alike(explored(raw, checkpoint=kept), whole)
    assert len(whole.history) > len(part.history) == 2


def test_nsga2_goes_on_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dse.trials.TPE_TRIALS", 0)
    raw = SPARSE | {"search": SPARSE["search"] | {"trials": 160}}
    whole, stop, kept = explored(raw), Stop(), Kept()
    explored(raw, stop=stop, report=lambda p: stop.ask("the test") if p.done >= 96 else None, checkpoint=kept)
    assert alike(explored(raw, checkpoint=kept), whole)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_two_workers_find_what_one_finds(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dse.cluster.WORTH_RAY_S", 0.0)
    raw = KINDS[kind] | {"search": KINDS[kind]["search"] | {"trials": 64}}
    assert alike(explored(raw, workers=2), explored(raw))


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in STUDIES if not n.endswith("pools, work stealing")])
def test_screening_reaches_the_exact_frontier_of_small_studies(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "MOST_BLOCK", 0)
    monkeypatch.setattr("dse.screening.WHOLE_ROUNDS", 0)
    raw = STUDIES[name] | {"search": {"warm_start": False, "trials": 320}}
    found = explored(raw)
    assert same(found.points, brute_force(Study.from_dict(raw)))
    assert len(np.unique(found.points, axis=0)) == len(found.points)


@pytest.mark.slow
@pytest.mark.parametrize("name", TRAINING)
def test_screened_training_designs_are_scored_as_the_model_does(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "MOST_BLOCK", 0)
    raw = TRAINING[name] | {"search": {"trials": 32, "warm_start": False}}
    study, found = Study.from_dict(raw), explored(raw)
    scored = judged(study, found.index, Archive(absorbed_none(study)).front)
    assert len(found.index) > 1
    assert np.array_equal(np.unique(scored.points, axis=0), np.unique(found.points, axis=0))


def absorbed_none(study: Study) -> RunningFront:
    n = len(study.envelope.objectives.names)
    return absorbed(RunningFront(n), np.empty((0, n)), np.empty(0, dtype=np.int64))


def test_where_no_design_meets_the_limits_the_nearest_is_named() -> None:
    raw = LARGE | {"limits": {"throughput_tok_s": 1e12}}
    found = explored(raw | {"search": LARGE["search"] | {"trials": 64}})
    assert not len(found.index)
    study = Study.from_dict(raw)
    every = np.arange(study.space.n_designs)
    best = study.space.numbers(every[study.space.legal(every)])["throughput_tok_s"].max()
    assert study.space.numbers(np.array([found.nearest]))["throughput_tok_s"][0] == pytest.approx(best, rel=1e-3)


def stored(journal: Path) -> optuna.Study:
    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(journal)))
    return optuna.load_study(study_name="small", storage=storage)


def test_limits_are_constraints_of_trials_and_the_journal_holds_them(tmp_path: Path) -> None:
    journal = tmp_path / "optuna.log"
    journal.write_text('{"half a line')
    raw = LARGE | {"limits": {"cost_usd_per_h": 60}, "search": LARGE["search"] | {"trials": 64}}
    found = explored(raw, journal=journal)
    study = stored(journal)
    assert len(study.trials) == found.trials > 16
    assert [d.name for d in study.directions] == ["MAXIMIZE", "MINIMIZE", "MINIMIZE"]
    assert all(t.constraints["limits"] <= 0 and t.values[1] <= 60 for t in study.trials)
    assert set(study.trials[0].params) == {"regime", "link", "setting_gpu", "setting_wse"}
    few = explored(
        SPARSE | {"limits": {"cost_usd_per_h": 60}, "search": SPARSE["search"] | {"trials": 64}}, journal=journal
    )
    study = stored(journal)
    assert len(study.trials) == few.trials == 64
    over = [t for t in study.trials if t.values[1] > 60]
    assert over
    assert all(t.constraints["cost_usd_per_h"] > 0 for t in over)


def test_the_search_ends_when_generations_gain_too_little() -> None:
    texts: list[str] = []
    raw = LARGE | {"search": LARGE["search"] | {"trials": 3200, "stop_generations": 3, "stop_gain_frac": 0.01}}
    found = explored(raw, report=lambda p: texts.append(p.note))
    assert found.converged
    assert 3 < len(texts) < 20
    assert "in 3 generations (ends at 0.01)" in texts[-1]
    longer = explored(raw | {"search": raw["search"] | {"stop_generations": 6}})
    assert len(longer.history) > len(found.history)


def test_gain_is_the_rise_of_one_and_the_same_volume() -> None:
    steps = [np.array([[2.0, 2.0]]), np.array([[1.0, 2.0], [2.0, 1.0]]), np.array([[1.0, 1.0]])]
    known = Convergence(2)
    for i, points in enumerate(steps):
        known.add(points, np.arange(len(points)) + 10 * i, float(i), 100 * i)
    reference = np.array([1.1, 1.1])
    assert known.gain_frac(1) == float("inf")
    assert hypervolume(np.concatenate(steps[:2]), reference) == 0.0
    known.add(np.array([[0.5, 1.0], [1.0, 0.5]]), np.array([40, 41]), 3.0, 300)
    # reference 1.05 in both: before 0.05 * 0.05, now two rectangles of 0.55 * 0.05 that share 0.05 * 0.05
    assert known.gain_frac(1) == pytest.approx((2 * 0.55 * 0.05 - 0.05**2) / 0.05**2 - 1)
    assert [h[:2] for h in known.history()] == [[0, 0], [1, 100], [2, 200], [3, 300]]
    assert known.history()[-1][2] == 1.0
    again = Convergence(2)
    again.restore(known.state(), known.front)
    assert again.history() == known.history()


def test_ends_that_exact_programs_find_are_where_the_search_starts() -> None:
    pool = [
        {"device": "a100-40gb-sxm", "name": "gpu", "count": {"min": 0, "max": 40}},
        {"device": "wse-3", "name": "wse", "count": {"min": 0, "max": 10}},
    ]
    study = Study.from_dict(small_study(pool=pool, search={"trials": 32}))
    started = search._Search(study, silent, Stop(), None, None)
    assert not len(started.mode.front)
    started._warm_start()
    exact = exhaustive.explore(study, workers=1, address="local", report=silent, stop=Stop())
    assert np.allclose(started.mode.front.points.min(axis=0), exact.points.min(axis=0), rtol=1e-6)


def test_a_space_that_one_generation_holds_is_screened_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "MOST_BLOCK", 0)
    raw = STUDIES["split, link tiers, limits"] | {"search": {"warm_start": False}}
    study, found = Study.from_dict(raw), explored(raw)
    assert same(found.points, brute_force(study))
    assert found.candidates == study.space.legal(np.arange(study.space.n_designs)).sum()
    assert len(found.history) == 1


def test_of_equal_designs_the_first_stays() -> None:
    study = Study.from_dict(LARGE)
    front = absorbed_none(study)
    point = np.array([[1.0, 2.0, 3.0]])
    front = absorbed(absorbed(front, point, np.array([7])), point, np.array([3]))
    assert front.index.tolist() == [3]


def test_the_page_tables_how_a_search_converged() -> None:
    history = [[0.5 * i, 1000.0 * i, i / 24] for i in range(25)]
    rows = convergence_rows({"hypervolume": history})
    assert len(rows) == 10
    assert rows[0][1:] == ("0", "0 %")
    assert rows[-1][1:] == ("24,000", "100 %")
    assert convergence_rows({}) == convergence_rows({"hypervolume": None}) == []
    assert len(convergence_rows({"hypervolume": history[:3]})) == 3
