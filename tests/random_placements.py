"""Small random placement studies, and every placement of them: splits of the layers, orders, modes, settings, links."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations, permutations, product
from pathlib import Path
from typing import Any

import plain_training as plain
import tomli_w
from plain_training import Case, Pool
from random_designs import random_link
from random_training import TIED, TIED_CONFIG, toy_device

from dse.workload import Transformer


@dataclass(frozen=True)
class Small:
    """A study as a table, and its pools' settings as the plain model reads them."""

    raw: dict[str, Any]
    cases: list[Case]
    """One a link; batch and schedule set, layers and modes not."""
    settings: list[list[Pool]]
    """Of each pool, every setting, absent ones among them."""
    modes: list[str]
    cost: bool = True

    def points(self) -> Iterator[tuple[float, float]]:
        """Step time, and cost or power, of every placement that can run."""
        for chosen in product(*self.settings):
            bought = [p for p in chosen if p.n]
            for case in self.cases:
                yield from self._of(case, bought)

    def _of(self, case: Case, bought: list[Pool]) -> Iterator[tuple[float, float]]:
        on_chain = [i for i, p in enumerate(bought) if not (case.offload and p.streams)]
        n_stages = sum(bought[i].stages for i in on_chain)
        layers = case.model.layers
        if not on_chain or len({bought[i].replicas for i in on_chain}) > 1:
            return
        whole = n_stages == 1 and bought[on_chain[0]].streams and not case.offload
        modes = [()] if whole else list(product(self.modes, repeat=n_stages))
        splits = [()] if whole else list(_splits(layers, n_stages, case.offload + 1))
        for regime in [replace(case, recompute=r) for r in self.modes] if case.offload or whole else [case]:
            for order, mode, split in product(permutations(on_chain), modes, splits):
                one = replace(regime, order=order, modes=mode, layers=split)
                found = plain.piped(one, bought)
                if found.verdict == plain.FEASIBLE:
                    n_links = sum(not p.streams for p in bought) if case.offload else len(bought) - 1
                    busy = [x["busy"] for x in found.pools]
                    spent = plain._cost(one, bought, busy, n_links) if self.cost else plain._static(
                        one, bought, n_links)["power_w"]  # fmt: skip
                    yield found.step, spent


def _splits(layers: int, n_stages: int, least: int) -> Iterator[tuple[int, ...]]:
    """Layers of each stage, at least so many."""
    left = layers - (least - 1) * n_stages
    for cuts in combinations(range(1, left), n_stages - 1):
        yield tuple(b - a + least - 1 for a, b in zip((0, *cuts), (*cuts, left), strict=True))


def draw(seed: int, folder: Path, schedule: str, *, offload: bool = False) -> Small:
    """The seed's study: two pools or three, some layers, memory that binds here and there."""
    rng = random.Random(f"{seed} {schedule} {offload}")
    n_layers = rng.choice([5, 6, 7])
    config = TIED_CONFIG | {"num_hidden_layers": n_layers, "tie_word_embeddings": rng.random() < 0.5,
                            "vocab_size": rng.choice([2000, 151936])}  # fmt: skip
    (folder / f"small-{seed}.json").write_text(json.dumps(config), encoding="utf-8")
    model: Transformer = replace(
        TIED, layers=n_layers, tied_embedding=config["tie_word_embeddings"], vocabulary=config["vocab_size"]
    )
    modes = rng.sample(["none", "selective", "full"], 2)
    case = Case(model=model, sequence=float(rng.choice([512, 2048])), batch=rng.choice([4, 8, 12]), recompute=modes[0],
                overlap=rng.choice([0.0, 0.3]), schedule=schedule, chunks=2 if schedule == "interleaved" else 1,
                offload=1 if offload else 0, collect=rng.choice([1, 2]) if offload else 1)  # fmt: skip
    linked, link = random_link(rng, case)
    names = ["a", "b", "c"] if not offload and rng.random() < 0.3 else ["a", "b"]
    tables, settings = [], []
    for i, name in enumerate(names):
        streams = i == 1 and (offload or rng.random() < 0.15)
        device = _device(rng, linked, name, streams)
        file = f"{name}-{seed}-{schedule}.toml"
        (folder / file).write_text(tomli_w.dumps(device), encoding="utf-8")
        stages = [1] if offload and streams else sorted(rng.sample([1, 2, 3], rng.choice([1, 2])))
        sizes = [1] if rng.random() < 0.7 else [1, 2]
        counts = [0, *sorted({k * r for k in stages for r in rng.sample([1, 2], rng.choice([1, 2]))})]
        micro, zero = sorted(rng.sample([1, 2], rng.choice([1, 1, 2]))), rng.choice([[1], [0, 3]])
        tables.append({"device": file, "name": name, "count": counts, "instance_size": sizes, "stages": stages,
                       "micro_batch": micro, "zero_stage": zero, "schedule": [schedule], "chunks": [case.chunks if
                       schedule == "interleaved" else 2], "memory_reserve_frac": 0.0})  # fmt: skip
        if offload:
            tables[-1] |= {"offload_layers": [1], "collect": [case.collect]}
        settings.append([Pool(device=device, n=0)] + [
            Pool(device=device, n=n, g=g, micro=m, zero=z, stages=k, reserve=0.0)
            for n, g, k, m, z in product(counts, sizes, stages, micro, zero) if n and n % (g * k) == 0
        ])  # fmt: skip
    raw = {
        "name": "placements", "paradigm": "pp_training", "pool": tables, "link": link,
        "workload": {"model": f"small-{seed}.json", "sequence_tokens": int(case.sequence), "global_batch": [case.batch],
                     "recompute": modes, "overlap_frac": case.overlap},
        "site": {"pue": case.pue, "energy_usd_per_kwh": case.usd_per_kwh, "carbon_g_per_kwh": case.g_per_kwh,
                 "cost_basis": "rental"},
        "objectives": {"maximise": ["throughput_tok_s"], "minimise": ["cost_usd_per_h"]},
    }  # fmt: skip
    return Small(raw=raw, cases=[linked], settings=settings, modes=modes)


def _device(rng: random.Random, case: Case, name: str, streams: bool) -> dict[str, Any]:
    """A toy device whose memory holds a few layers."""
    device = toy_device(rng, name, streams, "pipeline" if streams else "tensor")
    w = case.work
    layer = 16 * w.layer_parameters + 4 * plain.activation_byte(replace(w, recompute="none"), 1, 1)
    outside = 16 * (w.embedding + w.head_parameters)
    if streams:
        device["memory_byte"] = plain.inner_byte(replace(w, recompute="none")) * 1.2
        device["streaming_byte"] = max(layer * rng.uniform(3, 20) + outside, device["memory_byte"] * 1.01)
    else:
        device["memory_byte"] = layer * rng.uniform(1.5, 6) + outside * rng.choice([0.5, 1, 1])
    return device


def two_pools(seed: int, folder: Path, schedule: str, *, n_layers: int, stages: tuple[int, int]) -> Small:
    """One pipeline over both of two pools, of many layers: too many placements to list."""
    rng = random.Random(f"two {seed} {schedule}")
    (folder / "large.json").write_text(json.dumps(TIED_CONFIG | {"num_hidden_layers": n_layers}), encoding="utf-8")
    n_stages = sum(stages)
    case = Case(model=replace(TIED, layers=n_layers), sequence=2048.0, batch=n_stages * rng.choice([1, 3]),
                schedule=schedule, chunks=2 if schedule == "interleaved" else 1)  # fmt: skip
    case, link = random_link(rng, case)
    modes = ["none", "selective", "full"]
    tables, settings = [], []
    for name, k in zip("ab", stages, strict=True):
        device = _device(rng, case, name, streams=False)
        device["memory_byte"] *= rng.uniform(1, 4)
        (folder / f"{name}.toml").write_text(tomli_w.dumps(device), encoding="utf-8")
        tables.append({"device": f"{name}.toml", "name": name, "count": [k], "stages": [k], "schedule": [schedule],
                       "memory_reserve_frac": 0.0})  # fmt: skip
        settings.append([Pool(device=device, n=k, stages=k, reserve=0.0)])
    raw = {
        "name": "two pools", "paradigm": "pp_training", "pool": tables, "link": link,
        "workload": {"model": "large.json", "sequence_tokens": 2048, "global_batch": [case.batch], "recompute": modes},
        "objectives": {"maximise": ["throughput_tok_s"], "minimise": ["cost_usd_per_h"]},
    }  # fmt: skip
    return Small(raw=raw, cases=[case], settings=settings, modes=modes)
