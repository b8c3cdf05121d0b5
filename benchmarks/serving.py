"""Speed and memory of serving studies: screening, scoring in full, and whole enumerations.

Run alone: `python benchmarks/serving.py`. Every speed stands beside a bare numpy pass (one multiply-add over as many
float64 columns as screening reads) of the same run, so that a slow machine does not mislead.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np

from dse import enumeration
from dse.progress import Stop, silent
from dse.resolve import Study

BLOCKS = 600
REPEATS = 5
COLUMNS_READ = 13
"""float64 a candidate that screening gathers: 6 of each pool's table (instances or rates, cost, power) and the link."""


def study(n_classes: int, *, n_gpu: int, n_wse: int, routing: str = "split", **slo: float) -> Study:
    """A100 + WSE-3 on Llama-2-7B with a spread of request shapes."""
    share = np.linspace(2.0, 1.0, n_classes)
    share /= share.sum()
    share[-1] = 1.0 - share[:-1].sum()
    requests: list[dict[str, Any]] = [
        {"name": f"c{i}", "share": float(share[i]), "input_tokens": 256.0 * (i + 1), "output_tokens": 64.0 + 32 * i}
        for i in range(n_classes)
    ]
    return Study.from_dict(
        {
            "name": "benchmark",
            "paradigm": "pd_serving",
            "workload": {"model": "llama-2-7b", "requests": requests, "routing": routing, "slo": slo},
            "pool": [
                {"device": "a100-40gb-sxm", "name": "gpu", "count": {"min": 0, "max": n_gpu}},
                {"device": "wse-3", "name": "wse", "count": {"min": 0, "max": n_wse}},
            ],
            "link": {"bandwidth_gb_s": [25, 100, 400]},
        }
    )


def best_s(action: Callable[[], object]) -> float:
    """Median of a few timed runs after one warm-up [s]."""
    action()
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def screened_per_s(s: Study) -> float:
    """Designs screened per second on one core, all arithmetic and legality, no front."""
    s.space.screen_unit(next(iter(s.space.units())))
    units = list(islice(s.space.units(), BLOCKS))
    sizes = sum(s.space.screen_unit(u)[1].size for u in units)

    def action() -> None:
        for unit in units:
            s.space.screen_unit(unit)

    return sizes / best_s(action)


def numpy_pass_per_s() -> float:
    """Candidates per second of one multiply-add over COLUMNS_READ float64 columns in the same block size."""
    rows = 16_384
    columns = [np.random.default_rng(i).random(rows) for i in range(COLUMNS_READ)]
    out = np.empty(rows)

    def action() -> None:
        for _ in range(BLOCKS):
            for c in columns:
                np.multiply(c, 1.0001, out=out)
                np.add(out, 0.5, out=out)

    return BLOCKS * rows / best_s(action)


def explored_per_s(s: Study) -> tuple[float, float, int, int]:
    """Designs per second of a whole exhaustive run, front included; seconds, legal designs, front size."""
    start = time.perf_counter()
    found = enumeration.enumerate_all(s, workers=1, address="local", report=silent, stop=Stop())
    spent = time.perf_counter() - start
    return s.space.n_designs / spent, spent, found.candidates, len(found.index)


def scored_in_full_per_s(s: Study) -> float:
    """Designs per second with every column of the result frame's numbers."""
    index = np.linspace(0, s.space.n_designs - 1, 8192).astype(np.int64)
    index = index[s.space.legal(index)]
    return len(index) / best_s(lambda: s.space.numbers(index))


def peak_mib(n_gpu: int, n_wse: int) -> float:
    """Peak memory of a process that explores such a space [MiB]."""
    command = [sys.executable, __file__, "--peak", json.dumps([n_gpu, n_wse])]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def speed_table() -> Iterator[str]:
    """Screening speed per kind of study, and its ratio to the bare numpy pass."""
    bare = numpy_pass_per_s()
    yield "| study | screened/s | ratio to the numpy pass | scored in full/s | whole run, designs/s |"
    yield "|---|---|---|---|---|"
    cases = {
        "one request class": study(1, n_gpu=2000, n_wse=500),
        "twelve classes": study(12, n_gpu=2000, n_wse=500),
        "one class, TTFT limit": study(1, n_gpu=2000, n_wse=500, ttft_p99_s=2.0),
        "twelve classes, TTFT limit": study(12, n_gpu=2000, n_wse=500, ttft_p99_s=2.0),
        "twelve classes, TPOT limit": study(12, n_gpu=2000, n_wse=500, tpot_s=0.02),
        "twelve classes, work stealing": study(12, n_gpu=600, n_wse=60, routing="work_stealing"),
        "twelve classes, work stealing, TTFT limit": study(
            12, n_gpu=60, n_wse=8, routing="work_stealing", ttft_p99_s=2.0
        ),
    }
    for name, s in cases.items():
        screened, full = screened_per_s(s), scored_in_full_per_s(s)
        whole = explored_per_s(s)[0]
        yield f"| {name} | {screened / 1e6:.3g} M | {screened / bare:.2f} | {full / 1e3:.0f} k | {whole / 1e6:.2g} M |"
    yield f"| bare numpy pass, {COLUMNS_READ} columns | {bare / 1e6:.1f} M | 1 | - | - |"


def memory_table() -> Iterator[str]:
    """Peak memory of whole runs on spaces of growing size."""
    yield "| designs in the grid | peak memory | ratio to the first |"
    yield "|---|---|---|"
    first = 0.0
    for n_gpu, n_wse in ((300, 30), (1000, 300), (6000, 620)):
        size = study(1, n_gpu=n_gpu, n_wse=n_wse).space.n_designs
        peak = peak_mib(n_gpu, n_wse)
        first = first or peak
        yield f"| {size:,} | {peak:.0f} MiB | {peak / first:.2f} |"


def main() -> None:
    """Both tables; or, on request, the memory of this process after one exploration."""
    if "--peak" in sys.argv:
        n_gpu, n_wse = json.loads(sys.argv[-1])
        explored_per_s(study(1, n_gpu=n_gpu, n_wse=n_wse, tpot_s=0.02))
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
        return
    for line in (*speed_table(), "", *memory_table()):
        print(line, flush=True)


if __name__ == "__main__":
    main()
