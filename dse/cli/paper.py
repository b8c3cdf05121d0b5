"""`dse paper`: the paper's figures and tables, computed, drawn, and its statements checked one by one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from experiments.paper.statement import Statement


def paper(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="fig5, fig12, table3, eq5, ...; all without a name.", metavar="[NAME ...]"),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for NAME.csv, NAME.svg and NAME.png.")] = Path("runs/paper"),
    as_json: Annotated[bool, typer.Option("--json", help="The statements as one JSON list on stdout.")] = False,
) -> None:
    """Reproduce the paper's experiments; a statement that differs is a result, not an error."""
    from dse.errors import InputError, UnknownNameError, unknown_name
    from experiments.paper.figures import FIGURES, reproduce

    chosen = list(dict.fromkeys(names or FIGURES))
    unknown = [unknown_name("paper", "figure", name, FIGURES) for name in chosen if name not in FIGURES]
    if unknown:
        raise UnknownNameError(unknown)
    if out.exists() and not out.is_dir():
        raise InputError(f"--out {str(out)!r}: is a file; name a folder")
    out.mkdir(parents=True, exist_ok=True)
    statements = []
    for name in chosen:
        found = reproduce(name, out)
        statements += found
        if not as_json:
            _print(FIGURES[name].title, found)
    if as_json:
        typer.echo(json.dumps([s.as_json() for s in statements], indent=2))
        return
    n_pass = sum(s.passes for s in statements)
    typer.echo(f"{n_pass} of {len(statements)} statements pass, {len(statements) - n_pass} differ")
    typer.echo(f"Data and pictures: {out}")


def _print(title: str, statements: list[Statement]) -> None:
    from rich.markup import escape
    from rich.table import Table

    from dse.cli.tables import console

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("", no_wrap=True)
    for head, share in (("statement", 5), ("here", 6), ("paper", 3)):
        table.add_column(head, ratio=share, overflow="fold")
    for s in statements:
        table.add_row("pass" if s.passes else "differs", *map(escape, (s.statement, s.value, s.paper)))
    typer.echo(title)
    console().print(table)
    typer.echo("")
