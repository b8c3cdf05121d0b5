"""One training design given as `--set key=value`, on or off the study's axes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Generic, TypeVar

from dse.errors import InputError
from dse.model.training_memory import RECOMPUTE
from dse.model.training_pool import TrainingSettings
from dse.units import DTYPE_BYTE

from .design_keys import DesignKeys
from .training_options import Regime, settings_of_rows
from .training_problem import TrainingOffer, TrainingProblem

Problem = TypeVar("Problem", bound=TrainingProblem)

POOL_KEYS = ("n", "instance_size", "micro_batch", "zero_stage", "replicas")
FLEET_KEYS = ("link_gb_s", "link", "global_batch", "recompute", "compute_dtype")


class TrainingDesign(Generic[Problem]):
    """Reads the keys that every training design has; a paradigm reads its own before `finish`."""

    def __init__(
        self,
        problem: Problem,
        given: Mapping[str, str],
        pool_keys: tuple[str, ...] = (),
        fleet_keys: tuple[str, ...] = (),
    ) -> None:
        known = [f"{k}_{o.name}" for o in problem.pools for k in (*POOL_KEYS, *pool_keys)]
        self.keys = DesignKeys(given, [*known, *FLEET_KEYS, *fleet_keys])
        self.regime = Regime(
            compute_dtype=self.keys.choice("compute_dtype", problem.compute_dtypes[0], DTYPE_BYTE),
            recompute=self.keys.choice("recompute", problem.recompute[0], RECOMPUTE),
            global_batch=self.keys.whole("global_batch", problem.global_batch[0], 1),
        )
        self._problem = problem
        self.links, self.link_names, self.link = self.keys.link(problem.links, problem.link_names)

    def pool(self, offer: TrainingOffer, stages: int) -> tuple[int, int, int, int, int]:
        """One pool's setting; n = replicas x instance size x stages, whichever of them is given."""
        keys, name = self.keys, offer.name
        first = offer.counts[0]
        fitting = [g for g in offer.instance_size if first % (g * stages) == 0]
        g = keys.whole(f"instance_size_{name}", fitting[0] if fitting else offer.instance_size[0], 1)
        unit = g * stages
        replicas = keys.whole(f"replicas_{name}", 0, 1) if f"replicas_{name}" in keys.given else None
        n = keys.whole(f"n_{name}", first if replicas is None else replicas * unit, 0)
        parts = f"instance_size_{name} = {g}" if stages == 1 else f"instance size {g} x {stages} stages"
        if n % unit:
            keys.faults.append(f"--set n_{name}: got {n}, must be a multiple of {parts}")
        elif replicas is not None and n != replicas * unit:
            keys.faults.append(f"--set n_{name}: got {n}, but replicas_{name} = {replicas} with {parts} makes "
                               f"{replicas * unit}; give one of them")  # fmt: skip
        micro = keys.whole(f"micro_batch_{name}", offer.micro_batch[0], 1)
        zero = keys.whole(f"zero_stage_{name}", offer.zero_stage[0], 0, 3)
        return (n, g, stages, micro, zero)

    def finish(self, rows: list[tuple[int, int, int, int, int]]) -> tuple[Problem, list[TrainingSettings]]:
        """The problem with this design's links and regime, and its settings; InputError with every fault."""
        for offer, row in zip(self._problem.pools, rows, strict=True):
            device, dtype = offer.device, self.regime.compute_dtype
            self.keys.computes_in(device.name, row[0], device.peak(dtype), dtype, device.peak_flop_s)
        self.keys.something_bought(row[0] for row in rows)
        if self.keys.faults:
            raise InputError(self.keys.faults)
        problem = replace(self._problem, links=self.links, link_names=self.link_names)
        return problem, [settings_of_rows([row]) for row in rows]
