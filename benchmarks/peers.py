"""Configurations a second, time to the first answer and memory: this project beside aiconfigurator, GenZ, llm-analysis.

Run alone: `python benchmarks/peers.py`, some five minutes. One question for all: Llama-3.1-70B in bf16 on H100 SXM,
1,024 tokens in and 256 out, whatever each tool sweeps by itself. A peer lives in an environment of its own under
`benchmarks/.venvs`, made here with the versions below, and never in the project's. One that does not install or run
gets a row with the reason.

A watcher, a small process that starts one command and waits for it, takes time and memory, so that neither holds
anything of this process. Peers run this same file with `--inside`, so its head imports the standard library alone.
"""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from threading import Timer
from typing import Any

HERE = Path(__file__).resolve().parent
RUNS = 3
TIMEOUT_S = 300.0
"""Of one run; an installation may take three times as long."""
INPUT, OUTPUT = 1024, 256
LONGER = 8
"""Tokens more in requests that make a tool which remembers its answers work again."""
INSTANCES = (2, 4, 8)
"""Devices that share one copy of the model; it does not fit on one."""
BATCHES = (128, 512)
"""Largest batches of settings without a sweep: where aiconfigurator's engine is fastest, and what its sweep goes to."""
CONTEXT = INPUT + OUTPUT // 2
"""Tokens a sequence holds midway through its output: what single decode steps are timed at."""
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
AICONFIGURATOR = [
    *("cli", "default", "--model", "meta-llama/Meta-Llama-3.1-70B", "--system", "h100_sxm", "--total-gpus", "64"),
    *("--isl", str(INPUT), "--osl", str(OUTPUT), "--ttft", "2000", "--tpot", "50", "--no-color"),
]
LLAMA_70B = {
    "name": "llama-3.1-70b",
    "num_layers": 80,
    "n_head": 64,
    "num_key_value_heads": 8,
    "hidden_dim": 8192,
    "ffn_embed_dim": 28672,
    "expansion_ratio": 3.5,
    "vocab_size": 128256,
    "max_seq_len": 131072,
    "model_type": "llama",
}
"""llm-analysis ships no Llama 3. Source: config.json of Llama-3.1-70B; without the ratio it refuses 28672 / 8192."""
ANSWER = "ANSWER"
"""Begins the line that a run inside a peer prints once it has what its user asked for."""
HEAD = "tool | what is counted | number | a second | first answer | peak memory | what it answers"


@dataclass(frozen=True, slots=True)
class Run:
    """What a watcher saw of one command."""

    returncode: int
    seconds: float
    first_s: float | None
    """From the start of the process to the line with the marker; None without such a line."""
    peak_mib: float
    output: str


def watch(job: dict[str, Any]) -> Run:
    """Runs one command in this process, which must have had no other child."""
    lines: list[str] = []
    first_s = None
    started = time.perf_counter()
    with subprocess.Popen(
        job["command"],
        env=job["env"],
        cwd=job["folder"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        killer = Timer(job["timeout_s"], os.killpg, (process.pid, signal.SIGKILL))
        killer.start()
        try:
            for line in process.stdout or ():
                lines.append(line)
                if first_s is None and job["marker"] in line:
                    first_s = time.perf_counter() - started
            process.wait()
        finally:
            killer.cancel()
    peak_mib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    return Run(process.returncode, time.perf_counter() - started, first_s, peak_mib, "".join(lines))


def watched(command: Sequence[str], folder: Path, marker: str, **more: str) -> Run:
    """One command in a small environment, one thread, hubs offline; no result is an error with its reason."""
    env = {
        "PATH": os.environ.get("PATH", ""),
        "HOME": str(folder),
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "MPLBACKEND": "Agg",
        "NO_COLOR": "1",
        "COLUMNS": "200",
        "PYTHONUNBUFFERED": "1",
        "PYTHONWARNINGS": "ignore",
        **{f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL", "NUMBA", "RAYON")},
    }
    job = {
        "command": list(command),
        "env": env | more,
        "folder": str(folder),
        "marker": marker,
        "timeout_s": TIMEOUT_S,
    }
    watcher = [sys.executable, "-I", str(HERE / "peers.py"), "--watch", json.dumps(job)]
    run = Run(**json.loads(subprocess.run(watcher, capture_output=True, text=True, check=True).stdout))
    if run.returncode == -signal.SIGKILL and run.seconds >= TIMEOUT_S:
        raise RuntimeError(f"no answer within {TIMEOUT_S:g} s")
    if run.returncode or run.first_s is None:
        raise RuntimeError(reason(run.output) or f"exit code {run.returncode}, no answer")
    return run


def reason(output: str) -> str:
    """The last line that names an error, without addresses and folders."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    named = [line for line in lines if re.search(r"\b\w*(Error|ERROR|Exception)\b", line)]
    last = (named or lines or [""])[-1]
    return re.sub(r"(https?|file)://\S+|/\S+/", "", last).replace("|", "/")[:300]


def python_of(peer: str) -> str:
    """The interpreter of a peer's environment, made or made anew when its pins are not what it was made with."""
    venv = HERE / ".venvs" / peer
    stamp, pins = venv / "pins.json", json.dumps(PINS[peer])
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != pins:
        pip = [str(venv / "bin" / "python"), "-m", "pip", "install", "-q"]
        for command in ([sys.executable, "-m", "venv", "--clear", str(venv)], [*pip, *PINS[peer]]):
            made = subprocess.run(command, capture_output=True, text=True, timeout=3 * TIMEOUT_S, check=False)
            if made.returncode:
                raise RuntimeError(f"does not install: {reason(made.stderr)}")
        stamp.write_text(pins, encoding="utf-8")
    return str(venv / "bin" / "python")


def seconds_of(function: Callable[[], object]) -> float:
    """Seconds of one call."""
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


# Inside a peer's environment: each prints ANSWER when its user would have one, and returns numbers.


def inside_aiconfigurator() -> dict[str, float]:
    """The sweep of its command line, calls counted; those calls at other lengths; its engine without a sweep."""
    sweep: Any = import_module("aiconfigurator.sdk.sweep")
    seen: set[Any] = set()
    others: list[Callable[[], object]] = []
    found = {"asked": 0.0, "new_s": 0.0}

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(**given: Any) -> Any:
            found["asked"] += 1
            key = given["model"], given["runtime_config"].batch_size, given.get("ctx_tokens"), given.get("role")
            if key in seen:
                return function(**given)
            seen.add(key)
            longer = replace(given["runtime_config"], isl=INPUT + LONGER, osl=OUTPUT + LONGER)
            others.append(partial(function, **given | {"runtime_config": longer}))
            started = time.perf_counter()
            result = function(**given)
            found["new_s"] += time.perf_counter() - started
            return result

        return call

    def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(**given: Any) -> Any:
            started = time.perf_counter()
            result = function(**given)
            found[name] = time.perf_counter() - started
            return result

        return call

    def paired(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(**given: Any) -> Any:
            result = function(**given)
            found["pairs"] = given["match_workers"].cache_info().misses
            counts = len(given["prefill_num_worker_list"]) * len(given["decode_num_worker_list"])
            found["compositions"] = found["pairs"] * counts
            return result

        return call

    sweep.predict_agg_worker = counted(sweep.predict_agg_worker)
    sweep.predict_disagg_worker = counted(sweep.predict_disagg_worker)
    sweep._find_best_disagg_under_constraint = paired(sweep._find_best_disagg_under_constraint)
    sweep.sweep_agg, sweep.sweep_disagg = timed("agg_s", sweep.sweep_agg), timed("disagg_s", sweep.sweep_disagg)
    import_module("aiconfigurator.main").main([*AICONFIGURATOR, "--log-level", "ERROR"])
    print(ANSWER, flush=True)
    found["others"] = len(others) / seconds_of(lambda: [call() for call in others])
    return found | {"points": len(seen)} | {f"engine_{most}": engine_per_s(most) for most in BATCHES}


def engine_per_s(most: int) -> float:
    """aiconfigurator's compiled engine: pairs of a prefill and a decode pass a second, batches up to `most`.

    It remembers what it was asked, so other lengths are asked first, which load its tables.
    """
    engine = import_module("aiconfigurator_core.sdk").EngineHandle
    bf16 = {f"{part}_quant_mode": "bfloat16" for part in ("gemm", "kvcache", "fmha")}
    where = ("meta-llama/Meta-Llama-3.1-70B", "h100_sxm", "trtllm")
    handles = [engine.compile(*where, tp_size=g, moe_tp_size=1, moe_ep_size=1, **bf16) for g in INSTANCES]

    def passes(longer: int) -> None:
        for handle in handles:
            for batch in range(1, most + 1):
                handle.predict_prefill_latency(batch, INPUT + longer)
                handle.predict_decode_latency(batch, CONTEXT - 1 + longer, 2)

    passes(LONGER)
    return len(handles) * most / seconds_of(lambda: passes(0))


def inside_genz() -> dict[str, float]:
    """Its own sweep of parallelism and batch for both phases; on fewer devices a setting that does not fit ends it."""
    strategies: Any = import_module("GenZ.LLM_inference.best_parallelization")
    calls: list[str] = []

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(**given: Any) -> Any:
            calls.append(given["model"])
            return function(**given)

        return call

    strategies.prefill_moddeling = counted(strategies.prefill_moddeling)
    strategies.decode_moddeling = counted(strategies.decode_moddeling)

    def fronts() -> None:
        for stage in ("prefill", "decode"):
            front = strategies.get_pareto_optimal_performance(
                stage=stage,
                model="meta-llama/Llama-3.1-70B",
                total_nodes=16,
                batch_list=[1, 2, 4, 8, 16, 32, 64, 128],
                input_tokens=INPUT,
                output_tokens=OUTPUT,
                system_name="H100_GPU",
                bits="bf16",
            )
            print(front.to_string(), flush=True)

    fronts()
    print(ANSWER, flush=True)
    calls.clear()
    spent_s = seconds_of(fronts)  # without what it compiles when first used
    return {"configurations": len(calls), "per_s": len(calls) / spent_s}


def inside_llm_analysis() -> dict[str, float]:
    """It has no sweep: a user's loop over tensor and pipeline parallelism and batch, the fastest kept."""
    analysis = import_module("llm_analysis.analysis")
    Path("model.json").write_text(json.dumps(LLAMA_70B), encoding="utf-8")
    rates: dict[tuple[int, int, int], float] = {}
    misfits = 0
    started = time.perf_counter()
    for tensor, pipeline in ((t, p) for t in (1, 2, 4, 8) for p in (1, 2, 4, 8)):
        for batch in range(1, 129):
            try:
                found = analysis.infer(
                    model_name="model.json",
                    gpu_name="h100-sxm-80gb",
                    log_level="ERROR",
                    batch_size_per_gpu=batch,
                    tp_size=tensor,
                    pp_size=pipeline,
                    seq_len=INPUT,
                    num_tokens_to_generate=OUTPUT,
                    flops_efficiency=0.7,
                    hbm_memory_efficiency=0.7,
                )
            except AssertionError:  # "model is too large": how it says so
                misfits += 1
                continue
            rates[tensor, pipeline, batch] = found["total_tokens_per_sec"] / (tensor * pipeline)
    spent_s = time.perf_counter() - started
    best = max(rates, key=lambda setting: rates[setting])
    print(ANSWER, best, rates[best], flush=True)
    return {"configurations": len(rates), "misfits": misfits, "per_s": len(rates) / spent_s}


# Inside this project's environment.


def study(most: int, second: str) -> dict[str, Any]:
    """Two pools of up to `most` devices each, so that prefill and decode may be on separate instances."""
    request = {"name": "chat", "share": 1.0, "input_tokens": INPUT, "output_tokens": OUTPUT}
    count, roles = {"min": 0, "max": most}, ["prefill", "decode", "both"]
    pool = {"count": count, "instance_size": list(INSTANCES), "roles": roles}
    first = pool | {"device": "h100-80gb-sxm", "name": "first"}
    return {
        "name": "peers",
        "paradigm": "pd_serving",
        "workload": {"model": "llama-3.1-70b", "requests": [request], "slo": {"tpot_s": 0.05}},
        "pool": [first, pool | {"device": second, "name": "second"}],
        "link": {"tier": ["ndr400"], "count": [1, 2, 4, 8]},
        "objectives": {"maximise": ["throughput_tok_s"], "minimise": ["cost_usd_per_h", "power_w"]},
        "compute": {"workers": 1},
    }


def passes_of_ours() -> dict[str, float]:
    """Pass times by our law, one array call for each phase: the settings of `engine_per_s`."""
    import numpy as np

    from dse.catalog import load_catalog
    from dse.model.phases import decode_time, prefill_time
    from dse.model.transformer import arithmetic

    catalog, repeats = load_catalog(), 100
    device, model = catalog.device("h100-80gb-sxm"), arithmetic(catalog.model("llama-3.1-70b"))
    g, batch = np.array(INSTANCES, dtype=float)[:, None], np.arange(1.0, BATCHES[-1] + 1)
    half: dict[str, Any] = {"weight_dtype_byte": 2.0, "kv_dtype_byte": 2.0, "compute_dtype": "bf16"}

    def passes() -> None:
        for _ in range(repeats):
            prefill_time(device, model, g=g, batch=batch, input_tokens=float(INPUT), hit_frac=0.0, **half)
            decode_time(device, model, g=g, batch=batch, context_tokens=float(CONTEXT), **half)

    passes()
    n = g.size * batch.size
    return {"designs": n, "per_s": repeats * n / seconds_of(passes)}


def space_of_ours(case: str) -> dict[str, float]:
    """One space of designs, gone through after a small one that loads all it needs."""
    import numpy as np

    from dse import enumeration, pruning
    from dse.progress import Stop, silent
    from dse.resolve import Study

    def explored(s: Study, *, pruned: bool) -> object:
        if pruned:
            return pruning.explore_pruned(s, report=silent, stop=Stop())
        return enumeration.enumerate_all(s, workers=1, address="local", report=silent, stop=Stop())

    small = Study.from_dict(study(64, "h100-80gb-sxm"))
    for pruned in (False, True):
        explored(small, pruned=pruned)
    if case == "small":
        return {"designs": small.space.n_designs}
    s = import_module("enumeration").six_kinds() if case == "six" else Study.from_dict(study(2400, "h200-141gb-sxm"))
    if case == "full":
        index = np.linspace(0, s.space.n_designs - 1, 65_536).astype(np.int64)
        index = index[s.space.legal(index)][:16_384]
        s.space.numbers(index)
        return {"designs": len(index), "per_s": len(index) / seconds_of(lambda: s.space.numbers(index))}
    spent_s = seconds_of(lambda: explored(s, pruned=case != "every"))
    return {"designs": s.space.n_designs, "per_s": s.space.n_designs / spent_s}


INSIDE: dict[str, Callable[[], dict[str, float]]] = {
    "aiconfigurator": inside_aiconfigurator,
    "genz-llm": inside_genz,
    "llm-analysis": inside_llm_analysis,
    "law": passes_of_ours,
    **{case: partial(space_of_ours, case) for case in ("small", "every", "pruned", "six", "full")},
}


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
    command = [python, *([] if more else ["-I"]), str(HERE / "peers.py"), "--inside", name]
    return repeated(lambda: watched(command, folder, ANSWER, **more))


def rate(per_s: float) -> str:
    """Three digits, without an exponent below a million.

    >>> rate(2345.6), rate(2.1e7)
    ('2,350', '2.1e+07')
    """
    return f"{float(f'{per_s:.3g}'):,.3g}" if per_s < 100 or per_s >= 1e6 else f"{float(f'{per_s:.3g}'):,.0f}"


def aiconfigurator_rows(folder: Path) -> Iterator[list[str]]:
    """The whole command, then its parts from the tightest to the barest."""
    python = python_of("aiconfigurator")
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
    n, first, peak = inside(python_of("genz-llm"), "genz-llm", folder)
    answers = "frontier of latency and rate, one phase on one number of devices; no price, no mix"
    yield [
        "its sweep of parallelism and batch, both phases",
        f"{n['configurations']:,.0f}",
        rate(n["per_s"]),
        *(first, peak, answers),
    ]


def llm_analysis_rows(folder: Path) -> Iterator[list[str]]:
    """A loop around it."""
    n, first, peak = inside(python_of("llm-analysis"), "llm-analysis", folder)
    yield [
        "a loop of ours over parallelism and batch; it has none",
        f"{n['configurations']:,.0f} ({n['misfits']:,.0f} more do not fit)",
        rate(n["per_s"]),
        *(first, peak, "latency and memory of one setting; no sweep, no frontier"),
    ]


def our_rows(folder: Path) -> Iterator[list[str]]:
    """The command, then the engine by itself."""
    text = import_module("tomli_w").dumps(study(64, "h100-80gb-sxm"))
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
    yield "## Peers: configurations a second and time to first answer"
    yield ""
    yield f"`python benchmarks/peers.py`; one thread, medians of {RUNS} runs. Llama-3.1-70B in bf16 on H100 SXM 80 GB,"
    yield f"{INPUT:,} tokens in and {OUTPUT} out, for every tool. First answer: from the start of the process to its"
    yield "first result, imports included. A second: without imports. Memory: the peak of the process."
    yield ""
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


def main() -> None:
    """The section; or, for its own use, one watched command or one function inside an environment, as JSON."""
    if sys.argv[1:2] == ["--watch"]:
        print(json.dumps(asdict(watch(json.loads(sys.argv[2])))))
    elif sys.argv[1:2] == ["--inside"]:
        numbers = INSIDE[sys.argv[2]]()
        print(ANSWER, flush=True)
        print(json.dumps(numbers), flush=True)
    else:
        for line in peer_tables():
            print(line, flush=True)


if __name__ == "__main__":
    main()
