"""Random serving designs, each as a study table with device files and as a case for `plain_model`."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import plain_model as plain
import tomli_w

from dse.catalog import load_catalog

MODELS = (
    "llama-2-7b", "llama-2-13b", "llama-3.1-8b", "qwen2.5-7b", "mistral-7b", "mixtral-8x7b", "deepseek-v3",
    "llama-2-70b",
)  # fmt: skip


AnyCase = TypeVar("AnyCase", bound=Any)


@dataclass(frozen=True)
class Drawn:
    """One design: what the program reads, and what the plain model reads."""

    raw: dict[str, Any]
    settings: dict[str, str]
    case: plain.Case
    pools: Sequence[plain.Pool]
    names: Sequence[str]


def toy_device(rng: random.Random, name: str, dtypes: Sequence[str]) -> dict[str, Any]:
    """A device with plausible but random numbers; memory is set once the model is known."""
    wafer = rng.random() < 0.4
    base = rng.uniform(1e14, 2e15) * (10 if wafer else 1)

    def numbers() -> dict[str, Any]:
        found = {
            "compute": rng.uniform(0.05, 0.9),
            "memory": rng.uniform(0.02, 0.95),
            "fixed_layer_s": rng.choice([0.0, rng.uniform(1e-6, 2e-4)]),
        }
        if rng.random() < 0.4:
            found["attention"] = rng.uniform(0.02, 1.0)
        if rng.random() < 0.4:
            found["sequence_s"] = rng.uniform(1e-6, 3e-4)
        if rng.random() < 0.2:
            found["exposed"] = rng.random()  # of training: no pass of serving knows it
        return found

    def phase() -> dict[str, Any]:
        own = ["bf16", "fp16", "fp8", "int4"] if rng.random() < 0.4 else []
        return numbers() | ({"by_dtype": {d: numbers() for d in rng.sample(own, 2)}} if own else {})

    return {
        "name": name,
        "kind": rng.choice(["gpu", "wse", "other"]),
        "arrangement": "pipeline" if wafer else "tensor",
        "peak_flop_s": {d: base * (2 if d in ("fp8", "int8") else 1) for d in dtypes},
        "memory_bandwidth_byte_s": rng.uniform(5e11, 8e12) * (1000 if wafer else 1),
        "node_size": rng.choice([2, 4, 8]),
        "link_byte_s": rng.uniform(3e10, 9e11),
        "link_latency_s": rng.uniform(0, 1e-5),
        "link_efficiency": rng.uniform(0.3, 1.0),
        "scale_out_byte_s": rng.uniform(1e10, 1e11),
        "scale_out_latency_s": rng.uniform(0, 5e-5),
        "idle_w": rng.uniform(20, 100),
        "full_w": rng.uniform(200, 1000),
        "host_w": rng.uniform(0, 400),
        "rental_usd_per_h": rng.uniform(0.5, 90),
        "capex_usd": rng.uniform(5e3, 2.5e6),
        "efficiency": {"prefill": phase(), "decode": phase()},
    }


def draw(seed: int, folder: Path, *, per_pair: bool = False) -> Drawn:
    """The seed's design; its device files go to `folder`. With `per_pair` three or four pools, linked apart."""
    rng = random.Random(seed)
    catalog = load_catalog()
    model = catalog.model(rng.choice(MODELS))
    shape = plain.shape_of(model)
    if shape.latent:
        # test_transformer compares the total itself; here the question is what follows from it
        from dse.model.transformer import arithmetic

        shape = replace(shape, total=arithmetic(model).total_parameters)
    classes = _classes(rng)
    compute = rng.choice(["bf16", "bf16", "fp16", "fp8", "int8"])
    n_pools = rng.choice([3, 3, 4]) if per_pair else rng.choice([1, 2, 2, 2, 3, 3])
    names = [f"pool{i}" for i in range(n_pools)]
    case = plain.Case(
        shape=shape,
        classes=classes,
        weight_dtype=rng.choice(["bf16", "fp8", "int4", "int8"]),
        kv_dtype=rng.choice(["bf16", "fp8"]),
        compute_dtype=compute,
        hit=rng.choice([0.0, 0.0, rng.uniform(0, 0.9)]),
        pue=rng.uniform(1.0, 1.6),
        usd_per_kwh=rng.uniform(0, 0.3),
        g_per_kwh=rng.uniform(0, 800),
        basis=rng.choice(["rental", "ownership"]),
        life_years=rng.uniform(2, 6),
        upkeep_frac=rng.uniform(0, 0.1),
        stealing=rng.random() < 0.2,
    )
    pools = [_pool(rng, case, names[i], i, n_pools) for i in range(n_pools)]
    case, link, chosen = random_pair_links(rng, case, names) if per_pair else (*random_link(rng, case), {})
    case = _limits(rng, case, pools)
    for name, p in zip(names, pools, strict=True):
        (folder / f"{name}-{seed}.toml").write_text(tomli_w.dumps(dict(p.device)), encoding="utf-8")
    settings = _settings(pools, names) | chosen
    return Drawn(_study(seed, model.name, case, pools, names, link), settings, case, pools, names)


def _classes(rng: random.Random) -> list[tuple[float, float, float]]:
    n = rng.choice([1, 1, 2, 3])
    weights = [rng.uniform(0.2, 1) for _ in range(n)]
    if n > 1 and rng.random() < 0.3:
        weights[0] = 0.004 * sum(weights[1:])  # below 1 %: not what p99 looks at
    total = sum(weights)
    shares = [w / total for w in weights]
    shares[-1] = 1 - sum(shares[:-1])
    return [
        (q, float(rng.choice([64, 512, 1024, 3000, 8192, rng.randint(1, 6000)])),
         float(rng.choice([1, 2, 128, 256, 1000, rng.randint(1, 2000)])))
        for q in shares
    ]  # fmt: skip


def _pool(rng: random.Random, case: plain.Case, name: str, i: int, n_pools: int) -> plain.Pool:
    device = toy_device(rng, name, [case.compute_dtype, "int4"])
    g = rng.choice([1, 1, 2, 4, 8, 3])
    role = ["prefill", "decode"][i] if n_pools > 1 and i < 2 else rng.choice(["prefill", "decode", "both"])
    if rng.random() < 0.15:
        role = "both"
    pool = plain.Pool(
        device=device,
        n=g * rng.choice([1, 2, rng.randint(1, 60), rng.randint(1, 400)]),
        g=g,
        role=role,
        prefill_batch=rng.choice([1, 1, 2, 4]),
        max_decode_batch=rng.choice([1, 7, 32, 64, 256]),
        reserve=rng.choice([0.1, 0.0, 0.25]),
        owned=rng.choice([0, 0, rng.randint(1, 200)]),
    )
    weights = case.shape.total * plain.BYTES[case.weight_dtype] / g
    longest = max(i + o for _, i, o in case.classes)
    kv = plain.kv_of(case.shape, longest, case.kv_dtype) * plain.share_of_device(case, pool)
    device["memory_byte"] = (weights + kv * rng.uniform(0.2, 80) * rng.choice([1, 4])) / (1 - pool.reserve)
    return pool


def random_link(rng: random.Random, case: AnyCase) -> tuple[AnyCase, dict[str, Any]]:
    """A link of the catalogue or a raw one, for a case of serving or of training."""
    latency = rng.choice([0.0, rng.uniform(0, 1e-2)])
    if rng.random() < 0.4:
        name, count = rng.choice(["eth100", "ndr400", "wafer-io"]), rng.choice([1, 2, 8])
        tier = load_catalog().link(name)
        each_h = tier.capex_usd / case.life_years / 8760 + case.upkeep_frac * tier.capex_usd / 8760
        case = replace(
            case,
            link_byte_s=tier.bandwidth_byte_s * count,
            link_latency_s=tier.latency_s + latency,
            link_usd_per_h=each_h * count,
            link_w=tier.power_w * count,
        )
        return case, {"tier": [name], "count": [count], "latency_s": latency}
    gb_s = rng.choice([0.5, 12.5, 100.0, rng.uniform(0.1, 50), 1e5])
    return replace(case, link_byte_s=gb_s * 1e9, link_latency_s=latency), {
        "bandwidth_gb_s": [gb_s],
        "latency_s": latency,
    }


def random_pair_links(
    rng: random.Random, case: plain.Case, names: Sequence[str]
) -> tuple[plain.Case, dict[str, Any], dict[str, str]]:
    """Links for each pair of pools: the case, the study's table, and the `--set` keys that choose them."""
    if rng.random() < 0.5:
        tiers, counts = rng.sample(["eth100", "ndr400", "wafer-io"], 2), rng.sample([1, 2, 8], 2)
        listed: list[dict[str, Any]] = [{"tier": [t], "count": [n]} for t in tiers for n in counts]
        called = [f"{n} x {t}" for t in tiers for n in counts]
        table: dict[str, Any] = {"tier": tiers, "count": counts}
    else:
        speeds = rng.sample([0.5, 2.0, 12.5, 30.0, 100.0, 1e5], 3)
        listed, called = [{"bandwidth_gb_s": [s]} for s in speeds], [f"{s:.12g} GB/s" for s in speeds]
        table = {"bandwidth_gb_s": speeds}
    table |= {"latency_s": rng.choice([0.0, rng.uniform(0, 1e-2)]), "per_pair": True}
    offered = [_plain_link(case, one, table["latency_s"]) for one in listed]
    pairs = [(i, j) for i in range(len(names)) for j in range(i + 1, len(names))]
    chosen = {pair: rng.randrange(len(offered)) for pair in pairs}
    keys = {f"link_{names[i]}~{names[j]}": called[c] for (i, j), c in chosen.items()}
    return replace(case, pair_links={p: offered[c] for p, c in chosen.items()}, offered=offered), table, keys


def _plain_link(case: plain.Case, table: dict[str, Any], latency_s: float) -> plain.PairLink:
    if "bandwidth_gb_s" in table:
        return plain.PairLink(table["bandwidth_gb_s"][0] * 1e9, latency_s)
    tier, count = load_catalog().link(table["tier"][0]), table["count"][0]
    each_h = tier.capex_usd / case.life_years / 8760 + case.upkeep_frac * tier.capex_usd / 8760
    return plain.PairLink(
        tier.bandwidth_byte_s * count, tier.latency_s + latency_s, each_h * count, tier.power_w * count
    )


def _limits(rng: random.Random, case: plain.Case, pools: Sequence[plain.Pool]) -> plain.Case:
    """Limits near what the pools can do, so that they bind without always ruling everything out."""
    if rng.random() < 0.5:
        slowest = max(plain.decode_pass(case, p, i, o, 1).occupancy for p in pools for _, i, o in case.classes)
        case = replace(case, tpot_limit=slowest * rng.uniform(0.95, 4))
    if rng.random() < 0.4 and not (case.stealing and len(pools) > 1):
        slowest = max(
            plain.prefill_pass(case, p, i).latency + plain.transfer_s(case, i)
            for p in pools
            for _, i, _ in case.classes
        )
        case = replace(case, ttft_limit=slowest * rng.uniform(0.95, 4))
    if rng.random() < 0.4:
        rate = plain.plain_score(case, pools)["requests_s"]
        if rate > 0:
            case = replace(case, demand=rate * rng.choice([rng.uniform(0.05, 0.98), 1.3]))
    return case


def _study(
    seed: int,
    model: str,
    case: plain.Case,
    pools: Sequence[plain.Pool],
    names: Sequence[str],
    link: dict[str, Any],
) -> dict[str, Any]:
    slo = {}
    if case.ttft_limit < plain.INF:
        slo["ttft_p99_s"] = case.ttft_limit
    if case.tpot_limit < plain.INF:
        slo["tpot_s"] = case.tpot_limit
    raw: dict[str, Any] = {
        "name": f"random-{seed}",
        "paradigm": "pd_serving",
        "workload": {
            "model": model,
            "weight_dtype": case.weight_dtype,
            "kv_dtype": case.kv_dtype,
            "compute_dtype": case.compute_dtype,
            "prefix_hit_frac": case.hit,
            "routing": ["work_stealing" if case.stealing else "split"],
            "requests": [
                {"name": f"c{i}", "share": q, "input_tokens": n, "output_tokens": o}
                for i, (q, n, o) in enumerate(case.classes)
            ],
            "slo": slo,
        },
        "pool": [
            {
                "device": f"{name}-{seed}.toml",
                "name": name,
                "count": [p.n],
                "owned": p.owned,
                "instance_size": [p.g],
                "roles": [p.role],
                "prefill_batch": [p.prefill_batch],
                "max_decode_batch": [p.max_decode_batch],
                "memory_reserve_frac": p.reserve,
            }
            for name, p in zip(names, pools, strict=True)
        ],
        "site": {
            "pue": case.pue,
            "energy_usd_per_kwh": case.usd_per_kwh,
            "carbon_g_per_kwh": case.g_per_kwh,
            "cost_basis": case.basis,
            "life_years": case.life_years,
            "upkeep_frac_per_year": case.upkeep_frac,
        },
    }
    if len(pools) > 1:
        raw["link"] = link
    if case.demand is not None:
        raw["demand"] = {"requests_s": case.demand}
    return raw


def _settings(pools: Sequence[plain.Pool], names: Sequence[str]) -> dict[str, str]:
    found = {}
    for p, name in zip(pools, names, strict=True):
        found |= {
            f"n_{name}": str(p.n),
            f"instance_size_{name}": str(p.g),
            f"role_{name}": p.role,
            f"prefill_batch_{name}": str(p.prefill_batch),
            f"max_decode_batch_{name}": str(p.max_decode_batch),
        }
    return found
