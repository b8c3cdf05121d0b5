"""Robust least squares on log errors: the numbers of a device and phase, how sure they are, and what cannot be told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import least_squares
from scipy.stats import t as student

from dse.hardware import Accelerator, Efficiency, Phase
from dse.workload import Transformer

from .layout import Layout, Parameter

Floats = NDArray[np.float64]
ModelOf = Callable[[str], Transformer]

LINEAR_UP_TO = 0.05
"""Log error beyond which a row counts less than its square: one in twenty."""
UNSURE = 0.5
"""A standard error of a logarithm from which on a number is not identified: about a factor of 1.6 either way."""
PRIOR_ERROR = 0.07
"""With a prior: the log error of a row that weighs as much as a parameter that is one `prior_sd` away from its typical
value; what rows of real stacks typically miss."""
STEP = 1e-4
"""Of what the search moves, for derivatives."""
BLIND = 1e-9
"""A direction that changes errors by less than this share of the most telling one changes nothing."""
NEAR = 1.05
"""A value within this factor of a bound is at it."""
BARELY = 0.7
"""With a prior: a standard error above this share of the prior's own says that rows told little."""
LEAST_SPREAD = 1e-6
"""Rows without noise: what rounding leaves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """One number as fitted."""

    parameter: Parameter
    value: float
    low: float
    """80 % interval, from the curvature of the error."""
    high: float
    at_bound: bool
    identified: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """All numbers of a fit."""

    numbers: tuple[Fitted, ...]
    n: int

    @property
    def unidentified(self) -> tuple[Fitted, ...]:
        """What the data cannot tell."""
        return tuple(f for f in self.numbers if not f.identified)

    def on(self, device: Accelerator) -> Accelerator:
        """The device with the fitted numbers in place of its own."""
        return with_numbers(device, [f.parameter for f in self.numbers], [f.value for f in self.numbers])


def with_numbers(device: Accelerator, parameters: Sequence[Parameter], values: Sequence[float]) -> Accelerator:
    """The device with these numbers in place of its own, for every data type."""
    efficiency: dict[Phase, Efficiency] = dict(device.efficiency)
    link: dict[str, float] = {}
    for parameter, value in zip(parameters, values, strict=True):
        for place, key in parameter.targets:
            if place == "link":
                link[key] = value
            else:
                changed: dict[str, Any] = {key: value, "by_dtype": {}, "table_flop": (), "table_s": ()}
                efficiency[place] = replace(efficiency[place], **changed)
    return replace(device, efficiency=efficiency, **link)  # type: ignore[arg-type] # keys are Target's, not known to mypy


def log_errors(layout: Layout, rows: pd.DataFrame, device: Accelerator, model_of: ModelOf) -> pd.DataFrame:
    """log(predicted/measured), a column a quantity, a row a measurement; NaN where nothing was measured."""
    errors = pd.DataFrame(np.nan, index=rows.index, columns=[q.name for q in layout.quantities], dtype=np.float64)
    for (model, _), part in rows.groupby(["model", "dtype"], sort=False):
        predicted = layout.predict(part, device, model_of(str(model)) if layout.has_model else None)
        for name, values in predicted.items():
            measured = part[name].to_numpy(dtype=np.float64)
            with np.errstate(divide="ignore", invalid="ignore"):
                errors.loc[part.index, name] = np.log(np.asarray(values) / measured)
    return errors


def fit(
    layout: Layout,
    rows: pd.DataFrame,
    device: Accelerator,
    parameters: Sequence[Parameter],
    model_of: ModelOf,
    *,
    prior: bool = False,
) -> Fit:
    """Chooses the parameters that explain the rows best; the others keep the device's numbers.

    Minimises sum rho(w log(predicted/measured)) with the soft-l1 rho, which outliers pull little, over the logarithms
    of the parameters within their bounds. A parameter that may vanish is searched on its own scale, down to 0.

    With `prior`, what the rows cannot tell stays near a typical value: the distance of each logarithm counts as one
    more row, lightly. Typical values are the layout's, never the device's, which may come from the same rows.

    Source of rho: Huber-like soft l1, as in SciPy's least_squares (Triggs et al., "Bundle Adjustment", 2000).
    """
    fitted = [q for q in layout.quantities if q.name not in layout.check_only]
    weights = np.array([q.weight for q in fitted])
    scale = _Scale(parameters)

    def row_errors(x: Floats) -> Floats:
        changed = with_numbers(device, parameters, scale.values(x).tolist())
        errors = log_errors(layout, rows, changed, model_of)[[q.name for q in fitted]].to_numpy() * weights
        return np.asarray(errors[np.isfinite(errors)])

    def pulls(x: Floats) -> Floats:
        return scale.distance(scale.values(x)) if prior else np.empty(0)

    def everything(x: Floats) -> Floats:
        return np.concatenate([row_errors(x), pulls(x)])

    found = least_squares(
        everything,
        scale.start,
        bounds=(scale.low, scale.high),
        loss="soft_l1",
        f_scale=LINEAR_UP_TO,
        x_scale="jac",
    )
    at_best = row_errors(found.x)
    slope, pull_slope = (_jacobian(f, found.x, scale.vanishes) for f in (row_errors, pulls))
    sigma = _standard_errors(slope, at_best, pull_slope)
    width = float(student.ppf(0.9, max(len(at_best) - len(parameters), 1)))
    values = zip(parameters, scale.values(found.x), sigma, strict=True)
    return Fit(
        n=len(at_best),
        numbers=tuple(_fitted(p, float(v), float(e), width, prior=prior) for p, v, e in values),
    )


class _Scale:
    """What the search moves: logarithms, and for a number that may vanish the number itself over its typical value."""

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        self.vanishes = np.array([p.may_vanish for p in parameters])
        self.typical = np.array([p.start for p in parameters])
        self.floor = np.array([p.low for p in parameters])
        self.centre = np.array([p.start if p.prior is None else p.prior for p in parameters])
        self.weight = PRIOR_ERROR / np.array([p.prior_sd for p in parameters])
        self.low = np.where(self.vanishes, 0.0, np.log(self.floor))
        highest = np.array([p.high for p in parameters])
        self.high = np.where(self.vanishes, highest / self.typical, np.log(highest))
        self.start = np.where(self.vanishes, 1.0, np.log(self.typical))

    def values(self, x: Floats) -> Floats:
        """The numbers."""
        return np.where(self.vanishes, np.maximum(x, 0.0) * self.typical, np.exp(np.where(self.vanishes, 0.0, x)))

    def distance(self, values: Floats) -> Floats:
        """Of the logarithms from typical values, as errors of rows."""
        return self.weight * np.log(np.maximum(values, self.floor) / np.maximum(self.centre, self.floor))


def _jacobian(of: Callable[[Floats], Floats], at: Floats, vanishes: NDArray[np.bool_]) -> Floats:
    """Differences at the best fit: forward where a number has vanished, else central, beyond a bound too."""
    columns = []
    for i, x in enumerate(at):
        h = np.zeros_like(at)
        h[i] = STEP
        back = 0.0 if vanishes[i] and x < STEP else 1.0
        columns.append((of(at + h) - of(at - back * h)) / ((1.0 + back) * STEP))
    return np.stack(columns, axis=1)


def _standard_errors(slope: Floats, errors: Floats, pull_slope: Floats) -> Floats:
    """Standard error of what was moved: sqrt(diag (J'J/s^2 + K'K/s_0^2)^-1).

    J is of the rows' errors; s is their spread, from the median and with n/(n - p) for the p numbers chosen. K is of a
    prior's pulls, s_0 their scale. Infinite where nothing tells. Approximate: the loss's weights on outliers are left
    out of J, which makes errors a little large.

    Source: Huber, "Robust Statistics", 1981, chapter 7 (scale by the median of absolute residuals).
    """
    n, p = slope.shape
    if n <= p and not len(pull_slope):
        return np.full(p, np.inf)
    spread = 1.4826 * float(np.median(np.abs(errors))) * np.sqrt(n / (n - p)) if n > p else PRIOR_ERROR
    precision = slope.T @ slope / max(spread, LEAST_SPREAD) ** 2 + pull_slope.T @ pull_slope / PRIOR_ERROR**2
    seen, directions = np.linalg.eigh(precision)
    seen = np.maximum(seen, BLIND**2 * seen.max(initial=1e-30))
    return np.asarray(np.sqrt((directions**2 / seen).sum(axis=1)), dtype=np.float64)


def _fitted(p: Parameter, value: float, sigma: float, width: float, *, prior: bool) -> Fitted:
    """A number with its interval; sigma is of its logarithm, or over its typical value where it may vanish.

    It is identified where its standard error is small, and with a prior where the rows tell more than that.
    """
    at_high = value >= p.high / NEAR
    if p.may_vanish:
        error = sigma * p.start
        vanished = value <= p.low
        low, high = max(value - width * error, 0.0), min(value + width * error, p.high)
        told = error < UNSURE * value and not (prior and error > BARELY * p.prior_sd * value)
        return Fitted(
            parameter=p,
            value=0.0 if vanished else value,
            low=0.0 if vanished else low,
            high=high,
            at_bound=vanished or at_high,
            identified=told or high < p.start,
        )
    spread = float(np.exp(min(width * sigma, 50.0)))
    at_low = value <= p.low * NEAR
    return Fitted(
        parameter=p,
        value=value,
        low=max(value / spread, p.low),
        high=min(value * spread, p.high),
        at_bound=at_low or at_high,
        identified=sigma < UNSURE and not at_low and not (prior and sigma > BARELY * p.prior_sd),
    )
