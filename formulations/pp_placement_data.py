"""Coefficients of the placement programs, taken from the model's blocks (dse.model.pp_blocks).

A block is one way to buy and use a pool; its per-layer times, bytes and gradients come from the functions that score
designs. What memory allows a stage becomes the most layers it may have at each slot, so memory is exact.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from dse.model.pp_blocks import Block, Frame, PlacedPipeline, Served

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

STEP, COST, POWER = "step", "cost", "power"
PER_STEP = ("throughput_tok_s", "throughput_samples_s")
"""Columns that are so much over the step time."""
AXIS = {**dict.fromkeys((*PER_STEP, "step_time_s"), STEP), "cost_usd_per_h": COST, "power_w": POWER}


class Arc(NamedTuple):
    """Block o on the slots from `low` on; `first` where it holds the first stage of the pipeline."""

    block: int
    low: int
    first: bool


class Choice(NamedTuple):
    """Slot s on block o under recompute mode c; `first` where it is the first stage."""

    slot: int
    block: int
    mode: int
    first: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementData:
    """One program in numbers."""

    frame: Frame
    regime: Any
    blocks: Sequence[Block]
    required: frozenset[int]
    """Pools that the study has in every design."""
    setters: frozenset[int]
    """Pools that make the micro-batch possible: one of them is used."""
    arcs: Sequence[Arc]
    most: Mapping[Choice, int]
    """Layers that memory allows; choices that another beats in every way are left out."""
    lengths: Sequence[int]
    """Numbers of stages that a pipeline may have."""
    served: Served | None
    bounds: Mapping[str, tuple[float, float]]
    """STEP, COST, POWER -> (low, high)."""
    objectives: Sequence[str]
    batch_units: Sequence[float]
    """What a step makes of each objective's column; 0 where the column is the program's own quantity."""
    scale: Mapping[str, float]
    """Largest step, cost and power that the choices reach; `pace`, the longest stage; `gradient`, their all-reduce."""

    @property
    def limits(self) -> dict[str, tuple[float, float]]:
        """The user's bounds, scaled."""
        return {i: (low / self.scale[i], high / self.scale[i]) for i, (low, high) in self.bounds.items()}

    @property
    def may_idle(self) -> bool:
        """Whether the step is no objective."""
        return STEP not in self.objectives

    def scaled(self, point: Floats) -> Floats:
        """The program's objectives for a point of minimised columns: a throughput of x takes a step of its batch/x."""
        x, unit = np.asarray(point, dtype=np.float64), np.asarray(self.batch_units)
        step = np.divide(unit, -x, out=np.full(len(x), np.inf), where=x < 0)
        return np.where(unit > 0, step, x) / np.array([self.scale[o] for o in self.objectives])

    @property
    def layers(self) -> int:
        """Of the model."""
        return self.frame.system.fleet.pools[0].work.layers

    @property
    def handed(self) -> int:
        """k."""
        return self.frame.system.offload_layers

    @property
    def n_slots(self) -> int:
        """Of the longest pipeline, and of wafers that are one more stage before its first."""
        return max(self.lengths) + (self.served is not None and self.served.one_more)

    @property
    def by_paths(self) -> bool:
        """Whether the step is a longest path, which `refine` completes."""
        return self.frame.system.schedule == "1f1b" and (self.served is None or self.served.one_more)


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeData:
    """Wafers that each run the whole model: no placement, one design to pick."""

    index: Ints
    step_s: Floats
    usd_per_h: Floats
    power_w: Floats
    bounds: Mapping[str, tuple[float, float]]
    objectives: Sequence[str]
    batch_units: Sequence[float]
    scale: Mapping[str, float]

    limits = PlacementData.limits
    may_idle = PlacementData.may_idle
    scaled = PlacementData.scaled


class Placements(Protocol):
    """What the programs need of a search space."""

    @property
    def pool_names(self) -> tuple[str, ...]:
        """Names of the pools."""
        ...

    def frames(self) -> Iterator[tuple[Frame, Any]]:
        """What each program fixes, with a regime of it."""
        ...

    def blocks(self, frame: Frame) -> list[Block]:
        """Every way to use a pool for stages."""
        ...

    def sets_micro_batch(self, frame: Frame, pool: int) -> bool:
        """Whether a chain with this pool may have the frame's micro-batch."""
        ...

    def whole_models(self) -> Iterator[Ints]:
        """Designs of one pool whose devices each run the whole model."""
        ...

    def numbers(self, index: Ints) -> dict[str, Floats]:
        """Numeric columns of designs of the grid."""
        ...

    def settings_of_placement(self, regime: Any, placed: PlacedPipeline) -> dict[str, str]:
        """The `--set` keys of a placement."""
        ...
