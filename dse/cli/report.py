"""`dse report`: rebuilds the HTML report of a run folder, or compares several."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from dse.cli.check import AsJson

if TYPE_CHECKING:
    from dse.explore import Result

COMPARISON = "comparison.html"
T = TypeVar("T")


def report(
    folders: Annotated[
        list[Path],
        typer.Argument(help="Run folder written by dse run; several are compared with the first.", metavar="DIR..."),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="Where to write; default DIR/report.html, and comparison.html here for several runs."),
    ] = None,
    what_if: Annotated[
        bool, typer.Option("--what-if", help="First look for every break-even, however long it takes.")
    ] = False,
    figures: Annotated[
        Path | None, typer.Option(help="Also write every view as SVG, PDF and PNG into this folder.")
    ] = None,
    figure_width_mm: Annotated[float, typer.Option(min=40, max=500, help="Width of these figures.")] = 120.0,
    csv: Annotated[Path | None, typer.Option(help="Also write the frontier as CSV.")] = None,
    parquet: Annotated[Path | None, typer.Option(help="Also write the frontier as Parquet.")] = None,
    as_json: AsJson = False,
) -> None:
    """Rebuild the HTML report of a run, or compare runs."""
    from dse.errors import InputError

    if out is not None and (out.name in ("", "..") or (out.exists() and not out.is_file())):
        raise InputError(f"--out {str(out)!r}: name a file of its own for the page")
    if len(folders) > 1:
        given = {"--what-if": what_if, "--figures": figures, "--csv": csv, "--parquet": parquet}
        wrong = [name for name, value in given.items() if value]
        if wrong:
            raise InputError(f"{', '.join(wrong)}: is for one run; give a single folder")
        _compare(folders, out or Path(COMPARISON), as_json=as_json)
        return
    result = _rebuild(folders[0], out, what_if=what_if, quiet=as_json)
    if csv is not None:
        _write(csv, "--csv", result, lambda path: result.frontier.to_csv(path, index=False), quiet=as_json)
    if parquet is not None:
        _write(parquet, "--parquet", result, lambda path: result.frontier.to_parquet(path, index=False), quiet=as_json)
    if figures is not None:
        _draw(result, figures, figure_width_mm, quiet=as_json)
    if as_json:
        from dse.cli.run import as_plain

        typer.echo(json.dumps(as_plain(result, folders[0]), indent=2))


def _draw(result: Result, folder: Path, width_mm: float, *, quiet: bool) -> None:
    """All views as files."""
    from dse.report.static_figures import write_figures

    files = write_figures(result, folder, width_mm=width_mm)
    if not quiet:
        typer.echo(f"Figures: {len(files)} files in {folder}")


def _write(path: Path, option: str, result: Result, write: Callable[[Path], object], *, quiet: bool) -> None:
    """The frontier as a table file, whole or not there."""
    from dse.errors import InputError
    from dse.files import whole

    if path.name in ("", "..") or path.is_dir():
        raise InputError(f"{option} {str(path)!r}: is a folder; name a file")
    try:
        with whole(path) as beside:
            write(beside)
    except OSError as error:
        raise InputError(f"{option} {path}: cannot be written: {error.strerror or error}") from None
    if not quiet:
        typer.echo(f"Frontier: {path}, {len(result.frontier)} designs")


def _rebuild(folder: Path, out: Path | None, *, what_if: bool, quiet: bool) -> Result:
    """The page of one run, and the run."""
    from dse.cli.run import signals
    from dse.explore import with_what_if
    from dse.progress import Stop
    from dse.report import load_run, write_report
    from dse.run_folder import write_info

    def work() -> tuple[Path, Result]:
        result = load_run(folder)
        if what_if:
            stop = Stop()
            with signals(stop):
                result = with_what_if(result, stop)
        page = write_report(result, out or folder / "report.html")
        if what_if:
            write_info(result, folder)
        return page, result

    page, result = fitting([folder], work)
    if not quiet:
        typer.echo(f"Report: {page}")
    return result


def _compare(folders: Sequence[Path], out: Path, *, as_json: bool) -> None:
    """The comparison of several runs with the first."""
    from dse.compare import compare
    from dse.errors import InputError
    from dse.report import load_run
    from dse.report.compare import as_json as plain
    from dse.report.compare import lines, write_comparison

    resolved = [f.resolve() for f in folders]
    twice = [str(f) for k, f in enumerate(folders) if resolved[k] in resolved[:k]]
    if twice:
        raise InputError(f"{', '.join(twice)}: given twice; name each run folder once")
    runs: dict[str, Result] = {}
    faults: list[str] = []
    for folder, name in zip(folders, names_of(folders), strict=True):
        try:
            runs[name] = load_run(folder)
        except InputError as error:
            faults += error.faults
    if faults:
        raise InputError(faults)

    def work() -> None:
        comparison = compare(runs)
        page = write_comparison(comparison, out)
        if as_json:
            typer.echo(json.dumps(plain(comparison), indent=2))
            return
        for line in lines(comparison):
            typer.echo(line)
        typer.echo(f"Comparison: {page}")

    fitting(folders, work)


def names_of(folders: Sequence[Path]) -> list[str]:
    """A short name for each folder: as much of the end of its path as tells it from the others.

    >>> names_of([Path("runs/a"), Path("old/a"), Path("b")])
    ['runs/a', 'old/a', 'b']
    """
    parts = [folder.resolve().parts for folder in folders]
    for depth in range(1, max(map(len, parts)) + 1):
        names = ["/".join(p[-depth:]) for p in parts]
        if len(set(names)) == len(names):
            clash = ["/".join(p[-1:]) for p in parts]
            return [short if clash.count(short) == 1 else name for short, name in zip(clash, names, strict=True)]
    return [str(folder) for folder in folders]


def fitting(folders: Sequence[Path], work: Callable[[], T]) -> T:
    """What the work gives; files of a folder that do not fit together are one clear sentence."""
    from dse.errors import InputError

    try:
        return work()
    except InputError:
        raise
    except (KeyError, TypeError, AttributeError, OverflowError, ValueError) as error:
        what = f"{type(error).__name__}: {error}"
        where = ", ".join(map(str, folders))
        raise InputError(f"{where}: its files do not fit together ({what}); run the study again") from None
