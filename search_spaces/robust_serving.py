"""The designs of a study of several scenarios: axes once; the grid, the legality rule and the scores from them.

A regime of the grid is a way to adapt; see robust_serving_options for a pool's settings. Scenarios are no axis: every
design is scored in all of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dse.model.cost import usd_per_mtok
from dse.model.robust_explain import SATURATED, bottlenecks, explanation, infeasible_reasons
from dse.model.robust_serving import ADAPTIVE, FIXED, STEALING, RobustEvaluation, RobustSystem, evaluate
from dse.model.screening import Explanation, Screen
from dse.model.serving_pool import ROLE_NAMES, Settings

from .fleet_study import MAX_DEVICES
from .grid import SCREEN_ROWS, Grid, Unit
from .grid_space import GridSpace
from .robust_serving_design import RobustDesign
from .robust_serving_options import build_system, configs_of, is_legal, physics, pool_options
from .robust_serving_problem import RobustProblem
from .robust_serving_study import Adaptation
from .space import Step, Values, Yardstick, largest_ratio, purchase_step

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]

MOST_PROGRAMS = 12_000
"""Designs times scenarios that each take a small program: some ten seconds."""
PROGRAMS_KEPT = 240
"""The same for the designs that are kept beside the frontier, which are scored again for their intervals."""
FEW_ROWS = 64
"""Designs in a block where each takes a program: a stop is heard within a second."""
SCREENED = (
    "requests_s", "throughput_tok_s", "throughput_worst_tok_s", "headroom", "input_tok_s", "cost_usd_per_h", "power_w",
)  # fmt: skip
"""Columns of a screen."""


class RobustSpace(GridSpace):
    """All designs of one study of several scenarios."""

    def __init__(self, problem: RobustProblem) -> None:
        self.problem = problem
        self.adaptations = problem.adaptations
        self.options = {a: tuple(pool_options(o, a) for o in problem.pools) for a in self.adaptations}
        block = FEW_ROWS if any(self._takes_programs(a) for a in self.adaptations) else SCREEN_ROWS
        sizes = [[len(problem.link_names), *map(len, self.options[a])] for a in self.adaptations]
        self.grid = Grid(sizes, block)
        self._systems: dict[Adaptation, RobustSystem] = {}

    # -- the grid ---------------------------------------------------------------------------------

    def _takes_programs(self, adaptation: Adaptation) -> bool:
        """Whether each design takes a program in each scenario: two pools that steal have a closed form."""
        return adaptation == ADAPTIVE or (adaptation == STEALING and len(self.problem.pools) > 2)

    @cached_property
    def n_programs(self) -> int:
        """Small programs that scoring the whole grid takes."""
        sizes = [
            math.prod(s) for s, a in zip(self.grid.sizes, self.adaptations, strict=True) if self._takes_programs(a)
        ]
        return sum(sizes) * len(self.problem.scenarios)

    @property
    def enumeration_refusal(self) -> str:
        """Why enumeration cannot answer this study exactly; empty where it can."""
        if self.n_programs <= MOST_PROGRAMS:
            return ""
        return (
            f"{self.n_programs:,} designs and scenarios each take a program, at most {MOST_PROGRAMS:,} are solved; "
            'use method = "milp", or adaptation = ["fixed_split"]'
        )

    @property
    def most_kept(self) -> int:
        """Designs that are kept and scored beside the frontier."""
        return max(8, PROGRAMS_KEPT // len(self.problem.scenarios)) if self.n_programs else super().most_kept

    @property
    def demand(self) -> tuple[str, float] | None:
        """The result column that the demands bound from below, and by how much."""
        asked = self.problem.scenarios.demand_requests_s
        return None if asked is None else ("headroom", self.problem.headroom)

    @property
    def tie_breakers(self) -> tuple[str, ...]:
        """Columns of which less is preferred between designs of equal objectives."""
        return ("link_gb_s",)

    @property
    def n_regimes(self) -> int:
        """Ways to adapt."""
        return len(self.adaptations)

    def options_of(self, regime: int) -> tuple[Settings, ...]:
        """Settings of each pool under one way to adapt."""
        return self.options[self.adaptations[regime]]

    @cached_property
    def _pools(self) -> tuple[Any, Any]:
        """What all ways to adapt share: physics and configurations of each pool."""
        pools = tuple(physics(self.problem, o) for o in self.problem.pools)
        offers = zip(self.problem.pools, pools, strict=True)
        return pools, tuple(configs_of(o, p, self.problem.scenarios) for o, p in offers)

    def system(self, regime: int) -> RobustSystem:
        """Tables of one way to adapt over all options, built once."""
        adaptation = self.adaptations[regime]
        if adaptation not in self._systems:
            built = build_system(self.problem, adaptation, *self._pools, self.options[adaptation])
            self._systems[adaptation] = built
        return self._systems[adaptation]

    def varied(self, problem: RobustProblem) -> RobustSpace:
        """The space of a problem that differs in the numbers of some devices, of the links or of the site."""
        return RobustSpace(problem)

    def legal(self, index: Ints) -> Bools:
        """Which grid indices are legal designs."""

        def of_regime(regime: int, rows: Ints, link: Ints) -> dict[str, Bools]:
            return {"legal": is_legal(self.system(regime), rows, link)}

        return self.grid.by_regime(index, of_regime)["legal"]

    def canonical(self, regime: int, link: int, rows: Ints) -> int:
        """Grid index of a plan; where nothing crosses between pools the first link stands for all."""
        at = [np.array([r], dtype=np.int64) for r in rows]
        index = self.grid.encode(regime, np.array([link], dtype=np.int64), at)
        if not self.legal(index)[0]:
            index = self.grid.encode(regime, np.zeros(1, dtype=np.int64), at)
        return int(index[0])

    def screen_unit(self, unit: Unit) -> tuple[Screen, Bools, int]:
        """A block's screen, which of it is legal, and its first grid index."""
        rows = self.grid.rows_of(unit)
        shape = np.broadcast_shapes(*(r.shape for r in rows))
        first = self.grid.first_of(unit)
        screen, legal = self.screen_designs(np.arange(first, first + math.prod(shape), dtype=np.int64))
        columns = {name: values.reshape(shape) for name, values in screen.columns.items()}
        return Screen(columns=columns, feasible=screen.feasible.reshape(shape), exact=True), legal.reshape(shape), first

    def screen_designs(self, index: Ints) -> tuple[Screen, Bools]:
        """The full evaluation of the legal ones of these designs, and which those are."""

        def of_regime(regime: int, rows: Ints, link: Ints) -> dict[str, Values]:
            system = self.system(regime)
            legal = is_legal(system, rows, link)
            at = np.flatnonzero(legal)
            known = evaluate(system, rows[:, at], link[at]).columns
            columns = {name: _spread(known[name], at, len(link)) for name in SCREENED if name in known}
            return {**columns, "legal": legal}

        columns = self.grid.by_regime(index, of_regime)
        legal = np.asarray(columns.pop("legal"), dtype=np.bool_)
        numbers = {name: np.asarray(values, dtype=np.float64) for name, values in columns.items()}
        numbers["usd_per_mtok"] = usd_per_mtok(numbers["cost_usd_per_h"], numbers["throughput_tok_s"])
        return Screen(columns=numbers, feasible=numbers["throughput_tok_s"] > 0, exact=True), legal

    # -- scoring ----------------------------------------------------------------------------------

    def score(self, index: Ints) -> dict[str, Values]:
        """Every column of the designs at these grid indices, in order."""

        def of_regime(regime: int, rows: Ints, link: Ints) -> dict[str, Values]:
            system = self.system(regime)
            return self._columns(self.problem, system, rows, link, evaluate(system, rows, link))

        ids = np.array([f"d{i}" for i in index], dtype=object)
        return {"design_id": ids, **self.grid.by_regime(index, of_regime)}

    def numbers(self, index: Ints) -> dict[str, Floats]:
        """Every numeric column of these designs, without the words; what a search needs."""

        def of_regime(regime: int, rows: Ints, link: Ints) -> dict[str, Floats]:
            system = self.system(regime)
            e = evaluate(system, rows, link)
            design = self._design_numbers(self.problem, system, rows, link, e)
            return e.columns | {name: np.asarray(values, dtype=np.float64) for name, values in design.items()}

        return self.grid.by_regime(index, of_regime)

    def _design_numbers(
        self, problem: RobustProblem, system: RobustSystem, rows: Ints, link: Ints, e: RobustEvaluation
    ) -> dict[str, Values]:
        """Numeric columns that name the design, and those that exist per pool."""
        columns: dict[str, Values] = {}
        for p, (name, table, r) in enumerate(zip(self.pool_names, system.tables, rows, strict=True)):
            s = table.settings.rows(r)
            columns |= {
                f"n_{name}": s.n,
                f"instance_size_{name}": s.g,
                f"prefill_batch_{name}": s.prefill_batch,
                f"max_decode_batch_{name}": s.max_decode_batch,
                **{f"{key}_{name}": values[:, p] for key, values in e.pool_columns.items()},
            }
        columns["link_gb_s"] = np.where(e.pairs > 0, problem.links.byte_s[link] / 1e9, 0.0)
        return columns

    def _columns(
        self, problem: RobustProblem, system: RobustSystem, rows: Ints, link: Ints, e: RobustEvaluation
    ) -> dict[str, Values]:
        columns = self._design_numbers(problem, system, rows, link, e)
        for name, table, r in zip(self.pool_names, system.tables, rows, strict=True):
            role = np.array(ROLE_NAMES, dtype=object)[table.settings.role[r]]
            columns[f"role_{name}"] = np.where(table.active[r], role, "none").astype(object)
        names, scenarios = np.array(problem.link_names, dtype=object), np.array(system.scenarios.names, dtype=object)
        words = {
            "paradigm": "robust_serving",
            "adaptation": system.adaptation,
            "weight_dtype": problem.precision.weight,
            "kv_dtype": problem.precision.kv,
            "compute_dtype": problem.precision.compute,
        }
        return {
            **{key: np.full(rows.shape[1], word, dtype=object) for key, word in words.items()},
            **columns,
            "link": np.where(e.pairs > 0, names[link], "none").astype(object),
            **e.columns,
            "binding_scenario": scenarios[e.binding],
            "bottleneck": bottlenecks(system, rows, e, self.pool_names),
            "infeasible_reason": infeasible_reasons(system, rows, e, self.pool_names),
        }

    # -- one design -------------------------------------------------------------------------------

    def score_design(self, settings: Mapping[str, str]) -> tuple[dict[str, Values], Explanation]:
        """Scores and explains one design given as key -> text; keys left out take the first value of their axis."""
        design = RobustDesign(self.problem, settings)
        problem = design.problem
        pools = [physics(problem, o) for o in problem.pools]
        configs = [configs_of(o, p, problem.scenarios) for o, p in zip(problem.pools, pools, strict=True)]
        system = build_system(problem, design.adaptation, pools, configs, design.settings)
        rows, link = np.zeros((len(problem.pools), 1), dtype=np.int64), np.zeros(1, dtype=np.int64)
        found = evaluate(system, rows, link)
        columns = self._columns(problem, system, rows, link, found)
        detail = explanation(system, rows, link, found, self.pool_names)
        return {"design_id": np.array(["set"], dtype=object), **columns}, detail

    def settings_of(self, row: Mapping[str, Any]) -> dict[str, str]:
        """The `--set` keys that give a frame's row again."""
        settings = {"adaptation": str(row["adaptation"])}
        for pool in self.pool_names:
            settings[f"n_{pool}"] = str(int(row[f"n_{pool}"]))
            if int(row[f"n_{pool}"]) == 0 or row["adaptation"] == ADAPTIVE:
                continue
            keys = ("instance_size", "prefill_batch", "max_decode_batch")
            settings |= {f"{key}_{pool}": str(int(row[f"{key}_{pool}"])) for key in keys}
            if row["adaptation"] == FIXED:
                settings[f"role_{pool}"] = str(row[f"role_{pool}"])
        return settings | ({} if str(row["link"]) == "none" else {"link": str(row["link"])})

    def next_steps(self, row: Mapping[str, Any]) -> list[Step]:
        """A purchase step of each pool that is bought, the next wider link, 1 GB/s more where the link binds."""
        steps = []
        for offer in self.problem.pools:
            n, g = int(row[f"n_{offer.name}"]), int(row[f"instance_size_{offer.name}"]) or min(offer.instance_size)
            if n == 0:
                continue
            more = next((c for c in offer.counts if c > n and c % g == 0), n + purchase_step(offer.counts, g))
            if more <= MAX_DEVICES:
                beyond = " (beyond the study's count)" if more > offer.counts[-1] else ""
                steps.append(Step(f"{more - n} more {offer.name}{beyond}", {f"n_{offer.name}": str(more)}))
        return steps + self.link_steps(row, worth_more=float(row["link_use_frac"]) >= SATURATED)

    # -- baselines --------------------------------------------------------------------------------

    def yardsticks(self, _columns: Mapping[str, Values]) -> dict[str, Yardstick]:
        """The best fleets of one pool by expected throughput, whatever the user's limits allow."""
        return self._yardsticks

    @cached_property
    def _yardsticks(self) -> dict[str, Yardstick]:
        per_usd = per_w = 0.0
        for regime in range(len(self.adaptations)):
            system = self.system(regime)
            for p, table in enumerate(system.tables):
                every = np.arange(len(table.settings))
                tok_s = system.expected_tok_s(system.alone_rate(p, every))
                per_usd = max(per_usd, largest_ratio(tok_s, table.bill.usd_per_h(every, 1.0)))
                per_w = max(per_w, largest_ratio(tok_s, table.bill.provisioned_w))
        return {
            "gain_equal_cost": Yardstick("cost_usd_per_h", per_usd),
            "gain_equal_power": Yardstick("power_w", per_w),
        }


def _spread(values: Floats, at: Ints, n: int) -> Floats:
    """Values of some of n designs among all of them; the others have 0."""
    result = np.zeros(n)
    result[at] = values
    return result
