"""What each pool of a pipeline design holds, and what is left (docs/model.md, section 9)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dse.model.pp_chain import Chain, Placement, PpSystem
from dse.model.pp_schedule import in_flight
from dse.model.training_memory import boundary_byte, state_byte
from dse.model.training_pool import TrainingPool

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def stage_margin_byte(system: PpSystem, place: Placement, chain: Chain, designs: Ints, n_micro: Floats) -> Floats:
    """Left on a device of each stage's instance (N, K); negative: missing.

    States of its layers, embedding and head, sharded over the R pipelines; activations of the micro-batches in flight.
    A streaming device keeps states and the inputs of its layers outside, and one layer of one sample inside.
    """
    pools, work = system.fleet.pools, system.fleet.pools[0].work
    g = np.take_along_axis(place.g[designs], chain.pool, axis=1)
    zero = np.take_along_axis(place.zero_stage[designs], chain.pool, axis=1)
    replicas, m = place.replicas[designs][:, None], place.micro_batch[designs][:, None]
    states = state_byte(chain.parameters, g, np.maximum(replicas, 1.0), zero)
    flying = in_flight(system.schedule, chain.pool.shape[1], n_micro, system.chunks)
    margin = np.empty(chain.pool.shape)
    for p, pool in enumerate(pools):
        here = chain.pool == p
        if not here.any():
            continue
        if pool.streams:
            inputs = boundary_byte(work.sequence_tokens, m, work.hidden, chain.kept) * flying / g
            left = np.minimum(pool.usable - pool.one_layer_byte, pool.device.streaming_byte - states - inputs)
        else:
            left = pool.usable - states - chain.kept * pool.layer_activations_byte(m, g) * flying
        margin = np.where(here, left, margin)
    return margin


def server_margin_byte(
    system: PpSystem, pool: TrainingPool, place: Placement, p: int, designs: Ints, n_micro: Floats
) -> Floats:
    """Left on a wafer that serves every stage (N,): states of its K k layers, inputs of what is in flight."""
    work = pool.work
    g, n_stages = place.g[designs, p].astype(np.float64), place.n_stages[designs]
    layers = n_stages * float(system.offload_layers)
    wafers = np.maximum(place.wafers[designs], 1.0)
    flying = np.minimum(n_micro, n_stages) if system.schedule != "gpipe" else n_micro
    samples = place.micro_batch[designs] * place.replicas[designs] / wafers * flying
    states = state_byte(layers * work.layer_parameters, g, wafers, place.zero_stage[designs, p])
    outside = pool.device.streaming_byte - states
    outside = outside - boundary_byte(work.sequence_tokens, samples, work.hidden, layers) / g
    return np.minimum(pool.usable - pool.one_layer_byte, outside)
