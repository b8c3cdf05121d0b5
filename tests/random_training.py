"""Random training designs, each as a study table with device files and as a case for `plain_training`."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import plain_training as training
import tomli_w
from plain_training import Case, Pool
from random_designs import random_link

from dse.catalog import load_catalog
from dse.workload import Transformer

MODELS = (
    "llama-2-7b", "llama-2-13b", "llama-3.1-8b", "qwen2.5-7b", "mistral-7b", "mixtral-8x7b", "deepseek-v3",
    "codellama-34b", "tied",
)  # fmt: skip
TIED = Transformer(
    name="tied", layers=24, hidden=896, heads=14, kv_heads=2, head_size=64, feed_forward=4864, vocabulary=151936,
    tied_embedding=True, attention_bias=True,
)  # fmt: skip
TIED_CONFIG = {
    "model_type": "qwen2", "num_hidden_layers": 24, "hidden_size": 896, "num_attention_heads": 14,
    "num_key_value_heads": 2, "intermediate_size": 4864, "vocab_size": 151936, "tie_word_embeddings": True,
    "architectures": ["Qwen2ForCausalLM"], "use_sliding_window": False,
}  # fmt: skip


@dataclass(frozen=True)
class Drawn:
    """One design: what the program reads, and what the plain model reads."""

    raw: dict[str, Any]
    settings: dict[str, str]
    case: Case
    pools: Sequence[Pool]
    """As on offer; n = 0 where the design does not buy one."""
    names: Sequence[str]

    @property
    def bought(self) -> list[Pool]:
        return [p for p in self.pools if p.n]

    def menu(self) -> Iterator[tuple[Case, Pool]]:
        """Every pool of the study alone in every setting and regime, at the design's global batch."""
        work = self.raw["workload"]
        regimes = [
            replace(self.case, dtype=dtype, recompute=recompute)
            for dtype, recompute in product(work["compute_dtype"], work["recompute"])
        ]
        if self.raw["paradigm"] == "pp_training":
            kinds = [
                (schedule, v)
                for schedule in self.raw["pool"][0]["schedule"]
                for v in (self.raw["pool"][0]["chunks"] if schedule == "interleaved" else [1])
            ]
            regimes = [replace(c, schedule=schedule, chunks=v) for c in regimes for schedule, v in kinds]
        for table, pool in zip(self.raw["pool"], self.pools, strict=True):
            axes = [table[k] for k in ("count", "instance_size", "micro_batch", "zero_stage")]
            for n, g, m, z, stages in product(*axes, table.get("stages", [1])):
                if n and n % (g * stages) == 0:
                    one = replace(pool, n=n, g=g, micro=m, zero=z, stages=stages)
                    yield from ((case, one) for case in regimes)


def toy_device(rng: random.Random, name: str, streams: bool, arrangement: str) -> dict[str, Any]:
    """A device with plausible but random numbers; memory is set once the model is known."""
    base = rng.uniform(1e14, 2e15) * (10 if streams else 1)

    def numbers() -> dict[str, Any]:
        found = {
            "compute": rng.uniform(0.1, 0.9),
            "memory": rng.uniform(0.1, 0.9),
            "fixed_layer_s": rng.choice([0.0, rng.uniform(1e-6, 2e-3)]),
        }
        if rng.random() < 0.4:
            found["attention"] = rng.uniform(0.02, 1.0)
        if rng.random() < 0.4:
            found["exposed"] = rng.choice([0.0, rng.random()])
        if rng.random() < 0.2:
            found["sequence_s"] = rng.uniform(1e-6, 3e-4)  # of serving: no step of training knows it
        return found

    phase = numbers()
    if rng.random() < 0.4:
        phase["by_dtype"] = {d: numbers() for d in rng.sample(["bf16", "fp16", "fp8"], rng.choice([1, 2]))}
    idle = rng.uniform(20, 100)
    return {
        "name": name,
        "kind": rng.choice(["gpu", "wse", "other"]),
        "arrangement": arrangement,
        "peak_flop_s": {"bf16": base, "fp8": 2.1 * base},
        "memory_bandwidth_byte_s": rng.uniform(5e11, 8e12),
        "node_size": rng.choice([2, 4, 8]),
        "link_byte_s": rng.uniform(3e10, 9e11),
        "link_latency_s": rng.uniform(0, 1e-5),
        "link_efficiency": rng.uniform(0.3, 1.0),
        "scale_out_byte_s": rng.uniform(1e10, 1e11),
        "scale_out_latency_s": rng.uniform(0, 5e-5),
        "idle_w": idle,
        "full_w": rng.uniform(200, 1000),
        "host_w": rng.uniform(0, 400),
        "rental_usd_per_h": rng.uniform(0.5, 90),
        "capex_usd": rng.uniform(5e3, 2.5e6),
        "efficiency": {"train": phase, "prefill": phase, "decode": phase},
    }


def fleet_case(rng: random.Random, folder: Path) -> tuple[Case, str]:
    """A model and what holds for a whole fleet; the batch is set once the pools are known."""
    name = rng.choice(MODELS)
    if name == "tied":
        (folder / "tied.json").write_text(json.dumps(TIED_CONFIG), encoding="utf-8")
    fails = rng.random() < 0.5
    case = Case(
        model=TIED if name == "tied" else load_catalog().model(name),
        sequence=float(rng.choice([512, 1024, 2048, 8192, rng.randint(1, 6000)])),
        batch=1,
        recompute=rng.choice(["none", "selective", "full"]),
        dtype=rng.choice(["bf16", "bf16", "fp8"]),
        overlap=rng.choice([0.0, 0.0, 1.0, rng.random()]),
        pue=rng.uniform(1.0, 1.6),
        usd_per_kwh=rng.uniform(0, 0.3),
        g_per_kwh=rng.uniform(0, 800),
        basis=rng.choice(["rental", "ownership"]),
        life_years=rng.uniform(2, 6),
        upkeep_frac=rng.uniform(0, 0.1),
        tokens=rng.choice([None, rng.uniform(1e9, 1e13)]),
        checkpoint_s=rng.choice([0.0, rng.uniform(0.01, 600)]),
        restart_s=rng.choice([0.0, rng.uniform(0.1, 4000)]),
        interval_s=rng.choice([None, None, rng.uniform(10, 20000)]),
    )
    return (case if fails else replace(case, checkpoint_s=0.0, restart_s=0.0, interval_s=None)), name


def roomy(rng: random.Random, case: Case, pool: Pool, parameters: float, layers: int, samples: float) -> None:
    """Gives a pool's device memory near what this setting needs: sometimes too little."""
    w, d = case.work, pool.device
    states = training.state_byte(pool, parameters, pool.replicas)
    spare = rng.uniform(0.8, 1.2) if rng.random() < 0.1 else rng.uniform(1.0, 6.0)
    if d.get("streaming_byte"):
        inside = training.inner_byte(w)
        d["memory_byte"] = inside * spare / (1 - pool.reserve)
        outside = states + layers * samples * w.boundary_byte / pool.g
        d["streaming_byte"] = max(outside * rng.choice([0.9, 1.5, 1.5, 4.0, 4.0]), d["memory_byte"] * 1.01)
    else:
        need = states + layers * training.activation_byte(w, pool.g, samples)
        d["memory_byte"] = need * spare / (1 - pool.reserve)


def measured(rng: random.Random, case: Case, pool: Pool) -> None:
    """Gives a device a measured table in place of its law; some meet zero work at a negative time."""
    per_flop = pool.g / training.speed(case, pool)
    flop = sorted(case.work.train / pool.g * rng.uniform(0.5, 40) for _ in range(rng.choice([2, 3, 5])))
    seconds = [flop[0] * per_flop * 1.3]
    for x, following in pairwise(flop):
        seconds.append(
            seconds[-1] + (following - x) * per_flop * rng.choice([0.0, rng.uniform(0.5, 1.3), rng.uniform(1.5, 3)])
        )
    phase = pool.device["efficiency"]["train"] | {"table_flop": flop, "table_s": seconds}
    pool.device["efficiency"] = pool.device["efficiency"] | {"train": phase}


def axis(rng: random.Random, value: Any, others: Sequence[Any]) -> list[Any]:
    """An axis that holds the design's value, and sometimes another."""
    found = [value]
    if rng.random() < 0.3:
        other = rng.choice(others)
        found += [other] if other != value else []
    rng.shuffle(found)
    return found


def tables(
    rng: random.Random, paradigm: str, case: Case, model: str, pools: Sequence[Pool], names: Sequence[str],
    link: dict[str, Any], files: Sequence[str],
) -> dict[str, Any]:  # fmt: skip
    """The study that offers the design."""
    work: dict[str, Any] = {
        "model": "tied.json" if model == "tied" else model,
        "sequence_tokens": int(case.sequence),
        "global_batch": [case.batch if rng.random() < 0.9 else case.batch + 3],
        "compute_dtype": axis(rng, case.dtype, ["bf16", "fp8"]),
        "recompute": axis(rng, case.recompute, ["none", "selective", "full"]),
        "overlap_frac": case.overlap,
    }
    if case.tokens is not None:
        work["train_tokens"] = case.tokens
    failures: dict[str, Any] = {"checkpoint_s": case.checkpoint_s, "restart_s": case.restart_s}
    if case.interval_s is not None:
        failures["checkpoint_interval_s"] = case.interval_s
    raw: dict[str, Any] = {
        "name": "random",
        "paradigm": paradigm,
        "workload": work,
        "failures": failures,
        "pool": [],
        "site": {
            "pue": case.pue,
            "energy_usd_per_kwh": case.usd_per_kwh,
            "carbon_g_per_kwh": case.g_per_kwh,
            "cost_basis": case.basis,
            "life_years": case.life_years,
            "upkeep_frac_per_year": case.upkeep_frac,
        },
    }
    for p, name, file in zip(pools, names, files, strict=True):
        unit = p.g * p.stages
        table = {
            "device": file,
            "name": name,
            "count": axis(rng, p.n, [0, unit, 2 * unit]) if p.n else [0, unit],
            "owned": p.owned,
            "instance_size": axis(rng, p.g, [1, 2, 4]),
            "micro_batch": axis(rng, p.micro, [1, 2, 3]),
            "zero_stage": axis(rng, p.zero, [0, 1, 2, 3]),
            "memory_reserve_frac": p.reserve,
        }
        if p.mtbf_s < math.inf:
            table["mtbf_device_h"] = p.mtbf_s / 3600
        raw["pool"].append(table)
    if len(pools) > 1:
        raw["link"] = link
    return raw


def settings_of(case: Case, pools: Sequence[Pool], names: Sequence[str]) -> dict[str, str]:
    found = {"global_batch": str(case.batch), "recompute": case.recompute, "compute_dtype": case.dtype}
    for p, name in zip(pools, names, strict=True):
        found |= {
            f"n_{name}": str(p.n),
            f"instance_size_{name}": str(p.g),
            f"micro_batch_{name}": str(p.micro),
            f"zero_stage_{name}": str(p.zero),
        }
    return found


def _written(folder: Path, seed: str, pools: Sequence[Pool], names: Sequence[str]) -> list[str]:
    files = []
    for p, name in zip(pools, names, strict=True):
        file = folder / f"{name}-{seed}.toml"
        file.write_text(tomli_w.dumps(dict(p.device)), encoding="utf-8")
        files.append(file.name)
    return files


def draw_dp(seed: int, folder: Path) -> Drawn:
    """The seed's data-parallel design; its device files are written to `folder`."""
    rng = random.Random(seed)
    case, model = fleet_case(rng, folder)
    n_pools = rng.choice([1, 2, 2, 2, 3, 3, 4])
    case = replace(case, batch=rng.choice([1, 2, 5, 16, 64, 96, rng.randint(1, 200), rng.randint(1, 400)]))
    case, link = random_link(rng, case)
    if n_pools == 1:
        case = replace(case, link_byte_s=math.inf, link_latency_s=0.0, link_usd_per_h=0.0, link_w=0.0)
    names = [f"pool{i}" for i in range(n_pools)]
    pools = []
    for name in names:
        streams = rng.random() < 0.35
        arrangement = rng.choice(["tensor", "pipeline"]) if streams else rng.choice(["tensor"] * 4 + ["pipeline"])
        device = toy_device(rng, name, streams, arrangement)
        if streams:
            device["streaming_byte"] = 1.0
        g = rng.choice([1, 1, 2, 4, 8, 3])
        pool = Pool(
            device=device,
            n=g * rng.choice([1, 2, rng.randint(1, 12), rng.randint(1, 60)]),
            g=g,
            micro=rng.choice([1, 1, 2, 4, 7]),
            zero=rng.choice([0, 1, 2, 3]),
            reserve=rng.choice([0.1, 0.0, 0.25]),
            owned=rng.choice([0, 0, rng.randint(1, 50)]),
            mtbf_s=rng.choice([math.inf, rng.uniform(1e3, 1e6) * 3600]) if case.restart_s else math.inf,
        )
        share = math.ceil(case.batch / pool.replicas * rng.uniform(0.05, 1))
        roomy(rng, case, pool, case.work.total, case.work.layers, share if streams else pool.micro)
        if rng.random() < 0.15:
            measured(rng, case, pool)
        pools.append(pool)
    if n_pools > 1 and rng.random() < 0.15:  # equal pools: many divisions are as good
        pools[1] = pools[0]
    if n_pools > 1 and rng.random() < 0.15:
        pools[-1] = replace(pools[-1], n=0)
    return _drawn(rng, "dp_training", seed, folder, case, model, pools, names, link)


def draw_pp(seed: int, folder: Path) -> Drawn:
    """The seed's pipeline design."""
    rng = random.Random(seed)
    case, model = fleet_case(rng, folder)
    offload = rng.random() < 0.45
    n_chain = rng.choice([1, 1, 2]) if offload else rng.choice([1, 1, 2, 2, 3])
    replicas, micro = rng.choice([1, 2, 3, 4, 6, 8]), rng.choice([1, 1, 2, 4])
    n_micro = rng.choice([1, 2, 4, 7, 20, 33, 150])
    schedule = rng.choice(["gpipe", "1f1b"] if offload else ["gpipe", "1f1b", "1f1b", "interleaved"])
    case = replace(
        case,
        batch=max(1, replicas * micro * n_micro + (1 if rng.random() < 0.03 else 0)),
        schedule=schedule,
        chunks=rng.choice([1, 2, 3, 4]) if schedule == "interleaved" else 1,
    )
    case, link = random_link(rng, case)
    n_pools = n_chain + (1 if offload else 0)
    names = [f"pool{i}" for i in range(n_pools)]
    kinds = [True] * (1 if offload else 0) + [not offload and rng.random() < 0.3 for _ in range(n_chain)]
    rng.shuffle(kinds)
    if n_pools == 1:
        case = replace(case, link_byte_s=math.inf, link_latency_s=0.0, link_usd_per_h=0.0, link_w=0.0)
    stages = [rng.choice([1, 2, 3, 4, 8]) for _ in kinds]
    if offload:
        stages = [1 if wafer else k for wafer, k in zip(kinds, stages, strict=True)]
    n_stages = sum(k for wafer, k in zip(kinds, stages, strict=True) if not (offload and wafer))
    if offload:
        k = rng.choice([1, 1, 2, case.work.layers // n_stages - 1])
        case = replace(case, offload=max(k, 1))
    pools = []
    for name, wafer, k in zip(names, kinds, stages, strict=True):
        arrangement = rng.choice(["tensor", "pipeline"]) if wafer else rng.choice(["tensor"] * 4 + ["pipeline"])
        device = toy_device(rng, name, wafer, arrangement)
        if wafer:
            device["streaming_byte"] = 1.0
        g = rng.choice([1, 1, 2, 4, 3])
        r = replicas
        if offload and wafer:
            r = rng.choice([x for x in range(1, replicas + 1) if replicas % x == 0])
            per = replicas // r
            case = replace(case, collect=rng.choice([x for x in range(1, per + 1) if per % x == 0]))
            if rng.random() < 0.04:
                case = replace(case, collect=case.collect + 1)
        elif rng.random() < 0.03:
            r += 1
        pool = Pool(
            device=device, n=g * k * r, g=g,
            micro=micro if rng.random() > 0.03 else micro + 1, zero=rng.choice([0, 1, 2, 3]), stages=k,
            reserve=rng.choice([0.1, 0.0, 0.25]), owned=rng.choice([0, 0, rng.randint(1, 50)]),
            mtbf_s=rng.choice([math.inf, rng.uniform(1e3, 1e6) * 3600]) if case.restart_s else math.inf,
        )  # fmt: skip
        w = case.work
        if offload and wafer:
            layers, flight = n_stages * case.offload, replicas // r * (n_stages + 1)
        else:
            layers, flight = math.ceil(w.layers / n_stages), n_stages
        roomy(rng, case, pool, layers * w.layer_parameters + 2 * w.embedding, layers, micro * min(flight, n_micro))
        pools.append(pool)
    if n_chain > 1 and rng.random() < 0.15:
        absent = next(i for i, wafer in enumerate(kinds) if not (offload and wafer))
        pools[absent] = replace(pools[absent], n=0)
    own = sum(p.stages for p in pools if p.n and not (offload and p.streams))
    if rng.random() < 0.15 and own and case.offload + 1 <= case.work.layers // own:
        left = case.work.layers - own * (case.offload + 1)
        cuts = sorted(rng.randint(0, left) for _ in range(own - 1))
        given = [b - a + case.offload + 1 for a, b in zip([0, *cuts], [*cuts, left], strict=True)]
        case = replace(case, layers=tuple(given))
    return _drawn(rng, "pp_training", seed, folder, _placed(seed, case, pools), model, pools, names, link)


def _placed(seed: int, case: Case, pools: Sequence[Pool]) -> Case:
    """Some designs run through their pools in another order, or recompute otherwise stage by stage."""
    rng = random.Random(f"placed {seed}")
    bought = [p for p in pools if p.n]
    on_chain = [i for i, p in enumerate(bought) if not (case.offload and p.streams)]
    if rng.random() < 0.3:
        rng.shuffle(on_chain)
        case = replace(case, order=tuple(on_chain))
    own = sum(bought[i].stages for i in on_chain)
    whole = not case.offload and own == 1 and bought[on_chain[0]].streams
    if rng.random() < 0.3 and own and not whole:
        case = replace(case, modes=tuple(rng.choice(["none", "selective", "full"]) for _ in range(own)))
    return case


def _drawn(
    rng: random.Random, paradigm: str, seed: int, folder: Path, case: Case, model: str, pools: Sequence[Pool],
    names: Sequence[str], link: dict[str, Any],
) -> Drawn:  # fmt: skip
    files = _written(folder, f"{paradigm[:2]}-{seed}", pools, names)
    raw = tables(rng, paradigm, case, model, pools, names, link, files)
    found = settings_of(case, pools, names)
    if paradigm == "pp_training":
        schedules = axis(rng, case.schedule, ["gpipe", "1f1b", "interleaved"])
        chunks = [case.chunks] if case.schedule == "interleaved" else [2]
        for table, p in zip(raw["pool"], pools, strict=True):
            table |= {"stages": axis(rng, p.stages, [1, 2]), "schedule": schedules, "chunks": chunks}
            if case.offload:
                table |= {"offload_layers": [case.offload], "collect": [case.collect]}
        found |= {f"stages_{name}": str(p.stages) for p, name in zip(pools, names, strict=True)}
        found |= {"schedule": case.schedule, "offload_layers": str(case.offload)}
        if case.offload:
            found["collect"] = str(case.collect)
        if case.schedule == "interleaved":
            found["chunks"] = str(case.chunks)
        found |= {f"layers_{i + 1}": str(n) for i, n in enumerate(case.layers)}
        found |= {f"recompute_{i + 1}": mode for i, mode in enumerate(case.modes)}
        if case.order:
            bought = [name for name, p in zip(names, pools, strict=True) if p.n]
            found["pool_order"] = ",".join(bought[i] for i in case.order)
    return Drawn(raw, found, case, pools, names)
