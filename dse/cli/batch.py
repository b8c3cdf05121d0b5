"""`dse batch`: many studies as one job."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dse.cli import JOBS_FAILED, STOPPED
from dse.cli.check import AsJson
from dse.cli.run import ProgressKind, shown, signals

if TYPE_CHECKING:
    from dse.batch import Outcome, Record, Told
    from dse.jobs import Job
    from dse.progress import Progress, Report


def batch(
    jobs: Annotated[Path, typer.Argument(help="Jobs file (TOML).", metavar="JOBS.toml")],
    out: Annotated[Path | None, typer.Option(help="Folder of all runs; overrides out of the jobs file.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Skip finished jobs, go on with the interrupted one.")
    ] = False,
    progress: Annotated[ProgressKind, typer.Option(help="Progress on stderr.")] = ProgressKind.bar,
    as_json: AsJson = False,
) -> None:
    """Run many studies as one job: a list, or keys swept over a study; one summary of all."""
    from dse.batch import run_batch
    from dse.jobs import folder_name, read_jobs
    from dse.progress import Stop
    from dse.report import write_whole_run

    asked, planned = read_jobs(jobs)
    given = jobs.parent / asked.out if asked.out else Path("runs") / folder_name(asked.name)
    folder = out or given
    _refuse_foreign(folder)
    stop = Stop()
    with signals(stop), shown(progress) as report:
        told, reporting = _voices(progress, report, len(planned))
        outcome = run_batch(
            asked, planned, folder, write=write_whole_run, report=reporting, told=told, stop=stop, resume=resume
        )
    if as_json:
        typer.echo(json.dumps(_as_json(outcome), indent=2))
    else:
        _print(outcome)
    if outcome.stopped:
        _say_stopped(progress, outcome.stopped)
    sys.exit(exit_code(outcome))


def _say_stopped(kind: ProgressKind, reason: str) -> None:
    """That the batch ends early, in words, or as a line of JSON among those of progress."""
    line = json.dumps({"event": "stopped", "by": reason, "resumable": True})
    text = line if kind is ProgressKind.json else f"stopped: {reason}; --resume goes on from there"
    print(text, file=sys.stderr, flush=True)


def exit_code(outcome: Outcome) -> int:
    """4 if jobs are left, else 5 if some failed, else 4 if some ran out of time, else 0."""
    from dse import batch as b

    if outcome.stopped:
        return STOPPED
    if outcome.names(b.FAILED):
        return JOBS_FAILED
    return STOPPED if outcome.names(b.STOPPED) else 0


def _refuse_foreign(folder: Path) -> None:
    """A batch goes into a new folder, an empty one, or over an old batch; never among other files."""
    from dse.batch import RECORDS
    from dse.errors import InputError

    if folder.exists() and not folder.is_dir():
        raise InputError(f"--out {str(folder)!r}: is a file; name a folder for the batch")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / RECORDS).exists():
        raise InputError(f"--out {str(folder)!r}: holds other files and no batch; name a new folder")


def _voices(kind: ProgressKind, report: Report, n_jobs: int) -> tuple[Told, Report]:
    """What hears of jobs, and of progress within one; on stderr, as lines of JSON where asked for."""
    now: dict[str, Any] = {"job": "", "number": 0}

    def told(what: str, job: Job, record: Record) -> None:
        if job.name != now["job"]:  # a job may fail before it starts
            now.update(job=job.name, number=now["number"] + 1)
        if kind is ProgressKind.json:
            line = {"event": what, **now, "of": n_jobs, "status": record["status"], "wall_s": record.get("wall_s")}
            print(json.dumps(line), file=sys.stderr, flush=True)
        elif kind is ProgressKind.bar and what == "end":
            note = f": {record['note']}" if record.get("note") else ""
            typer.echo(f"{now['number']}/{n_jobs} {job.name} {record['status']}{note}", err=True)

    return told, _of_job(kind, report, now, n_jobs)


def _of_job(kind: ProgressKind, report: Report, now: dict[str, Any], n_jobs: int) -> Callable[[Progress], None]:
    """Progress within a job, with the job's name."""
    from dataclasses import replace

    from dse.progress import progress_json, throttled

    def line(p: Progress) -> None:
        text = {"event": "progress", **now, "of": n_jobs, **json.loads(progress_json(p))}
        print(json.dumps(text), file=sys.stderr, flush=True)

    if kind is ProgressKind.json:
        return throttled(line, every_s=0.5)
    return lambda p: report(replace(p, method=f"{now['number']}/{n_jobs} {now['job']} {p.method}"))


def _as_json(outcome: Outcome) -> dict[str, Any]:
    from dse.units import json_safe

    rows = outcome.frame().to_dict(orient="records")
    return {"folder": str(outcome.folder), "stopped": outcome.stopped, "jobs": json_safe(rows)}


def _print(outcome: Outcome) -> None:
    from dse import batch as b

    for job in outcome.jobs:
        record = outcome.records[job.name]
        swept = ", ".join(f"{key} = {json.dumps(value, default=str)}" for key, value in job.changes.items())
        typer.echo(f"{job.name}  {record['status']}" + (f"  ({swept})" if swept else ""))
        if record.get("pick"):
            typer.echo(f"  {record['pick']['design']}")
        if record.get("note"):
            typer.echo(f"  {record['note']}")
    counts = {status: len(outcome.names(status)) for status in (*b.FINISHED, b.STOPPED, b.FAILED, b.WAITING)}
    typer.echo(f"{len(outcome.jobs)} jobs: " + ", ".join(f"{n} {status}" for status, n in counts.items() if n))
    typer.echo(f"Summary: {outcome.folder / 'summary.csv'}")
