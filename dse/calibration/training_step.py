"""One data-parallel step of one pool, as a study's model has it, whatever fits in memory."""

from __future__ import annotations

from functools import cache

import numpy as np

from dse.hardware import Accelerator
from dse.model.dp_pool import share_time
from dse.model.training_memory import Recompute
from dse.model.training_pool import TrainingPool, TrainingSettings
from dse.model.training_work import TrainingWork, training_work
from dse.workload import Transformer

ZERO_STAGE = 3


@cache
def _work(model: Transformer, sequence_tokens: float, recompute: Recompute) -> TrainingWork:
    return training_work(model, sequence_tokens, recompute)


def step_s(
    device: Accelerator,
    model: Transformer,
    *,
    sequence_tokens: float,
    recompute: Recompute,
    n: int,
    micro_batch: int,
    batch: float,
    dtype: str,
) -> float:
    """Time of a step of `batch` sequences on n devices, one replica each [s] (docs/training.md, section 3)."""
    pool = TrainingPool(
        name=device.name,
        device=device,
        efficiency=device.efficiency["train"].at(dtype),
        peak_flop_s=device.peak(dtype) or 0.0,
        reserve_frac=0.0,
        work=_work(model, sequence_tokens, recompute),
    )
    one = np.ones(1, dtype=np.int64)
    settings = TrainingSettings(
        n=n * one, g=one, stages=one, micro_batch=micro_batch * one, zero_stage=ZERO_STAGE * one
    )
    return float(share_time(pool, settings, np.array([np.inf])).time_s(np.array([batch]))[0])
