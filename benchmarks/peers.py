"""Configurations a second, time to the first answer and memory: this project beside aiconfigurator, GenZ, llm-analysis.

Run alone: `python benchmarks/peers.py`, some five minutes. One question for all: Llama-3.1-70B in bf16 on H100 SXM,
1,024 tokens in and 256 out, whatever each tool sweeps by itself. A peer lives in an environment of its own under
`benchmarks/.venvs`, made here with the versions below, and never in the project's. One that does not install or run
gets a row with the reason.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import tomli_w
from peers_inside import AICONFIGURATOR, ANSWER, BATCHES, INSTANCES, study
from watching import Run, python_of, watched

HERE = Path(__file__).resolve().parent
RUNS = 3
PINS = {
    "aiconfigurator": [
        *("aiconfigurator==0.12.0", "aiconfigurator-core==0.12.0", "numpy==2.4.6", "pandas==3.1.1", "scipy==1.17.1"),
        *("pyarrow==26.0.1", "pydantic==2.14.4", "matplotlib==3.11.2", "plotext==5.3.2"),
    ],
    "genz-llm": ["genz-llm==0.0.16", "numpy==2.4.6", "pandas==3.1.1", "paretoset==1.2.5", "numba==0.68.1"],
    "llm-analysis": [
        *("llm-analysis==0.2.2", "transformers==4.31.0", "tokenizers==0.13.3", "huggingface-hub==0.14.1"),
        *("numpy==2.4.6", "fire==0.5.0"),
    ],
}
"""Peer -> its version, and those of what it needs most."""
HEAD = "tool | what is counted | number | a second | first answer | peak memory | what it answers"


def repeated(start: Callable[[], Run]) -> tuple[dict[str, float], str, str]:
    """Medians of a few runs: of the numbers on their last line if it is JSON, of first answer, of memory."""
    runs = [start() for _ in range(RUNS)]
    last = [run.output.splitlines()[-1] for run in runs]
    numbers = [json.loads(line) if line.startswith("{") else {} for line in last]
    medians = {key: statistics.median(one[key] for one in numbers) for key in numbers[0]}
    first_s = statistics.median(run.first_s or 0.0 for run in runs)
    return medians, f"{first_s:.1f} s", f"{statistics.median(run.peak_mib for run in runs):.0f} MiB"


def inside(python: str, name: str, folder: Path) -> tuple[dict[str, float], str, str]:
    """Runs of one function of INSIDE."""
    more = {"PYTHONPATH": str(HERE.parent)} if python == sys.executable else {}
    command = [python, *([] if more else ["-I"]), str(HERE / "peers_inside.py"), name]
    return repeated(lambda: watched(command, folder, ANSWER, **more))


def rate(per_s: float) -> str:
    """Three digits, without an exponent below a million.

    >>> rate(2345.6), rate(2.1e7)
    ('2,350', '2.1e+07')
    """
    return f"{float(f'{per_s:.3g}'):,.3g}" if per_s < 100 or per_s >= 1e6 else f"{float(f'{per_s:.3g}'):,.0f}"


def aiconfigurator_rows(folder: Path) -> Iterator[list[str]]:
    """The whole command, then its parts from the tightest to the barest."""
    python = python_of("aiconfigurator", PINS["aiconfigurator"])
    command = [str(Path(python).with_name("aiconfigurator")), *AICONFIGURATOR]
    _, first, peak = repeated(lambda: watched(command, folder, "AIConfigurator Final Results"))
    n, _, _ = inside(python, "aiconfigurator", folder)
    answers = "one fleet of one GPU kind (or one a phase) at one traffic point; no price"
    yield [
        "its command, whole sweep",
        f"{n['points']:,.0f} worker settings (asked {n['asked']:,.0f} times), {n['pairs']:,.0f} pairs of workers",
        rate((n["points"] + n["pairs"]) / (n["agg_s"] + n["disagg_s"])),
        *(first, peak, answers),
    ]
    worker, pairs = "a worker's times, rate and memory", n["compositions"]
    parts = {
        "those worker settings, first time each, the calls alone": (n["points"], n["points"] / n["new_s"], worker),
        "those worker settings at new lengths, tables loaded, without a sweep": (n["points"], n["others"], worker),
        "counts of workers tried for those pairs": (pairs, pairs / n["disagg_s"], "the best counts of a pair"),
    } | {
        f"bare engine, tables loaded, batch 1 to {b:,}: a prefill and a decode pass": (
            len(INSTANCES) * b,
            n[f"engine_{b}"],
            "two pass times",
        )
        for b in BATCHES
    }
    for what, (number, per_s, answers) in parts.items():
        yield [what, f"{number:,.0f}", rate(per_s), "-", "-", answers]


def genz_rows(folder: Path) -> Iterator[list[str]]:
    """Its sweep."""
    n, first, peak = inside(python_of("genz-llm", PINS["genz-llm"]), "genz-llm", folder)
    answers = "frontier of latency and rate, one phase on one number of devices; no price, no mix"
    yield [
        "its sweep of parallelism and batch, both phases",
        f"{n['configurations']:,.0f}",
        rate(n["per_s"]),
        *(first, peak, answers),
    ]


def llm_analysis_rows(folder: Path) -> Iterator[list[str]]:
    """A loop around it."""
    n, first, peak = inside(python_of("llm-analysis", PINS["llm-analysis"]), "llm-analysis", folder)
    yield [
        "a loop of ours over parallelism and batch; it has none",
        f"{n['configurations']:,.0f} ({n['misfits']:,.0f} more do not fit)",
        rate(n["per_s"]),
        *(first, peak, "latency and memory of one setting; no sweep, no frontier"),
    ]


def our_rows(folder: Path) -> Iterator[list[str]]:
    """The command, then the engine by itself."""
    text = tomli_w.dumps(study(64, "h100-80gb-sxm"))
    (folder / "peers.toml").write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "dse", "run", "peers.toml", "--progress", "none"]
    more = {"PYTHONPATH": str(HERE.parent)}
    _, first, peak = repeated(lambda: watched(command, folder, "frontier points (", **more))
    small, _, _ = inside(sys.executable, "small", folder)
    yield [
        "`dse run`, H100 for prefill and H100 for decode, up to 64 each",
        f"{small['designs']:,.0f} designs",
        *("-", first, peak, "exact frontier of rate, cost and power; what binds; intervals; a report"),
    ]
    cases = {
        "every": ("`enumerate_all`, H100 and H200, up to 2,400 each", "exact frontier of a mix of devices"),
        "pruned": ("the same space pruned: designs judged, most in groups, unseen", "the same frontier"),
        "six": ("six device kinds, eight request classes, pruned: designs judged, likewise", "exact frontier"),
        "full": ("the H100 and H200 space, legal designs scored in full", "every column of a result"),
        "law": ("pass times, one prefill and one decode pass, as arrays", "two pass times"),
    }
    for case, (what, answers) in cases.items():
        n, _, peak = inside(sys.executable, case, folder)
        yield [what, f"{n['designs']:,.3g}", rate(n["per_s"]), "-", peak, answers]


TOOLS: dict[str, Callable[[Path], Iterator[list[str]]]] = {
    "aiconfigurator": aiconfigurator_rows,
    "genz-llm": genz_rows,
    "llm-analysis": llm_analysis_rows,
    "heterodse": our_rows,
}


def rows_of(tool: str) -> Iterator[str]:
    """Lines of one tool; a failure is a line too."""
    label = PINS[tool][0].replace("==", " ") if tool in PINS else tool
    with tempfile.TemporaryDirectory() as folder:
        try:
            for row in TOOLS[tool](Path(folder)):
                yield f"| {' | '.join([label, *row])} |"
        except (RuntimeError, OSError, subprocess.SubprocessError) as error:
            yield f"| {label} | did not run: {error} | - | - | - | - | - |"


def peer_tables() -> Iterator[str]:
    """The section of RESULTS.md."""
    yield f"| {HEAD} |"
    yield "|---|---|---|---|---|---|---|"
    for tool in TOOLS:
        yield from rows_of(tool)
    yield ""
    yield from NOTES


NOTES = [
    "The numbers do not count the same work; only rows that count the same thing compare:",
    "",
    "- aiconfigurator adds up measured kernels, layer by layer; a worker setting includes its schedule of mixed steps.",
    "  Its command asks for the same settings anew, from a cache, at each of 75 TPOT targets, so that the whole sweep",
    "  is slower than its parts. The first settings load its tables. Its bare engine, which also remembers what",
    "  it was asked, slows down above batch 128 (prefill) and, by instance, above batch 256 or 512 (decode).",
    "- Our row of pass times stands beside its bare engine: a law with fitted efficiencies, evaluated as arrays,",
    "  against tables and one call a pass.",
    "- GenZ builds tables of operators (pandas) for every setting, to size it and again to time it. llm-analysis",
    "  evaluates closed formulas, one call a setting.",
    "- Our designs are counts of devices, sizes of instances, roles and links. The pass times of an instance are",
    "  worked out once and a design combines them, so that aiconfigurator's counts of workers are their like, not its",
    "  worker settings. When pruned, most designs are ruled out in groups by a bound and never scored one by one.",
    "- Our first answer includes prices, power, intervals, a verdict and the written report, and loading what these",
    "  need. The package aiconfigurator announces a new name, aisimulate, for the same command; that is not measured.",
    "",
    "Calls:",
    "",
    f"- `aiconfigurator {' '.join(AICONFIGURATOR)}`,",
    "  and the same in one process with its functions counted",
    "- GenZ: `get_pareto_optimal_performance(stage, 'meta-llama/Llama-3.1-70B', total_nodes=16,",
    "  system_name='H100_GPU', batch_list=[1, 2, 4, ..., 128], bits='bf16', ...)` for prefill, then decode; by its",
    "  rule 8 <= TP x PP < 16; timed at the second go, for the first compiles for some three seconds",
    "- llm-analysis: `infer('model.json', 'h100-sxm-80gb', tp_size=..., pp_size=..., batch_size_per_gpu=..., ...)`, TP",
    "  and PP of 1, 2, 4, 8, batch 1 to 128, efficiencies of 0.7; the shape of the model from a file",
    "- ours: `dse run peers.toml`, the study as in the module; `enumeration.enumerate_all`, `pruning.explore_pruned`",
]


if __name__ == "__main__":
    for line in peer_tables():
        print(line, flush=True)
