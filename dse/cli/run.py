"""`dse run`: explores a study, writes its run folder, prints the frontier."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dse.cli import INFEASIBLE, STOPPED
from dse.cli.check import AsJson, StudyPath

if TYPE_CHECKING:
    from dse.explore import Result
    from dse.progress import Progress, Report, Stop
    from dse.resolve import Study


class MethodName(StrEnum):
    """How to explore."""

    auto = "auto"
    exhaustive = "exhaustive"
    milp = "milp"
    optuna = "optuna"


class ProgressKind(StrEnum):
    """How progress is shown on stderr."""

    bar = "bar"
    json = "json"
    none = "none"


def run(
    study: StudyPath,
    out: Annotated[Path | None, typer.Option(help="Run folder; default runs/<study name>.")] = None,
    method: Annotated[MethodName | None, typer.Option(help="Overrides search.method of the study.")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Overrides compute.workers of the study.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where a stopped run of this folder was.")] = False,
    what_if: Annotated[
        bool,
        typer.Option("--what-if/--no-what-if", help="Turn prices, links and times to see what moves; 10 s at most."),
    ] = True,
    progress: Annotated[ProgressKind, typer.Option(help="Progress on stderr.")] = ProgressKind.bar,
    as_json: AsJson = False,
) -> None:
    """Explore a study: exact frontier, run folder, report. The main job."""
    from dse.explore import CHECKPOINT, with_answers, with_what_if
    from dse.explore import run as explore
    from dse.jobs import folder_name
    from dse.progress import PartStop, Stop
    from dse.questions import MOST_S as ASKED_S
    from dse.report import write_whole_run
    from dse.resolve import Study
    from dse.run_folder import gone_if_empty, ready
    from dse.sensitivity import MOST_S

    loaded = Study.load(study)
    folder = out or Path("runs") / folder_name(loaded.name)
    ready(folder)
    if resume and _finished(loaded, folder, as_json=as_json):
        return
    stop = Stop(time_limit_s=loaded.envelope.search.time_limit_s)
    with signals(stop):
        with shown(progress) as report, gone_if_empty(folder):
            result = explore(
                loaded,
                method=method.value if method else None,
                workers=workers,
                report=report,
                stop=stop,
                checkpoint=folder / CHECKPOINT,
                resume=resume,
            )
        if stop.reason and not result.complete:
            _say_stopped(progress, stop.reason, onward=(folder / CHECKPOINT).is_dir())
        if not as_json:
            _print(result)
        if what_if and not stop.reason:
            result = with_what_if(result, PartStop(time_limit_s=MOST_S, whole=stop))
        if not as_json:
            _print_what_if(result)
        result = with_answers(result, PartStop(time_limit_s=ASKED_S, whole=stop))
        if not as_json:
            _print_answers(result)
        page = write_whole_run(result, folder)
    if as_json:
        typer.echo(json.dumps(as_plain(result, folder), indent=2))
    else:
        typer.echo(f"Report: {page}\nRun folder: {folder}")
    if not result.complete:
        sys.exit(STOPPED)
    if not len(result.frontier):
        sys.exit(INFEASIBLE)


def _finished(study: Study, folder: Path, *, as_json: bool) -> bool:
    """Whether a folder holds this study's complete run, which is then printed. InputError if it is another study's."""
    from dse.errors import InputError
    from dse.report import load_run

    if not (folder / "run.json").is_file():
        return False
    result = load_run(folder)
    if not result.complete:
        return False  # its checkpoint says whether it is of this study
    if _question(result.study) != _question(study):
        raise InputError(f"--resume: {folder} holds a run of another study; give another --out, or no --resume")
    typer.echo(f"{folder}: the run is complete; nothing is left to do", err=True)
    if as_json:
        typer.echo(json.dumps(as_plain(result, folder), indent=2))
    else:
        _print(result)
        _print_answers(result)
    if not len(result.frontier):
        sys.exit(INFEASIBLE)
    return True


def _question(study: Study) -> dict[str, Any]:
    """What a study asks: all of it but how it is explored, and on what."""
    return {key: value for key, value in study.portable()[0].items() if key not in ("search", "compute")}


def _say_stopped(kind: ProgressKind, reason: str, *, onward: bool) -> None:
    """That the run ends early, in words, or as a line of JSON among those of progress."""
    if kind is ProgressKind.json:
        print(json.dumps({"event": "stopped", "by": reason, "resumable": onward}), file=sys.stderr, flush=True)
        return
    typer.echo(
        f"stopped by {reason}; writing what was found{'; --resume goes on from there' if onward else ''}", err=True
    )


@contextlib.contextmanager
def signals(stop: Stop) -> Iterator[None]:
    """Ctrl-C and SIGTERM ask the job to stop and keep what was found; a second one stops at once."""

    def handle(number: int, _: object) -> None:
        if stop.reason:
            raise KeyboardInterrupt
        stop.ask("Ctrl-C" if number == signal.SIGINT else "SIGTERM")

    previous = {s: signal.signal(s, handle) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def shown(kind: ProgressKind) -> Iterator[Report]:
    """Where progress goes, for as long as it is wanted."""
    from dse.progress import silent, throttled

    if kind is ProgressKind.none:
        yield silent
    elif kind is ProgressKind.json:
        yield throttled(_json_line, every_s=0.5)
    else:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Bar

        console = Console(stderr=True)
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[text]}"),
        )
        with Bar(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
            task = bar.add_task("exploring", total=None, text="")

            def report(p: Progress) -> None:
                eta = f"{p.eta_s:.0f} s left" if p.eta_s < 1e7 else ""
                text = f"{p.candidates:,} designs, {p.rate_per_s:,.0f}/s, {p.front} on the front, {eta} {p.note}"
                bar.update(task, description=p.method, total=p.total, completed=p.done, text=text)

            yield throttled(report, every_s=0.1)


def _json_line(p: Progress) -> None:
    from dse.progress import progress_json

    print(progress_json(p), file=sys.stderr, flush=True)


def as_plain(result: Result, folder: Path) -> dict[str, Any]:
    """A run as one object: where it is, run.json, and the frontier's rows."""
    from dse.units import json_safe

    frontier = result.frontier.to_dict(orient="records")
    return {"folder": str(folder), "run": json_safe(result.info), "frontier": json_safe(frontier)}


def _print(result: Result) -> None:
    from dse.cli.tables import console

    info = result.info
    out = console()
    if not result.complete:
        why = f"stopped by {info['stopped']}" if info["stopped"] else "a region is unproven"
        out.print(f"Incomplete: {why}; what was found is kept.", markup=False)
    if len(result.frontier):
        _print_frontier(result)
        _print_pick(result)
        _print_compared(result)
        _print_one_more(result)
    else:
        _print_infeasible(result)


def _print_frontier(result: Result) -> None:
    from dse.cli.tables import MOST_ROWS, console, frontier_table, print_table
    from dse.report.frontier_rows import distinct_rows, spread

    info, out = result.info, console()
    position = int(info["recommended"]["position"])
    points = distinct_rows(result.frontier, result.study.envelope.objectives.names, position)
    print_table(frontier_table(result.study, points))
    n_shown = len(spread(len(points.ties), MOST_ROWS, points.pick))
    shown = f" ({n_shown} shown)" if n_shown < len(points.ties) else ""
    out.print(
        f"{len(points.ties)} frontier points{shown}, {len(result.frontier)} designs, from {info['candidates']:,} "
        f"candidates, {info['wall_s']:.2f} s, {info['method']}: {info['method_reason']}"
    )
    if info["proof"]["kind"] == "none" and result.complete and not info["proof"].get("converged"):
        out.print("The search used up its trials before it settled (search.trials); nothing is proven.")


def _print_pick(result: Result) -> None:
    from dse.cli.tables import baselines_text, console, design_text, interval_lines, reached_lines
    from dse.report.designs import port_warnings

    study, row, out = result.study, result.recommended, console()
    assert row is not None
    out.print(f"Pick (*): {design_text(study, row)}", markup=False)
    effects = (result.info.get("trust") or {}).get("effects", [])
    lines = (result.info["recommended"]["rule"], *reached_lines(study, row), *interval_lines(row, effects))
    for line in (*lines, baselines_text(row)):
        out.print(f"  {line}", markup=False)
    verdict = result.info["verdict"]
    caveat = f", {verdict['caveat']}" if verdict["caveat"] else ""
    out.print(f"Does mixing pay? {verdict['word']}{caveat}. {verdict['sentence']}", markup=False, soft_wrap=True)
    for warning in port_warnings(row, study.space.pool_names):
        out.print(f"  note: {warning}", markup=False)


def _print_compared(result: Result) -> None:
    """What the paradigm compares the pick with, where it does."""
    from dse.cli.tables import console
    from dse.report.robust import printed_lines

    for line in printed_lines(result.info):
        console().print(line, markup=False, soft_wrap=True)


def _print_what_if(result: Result) -> None:
    """At most three break-evens; the page has all."""
    from dse.cli.tables import console
    from dse.report.sensitivity import printed_lines

    found = result.info.get("sensitivity")
    for line in printed_lines(found) if found else ():
        console().print(f"What if: {line}", markup=False, soft_wrap=True)


def _print_answers(result: Result) -> None:
    """One line a question."""
    from dse.cli.tables import console

    for answer in result.info.get("answers", ()):
        console().print(f"Question: {answer['line']}", markup=False, soft_wrap=True)


def _print_one_more(result: Result) -> None:
    from dse.cli.tables import amount, console, figure
    from dse.report.why import worth_of
    from dse.whatif import one_more

    row = result.recommended
    assert row is not None
    out = console()
    for line in worth_of(result, row):
        out.print(f"  {line}", markup=False)
    for _, step in one_more(result.study, row).iterrows():
        if step["breaks"]:
            text = step["breaks"]
        else:
            text = f"{step['d_throughput_tok_s']:+,.0f} tok/s"
            if step["d_cost_usd_per_h"] == step["d_cost_usd_per_h"]:
                text += f" for {figure(step['d_cost_usd_per_h'])} USD/h and {figure(step['d_power_w'] / 1e3)} kW"
        out.print(f"  {step['change']}: {text}", markup=False)
    for raised in result.info["raised_limits"]:
        more = amount(raised["limit"], raised["needed"] - raised["now"])
        gain = amount(raised["objective"], raised["gain"])
        out.print(f"  {raised['limit']} raised by {more}: the fastest design gains {gain}", markup=False)
    for name in result.info.get("raised_limits_unanswered", ()):
        out.print(f"  {name} raised: what that lets in was not found in the time for it", markup=False)


def _print_infeasible(result: Result) -> None:
    from dse.report.relaxed import relaxation_text

    found = result.info["infeasible"]
    if not result.complete:
        typer.echo("No feasible design was found in the time given.", err=True)
    elif found["nearest"]:
        typer.echo(f"No feasible design. Nearest is {found['nearest']}: {found['design']}", err=True)
    else:
        typer.echo("No feasible design: none can run.", err=True)
    for reason in found["reasons"]:
        typer.echo(f"  {reason}", err=True)
    for relaxation in found["relaxations"]:
        typer.echo(f"  feasible with {relaxation_text(relaxation)}: {relaxation['design']}", err=True)
