"""Runs against a first one: what changed in the study and behind it, and what became of pick, frontier and designs.

Frontiers are compared on the objectives that all runs share: by the volume they dominate up to one shared reference
point (Zitzler and Thiele's hypervolume), and by coverage, the share of one's points that the other dominates
(E. Zitzler, L. Thiele, "Multiobjective evolutionary algorithms: a comparative case study and the strength Pareto
approach", IEEE Trans. Evol. Comput. 3(4), 1999). A design is known by its settings, not by its number, which moves
when an axis does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dse.changes import Change, changes
from dse.columns import column
from dse.convergence import reference_of
from dse.errors import InputError
from dse.explore import Result
from dse.pareto import hypervolume, minimised
from dse.resolve import Study
from dse.scoring import score
from dse.units import quantity

Floats = NDArray[np.float64]
Row = pd.Series

MOST_RUNS: Final = 6
MOST_DESIGNS: Final = 100
"""Designs told one by one of each kind (came, went, stayed), evenly spread; all are counted."""
SAME: Final = 1e-9
"""Relative difference below which two figures are equal."""
KEPT: Final = ("throughput_tok_s", "cost_usd_per_h", "power_w", "usd_per_mtok")


@dataclass(frozen=True, kw_only=True)
class Fate:
    """A design that is on one frontier only, or on both."""

    row: Row
    settings: Mapping[str, str]
    why: str
    """Of one that went: why it is not on the other frontier; empty where it came or stayed."""
    after: Row | None
    """Of one that stayed: its row in the other run."""


@dataclass(frozen=True, kw_only=True)
class Against:
    """One run against the first."""

    name: str
    changes: list[Change]
    hypervolume_frac: float
    """Its frontier's hypervolume over the first's; NaN where there is nothing to compare."""
    dominated_frac: float
    """Share of the first's frontier points that it dominates."""
    dominates_frac: float
    """Share of its own points that the first dominates."""
    went: list[Fate]
    came: list[Fate]
    stayed: list[Fate]
    counts: tuple[int, int, int]
    """Designs that went, came and stayed, all of them."""
    moved: int
    """Of those that stayed, how many have other figures."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """All runs against the first."""

    names: list[str]
    runs: list[Result]
    objectives: tuple[str, ...]
    """Those that all runs share."""
    against: list[Against]
    warnings: list[str]


def compare(runs: Mapping[str, Result]) -> Comparison:
    """Compares runs by name with the first of them. InputError where they cannot be compared."""
    names, results = list(runs), list(runs.values())
    _refuse(names, results)
    shared = [o for o in results[0].study.envelope.objectives.names if all(o in _objectives(r) for r in results)]
    if len(shared) < 2:
        raise InputError(f"{', '.join(names)}: share {len(shared)} objectives, a comparison needs two")
    points = [_points(r, shared) for r in results]
    whole = np.concatenate(points)
    reference = reference_of(whole) if len(whole) else np.zeros(len(shared))
    return Comparison(
        names=names,
        runs=results,
        objectives=tuple(shared),
        against=[
            _against(name, results[0], r, (points[0], p), reference)
            for name, r, p in zip(names[1:], results[1:], points[1:], strict=True)
        ],
        warnings=list(_warnings(names, results)),
    )


def _refuse(names: Sequence[str], results: Sequence[Result]) -> None:
    if not 2 <= len(results) <= MOST_RUNS:
        raise InputError(f"{len(results)} runs: a comparison takes 2 to {MOST_RUNS}")
    kinds = {r.study.envelope.paradigm for r in results}
    if len(kinds) > 1:
        told = ", ".join(f"{n} is {r.study.envelope.paradigm}" for n, r in zip(names, results, strict=True))
        raise InputError(f"{told}: runs of different paradigms cannot be compared")


def _objectives(result: Result) -> tuple[str, ...]:
    return result.study.envelope.objectives.names


def _points(result: Result, names: Sequence[str]) -> Floats:
    """The frontier in shared objectives, minimised (N, D); rows with an unbounded one are left out."""
    frame = result.frontier
    if not len(frame):
        return np.zeros((0, len(names)))
    points = minimised({n: frame[n].to_numpy(dtype=np.float64) for n in names}, tuple(names))
    kept: Floats = points[np.isfinite(points).all(axis=1)]
    return kept


def _against(name: str, base: Result, other: Result, points: tuple[Floats, Floats], reference: Floats) -> Against:
    before, after = points
    volumes = [hypervolume(p, reference) if len(p) else 0.0 for p in points]
    went, came, stayed, moved = _fates(base, other)
    return Against(
        name=name,
        changes=changes(base.study, other.study),
        hypervolume_frac=volumes[1] / volumes[0] if volumes[0] > 0 else float("nan"),
        dominated_frac=covered(before, after),
        dominates_frac=covered(after, before),
        went=[_told(f, other) for f in _some(went)],
        came=_some(came),
        stayed=_some(stayed),
        counts=(len(went), len(came), len(stayed)),
        moved=moved,
    )


def covered(points: Floats, by: Floats) -> float:
    """Share of points (N, D) that some other point (M, D) dominates: nowhere worse, somewhere better.

    >>> covered(np.array([[1.0, 1.0], [0.0, 5.0]]), np.array([[1.0, 0.5]]))
    0.5
    """
    if not len(points) or not len(by):
        return 0.0
    slack = SAME * np.maximum(np.abs(points), 1e-300)
    beaten = [
        bool(((by <= p + s).all(axis=1) & (by < p - s).any(axis=1)).any()) for p, s in zip(points, slack, strict=True)
    ]
    return float(np.mean(beaten))


# -- which designs came and went --------------------------------------------------------------------------------------


def _by_settings(result: Result) -> dict[frozenset[tuple[str, str]], tuple[Row, dict[str, str]]]:
    """Frontier rows by their settings; those of pools that are not bought do not count."""
    found = {}
    for _, row in result.frontier.iterrows():
        settings = result.study.space.settings_of({str(k): v for k, v in row.items()})
        kept = {k: v for k, v in settings.items() if not (k.startswith("n_") and v == "0")}
        found[frozenset(kept.items())] = (row, kept)
    return found


def _fates(base: Result, other: Result) -> tuple[list[Fate], list[Fate], list[Fate], int]:
    before, after = _by_settings(base), _by_settings(other)
    went = [Fate(row=row, settings=s, why="", after=None) for key, (row, s) in before.items() if key not in after]
    came = [Fate(row=row, settings=s, why="", after=None) for key, (row, s) in after.items() if key not in before]
    stayed = [
        Fate(row=row, settings=s, why="", after=after[key][0]) for key, (row, s) in before.items() if key in after
    ]
    return went, came, stayed, sum(_has_moved(f) for f in stayed)


def _has_moved(fate: Fate) -> bool:
    assert fate.after is not None
    return any(not np.isclose(float(fate.row[n]), float(fate.after[n]), rtol=SAME, atol=0) for n in KEPT)


def _some(fates: list[Fate]) -> list[Fate]:
    if len(fates) <= MOST_DESIGNS:
        return fates
    return [fates[k] for k in np.linspace(0, len(fates) - 1, MOST_DESIGNS).round().astype(int)]


def _told(fate: Fate, other: Result) -> Fate:
    """The design that went, with why the other run lacks it."""
    return Fate(row=fate.row, settings=fate.settings, why=_why(fate.settings, other), after=None)


def _why(settings: Mapping[str, str], other: Result) -> str:
    absent = {f"n_{p}": "0" for p in other.study.space.pool_names if f"n_{p}" not in settings}
    try:
        row = score(other.study, {**absent, **settings}).iloc[0]
    except InputError as error:
        return f"not on offer: {error.faults[0]}"
    if row["infeasible_reason"]:
        return str(row["infeasible_reason"])
    names = _objectives(other)
    mine = minimised({n: np.array([float(row[n])]) for n in names}, names)
    theirs = minimised({n: other.frontier[n].to_numpy(dtype=np.float64) for n in names}, names)
    slack = SAME * np.where(np.isfinite(mine), np.abs(mine), 0.0)
    better = np.flatnonzero((theirs <= mine + slack).all(axis=1))
    if not len(better):
        return "not among the designs that the study offers"
    best = other.frontier.iloc[int(better[0])]
    if not (theirs[better] < mine - slack).any():
        return f"equalled by {_parts(other.study, best)}"
    gains = [f"{n} {_figure(n, best)} instead of {_figure(n, row)}" for n in names if _differs(best[n], row[n])]
    return f"beaten by {_parts(other.study, best)}: {', '.join(gains)}"


def _figure(name: str, row: Row) -> str:
    known, value = column(name), float(row[name])
    return quantity(value, known.unit if known else "") if np.isfinite(value) else "without bound"


def _differs(a: object, b: object) -> bool:
    return not np.isclose(float(str(a)), float(str(b)), rtol=SAME, atol=0)


def _parts(study: Study, row: Row) -> str:
    counts = {p: int(row[f"n_{p}"]) for p in study.space.pool_names}
    return " + ".join(f"{n} x {p}" for p, n in counts.items() if n)


# -- what makes runs less comparable ----------------------------------------------------------------------------------


def _warnings(names: Sequence[str], results: Sequence[Result]) -> Iterator[str]:
    for name, r in zip(names, results, strict=True):
        if not r.complete:
            why = r.info["stopped"] or "a region is unproven"
            yield f"{name} is incomplete ({why}): better designs may exist there."
        elif r.info["proof"]["kind"] == "none":
            yield f"{name} was searched, not proven: differences may be the search's."
    for part in sorted({key for r in results for key in r.info["versions"]}):
        seen = [r.info["versions"].get(part, "none") for r in results]
        if len(set(seen)) > 1:
            yield f"Versions of {part} differ: {', '.join(f'{n} {v}' for n, v in zip(names, seen, strict=True))}."
    if len({_objectives(r) for r in results}) > 1:
        yield "The studies have different objectives; those that all share are compared."
