"""Designs of two pools with their derived eta: what eq. (5) is fitted to, and what it is judged on.

In data parallel a design is two pools, a model and a global batch, with the batch forced onto nine splits around the
best one; 1 + eta_i = T_step/t_i without the exchange between pools, which eq. (2) holds, not eq. (5). In serving the
first pool prefills and the second decodes, eta_i is what the matched flow leaves unused, and the link never binds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, product
from typing import cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dse.hardware import Accelerator
from dse.model.asymmetry import RESOURCES, asymmetry, law_of_two, load_frac, pool_resources
from dse.model.dp_training import divide
from dse.model.pd_serving import evaluate
from dse.model.roofline import idle_over_busy
from dse.model.serving_pool import DECODE, PREFILL
from dse.resolve import Study
from search_spaces.dp_training import DpSpace
from search_spaces.pd_serving import ServingSpace

from .setting import MODELS, PROFILE

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Pair = tuple[str, str]

GPUS = ("a100-40gb-sxm", "a100-80gb-sxm", "h100-80gb-sxm", "h200-141gb-sxm", "b200-180gb-sxm")
WAFERS = ("wse-2", "wse-3")
GLOBAL_BATCHES = (64, 256, 1024)
REQUESTS = ((512, 128), (1024, 256), (1024, 1024), (2048, 256), (4096, 512), (8192, 256))
"""Input and output tokens."""
GPU_COUNTS = (16, 32, 64, 128)
WAFER_COUNTS = (1, 2, 4)
SERVING_WAFER_COUNTS = (1, 2, 4, 8, 16)
SEQUENCE_TOKENS = 2048

NEVER_SEEN_MODEL = "llama-2-70b"
NEVER_SEEN_REQUEST = (2048, 256)
NEVER_SEEN_PAIRS = (
    ("h100-80gb-sxm", "wse-3"),
    ("b200-180gb-sxm", "wse-2"),
    ("h100-80gb-sxm", "b200-180gb-sxm"),
    ("a100-40gb-sxm", "h200-141gb-sxm"),
)
NEVER_SEEN_RATIOS = {"gpu+wafer": (4.0, 128.0), "gpu+gpu": (0.125, 0.25, 4.0, 8.0)}
"""Devices of the first pool over those of the second: the ends of what the counts allow."""
SPLITS_LOG_ODDS = (-1.5, -1.0, -0.5, -0.25, 0.0, 0.25, 0.5, 1.0, 1.5)
"""Forced splits: log odds of the first pool's share, less those of the best."""
LARGEST_ETA = float(np.exp(1.5)) - 1.0
"""In serving, designs further out of balance are left out: it is about what the forced splits reach."""
ASYM = [f"asym_{name}" for name in RESOURCES]


def pairs_of(gpus: Sequence[str], wafers: Sequence[str]) -> list[Pair]:
    """Every GPU with every wafer, every GPU with another."""
    return [*product(gpus, wafers), *combinations(gpus, 2)]


def kind_of(pair: Pair) -> str:
    """Whether a pair holds a wafer."""
    return "gpu+wafer" if set(pair) & set(WAFERS) else "gpu+gpu"


def designs(
    pairs: Sequence[Pair],
    models: Sequence[str] = tuple(MODELS.values()),
    global_batches: Sequence[int] = GLOBAL_BATCHES,
    requests: Sequence[tuple[int, int]] = REQUESTS,
) -> pd.DataFrame:
    """All designs with their derived eta, a row for each pool, and which held-out groups each belongs to."""

    def parts() -> Iterator[pd.DataFrame]:
        for pair, model in product(pairs, models):
            yield from (training_rows(pair, model, g) for g in global_batches)
            yield from (serving_rows(pair, model, r) for r in requests)

    frame = pd.concat([f for f in parts() if len(f)], ignore_index=True)
    training = frame["paradigm"] == "dp_training"
    ends = [frame["kind"].eq(kind) & frame["ratio"].isin(r) for kind, r in NEVER_SEEN_RATIOS.items()]
    return frame.assign(
        never_seen_model=frame["model"] == NEVER_SEEN_MODEL,
        never_seen_pair=frame["pair"].isin([" + ".join(p) for p in NEVER_SEEN_PAIRS]),
        never_seen_ratio=training & np.logical_or.reduce(ends),
        never_seen_request=frame["workload"] == "/".join(map(str, NEVER_SEEN_REQUEST)),
    )


def _pool(device: str, counts: Sequence[int], **axes: object) -> dict[str, object]:
    return {"device": device, "name": device, "profile": PROFILE, "count": list(counts), **axes}


def _crossed(first: NDArray[np.bool_], second: NDArray[np.bool_]) -> list[Ints]:
    """Every pair of settings of which both can be used."""
    rows = np.meshgrid(np.flatnonzero(first), np.flatnonzero(second), indexing="ij")
    return [r.reshape(-1).astype(np.int64) for r in rows]


def _training_space(pair: Pair, model: str, global_batch: int) -> DpSpace:
    pools = [
        _pool(d, WAFER_COUNTS) if d in WAFERS else _pool(d, GPU_COUNTS, instance_size=8, micro_batch=1, zero_stage=3)
        for d in pair
    ]
    work = {"model": model, "sequence_tokens": SEQUENCE_TOKENS, "global_batch": global_batch, "recompute": "full"}
    study = {"name": "eq5", "paradigm": "dp_training", "workload": work | {"overlap_frac": 1.0}, "pool": pools}
    return cast(DpSpace, Study.from_dict(study | {"link": {"bandwidth_gb_s": [100]}}).space)


def training_rows(pair: Pair, model: str, global_batch: int) -> pd.DataFrame:
    """Designs of one pair at every forced split, one row per pool; none where a pool cannot hold the batch alone.

    The batch alone and a quarter of it give each pool its law t = (w + w_half)/R.
    """
    space = _training_space(pair, model, global_batch)
    system, batch = space.system(space.regimes[0]), float(global_batch)
    rows = _crossed(*(t.active & t.fits & np.isfinite(t.share.time_s(batch)) for t in system.tables))
    found = divide(system, np.stack(rows), np.zeros(len(rows[0]), dtype=np.int64))
    both = found.n_active == 2
    n_splits, n_fleets = len(SPLITS_LOG_ODDS), int(both.sum())
    rows = [np.tile(r[both], n_splits) for r in rows]
    best = np.tile(found.samples[both, 0] / batch, n_splits)
    first, second = (t.share.rows(r) for t, r in zip(system.tables, rows, strict=True))
    alone = [s.time_s(batch) for s in (first, second)]
    laws = [law_of_two(batch / 4, s.time_s(batch / 4), batch, t) for s, t in zip((first, second), alone, strict=True)]
    (rate, half), (other_rate, other_half) = laws
    offset = np.repeat(SPLITS_LOG_ODDS, n_fleets)
    work = np.clip(np.rint(batch / (1.0 + (1.0 / best - 1.0) * np.exp(-offset))), 1.0, batch - 1.0)
    times = np.stack([first.time_s(work), second.time_s(batch - work)])
    fractions = {
        "work_frac": work / batch,
        "best_frac": best,
        "speed_frac": load_frac(1.0 / alone[0], 0.0, 1.0 / alone[1], 0.0),
        "load_frac": load_frac(work, half, batch - work, other_half),
        "load_balanced_frac": load_frac(rate, 0.0, other_rate, 0.0),
    }
    counts = [t.settings.n[r] for t, r in zip(system.tables, rows, strict=True)]
    devices = [p.device for p in system.fleet.pools]
    frame = _both_pools(pair, devices, counts, fractions, idle_over_busy(times / times.max(axis=0)))
    frame = frame.drop_duplicates()  # a small batch has fewer splits than are asked for
    return frame.assign(paradigm="dp_training", model=model, workload=str(global_batch))


def _both_pools(
    pair: Pair,
    devices: Sequence[Accelerator],
    counts: Sequence[Ints],
    fractions: dict[str, Floats],
    eta: Floats,
) -> pd.DataFrame:
    """One row per pool of each design; a fraction of the second pool is what the first leaves."""
    totals = [
        pool_resources(n, d.peak("bf16") or 0.0, d.memory_bandwidth_byte_s, d.link_byte_s, d.memory_byte)
        for d, n in zip(devices, counts, strict=True)
    ]
    asym = asymmetry(*totals)
    shared = {"kind": kind_of(pair), "pair": " + ".join(pair), "ratio": counts[0] / counts[1]}
    shared |= {name: asym[:, j] for j, name in enumerate(ASYM)}
    first = pd.DataFrame(shared | fractions | {"pool": pair[0], "is_first": True, "n": counts[0], "eta": eta[0]})
    left = {name: 1.0 - frac for name, frac in fractions.items()}
    second = pd.DataFrame(shared | left | {"pool": pair[1], "is_first": False, "n": counts[1], "eta": eta[1]})
    both = pd.concat([first, second], ignore_index=True)
    return both[np.isfinite(both["eta"])]


def _serving_space(pair: Pair, model: str, request: tuple[int, int]) -> ServingSpace:
    roles = ("prefill", "decode")
    pools = [
        _pool(d, SERVING_WAFER_COUNTS, instance_size=[1, 4], roles=[role])
        if d in WAFERS
        else _pool(d, GPU_COUNTS, instance_size=8, roles=[role])
        for d, role in zip(pair, roles, strict=True)
    ]
    requests = [{"name": "one", "share": 1.0, "input_tokens": request[0], "output_tokens": request[1]}]
    study = {"name": "eq5", "paradigm": "pd_serving", "workload": {"model": model, "requests": requests}}
    return cast(ServingSpace, Study.from_dict(study | {"pool": pools, "link": {"bandwidth_gb_s": [1e6]}}).space)


def serving_rows(pair: Pair, model: str, request: tuple[int, int]) -> pd.DataFrame:
    """Designs whose first pool prefills and whose second decodes, one row per pool."""
    space = _serving_space(pair, model, request)
    system = space.system(0)
    (first, second), usable = system.tables, []
    for table, role in zip(system.tables, (PREFILL, DECODE), strict=True):
        usable.append(table.active & table.feasible & (table.settings.role == role))
    rows = _crossed(*usable)
    eta = evaluate(system, np.stack(rows), np.zeros(len(rows[0]), dtype=np.int64)).pool_columns["eta"].T
    speed = load_frac(first.prefill_rate[rows[0]], 0.0, second.decode_rate[rows[1]], 0.0)
    half = np.full_like(speed, 0.5)
    fractions = {"best_frac": speed, "speed_frac": speed, "load_balanced_frac": speed}
    fractions |= {"work_frac": half, "load_frac": half}
    counts = [t.settings.n[r] for t, r in zip(system.tables, rows, strict=True)]
    frame = _both_pools(pair, [p.device for p in system.pools], counts, fractions, eta)
    frame = frame[frame["eta"] <= LARGEST_ETA]
    return frame.assign(paradigm="pd_serving", model=model, workload="/".join(map(str, request)))
