"""One pool of data-parallel training over its settings: its time for a share of the batch, and what fits.

For b samples on r replicas: p = ceil(b/r) samples each in k = ceil(p/m) micro-steps (a streaming device: k = 1),

    T(b) = k passes L tau + passes F(s) p/(g P e_c) + k L n_ar allreduce(m s h act, g) + allreduce(2 parameters/g, r)

where passes F(s) is the arithmetic of all passes (selective: the scores once more; docs/training.md). A measured table
may give the time of a micro-step instead of the first two terms.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dse.model.share_time import MeasuredStaircase, Staircase
from dse.model.training_memory import boundary_byte
from dse.model.training_pool import ONE_BATCH, TrainingPool, TrainingSettings

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Rows = NDArray[np.intp]


@dataclass(frozen=True, slots=True, kw_only=True)
class DpTable:
    """One pool over K settings."""

    settings: TrainingSettings
    share: Staircase | MeasuredStaircase
    """Time for a share of the batch; a pool that does not fit holds no sample."""
    fixed_step_s: Floats
    """Of each micro-step, what no batch removes: passes L tau (0 with a measured table)."""
    collective_step_s: Floats
    """Of each micro-step, tensor-parallel all-reduces."""
    gradient_s: Floats
    """Of each step, the all-reduce of gradients over the replicas."""
    inside_byte: Floats
    """Left of a device's memory; negative: missing."""
    outside_byte: Floats
    """Left of what a streaming device keeps outside, before any sample; infinite for others."""
    sample_byte: Floats
    """What each sample of an instance takes outside; 0 for others."""
    states_byte: Floats
    activations_byte: Floats
    """On a device: of a micro-batch through all layers; on a streaming device: of one layer of one sample."""
    fits: Bools
    active: Bools


def dp_table(pool: TrainingPool, s: TrainingSettings) -> DpTable:
    """Everything the partition needs to know of one pool."""
    work, active = pool.work, s.n > 0
    states = pool.states_byte(work.parameters, s)
    if pool.device.streams:
        activations = np.full(len(s), pool.one_layer_byte)
        inside, outside = pool.usable - activations, pool.device.streaming_byte - states
        sample = boundary_byte(work.sequence_tokens, 1.0, work.hidden, work.layers) / s.g
        most = s.replicas * np.floor(np.maximum(outside, 0.0) / sample)
    else:
        activations = work.layers * pool.layer_activations_byte(s.micro_batch, s.g)
        inside, outside = pool.usable - states - activations, np.full(len(s), np.inf)
        sample, most = np.zeros(len(s)), np.full(len(s), np.inf)
    fits = (inside >= 0) & (outside >= sample) & pool.computes
    return DpTable(
        settings=s,
        share=share_time(pool, s, np.where(fits, most, 0.0)),
        fixed_step_s=_fixed_s(pool, s),
        collective_step_s=_collective_s(pool, s),
        gradient_s=pool.gradient_allreduce_s(work.parameters, s),
        inside_byte=inside,
        outside_byte=outside,
        sample_byte=sample,
        states_byte=states,
        activations_byte=activations,
        fits=fits | ~active,
        active=active,
    )


def _fixed_s(pool: TrainingPool, s: TrainingSettings) -> Floats:
    """passes L tau of a micro-step; a measured table has it inside."""
    if pool.efficiency.table_flop:
        return np.zeros(len(s))
    return np.full(len(s), pool.work.forwards * pool.work.layers * pool.fixed_layer_s)


def _collective_s(pool: TrainingPool, s: TrainingSettings) -> Floats:
    """Tensor-parallel all-reduces of a micro-step."""
    return pool.work.layers * pool.work.allreduces * pool.layer_allreduce_s(s.micro_batch, s.g)


def share_time(pool: TrainingPool, s: TrainingSettings, most: Floats) -> Staircase | MeasuredStaircase:
    """T(b) of K settings that hold at most so many samples."""
    micro_batch = np.full(len(s), ONE_BATCH) if pool.device.streams else s.micro_batch.astype(np.float64)
    e, gradient = pool.efficiency, pool.gradient_allreduce_s(pool.work.parameters, s)
    if e.table_flop:
        return MeasuredStaircase(
            replicas=s.replicas,
            micro_batch=micro_batch,
            once_s=gradient,
            step_s=_collective_s(pool, s),
            sample_flop=pool.work.train_flop / s.g,
            table_flop=np.array(e.table_flop),
            table_s=e.slowdown * np.array(e.table_s),
            most=most,
        )
    return Staircase(
        replicas=s.replicas,
        micro_batch=micro_batch,
        once_s=gradient,
        step_s=_fixed_s(pool, s) + _collective_s(pool, s),
        sample_s=np.asarray(pool.charged.train_flop / (s.g * pool.sustained_flop_s), dtype=np.float64),
        most=most,
    )


def micro_steps(share: Staircase | MeasuredStaircase, samples: Floats) -> Floats:
    """k of a share: micro-steps of each replica."""
    r = np.maximum(share.replicas, 1.0)
    return np.ceil(np.ceil(samples / r) / share.micro_batch)


def samples_byte(table: DpTable, rows: Rows, samples: Floats) -> Floats:
    """What a share of these samples takes outside a streaming device; 0 for others."""
    return np.ceil(samples / np.maximum(table.share.replicas[rows], 1.0)) * table.sample_byte[rows]


def margin_byte(table: DpTable, rows: Rows, samples: Floats) -> Floats:
    """Memory left with a share of these samples; the tighter of inside and outside, infinite where none is bought."""
    outside = table.outside_byte[rows] - samples_byte(table, rows, np.maximum(samples, 1.0))
    return np.where(table.active[rows], np.minimum(table.inside_byte[rows], outside), np.inf)
