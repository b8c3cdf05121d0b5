"""What each pool of a pipeline design holds, and what is left (docs/training.md)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from dse.model.pp_chain import Chain, Placement, PpSystem, by_stage
from dse.model.pp_schedule import in_flight
from dse.model.training_memory import boundary_byte, state_byte
from dse.model.training_pool import TrainingPool

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def chain_margin_byte(
    system: PpSystem, place: Placement, chain: Chain, which: Ints, designs: Ints, n_micro: Floats
) -> tuple[Floats, Floats]:
    """Left on the tightest device of each pool's stages (N, P); negative: missing; infinite without stages.

    The second is what is left of it outside a streaming device, infinite for others.

    States of its layers, embedding and head, sharded over the R pipelines; activations of the micro-batches in flight.
    A streaming device keeps states and the inputs of its layers outside, and one layer of one sample inside.
    `chain` holds distinct chains, `which` of them each design has.
    """
    work, n_stages = system.fleet.pools[0].work, chain.pool.shape[1]
    replicas = np.maximum(place.replicas[designs], 1.0)
    flying = _in_flight(system, n_stages, n_micro)
    margin, beyond = (np.full((len(designs), len(system.fleet.pools)), np.inf) for _ in range(2))
    for p, pool in enumerate(system.fleet.pools):
        here = chain.pool == p
        if not here.any():
            continue
        g, m = chain.g[:, p, None], chain.micro_batch[:, None]
        per_parameter = state_byte(1.0, 1.0, replicas, place.zero_stage[designs, p])[:, None]
        states = (chain.parameters / g)[which] * per_parameter
        if pool.device.streams:
            inputs = chain.kept * boundary_byte(work.sequence_tokens, m, work.hidden, 1.0) / g
            outside = pool.device.streaming_byte - states - inputs[which] * flying
            outside = outside if here.all() else np.where(here[which], outside, np.inf)
            beyond[:, p] = outside.min(axis=1)
            inside = by_stage(system, lambda work: replace(pool, work=work).one_layer_byte)  # noqa: B023 - called here
            left = np.minimum(pool.usable - inside, outside)
        else:
            layer = by_stage(system, lambda work: replace(pool, work=work).layer_activations_byte(m, g))  # noqa: B023 - too
            left = pool.usable - states - (chain.kept * layer)[which] * flying
        margin[:, p] = (left if here.all() else np.where(here[which], left, np.inf)).min(axis=1)
    return margin, beyond


def _in_flight(system: PpSystem, n_stages: int, n_micro: Floats) -> Floats:
    """Micro-batches that a stage holds (N, K). Between two stages a wafer lies where layers are handed over.

    Such a chain is twice as long, so that under 1F1B stage s holds min(N, 2 (K-s) + 1).
    """
    if not system.offload_layers or system.schedule == "gpipe":
        return in_flight(system.schedule, n_stages, n_micro, system.chunks)
    behind = np.arange(n_stages)[::-1]
    return np.minimum(n_micro[:, None], 2.0 * behind + 1.0)


def server_outside_byte(
    system: PpSystem, pool: TrainingPool, place: Placement, p: int, designs: Ints, n_micro: Floats
) -> Floats:
    """Left outside of a wafer that serves every stage (N,): states of its K k layers, inputs of what is in flight."""
    work = pool.work
    g, n_stages = place.g[designs, p].astype(np.float64), place.n_stages[designs]
    layers = n_stages * float(system.offload_layers)
    wafers = np.maximum(place.wafers[designs], 1.0)
    flying = np.minimum(n_micro, 2.0 * n_stages) if system.schedule != "gpipe" else n_micro
    samples = place.micro_batch[designs] * place.replicas[designs] / wafers * flying
    states = state_byte(layers * work.layer_parameters, g, wafers, place.zero_stage[designs, p])
    inputs = boundary_byte(work.sequence_tokens, samples, work.hidden, layers) / g
    return np.asarray(pool.device.streaming_byte - states - inputs, dtype=np.float64)
