"""Provisioning for 24 scenarios: how long the cheapest fleet that meets every demand takes to be proven.

The study of `six_kinds.toml`, its eight request classes weighted anew in each of 24 hours: mixes and demands differ,
and in four hours a rack of one kind is down. Run alone it prints its table; with names only these ways to adapt:

    python benchmarks/robust.py [fixed_split] [work_stealing] [adaptive]
"""

from __future__ import annotations

import sys
import time
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dse.points import Point, Stage, Unit, programs_of, solve_unit
from dse.resolve import Study

HOURS = 24
MOST_S = 300.0
POLICIES = ("fixed_split", "work_stealing", "adaptive")
SIZES = {"60 requests/s at the peak, counts by 8": (60.0, 8), "300 requests/s at the peak, counts by 4": (300.0, 4)}
"""What is asked, and the purchase step of every pool but the wafers."""


def study_of(adaptation: str, peak_requests_s: float, step: int) -> dict[str, Any]:
    """Six device kinds, eight classes, 24 hours: mixes that turn from short to long answers, demands that peak."""
    raw = tomllib.loads((Path(__file__).parent / "six_kinds.toml").read_text(encoding="utf-8"))
    rng = np.random.default_rng(0)
    names = [r["name"] for r in raw["workload"]["requests"]]
    share = np.array([r["share"] for r in raw["workload"]["requests"]])
    scenarios = []
    for hour in range(HOURS):
        mix = share * rng.uniform(0.3, 2.0, len(share))
        load = 0.55 + 0.45 * np.sin(2 * np.pi * (hour - 9) / HOURS)
        down = {"available_frac": {raw["pool"][hour % 6]["device"]: 0.5}} if hour % 6 == 0 else {}
        scenarios.append({
            "name": f"h{hour:02d}",
            "demand_requests_s": float(peak_requests_s * load),
            "mix": dict(zip(names, (mix / mix.sum()).tolist(), strict=True)),
            **down,
        })  # fmt: skip
    pools = [
        pool if pool["device"] == "wse-3" else pool | {"count": pool["count"] | {"step": step}} for pool in raw["pool"]
    ]
    workload = {k: v for k, v in raw["workload"].items() if k != "routing"}
    return raw | {
        "name": "robust-six-kinds",
        "paradigm": "robust_serving",
        "adaptation": [adaptation],
        "workload": workload,
        "pool": pools,
        "scenario": scenarios,
        "objectives": {"maximise": ["headroom"], "minimise": ["cost_usd_per_h"]},
        "compute": {"workers": 1},
    }


def cheapest(study: Study) -> Point:
    """The cheapest fleet that meets every demand, and of those the one with most headroom."""
    stages = (Stage((0.0, 1.0)), Stage((1.0, 1.0)))
    return solve_unit(programs_of(study), Unit(program=0, upper=(np.inf, np.inf), stages=stages, time_limit_s=MOST_S))


def robust_table(policies: Iterable[str] = POLICIES) -> Iterator[str]:
    """Seconds from the study to the proven cheapest fleet; the gap where time was too short."""
    yield "| study | way to adapt | binaries and integers | continuous | seconds | gap | USD/h |"
    yield "|---|---|---|---|---|---|---|"
    for words, (peak, step) in SIZES.items():
        for policy in policies:
            started = time.perf_counter()
            study = Study.from_dict(study_of(policy, peak, step))
            point = cheapest(study)
            seconds = time.perf_counter() - started
            whole, free = _size(study)
            gap = f"{point.outcome.gap:.2g}" if point.plan else "no plan"
            cost = "-" if point.columns is None else f"{point.columns[1]:.2f}"
            yield f"| {words} | {policy} | {whole:,} | {free:,} | {seconds:.1f} | {gap} | {cost} |"


def _size(study: Study) -> tuple[int, int]:
    """Whole and continuous variables of the program."""
    import pyomo.environ as pyo

    formulation = study.paradigm.formulation
    assert formulation is not None
    model = formulation().build_model(programs_of(study).data[0])
    variables = list(model.component_data_objects(pyo.Var))
    whole = sum(not v.is_continuous() for v in variables)
    return whole, len(variables) - whole


if __name__ == "__main__":
    for line in robust_table(sys.argv[1:] or POLICIES):
        print(line, flush=True)
