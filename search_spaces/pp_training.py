"""The designs of a pipeline training study.

A regime of the grid is a data type, a recompute mode, a global batch, a schedule, and what is handed to wafers: k
layers of each stage, q micro-batches at once. A pool's setting is its devices, instance size, stages, micro-batch and
ZeRO stage. Layers are no axis: they are laid out so that the slowest stage is fastest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dse.model.dp_pool import dp_table
from dse.model.pp_blocks import Block, Frame, PlacedPipeline
from dse.model.pp_chain import PpSystem, configs_of, placement
from dse.model.pp_step import steps_of
from dse.model.pp_training import Evaluation, evaluate, screen
from dse.model.pp_training_explain import (
    WHOLE_MODEL,
    bottlenecks,
    explanation,
    infeasible_reasons,
    layer_texts,
    order_texts,
    recompute_text,
)
from dse.model.screening import Explanation, Screen
from dse.model.training_pool import TrainingSettings
from dse.model.training_run import TrainingFleet

from . import pp_training_placement as placements
from .pp_training_design import PpDesign, placed_settings
from .pp_training_study import PpProblem, Schedule
from .space import Step
from .training_options import Regime, base_regimes, bills_of, pools_of
from .training_space import TrainingSpace, fleet_of, more_devices

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Values = NDArray[np.generic]


class PpSpace(TrainingSpace[PpProblem, PpSystem, Evaluation]):
    """All designs of one pp_training study."""

    paradigm = "pp_training"
    pipeline = True

    def all_regimes(self) -> tuple[Regime, ...]:
        """Base regimes times schedules times what is handed to wafers; interleaved pipelines hand over nothing."""
        problem = self.problem
        handed = [(0, 1)] if 0 in problem.offload_layers else []
        handed += [(k, q) for k in problem.offload_layers if k > 0 for q in problem.collect]
        return tuple(
            replace(base, schedule=schedule, chunks=chunks, offload_layers=k, collect=q)
            for base in base_regimes(problem)
            for schedule, chunks in self._schedules()
            for k, q in handed
            if k == 0 or schedule != "interleaved"
        )

    def single_regimes(self, global_batch: int) -> list[Regime]:
        """Regimes in which a pool alone is tried: every schedule that the study lists, without offload."""
        bases = dict.fromkeys(replace(base, global_batch=global_batch) for base in base_regimes(self.problem))
        return [replace(base, schedule=s, chunks=v) for base in bases for s, v in self._schedules()]

    def _schedules(self) -> list[tuple[Schedule, int]]:
        """Schedules of the study; the interleaved one with each number of pieces."""
        pieces = self.problem.chunks
        return [(s, v) for s in self.problem.schedules for v in (pieces if s == "interleaved" else (1,))]

    def build(self, problem: PpProblem, regime: Regime, settings: Sequence[TrainingSettings]) -> PpSystem:
        """One regime over these settings."""

        pools, bills, configs = pools_of(problem, regime), bills_of(problem, settings), configs_of(settings)
        by_itself = replace(regime, offload_layers=0, collect=1)
        alone = [
            _alone(_system(problem, fleet_of(problem, regime, [pool], [s], [bill]), by_itself, (config,)))
            for pool, s, bill, config in zip(pools, settings, bills, configs, strict=True)
        ]
        return _system(problem, fleet_of(problem, regime, pools, settings, bills, alone), regime, configs)

    def legal_rows(self, system: PpSystem, rows: Ints, link: Ints) -> Bools:
        """Which designs are on offer.

        Without offload every pool that is bought holds stages of as many pipelines, with one micro-batch. With it
        exactly one pool of streaming devices serves the stages of the others. Where nothing crosses between pools the
        first link stands for all; wafers that each run the whole model have no schedule, and count under the first.
        """
        place = placement(system, rows)
        on_chain, serving = place.chain.sum(axis=1), place.server.sum(axis=1)
        legal = place.same_replicas & (on_chain >= 1)
        if system.offload_layers:
            one_stage = np.stack([s.stages[r] == 1 for s, r in zip(system.fleet.settings, rows, strict=True)], axis=1)
            return np.asarray(legal & (serving == 1) & (one_stage | ~place.server).all(axis=1))
        streams = np.array([p.device.streams for p in system.fleet.pools])
        takes_that_of_others = place.chain & streams & (place.chain & ~streams).any(axis=1)[:, None]
        first_micro = np.stack(
            [s.micro_batch[r] == o.micro_batch[0] for s, r, o in
             zip(system.fleet.settings, rows, self.problem.pools, strict=True)], axis=1
        )  # fmt: skip
        legal &= (first_micro | ~takes_that_of_others).all(axis=1)
        whole = (on_chain == 1) & (place.n_stages == 1) & (place.chain & streams).any(axis=1)
        first = (system.schedule, system.chunks) == (self.regimes[0].schedule, self.regimes[0].chunks)
        return np.asarray(legal & (~whole | first) & ((on_chain > 1) | (link == 0)))

    def screened(self, system: PpSystem, rows: Ints, link: Ints) -> Screen:
        """Throughput, cost and power; under 1F1B bounds on the good side."""
        return screen(system, rows, link)

    def evaluated(self, system: PpSystem, rows: Ints, link: Ints) -> Evaluation:
        """Every number of N designs."""
        return evaluate(system, rows, link)

    def words(self, system: PpSystem, rows: Ints, found: Evaluation) -> dict[str, NDArray[np.object_]]:
        """The layout of the stages, what binds, and why a design cannot run."""
        n = rows.shape[1]
        return {
            "layers": layer_texts(system, found),
            "layout": np.full(n, "placed" if system.layers else "balanced", dtype=object),
            "pool_order": order_texts(system, found),
            "stage_recompute": np.full(n, recompute_text(system), dtype=object),
            "bottleneck": bottlenecks(system, rows, found),
            "infeasible_reason": infeasible_reasons(system, rows, found),
        }

    def purchases(self, row: Mapping[str, Any]) -> list[Step]:
        """More pipelines, on all pools of the chain at once; more wafers where they serve the chain.

        The next number that divides the batch into whole micro-batches, and pipelines among wafers.
        """
        bought = [o for o in self.problem.pools if int(row[f"n_{o.name}"]) > 0]
        k, q, batch = (int(row[key]) for key in ("offload_layers", "collect", "global_batch"))
        chain = [o for o in bought if not (k and o.device.streams)]
        if str(row["layers"]) == WHOLE_MODEL:
            return super().purchases(row)
        now = int(row[f"replicas_{chain[0].name}"])
        micro = int(row[f"micro_batch_{next((o for o in chain if not o.device.streams), chain[0]).name}"])
        servers = [(o, int(row[f"n_{o.name}"]), int(row[f"instance_size_{o.name}"])) for o in bought if o not in chain]
        wafers = servers[0][1] // servers[0][2] if servers else 1
        steps: list[Step] = []
        then = next((r for r in range(now + 1, batch + 1) if batch % (r * micro) == 0 and r % (wafers * q) == 0), None)
        if then:
            counts = {o: int(row[f"n_{o.name}"]) for o in chain}
            grown = {o: (n, n // now * then) for o, n in counts.items()}
            steps += more_devices(grown, f"for {then} pipelines, the next number that divides the batch")
        for offer, n, g in servers:
            more = next((w for w in range(wafers + 1, now + 1) if now % w == 0 and now // w % q == 0), None)
            if more:
                steps += more_devices({offer: (n, more * g)})
        return steps

    def explained(self, system: PpSystem, rows: Ints, link: Ints, found: Evaluation) -> Explanation:
        """What explains one design."""
        return explanation(system, rows, link, found)

    def score_design(self, settings: Mapping[str, str]) -> tuple[dict[str, Values], Explanation]:
        """One design given as key -> text, on or off the axes, and what explains it."""
        design = PpDesign(self.problem, settings)
        problem, chosen = design.finish(design.rows)
        system = replace(
            self.build(problem, design.regime, chosen),
            layers=design.layers,
            order=design.order,
            stage_recompute=design.stage_recompute,
        )
        return self.scored_alone(problem, design.regime, system, design.link)

    def frames(self) -> Iterator[tuple[Frame, Regime]]:
        """What each exact program of placements fixes, with a regime of it."""
        return placements.frames(self)

    def blocks(self, frame: Frame) -> list[Block]:
        """Every way to use a pool for stages in a frame."""
        return placements.blocks(frame)

    def sets_micro_batch(self, frame: Frame, pool: int) -> bool:
        """Whether a chain with this pool may have the frame's micro-batch."""
        return placements.sets_micro_batch(frame, pool)

    def whole_models(self) -> Iterator[Ints]:
        """Designs of one pool whose devices each run the whole model."""
        return placements.whole_models(self)

    def settings_of_placement(self, regime: Regime, placed: PlacedPipeline) -> dict[str, str]:
        """The `--set` keys of a placement."""
        return placements.settings_of_placement(self, regime, placed)

    def settings_of(self, row: Mapping[str, Any]) -> dict[str, str]:
        """The `--set` keys that give a frame's row again; with the layout where it is not the balanced one."""
        return super().settings_of(row) | placed_settings(row, self.pool_names)


def _system(problem: PpProblem, fleet: TrainingFleet, regime: Regime, configs: tuple[Ints, ...]) -> PpSystem:
    whole_models = (
        dp_table(pool, s) if pool.device.streams else None for pool, s in zip(fleet.pools, fleet.settings, strict=True)
    )
    return PpSystem(
        fleet=fleet,
        schedule=regime.schedule,
        chunks=regime.chunks,
        offload_layers=regime.offload_layers,
        collect=regime.collect,
        whole_models=tuple(whole_models),
        configs=configs,
        overlap_frac=problem.overlap_frac,
    )


def _alone(system: PpSystem) -> tuple[Floats, Floats]:
    """Step time of every setting of the one pool of a system, infinite where it cannot run; its busy share."""
    rows = np.arange(len(system.fleet.settings[0]), dtype=np.int64)[None, :]
    found = steps_of(system, placement(system, rows), rows, np.zeros(rows.shape[1], dtype=np.int64))
    step = np.where(found.possible, found.step_s, np.inf)
    busy = np.divide(found.total_s[:, 0], step, out=np.zeros_like(step), where=np.isfinite(step))
    return step, np.minimum(busy, 1.0)
