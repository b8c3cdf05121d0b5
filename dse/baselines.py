"""The best fleets of one device each: what the frontier of the mix is held against.

For each device of a study the study is explored again with that device's pools alone, over the same counts, sizes,
batches and limits. In serving each pool may then also take both phases, since nobody else is there to take one; pools
of one device may still keep the phases apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import pandas as pd

from dse import exhaustive
from dse.columns import pool_of
from dse.errors import InputError, MethodError
from dse.progress import PartStop, Stop, silent
from dse.resolve import Study
from dse.scoring import score_index

MOST_POINTS: Final = 400
"""Points kept of one device's frontier, evenly spread."""
MOST_S: Final = 20.0
"""All devices together may take so long; those left over are named."""

HANDED_OVER: Final = ("offload_layers", "collect")
"""Keys of a pipeline's pool about layers on wafers: without a wafer there is nothing to hand over."""

Baseline = dict[str, Any]


def baselines(study: Study, stop: Stop) -> list[Baseline]:
    """One entry for each device of a study with two or more: its name and its own frontier.

    Keys: device; points, a list of {objective: value, ..., n_<pool>: devices} sorted by the first objective; total, how
    many there are; missing, why there are none (empty where there are some).
    """
    devices = list(dict.fromkeys(offer.device.name for offer in study.problem.pools))
    if len(devices) < 2:
        return []
    own = PartStop(time_limit_s=min(MOST_S, stop.left_s), whole=stop)
    return [_baseline(study, device, own) for device in devices]


def alone(study: Study, device: str) -> Study:
    """The study with the pools of one device only. InputError where these cannot stand as a study."""
    kept = [k for k, offer in enumerate(study.problem.pools) if offer.device.name == device]
    gone = {offer.name for k, offer in enumerate(study.problem.pools) if k not in kept}
    raw = study.envelope.model_dump(mode="json", exclude_unset=True)
    raw.pop("question", None)
    raw["pool"] = [_both_phases(raw["pool"][k]) for k in kept]
    if not any(study.problem.pools[k].device.streams for k in kept):
        raw["pool"] = [{k: v for k, v in pool.items() if k not in HANDED_OVER} for pool in raw["pool"]]
    for scenario in raw.get("scenario", ()):
        up = scenario.get("available_frac", {})
        scenario |= {"available_frac": {pool: frac for pool, frac in up.items() if pool not in gone}}
    if len(kept) < 2:
        raw.pop("link", None)
    if "limits" in raw:
        raw["limits"] = {k: v for k, v in raw["limits"].items() if pool_of(k) not in gone}
    return Study.from_dict(raw, folder=study.folder, file=study.name)


def _both_phases(pool: Mapping[str, Any]) -> dict[str, Any]:
    """The pool with `both` among its roles, where it names roles at all."""
    if "roles" not in pool:
        return dict(pool)
    return {**pool, "roles": list(dict.fromkeys([*pool["roles"], "both"]))}


def _baseline(study: Study, device: str, stop: Stop) -> Baseline:
    empty: Baseline = {"device": device, "points": [], "total": 0}
    try:
        single = alone(study, device)
    except InputError as error:
        return {**empty, "missing": error.faults[0]}
    refused = exhaustive.refusal(single)
    if refused:
        return {**empty, "missing": refused}
    try:
        found = exhaustive.explore(single, workers=1, address="local", report=silent, stop=stop)
    except MethodError as error:
        return {**empty, "missing": str(error)}
    if stop.reason:
        return {**empty, "missing": f"not found within {MOST_S:g} s"}
    if not len(found.index):
        return {**empty, "missing": "no fleet of this device alone is feasible"}
    objectives = study.envelope.objectives.names
    frame = score_index(single, found.index).drop_duplicates(list(objectives)).sort_values(objectives[0])
    return {"device": device, "points": _points(single, frame), "total": len(frame), "missing": ""}


def _points(study: Study, frame: pd.DataFrame) -> list[dict[str, float]]:
    """At most 400 rows, evenly spread: objectives and counts."""
    columns = [*study.envelope.objectives.names, *(f"n_{p}" for p in study.space.pool_names)]
    rows = frame[columns].to_numpy(dtype=np.float64)
    chosen = np.unique(np.linspace(0, len(rows) - 1, min(len(rows), MOST_POINTS)).round().astype(np.int64))
    return [dict(zip(columns, row.tolist(), strict=True)) for row in rows[chosen]]
