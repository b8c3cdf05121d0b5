"""`dse calibrate`: fits a device's numbers to measurements and writes a device file."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dse.cli.check import AsJson

if TYPE_CHECKING:
    from dse.calibration.calibrate import Calibration
    from dse.hardware import Accelerator


class Fitted(StrEnum):
    """What can be fitted."""

    prefill = "prefill"
    decode = "decode"
    serving = "serving"
    train = "train"
    link = "link"
    alpha = "alpha"


def calibrate(
    measurements: Annotated[Path, typer.Argument(help="CSV of a known layout; for alpha: a run folder.")],
    phase: Annotated[
        Fitted, typer.Option("--phase", help="Whose numbers; serving: prefill and decode; alpha: of eq. (5).")
    ],
    device: Annotated[str, typer.Option("--device", help="Catalogue device or device file to start from.")] = "",
    stack: Annotated[str, typer.Option("--stack", help="Software stack, where the table has several.")] = "",
    dtype: Annotated[str, typer.Option("--dtype", help="Data type, where the table has several.")] = "",
    hold: Annotated[
        list[str] | None, typer.Option("--hold", help="A number to keep as the device has it; repeatable.")
    ] = None,
    table: Annotated[
        bool, typer.Option("--table", help="A measured table of work and time in place of the law.")
    ] = False,
    name: Annotated[str, typer.Option("--name", help="Name of the new device.")] = "",
    out: Annotated[Path | None, typer.Option("--out", help="Device file to write; NAME.toml unless given.")] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a device file of that name; what it says is lost.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Fit efficiencies, times and links to measurements, with their uncertainty; refuse what the data cannot tell."""
    from dse.calibration.calibrate import calibrate as calibrated
    from dse.calibration.data import Names, read_measurements
    from dse.catalog.device_facts import file_sources
    from dse.errors import InputError

    if phase is Fitted.alpha:
        _alpha(measurements, as_json)
        return
    if not device:
        raise InputError("--device is missing; name the device that the measurements are of")
    base = _base(device)
    own = Names(devices=_own_names(measurements, device)) if device.endswith(".toml") else Names()
    data = read_measurements(measurements, own)
    data.rows["device"] = data.rows["device"].replace({str(Path(device)): base.name})
    chosen = stack or _only_stack(data.rows, base.name)
    new = name or "-".join(filter(None, (base.name, chosen, dtype)))
    path = out or Path(f"{new}.toml")
    _check_output(new, path, measurements, overwrite=overwrite)
    found = calibrated(
        data,
        base,
        phase.value,
        name=new,
        hold=hold or (),
        stack=stack,
        dtype=dtype,
        table=table,
        names=own,
        sources=file_sources(Path(device)) if device.endswith(".toml") else {},
    )
    _write(found, path)
    if as_json:
        typer.echo(json.dumps(_record(found, path), indent=2))
    else:
        _print(found, path, table=table)


def _base(device: str) -> Accelerator:
    """The device to start from: a file, or the catalogue's, as the hardware at work where that is known."""
    from dse.calibration.data import Names
    from dse.catalog import load_catalog, load_device_file

    if device.endswith(".toml"):
        return load_device_file(Path(device))
    return load_catalog().device(device, Names().bare_profile(device))


def _own_names(measurements: Path, device: str) -> dict[str, Path]:
    """A device file stands for the one device of the table, or for every name that the catalogue does not know."""
    from dse.calibration.data import names_in
    from dse.calibration.names import device_name
    from dse.catalog import load_catalog, load_device_file

    own, names = load_device_file(Path(device)).name, names_in(measurements, "device", "system")
    known = load_catalog().devices
    return {n: Path(device) for n in names if len(names) == 1 or n == own or not device_name(n, known)}


def _only_stack(rows: Any, device: str) -> str:
    stacks = sorted(set(rows.loc[rows["device"] == device, "stack"]))
    return stacks[0] if len(stacks) == 1 else ""


def _check_output(name: str, path: Path, measurements: Path, *, overwrite: bool) -> None:
    """InputError where the new device's name or file cannot be, before anything is fitted."""
    import re

    from dse.catalog.device_file import NAME_PATTERN
    from dse.errors import InputError

    if not re.fullmatch(NAME_PATTERN, name):
        raise InputError(
            f"--name {name!r}: a device's name has at most 60 letters, digits, '.', '_', '+' and '-', and starts with "
            "a letter or digit"
        )
    if path.suffix != ".toml":
        raise InputError(f"--out {path}: a device file ends in .toml")
    if path.exists() and not overwrite:
        raise InputError(f"--out {path}: is there already; give another --name or --out, or --overwrite to replace it")
    if _residuals_path(path).resolve() == measurements.resolve():
        raise InputError(f"--out {path}: its residuals would overwrite {measurements}; give another --name or --out")


def _write(found: Calibration, path: Path) -> None:
    from dse.errors import InputError
    from dse.files import write_whole

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, found.file_text)
        write_whole(_residuals_path(path), found.residuals.to_csv(index=False))
    except OSError as error:
        raise InputError(f"--out {path}: cannot be written: {error.strerror}") from None


def _residuals_path(path: Path) -> Path:
    return path.with_name(f"{path.stem}-residuals.csv")


def _record(found: Calibration, path: Path) -> dict[str, Any]:
    from dataclasses import asdict

    from dse.units import json_safe

    numbers = [
        {
            "number": f.parameter.name,
            "value": f.value,
            "low": f.low,
            "high": f.high,
            "at_bound": f.at_bound,
            "goes_to": [".".join(t) for t in f.parameter.targets],
        }
        for f in (found.fit.numbers if found.fit else ())
    ]
    record = {
        "device_file": str(path),
        "residuals": str(_residuals_path(path)),
        "rows": found.n_rows,
        "numbers": numbers,
        "left_out": [p.name for p in found.dropped],
        "errors": {q: asdict(a) for q, a in found.errors.items()},
        "held_out": [{"quantity": q, "by": by, **asdict(a)} for (q, by), a in found.held_out.items()],
        "interval80": {q: list(ends) for q, ends in found.intervals.items()},
    }
    return dict(json_safe(record))


def _print(found: Calibration, path: Path, *, table: bool) -> None:
    from dse.calibration.accuracy import LARGE_PCT

    typer.echo(f"{found.device.name}: {found.n_rows} rows")
    for f in found.fit.numbers if found.fit else ():
        bound = "  at its bound" if f.at_bound and f.value else ""
        none = "  none: not seen above the noise" if not f.value else ""
        typer.echo(f"  {f.parameter.name:<24} {f.value:<10.4g} {f.low:.4g} to {f.high:.4g} (80 %){bound}{none}")
    for p in found.dropped:
        typer.echo(f"  {p.name:<24} left out: these rows do not show it; it takes {p.wanted}")
    for quantity, a in found.errors.items():
        ends = found.intervals.get(quantity)
        sure = f"; 80 % of times within {ends[0]:.2f} to {ends[1]:.2f} of the prediction" if ends else ""
        typer.echo(
            f"  {quantity}: error {a.median_pct:.1f} % median, {a.p90_pct:.1f} % p90, bias {a.bias_pct:+.1f} %{sure}"
        )
        for (held, by), e in found.held_out.items():
            if held == quantity and e.n:
                typer.echo(
                    f"    on a {by} that the fit did not see: {e.median_pct:.1f} % median, {e.p90_pct:.1f} % p90"
                )
    worst = max((a.median_pct for a in found.errors.values()), default=0.0)
    if worst > LARGE_PCT and not table:
        typer.echo("  the law fits badly; where the phase was timed apart, try --table")
    typer.echo(f"device file {path}, every row in {_residuals_path(path)}")


def _alpha(folder: Path, as_json: bool) -> None:
    """alpha of eq. (5) from a run's candidates."""
    import pandas as pd

    from dse.calibration.alpha import alpha_of_designs
    from dse.errors import InputError
    from dse.model.asymmetry import RESOURCES
    from dse.resolve import Study
    from dse.units import json_safe

    candidates = folder / "candidates.parquet"
    if not candidates.is_file():
        raise InputError(f"{folder}: holds no candidates.parquet; give a run folder, as dse run writes it")
    study = Study.load(folder / "study.toml")
    pools = [(p.name, p.device) for p in study.problem.pools]
    found = alpha_of_designs(pd.read_parquet(candidates), pools, study.problem.compute_dtypes[0])
    r = found.residuals
    record = {
        "alpha": dict(zip(RESOURCES, found.alpha[0].tolist(), strict=True)),
        "pools": r.n,
        "eta_median_error": r.eta_median,
        "eta_p90_error": r.eta_p90,
        "one_plus_eta_median_pct": 100 * r.relative_median,
        "one_plus_eta_p90_pct": 100 * r.relative_p90,
    }
    if as_json:
        typer.echo(json.dumps(json_safe(record), indent=2))
        return
    typer.echo(f"alpha of eq. (5), constant, from {r.n} pools of scored designs")
    for resource, value in zip(RESOURCES, found.alpha[0], strict=True):
        typer.echo(f"  {resource:<10} {value:.4g}")
    typer.echo(
        f"  error of 1 + eta: {100 * r.relative_median:.1f} % median, {100 * r.relative_p90:.1f} % p90; "
        "scores use the derived eta, which has none (dse paper eq5 compares the two)"
    )
