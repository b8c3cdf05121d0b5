"""Time and memory of exact enumeration: 1e6 to 1e9 designs one by one, 1e12 by pruning; one and two workers.

Run alone: `python benchmarks/enumeration.py`; `run.py` puts the table into RESULTS.md. Every case runs in a process of
its own, so that its memory is its own.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dse import enumeration, pruning
from dse.progress import Stop, silent
from dse.resolve import Study

SIX_KINDS = Path(__file__).with_name("six_kinds.toml")
MIB = 1024
"""KiB in a MiB: ru_maxrss counts KiB."""
CASES = {
    "1e6, every design": ("every", 800, 200, 1),
    "1e8, every design": ("every", 5600, 1000, 1),
    "1e8, pruned": ("pruned", 5600, 1000, 1),
    "1e9, every design": ("every", 16_000, 2400, 1),
    "1e9, every design, 2 workers": ("every", 16_000, 2400, 2),
    "1e12, six device kinds, pruned": ("six", 0, 0, 1),
}


def two_kinds(n_gpu: int, n_wse: int) -> Study:
    """A100 + WSE-3 on Llama-2-7B, three links: the size of the grid grows with the counts."""
    return Study.from_dict(
        {
            "name": "two-kinds",
            "paradigm": "pd_serving",
            "workload": {
                "model": "llama-2-7b",
                "requests": [{"name": "chat", "share": 1.0, "input_tokens": 1024, "output_tokens": 256}],
            },
            "pool": [
                {"device": "a100-40gb-sxm", "name": "gpu", "count": {"min": 0, "max": n_gpu}},
                {"device": "wse-3", "name": "wse", "count": {"min": 0, "max": n_wse}},
            ],
            "link": {"bandwidth_gb_s": [25, 100, 400]},
            "objectives": {"maximise": ["throughput_tok_s"], "minimise": ["cost_usd_per_h", "power_w"]},
        }
    )


def six_kinds() -> Study:
    """The six kinds of `six_kinds.toml` with twice as many counts of each device, and up to 48 wafers."""
    raw: dict[str, Any] = tomllib.loads(SIX_KINDS.read_text(encoding="utf-8"))
    for pool in raw["pool"]:
        pool["count"]["step"] = 4
    raw["pool"][-1]["count"]["max"] = 48
    return Study.from_dict(raw | {"search": {}, "compute": {}})


def measured(kind: str, n_gpu: int, n_wse: int, workers: int) -> dict[str, float]:
    """One case, in this process."""
    study = six_kinds() if kind == "six" else two_kinds(n_gpu, n_wse)
    started = time.perf_counter()
    if kind == "every":
        found = enumeration.enumerate_all(study, workers=workers, address="local", report=silent, stop=Stop())
    else:
        found = pruning.explore_pruned(study, report=silent, stop=Stop())
    spent_s = time.perf_counter() - started
    own, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return {
        "designs": study.space.n_designs,
        "compared": found.candidates,
        "front": len({tuple(point) for point in found.points.tolist()}),
        "spent_s": spent_s,
        "cpu_s": own.ru_utime + own.ru_stime,
        "own_mib": own.ru_maxrss / MIB,
        "child_mib": children.ru_maxrss / MIB,
    }


def enumeration_table() -> Iterator[str]:
    """One line a case: designs, what was compared one by one, time, speed, memory."""
    yield "| space | designs | legal or compared | frontier points | time | designs/s | processor time | memory |"
    yield "|---|---|---|---|---|---|---|---|"
    times: dict[str, float] = {}
    for name, case in CASES.items():
        command = [sys.executable, __file__, "--case", json.dumps(case)]
        found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        times[name] = found["spent_s"]
        yield (
            f"| {name} | {found['designs']:.3g} | {found['compared']:.3g} | {found['front']:,} | "
            f"{found['spent_s']:.1f} s | {found['designs'] / found['spent_s']:.2g} | {found['cpu_s']:.1f} s | "
            f"{max(found['own_mib'], found['child_mib']):.0f} MiB |"
        )
    one, two = (times[name] for name in ("1e9, every design", "1e9, every design, 2 workers"))
    yield ""
    yield f"1 -> 2 workers at 1e9: {one / two:.2f} times as fast, Ray's start (4 to 5 s) included."


def main() -> None:
    """The table, or one case as JSON."""
    if "--case" in sys.argv:
        print(json.dumps(measured(*json.loads(sys.argv[-1]))))
        return
    for line in enumeration_table():
        print(line, flush=True)


if __name__ == "__main__":
    main()
