"""Measured times as a table in place of the law, where one phase was timed apart (docs/model.md, section 2)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
from scipy.optimize import isotonic_regression

from dse.errors import InputError
from dse.hardware import Accelerator, Efficiency, Phase
from dse.model.phases import PassTime, decode_time, prefill_time
from dse.model.transformer import arithmetic
from dse.workload import Transformer

from .data import Measurements
from .fit import ModelOf, log_errors
from .layout import BYTES_16, Floats, numbers

APART = {"prefill": "prefill_s", "decode": "decode_step_s"}
"""Phase -> the quantity that times it apart."""
LEAST_S = 1e-6
"""A device file takes no shorter times."""


def measured_table(
    m: Measurements, rows: pd.DataFrame, base: Accelerator, phase: str, model_of: ModelOf
) -> Accelerator:
    """The device with a table of work -> time for one phase, from rows that time it apart.

    Work is the flop per device of a pass, time what was measured less communication. Where several rows have nearly the
    same work, or more work took less time, isotonic regression gives the nearest times that do not fall.

    Source: Barlow, Bartholomew, Bremner, Brunk, "Statistical Inference under Order Restrictions", 1972.
    """
    quantity = APART.get(phase, "")
    if quantity not in rows or rows[quantity].notna().sum() < 2:
        raise InputError(f"--table: {m.file} does not time {phase} apart at two works or more; fit the law instead")
    place: Phase = "prefill" if phase == "prefill" else "decode"
    timed = rows[rows[quantity].notna()]
    work, seconds = [], []
    for model, part in timed.groupby("model", sort=False):
        one, g = _pass(part, base, model_of(str(model)), place), numbers(part, "g")
        work.append(_looked_up_flop(one, base, place, g, part))
        seconds.append(np.maximum(numbers(part, quantity) - _communication_s(one, base, place, g), LEAST_S))
    x, y = _monotone(np.concatenate(work), np.concatenate(seconds))
    if len(x) < 2:
        raise InputError(f"--table: {m.file} times {phase} at one work only; a table needs two")
    changed: dict[Phase, Efficiency] = dict(base.efficiency)
    changed[place] = replace(changed[place], table_flop=tuple(x.tolist()), table_s=tuple(y.tolist()), by_dtype={})
    return replace(base, efficiency=changed)


def _pass(rows: pd.DataFrame, device: Accelerator, model: Transformer, phase: Phase) -> PassTime:
    """The model's own pass of each row: its work and its communication."""
    a, g, n = arithmetic(model), numbers(rows, "g"), numbers(rows, "input_tokens")
    b = _batch(rows)
    if phase == "prefill":
        return prefill_time(device, a, g=g, batch=b, input_tokens=n, hit_frac=0.0, compute_dtype="bf16", **BYTES_16)
    context = n + numbers(rows, "output_tokens") / 2.0 if "output_tokens" in rows else n
    return decode_time(device, a, g=g, batch=b, context_tokens=context, compute_dtype="bf16", **BYTES_16)


def _batch(rows: pd.DataFrame) -> Floats:
    return numbers(rows, "batch") if "batch" in rows else np.ones(len(rows))


def _looked_up_flop(one: PassTime, device: Accelerator, phase: Phase, g: Floats, rows: pd.DataFrame) -> Floats:
    """The work at which the model looks a pass up: of one device, in a pipeline's decode step of one group."""
    flop = np.asarray(one.flop)
    if device.arrangement == "tensor":
        return np.asarray(flop / g)
    if phase == "prefill":
        return flop
    b = _batch(rows)
    return np.asarray(flop * np.maximum(1.0, b / g) / b)


def _communication_s(one: PassTime, device: Accelerator, phase: Phase, g: Floats) -> Floats:
    """What a pass spends on communication from end to end: a pipeline's prefill crosses every hop."""
    crossings = g - 1.0 if device.arrangement == "pipeline" and phase == "prefill" else np.ones_like(g)
    return np.asarray(np.asarray(one.communication_s) * crossings)


def left_out_errors(
    m: Measurements, rows: pd.DataFrame, base: Accelerator, phase: str, model_of: ModelOf
) -> pd.DataFrame:
    """log(predicted/measured) of every row by the table that the other rows give; NaN where they give none."""
    errors = pd.DataFrame(np.nan, index=rows.index, columns=[q.name for q in m.layout.quantities], dtype=np.float64)
    for i in rows.index:
        try:
            others = measured_table(m, rows.drop(index=i), base, phase, model_of)
        except InputError:
            continue
        errors.loc[[i]] = log_errors(m.layout, rows.loc[[i]], others, model_of)
    return errors


def _monotone(work: Floats, seconds: Floats) -> tuple[Floats, Floats]:
    """Ascending works, each once, with times that do not fall."""
    x, at = np.unique(np.round(work, -3), return_inverse=True)  # equal but for the order of additions
    weight = np.bincount(at).astype(np.float64)
    mean = np.bincount(at, weights=seconds) / weight
    return x, np.asarray(isotonic_regression(mean, weights=weight).x, dtype=np.float64)
