"""`dse report`: rebuilds the HTML report of a run folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    folder: Annotated[Path, typer.Argument(help="Run folder written by dse run.", metavar="DIR")],
    out: Annotated[Path | None, typer.Option(help="Where to write; default DIR/report.html.")] = None,
    what_if: Annotated[
        bool, typer.Option("--what-if", help="First look for every break-even, however long it takes.")
    ] = False,
) -> None:
    """Rebuild the HTML report of a run."""
    from dse.cli.run import signals
    from dse.errors import InputError
    from dse.explore import with_what_if
    from dse.progress import Stop
    from dse.report import load_run, write_report
    from dse.run_folder import write_info

    if out is not None and (out.name in ("", "..") or (out.exists() and not out.is_file())):
        raise InputError(f"--out {str(out)!r}: name a file of its own for the page")

    try:
        result = load_run(folder)
        if what_if:
            stop = Stop()
            with signals(stop):
                result = with_what_if(result, stop)
            write_info(result, folder)
        page = write_report(result, out or folder / "report.html")
    except InputError:
        raise
    except (KeyError, TypeError, AttributeError, OverflowError, ValueError) as error:
        what = f"{type(error).__name__}: {error}"
        raise InputError(f"{folder}: its files do not fit together ({what}); run the study again") from None
    typer.echo(f"Report: {page}")
