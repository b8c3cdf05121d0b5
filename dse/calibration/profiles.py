"""From measurements to the catalogue's efficiency profiles, and to what is known of their error.

`benchmarks/profiles.py` runs this and writes `dse/catalog/efficiency_fitted.csv` and `dse/catalog/accuracy.csv`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from dse.hardware import Accelerator, Efficiency, Phase

from .accuracy import Accuracy, accuracy
from .data import Measurements, Names
from .fit import Fit, fit, log_errors
from .folds import errors_by_fold, widest_interval
from .layout import Layout, Parameter

MOST_SLOWED = 4.0
"""A fit that needs more than this factor describes something else."""
SLOWED_ROUNDS = 30
"""Halvings of that range: to nine digits."""
CAUTIOUS = 0.75
"""Share of measured points that are at least as fast as the default profile says."""
LONGEST_TRAINED = 8192.0
"""Tokens of a sequence up to which the default training numbers are fitted: they have no attention efficiency."""
PLAIN = ("compute", "memory", "fixed_layer_s")
"""What a default profile has: the law's three numbers, and no more."""
HARDWARE = "hardware"
ALIVE = ("serving, static batches", "serving under load")
"""Layouts of stacks that are in use today; Splitwise's of 2024 is bound by host software."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The numbers of one device, stack and data type, and how far off they are."""

    device: str
    profile: str
    dtype: str
    layout: Layout
    fit: Fit
    efficiency: Mapping[Phase, Efficiency]
    """Of the phases that were fitted."""
    errors: pd.DataFrame
    """log(predicted/measured) with these numbers."""
    held_out: Mapping[str, pd.DataFrame]
    """The same on rows that the fit did not see, by what a fold left out."""
    n_models: int
    n_shapes: int


def fitted_profile(m: Measurements, rows: pd.DataFrame, device: str, stack: str, dtype: str) -> Profile:
    """One profile from one table's rows, with typical values as a prior."""
    names = Names()
    base = names.device(device, HARDWARE)
    layout, parameters = m.layout, m.layout.parameters
    found = fit(layout, rows, base, parameters, names.model, prior=True)
    fitted = found.on(base)
    return Profile(
        device=device,
        profile=stack,
        dtype=dtype,
        layout=layout,
        fit=found,
        efficiency={phase: fitted.efficiency[phase] for phase in touched(parameters)},
        errors=log_errors(layout, rows, fitted, names.model),
        held_out=errors_by_fold(layout, rows, base, parameters, names.model),
        n_models=rows["model"].nunique(),
        n_shapes=rows["shape"].nunique(),
    )


def touched(parameters: Sequence[Parameter]) -> tuple[Phase, ...]:
    """Phases that parameters belong to."""
    found: dict[Phase, None] = {}
    for parameter in parameters:
        for place, _ in parameter.targets:
            if place != "link":
                found[place] = None
    return tuple(found)


def stack_profiles(tables: Sequence[Measurements]) -> Iterator[Profile]:
    """Every device, stack and data type that the tables have a profile for."""
    for m in tables:
        if m.layout.kernels or not m.layout.has_model:
            continue
        for (device, stack, dtype), part in m.rows.groupby(["device", "stack", "dtype"], sort=True):
            yield fitted_profile(m, part, str(device), str(stack), str(dtype))


def quantity_errors(profile: Profile, quantity: str) -> tuple[Accuracy, Accuracy, tuple[float, float]]:
    """Of one quantity: error in sample, error held out (the worse fold), and the wider interval of the folds."""
    own = accuracy(profile.errors[quantity])
    folds = [errors[quantity] for errors in profile.held_out.values() if errors[quantity].notna().any()]
    ends = widest_interval(folds)
    if ends is None:
        raise ValueError(f"{profile.device}, {profile.profile}: {quantity} has too few rows to judge it")
    return own, max((accuracy(e) for e in folds), key=lambda a: a.median_pct), ends


def cautious(m: Measurements, rows: pd.DataFrame, device: str, stacks: Sequence[Profile]) -> dict[Phase, Efficiency]:
    """The default numbers of the phases that a table measures: the law's three, and slow rather than fast.

    Prefill on a GPU: the lowest shares and the longest fixed time of its stacks. The rest is fitted to all stacks
    together, then slowed until three quarters of the measured points are at least as fast. Sharded training keeps the
    hardware's fixed time: what a free fit puts there is sharding traffic, which other ways of training do not have.
    """
    names, result = Names(), dict[Phase, Efficiency]()
    base = plain(names.device(device, HARDWARE))
    prefills = [p.efficiency["prefill"] for p in stacks if p.device == device and p.layout.name in ALIVE]
    held: set[Phase] = set()
    if prefills and base.arrangement == "tensor" and "prefill" in touched(m.layout.parameters):
        result["prefill"] = _slowest(prefills)
        held.add("prefill")
    base = replace(base, efficiency={**base.efficiency, **result})
    parameters = [
        replace(p, targets=free)
        for p in m.layout.parameters
        if p.targets[0][1] in PLAIN
        and (free := tuple(t for t in p.targets if t[0] not in held))
        and not (m.layout.name == "training, sharded" and p.name == "fixed_layer_s")
    ]
    found = fit(m.layout, rows, base, parameters, names.model, prior=True)
    slowed = found.on(base)
    for phase in touched(parameters):
        slowed = _slowed_enough(m, rows, slowed, phase, names)
        result[phase] = _rounded_numbers(slowed.efficiency[phase])
    return result


def _slowed_enough(m: Measurements, rows: pd.DataFrame, device: Accelerator, phase: Phase, names: Names) -> Accelerator:
    """The device with one phase slowed until three quarters of every quantity it is part of are at least as fast."""
    quantities = [q.name for q in m.layout.quantities if phase in q.phases and q.name not in m.layout.check_only]

    def with_factor(factor: float) -> Accelerator:
        e = device.efficiency[phase]
        slower = Efficiency(
            compute=e.compute / factor, memory=e.memory / factor, fixed_layer_s=e.fixed_layer_s * factor
        )
        return replace(device, efficiency={**device.efficiency, phase: slower})

    def enough(factor: float) -> bool:
        errors = log_errors(m.layout, rows, with_factor(factor), names.model)[quantities]
        shares = [(errors[q].dropna() >= 0).mean() for q in quantities if errors[q].notna().any()]
        return min(shares) >= CAUTIOUS

    low, high = 1.0, MOST_SLOWED
    if enough(low):
        return with_factor(low)
    if not enough(high):
        raise ValueError(f"{device.name}: {phase} {high:g} times as slow as fitted is still too fast for {m.file}")
    for _ in range(SLOWED_ROUNDS):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if enough(middle) else (middle, high)
    return with_factor(high)


def _rounded_numbers(e: Efficiency) -> Efficiency:
    """Three digits, on the slow side."""
    return Efficiency(
        compute=_rounded(e.compute, up=False),
        memory=_rounded(e.memory, up=False),
        fixed_layer_s=_rounded(e.fixed_layer_s, up=True),
    )


def _slowest(numbers: Sequence[Efficiency]) -> Efficiency:
    """The lowest shares and the longest fixed time."""
    return _rounded_numbers(
        Efficiency(
            compute=min(e.compute for e in numbers),
            memory=min(e.memory for e in numbers),
            fixed_layer_s=max(e.fixed_layer_s for e in numbers),
        )
    )


def plain(device: Accelerator) -> Accelerator:
    """The device with the law's three numbers only."""
    numbers = {
        phase: Efficiency(compute=e.compute, memory=e.memory, fixed_layer_s=e.fixed_layer_s)
        for phase, e in device.efficiency.items()
    }
    return replace(device, efficiency=numbers)


def _rounded(value: float, *, up: bool) -> float:
    """Three digits, rounded up or down.

    >>> _rounded(0.12345, up=True), _rounded(0.12345, up=False), _rounded(0.0, up=True)
    (0.124, 0.123, 0.0)
    """
    if value <= 0:
        return 0.0
    unit = 10.0 ** (math.floor(math.log10(value)) - 2)
    steps = math.ceil(value / unit - 1e-9) if up else math.floor(value / unit + 1e-9)
    return float(f"{steps * unit:.3g}")
