"""Forms that alpha of eq. (5) may take: each fitted on designs of no held-out group, and what it misses elsewhere.

Errors are those of the pool that waits: the other has eta = 0, which every one-sided form gives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dse.model.asymmetry import AlphaFit, eta_closed_form, fit_alpha, residuals, shortfall

from .eq5_designs import ASYM

Floats = NDArray[np.float64]

STEPS = np.linspace(-3.0, 3.0, 9)
"""Where the step function of `split` changes, in log odds."""


def _per_pool(features: Floats, frame: pd.DataFrame) -> Floats:
    """Each feature twice, so that alpha_ij may differ between the first pool i and the second."""
    first = frame["is_first"].to_numpy()[:, None]
    return np.concatenate([features * first, features * ~first], axis=1)


def _constant(frame: pd.DataFrame) -> Floats:
    return _per_pool(np.ones((len(frame), 1)), frame)


def _split(frame: pd.DataFrame) -> Floats:
    """One feature per interval of the split: any function of w1:w2 alone, up to its steps."""
    own = frame["work_frac"].to_numpy()
    return _per_pool(np.eye(len(STEPS) + 1)[np.digitize(np.log(1.0 / own - 1.0), STEPS)], frame)


def _distance(frame: pd.DataFrame) -> Floats:
    return np.maximum(frame["best_frac"].to_numpy() - frame["work_frac"].to_numpy(), 0.0)


def _short(share: str, balanced: str) -> Callable[[pd.DataFrame], Floats]:
    return lambda frame: shortfall(frame[share].to_numpy(), frame[balanced].to_numpy())


CHOSEN: Final = "shortfall of load"
BARE: Final = "no asymmetry"
FORMS: Final[Mapping[str, Callable[[pd.DataFrame], Floats]]] = {
    "constant": _constant,
    "split": _split,
    "distance": _distance,
    "shortfall of speed": _short("work_frac", "speed_frac"),
    "shortfall of work": _short("work_frac", "best_frac"),
    CHOSEN: _short("load_frac", "load_balanced_frac"),
    BARE: _short("load_frac", "load_balanced_frac"),
}
"""What alpha is of the split. Literal: a constant for each pool; a step function of w1:w2 for each pool. Zero at
balance: the share that is missing to the best split; the shortfall against the stand-alone speeds, against the best
split, and in load. Last, the shortfall in load without the asymmetries, which tells what they add."""


def _asym(frame: pd.DataFrame, form: str) -> Floats:
    values: Floats = frame[ASYM].to_numpy(dtype=np.float64)
    return np.ones((len(frame), 1)) if form == BARE else values


def fitted_eta(fit: AlphaFit, frame: pd.DataFrame, form: str) -> Floats:
    """eta that a fitted form gives."""
    return eta_closed_form(fit.alpha, _asym(frame, form), FORMS[form](frame))


def fit_form(frame: pd.DataFrame, form: str) -> AlphaFit:
    """alpha of one form, from these pools."""
    return fit_alpha(_asym(frame, form), FORMS[form](frame), frame["eta"].to_numpy())


def held_out_groups(frame: pd.DataFrame) -> dict[str, NDArray[np.bool_]]:
    """Name -> rows of each whole group that no fit sees."""
    return {c: frame[c].to_numpy(dtype=np.bool_) for c in frame.columns if c.startswith("never_seen_")}


def training_part(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows in no held-out group."""
    return frame[~np.logical_or.reduce(list(held_out_groups(frame).values()))]


def column(form: str) -> str:
    """Name of the column with what a form gives.

    >>> column("shortfall of load")
    'eta_shortfall_of_load'
    """
    return f"eta_{form.replace(' ', '_')}"


def with_fits(frame: pd.DataFrame) -> pd.DataFrame:
    """The designs with what each form gives, fitted for each paradigm and kind of pair."""
    parts = []
    for _, group in frame.groupby(["paradigm", "kind"]):
        train = training_part(group)
        fits = {column(form): fitted_eta(fit_form(train, form), group, form) for form in FORMS}
        parts.append(group.assign(**fits))
    return pd.concat(parts).sort_index()


def errors(fitted: pd.DataFrame) -> pd.DataFrame:
    """One row per paradigm, kind of pair, form and set of designs: what the form misses there, of pools that wait."""
    table: list[dict[str, Any]] = []
    for (paradigm, kind), group in fitted[fitted["eta"] > 0].groupby(["paradigm", "kind"]):
        sets = {"train": training_part(group)}
        sets |= {name: group[held] for name, held in held_out_groups(group).items()}
        for form in FORMS:
            for name, rows in sets.items():
                if len(rows):
                    found = asdict(residuals(rows[column(form)].to_numpy(), rows["eta"].to_numpy()))
                    table.append({"paradigm": paradigm, "kind": kind, "form": form, "set": name} | found)
    return pd.DataFrame(table)


def worst_held_out(table: pd.DataFrame, paradigm: str, kind: str, form: str) -> tuple[float, float]:
    """Largest median and largest 90th percentile of the relative miss of 1 + eta over the held-out groups."""
    at = (table["paradigm"] == paradigm) & (table["kind"] == kind) & (table["form"] == form)
    held = table[at & table["set"].str.startswith("never_seen_")]
    return float(held["relative_median"].max()), float(held["relative_p90"].max())
