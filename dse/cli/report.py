"""`dse report`: rebuilds the HTML report of a run folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    folder: Annotated[Path, typer.Argument(help="Run folder written by dse run.", metavar="DIR")],
    out: Annotated[Path | None, typer.Option(help="Where to write; default DIR/report.html.")] = None,
) -> None:
    """Rebuild the HTML report of a run."""
    from dse.report import load_run, write_report

    page = write_report(load_run(folder), out or folder / "report.html")
    typer.echo(f"Report: {page}")
