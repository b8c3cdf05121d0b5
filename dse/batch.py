"""Many studies as one job: one after the other, each in its own run folder, failures apart, one frame of all.

What is known of each job stands in batch.json, written whole after every job: a batch that was stopped or killed goes
on with the jobs that are left, and with the checkpoint of the one that was running.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from dse.checkpoint import identity_of
from dse.cluster import one_ray
from dse.errors import DseError, InputError
from dse.explore import CHECKPOINT, Result, run, versions
from dse.files import whole, write_whole
from dse.jobs import Batch, Job
from dse.progress import PartStop, Report, Stop
from dse.relaxation import in_words
from dse.resolve import Study
from dse.run_folder import refuse_foreign
from dse.units import json_safe

RECORDS = "batch.json"
DONE, NONE_FEASIBLE, STOPPED, FAILED, RUNNING, WAITING = (
    "done", "infeasible", "stopped", "failed", "running", "waiting",
)  # fmt: skip
FINISHED = (DONE, NONE_FEASIBLE)
PICK_COLUMNS = (
    "gpu_wse_ratio", "routing", "link_gb_s", "throughput_tok_s", "throughput_samples_s", "requests_s", "ttft_p99_s",
    "tpot_s", "step_time_s", "cost_usd_per_h", "usd_per_mtok", "power_w", "energy_j_per_tok", "bottleneck", "gain",
    "gain_equal_cost", "gain_equal_power",
)  # fmt: skip
"""Of the recommended design, beside its objectives and devices per pool."""

Record = dict[str, Any]
Write = Callable[[Result, Path], Path]
"""Writes a run folder from end to end."""
Told = Callable[[str, Job, Record], None]
"""Hears `start`, `end` or `skip` of a job."""


@dataclass(slots=True, kw_only=True)
class Outcome:
    """A batch as it ended."""

    folder: Path
    jobs: Sequence[Job]
    records: dict[str, Record]
    stopped: str = ""
    """Why not all jobs were run; empty where all were."""

    def names(self, *statuses: str) -> list[str]:
        """Jobs that ended so."""
        return [job.name for job in self.jobs if self.records[job.name]["status"] in statuses]

    def frame(self) -> pd.DataFrame:
        """One row a job: what was swept, how it ended, and the recommended design."""
        swept = list(dict.fromkeys(key for job in self.jobs for key in job.changes))
        rows = []
        for job in self.jobs:
            record = self.records[job.name]
            keys = {key: _cell(job.changes.get(key)) for key in swept}
            facts = {k: record.get(k) for k in ("status", "note", "method", "wall_s", "candidates", "front_points")}
            rows.append({"job": job.name, "study": str(job.study), **keys, **facts, **record.get("pick", {})})
        frame = pd.DataFrame(rows)
        for name in frame.columns:
            present = frame[name].dropna()
            if present.map(type).nunique() > 1:  # a column of parquet has one type
                frame[name] = present.map(str)
        return frame


def _cell(value: Any) -> Any:
    """A swept value in one cell."""
    return json.dumps(value, default=str) if isinstance(value, (list, dict)) else value


def run_batch(
    batch: Batch,
    jobs: Sequence[Job],
    folder: Path,
    *,
    write: Write,
    report: Report,
    told: Told,
    stop: Stop,
    resume: bool,
) -> Outcome:
    """Runs every job that is not finished; what a job's study does wrong is noted and stops no other."""
    records = _known(folder) if resume else {}  # of jobs that are no longer asked for, too: they may be again
    for job in jobs:
        records.setdefault(job.name, {}).setdefault("status", WAITING)
    outcome = Outcome(folder=folder, jobs=jobs, records=records)
    _keep(outcome)
    with one_ray():
        for job in jobs:
            _one(batch, job, outcome, write=write, report=report, told=told, stop=stop, resume=resume)
            _keep(outcome)
            outcome.stopped = outcome.stopped or stop.reason
            if outcome.stopped:
                break
    try:
        with whole(folder / "summary.parquet") as beside:
            outcome.frame().to_parquet(beside, index=False)
    except OSError as error:
        raise InputError(f"--out {folder}: cannot be written: {error.strerror}") from None
    return outcome


def _one(
    batch: Batch, job: Job, outcome: Outcome, *, write: Write, report: Report, told: Told, stop: Stop, resume: bool
) -> None:
    """One job, whatever becomes of it."""
    before, place = outcome.records[job.name], outcome.folder / job.name
    started, digest = time.perf_counter(), None
    try:
        study = _limited(job.load(), batch)
        digest = _digest(study)
        same = before.get("digest") == digest
        if resume and same and before["status"] in FINISHED and (place / "run.json").is_file():
            told("skip", job, before)
            return
        outcome.stopped = stop.reason or _full(batch, outcome.folder, job)
        if outcome.stopped:
            return
        refuse_foreign(place)
        outcome.records[job.name] = {"status": RUNNING, "digest": digest}
        _keep(outcome)
        told("start", job, outcome.records[job.name])
        own = PartStop(time_limit_s=study.envelope.search.time_limit_s, whole=stop)
        result = run(study, report=report, stop=own, checkpoint=place / CHECKPOINT, resume=resume and same)
        write(result, place)
        record = {"digest": digest, **_facts(result)}
    except Exception as error:  # a failure belongs to its job
        kind = "" if isinstance(error, DseError) else f"internal error: {type(error).__name__}: "
        record = {
            "status": FAILED,
            "digest": digest,
            "note": f"{kind}{error}".replace("\n", "; "),
            "wall_s": time.perf_counter() - started,
        }
    outcome.records[job.name] = record
    told("end", job, record)


def _limited(study: Study, batch: Batch) -> Study:
    """The study under the batch's own time limit and workers, where it gives them."""
    given = {"search.time_limit_s": batch.time_limit_s, "compute.workers": batch.workers}
    changes = {key: value for key, value in given.items() if value is not None}
    return study.changed(changes) if changes else study


def _digest(study: Study) -> str:
    """What the job's result depends on; a study edited since is run again."""
    identity = identity_of(*study.portable(), study.envelope.search.method, versions())
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]


def _facts(result: Result) -> Record:
    """A job that ran: how it ended, and its pick."""
    row, info = result.recommended, result.info
    status = STOPPED if not result.complete else DONE if row is not None else NONE_FEASIBLE
    note = f"stopped by {info['stopped']}" if info["stopped"] else "" if result.complete else "a region is unproven"
    record: Record = {
        "status": status,
        "note": note,
        "method": info["method"],
        "wall_s": info["wall_s"],
        "candidates": info["candidates"],
        "front_points": len(result.frontier),
    }
    if row is None:
        record["note"] = note or "; ".join(info["infeasible"]["reasons"])
        return record
    study = result.study
    names = [f"n_{pool}" for pool in study.space.pool_names]
    wanted = dict.fromkeys([*names, *study.envelope.objectives.names, *PICK_COLUMNS])
    pick = {name: row[name] for name in wanted if name in row.index}
    record["pick"] = json_safe({"design_id": row["design_id"], "design": in_words(study, row), **pick})
    verdict = info["verdict"]
    of = "" if verdict["of_pick"] or verdict["design_id"] is None else " (not the pick)"
    record["pick"]["mixing_pays"] = verdict["word"] + of
    return record


def _full(batch: Batch, folder: Path, job: Job) -> str:
    """Why another job may not start: the folder holds as much as it may."""
    if batch.max_disk_gb is None:
        return ""
    held_gb = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e9
    if held_gb < batch.max_disk_gb:
        return ""
    return f"{folder} holds {held_gb:.3g} GB of the {batch.max_disk_gb:g} that max_disk_gb allows, before {job.name}"


def _known(folder: Path) -> dict[str, Record]:
    """Records of earlier sittings."""
    path = folder / RECORDS
    if not path.exists():
        return {}
    try:
        known = json.loads(path.read_text(encoding="utf-8"))["jobs"]
        return {str(name): dict(record) for name, record in known.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"--resume: {path} is damaged ({error}); run without --resume to start over") from None


def _keep(outcome: Outcome) -> None:
    """Writes what is known, for people and for the next sitting."""
    folder = outcome.folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / RECORDS, json.dumps(json_safe({"jobs": outcome.records}), indent=2))
        write_whole(folder / "summary.csv", outcome.frame().to_csv(index=False))
    except OSError as error:
        raise InputError(f"--out {folder}: cannot be written: {error.strerror}") from None
