"""What a second worker gains: whole enumerations with one and with two, nothing pruned.

Run alone: `python benchmarks/scaling.py`. Every case runs in a process of its own. Cold: with the start and the end of
Ray (4 to 5 s). Warm: in a Ray that runs already, as the later jobs of a batch and all jobs on a cluster find it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

from enumeration import two_kinds
from training import A100, H100, WAFER, study

from dse import cluster, enumeration
from dse.progress import Stop, silent
from dse.resolve import Study


def data_parallel() -> Study:
    """A100, H100 and wafers."""
    h100 = H100 | {"count": {"min": 0, "max": 512, "step": 16}, "zero_stage": [1]}
    return study("dp_training", [A100, h100, WAFER])


CASES: dict[str, Callable[[], Study]] = {
    "serving, split": lambda: two_kinds(16_000, 2400),
    "data parallel training": data_parallel,
}


def spent_s(name: str, workers: int, *, warm: bool) -> tuple[float, int, int]:
    """Seconds, designs in the grid, and points of the front of one case in this process."""
    case = CASES[name]()
    with cluster.one_ray():
        if warm:
            started = cluster.Workers(identity, 0, workers=workers)
            list(started.map([0] * workers, estimated_s=cluster.WORTH_RAY_S))
        start = time.perf_counter()
        found = enumeration.enumerate_all(case, workers=workers, address="local", report=silent, stop=Stop())
        spent = time.perf_counter() - start
    if not warm:
        spent = time.perf_counter() - start
    return spent, case.space.n_designs, len(found.index)


def identity(_: int, unit: int) -> int:
    """A unit without work."""
    return unit


def measured(name: str, workers: int, *, warm: bool = False) -> tuple[float, int, int]:
    """The same in a process of its own."""
    command = [sys.executable, "-W", "ignore::FutureWarning", __file__, "--case", json.dumps([name, workers, warm])]
    spent, designs, points = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return spent, designs, points


def scaling_table() -> Iterator[str]:
    """One line a case: times, and how many times as fast two workers are."""
    yield "| space | designs | frontier points | 1 worker | 2 workers, cold | gain | 2 workers, warm | gain |"
    yield "|---|---|---|---|---|---|---|---|"
    for name in CASES:
        one_s, designs, points = measured(name, 1)
        two_s, _, same = measured(name, 2)
        warm_s, _, again = measured(name, 2, warm=True)
        if not points == same == again:
            raise AssertionError(f"{name}: {points}, {same} and {again} points")
        yield (
            f"| {name} | {designs:.3g} | {points:,} | {one_s:.1f} s | {two_s:.1f} s | {one_s / two_s:.2f} | "
            f"{warm_s:.1f} s | {one_s / warm_s:.2f} |"
        )


def main() -> None:
    """The table, or one case as JSON."""
    if "--case" in sys.argv:
        name, workers, warm = json.loads(sys.argv[-1])
        print(json.dumps(spent_s(name, workers, warm=warm)))
        return
    for line in scaling_table():
        print(line, flush=True)


if __name__ == "__main__":
    main()
