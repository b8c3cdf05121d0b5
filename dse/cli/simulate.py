"""`dse simulate`: replays designs of a run on a trace, and says how far the model's predictions were off."""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dse.cli import STOPPED
from dse.cli.check import AsJson
from dse.cli.run import ProgressKind

if TYPE_CHECKING:
    from dse.simulate import Simulation


class ArrivalKind(StrEnum):
    """How requests are spaced."""

    poisson = "poisson"
    recorded = "recorded"


def simulate(
    folder: Annotated[Path, typer.Argument(help="Run folder written by dse run.", metavar="DIR")],
    top: Annotated[int, typer.Option(min=1, max=1000, help="Frontier points to replay, evenly spread.")] = 10,
    design: Annotated[list[str] | None, typer.Option(help="Designs to replay instead; repeat for several.")] = None,
    trace: Annotated[Path | None, typer.Option(help="Trace to replay; default the study's own, else its mix.")] = None,
    arrivals: Annotated[
        ArrivalKind, typer.Option(help="A Poisson stream at each design's load, or the trace's own, stretched to it.")
    ] = ArrivalKind.poisson,
    load: Annotated[
        float | None, typer.Option(min=1e-9, max=1e9, help="Requests/s; default the demand, else a share of capacity.")
    ] = None,
    load_frac: Annotated[
        float | None, typer.Option(min=0.01, max=2.0, help="Load as a share of each design's capacity instead.")
    ] = None,
    requests: Annotated[int, typer.Option(min=100, max=1_000_000, help="Most requests of the trace.")] = 20_000,
    seed: Annotated[int, typer.Option(min=0, help="Of arrivals and the order of requests.")] = 0,
    workers: Annotated[int, typer.Option(min=1, max=4096, help="Processes.")] = 1,
    progress: Annotated[ProgressKind, typer.Option(help="Progress on stderr.")] = ProgressKind.bar,
    as_json: AsJson = False,
) -> None:
    """Replay designs of a run event by event: TTFT, TPOT, throughput and use of each pool, beside the prediction."""
    from dse.cli.report import fitting
    from dse.cli.run import shown, signals
    from dse.errors import InputError
    from dse.progress import Stop
    from dse.report import load_run, write_report
    from dse.run_folder import write_simulation
    from dse.simulate import simulate as replay_designs

    if load is not None and load_frac is not None:
        raise InputError("--load and --load-frac: give one of them")
    result = fitting([folder], lambda: load_run(folder))
    stop = Stop()
    with signals(stop), shown(progress) as report:
        found = replay_designs(
            result,
            top=top,
            designs=design or (),
            trace=trace,
            arrivals=arrivals.value,
            load_requests_s=load,
            load_frac=load_frac,
            n_requests=requests,
            seed=seed,
            workers=workers,
            report=report,
            stop=stop,
        )
    result = write_simulation(result, found, folder)
    page = write_report(result, folder / "report.html")
    if as_json:
        typer.echo(json.dumps(result.info["simulation"], indent=2))
    else:
        _print(found)
        typer.echo(f"Simulation: {folder / 'simulation.csv'}\nReport: {page}")
    if stop.reason:
        typer.echo(f"stopped by {stop.reason}; {len(found.frame)} of {found.info['asked']} designs replayed", err=True)
        sys.exit(STOPPED)


def _print(found: Simulation) -> None:
    """A row a design, and the errors."""
    from dse.cli.tables import console, print_table
    from dse.report.simulation import printed_summary, printed_table

    out = console()
    print_table(printed_table(found.frame))
    for line in printed_summary(found.summary, found.info):
        out.print(line, markup=False, soft_wrap=True)
