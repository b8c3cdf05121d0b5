"""One pool in training: its times, its messages and its memory (docs/training.md)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dse.hardware import Accelerator, Efficiency
from dse.model.collectives import allreduce_s
from dse.model.memory import usable_byte
from dse.model.training_memory import activation_byte, layer_activation_streaming_byte, state_byte
from dse.model.training_work import ACTIVATION_BYTE, TrainingWork

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

ONE_BATCH = 2.0**40
"""Micro-batch of a device that runs its whole share at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSettings:
    """K settings of one pool, one array entry each; a pool that is not bought has n = 0."""

    n: Ints
    """Devices."""
    g: Ints
    """Devices of an instance: one copy of the model, or one stage of a pipeline."""
    stages: Ints
    """Pipeline stages that the pool's instances form; 1 in data parallel."""
    micro_batch: Ints
    zero_stage: Ints

    def __len__(self) -> int:
        return len(self.n)

    @property
    def replicas(self) -> Floats:
        """Copies of what the pool holds of the model: n / (g stages)."""
        return self.n / (self.g * self.stages).astype(np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPool:
    """What every setting of a pool shares under one regime."""

    name: str
    device: Accelerator
    efficiency: Efficiency
    peak_flop_s: float
    """0 where the hardware lacks the arithmetic."""
    reserve_frac: float
    work: TrainingWork

    @property
    def computes(self) -> bool:
        """Whether the hardware has the data type of the arithmetic."""
        return self.peak_flop_s > 0

    @property
    def splits_layers(self) -> bool:
        """Tensor parallel: every layer ends in an all-reduce over the instance."""
        return self.device.arrangement == "tensor" and not self.device.streams

    @property
    def usable(self) -> float:
        """Memory of one device after its reserve [byte]."""
        return float(usable_byte(self.device.memory_byte, self.reserve_frac))

    @property
    def sustained_flop_s(self) -> float:
        """P e_c of one device, over its slowdown; 1 where it cannot compute, which nobody asks for."""
        if not self.computes:
            return 1.0
        return self.peak_flop_s * self.efficiency.compute / self.efficiency.slowdown

    @property
    def charged(self) -> TrainingWork:
        """The work as its time counts it at P e_c: a flop of attention scores as e_c/e_a."""
        if self.efficiency.attention is None:
            return self.work
        score = self.work.layer_score_flop
        weight = self.efficiency.score_weight
        return replace(
            self.work, layer_flop=self.work.layer_flop + (weight - 1.0) * score, layer_score_flop=weight * score
        )

    @property
    def fixed_layer_s(self) -> float:
        """tau: time per layer and pass that no batch removes [s]."""
        return self.efficiency.slowdown * self.efficiency.fixed_layer_s

    def tier(self, inside: Bools) -> tuple[Floats, Floats]:
        """Bandwidth [byte/s] and latency [s]: scale-up where devices stay inside a node, else scale-out."""
        d = self.device
        return (
            np.where(inside, d.link_byte_s, d.scale_out_byte_s),
            np.where(inside, d.link_latency_s, d.scale_out_latency_s),
        )

    def layer_allreduce_s(self, micro_batch: Ints | Floats, g: Ints) -> Floats:
        """One tensor-parallel all-reduce of a layer's activations [s]; scale-out where an instance spans nodes."""
        if not self.splits_layers:
            return np.zeros(np.broadcast_shapes(np.shape(micro_batch), g.shape))
        byte_s, latency_s = self.tier(g <= self.device.node_size)
        message = micro_batch * self.work.boundary_byte
        slowdown = self.efficiency.slowdown
        return slowdown * allreduce_s(message, g, byte_s, self.device.link_efficiency, latency_s)

    def gradient_allreduce_s(self, parameters: Floats | float, s: TrainingSettings) -> Floats:
        """What a step waits for its last all-reduce, over the replicas, of what each holds of these parameters [s].

        Scale-out where the pool spans nodes. A stack that hides part of it behind backward passes waits for the rest.
        """
        byte_s, latency_s = self.tier(s.n <= self.device.node_size)
        held, replicas = ACTIVATION_BYTE * parameters / s.g, np.maximum(s.replicas, 1.0)
        waited = self.efficiency.slowdown * self.efficiency.exposed
        return waited * allreduce_s(held, replicas, byte_s, self.device.link_efficiency, latency_s)

    def states_byte(self, parameters: Floats | float, s: TrainingSettings) -> Floats:
        """Weights, gradients and optimizer states on one device."""
        return state_byte(parameters, s.g, np.maximum(s.replicas, 1.0), s.zero_stage)

    def layer_activations_byte(self, micro_batch: Ints | Floats, g: Ints) -> Floats:
        """Activations of one layer and micro-batch on one device."""
        w = self.work
        return activation_byte(
            w.sequence_tokens, micro_batch, w.hidden, w.heads, w.feed_forward_entries, g, w.recompute
        )

    @property
    def one_layer_byte(self) -> float:
        """What one layer of one sample takes on a streaming device while it is computed."""
        w = self.work
        return float(
            layer_activation_streaming_byte(w.sequence_tokens, w.hidden, w.heads, w.feed_forward_entries, w.recompute)
        )
