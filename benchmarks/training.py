"""Speed of scoring training designs; `run.py` puts the table into RESULTS.md."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from dse.model.pp_chain import placement
from dse.model.pp_step import steps_of
from dse.resolve import Study

ROWS = 16_384
BLOCKS = 20
REPEATS = 5
COLUMNS_READ = 16
"""float64 a candidate that a two-pool design reads: 6 of each pool's share of time, 2 of each bill."""

A100 = {
    "device": "a100-80gb-sxm",
    "name": "a100",
    "count": {"min": 0, "max": 512, "step": 8},
    "instance_size": [1, 2, 4, 8],
    "micro_batch": [1, 2, 4],
    "zero_stage": [1, 3],
}
H100 = A100 | {"device": "h100-80gb-sxm", "name": "h100"}
WAFER = {"device": "wse-3", "name": "wafer", "count": {"min": 0, "max": 64}}


def study(paradigm: str, pools: list[dict[str, Any]]) -> Study:
    """Llama-2-13B, 1,024 sequences a step."""
    work = {"model": "llama-2-13b", "sequence_tokens": 2048, "global_batch": 1024, "recompute": "full"}
    link = {"bandwidth_gb_s": [25, 100, 400]}
    return Study.from_dict({"name": "benchmark", "paradigm": paradigm, "workload": work, "pool": pools, "link": link})


def pipelines(stages: int, schedule: str, offload: int = 0, collect: int = 1) -> Study:
    """Pipelines of one number of stages; with offload, decoupled from the wafers."""
    gpus = A100 | {
        "count": [stages * 8 * r for r in (1, 2, 4, 8, 16, 32, 64)],
        "instance_size": [2, 4, 8],
        "stages": stages,
        "schedule": schedule,
        "offload_layers": offload,
        "collect": collect,
    }
    return study("pp_training", [gpus, WAFER] if offload else [gpus])


def feasible(s: Study) -> tuple[np.ndarray, np.ndarray]:
    """Rows (P, N) and links (N,) of a block of feasible designs, drawn from the whole space."""
    rng = np.random.default_rng(0)
    index = np.unique(rng.integers(0, s.space.n_designs, 2 * ROWS))
    index = index[s.space.legal(index)]
    index = index[s.space.numbers(index)["throughput_tok_s"] > 0]
    drawn = rng.choice(index, ROWS)
    grid: Any = s.space
    _, link, rows = grid.grid.decode(drawn)
    return rows, link


def per_s(action: Callable[[], object]) -> float:
    """Candidates per second, median of a few repeats of several blocks."""
    action()
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        for _ in range(BLOCKS):
            action()
        times.append((time.perf_counter() - start) / BLOCKS)
    return ROWS / float(np.median(times))


def numpy_pass_per_s() -> float:
    """Candidates per second of one multiply-add over COLUMNS_READ float64 columns."""
    columns = [np.random.default_rng(i).random(ROWS) for i in range(COLUMNS_READ)]
    out = np.empty(ROWS)

    def action() -> None:
        for c in columns:
            np.multiply(c, 1.0001, out=out)
            np.add(out, 0.5, out=out)

    return per_s(action)


def training_table() -> Iterator[str]:
    """Screening speed per kind of study, its ratio to the bare numpy pass, and scoring in full."""
    bare = numpy_pass_per_s()
    yield "| study | screened/s | ratio to the numpy pass | scored in full/s |"
    yield "|---|---|---|---|"
    cases = {
        "data parallel, 2 pools": study("dp_training", [A100, WAFER]),
        "data parallel, 3 pools": study("dp_training", [A100, H100, WAFER]),
        "GPipe, 4 stages": pipelines(4, "gpipe"),
        "GPipe, 8 stages": pipelines(8, "gpipe"),
        "1F1B, 4 stages": pipelines(4, "1f1b"),
        "1F1B, 8 stages": pipelines(8, "1f1b"),
        "interleaved, 8 stages": pipelines(8, "interleaved"),
        "decoupled from wafers, 8 stages": pipelines(8, "1f1b", 1, 4),
    }
    for name, s in cases.items():
        space: Any = s.space
        rows, link = feasible(s)
        system = space.system(space.regimes[0])
        screened = per_s(lambda space=space, system=system, rows=rows, link=link: space.screened(system, rows, link))
        few = slice(0, ROWS // 4)
        full = per_s(lambda space=space, system=system, r=rows[:, few], k=link[few]: space.evaluated(system, r, k)) / 4
        yield f"| {name} | {screened / 1e6:.2f} M | {screened / bare:.3f} | {full / 1e3:.0f} k |"
        if "1F1B" in name:
            place = placement(system, rows)
            exact = per_s(lambda system=system, place=place, r=rows, k=link: steps_of(system, place, r, k))
            yield f"| {name}, full recurrence | {exact / 1e6:.2f} M | {exact / bare:.3f} | - |"
    yield f"| bare numpy pass, {COLUMNS_READ} columns | {bare / 1e6:.1f} M | 1 | - |"
