"""`dse validate`: the model's predictions against measurements."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dse.cli.check import AsJson

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dse.calibration.data import Measurements
    from dse.calibration.validate import Validation


def validate(
    data: Annotated[
        list[Path] | None,
        typer.Argument(help="CSV files of a known layout, or folders of them; none: the catalogue's own errors."),
    ] = None,
    folds: Annotated[
        bool, typer.Option("--folds", help="Also errors on models and shapes that a fit did not see.")
    ] = False,
    profile: Annotated[str, typer.Option(help="Profile for every row; else the one that its stack names.")] = "",
    device: Annotated[
        list[str] | None, typer.Option("--device", help="NAME=FILE.toml: a device that the catalogue lacks.")
    ] = None,
    model: Annotated[
        list[str] | None, typer.Option("--model", help="NAME=FILE.json: a model that the catalogue lacks.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for every row, and a plot of each data set.")
    ] = None,
    worst: Annotated[
        bool, typer.Option("--worst", help="Print the five rows of each line that are furthest off.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Predict what was measured, and say how far off the predictions are."""
    from dse.calibration.data import Names, load_all, named_files
    from dse.calibration.validate import validations
    from dse.errors import InputError

    if not data:
        _print_catalogue(as_json)
        return
    if profile and device:
        raise InputError("--profile goes with devices of the catalogue; a device file has one set of numbers")
    names = Names(
        devices=named_files(device or [], "--device", ".toml"), models=named_files(model or [], "--model", ".json")
    )
    tables = load_all(data, names, profile)
    lines = [line for m in tables for line in validations(m, names, folds=folds, report=_progress)]
    if as_json:
        typer.echo(json.dumps([_record(line) for line in lines], indent=2))
    else:
        _print_lines(lines, folds=folds)
        if worst:
            _print_worst(lines)
    _print_skipped(tables)
    if out is not None:
        from dse.calibration.picture import write_validation

        write_validation(lines, out)
        typer.echo(f"rows and plots in {out}", err=True)


def _progress(text: str) -> None:
    typer.echo(text, err=True)


def _record(line: Validation) -> dict[str, object]:
    from dataclasses import asdict

    from dse.units import json_safe

    record: dict[str, object] = {
        "data": line.data,
        "device": line.device,
        "phase": line.phase,
        "quantity": line.quantity,
        "profile": line.profile,
        **asdict(line.error),
        "coverage80": line.coverage80,
        "reason": line.reason,
        "worst": line.worst[["line", "model", "setting", "measured", "predicted", "error_pct"]].to_dict("records"),
    }
    if line.held_out:
        record["held_out"] = [{"by": h.by, **asdict(h.error), "coverage80": h.coverage80} for h in line.held_out]
    return dict(json_safe(record))


def _percent(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.1f}"


def _print_lines(lines: Sequence[Validation], *, folds: bool) -> None:
    from rich.table import Table

    from dse.cli.tables import console

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("data", "device", "profile", "quantity"):
        table.add_column(title)
    for title in ("n", "median %", "p90 %", "bias %", "in 80 %"):
        table.add_column(title, justify="right")
    if folds:
        table.add_column("held out, median / p90 %")
    for line in lines:
        e = line.error
        share = "-" if line.coverage80 != line.coverage80 else f"{line.coverage80:.2f}"
        cells = [line.data, line.device, line.profile, line.quantity, str(e.n), _percent(e.median_pct),
                 _percent(e.p90_pct), f"{e.bias_pct:+.1f}", share]  # fmt: skip
        if folds:
            cells.append(
                "; ".join(f"{h.by} {_percent(h.error.median_pct)} / {_percent(h.error.p90_pct)}" for h in line.held_out)
                or "-"
            )
        table.add_row(*cells)
    console().print(table)
    for line in lines:
        if line.reason:
            typer.echo(f"{line.data}, {line.device}, {line.quantity}: {line.reason}")


def _print_worst(lines: Sequence[Validation]) -> None:
    for line in lines:
        typer.echo(f"\n{line.data}, {line.device}, {line.profile}, {line.quantity}: furthest off")
        for row in line.worst.to_dict("records"):
            typer.echo(
                f"  line {row['line']}: {row['error_pct']:+.0f} %, measured {row['measured']:.4g}, "
                f"predicted {row['predicted']:.4g}; {row['model']} {row['setting']}"
            )


def _print_skipped(tables: Sequence[Measurements]) -> None:
    for m in tables:
        for why, count in m.skipped.items():
            typer.echo(f"{m.file}: {count} rows not used: {why}", err=True)


def _print_catalogue(as_json: bool) -> None:
    from dse.calibration.validate import catalogue_errors
    from dse.units import json_safe

    frame = catalogue_errors()
    if as_json:
        typer.echo(json.dumps(json_safe(frame.to_dict("records")), indent=2))
        return
    from rich.table import Table

    from dse.cli.tables import console

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("device", "profile", "phase", "dtype", "quantity"):
        table.add_column(title)
    for title in ("n", "median %", "p90 %", "bias %", "held out %", "80 % of times are within"):
        table.add_column(title, justify="right")
    for row in frame.to_dict("records"):
        out = "-"
        if not math.isnan(row["held_out_median_pct"]):
            out = f"{row['held_out_median_pct']:.1f} / {row['held_out_p90_pct']:.1f}"
        table.add_row(
            row["device"], row["profile"], row["phase"], row["dtype"], row["quantity"], str(row["n"] or "carried"),
            _percent(row["median_pct"]), _percent(row["p90_pct"]), _percent(row["bias_pct"]), out,
            f"{row['low']:.2f} to {row['high']:.2f} of the prediction",
        )  # fmt: skip
    console().print(table)
