"""The commands, put together."""

from __future__ import annotations

from typing import Annotated

import typer

from dse.cli.batch import batch
from dse.cli.calibrate import calibrate
from dse.cli.catalog import catalog
from dse.cli.check import check, schema
from dse.cli.export import export
from dse.cli.paper import paper
from dse.cli.report import report
from dse.cli.run import run
from dse.cli.score import score
from dse.cli.simulate import simulate
from dse.cli.validate import validate

app = typer.Typer(
    name="dse",
    help="Which mix of GPUs and wafer-scale engines to buy for an LLM workload, how to lay the work on it, and why.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    epilog="Add --debug to any command for a traceback.",
)


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"heterodse {version('heterodse')}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Which mix of GPUs and wafer-scale engines to buy for an LLM workload, how to lay the work on it, and why."""


app.command()(run)
app.command()(batch)
app.command()(score)
app.command()(check)
app.command()(schema)
app.command()(catalog)
app.command()(report)
app.command()(export)
app.command()(simulate)
app.command()(paper)
app.command()(calibrate)
app.command()(validate)
