"""How far off the catalogue's profiles were: `accuracy.csv`, one row a profile, phase, data type and quantity."""

from __future__ import annotations

import csv
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

HEAD = (
    "device", "profile", "phase", "dtype", "quantity", "n", "median_pct", "p90_pct", "bias_pct",
    "held_out_median_pct", "held_out_p90_pct", "low", "high", "source",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileError:
    """How far off a profile's predictions were in one phase and quantity (docs/calibration.md)."""

    device: str
    profile: str
    phase: str
    dtype: str
    """Empty: every data type."""
    quantity: str
    n: int
    """Measurements; 0 where the profile is carried over from a near relative."""
    median_pct: float
    """Of |predicted/measured - 1|; NaN where nothing was measured."""
    p90_pct: float
    bias_pct: float
    """Above 0 the prediction is too long."""
    held_out_median_pct: float
    """The same on rows that the fit did not see; NaN where the numbers were not fitted to them."""
    held_out_p90_pct: float
    low: float
    """80 % of measured times lie between `low` and `high` times the predicted one."""
    high: float
    source: str


def read_profile_errors(folder: Path, citations: Mapping[str, str], faults: list[str]) -> tuple[ProfileError, ...]:
    """The rows of a catalogue folder; every fault is noted. A folder without the table knows no errors."""
    path = folder / "accuracy.csv"
    if not path.exists():
        return ()
    found: dict[tuple[str, ...], ProfileError] = {}
    with path.open(newline="", encoding="utf-8") as file:
        rows = csv.DictReader(file)
        if tuple(rows.fieldnames or ()) != HEAD:
            faults.append(f"{path.name}: the header must be {', '.join(HEAD)}")
            return ()
        for line, row in enumerate(rows, start=2):
            where = f"{path.name}:{line}"
            if row["source"] not in citations:
                faults.append(f"{where}: no citation for source {row['source']!r}")
            try:
                error = _profile_error(row)
            except (TypeError, ValueError) as fault:
                faults.append(f"{where}: {fault}")
                continue
            if not 0 < error.low <= error.high < math.inf:
                faults.append(f"{where}: interval {error.low:g} to {error.high:g}, must be positive and ascend")
            key = (error.device, error.profile, error.phase, error.dtype)
            if key in found:
                faults.append(f"{where}: repeats {', '.join(filter(None, key))}; one quantity judges a phase")
            found[key] = error
    return tuple(found.values())


def _profile_error(row: Mapping[str, str]) -> ProfileError:
    number = {key: float(row[key] or "nan") for key in row if key.endswith("_pct") or key in ("low", "high")}
    return ProfileError(
        device=row["device"],
        profile=row["profile"],
        phase=row["phase"],
        dtype=row["dtype"],
        quantity=row["quantity"],
        n=int(row["n"]),
        median_pct=number["median_pct"],
        p90_pct=number["p90_pct"],
        bias_pct=number["bias_pct"],
        held_out_median_pct=number["held_out_median_pct"],
        held_out_p90_pct=number["held_out_p90_pct"],
        low=number["low"],
        high=number["high"],
        source=row["source"],
    )


def errors_of(
    errors: Sequence[ProfileError], device: str, profile: str, phase: str, dtype: str
) -> tuple[ProfileError, ...]:
    """What is known of a profile's error in one phase: of its data type, else of every one."""
    rows = [e for e in errors if (e.device, e.profile, e.phase) == (device, profile, phase)]
    own = tuple(e for e in rows if e.dtype == dtype)
    return own or tuple(e for e in rows if not e.dtype)


def known_profile_faults(errors: Sequence[ProfileError], known: Collection[tuple[str, str, str]]) -> list[str]:
    """Rows about a device, profile and phase that has no efficiencies."""
    return [
        f"accuracy.csv [{e.device}, {e.profile}, {e.phase}]: there are no efficiencies of that name"
        for e in errors
        if (e.device, e.profile, e.phase) not in known
    ]
