"""What a run of equal pipeline stages on one pool does to the step, per layer: coefficients of placements.

A placement lays the layers of a model on blocks: K_o stages in a row on instances of g devices of one pool, in R
pipelines. Everything in a step is linear in the layers of its stages once blocks, their order and each stage's
recompute mode are known: times, gradients and bytes. Stages are counted from the END of the pipeline, slot 0 holding
the head: then what a slot holds in flight does not depend on how many stages lie before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dse.model.pp_chain import PpSystem, across_pools_s
from dse.model.pp_schedule import in_flight
from dse.model.pp_stage import hop_in_pool_s, layer_time
from dse.model.training_memory import Recompute, boundary_byte, state_byte
from dse.model.training_pool import TrainingPool, TrainingSettings

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """What all placements of one program share."""

    systems: tuple[PpSystem, ...]
    """The same fleet under each recompute mode."""
    modes: tuple[Recompute, ...]
    micro_batch: int
    replicas: int
    """R: pipelines side by side."""
    links: tuple[int, ...]
    """Links on offer."""
    server: tuple[int, int] | None = None
    """Pool and row of the wafers that take k layers of every stage; None without offload."""

    @property
    def system(self) -> PpSystem:
        """Any of them, for what no mode changes."""
        return self.systems[0]

    @property
    def n_micro(self) -> int:
        """N: micro-batches of a pipeline."""
        return self.system.fleet.global_batch // (self.replicas * self.micro_batch)

    @property
    def across_s(self) -> Floats:
        """Transfer of a micro-batch's activations to another pool, over each link (L,)."""
        links = np.arange(len(self.system.fleet.links.byte_s))
        return across_pools_s(self.system, np.array(self.micro_batch), links)

    @property
    def crossing_s(self) -> Floats:
        """What the link carries of a whole step takes at least this, over each link (L,)."""
        fleet = self.system.fleet
        return np.asarray(fleet.global_batch * fleet.pools[0].work.boundary_byte / fleet.links.byte_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One way to buy and use a pool: K_o stages of g devices, R times. Arrays are by recompute mode (C,)."""

    pool: int
    n: int
    g: int
    stages: int
    zero_stages: tuple[int, ...]
    """Listed for it, the one that holds the least last."""
    forward_s: Floats
    """Of a layer."""
    backward_s: Floats
    head_forward_s: float
    head_backward_s: Floats
    hop_s: float
    """To the next stage of the block."""
    gradient_fixed_s: float
    gradient_parameter_s: float
    usd_per_h: float
    busy_usd_per_h: float
    power_w: float


def block_of(frame: Frame, p: int, row: int, zero_stages: Sequence[int]) -> Block:
    """The block that a setting of pool p makes."""
    fleet = frame.system.fleet
    s, bill = fleet.settings[p], fleet.bills[p]
    n, g, stages = int(s.n[row]), int(s.g[row]), int(s.stages[row])
    m, size = np.array([frame.micro_batch]), np.array([g])
    layers = [layer_time(system.fleet.pools[p], m, size) for system in frame.systems]
    pool = fleet.pools[p]
    rate = g * pool.sustained_flop_s
    works = [system.fleet.pools[p].work for system in frame.systems]
    group = TrainingSettings(
        n=np.array([n]), g=size, stages=np.array([stages]), micro_batch=m, zero_stage=np.array([0])
    )
    fixed, more = (float(pool.gradient_allreduce_s(x, group)[0]) for x in (0.0, pool.work.layer_parameters))
    return Block(
        pool=p,
        n=n,
        g=g,
        stages=stages,
        zero_stages=tuple(sorted(zero_stages)),
        forward_s=np.array([float(t.forward_s[0]) for t in layers]),
        backward_s=np.array([float(t.backward_s[0]) for t in layers]),
        head_forward_s=frame.micro_batch * pool.work.head_flop / rate,
        head_backward_s=np.array([frame.micro_batch * w.head_backward_flop / rate for w in works]),
        hop_s=float(hop_in_pool_s(pool, m, size, np.array([stages]))[0]),
        gradient_fixed_s=fixed,
        gradient_parameter_s=(more - fixed) / pool.work.layer_parameters,
        usd_per_h=float(bill.idle_usd_per_h[row]),
        busy_usd_per_h=float(bill.busy_usd_per_h[row]),
        power_w=float(bill.provisioned_w[row]),
    )


def extra_parameters(frame: Frame, *, first: bool, last: bool) -> float:
    """Parameters of a stage besides its layers: the embedding on the first, the head on the last."""
    work = frame.system.fleet.pools[0].work
    head = work.head_parameters if last else 0.0
    return head + (work.embedding_parameters if first and not (last and work.tied) else 0.0)


def flying(frame: Frame, n_stages: int) -> Floats:
    """Micro-batches in flight at each slot, the last stage first (K,)."""
    system = frame.system
    if system.offload_layers and system.schedule != "gpipe":
        return np.minimum(float(frame.n_micro), 2.0 * np.arange(n_stages) + 1.0)
    return in_flight(system.schedule, n_stages, float(frame.n_micro), system.chunks)[0, ::-1]


def most_layers(frame: Frame, block: Block, zero_stage: int, held: Floats, *, first: bool) -> Ints:
    """Most layers that memory allows a stage of the block (C, S), with `held` micro-batches in flight on each slot.

    What is left falls with every layer, so those that fit are counted.
    """
    pool, work = frame.system.fleet.pools[block.pool], frame.system.fleet.pools[0].work
    layers = np.arange(1, work.layers + 1, dtype=np.float64)[:, None]
    extra = np.array([extra_parameters(frame, first=first, last=s == 0) for s in range(len(held))])
    per_parameter = state_byte(1.0, 1.0, float(frame.replicas), zero_stage)
    states = (layers * work.layer_parameters + extra) / block.g * per_parameter
    found = []
    for system in frame.systems:
        mine = system.fleet.pools[block.pool]
        left = _left_byte(mine, frame.micro_batch, block.g, layers, states, held)
        found.append((left >= 0).sum(axis=0) if pool.computes else np.zeros(len(held), dtype=np.int64))
    return np.array(found, dtype=np.int64)


def _left_byte(pool: TrainingPool, m: int, g: int, layers: Floats, states: Floats, held: Floats) -> Floats:
    """As `pp_memory.chain_margin_byte` has it, of stages of some layers."""
    if not pool.device.streams:
        activations = float(pool.layer_activations_byte(np.array(m), np.array(g)))
        return np.asarray(pool.usable - states - layers * activations * held)
    inputs = layers * boundary_byte(pool.work.sequence_tokens, m, pool.work.hidden, 1.0) / g
    return np.minimum(pool.usable - pool.one_layer_byte, pool.device.streaming_byte - states - inputs * held)


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What the wafers do to a step of a chain of K stages; each (E,) for the chain lengths asked for."""

    forward_s: Floats
    """Of K k layers, a call of q micro-batches."""
    backward_s: Floats
    calls: float
    """For one micro-batch of every pipeline that a wafer serves."""
    one_more: bool
    """They are one more stage; else decoupled."""
    gradient_s: Floats
    left_byte: Floats


def served_by(frame: Frame, n_stages: Ints) -> Served:
    """The wafers of a frame beside chains of these numbers of stages; recompute mode: the first."""
    if frame.server is None:
        raise ValueError("no wafers serve here")
    p, row = frame.server
    system, fleet = frame.system, frame.system.fleet
    n, g, zero = (int(getattr(fleet.settings[p], key)[row]) for key in ("n", "g", "zero_stage"))
    pool, work, wafers = fleet.pools[p], fleet.pools[p].work, n // g
    t = layer_time(pool, np.array([float(frame.micro_batch * system.collect)]), np.array([g]))
    layers = np.asarray(n_stages * float(system.offload_layers), dtype=np.float64)
    calls = frame.replicas / wafers / system.collect
    one = np.ones(len(layers), dtype=np.int64)
    group = TrainingSettings(n=n * one, g=g * one, stages=one, micro_batch=one, zero_stage=zero * one)
    gradient = pool.gradient_allreduce_s(layers * work.layer_parameters, group)
    held = np.minimum(frame.n_micro, 2.0 * n_stages) if system.schedule != "gpipe" else float(frame.n_micro)
    inputs = boundary_byte(
        work.sequence_tokens, frame.micro_batch * frame.replicas / wafers * held, work.hidden, layers
    )
    states = state_byte(layers * work.layer_parameters, float(g), float(wafers), zero)
    left = np.asarray(np.minimum(pool.usable - pool.one_layer_byte, pool.device.streaming_byte - states - inputs / g))
    return Served(
        forward_s=layers * t.forward_s,
        backward_s=layers * t.backward_s,
        calls=calls,
        one_more=calls == 1.0 and system.collect == 1,
        gradient_s=gradient,
        left_byte=left if pool.computes else np.full_like(left, -np.inf),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedPipeline:
    """One placement inside a frame, the first stage of the pipeline first."""

    frame: Frame
    chain: Sequence[tuple[Block, int]]
    """Blocks and their ZeRO stages."""
    layers: Sequence[int]
    """Of every stage, those handed to wafers included."""
    modes: Sequence[Recompute]
    """Of every stage."""
    link: int
