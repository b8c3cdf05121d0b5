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
    from dse.errors import InputError
    from dse.report import load_run, write_report

    if out is not None and (out.name in ("", "..") or (out.exists() and not out.is_file())):
        raise InputError(f"--out {str(out)!r}: name a file of its own for the page")

    try:
        page = write_report(load_run(folder), out or folder / "report.html")
    except InputError:
        raise
    except (KeyError, TypeError, AttributeError, OverflowError, ValueError) as error:
        what = f"{type(error).__name__}: {error}"
        raise InputError(f"{folder}: its files do not fit together ({what}); run the study again") from None
    typer.echo(f"Report: {page}")
