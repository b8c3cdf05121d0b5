"""Placement programs at scale: time to a proven optimum, rounds of cuts, gain over the balanced layout.

    python benchmarks/placement.py [NAME ...]

One thread. Each case has one pipeline over two or three kinds of devices, instances of 8, three recompute modes per
stage and pools in any order; the step is shortest. `balanced` is the best design of the grid: balanced layers, pools in
the study's order, one recompute mode.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyomo.environ as pyo

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from placement_driver import best, programs

from dse.resolve import Study
from dse.scoring import score_index
from formulations import pp_placement

TWO = (("a100-80gb-sxm", 8), ("h100-80gb-sxm", 8))
THREE = (("a100-80gb-sxm", 12), ("h100-80gb-sxm", 10), ("h200-141gb-sxm", 10))
SIZES = {"80x16x2": ("llama-3.1-70b", TWO, 128), "126x32x3": ("llama-3.1-405b", THREE, 64)}


def tables(model: str, kinds: tuple[tuple[str, int], ...], schedule: str, batch: int) -> dict[str, Any]:
    """One study: devices and stages of each pool."""
    return {
        "name": "placement",
        "paradigm": "pp_training",
        "workload": {
            "model": model,
            "sequence_tokens": 4096,
            "global_batch": [batch],
            "recompute": ["none", "selective", "full"],
        },
        "pool": [
            {"device": device, "count": [8 * k], "instance_size": [8], "stages": [k], "schedule": [schedule]}
            for device, k in kinds
        ],
        "link": {"bandwidth_gb_s": [50]},
        "objectives": {"maximise": ["throughput_tok_s"], "minimise": ["cost_usd_per_h"]},
    }


CASES = {
    f"{name} {schedule}": tables(model, kinds, schedule, batch)
    for name, (model, kinds, batch) in SIZES.items()
    for schedule in ("gpipe", "1f1b")
}


def integers(study: Study) -> int:
    """Binaries and integers of the study's one program."""
    (data,) = programs(study)
    model = pp_placement.build_model(data)
    return sum(not v.is_continuous() for v in model.component_data_objects(pyo.Var))


def placement_table(names: Iterable[str] = CASES) -> Iterator[str]:
    """One line a case: the proven optimum, and the best balanced design of the grid."""
    yield "| layers x stages x kinds | binaries, integers | time | rounds | gap | step | best balanced design |"
    yield "|---|---|---|---|---|---|---|"
    for name in names:
        study = Study.from_dict(CASES[name])
        found = best(study)
        index = np.arange(study.space.n_designs)
        frame = score_index(study, index[study.space.legal(index)])
        fits = frame.loc[frame["feasible"], "step_time_s"]
        step = float(found.row["step_time_s"])
        balanced = f"{fits.min():.4f} s, {fits.min() / step - 1:.1%} longer" if len(fits) else "none fits"
        yield (
            f"| {name} | {integers(study)} | {found.outcome.time_s:.1f} s | {found.rounds} | {found.outcome.gap:.0e} | "
            f"{step:.4f} s | {balanced} |"
        )


if __name__ == "__main__":
    for line in placement_table(sys.argv[1:] or CASES):
        print(line, flush=True)
