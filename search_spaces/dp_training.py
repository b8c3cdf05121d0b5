"""The designs of a data-parallel training study.

A regime of the grid is a data type, a recompute mode and a global batch; a pool's setting is its devices, instance
size, micro-batch and ZeRO stage. The division of the batch is no axis: the model finds the best one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from dse.model.dp_pool import dp_table
from dse.model.dp_training import DpSystem, Evaluation, evaluate, screen
from dse.model.dp_training_explain import bottlenecks, explanation, infeasible_reasons
from dse.model.fleet import total_of
from dse.model.screening import Explanation, Screen
from dse.model.training_pool import TrainingSettings

from .training_design import TrainingDesign
from .training_options import Regime, base_regimes, bills_of, pools_of
from .training_problem import TrainingProblem
from .training_space import TrainingSpace, fleet_of

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Values = NDArray[np.generic]


class DpSpace(TrainingSpace[TrainingProblem, DpSystem, Evaluation]):
    """All designs of one dp_training study."""

    paradigm = "dp_training"
    pipeline = False

    def all_regimes(self) -> tuple[Regime, ...]:
        """Data types, recompute modes, global batches."""
        return tuple(base_regimes(self.problem))

    def build(self, problem: TrainingProblem, regime: Regime, settings: Sequence[TrainingSettings]) -> DpSystem:
        """Every pool's time for a share of the batch, over its settings."""

        pools = pools_of(problem, regime)
        tables = tuple(dp_table(pool, s) for pool, s in zip(pools, settings, strict=True))
        alone = [(t.share.time_s(float(regime.global_batch)), np.ones(len(t.settings))) for t in tables]
        fleet = fleet_of(problem, regime, pools, settings, bills_of(problem, settings), alone)
        return DpSystem(fleet=fleet, tables=tables, overlap_frac=problem.overlap_frac)

    def legal_rows(self, system: DpSystem, rows: Ints, link: Ints) -> Bools:
        """At least one pool is bought; where nothing can cross between pools the first link stands for all."""
        n_pools = total_of([t.active[r].astype(np.float64) for t, r in zip(system.tables, rows, strict=True)])
        return np.asarray((n_pools > 1) | ((n_pools == 1) & (link == 0)), dtype=np.bool_)

    def screened(self, system: DpSystem, rows: Ints, link: Ints) -> Screen:
        """Exact throughput, cost and power."""
        return screen(system, rows, link)

    def evaluated(self, system: DpSystem, rows: Ints, link: Ints) -> Evaluation:
        """Every number of N designs."""
        return evaluate(system, rows, link)

    def words(self, system: DpSystem, rows: Ints, found: Evaluation) -> dict[str, NDArray[np.object_]]:
        """What binds, and why a design cannot run."""
        return {
            "bottleneck": bottlenecks(system, found),
            "infeasible_reason": infeasible_reasons(system, rows, found),
        }

    def explained(self, system: DpSystem, rows: Ints, link: Ints, found: Evaluation) -> Explanation:
        """What explains one design."""
        return explanation(system, rows, link, found)

    def score_design(self, settings: Mapping[str, str]) -> tuple[dict[str, Values], Explanation]:
        """One design given as key -> text, on or off the axes, and what explains it."""
        design = TrainingDesign(self.problem, settings)
        problem, chosen = design.finish([design.pool(o, 1) for o in self.problem.pools])
        system = self.build(problem, design.regime, chosen)
        return self.scored_alone(problem, design.regime, system, design.link)
