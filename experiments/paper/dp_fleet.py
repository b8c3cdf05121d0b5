"""The fleet of figures 5 and 7: one WSE-3, and as many A100 nodes as keep up with it.

The paper prints no counts. Ours follow one rule for all models: the fewest whole DGX nodes (8 A100 of 80 GB) that hold
the model and are at least as fast as one wafer at the largest batch, so that neither side is an ornament. It gives
three nodes for each of the four models.

- Each node holds one copy of the model: then each of its GPUs sends its own part of the gradients through its own
  port, which is what the model's all-reduce between nodes assumes.
- Micro-batch 1. A larger one gains up to 12 % at batch 1024, and charges a small batch for the all-reduces of samples
  that it does not have, since a micro-step's collectives are counted whole.
- 2048 tokens a sequence, selective recomputation: the study's defaults, and what the wafer's training profile was
  fitted at.
- 150 GB/s between the pools, nothing of it hidden: what the ports of one wafer system carry.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dse.errors import InputError
from dse.model.dp_thresholds import BatchScaling, batch_scaling
from search_spaces.dp_training import DpSpace

from .setting import MODELS, Change, changed, study, with_memoryx


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """One model on its fleet, over global batches."""

    n_gpu: int
    n_wse: int
    scaling: BatchScaling


def fleet(
    model: str, *, gpu: Change | None = None, wse: Change | None = None, n_gpu: int = 0, link_byte_s: float = 0.0
) -> Fleet:
    """A model of the paper on GPUs and a wafer; devices, count and link may be changed to ask what if."""
    loaded = study("data_parallel.toml", {"model": MODELS[model]})
    problem = changed(loaded.problem, "wse", with_memoryx)
    for pool, change in (("gpu", gpu), ("wse", wse)):
        problem = changed(problem, pool, change) if change else problem
    space = DpSpace(problem)
    system = space.system(space.regimes[-1])
    gpus, wafer = system.tables
    row = int(np.flatnonzero(gpus.settings.n == (n_gpu or _matching(system.fleet.alone_s, gpus.settings.n)))[0])
    batch = np.array(problem.global_batch, dtype=np.float64)
    scaling = batch_scaling(
        [gpus.share.rows(np.array([row])), wafer.share],
        batch,
        system.fleet.pools[0].work.parameters,
        link_byte_s or float(problem.links.byte_s[0]),
        float(problem.links.latency_s[0]),
        problem.overlap_frac,
    )
    return Fleet(n_gpu=int(gpus.settings.n[row]), n_wse=int(wafer.settings.n[0]), scaling=scaling)


def _matching(alone_s: tuple[np.ndarray, ...], n_gpu: np.ndarray) -> int:
    """Fewest GPUs that are as fast as the wafer at the largest batch."""
    gpus_s, wafer_s = alone_s
    enough = n_gpu[gpus_s <= wafer_s[0]]
    if not len(enough):
        raise InputError(f"data_parallel.toml: no count up to {n_gpu.max()} holds the model as fast as one wafer")
    return int(enough.min())
