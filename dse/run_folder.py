"""The run folder: its files, each written beside and renamed, so that none is ever half there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import tomli_w

from dse.checkpoint import FILE, is_own
from dse.errors import InputError
from dse.explore import CHECKPOINT, JOURNAL, Result
from dse.files import whole, write_whole
from dse.plan import Plan, plan_of
from dse.simulate import Simulation
from dse.units import json_safe

PLAN = "plan.json"
SIMULATION = "simulation.csv"
RUN_FILES = ("study.toml", "frontier.csv", "candidates.parquet", "run.json", PLAN, "report.html", SIMULATION)


def is_run(folder: Path) -> bool:
    """Whether a folder holds a run, complete, stopped or killed at any moment, and nothing that another needs."""
    if (folder / "run.json").is_file() or (folder / CHECKPOINT / FILE).is_file():
        return True
    own = {*RUN_FILES, *(f".{name}.new" for name in RUN_FILES), JOURNAL}
    return all(
        p.name in own
        or p.name.startswith(f"{JOURNAL}.lock")
        or (p.name == CHECKPOINT and p.is_dir() and all(is_own(q) for q in p.iterdir()))
        for p in folder.iterdir()
    )


def refuse_foreign(folder: Path) -> None:
    """A run goes into a new folder, an empty one, or over an old run; never among other files."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"--out {str(folder)!r}: is a file; name a folder for the run")
    if folder.is_dir() and any(folder.iterdir()) and not is_run(folder):
        raise InputError(f"--out {str(folder)!r}: holds other files and no run; name a new folder")


def ready(folder: Path) -> None:
    """Makes a folder for a run, before hours are spent on one. InputError where it is another's or not writable."""
    refuse_foreign(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tried = folder / f".{PLAN}.new"
        tried.touch()
        tried.unlink()
    except OSError as error:
        raise InputError(f"--out {folder}: cannot be written: {error.strerror}") from None


@contextmanager
def gone_if_empty(folder: Path) -> Iterator[None]:
    """Where work inside fails before it has written anything, the folder made for it goes too."""
    try:
        yield
    except BaseException:
        with suppress(OSError):
            folder.rmdir()
        raise


def write_run(result: Result, folder: Path) -> None:
    """Writes all files but the page. Raises InputError where the folder cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        blocked = [name for name in RUN_FILES if (folder / name).is_dir()]
        if blocked:
            raise InputError(f"--out {folder}: {', '.join(blocked)} is a directory there; name another folder")
        _write_files(result, folder)
    except OSError as error:
        raise InputError(f"--out {folder}: cannot be written: {error.strerror}") from None


def _write_files(result: Result, folder: Path) -> None:
    raw, files = result.study.portable()
    for name, source in files.items():
        if source.resolve() != (folder / name).resolve():
            write_whole(folder / name, source.read_text(encoding="utf-8"))
    write_whole(folder / "study.toml", tomli_w.dumps(raw))
    write_whole(folder / "frontier.csv", result.frontier.to_csv(index=False))
    with whole(folder / "candidates.parquet") as beside:
        result.candidates.to_parquet(beside, index=False)
    write_info(result, folder)
    (folder / SIMULATION).unlink(missing_ok=True)  # of the run that was here before
    if result.recommended is None:
        (folder / PLAN).unlink(missing_ok=True)
    else:
        write_plan(plan_of(result), folder / PLAN)


def write_plan(plan: Plan, path: Path) -> None:
    """Writes a plan as JSON."""
    write_whole(path, json.dumps(plan, indent=2) + "\n")


def write_simulation(result: Result, found: Simulation, folder: Path) -> Result:
    """Writes simulation.csv, and run.json with what the replay said; the run that now knows it."""
    rows = found.frame.to_dict(orient="records")
    told = json_safe({**found.info, "summary": found.summary, "rows": rows})
    known = replace(result, info={**result.info, "simulation": told})
    try:
        write_whole(folder / SIMULATION, found.frame.to_csv(index=False))
        write_info(known, folder)
    except OSError as error:
        raise InputError(f"{folder}: cannot be written: {error.strerror}") from None
    return known


def write_info(result: Result, folder: Path) -> None:
    """Writes run.json alone, in the place of the old one."""
    write_whole(folder / "run.json", json.dumps(json_safe(result.info), indent=2))
