"""One study, one method: chooses it, runs it, re-scores the plans, and says what they mean."""

from __future__ import annotations

import platform
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dse import exhaustive, pruning, search
from dse import frontier as milp
from dse.baselines import baselines
from dse.checkpoint import Checkpoint, identity_of
from dse.checks import check_cover, verified
from dse.choice import choose_method
from dse.extremes import compared
from dse.marginal import marginal_values
from dse.pareto import minimised
from dse.progress import Report, Stop, silent
from dse.questions import answers
from dse.recommend import recommend
from dse.relaxation import in_words, relaxations
from dse.resolve import Study
from dse.scoring import bounds_of, on_grid, score_index, violation
from dse.sensitivity import sensitivity
from dse.uncertainty import trust, with_intervals, with_intervals_of
from dse.verdict import study_verdict
from dse.whatif import raised_limits
from formulations.plan import Plan

KEPT_CANDIDATES = 20_000
KEPT_WHEN_STOPPED = 1_000
"""A run whose time is up does not spend more of it on a sample."""
CHECKPOINT = "checkpoint"
"""Folder inside the run folder, while there is something to go on from."""
JOURNAL = "optuna.log"
"""A search's trials inside the run folder, for `optuna-dashboard`."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """A run: frames, and what is known about how they came about."""

    study: Study
    frontier: pd.DataFrame
    candidates: pd.DataFrame
    """Every scored candidate of a small space; the sample kept of a large one, and the frontier."""
    info: dict[str, Any]
    """What run.json holds."""

    @property
    def complete(self) -> bool:
        """False where the run was stopped early."""
        return bool(self.info["complete"])

    @property
    def recommended(self) -> pd.Series | None:
        """The frontier row that the study's rule picks; None if nothing is feasible."""
        if not len(self.frontier):
            return None
        return self.frontier.iloc[int(self.info["recommended"]["position"])]


@dataclass(frozen=True, kw_only=True)
class Explored:
    """What any explorer hands over: designs of the frontier, their minimised objectives, and how sure that is."""

    plans: Sequence[Plan]
    points: NDArray[np.float64]
    candidates: int
    proof: dict[str, Any]
    nearest: int = -1
    """The design that breaks the limits least, where none meets them and the explorer knows it."""
    trials: int | None = None
    hypervolume: list[list[float]] | None = None
    """A search only: [seconds, designs scored, share of the last hypervolume] as it went on."""


def _enumerate(study: Study, report: Report, stop: Stop, checkpoint: Checkpoint | None) -> Explored:
    compute = study.envelope.compute
    grid = exhaustive.explore(
        study, workers=compute.workers, address=compute.ray, report=report, stop=stop, checkpoint=checkpoint
    )
    proof: dict[str, Any] = {"kind": "none"}
    if not stop.reason:
        proof = {"kind": "exhaustive", "designs": study.space.n_designs, **pruning.account(study, grid)}
    return Explored(
        plans=on_grid(grid.index), points=grid.points, candidates=grid.candidates, proof=proof, nearest=grid.nearest
    )


def _solve(study: Study, report: Report, stop: Stop, checkpoint: Checkpoint | None) -> Explored:
    exact = milp.explore(study, report=report, stop=stop, checkpoint=checkpoint)
    proof = {
        "kind": "milp" if not exact.unproven else "none",
        "solves": exact.solves,
        "answers_refuted": exact.rejected,
        "boxes": exact.boxes,
        "boxes_known_empty": exact.skipped,
        "largest_gap": max((c.gap for c in exact.certificates), default=0.0),
        "resolution_frac": study.envelope.search.resolution_frac,
        "ranges": exact.ranges,
        "points": [asdict(c) for c in exact.certificates],
        "unproven": exact.unproven,
    }
    return Explored(plans=exact.plans, points=exact.points, candidates=exact.solves, proof=proof)


def _sample(study: Study, report: Report, stop: Stop, checkpoint: Checkpoint | None) -> Explored:
    compute = study.envelope.compute
    found = search.explore(
        study,
        workers=compute.workers,
        address=compute.ray,
        report=report,
        stop=stop,
        checkpoint=checkpoint,
        journal=checkpoint.folder.parent / JOURNAL if checkpoint else None,
    )
    proof = {"kind": "none", "trials": found.trials, "converged": found.converged}
    return Explored(
        plans=on_grid(found.index),
        points=found.points,
        candidates=found.candidates,
        proof=proof,
        nearest=found.nearest,
        trials=found.trials,
        hypervolume=found.history,
    )


EXPLORERS = {"exhaustive": _enumerate, "milp": _solve, "optuna": _sample}


def run(
    study: Study,
    *,
    method: str | None = None,
    workers: int | None = None,
    report: Report = silent,
    stop: Stop | None = None,
    checkpoint: Path | None = None,
    resume: bool = False,
) -> Result:
    """Explores a study. Raises MethodError, or SelfCheckError where a plan scores differently twice.

    With a folder as `checkpoint`, what is found is kept there until the caller removes it; `resume` goes on from it.
    """
    if method is not None or workers is not None:
        study = with_overrides(study, method, workers)
    chosen, why = choose_method(study)
    stop = stop or Stop(time_limit_s=study.envelope.search.time_limit_s)
    saved = Checkpoint(checkpoint, _identity(study, chosen), resume=resume) if checkpoint else None
    started = time.perf_counter()
    found = EXPLORERS[chosen](study, report, stop, saved)
    wall_s = time.perf_counter() - started + (saved.spent_s if saved else 0.0)
    stopped = stop.reason  # what comes after only explains a frontier that is found
    frontier = verified(study, found.plans, found.points)
    kept = KEPT_WHEN_STOPPED if stop.reason else KEPT_CANDIDATES
    candidates, advice = _candidates(study, found.plans, frontier, kept), _advice(study, frontier, found.nearest, stop)
    check_cover(study, found.proof, frontier, candidates)
    pick = frontier.iloc[advice["recommended"]["position"]] if len(frontier) else None
    info: dict[str, Any] = {
        "study": study.name,
        "paradigm": study.envelope.paradigm,
        "method": chosen,
        "method_reason": why,
        "complete": not stopped and not found.proof.get("unproven"),
        "stopped": stopped,
        "proof": found.proof,
        "seed": study.envelope.search.seed,
        "workers": study.envelope.compute.workers,
        "designs_in_grid": study.space.n_designs,
        "candidates": found.candidates,
        "wall_s": wall_s,
        "candidates_per_s": found.candidates / wall_s if wall_s > 0 else 0.0,
        "trials": found.trials,
        "hypervolume": found.hypervolume,
        "versions": versions(),
        "traffic": study.traffic,
        **advice,
        "verdict": study_verdict(study, pick, frontier, candidates),
        "trust": None if pick is None else trust(study, pick),
    }
    started = time.perf_counter()
    candidates = with_intervals(study, candidates)
    frontier = with_intervals_of(frontier, candidates)
    info["intervals_s"] = time.perf_counter() - started
    info["baselines"] = baselines(study, stop) if len(frontier) and not stop.reason else []
    info |= {} if pick is None or stop.reason else compared(study, pick, stop)
    return Result(study=study, frontier=frontier, candidates=candidates, info=info)


def with_what_if(result: Result, stop: Stop) -> Result:
    """The run with what turning each number would change, as far as the stop allows; as it is without a pick."""
    row = result.recommended
    if row is None or not result.complete:
        return result
    return replace(result, info=result.info | {"sensitivity": sensitivity(result.study, row, stop)})


def with_answers(result: Result, stop: Stop) -> Result:
    """The run with an answer to each question of its study, as far as the stop allows; as it is without any."""
    found = answers(result.study, stop)
    return replace(result, info=result.info | {"answers": found}) if found else result


def _identity(study: Study, method: str) -> dict[str, Any]:
    """What a checkpoint must be of to be continued."""
    tables, files = study.portable()
    return identity_of(tables, files, method, versions())


def _advice(study: Study, frontier: pd.DataFrame, nearest: int, stop: Stop) -> dict[str, Any]:
    """The pick and what raised limits would let in; without a frontier, why nothing is feasible."""
    if not len(frontier):
        found = diagnose(study, nearest)
        return {"infeasible": {**found, "relaxations": _relaxations(study, found["nearest"], stop)}}
    position, rule = recommend(study, frontier)
    raised, unanswered = raised_limits(study, frontier, stop)
    pick = {"position": position, "design_id": str(frontier["design_id"].iloc[position]), "rule": rule}
    return {
        "recommended": pick,
        "raised_limits": raised,
        "raised_limits_unanswered": unanswered,
        "marginal": marginal_values(study, frontier.iloc[position])
        if study.space.n_options <= study.paradigm.most_options
        else [],
    }


def _relaxations(study: Study, nearest: str | None, stop: Stop) -> list[dict[str, Any]]:
    """What would make a study feasible that was searched to the end."""
    if stop.reason:
        return []
    return relaxations(study, Plan(index=int(nearest[1:])) if nearest else None, stop)


def with_overrides(study: Study, method: str | None, workers: int | None) -> Study:
    """The study with method or workers given on the command line."""
    raw = study.envelope.model_dump(mode="json", exclude_unset=True)
    if method is not None:
        raw["search"] = {**raw.get("search", {}), "method": method}
    if workers is not None:
        raw["compute"] = {**raw.get("compute", {}), "workers": workers}
    return Study.from_dict(raw, folder=study.folder, file=study.name)


def _candidates(study: Study, plans: Sequence[Plan], frontier: pd.DataFrame, kept: int) -> pd.DataFrame:
    """All legal designs of a small space, an even sample of a large one; frontier designs always."""
    front = np.array([p.index for p in plans if p.index is not None], dtype=np.int64)
    frame = score_index(study, np.union1d(_sampled(study, kept), front))
    placed = frontier[~frontier["design_id"].isin(frame["design_id"])] if len(frontier) else frontier
    frame = pd.concat([frame, placed], ignore_index=True) if len(placed) else frame
    frame["on_front"] = _ties_the_front(study, frame, frontier)
    return frame


def _sampled(study: Study, kept: int = KEPT_CANDIDATES) -> NDArray[np.int64]:
    """Grid indices of all legal designs of a small space, of an even sample of a large one."""
    sample = exhaustive.sample_index(study.space.n_designs, min(kept, study.space.most_kept))
    return sample[study.space.legal(sample)]


def _ties_the_front(study: Study, frame: pd.DataFrame, frontier: pd.DataFrame) -> np.ndarray:
    """Which feasible candidates equal a frontier design in every objective."""
    names = study.envelope.objectives.names
    front, all_points = (
        minimised({o: f[o].to_numpy(dtype=np.float64) for o in names}, names) for f in (frontier, frame)
    )
    on_front = {tuple(point) for point in front.tolist()}
    ties = np.array([tuple(point) in on_front for point in all_points.tolist()], dtype=np.bool_)
    return ties & frame["feasible"].to_numpy(dtype=np.bool_)


def diagnose(study: Study, nearest: int) -> dict[str, Any]:
    """Why nothing is feasible: the design that breaks the limits least, or what keeps every design from running."""
    if nearest < 0:
        frame = score_index(study, _sampled(study))
        served = frame[frame["throughput_tok_s"] > 0]
        if len(served):
            bounds = bounds_of(study)
            broken = violation({b: served[b].to_numpy(dtype=np.float64) for b in bounds}, bounds)
            row = served.iloc[int(np.broadcast_to(broken, len(served)).argmin())]
            return _nearest(study, row)
        reasons = Counter(part for text in frame["infeasible_reason"] for part in str(text).split("; ") if part)
        return {"nearest": None, "reasons": [text for text, _ in reasons.most_common(5)]}
    return _nearest(study, score_index(study, np.array([nearest], dtype=np.int64)).iloc[0])


def _nearest(study: Study, row: pd.Series) -> dict[str, Any]:
    return {
        "nearest": str(row["design_id"]),
        "design": in_words(study, row),
        "reasons": [part for part in str(row["infeasible_reason"]).split("; ") if part],
    }


def versions() -> dict[str, str]:
    """Versions that a result depends on."""
    names = ("heterodse", "numpy", "scipy", "pandas", "pyomo", "highspy", "optuna", "moocore", "ray")
    found = {"python": platform.python_version()}
    for name in names:
        found[name] = version(name)
    return found
