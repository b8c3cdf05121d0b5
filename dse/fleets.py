"""The exactly best fleets of some kind: of any devices, of two kinds or more, of one, with a device, without it.

A kind is a study with further limits on the counts of pools, so that the same explorers answer it. A mix has devices
in two pools of different devices: the best mix is the best over all such pairs of "at least one of each".
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, Final, Literal

import numpy as np
import pandas as pd

from dse.baselines import alone
from dse.errors import InputError
from dse.exact import Explorer
from dse.pareto import minimised, nondominated
from dse.recommend import recommend
from dse.resolve import Study
from dse.study import Limits, Objectives

SAME: Final = 1e-9
"""Relative difference below which two fleets are equally good."""
MOST_POINTS: Final = 200
"""Points kept behind an answer, all its frontiers together."""
RATE: Final = "throughput_tok_s"

Pick = Literal["cheapest", "fastest"]
Bounds = Mapping[str, tuple[float, float]]


@dataclass(frozen=True, kw_only=True)
class Best:
    """The best fleet of one kind, and the frontier it is on."""

    kind: str
    """In words."""
    row: pd.Series | None
    """None where no fleet of this kind is feasible."""
    frame: pd.DataFrame

    def of(self, column: str) -> float:
        """A column of the best fleet."""
        assert self.row is not None
        return float(self.row[column])


def aimed(study: Study, *, spent: str, pick: Pick, bounds: Bounds | None = None) -> Study:
    """The study with the plane that a question is about as its objectives, and these bounds instead of its own.

    Tables of its space are kept: nothing that a score depends on changes.
    """
    search = study.envelope.search.model_copy(update={"method": "auto"})
    envelope = study.envelope.model_copy(
        update={
            "objectives": Objectives(maximise=(RATE,), minimise=(spent,), pick=pick),
            "search": search,
            "compute": study.envelope.compute.model_copy(update={"workers": 1}),
            "question": None,
        }
    )
    return bounded(replace(study, envelope=envelope), bounds or {})


def bounded(study: Study, bounds: Bounds) -> Study:
    """The study with these limits, (lowest, highest), in place of its own on the same columns."""
    table = {
        name: {side: value for side, value in zip(("min", "max"), ends, strict=True) if math.isfinite(value)}
        for name, ends in (study.envelope.limits.bounds() | dict(bounds)).items()
    }
    limits = Limits.model_validate({name: ends for name, ends in table.items() if ends})
    return replace(study, envelope=study.envelope.model_copy(update={"limits": limits}))


def ends_of(study: Study) -> Study:
    """The study of which only the frontier's ends are wanted: exact programs find the best fleet there, and stop."""
    search = study.envelope.search.model_copy(update={"resolution_frac": 1.0})
    return replace(study, envelope=study.envelope.model_copy(update={"search": search}))


def devices_of(study: Study) -> list[str]:
    """Names of the devices on offer, in the order of the pools."""
    return list(dict.fromkeys(offer.device.name for offer in study.problem.pools))


def any_fleet(study: Study, explorer: Explorer) -> Best:
    """The best of all fleets."""
    return _best("all fleets", study, [explorer.frontier(study)])


def best_mix(study: Study, explorer: Explorer) -> Best:
    """The best fleet of two kinds of device or more."""
    pairs = (
        {first.name: 1, second.name: 1}
        for first, second in combinations(study.problem.pools, 2)
        if first.device.name != second.device.name
    )
    return _best("mixes", study, list(_at_least(study, explorer, pairs)))


def best_with(study: Study, device: str, explorer: Explorer) -> Best:
    """The best fleet that has at least one of a device."""
    pools = ({offer.name: 1} for offer in study.problem.pools if offer.device.name == device)
    return _best(f"with {device}", study, list(_at_least(study, explorer, pools)))


def best_without(study: Study, device: str, explorer: Explorer) -> Best:
    """The best fleet that has none of a device."""
    own = study.envelope.limits.bounds()
    names = [f"n_{offer.name}" for offer in study.problem.pools if offer.device.name == device]
    asked = any(own.get(name, (0.0, 0.0))[0] > 0 for name in names)
    frames = [] if asked else [explorer.frontier(bounded(study, dict.fromkeys(names, (-math.inf, 0.0))))]
    return _best(f"without {device}", study, frames)


def best_alone(study: Study, explorer: Explorer) -> list[Best]:
    """The best fleet of each device alone, the best of them first; devices that cannot serve alone are left out."""
    found = []
    for device in devices_of(study):
        try:
            single = alone(study, device)
        except InputError:
            continue  # its pools are no study of their own
        best = _best(f"{device} alone", single, [explorer.frontier(single)])
        if best.row is not None:
            found.append(best)
    cheapest = study.envelope.objectives.pick == "cheapest"
    spent = study.envelope.objectives.minimise[0]
    return sorted(found, key=lambda best: best.of(spent) if cheapest else -best.of(RATE))


def _at_least(study: Study, explorer: Explorer, asked: Iterator[dict[str, int]]) -> Iterator[pd.DataFrame]:
    """Frontiers with at least so many devices in these pools."""
    own = study.envelope.limits.bounds()
    for counts in asked:
        bounds = {}
        for pool, n in counts.items():
            low, high = own.get(f"n_{pool}", (-math.inf, math.inf))
            bounds[f"n_{pool}"] = (max(low, float(n)), high)
        if all(low <= high for low, high in bounds.values()):
            yield explorer.frontier(bounded(study, bounds))


def _best(kind: str, study: Study, frames: Sequence[pd.DataFrame]) -> Best:
    """The best row of frontiers together."""
    found = [frame for frame in frames if len(frame)]
    if not found:
        return Best(kind=kind, row=None, frame=pd.DataFrame())
    frame = pd.concat(found, ignore_index=True)
    names = study.envelope.objectives.names
    points = minimised({o: frame[o].to_numpy(dtype=np.float64) for o in names}, names)
    frame = frame[nondominated(points)].reset_index(drop=True)
    return Best(kind=kind, row=frame.iloc[recommend(study, frame)[0]], frame=frame)


def parts(study: Study, row: pd.Series) -> dict[str, int]:
    """Devices of each pool that a fleet has, of the whole study's pools."""
    counts = {pool: int(row.get(f"n_{pool}", 0)) for pool in study.space.pool_names}
    return {pool: n for pool, n in counts.items() if n}


def n_kinds(study: Study, row: pd.Series) -> int:
    """How many kinds of device a fleet has."""
    bought = parts(study, row)
    return len({offer.device.name for offer in study.problem.pools if offer.name in bought})


def points_behind(study: Study, bests: Sequence[Best], spent: str, *, most: int = MOST_POINTS) -> list[dict[str, Any]]:
    """Rows of frontiers as plain data, each evenly thinned to its part of `most`, the best fleet always among them."""
    share = most // max(len(bests), 1)
    columns = list(dict.fromkeys([RATE, spent, "cost_usd_per_h", "power_w", "requests_s"]))
    points = []
    for best in bests:
        if best.row is None:
            continue
        frame = best.frame.sort_values([spent, RATE]).drop_duplicates([RATE, spent])
        kept = np.unique(np.linspace(0, len(frame) - 1, min(len(frame), share - 1)).round().astype(np.int64))
        plane = [float(best.row[name]) for name in (RATE, spent)]
        rows = [row for _, row in frame.iloc[kept].iterrows() if [float(row[n]) for n in (RATE, spent)] != plane]
        for row in sorted([*rows, best.row], key=lambda r: (float(r[spent]), float(r[RATE]))):
            points.append({
                "kind": best.kind,
                "against": spent,
                "best": row is best.row,
                **{f"n_{pool}": int(row.get(f"n_{pool}", 0)) for pool in study.space.pool_names},
                **{name: float(row[name]) for name in columns if name in row.index},
            })  # fmt: skip
    return points
