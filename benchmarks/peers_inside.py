"""What `peers.py` runs inside an environment: each function does one tool's work and returns numbers.

`python peers_inside.py NAME` prints ANSWER when its user would have an answer, and the numbers as JSON. Peers' Pythons
run this file, so its head imports the standard library alone.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

INPUT, OUTPUT = 1024, 256
LONGER = 8
"""Tokens more in requests that make a tool which remembers its answers work again."""
INSTANCES = (2, 4, 8)
"""Devices that share one copy of the model; it does not fit on one."""
BATCHES = (128, 512)
"""Largest batches of settings without a sweep: where aiconfigurator's engine is fastest, and what its sweep goes to."""
CONTEXT = INPUT + OUTPUT // 2
"""Tokens a sequence holds midway through its output: what single decode steps are timed at."""
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


def seconds_of(function: Callable[[], object]) -> float:
    """Seconds of one call."""
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


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


if __name__ == "__main__":
    numbers = INSIDE[sys.argv[1]]()
    print(ANSWER, flush=True)
    print(json.dumps(numbers), flush=True)
