"""The designs of a serving study: axes once; the grid, the legality rule and the suggestion from them.

A regime of the grid is a precision with a routing; see pd_serving_options for a pool's settings.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from dse.model.cost import usd_per_mtok
from dse.model.links import Wiring, assigned
from dse.model.pd_serving import SATURATED, Evaluation, evaluate
from dse.model.pd_serving_explain import bottlenecks, explanation, infeasible_reasons
from dse.model.screening import Explanation, Screen
from dse.model.serving_flow import Flow, flows
from dse.model.serving_pool import (
    ANY,
    BOTH,
    ROLE_NAMES,
    Settings,
)
from dse.model.serving_screen import screen
from dse.model.serving_system import System, narrowest_byte_s, pairs_bought
from dse.pareto import RunningFront

from . import pd_serving_pruning
from .fleet_study import MAX_DEVICES
from .grid import Grid, Unit
from .grid_space import GridSpace
from .pd_serving_design import ServingDesign
from .pd_serving_links import link_texts, settings_of_links, unnumbered, wiring_on_offer
from .pd_serving_options import Regime, build_system, is_legal, known_table, place_of, pool_options
from .pd_serving_problem import ServingProblem
from .pd_serving_study import Routing
from .space import Pruned, Step, Yardstick, largest_ratio, purchase_step

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Values = NDArray[np.generic]
Cell = TypeVar("Cell", bound=np.generic)
ColumnsOf = Callable[[Regime, System, Ints, Ints, Evaluation], dict[str, NDArray[Cell]]]


YARDSTICK_BASE = {
    "gain_equal_cost": "cost_usd_per_h",
    "gain_equal_power": "power_w",
    "gain_apart_equal_cost": "cost_usd_per_h",
    "gain_apart_equal_power": "power_w",
}
"""Gain -> what it is scaled by."""


SCREENED = ("requests_s", "throughput_tok_s", "input_tok_s", "cost_usd_per_h", "power_w")
"""Columns of a screen."""
FEW_LINKS = 16
TABLES_KEPT = 20_000
"""Options of all pools up to which a single design is read from the study's tables: these take a second at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaidOut:
    """One design: its system, its row of every pool's table (P, 1), its link (1,), and where requests go."""

    system: System
    rows: Ints
    link: Ints
    flow: Flow


class ServingSpace(GridSpace):
    """All designs of one serving study."""

    def __init__(self, problem: ServingProblem, like: ServingSpace | None = None) -> None:
        self.problem, self._like = problem, like
        self.regimes = tuple(
            Regime(p, r)
            for p in problem.precisions
            for r in problem.routings
            if any(o.device.peak(p.compute) for o in problem.pools)
        )
        self.options = {
            r: tuple(pool_options(o, stealing=r == "work_stealing") for o in problem.pools) for r in problem.routings
        }
        sizes = [[len(o) for o in self.options[r.routing]] for r in self.regimes]
        self.n_settings = sum(map(math.prod, sizes))
        self.wiring = problem.wiring or wiring_on_offer(
            len(problem.link_names), len(problem.pools), per_pair=problem.per_pair, n_settings=self.n_settings
        )
        self.grid = Grid([[len(self.wiring.option), *s] for s in sizes])
        self._systems: dict[int, System] = {}

    # -- the grid ---------------------------------------------------------------------------------

    @property
    def per_pair(self) -> bool:
        """Whether every pair of pools has its own link."""
        return self.problem.per_pair

    @property
    def numbering_refusal(self) -> str:
        """Why the grid lacks designs that the study allows; empty where it has them all."""
        if self.problem.per_pair and not self.wiring.per_pair:
            return unnumbered(len(self.problem.link_names), len(self.problem.pools), self.n_settings)
        return ""

    @property
    def enumeration_refusal(self) -> str:
        """Why enumeration cannot answer this study exactly; empty where it can."""
        if self.numbering_refusal:
            return self.numbering_refusal
        if "work_stealing" in self.problem.routings and len(self.problem.pools) > 2:
            return (
                f"work stealing among {len(self.problem.pools)} pools needs a linear program for every design; "
                'use method = "milp", or routing = ["split"]'
            )
        return ""

    @property
    def demand(self) -> tuple[str, float] | None:
        """The result column that a demand bounds from below, and by how much."""
        least = self.problem.demand_requests_s
        return None if least is None else ("requests_s", least)

    @property
    def tie_breakers(self) -> tuple[str, ...]:
        """Columns of which less is preferred between designs of equal objectives."""
        return ("link_gb_s",)

    @property
    def n_regimes(self) -> int:
        """Combinations of data types and routing."""
        return len(self.regimes)

    def options_of(self, regime: int) -> tuple[Settings, ...]:
        """Settings of each pool under one regime's routing."""
        return self.options[self.regimes[regime].routing]

    def system(self, regime: int) -> System:
        """Tables of one regime over all options, built once."""
        if regime not in self._systems:
            r, known = self.regimes[regime], self._like
            tables = [
                known_table(known.problem, self.problem, p, known.system(regime).tables[p]) if known else None
                for p in range(len(self.problem.pools))
            ]
            self._systems[regime] = build_system(self.problem, self.wiring, r, self.options[r.routing], tables)
        return self._systems[regime]

    def varied(self, problem: ServingProblem) -> ServingSpace:
        """The space with other pools, links or site; tables of pools that differ in price at most are shared."""
        return ServingSpace(problem, like=self)

    def listed(self, regime: int) -> list[Bools]:
        """Per pool, which options have a role that the study lists."""
        return self._listed[self.regimes[regime].routing]

    @cached_property
    def _listed(self) -> dict[Routing, list[Bools]]:
        codes = [[ROLE_NAMES.index(role) for role in o.roles] + [ANY] for o in self.problem.pools]
        return {
            routing: [np.isin(o.role, c) for o, c in zip(options, codes, strict=True)]
            for routing, options in self.options.items()
        }

    def first_routing(self, regime: int) -> bool:
        """Whether a pool alone is counted under this regime's routing."""
        return self.regimes[regime].routing == self.problem.routings[0]

    def screen_unit(self, unit: Unit) -> tuple[Screen, Bools, int]:
        """A block's screen, which of it is legal, and the grid index of its first design."""
        system, rows = self.system(unit.regime), self.grid.rows_of(unit)
        legal = is_legal(system, rows, unit.link, self.listed(unit.regime), self.first_routing(unit.regime))
        return screen(system, rows, unit.link), legal, self.grid.first_of(unit)

    def pruning_refusal(self, objectives: Sequence[str], bounds: Mapping[str, tuple[float, float]]) -> str:
        """Why enumeration has to look at every design of a study; empty where it can drop some unseen."""
        return pd_serving_pruning.refusal(self, objectives, bounds)

    def pruned(
        self, objectives: Sequence[str], bounds: Mapping[str, tuple[float, float]], front: RunningFront
    ) -> Iterator[Pruned]:
        """Lots of designs, of which some are on the frontier for each of its points; `front` grows in between."""
        return pd_serving_pruning.pruned(self, objectives, bounds, front)

    def screen_designs(self, index: Ints) -> tuple[Screen, Bools]:
        """The screen of these designs, and which are legal; under work stealing their full evaluation."""

        def of_regime(regime: int, rows: Ints, link: Ints) -> dict[str, Values]:
            system, at = self.system(regime), list(rows)
            legal = is_legal(system, at, link, self.listed(regime), self.first_routing(regime))
            if not system.stealing:
                return {**self._screened(system, rows, link), "legal": legal}
            found = np.flatnonzero(legal)
            known = evaluate(system, rows[:, found], link[found]).columns
            columns = {name: _spread(known[name], found, len(link)) for name in SCREENED}
            return {**columns, "feasible": columns["requests_s"] > 0, "legal": legal}

        columns = self.grid.by_regime(index, of_regime)
        numbers = {name: np.asarray(columns[name], dtype=np.float64) for name in SCREENED}
        numbers["usd_per_mtok"] = usd_per_mtok(numbers["cost_usd_per_h"], numbers["throughput_tok_s"])
        possible = np.asarray(columns["feasible"], dtype=np.bool_)
        return Screen(columns=numbers, feasible=possible, exact=True), np.asarray(columns["legal"], dtype=np.bool_)

    @staticmethod
    def _screened(system: System, rows: Ints, link: Ints) -> dict[str, Values]:
        """The screen of N designs; link by link where those are few, which is three times faster."""
        links = np.unique(link)
        if not 0 < len(links) <= FEW_LINKS:
            part = screen(system, list(rows), link)
            return {**part.columns, "feasible": part.feasible}
        columns: dict[str, Values] = {}
        for one in links:
            at = np.flatnonzero(link == one)
            part = screen(system, list(rows[:, at]), int(one))
            for name, values in {**part.columns, "feasible": part.feasible}.items():
                columns.setdefault(name, np.empty(len(link), dtype=values.dtype))[at] = values
        return columns

    def with_legal_links(self, index: Ints) -> Ints:
        """These designs; pairs that exchange nothing take the first link, where every pair has its own."""
        if not self.wiring.per_pair:
            return super().with_legal_links(index)
        regime, link, rows = self.grid.decode(index)
        result = index.copy()
        for r in np.unique(regime):
            at = np.flatnonzero(regime == r)
            way = np.zeros(len(at), dtype=np.int64)
            for (p, q), used in pairs_bought(self.system(int(r)), list(rows[:, at])).items():
                way = way * len(self.link_names) + np.where(used, self.wiring.option[link[at], p, q], 0)
            result[at] = self.grid.encode(int(r), way, list(rows[:, at]))
        return result

    def linked(self, link: int) -> Ints:
        """Link of every pool with each other (P, P) in one of the ways to link them."""
        return self.wiring.option[link]

    def canonical(self, regime: int, option: Ints, rows: Sequence[int]) -> int | None:
        """Grid index of a plan that links pools by `option` (P, P); None where the grid lacks those links.

        A pair that exchanges nothing counts with the first link.
        """
        at = [np.array([r], dtype=np.int64) for r in rows]
        bought = {pair: used[0] for pair, used in pairs_bought(self.system(regime), at).items()}
        taken = {pair: int(option[pair]) for pair, used in bought.items() if used}
        of_pairs = [taken.get(pair, 0) for pair in bought]
        if not self.wiring.per_pair and taken:
            of_pairs = [next(iter(taken.values()))] * len(bought)
        wanted = assigned(np.array([of_pairs], dtype=np.int64), len(rows))[0]
        if any(wanted[pair] != link for pair, link in taken.items()):
            return None
        ways = np.flatnonzero((self.wiring.option == wanted).all(axis=(1, 2)))
        return int(self.grid.encode(regime, ways[:1], at)[0])

    def settings_at(self, regime: int, option: Ints, rows: Sequence[int]) -> dict[str, str]:
        """The `--set` keys of a plan that links pools by `option` (P, P), in the grid or not."""
        system = replace(self.system(regime), wiring=Wiring(option=option[None], per_pair=True))
        at, link = np.array(rows, dtype=np.int64)[:, None], np.zeros(1, dtype=np.int64)
        columns = self._design_columns(self.regimes[regime], system, at, link, evaluate(system, at, link))
        return self.settings_of({name: values[0] for name, values in columns.items()})

    def legal(self, index: Ints) -> Bools:
        """Which grid indices are legal designs."""

        def of_regime(regime: int, rows: Ints, link: Ints) -> dict[str, Bools]:
            listed, first = self.listed(regime), self.first_routing(regime)
            return {"legal": is_legal(self.system(regime), list(rows), link, listed, first)}

        return self.grid.by_regime(index, of_regime)["legal"]

    # -- scoring ----------------------------------------------------------------------------------

    def score(self, index: Ints) -> dict[str, Values]:
        """Every column of the designs at these grid indices, in order."""
        ids = np.array([f"d{i}" for i in index], dtype=object)
        return {"design_id": ids, **self._evaluated(index, self._columns, loaded=True)}

    def numbers(self, index: Ints) -> dict[str, Floats]:
        """Every numeric column of these designs, without the words; what a search needs."""
        return self._evaluated(index, self._numbers, loaded=self.problem.always_loaded)

    def _evaluated(self, index: Ints, columns_of: ColumnsOf[Cell], *, loaded: bool) -> dict[str, NDArray[Cell]]:
        def of_regime(regime: int, rows: Ints, link: Ints) -> dict[str, NDArray[Cell]]:
            system = self.system(regime)
            return columns_of(self.regimes[regime], system, rows, link, evaluate(system, rows, link, loaded=loaded))

        return self.grid.by_regime(index, of_regime)

    def _numbers(self, _regime: Regime, system: System, rows: Ints, link: Ints, e: Evaluation) -> dict[str, Floats]:
        design = self._design_numbers(system, rows, link, e)
        return e.columns | {name: np.asarray(values, dtype=np.float64) for name, values in design.items()}

    def _design_numbers(self, system: System, rows: Ints, link: Ints, e: Evaluation) -> dict[str, Values]:
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
        columns["link_gb_s"] = np.where(e.pairs > 0, narrowest_byte_s(system, link, e.bought) / 1e9, 0.0)
        return columns

    def _columns(self, regime: Regime, system: System, rows: Ints, link: Ints, e: Evaluation) -> dict[str, Values]:
        return {
            "paradigm": np.full(rows.shape[1], "pd_serving", dtype=object),
            **self._design_columns(regime, system, rows, link, e),
            **e.columns,
            "bottleneck": bottlenecks(system, rows, link, e, self.pool_names),
            "infeasible_reason": infeasible_reasons(
                system, rows, e, self.pool_names, [c.name for c in self.problem.classes]
            ),
        }

    def _design_columns(
        self, regime: Regime, system: System, rows: Ints, link: Ints, e: Evaluation
    ) -> dict[str, Values]:
        n = rows.shape[1]
        columns = self._design_numbers(system, rows, link, e)
        for p, (name, table, r) in enumerate(zip(self.pool_names, system.tables, rows, strict=True)):
            role = np.array(ROLE_NAMES, dtype=object)[np.where(e.flow.combined[:, p], BOTH, table.settings.role[r])]
            columns[f"role_{name}"] = np.where(table.active[r], role, "none").astype(object)
        option = system.wiring.option[link]
        columns |= {
            "weight_dtype": np.full(n, regime.precision.weight, dtype=object),
            "kv_dtype": np.full(n, regime.precision.kv, dtype=object),
            "compute_dtype": np.full(n, regime.precision.compute, dtype=object),
            "routing": np.full(n, regime.routing, dtype=object),
            "link": link_texts(self.problem.link_names, self.pool_names, option, e.bought),
        }
        return columns

    # -- one design, on or off the axes -----------------------------------------------------------

    def score_design(self, settings: Mapping[str, str]) -> tuple[dict[str, Values], Explanation]:
        """Scores and explains one design given as key -> text; keys left out take the first value of their axis.

        Values outside the axes are allowed; a link between the study's raw bandwidths too.
        """
        design = ServingDesign(self.problem, settings)
        space, system, rows, link = self._on_axes(design) or self._off_axes(design)
        found = evaluate(system, rows, link, loaded=True)
        columns = space._columns(design.regime, system, rows, link, found)
        detail = explanation(system, rows, link, found, self.pool_names)
        return {"design_id": np.array(["set"], dtype=object), **columns}, detail

    def laid_out(self, settings: Mapping[str, str]) -> LaidOut:
        """One design given as key -> text, as a replay needs it."""
        design = ServingDesign(self.problem, settings)
        _, system, rows, link = self._on_axes(design) or self._off_axes(design)
        return LaidOut(system=system, rows=rows, link=link, flow=flows(system, rows, link))

    def _on_axes(self, design: ServingDesign) -> tuple[ServingSpace, System, Ints, Ints] | None:
        """Where the study's own tables hold a design, if they do and all pairs share a link: nothing is built again."""
        options = self.options.get(design.regime.routing, ())
        shared = design.problem.links is self.problem.links and not (design.wiring.per_pair or self.wiring.per_pair)
        if not shared or design.regime not in self.regimes or sum(map(len, options)) > TABLES_KEPT:
            return None
        places = [place_of(o, one) for o, one in zip(options, design.pools, strict=True)]
        if None in places:
            return None
        link = np.array([design.wiring.option[0].max()], dtype=np.int64)
        rows = np.array(places, dtype=np.int64)[:, None]
        return self, self.system(self.regimes.index(design.regime)), rows, link

    def _off_axes(self, design: ServingDesign) -> tuple[ServingSpace, System, Ints, Ints]:
        """Tables of one design alone."""
        system = build_system(design.problem, design.wiring, design.regime, design.pools)
        rows, link = np.zeros((len(self.problem.pools), 1), dtype=np.int64), np.zeros(1, dtype=np.int64)
        return ServingSpace(design.problem), system, rows, link

    def settings_of(self, row: Mapping[str, Any]) -> dict[str, str]:
        """The `--set` keys that give a frame's row again."""
        settings = {k: str(row[k]) for k in ("weight_dtype", "kv_dtype", "compute_dtype", "routing")}
        for pool in self.pool_names:
            settings[f"n_{pool}"] = str(int(row[f"n_{pool}"]))
            if int(row[f"n_{pool}"]) == 0:
                continue
            for key in ("instance_size", "prefill_batch", "max_decode_batch"):
                settings[f"{key}_{pool}"] = str(int(row[f"{key}_{pool}"]))
            role = str(row[f"role_{pool}"])
            if role in ROLE_NAMES[:3]:
                settings[f"role_{pool}"] = role
        return settings | settings_of_links(str(row["link"]), self.pool_names)

    def next_steps(self, row: Mapping[str, Any]) -> list[Step]:
        """One step more of each thing: a purchase step of each pool that is bought, the next wider link, 1 GB/s.

        1 GB/s more is asked for only where the link binds; it has no price of its own.
        """
        steps = []
        for offer in self.problem.pools:
            n, g = int(row[f"n_{offer.name}"]), int(row[f"instance_size_{offer.name}"])
            if n == 0:
                continue
            more = next((c for c in offer.counts if c > n and c % g == 0), n + purchase_step(offer.counts, g))
            if more > MAX_DEVICES:
                continue
            beyond = " (beyond the study's count)" if more > offer.counts[-1] else ""
            steps.append(Step(f"{more - n} more {offer.name}{beyond}", {f"n_{offer.name}": str(more)}))
        full = float(row["link_use_frac"]) >= SATURATED
        return steps + self.link_steps(row, worth_more=full) + self._pair_steps(row)

    def _pair_steps(self, row: Mapping[str, Any]) -> list[Step]:
        """The next wider link of each pair, where pairs have different links."""
        steps, names = [], self.link_names
        for key, link in settings_of_links(str(row["link"]), self.pool_names).items():
            if key != "link" and link in names[:-1]:
                wider = names[names.index(link) + 1]
                between = " and ".join(key.removeprefix("link_").split("~"))
                steps.append(Step(f"link {wider} instead of {link} between {between}", {key: wider}))
        return steps

    # -- baselines --------------------------------------------------------------------------------

    def yardsticks(self, _columns: Mapping[str, Values]) -> dict[str, Yardstick]:
        """The best single-device fleets, whatever the user's limits allow; the same with their phases apart."""
        return self._yardsticks

    @cached_property
    def _yardsticks(self) -> dict[str, Yardstick]:
        best = dict.fromkeys(YARDSTICK_BASE, 0.0)
        for regime in range(len(self.regimes)):
            system = self.system(regime)
            for table in system.tables:
                every = np.arange(len(table.settings))
                watts = table.bill.provisioned_w
                together = table.alone_rate * system.output_tok
                apart = table.settings.n / table.apart_device_s * system.output_tok
                reached = {
                    "gain_equal_cost": largest_ratio(together, table.bill.usd_per_h(every, table.alone_busy)),
                    "gain_equal_power": largest_ratio(together, watts),
                    "gain_apart_equal_cost": largest_ratio(apart, table.bill.usd_per_h(every, 1.0)),
                    "gain_apart_equal_power": largest_ratio(apart, watts),
                }
                best = {gain: max(best[gain], ratio) for gain, ratio in reached.items()}
        return {gain: Yardstick(YARDSTICK_BASE[gain], ratio) for gain, ratio in best.items()}


def _spread(values: Floats, at: Ints, n: int) -> Floats:
    """Values of some of n designs among all of them; the others have 0."""
    result = np.zeros(n)
    result[at] = values
    return result
