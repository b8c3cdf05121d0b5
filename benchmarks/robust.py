"""Provisioning for 24 scenarios: how long the cheapest fleet that meets every demand takes to be proven.

The study of `six_kinds.toml`, its eight request classes weighted anew in each of 24 hours. Run it alone:

    python benchmarks/robust.py [fixed_split] [work_stealing] [adaptive]
"""

from __future__ import annotations

import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import numpy as np

from dse.points import Stage, Unit, programs_of, solve_unit
from dse.resolve import Study

HOURS = 24
MOST_S = 300.0
PEAK_REQUESTS_S = 60.0


def study_of(adaptation: str) -> dict[str, Any]:
    """Six device kinds, eight classes, 24 hours: mixes that turn from short to long answers, demands that peak."""
    raw = tomllib.loads((Path(__file__).parent / "six_kinds.toml").read_text(encoding="utf-8"))
    rng = np.random.default_rng(0)
    names = [r["name"] for r in raw["workload"]["requests"]]
    share = np.array([r["share"] for r in raw["workload"]["requests"]])
    scenarios = []
    for hour in range(HOURS):
        mix = share * rng.uniform(0.3, 2.0, len(share))
        load = 0.55 + 0.45 * np.sin(2 * np.pi * (hour - 9) / HOURS)
        scenarios.append({
            "name": f"h{hour:02d}",
            "demand_requests_s": float(PEAK_REQUESTS_S * load),
            "mix": dict(zip(names, (mix / mix.sum()).tolist(), strict=True)),
        })  # fmt: skip
    workload = {k: v for k, v in raw["workload"].items() if k not in ("routing", "slo")}
    return raw | {
        "name": "robust-six-kinds",
        "paradigm": "robust_serving",
        "adaptation": [adaptation],
        "workload": workload,
        "scenario": scenarios,
        "objectives": {"maximise": ["headroom"], "minimise": ["cost_usd_per_h"]},
        "search": {"method": "milp", "time_limit_s": MOST_S},
        "compute": {"workers": 1},
    }


def measured(adaptation: str) -> dict[str, Any]:
    """Seconds to the proven optimum, and what it is; the gap where time was too short."""
    started = time.perf_counter()
    study = Study.from_dict(study_of(adaptation))
    cheapest = Unit(
        program=0, upper=(np.inf, np.inf), stages=(Stage((0.0, 1.0)), Stage((1.0, 1.0))), time_limit_s=MOST_S
    )
    point = solve_unit(programs_of(study), cheapest)
    return {
        "adaptation": adaptation,
        "seconds": round(time.perf_counter() - started, 1),
        "status": point.outcome.status.value,
        "gap": point.outcome.gap,
        "cost_usd_per_h": None if point.columns is None else float(point.columns[1]),
        "plan": None if point.plan is None else study.space.settings_of(_row(study, point.plan.index)),
    }


def _row(study: Study, index: int | None) -> dict[str, Any]:
    columns = study.space.score(np.array([index], dtype=np.int64))
    return {name: values[0] for name, values in columns.items()}


if __name__ == "__main__":
    for name in sys.argv[1:] or ("fixed_split", "work_stealing", "adaptive"):
        print(measured(name), flush=True)
