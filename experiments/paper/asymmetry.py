"""Eq. (5) against the derived eta: alpha fitted from scored designs, judged on models, pairs and ratios never seen.

In data parallel a design is two pools, a model and a global batch, with the batch forced onto nine splits around the
best one; 1 + eta_i = T_step/t_i without the exchange between pools, which eq. (2) holds, not eq. (5). In serving the
first pool prefills and the second decodes, eta_i is what the matched flow leaves unused, and the link never binds.

Errors are those of the pool that waits: the other has eta = 0, which every one-sided form gives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from itertools import combinations, product
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dse.files import write_whole
from dse.hardware import Accelerator
from dse.model.asymmetry import (
    RESOURCES,
    AlphaFit,
    asymmetry,
    eta_closed_form,
    fit_alpha,
    law_of_two,
    load_frac,
    pool_resources,
    residuals,
    shortfall,
)
from dse.model.dp_training import divide
from dse.model.pd_serving import evaluate
from dse.model.roofline import idle_over_busy
from dse.model.serving_pool import DECODE, PREFILL
from dse.resolve import Study
from search_spaces.dp_training import DpSpace
from search_spaces.pd_serving import ServingSpace

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

GPUS = ("a100-40gb-sxm", "a100-80gb-sxm", "h100-80gb-sxm", "h200-141gb-sxm", "b200-180gb-sxm")
WAFERS = ("wse-2", "wse-3")
MODELS = ("llama-2-7b", "llama-2-13b", "codellama-34b", "llama-2-70b")
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
PAPER_ERROR = {"dp_training": (0.068, 0.134), "pd_serving": (0.082, 0.164)}
"""Median and 90th percentile that the paper gives for its calibrated model under unseen settings."""
ASYM = [f"asym_{name}" for name in RESOURCES]
STEPS = np.linspace(-3.0, 3.0, 9)
"""Where the step function of `split` changes, in log odds."""


# -- designs -----------------------------------------------------------------------------------------


def kind_of(pair: tuple[str, str]) -> str:
    """Whether a pair holds a wafer."""
    return "gpu+wafer" if set(pair) & set(WAFERS) else "gpu+gpu"


def _pool(device: str, counts: Sequence[int], **axes: object) -> dict[str, object]:
    return {"device": device, "name": device, "count": list(counts), **axes}


def _training_space(pair: tuple[str, str], model: str, global_batch: int) -> DpSpace:
    pools = [
        _pool(d, WAFER_COUNTS) if d in WAFERS else _pool(d, GPU_COUNTS, instance_size=8, micro_batch=1, zero_stage=3)
        for d in pair
    ]
    work = {"model": model, "sequence_tokens": SEQUENCE_TOKENS, "global_batch": global_batch, "recompute": "full"}
    study = {"name": "eq5", "paradigm": "dp_training", "workload": work | {"overlap_frac": 1.0}, "pool": pools}
    return cast(DpSpace, Study.from_dict(study | {"link": {"bandwidth_gb_s": [100]}}).space)


def _crossed(first: NDArray[np.bool_], second: NDArray[np.bool_]) -> list[Ints]:
    """Every pair of settings of which both can be used."""
    rows = np.meshgrid(np.flatnonzero(first), np.flatnonzero(second), indexing="ij")
    return [r.reshape(-1).astype(np.int64) for r in rows]


def training_rows(pair: tuple[str, str], model: str, global_batch: int) -> pd.DataFrame:
    """Designs of one pair at every forced split, one row per pool; none where a pool cannot hold the batch alone.

    The batch alone and a quarter of it give each pool its law t = (w + w_half)/R.
    """
    space = _training_space(pair, model, global_batch)
    system, batch = space.system(space.regimes[0]), float(global_batch)
    rows = _crossed(*(t.active & t.fits & np.isfinite(t.share.time_s(batch)) for t in system.tables))
    found = divide(system, rows, np.zeros(len(rows[0]), dtype=np.int64))
    both = found.n_active == 2
    rows, best = [r[both] for r in rows], found.samples[both, 0] / batch
    first, second = (t.share.rows(r) for t, r in zip(system.tables, rows, strict=True))
    alone = [s.time_s(batch) for s in (first, second)]
    laws = [law_of_two(batch / 4, s.time_s(batch / 4), batch, t) for s, t in zip((first, second), alone, strict=True)]
    (rate, half), (other_rate, other_half) = laws
    frames = []
    for offset in SPLITS_LOG_ODDS:
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
        frames.append(_both_pools(pair, devices, counts, fractions, idle_over_busy(times / times.max(axis=0))))
    frame = pd.concat(frames, ignore_index=True).drop_duplicates()  # a small batch has fewer splits than are asked for
    return frame.assign(paradigm="dp_training", model=model, workload=str(global_batch))


def _both_pools(
    pair: tuple[str, str],
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


def _serving_space(pair: tuple[str, str], model: str, request: tuple[int, int]) -> ServingSpace:
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


def serving_rows(pair: tuple[str, str], model: str, request: tuple[int, int]) -> pd.DataFrame:
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


def pairs_of(gpus: Sequence[str], wafers: Sequence[str]) -> list[tuple[str, str]]:
    """Every GPU with every wafer, every GPU with another."""
    return [*product(gpus, wafers), *combinations(gpus, 2)]


def designs(
    pairs: Sequence[tuple[str, str]],
    models: Sequence[str] = MODELS,
    global_batches: Sequence[int] = GLOBAL_BATCHES,
    requests: Sequence[tuple[int, int]] = REQUESTS,
) -> pd.DataFrame:
    """All designs with their derived eta, and which held-out groups each belongs to."""

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


# -- forms -------------------------------------------------------------------------------------------


def _per_pool(features: Floats, frame: pd.DataFrame) -> Floats:
    """Each feature twice, so that alpha_ij may differ between the first pool i and the second."""
    first = frame["is_first"].to_numpy()[:, None]
    return np.concatenate([features * first, features * ~first], axis=1)


def _constant(frame: pd.DataFrame) -> Floats:
    return _per_pool(np.ones((len(frame), 1)), frame)


def _split(frame: pd.DataFrame) -> Floats:
    """One feature per interval of the split: any function of w1:w2 alone, up to its steps."""
    own = frame["work_frac"].to_numpy()
    return _per_pool(np.eye(len(STEPS) + 1)[np.digitize(np.log(1.0 / own - 1.0), STEPS)], frame)


def _distance(frame: pd.DataFrame) -> Floats:
    return np.maximum(frame["best_frac"].to_numpy() - frame["work_frac"].to_numpy(), 0.0)


def _short(share: str, balanced: str) -> Callable[[pd.DataFrame], Floats]:
    return lambda frame: shortfall(frame[share].to_numpy(), frame[balanced].to_numpy())


FORMS: dict[str, Callable[[pd.DataFrame], Floats]] = {
    "constant": _constant,
    "split": _split,
    "distance": _distance,
    "shortfall of speed": _short("work_frac", "speed_frac"),
    "shortfall of work": _short("work_frac", "best_frac"),
    "shortfall of load": _short("load_frac", "load_balanced_frac"),
    "no asymmetry": _short("load_frac", "load_balanced_frac"),
}
"""What alpha is of the split. Literal: a constant for each pool; a step function of w1:w2 for each pool. Zero at
balance: the share that is missing to the best split; the shortfall against the stand-alone speeds, against the best
split, and in load. Last, the shortfall in load without the asymmetries, which tells what they add."""
CHOSEN = "shortfall of load"


def _asym(frame: pd.DataFrame, form: str) -> Floats:
    values: Floats = frame[ASYM].to_numpy(dtype=np.float64)
    return np.ones((len(frame), 1)) if form == "no asymmetry" else values


def fitted_eta(fit: AlphaFit, frame: pd.DataFrame, form: str) -> Floats:
    """eta that a fitted form gives."""
    return eta_closed_form(fit.alpha, _asym(frame, form), FORMS[form](frame))


def fit_form(frame: pd.DataFrame, form: str) -> AlphaFit:
    """alpha of one form, from these pools."""
    return fit_alpha(_asym(frame, form), FORMS[form](frame), frame["eta"].to_numpy())


def held_out_groups(frame: pd.DataFrame) -> dict[str, NDArray[np.bool_]]:
    """Name -> rows of each whole group that no fit sees."""
    return {c: frame[c].to_numpy() for c in frame.columns if c.startswith("never_seen_")}


def training_part(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows in no held-out group."""
    return frame[~np.logical_or.reduce(list(held_out_groups(frame).values()))]


def errors(frame: pd.DataFrame, forms: Sequence[str] = tuple(FORMS)) -> pd.DataFrame:
    """One row per paradigm, kind of pair, form and set of designs: what the form misses there."""
    table: list[dict[str, Any]] = []
    for (paradigm, kind), group in frame.groupby(["paradigm", "kind"]):
        train = training_part(group)
        sets = {"train": train, **{name: group[held] for name, held in held_out_groups(group).items()}}
        sets["other_kind"] = frame[(frame["paradigm"] == paradigm) & (frame["kind"] != kind)]
        for form in forms:
            fit = fit_form(train, form)
            alpha = dict(zip(RESOURCES, fit.alpha[0], strict=True)) if fit.alpha.shape == (1, len(RESOURCES)) else {}
            for name, rows in sets.items():
                waits = rows[rows["eta"] > 0]
                if len(waits):
                    found = asdict(residuals(fitted_eta(fit, waits, form), waits["eta"].to_numpy()))
                    at = {"paradigm": paradigm, "kind": kind, "form": form, "set": name} | found
                    table.append(at | {f"alpha_{j}": value for j, value in alpha.items()})
    return pd.DataFrame(table)


# -- statements --------------------------------------------------------------------------------------

OF_LOAD = "in proportion to the shortfall of load"
CLAIMS = (
    ("constant", "constant", "dp_training", "gpu+wafer"),
    ("split", "any function of w1:w2 alone", "dp_training", "gpu+wafer"),
    (CHOSEN, OF_LOAD, "dp_training", "gpu+wafer"),
    (CHOSEN, OF_LOAD, "dp_training", "gpu+gpu"),
    (CHOSEN, OF_LOAD, "pd_serving", "gpu+wafer"),
    (CHOSEN, OF_LOAD, "pd_serving", "gpu+gpu"),
)
"""Form, its words, paradigm, kind of pair."""
WORDS = {
    "dp_training": "data parallel",
    "pd_serving": "prefill/decode",
    "gpu+wafer": "GPU + wafer",
    "gpu+gpu": "two kinds of GPU",
}


def _statement(statement: str, passes: bool, value: str, paper: str) -> dict[str, str | bool]:
    return {"figure": "eq5", "statement": statement, "pass": passes, "value": value, "paper": paper}


def _both_percent(median: float, p90: float) -> str:
    return f"median {median:.1%}, 90th percentile {p90:.1%}"


def worst_held_out(table: pd.DataFrame, paradigm: str, kind: str, form: str) -> tuple[float, float]:
    """Largest median and largest 90th percentile of the relative miss of 1 + eta over the held-out groups."""
    at = (table["paradigm"] == paradigm) & (table["kind"] == kind) & (table["form"] == form)
    held = table[at & table["set"].str.startswith("never_seen_")]
    return float(held["relative_median"].max()), float(held["relative_p90"].max())


def statements(frame: pd.DataFrame, table: pd.DataFrame) -> list[dict[str, str | bool]]:
    """What the paper says of eq. (5), beside what scored designs give: relative misses of 1 + eta, worst held-out."""
    found = [_best_split(frame)]
    for form, words, paradigm, kind in CLAIMS:
        (median, p90), most = worst_held_out(table, paradigm, kind, form), PAPER_ERROR[paradigm]
        text = f"{WORDS[paradigm]}, {WORDS[kind]}: eq. (5), alpha {words}, gives 1 + eta within the paper's error"
        holds = median <= most[0] and p90 <= most[1]
        found.append(_statement(text, holds, _both_percent(median, p90), f"{_both_percent(*most)} of throughput"))
    paired = worst_held_out(table, "dp_training", "gpu+wafer", CHOSEN)
    bare = worst_held_out(table, "dp_training", "gpu+wafer", "no asymmetry")
    text = "data parallel, GPU + wafer: the differences in P, B, C, M tell more of eta than the shortfall of load alone"
    value = f"with them {_both_percent(*paired)}; without {_both_percent(*bare)}"
    holds = paired[0] < bare[0] and paired[1] < bare[1]
    return [*found, _statement(text, holds, value, "eta is a sum over P, B, C, M")]


def _best_split(frame: pd.DataFrame) -> dict[str, str | bool]:
    """At the best split eta is what whole samples on whole replicas leave: the less, the larger the batch."""
    at_best = np.abs(frame["work_frac"].to_numpy() - frame["best_frac"].to_numpy()) < 1e-9
    waits = frame[at_best & (frame["paradigm"] == "dp_training") & (frame["kind"] == "gpu+wafer") & (frame["eta"] > 0)]
    p90 = {int(str(b)): float(rows["eta"].quantile(0.9)) for b, rows in waits.groupby("workload")}
    value = ", ".join(f"{p90[b]:.2f} at batch {b}" for b in sorted(p90))
    text = "data parallel, GPU + wafer: at the optimal split eta = 0, within 0.1 at the largest batch"
    return _statement(text, p90[max(p90)] <= 0.1, f"90th percentile of the pool that waits: {value}", "eta = 0")


def run(folder: Path | None) -> tuple[pd.DataFrame, list[dict[str, str | bool]]]:
    """The errors of every form, and the statements; with a folder, eq5.csv and eq5_statements.csv in it."""
    frame = designs(pairs_of(GPUS, WAFERS))
    table = errors(frame)
    found = statements(frame, table)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / "eq5.csv", table.to_csv(index=False))
        write_whole(folder / "eq5_statements.csv", pd.DataFrame(found).to_csv(index=False))
    return table, found
