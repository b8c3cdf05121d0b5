"""`dse export`: a design of a run in a form that a deployer reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer


def export(
    folder: Annotated[Path, typer.Argument(help="Run folder written by dse run.", metavar="DIR")],
    design: Annotated[str | None, typer.Option(help="Another design of the run; default the recommended one.")] = None,
    plan: Annotated[Path | None, typer.Option(help="Where to write; default DIR/plan.json. - for stdout.")] = None,
) -> None:
    """Write the plan of one design: pools, parallelism, batches, memory, link, vLLM and Dynamo arguments."""
    from dse.cli.report import fitting
    from dse.errors import InputError
    from dse.plan import plan_of
    from dse.report import load_run
    from dse.run_folder import PLAN, write_plan

    found = fitting([folder], lambda: plan_of(load_run(folder), design))
    if plan is not None and str(plan) == "-":
        typer.echo(json.dumps(found, indent=2))
        return
    target = plan or folder / PLAN
    if target.name in ("", "..") or target.is_dir():
        raise InputError(f"--plan {str(target)!r}: is a folder; name a file")
    try:
        write_plan(found, target)
    except OSError as error:
        raise InputError(f"--plan {target}: cannot be written: {error.strerror}") from None
    typer.echo(f"Plan: {target}")
