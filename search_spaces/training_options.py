"""Settings of a pool in training, and what its tables need to know of it under one regime."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from dse.model.bill import PoolBill, pool_bill
from dse.model.training_memory import Recompute
from dse.model.training_pool import TrainingPool, TrainingSettings

from .training_problem import TrainingOffer, TrainingProblem


@dataclass(frozen=True, slots=True, kw_only=True)
class Regime:
    """What holds for a whole fleet. Data parallel leaves the pipeline's fields as they are."""

    compute_dtype: str
    recompute: Recompute
    global_batch: int
    schedule: str = ""
    chunks: int = 1
    """Interleaved: layers of a stage are dealt out in so many pieces."""
    offload_layers: int = 0
    """Layers that every stage hands to the wafers."""
    collect: int = 1
    """Micro-batches that a wafer takes at once."""


def base_regimes(problem: TrainingProblem) -> list[Regime]:
    """Data types that some pool computes in, recompute modes and global batches, the last fastest."""
    return [
        Regime(compute_dtype=dtype, recompute=recompute, global_batch=batch)
        for dtype, recompute, batch in product(problem.compute_dtypes, problem.recompute, problem.global_batch)
        if any(o.device.peak(dtype) for o in problem.pools)
    ]


def pool_options(offer: TrainingOffer) -> TrainingSettings:
    """Every setting of a pool; counts ascending, absent first where 0 is on offer.

    What cannot matter is held at its first value: the micro-batch of a device that runs its share at once (one stage),
    the sharding of a single replica.
    """
    rows = [absent_setting(offer)] if 0 in offer.counts else []
    for n, g, stages in product(offer.counts, offer.instance_size, offer.stages):
        if n == 0 or n % (g * stages):
            continue
        micro = offer.micro_batch[:1] if offer.device.streams and stages == 1 else offer.micro_batch
        zero = offer.zero_stage[:1] if n == g * stages else offer.zero_stage
        rows += [(n, g, stages, m, z) for m in micro for z in zero]
    return settings_of_rows(rows)


def absent_setting(offer: TrainingOffer) -> tuple[int, int, int, int, int]:
    """The one setting of a pool that is not bought."""
    return (0, offer.instance_size[0], offer.stages[0], offer.micro_batch[0], offer.zero_stage[0])


def settings_of_rows(rows: Sequence[tuple[int, int, int, int, int]]) -> TrainingSettings:
    """Rows of (n, g, stages, micro-batch, ZeRO stage) as columns."""
    table = np.array(rows, dtype=np.int64).reshape(-1, 5)
    n, g, stages, micro_batch, zero_stage = table.T
    return TrainingSettings(n=n, g=g, stages=stages, micro_batch=micro_batch, zero_stage=zero_stage)


def pools_of(problem: TrainingProblem, regime: Regime) -> tuple[TrainingPool, ...]:
    """What every setting of each pool shares under one regime."""
    work = problem.work(regime.recompute)
    return tuple(
        TrainingPool(
            name=o.name,
            device=o.device,
            efficiency=o.device.efficiency["train"].at(regime.compute_dtype),
            peak_flop_s=o.device.peak(regime.compute_dtype) or 0.0,
            reserve_frac=o.reserve_frac,
            work=work,
        )
        for o in problem.pools
    )


def bills_of(problem: TrainingProblem, settings: Sequence[TrainingSettings]) -> tuple[PoolBill, ...]:
    """Power and cost of every setting of each pool."""
    return tuple(pool_bill(o.device, problem.site, s.n, o.owned) for o, s in zip(problem.pools, settings, strict=True))
