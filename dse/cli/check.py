"""`dse check` validates a study; `dse schema` prints the JSON Schema."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

StudyPath = Annotated[Path, typer.Argument(help="Study file (TOML).", metavar="STUDY.toml")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]


def check(study: StudyPath, as_json: AsJson = False) -> None:
    """Validate a study without running it; prints the size of its space and the method it would use."""
    from dse.choice import choose_method
    from dse.resolve import Study

    loaded = Study.load(study)
    method, why = choose_method(loaded)
    facts = {
        "study": loaded.name,
        "paradigm": loaded.envelope.paradigm,
        "pools": list(loaded.space.pool_names),
        "designs_in_grid": loaded.space.n_designs,
        "method": method,
        "method_reason": why,
    }
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
        return
    typer.echo(f"{study}: valid {facts['paradigm']} study {loaded.name!r}")
    typer.echo(f"  pools    {', '.join(loaded.space.pool_names)}")
    typer.echo(f"  space    {loaded.space.n_designs:,} designs in the grid")
    typer.echo(f"  method   {method}: {why}")


def schema() -> None:
    """Print the JSON Schema of a study file."""
    from dse.resolve import json_schema

    typer.echo(json_schema())
