"""Times of one pipeline stage and of a wafer that serves all stages (docs/training.md).

A stage of l layers on an instance of g devices takes, for a micro-batch of m,

    forward   l (tau + F_layer(m)/(g P e_c) + 2 allreduce(m s h act, g)) + head + out
    backward  l (2 (tau + F_layer(m)/(g P e_c)) + 2 allreduce) + recomputation + 2 head + out

so that both together are l tau_layer(m) + head + out of both, with tau_layer = passes tau + (arithmetic of all passes)/
(g P e_c) + n_ar allreduce: passes, n_ar and what is computed again are those of the recompute mode.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dse.model.partition import MOST_ROUNDS
from dse.model.share_time import NUDGE_FRAC
from dse.model.training_pool import TrainingPool

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTime:
    """One layer of one micro-batch on an instance, in parts [s]; arrays broadcast."""

    forward_compute_s: Floats
    backward_compute_s: Floats
    """Recomputation included."""
    fixed_s: float
    """tau of one pass."""
    forwards: float
    """Passes of forward and backward together, in units of a forward."""
    allreduce_s: Floats
    """One of them."""
    allreduces: float
    """Of forward and backward together; two are the forward's."""

    @property
    def forward_s(self) -> Floats:
        """Forward of the layer."""
        return self.fixed_s + self.forward_compute_s + 2.0 * self.allreduce_s

    @property
    def backward_s(self) -> Floats:
        """Backward of the layer."""
        fixed = (self.forwards - 1.0) * self.fixed_s
        return fixed + self.backward_compute_s + (self.allreduces - 2.0) * self.allreduce_s

    @property
    def both_s(self) -> Floats:
        """tau_layer(m): forward and backward, recomputation included."""
        return self.forward_s + self.backward_s


def layer_time(pool: TrainingPool, micro_batch: Ints | Floats, g: Ints) -> LayerTime:
    """One layer of a micro-batch on instances of g devices."""
    work, rate = pool.charged, g * pool.sustained_flop_s
    return LayerTime(
        forward_compute_s=micro_batch * work.layer_flop / rate,
        backward_compute_s=micro_batch * work.layer_backward_flop / rate,
        fixed_s=pool.fixed_layer_s,
        forwards=work.forwards,
        allreduce_s=pool.layer_allreduce_s(micro_batch, g),
        allreduces=work.allreduces,
    )


def hop_in_pool_s(pool: TrainingPool, micro_batch: Ints | Floats, g: Ints, stages: Ints) -> Floats:
    """Activations from one stage to the next of the same pool [s]: l + m s h act/(C e_link).

    Scale-out where the pool's part of a pipeline spans nodes.
    """
    byte_s, latency_s = pool.tier(g * stages <= pool.device.node_size)
    bandwidth = byte_s * pool.device.link_efficiency
    return pool.efficiency.slowdown * (latency_s + micro_batch * pool.work.boundary_byte / bandwidth)


def offload_threshold_s(layer_s: Floats, layers_per_stage: Floats, stages: Floats) -> Floats:
    """Time of a layer on the wafer at which handing it one layer of each stage breaks even [s]: l tau_gpu(m)/K.

    The wafer's period K tau_wse must not exceed the l tau_gpu that a stage takes without offload.

    >>> float(offload_threshold_s(np.array(0.02), np.array(8.0), np.array(4.0)))
    0.04
    """
    return layers_per_stage * layer_s / stages


def balanced_layers(layers: Ints, layer_s: Floats, other_s: Floats) -> Ints:
    """Layers of each stage (C, K) that make the slowest stage fastest: min max_s l_s layer_s + other_s, l_s >= 1.

    Exact, by bisection on the time between times that stages take; a stage that one layer keeps longer than the others
    stays at one, and the others are laid out among themselves. Layers to spare, fewer than stages, are taken from the
    slowest stage, the first of equals, which holds the most activations. More stages than layers get one each.

    >>> balanced_layers(np.array([10]), np.array([[1.0, 1.0, 2.0]]), np.array([[0.0, 0.0, 1.0]])).tolist()
    [[4, 4, 2]]
    """
    n_stages = layer_s.shape[1]
    total = np.maximum(layers, n_stages).astype(np.float64)
    fair = total / (1.0 / layer_s).sum(axis=1)
    low = (other_s + layer_s).min(axis=1)
    high = np.maximum(low, (np.ceil(fair[:, None] / layer_s) * layer_s + other_s).max(axis=1))
    for _ in range(MOST_ROUNDS):
        middle = np.where(low < high, 0.5 * (low + high), high)
        middle = np.where(middle < high, middle, low)
        count = _within(middle, layer_s, other_s)
        enough = count.sum(axis=1) >= total
        time_s = other_s + layer_s * count
        within = time_s <= (middle * (1.0 + NUDGE_FRAC))[:, None]
        reached = np.where(within, time_s, -np.inf).max(axis=1)
        following = (other_s + layer_s * (count + 1.0)).min(axis=1)
        high = np.where(enough, np.clip(reached, low, high), high)
        low = np.where(enough, low, np.minimum(np.maximum(low, following), high))
        if (low >= high).all():
            break
    count = _within(high, layer_s, other_s)
    rows = np.arange(len(count))
    while (surplus := count.sum(axis=1) - total > 0).any():
        time_s = np.where(count > 1.0, other_s + layer_s * count, -np.inf)
        count[rows[surplus], time_s.argmax(axis=1)[surplus]] -= 1.0
    return count.astype(np.int64)


def _within(time_s: Floats, layer_s: Floats, other_s: Floats) -> Floats:
    """Most layers of each stage within a time, at least one (C, K)."""
    return np.maximum(np.floor((time_s[:, None] * (1.0 + NUDGE_FRAC) - other_s) / layer_s), 1.0)
