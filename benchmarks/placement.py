"""Placement programs at scale: time to a proven optimum, rounds of cuts, gain over the balanced layout.

python benchmarks/placement.py [NAME ...]
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import numpy as np
from placement_driver import best, programs

from dse.resolve import Study
from dse.scoring import score_index


def pool(device: str, n: int, stages: int, g: int = 8, **more: Any) -> dict[str, Any]:
    return {
        "device": device,
        "name": device.split("-")[0],
        "count": [n],
        "instance_size": [g],
        "stages": [stages],
        **more,
    }


def study(model: str, pools: list[dict[str, Any]], schedule: str, batch: int, recompute: list[str]) -> dict[str, Any]:
    pools = [p | {"schedule": [schedule], "micro_batch": [1], "zero_stage": [1]} for p in pools]
    return {
        "name": "placement",
        "paradigm": "pp_training",
        "workload": {"model": model, "sequence_tokens": 4096, "global_batch": [batch], "recompute": recompute},
        "pool": pools,
        "link": {"bandwidth_gb_s": [50]},
        "objectives": {"maximise": ["throughput_tok_s"], "minimise": ["cost_usd_per_h"]},
    }


TWO = [pool("a100-80gb-sxm", 64, 8), pool("h100-80gb-sxm", 64, 8)]
THREE = [pool("a100-80gb-sxm", 96, 12), pool("h100-80gb-sxm", 80, 10), pool("h200-141gb-sxm", 80, 10)]
MODES = ["none", "selective", "full"]
CASES = {
    f"{n} {schedule}": study(model, pools, schedule, batch, MODES)
    for n, model, pools, batch in (
        ("80x16x2", "llama-3.1-70b", TWO, 128),
        ("126x32x3", "llama-3.1-405b", THREE, 64),
    )
    for schedule in ("gpipe", "1f1b")
}


def main(names: list[str]) -> None:
    print(f"{'case':20} {'time [s]':>9} {'rounds':>6} {'gap':>8} {'step [s]':>10} {'balanced':>10} {'gain':>7}  layers")
    for name in names or CASES:
        one = Study.from_dict(CASES[name])
        found = best(one)
        index = np.arange(one.space.n_designs)
        frame = score_index(one, index[one.space.legal(index)])
        default = float(frame.loc[frame["feasible"], "step_time_s"].min()) if frame["feasible"].any() else float("nan")
        step = float(found.row["step_time_s"])
        print(
            f"{name:20} {found.time_s:9.2f} {found.rounds:6d} {found.outcome.gap:8.1e} {step:10.4f} {default:10.4f}"
            f" {default / step - 1:7.2%}  {found.row['pool_order']}: {found.row['layers']}; {found.row['stage_recompute']}"
            f" ({len(programs(one))} programs)"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
