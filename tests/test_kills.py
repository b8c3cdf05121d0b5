"""Kill -9 of a worker or of the driver at any moment: the run ends, and ends with the same result."""

from __future__ import annotations

import os
import signal
import time
import warnings
from pathlib import Path

import killing
import numpy as np
import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from dse import cluster, exhaustive, frontier
from dse.progress import Stop, silent
from dse.resolve import Study

pytestmark = pytest.mark.slow
TWO = ("--workers", "2")


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study that takes some seconds."""
    return killing.study_file(tmp_path_factory.mktemp("study"), n_gpu=4000, n_wse=1500)


@pytest.fixture(scope="module")
def alone(study: Path) -> Path:
    """Its run on one worker, left alone."""
    killing.finished(killing.start(study, study.parent / "alone"))
    return study.parent / "alone"


@pytest.mark.parametrize("seed", [0])  # benchmarks/kills.py has more moments
def test_a_killed_worker_is_replaced(seed: int, study: Path, alone: Path, tmp_path: Path) -> None:
    job = killing.start(study, tmp_path / "run", *TWO, page=False)
    assert killing.kill_a_worker(job, float(np.random.default_rng(seed).uniform(0, 1.5)))
    killing.finished(job)
    assert killing.same([alone, tmp_path / "run"])


@pytest.mark.parametrize("seed", [0])
def test_a_killed_driver_leaves_nothing_running_and_resumes(
    seed: int, study: Path, alone: Path, tmp_path: Path
) -> None:
    job = killing.start(study, tmp_path / "run", *TWO)
    assert killing.kill_driver(job, tmp_path / "run", float(np.random.default_rng(seed).uniform(0.01, 0.5)))
    assert killing.left_behind(job.pid) == []
    killing.finished(killing.start(study, tmp_path / "run", "--resume"))
    assert killing.same([alone, tmp_path / "run"])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_run_with_workers_keeps_what_was_found(number: int, study: Path, alone: Path, tmp_path: Path) -> None:
    job = killing.start(study, tmp_path / "run", *TWO, page=False)
    while not list(tmp_path.glob("run/checkpoint/*.npz")):
        assert job.poll() is None
        time.sleep(0.02)
    os.killpg(job.pid, number)  # as a terminal's Ctrl-C, or a job runner, does
    assert "--resume goes on" in job.communicate(timeout=120)[1]
    assert job.returncode == 4
    assert killing.left_behind(job.pid) == []
    killing.finished(killing.start(study, tmp_path / "run", "--resume", page=False))
    assert killing.same([alone, tmp_path / "run"])


def test_a_killed_sweep_resumes_to_the_same_points(tmp_path: Path) -> None:
    study = killing.study_file(tmp_path, n_gpu=60, n_wse=20, method="milp")
    killing.finished(killing.start(study, tmp_path / "alone", page=False))
    job = killing.start(study, tmp_path / "run")
    assert killing.kill_driver(job, tmp_path / "run", 0.1)
    killing.finished(killing.start(study, tmp_path / "run", "--resume", page=False))
    assert killing.same([tmp_path / "alone", tmp_path / "run"])


def test_a_killed_search_resumes_to_the_same_points_and_its_trials_can_be_opened(tmp_path: Path) -> None:
    study = killing.study_file(tmp_path, n_gpu=6000, n_wse=1500, method="optuna")
    killing.finished(killing.start(study, tmp_path / "alone", page=False))
    job = killing.start(study, tmp_path / "run", *TWO)
    assert killing.kill_driver(job, tmp_path / "run", 0.1)
    killing.finished(killing.start(study, tmp_path / "run", "--resume", page=False))
    assert killing.same([tmp_path / "alone", tmp_path / "run"])
    trials = []
    for run in ("alone", "run"):
        storage = JournalStorage(JournalFileBackend(str(tmp_path / run / "optuna.log")))
        opened = optuna.load_study(study_name=None, storage=storage)
        trials.append([(t.params, t.values) for t in opened.get_trials(deepcopy=False)])
    assert len(trials[0]) > 0
    assert trials[0] == trials[1]


def test_a_cluster_of_two_nodes_gives_the_same_and_outlives_us(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in cluster.ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(cluster, "WORTH_RAY_S", 0.0)
    study = Study.load(killing.study_file(tmp_path, n_gpu=300, n_wse=100))
    whole = exhaustive.explore(study, workers=1, address="local", report=silent, stop=Stop())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray warns about its own future defaults
        from ray.cluster_utils import Cluster

        nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
        try:
            nodes.add_node(num_cpus=1)
            found = exhaustive.explore(study, workers=2, address=nodes.address, report=silent, stop=Stop())
            assert found.index.tolist() == whole.index.tolist()
            assert found.candidates == whole.candidates
            exact = study.changed({"compute": {"workers": 2, "ray": nodes.address}, "search.resolution_frac": 0.3})
            alone = frontier.explore(study.changed({"search.resolution_frac": 0.3}), report=silent, stop=Stop())
            again = frontier.explore(exact, report=silent, stop=Stop())
            assert again.points.tolist() == alone.points.tolist()
            assert all(node.remaining_processes_alive() for node in nodes.list_all_nodes())
        finally:
            nodes.shutdown()


@pytest.mark.parametrize("workers", [3])  # two of them are killed and stopped above
def test_any_number_of_workers_gives_the_same(workers: int, study: Path, alone: Path, tmp_path: Path) -> None:
    killing.finished(killing.start(study, tmp_path / "run", "--workers", str(workers), page=False))
    assert killing.same([alone, tmp_path / "run"])
