"""Placement programs at scale: time to a proven optimum, rounds of cuts, gain over the balanced layout.

    python benchmarks/placement.py [NAME ...]

One thread. Each case has one pipeline over two or three kinds of devices, instances of 8, three recompute modes per
stage and pools in any order; the step is shortest. `balanced` is the best design of the grid: balanced layers, pools in
the study's order, one recompute mode.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from placement_driver import best, programs

from dse.resolve import Study
from dse.scoring import score_index

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


def main(names: list[str]) -> None:
    """Prints one line a case."""
    print("case               binaries+integers   time [s] rounds      gap   step [s]   balanced     gain")
    for name in names or CASES:
        study = Study.from_dict(CASES[name])
        found, (data,) = best(study), programs(study)
        index = np.arange(study.space.n_designs)
        frame = score_index(study, index[study.space.legal(index)])
        fits = frame.loc[frame["feasible"], "step_time_s"]
        step, balanced = float(found.row["step_time_s"]), float(fits.min()) if len(fits) else float("nan")
        gain = f"{balanced:10.4f} {balanced / step - 1:8.2%}" if len(fits) else "  none fits"
        print(
            f"{name:18} {2 * len(data.most) + len(data.arcs):17d} {found.outcome.time_s:10.1f} {found.rounds:6d}"
            f" {found.outcome.gap:8.0e} {step:10.4f} {gain}"
        )
        print(f"  {found.row['pool_order']}: {found.row['layers']} layers; {found.row['stage_recompute']}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
