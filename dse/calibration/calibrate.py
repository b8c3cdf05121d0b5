"""From a table of measurements to a device file: the numbers of one phase, or a refusal that says what is missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from types import MappingProxyType

import numpy as np
import pandas as pd

from dse.catalog import load_catalog
from dse.catalog.device_file import device_file_text
from dse.errors import InputError
from dse.hardware import Accelerator, Efficiency, Phase, TimeInterval

from .accuracy import Accuracy, accuracy
from .data import Measurements, Names
from .fit import Fit, fit, log_errors
from .folds import ROW, errors_by_fold, widest_interval
from .layout import Layout, Parameter, Quantity
from .table import left_out_errors, measured_table

PHASES: Mapping[str, tuple[str, ...]] = {
    "prefill": ("prefill",),
    "decode": ("decode",),
    "serving": ("prefill", "decode"),
    "train": ("train",),
    "link": ("link",),
}
"""What `--phase` names -> where the numbers belong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """A calibrated device and how well it explains its measurements."""

    device: Accelerator
    """With the fitted numbers, under its new name."""
    file_text: str
    """The device file, every fitted number with its source."""
    fit: Fit | None
    """None for a measured table."""
    dropped: tuple[Parameter, ...]
    """Optional numbers that the rows do not show: left out."""
    errors: Mapping[str, Accuracy]
    """By quantity, on the rows of the fit."""
    held_out: Mapping[tuple[str, str], Accuracy]
    """By quantity and what a fold left out."""
    intervals: Mapping[str, tuple[float, float]]
    """By quantity: factors on a prediction between which 80 % of times lie, from held-out errors; else none."""
    residuals: pd.DataFrame
    """Every row: line, model, quantity, measured, predicted, error_pct."""
    n_rows: int


def calibrate(
    m: Measurements,
    base: Accelerator,
    phase: str,
    *,
    name: str,
    hold: Sequence[str] = (),
    stack: str = "",
    dtype: str = "",
    table: bool = False,
    names: Names | None = None,
    sources: Mapping[str, Mapping[str, str]] = MappingProxyType({}),
) -> Calibration:
    """Fits the numbers of one phase of a device to its rows of a table.

    InputError where the table has no such rows, holds several stacks or data types, or cannot tell a number; the
    message says which measurement would. A number in `hold` keeps the device's value. `sources` are those that a device
    file of the base gives.
    """
    known = names or Names()
    rows = _chosen(m, base, stack, dtype)
    quantities, parameters = _wanted(m, phase, hold)
    if table:
        fitted, found, dropped = measured_table(m, rows, base, phase, known.model), None, list[Parameter]()
    else:
        found, parameters, dropped = _without_the_unseen(_only(m, quantities), rows, base, parameters, known)
        _refuse(m, phase, base, found)
        fitted = found.on(base)
    errors = log_errors(m.layout, rows, fitted, known.model)
    if table:
        held = {ROW: left_out_errors(m, rows, base, phase, known.model)}
    else:
        held = errors_by_fold(_only(m, quantities), rows, base, parameters, known.model, prior=False)
    own = {q.name: accuracy(errors[q.name]) for q in quantities}
    ends = {q.name: span for q in quantities if (span := widest_interval(e[q.name] for e in held.values()))}
    named = replace(fitted, name=name, efficiency=_with_intervals(fitted, phase, quantities, ends, own))
    return Calibration(
        device=named,
        file_text=device_file_text(named, {**sources, **_sources(m, rows, base, phase, found, own)}),
        fit=found,
        dropped=tuple(dropped),
        errors=own,
        held_out={(q.name, key): accuracy(e[q.name]) for key, e in held.items() for q in quantities},
        intervals=ends,
        residuals=_residuals(rows, quantities, errors),
        n_rows=len(rows),
    )


def _chosen(m: Measurements, base: Accelerator, stack: str, dtype: str) -> pd.DataFrame:
    """The device's rows, of one stack and one data type."""
    rows = m.rows[m.rows["device"] == base.name]
    if rows.empty:
        there = ", ".join(sorted(set(m.rows["device"]))) or "none"
        raise InputError(f"{m.file}: no row of device {base.name!r}; it has rows of: {there}")
    rows = _narrowed(m, rows, "stack", stack, "--stack")
    return _narrowed(m, rows, "dtype", dtype, "--dtype")


def _narrowed(m: Measurements, rows: pd.DataFrame, column: str, wanted: str, option: str) -> pd.DataFrame:
    there = sorted(set(rows[column].astype(str)))
    if wanted and wanted not in there:
        raise InputError(
            f"{option} {wanted!r}: {m.file} has no such rows of this device; there are: {', '.join(there)}"
        )
    if not wanted and len(there) > 1:
        raise InputError(f"{m.file}: has rows of several kinds ({', '.join(there)}); choose one with {option}")
    return rows[rows[column].astype(str) == wanted] if wanted else rows


def _wanted(m: Measurements, phase: str, hold: Sequence[str]) -> tuple[list[Quantity], list[Parameter]]:
    """What is measured of a phase, and the numbers to choose."""
    places = PHASES[phase]
    quantities = [
        q
        for q in m.layout.quantities
        if q.name not in m.layout.check_only and any(place in q.phases for place in places)
    ]
    if not quantities:
        there = ", ".join(q.phase for q in m.layout.quantities)
        raise InputError(f"--phase {phase}: {m.file} ({m.layout.name}) measures no {phase}; it measures: {there}")
    free = [
        replace(p, targets=targets)
        for p in m.layout.parameters
        if (targets := tuple(t for t in p.targets if t[0] in places))
    ]
    known = [p.name for p in free]
    unknown = [h for h in hold if h not in known]
    if unknown:
        raise InputError(f"--hold {unknown[0]!r}: no such number of phase {phase}; there are: {', '.join(known)}")
    left = [p for p in free if p.name not in hold]
    if not left:
        raise InputError(f"--hold: every number of phase {phase} is held, so there is nothing to fit")
    return quantities, left


def _without_the_unseen(
    layout: Layout, rows: pd.DataFrame, base: Accelerator, parameters: list[Parameter], names: Names
) -> tuple[Fit, list[Parameter], list[Parameter]]:
    """A fit without the optional numbers that its rows do not show: the least known goes first."""
    left, dropped = list(parameters), list[Parameter]()
    while True:
        found = fit(layout, rows, base, left, names.model)
        unseen = [f for f in found.unidentified if f.parameter.optional]
        if not unseen or len(left) == 1:
            return found, left, dropped
        worst = max(unseen, key=lambda f: f.high / max(f.low, 1e-12)).parameter
        left.remove(worst)
        dropped.append(worst)


def _only(m: Measurements, quantities: Sequence[Quantity]) -> Layout:
    return replace(m.layout, check_only=frozenset(q.name for q in m.layout.quantities if q not in quantities))


def _refuse(m: Measurements, phase: str, base: Accelerator, found: Fit) -> None:
    """InputError with every number that the rows cannot tell, and what would show it."""
    faults = []
    for f in found.unidentified:
        place, key = f.parameter.targets[0]
        own = getattr(base if place == "link" else base.efficiency[place], key)
        faults.append(
            f"{m.file}: {found.n} times cannot tell {f.parameter.name} of {phase} (between {f.low:.3g} and "
            f"{f.high:.3g} at 80 %); it takes {f.parameter.wanted}; measure that, or keep the device's {own or 0:.4g} "
            f"with --hold {f.parameter.name}"
        )
    if faults:
        raise InputError(faults)


def _with_intervals(
    device: Accelerator,
    phase: str,
    quantities: Sequence[Quantity],
    ends: Mapping[str, tuple[float, float]],
    own: Mapping[str, Accuracy],
) -> dict[Phase, Efficiency]:
    """The phases' numbers with the interval of what was measured of them."""
    efficiency = dict(device.efficiency)
    for place, e in device.efficiency.items():
        measured = [q.name for q in quantities if q.name in ends and place in PHASES[phase] and place in q.phases]
        if measured:
            low, high = ends[measured[0]]
            known = TimeInterval(low=low, high=high, quantity=measured[0], n=own[measured[0]].n)
            efficiency[place] = replace(e, interval=known)
    return efficiency


def _sources(
    m: Measurements, rows: pd.DataFrame, base: Accelerator, phase: str, found: Fit | None, own: Mapping[str, Accuracy]
) -> dict[str, dict[str, str]]:
    """A source line per number: the catalogue's, and in place of those fitted what they were fitted to."""
    known = load_catalog()
    own_profile = Names().bare_profile(base.name)
    sources = known.device_sources(base.name, own_profile) if base.name in known.devices else {}
    error = "; ".join(f"{q} error {a.median_pct:.1f} % median, {a.p90_pct:.1f} % p90" for q, a in own.items())
    about = f"{len(rows)} rows of {m.file} ({m.layout.name}, {rows['stack'].iloc[0]}, {rows['dtype'].iloc[0]})"
    today = date.today().isoformat()
    if found is None:
        text = f"measured: {about}; {error}"
        return sources | {f"efficiency.{PHASES[phase][0]}.table_s": {"text": text, "date": today, "grade": "A"}}
    for f in found.numbers:
        for place, key in f.parameter.targets:
            where = key if place == "link" else f"efficiency.{place}.{key}"
            text = f"fit to {about}; {error} ({f.low:.4g} to {f.high:.4g} at 80 %)"
            sources[where] = {"text": text, "date": today, "grade": "B"}
    return sources


def _residuals(rows: pd.DataFrame, quantities: Sequence[Quantity], errors: pd.DataFrame) -> pd.DataFrame:
    parts = []
    for q in quantities:
        measured = rows[q.name].astype(float)
        parts.append(
            pd.DataFrame(
                {
                    "line": rows["line"],
                    "model": rows["model"],
                    "shape": rows["shape"],
                    "quantity": q.name,
                    "measured": measured,
                    "predicted": measured * np.exp(errors[q.name]),
                    "error_pct": 100.0 * np.expm1(errors[q.name]),
                }
            )[measured.notna()]
        )
    return pd.concat(parts)
