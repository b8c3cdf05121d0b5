"""A run that was stopped goes on where it was, to the same result, and never from another run's state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import small_study

from dse import checkpoint as checkpoints
from dse import enumeration, exhaustive, frontier
from dse.checkpoint import Checkpoint
from dse.errors import InputError, SelfCheckError
from dse.explore import run
from dse.frontier import Proven
from dse.progress import Progress, Stop, silent
from dse.resolve import Study
from dse.run_folder import is_run

WIDE = [
    {"device": "a100-40gb-sxm", "name": "gpu", "count": {"min": 0, "max": 200}},
    {"device": "wse-3", "name": "wse", "count": {"min": 0, "max": 60}},
]

THREE_POOLS = small_study(
    pool=[
        {"device": "a100-40gb-sxm", "name": "gpu", "count": {"min": 0, "max": 8, "step": 4}},
        {"device": "h100-80gb-sxm", "name": "h100", "count": {"min": 0, "max": 8, "step": 4}},
        {"device": "wse-3", "name": "wse", "count": {"min": 0, "max": 2}},
    ],
    link={"bandwidth_gb_s": [1.5, 12.5, 100]},
)


def stopping_after(n_reports: int, stop: Stop) -> Any:
    """A report that asks the job to stop once it has been called so often."""
    seen = 0

    def report(_: Progress) -> None:
        nonlocal seen
        seen += 1
        if seen == n_reports:
            stop.ask("test")

    return report


def test_a_state_comes_back_bit_for_bit(tmp_path: Path) -> None:
    state = {"points": np.array([[0.1, -0.0, np.inf], [np.nan, 1e-300, -1 / 3]]), "n": 3, "worst": float("inf")}
    Checkpoint(tmp_path / "c", {"study": 1}).save(state)
    found = Checkpoint(tmp_path / "c", {"study": 1}, resume=True).load()
    assert found is not None
    assert found["points"].tobytes() == state["points"].tobytes()
    assert (found["n"], found["worst"]) == (3, float("inf"))
    assert [p.name for p in (tmp_path / "c").iterdir()] == [checkpoints.FILE]


def test_another_runs_checkpoint_is_refused_with_what_differs(tmp_path: Path) -> None:
    Checkpoint(tmp_path, {"study": {"limits": {"power_w": 1e5}}, "versions": {"numpy": "1"}}).save({})
    other = Checkpoint(tmp_path, {"study": {"limits": {"power_w": 2e5}}, "versions": {"numpy": "2"}}, resume=True)
    with pytest.raises(InputError, match=r'limits.power_w was 100000.0, is 200000.0; versions.numpy was "1", is "2"'):
        other.load()


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 cut", b"nothing of the kind"])
def test_a_damaged_checkpoint_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / checkpoints.FILE).write_bytes(content)
    with pytest.raises(InputError, match="damaged"):
        Checkpoint(tmp_path, {}, resume=True).load()


def test_without_resume_a_checkpoint_is_dropped(tmp_path: Path) -> None:
    Checkpoint(tmp_path / "c", {}).save({"n": 1})
    assert Checkpoint(tmp_path / "c", {}).load() is None
    assert not (tmp_path / "c").exists()


def test_enumeration_stopped_again_and_again_finds_the_same(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(enumeration, "BLOCKS_HERE", 1)
    study = Study.from_dict(small_study(pool=WIDE))
    whole = exhaustive.explore(study, workers=1, address="local", report=silent, stop=Stop())
    for sitting in range(100):
        stop, kept = Stop(), Checkpoint(tmp_path, {"study": "wide"}, resume=sitting > 0)
        found = exhaustive.explore(
            study, workers=1, address="local", report=stopping_after(2, stop), stop=stop, checkpoint=kept
        )
        if not stop.reason:
            break
    assert sitting > 1
    assert found.candidates == whole.candidates
    assert found.index.tolist() == whole.index.tolist()
    assert found.points.tobytes() == whole.points.tobytes()


def test_the_nearest_design_is_the_same_however_the_grid_is_gone_through() -> None:
    pools = [
        {"device": "a100-40gb-sxm", "name": "a", "count": {"min": 1, "max": 540}, "roles": ["prefill"]},
        {"device": "h100-80gb-sxm", "name": "b", "count": {"min": 1, "max": 400}, "roles": ["decode"]},
    ]
    link = {"bandwidth_gb_s": [1000, 2000, 4000]}
    study = Study.from_dict(small_study(pool=pools, link=link, limits={"throughput_tok_s": {"min": 1e12}}))
    whole = enumeration.enumerate_all(study, workers=1, address="local", report=silent, stop=Stop())
    nothing = enumeration.Shared(study=study, points=whole.points, index=whole.index)
    parts = [
        enumeration.search_chunk(nothing, chunk) for chunk in reversed(enumeration.left([], study.space.n_units(), 8))
    ]
    assert whole.nearest == min((part.nearest_violation, part.nearest) for part in parts)[1]


@pytest.mark.parametrize("names", [("study.toml", ".candidates.parquet.new"), ("checkpoint/state.npz", "trace.csv")])
def test_a_folder_that_a_kill_left_half_written_is_a_runs(names: tuple[str, ...], tmp_path: Path) -> None:
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    assert is_run(tmp_path)


def test_what_others_put_into_the_folder_is_kept(tmp_path: Path) -> None:
    for name in ("checkpoint/mine.txt", "optuna.log.backup"):
        folder = tmp_path / name[0]
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text("mine")
        assert not is_run(folder)
    kept = Checkpoint(tmp_path / "c" / "checkpoint", {})
    kept.save({})
    kept.clear()
    assert [path.name for path in kept.folder.iterdir()] == ["mine.txt"]


def facts(found: Proven) -> dict[str, Any]:
    """All that a sweep reports but its times."""
    return {
        "designs": [p.design_id for p in found.plans],
        "points": found.points.tolist(),
        "certificates": [(c.design_id, c.objective, c.bound, c.gap) for c in found.certificates],
        "counts": (found.solves, found.boxes, found.rejected, found.skipped),
        "ranges": found.ranges,
        "unproven": found.unproven,
    }


def test_exact_sweep_stopped_at_every_generation_finds_the_same(tmp_path: Path) -> None:
    study = Study.from_dict(small_study(search={"resolution_frac": 0.0}))
    whole = frontier.explore(study, report=silent, stop=Stop())
    solved = 0
    for sitting in range(100):
        stop, kept = Stop(), Checkpoint(tmp_path, {"study": "small"}, resume=sitting > 0)
        found = frontier.explore(study, report=stopping_after(sitting + 1, stop), stop=stop, checkpoint=kept)
        assert found.solves >= solved, "a sitting starts with what those before have solved"
        solved = found.solves
        if not stop.reason:
            break
    assert sitting > 5
    assert facts(found) == facts(whole)


def test_points_that_time_cut_short_are_solved_again(tmp_path: Path) -> None:
    study, whole = (
        Study.from_dict(small_study()),
        frontier.explore(Study.from_dict(small_study()), report=silent, stop=Stop()),
    )
    for limit_s in (1e-6, 0.1, 0.2, 0.3, np.inf):
        kept = Checkpoint(tmp_path, {}, resume=True)
        found = frontier.explore(study, report=silent, stop=Stop(time_limit_s=limit_s), checkpoint=kept)
    assert facts(found) == facts(whole)


@pytest.mark.slow
def test_rows_that_plans_turned_out_to_need_come_back_too(tmp_path: Path) -> None:
    study = Study.from_dict(THREE_POOLS)
    whole = frontier.explore(study, report=silent, stop=Stop())
    asked = 0
    for sitting in range(100):
        stop, kept = Stop(), Checkpoint(tmp_path, {}, resume=sitting > 0)
        found = frontier.explore(study, report=stopping_after(4 * sitting + 2, stop), stop=stop, checkpoint=kept)
        state = Checkpoint(tmp_path, {}, resume=True).load()
        asked = max(asked, sum(len(p["rows"]) for p in state["points"]) if state else 0)
        if not stop.reason:
            break
    assert sitting > 1
    assert asked > 0
    assert facts(found) == facts(whole)


def test_a_sweep_that_asks_otherwise_than_its_journal_stops(tmp_path: Path) -> None:
    stop = Stop()
    small, other = (Study.from_dict(small_study(search={"resolution_frac": r})) for r in (0.0, 0.2))
    frontier.explore(small, report=stopping_after(9, stop), stop=stop, checkpoint=Checkpoint(tmp_path, {}))
    with pytest.raises(SelfCheckError, match="asks for other points"):
        frontier.explore(other, report=silent, stop=Stop(), checkpoint=Checkpoint(tmp_path, {}, resume=True))


def test_a_run_may_go_on_with_more_time_and_workers_but_not_other_limits(tmp_path: Path) -> None:
    raw = small_study(pool=WIDE)
    stopped = run(Study.from_dict(raw | {"search": {"time_limit_s": 1e-6}}), checkpoint=tmp_path / "c")
    assert not stopped.complete
    with pytest.raises(InputError, match=r"study\.limits\.cost_usd_per_h was not given, is 100"):
        run(Study.from_dict(raw | {"limits": {"cost_usd_per_h": 100}}), checkpoint=tmp_path / "c", resume=True)
    done = run(Study.from_dict(raw | {"compute": {"workers": 2}}), checkpoint=tmp_path / "c", resume=True)
    whole = run(Study.from_dict(raw))
    assert done.complete
    assert done.frontier.equals(whole.frontier)
    assert done.info["candidates"] == whole.info["candidates"]
