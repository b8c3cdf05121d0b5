"""Random small serving studies whose whole grid can be enumerated: pools, counts, roles, links, limits, demands."""

from __future__ import annotations

import random
from typing import Any

DEVICES = ("a100-40gb-sxm", "a100-80gb-sxm", "h100-80gb-sxm", "b200-180gb-sxm", "wse-3")
ROLES = (["prefill"], ["decode"], ["both"], ["prefill", "decode"], ["decode", "both"], ["prefill", "decode", "both"])
OBJECTIVES = (
    {},
    {"maximise": ["throughput_tok_s"], "minimise": ["cost_usd_per_h"]},
    {"maximise": ["requests_s"], "minimise": ["power_w"]},
    {"maximise": ["throughput_tok_s"], "minimise": ["usd_per_mtok", "power_w"]},
    {"maximise": ["throughput_tok_s"], "minimise": ["usd_per_mtok"]},
    {"maximise": ["throughput_tok_s"], "minimise": ["cost_usd_per_h", "power_w", "usd_per_mtok"]},
)
MOST_DESIGNS = 200_000


def random_space(seed: int) -> dict[str, Any]:
    """A study table; grids of at most about `MOST_DESIGNS`."""
    rng = random.Random(seed)
    n_pools = rng.choice([1, 2, 2, 3, 3, 4])
    most = {1: 60, 2: 24, 3: 7, 4: 3}[n_pools]
    study: dict[str, Any] = {
        "name": f"space-{seed}",
        "paradigm": "pd_serving",
        "workload": {"model": rng.choice(["llama-2-7b", "llama-3.1-8b"]), "requests": _requests(rng)},
        "pool": [_pool(rng, p, most) for p in range(n_pools)],
        "link": _link(rng),
        "objectives": rng.choice(OBJECTIVES),
    }
    if rng.random() < 0.3:
        study["workload"]["slo"] = {"tpot_s": rng.uniform(0.01, 0.05)}
    if rng.random() < 0.3 and n_pools <= 2:
        study["workload"].setdefault("slo", {})["ttft_p99_s"] = rng.uniform(0.2, 3.0)
    if rng.random() < 0.3:
        study["demand"] = {"requests_s": rng.uniform(0.5, 20)}
    if rng.random() < 0.5:
        study["limits"] = _limits(rng, [p["name"] for p in study["pool"]])
    if rng.random() < 0.3:
        study["site"] = {"life_years": 0.05}  # links are dear: a narrow one that is full may be worth it
    return study


def _requests(rng: random.Random) -> list[dict[str, Any]]:
    share = rng.choice([1.0, 0.7])
    return [
        {
            "name": f"c{i}",
            "share": part,
            "input_tokens": rng.choice([256, 1024, 4096]),
            "output_tokens": rng.choice([32, 256, 900]),
        }
        for i, part in enumerate((share, 1.0 - share))
        if part > 0
    ]


def _pool(rng: random.Random, p: int, most: int) -> dict[str, Any]:
    device = rng.choice(DEVICES)
    step = 1 if device == "wse-3" else rng.choice([1, 2, 5])
    least = 0 if rng.random() < 0.85 else step
    return {
        "device": device,
        "name": f"p{p}",
        "count": {"min": least, "max": least + step * rng.randint(1, most), "step": step},
        "roles": rng.choice(ROLES),
        **({"instance_size": [1, 2]} if rng.random() < 0.3 else {}),
    }


def _link(rng: random.Random) -> dict[str, Any]:
    if rng.random() < 0.5:
        return {"bandwidth_gb_s": sorted(rng.sample([0.2, 0.8, 2, 5, 12, 40, 200], rng.randint(1, 3)))}
    tiers = {"tier": rng.choice([["eth100"], ["ndr400"], ["eth100", "ndr400"]]), "count": rng.choice([[1], [1, 4]])}
    return tiers | ({"per_pair": True} if rng.random() < 0.3 else {})


def _limits(rng: random.Random, pools: list[str]) -> dict[str, Any]:
    every: dict[str, Any] = {
        "cost_usd_per_h": rng.uniform(5, 200),
        "power_w": rng.uniform(4e3, 1e5),
        "throughput_tok_s": rng.uniform(10, 5000),
        "usd_per_mtok": rng.uniform(0.3, 20),
        f"n_{rng.choice(pools)}": {"max": rng.randint(1, 20)},
    }
    return {name: every[name] for name in rng.sample(list(every), rng.choice([1, 1, 2]))}
