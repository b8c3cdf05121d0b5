"""Prediction against measurement, per data set, device, stack and quantity: how far to trust the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from dse.catalog import load_catalog
from dse.hardware import PHASES, Accelerator

from .accuracy import LARGE_PCT, Accuracy, accuracy, covered_frac
from .aiconfigurator import with_aiconfigurator
from .data import AICONFIGURATOR, Measurements, Names
from .fit import fit, log_errors
from .folds import errors_by_fold, fold_of, held_out_coverage, held_out_errors
from .layout import Layout, Quantity

WORST = 5
FOLD_KEY = {"model": "by model", "shape": "by shape", "row": "row by row"}


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """Errors on rows that a fit to the others did not see."""

    by: str
    error: Accuracy
    coverage80: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """One line of the table."""

    data: str
    device: str
    phase: str
    quantity: str
    profile: str
    error: Accuracy
    coverage80: float
    """Share of rows inside the profile's 80 % interval; NaN where the catalogue gives none."""
    reason: str
    """Why the line is as bad as it is, where it is known; else empty."""
    rows: pd.DataFrame = field(repr=False)
    """Every measurement: `line` in the file, model, `measured`, `predicted`, `error_pct`, `setting`."""
    held_out: tuple[HeldOut, ...] = ()

    @property
    def worst(self) -> pd.DataFrame:
        """The rows furthest off."""
        return self.rows.loc[self.rows["error_pct"].abs().sort_values(ascending=False).index[:WORST]]


REASONS = {
    ("splitwise", "power_mean_frac"): (
        "the model gives a busy device its full power; decoding draws about 0.6 of it (docs/calibration.md)"
    ),
    ("splitwise", "decode_step_s"): "this stack's decode is bound by host software, not by memory",
    ("waferllm", "prefill_s"): (
        "rows differ by the part of the wafer in use, and the larger model reaches a larger share of the peak; here "
        "there is one share"
    ),
    ("kernel", "call_s"): (
        "one law for all shapes: tiles and waves of single kernels stay out, and few heads or short caches fill the "
        "device badly"
    ),
    ("nccl", "allreduce_s"): "the catalogue's numbers are those of TensorRT-LLM's kernel; NCCL starts slower",
    ("tensorrt-llm", "allreduce_s"): "one latency for all sizes: the smallest messages are faster",
}
"""Known causes of large errors, by stack and quantity; shown where the median error is above `LARGE_PCT`."""


def validations(
    m: Measurements, names: Names, *, folds: bool, report: Callable[[str], None] = lambda _: None
) -> Iterator[Validation]:
    """The lines of one table."""
    for (device, profile), rows in m.rows.groupby(["device", "profile"], sort=True):
        report(f"{m.file}: {device}, {profile}")
        if m.layout.kernels:
            yield from _kernel_lines(m, names, str(device), rows)
            continue
        base = names.device(str(device), str(profile))
        errors = _errors(m.layout, rows, base, names, measured=profile == AICONFIGURATOR)
        held = _held_out(m, names, str(device), rows) if folds else {}
        for quantity in m.layout.quantities:
            if errors[quantity.name].notna().any():
                shown = names.shown_profile(base.name, str(profile), quantity.phases)
                yield _line(m, base, shown, quantity, rows, errors[quantity.name], held)


def _errors(layout: Layout, rows: pd.DataFrame, base: Accelerator, names: Names, *, measured: bool) -> pd.DataFrame:
    """log(predicted/measured); with aiconfigurator's tables in place of the law where asked for."""
    if not measured:
        return log_errors(layout, rows, base, names.model)
    parts = []
    for (model, dtype), part in rows.groupby(["model", "dtype"]):
        device = with_aiconfigurator(base, names.model(str(model)), compute_dtype=str(dtype), kv_dtype=layout.kv_dtype)
        parts.append(log_errors(layout, part, device, names.model))
    return pd.concat(parts).reindex(rows.index)


def _line(
    m: Measurements,
    base: Accelerator,
    profile: str,
    quantity: Quantity,
    rows: pd.DataFrame,
    errors: pd.Series[float],
    held: dict[str, pd.DataFrame],
) -> Validation:
    measured = errors.notna()
    compared = _compared(rows[measured], quantity.name, errors[measured])
    error = accuracy(errors)
    reason = REASONS.get((str(rows["stack"].iloc[0]), quantity.name), "") if error.median_pct > LARGE_PCT else ""
    return Validation(
        data=m.file,
        device=base.name,
        phase=quantity.phase,
        quantity=quantity.name,
        profile=profile,
        error=error,
        coverage80=_coverage(base, quantity, rows, errors),
        reason=reason,
        rows=compared,
        held_out=tuple(
            HeldOut(
                by=FOLD_KEY[key],
                error=accuracy(e[quantity.name]),
                coverage80=held_out_coverage(e[quantity.name], fold_of(rows, key)),
            )
            for key, e in held.items()
        ),
    )


def _held_out(m: Measurements, names: Names, device: str, rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Out-of-fold errors of each data type's own fit, by what a fold leaves out."""
    base = names.device(device, names.bare_profile(device))
    parts: dict[str, list[pd.DataFrame]] = {}
    for _, part in rows.groupby("dtype"):
        for key, errors in errors_by_fold(m.layout, part, base, m.layout.parameters, names.model).items():
            parts.setdefault(key, []).append(errors)
    return {key: pd.concat(found).reindex(rows.index) for key, found in parts.items()}


def _kernel_lines(m: Measurements, names: Names, device: str, rows: pd.DataFrame) -> Iterator[Validation]:
    """The law fitted to single kernels, a data type at a time, and judged on shapes that the fit did not see."""
    quantity, base = m.layout.quantities[0], names.device(device, "default")
    for dtype, part in rows.groupby("dtype", sort=True):
        errors = held_out_errors(m.layout, part, base, m.layout.parameters, names.model, "shape", prior=False)
        if errors is None:
            found = fit(m.layout, part, base, m.layout.parameters, names.model)
            errors = log_errors(m.layout, part, found.on(base), names.model)
        yield _line(m, base, f"law fitted here, {dtype}", quantity, part, errors[quantity.name], {})


def _coverage(base: Accelerator, quantity: Quantity, rows: pd.DataFrame, errors: pd.Series[float]) -> float:
    """Share of rows inside the intervals that the device's numbers carry for their data types."""
    inside, n = 0.0, 0
    for dtype, part in rows.groupby("dtype"):
        numbers = [base.efficiency[p].at(str(dtype)) for p in PHASES if p in quantity.phases]
        known = [e.interval for e in numbers if e.interval and e.interval.quantity.endswith(quantity.name)]
        own = errors[part.index].dropna()
        if known and len(own):
            inside += covered_frac(own, known[0].low, known[0].high) * len(own)
            n += len(own)
    return inside / n if n else float("nan")


_SETTING = ("g", "n", "batch", "users", "micro_batch", "global_batch", "input_tokens", "output_tokens",
            "sequence_tokens", "recompute", "message_byte", "flop", "dtype", "shape")  # fmt: skip


def _compared(rows: pd.DataFrame, name: str, errors: pd.Series[float]) -> pd.DataFrame:
    """Rows with measurement, prediction and relative error."""
    measured = rows[name].astype(float)
    said = [c for c in _SETTING if c in rows]
    setting = [
        ", ".join(f"{c} {v:g}" if isinstance(v, float) else f"{c} {v}" for c, v in zip(said, values, strict=True))
        for values in rows[said].itertuples(index=False)
    ]
    return pd.DataFrame(
        {
            "line": rows["line"],
            "model": rows["model"],
            "setting": setting,
            "measured": measured,
            "predicted": measured * np.exp(errors),
            "error_pct": 100.0 * np.expm1(errors),
        },
        index=rows.index,
    )


def catalogue_errors(devices: Sequence[str] = ()) -> pd.DataFrame:
    """What the catalogue says of its own error, a row a profile, phase and quantity; of some devices, or of all."""
    known = load_catalog()
    rows = [
        {
            "device": e.device,
            "profile": e.profile,
            "phase": e.phase,
            "dtype": e.dtype or "all",
            "quantity": e.quantity,
            "n": e.n,
            "median_pct": e.median_pct,
            "p90_pct": e.p90_pct,
            "bias_pct": e.bias_pct,
            "held_out_median_pct": e.held_out_median_pct,
            "held_out_p90_pct": e.held_out_p90_pct,
            "low": e.low,
            "high": e.high,
            "source": known.citations[e.source],
        }
        for e in known.errors
        if not devices or e.device in devices
    ]
    return pd.DataFrame(rows)
