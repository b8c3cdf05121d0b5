"""What the spaces of both training paradigms do alike: the grid, columns of a design, steps, baselines, suggestion."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Generic, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from dse.model.bill import PoolBill
from dse.model.screening import Explanation, Screen
from dse.model.training_pool import TrainingPool, TrainingSettings
from dse.model.training_run import TrainingFleet, tokens_per_s

from .fleet_study import MAX_DEVICES
from .grid import Grid, Unit
from .grid_space import GridSpace
from .space import Step, Yardstick, largest_ratio, purchase_step
from .training_options import Regime, pool_options
from .training_problem import TrainingOffer, TrainingProblem

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Values = NDArray[np.generic]
Cell = TypeVar("Cell", bound=np.generic)


class TrainingSystem(Protocol):
    """One regime of a training study."""

    @property
    def fleet(self) -> TrainingFleet:
        """What the designs share besides their pools' times."""
        ...


class Evaluated(Protocol):
    """Every number of N designs."""

    @property
    def columns(self) -> dict[str, Floats]:
        """Columns of the frame (N,)."""
        ...

    @property
    def pool_columns(self) -> dict[str, Floats]:
        """Columns per pool (N, P)."""
        ...

    @property
    def pairs(self) -> Floats:
        """Links between pools (N,)."""
        ...


Problem = TypeVar("Problem", bound=TrainingProblem)
System = TypeVar("System", bound=TrainingSystem)
Scored = TypeVar("Scored", bound=Evaluated)


class TrainingSpace(GridSpace, Generic[Problem, System, Scored]):
    """All designs of one training study."""

    paradigm: str
    pipeline: bool
    """Whether stages, schedule and offload are part of a design."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.regimes = self.all_regimes()
        self.options = tuple(pool_options(o) for o in problem.pools)
        self.grid = Grid([[len(problem.link_names), *map(len, self.options)] for _ in self.regimes])
        self._systems: dict[Regime, System] = {}
        self._best: dict[float, tuple[float, float]] = {}

    def varied(self, problem: Problem) -> Self:
        """The space of a problem that differs in the numbers of some devices, of the links or of the site."""
        return type(self)(problem)

    # -- what a paradigm says ---------------------------------------------------------------------

    @abstractmethod
    def all_regimes(self) -> tuple[Regime, ...]:
        """What may hold for the whole fleet."""

    @abstractmethod
    def build(self, problem: Problem, regime: Regime, settings: Sequence[TrainingSettings]) -> System:
        """The tables of one regime over these settings."""

    @abstractmethod
    def legal_rows(self, system: System, rows: Ints, link: Ints) -> Bools:
        """Which designs (P, N) are on offer."""

    @abstractmethod
    def screened(self, system: System, rows: Ints, link: Ints) -> Screen:
        """What a search needs of designs (P, N)."""

    @abstractmethod
    def evaluated(self, system: System, rows: Ints, link: Ints) -> Scored:
        """Every number of N designs."""

    @abstractmethod
    def words(self, system: System, rows: Ints, found: Scored) -> dict[str, NDArray[np.object_]]:
        """`bottleneck` and `infeasible_reason` of N designs."""

    @abstractmethod
    def explained(self, system: System, rows: Ints, link: Ints, found: Scored) -> Explanation:
        """What explains one design."""

    @abstractmethod
    def score_design(self, settings: Mapping[str, str]) -> tuple[dict[str, Values], Explanation]:
        """One design given as key -> text, on or off the axes, and what explains it."""

    # -- the grid ---------------------------------------------------------------------------------

    def options_of(self, _regime: int) -> tuple[TrainingSettings, ...]:
        """Settings of each pool: the same under every regime."""
        return self.options

    @property
    def enumeration_refusal(self) -> str:
        """Enumeration answers every training study exactly."""
        return ""

    @property
    def demand(self) -> tuple[str, float] | None:
        """A training study has limits, such as one on train_time_s, but no demand."""
        return None

    @property
    def tie_breakers(self) -> tuple[str, ...]:
        """Narrower links; less sharding, which asks less of the network than the model counts."""
        return ("link_gb_s", *(f"zero_stage_{name}" for name in self.pool_names))

    def system(self, regime: Regime) -> System:
        """Tables of one regime over all options, built once."""
        if regime not in self._systems:
            self._systems[regime] = self.build(self.problem, regime, self.options)
        return self._systems[regime]

    def screen_unit(self, unit: Unit) -> tuple[Screen, Bools, int]:
        """A block's screen, which of it is legal, and the grid index of its first design."""
        system, rows = self.system(self.regimes[unit.regime]), self.grid.rows_of(unit)
        shape = np.broadcast_shapes(*(r.shape for r in rows))
        flat = np.stack([np.broadcast_to(r, shape).reshape(-1) for r in rows])
        legal = self.legal_rows(system, flat, np.full(flat.shape[1], unit.link, dtype=np.int64))
        at = np.flatnonzero(legal)
        part = self.screened(system, flat[:, at], np.full(len(at), unit.link, dtype=np.int64))
        return _spread(part, at, shape), legal.reshape(shape), self.grid.first_of(unit)

    def screen_designs(self, index: Ints) -> tuple[Screen, Bools]:
        """The screen of these designs, in their order, and which are legal."""
        inexact: list[int] = []

        def of_regime(regime: int, rows: Ints, link: Ints) -> dict[str, Values]:
            system = self.system(self.regimes[regime])
            legal = self.legal_rows(system, rows, link)
            at = np.flatnonzero(legal)
            part = _spread(self.screened(system, rows[:, at], link[at]), at, legal.shape)
            if not part.exact:
                inexact.append(regime)
            return {**part.columns, "feasible": part.feasible, "legal": legal}

        columns = self.grid.by_regime(index, of_regime)
        legal, possible = (np.asarray(columns.pop(name), dtype=np.bool_) for name in ("legal", "feasible"))
        numbers = {name: np.asarray(values, dtype=np.float64) for name, values in columns.items()}
        return Screen(columns=numbers, feasible=possible, exact=not inexact), legal

    def legal(self, index: Ints) -> Bools:
        """Which grid indices are legal designs."""

        def of_regime(regime: int, rows: Ints, link: Ints) -> dict[str, Bools]:
            return {"legal": self.legal_rows(self.system(self.regimes[regime]), rows, link)}

        return self.grid.by_regime(index, of_regime)["legal"]

    def canonical(self, regime: int, link: int, rows: Sequence[int]) -> int:
        """Grid index of a plan; where nothing crosses between pools the first link stands for all."""
        at = [np.array([r], dtype=np.int64) for r in rows]
        index = self.grid.encode(regime, np.array([link], dtype=np.int64), at)
        if not self.legal(index)[0]:
            index = self.grid.encode(regime, np.zeros(1, dtype=np.int64), at)
        return int(index[0])

    # -- scoring ----------------------------------------------------------------------------------

    def score(self, index: Ints) -> dict[str, Values]:
        """Every column of the designs at these grid indices, in order."""
        ids = np.array([f"d{i}" for i in index], dtype=object)
        return {"design_id": ids, **self._by_regime(index, self.all_columns)}

    def numbers(self, index: Ints) -> dict[str, Floats]:
        """Every numeric column of these designs, without the words; what a search needs."""

        def numeric(problem: TrainingProblem, regime: Regime, system: System, rows: Ints, link: Ints,
                    found: Scored) -> dict[str, Floats]:  # fmt: skip
            design = self._design_numbers(problem, regime, system, rows, link, found)
            return found.columns | {name: np.asarray(values, dtype=np.float64) for name, values in design.items()}

        return self._by_regime(index, numeric)

    def _by_regime(
        self,
        index: Ints,
        columns_of: Callable[[TrainingProblem, Regime, System, Ints, Ints, Scored], dict[str, NDArray[Cell]]],
    ) -> dict[str, NDArray[Cell]]:
        def of_regime(position: int, rows: Ints, link: Ints) -> dict[str, NDArray[Cell]]:
            regime = self.regimes[position]
            system = self.system(regime)
            return columns_of(self.problem, regime, system, rows, link, self.evaluated(system, rows, link))

        return self.grid.by_regime(index, of_regime)

    def _design_numbers(
        self, problem: TrainingProblem, regime: Regime, system: System, rows: Ints, link: Ints, found: Scored
    ) -> dict[str, Values]:
        """Numeric columns that name the design, and those that exist per pool."""
        columns: dict[str, Values] = {}
        for p, (name, s, r) in enumerate(zip(self.pool_names, system.fleet.settings, rows, strict=True)):
            columns |= {
                f"n_{name}": s.n[r],
                f"instance_size_{name}": s.g[r],
                f"micro_batch_{name}": s.micro_batch[r],
                f"zero_stage_{name}": s.zero_stage[r],
                f"replicas_{name}": s.replicas[r].astype(np.int64),
                **({f"stages_{name}": s.stages[r]} if self.pipeline else {}),
                **{f"{key}_{name}": values[:, p] for key, values in found.pool_columns.items()},
            }
        n = rows.shape[1]
        columns["link_gb_s"] = np.where(found.pairs > 0, problem.links.byte_s[link] / 1e9, 0.0)
        if self.pipeline:
            columns |= {
                "chunks": np.full(n, regime.chunks),
                "offload_layers": np.full(n, regime.offload_layers),
                "collect": np.full(n, regime.collect),
            }
        return columns

    def all_columns(
        self, problem: TrainingProblem, regime: Regime, system: System, rows: Ints, link: Ints, found: Scored
    ) -> dict[str, Values]:
        """Every column of N designs but their names."""
        n = rows.shape[1]
        words = {"paradigm": self.paradigm, "compute_dtype": regime.compute_dtype, "recompute": regime.recompute}
        if self.pipeline:
            words["schedule"] = regime.schedule
        names = np.array(problem.link_names, dtype=object)[link]
        return {
            **{key: np.full(n, word, dtype=object) for key, word in words.items()},
            **self._design_numbers(problem, regime, system, rows, link, found),
            "link": np.where(found.pairs > 0, names, "none").astype(object),
            **found.columns,
            **self.words(system, rows, found),
        }

    # -- one design -------------------------------------------------------------------------------

    def scored_alone(
        self, problem: Problem, regime: Regime, system: System, link: int
    ) -> tuple[dict[str, Values], Explanation]:
        """Columns and explanation of the one design that a system of single settings holds."""
        rows = np.zeros((len(problem.pools), 1), dtype=np.int64)
        links = np.array([link], dtype=np.int64)
        found = self.evaluated(system, rows, links)
        columns = self.all_columns(problem, regime, system, rows, links, found)
        return {"design_id": np.array(["set"], dtype=object), **columns}, self.explained(system, rows, links, found)

    def settings_of(self, row: Mapping[str, Any]) -> dict[str, str]:
        """The `--set` keys that give a frame's row again."""
        settings = {k: str(row[k]) for k in ("compute_dtype", "recompute")}
        settings["global_batch"] = str(int(row["global_batch"]))
        for pool in self.pool_names:
            settings[f"n_{pool}"] = str(int(row[f"n_{pool}"]))
            if int(row[f"n_{pool}"]) == 0:
                continue
            keys = ("instance_size", "micro_batch", "zero_stage", *(("stages",) if self.pipeline else ()))
            settings |= {f"{key}_{pool}": str(int(row[f"{key}_{pool}"])) for key in keys}
        if self.pipeline:
            settings["schedule"] = str(row["schedule"])
            settings |= {k: str(int(row[k])) for k in ("chunks", "offload_layers", "collect")}
        if str(row["link"]) != "none":
            settings["link"] = str(row["link"])
        return settings

    def next_steps(self, row: Mapping[str, Any]) -> list[Step]:
        """The next purchases, the next wider link, and 1 GB/s more."""
        return self.purchases(row) + self.link_steps(row, worth_more=True)

    def purchases(self, row: Mapping[str, Any]) -> list[Step]:
        """A purchase step of each pool that is bought."""
        steps = []
        for offer in self.problem.pools:
            n, g = int(row[f"n_{offer.name}"]), int(row[f"instance_size_{offer.name}"])
            if n:
                more = next((c for c in offer.counts if c > n and c % g == 0), n + purchase_step(offer.counts, g))
                steps += more_devices({offer: (n, more)})
        return steps

    # -- baselines --------------------------------------------------------------------------------

    def yardsticks(self, columns: Mapping[str, Values]) -> dict[str, Yardstick]:
        """The best fleets of one pool at each design's global batch, whatever the user's limits allow."""
        batch = np.asarray(columns["global_batch"], dtype=np.float64)
        per_usd, per_w = np.empty(len(batch)), np.empty(len(batch))
        for g in np.unique(batch):
            per_usd[batch == g], per_w[batch == g] = self._best_single(float(g))
        return {
            "gain_equal_cost": Yardstick("cost_usd_per_h", per_usd),
            "gain_equal_power": Yardstick("power_w", per_w),
        }

    def _best_single(self, global_batch: float) -> tuple[float, float]:
        """Best tokens/s per USD/h and per W of any pool alone."""
        if global_batch not in self._best:
            per_usd = per_w = 0.0
            for regime in self.single_regimes(int(global_batch)):
                fleet = self.system(regime).fleet
                for bill, alone_s, busy in zip(fleet.bills, fleet.alone_s, fleet.alone_busy, strict=True):
                    tok_s = tokens_per_s(fleet.batch_tokens, alone_s)
                    cost = bill.usd_per_h(np.arange(len(alone_s)), busy)
                    per_usd = max(per_usd, largest_ratio(tok_s, cost))
                    per_w = max(per_w, largest_ratio(tok_s, bill.provisioned_w))
            self._best[global_batch] = per_usd, per_w
        return self._best[global_batch]

    def single_regimes(self, global_batch: int) -> list[Regime]:
        """Regimes in which a pool alone is tried at a global batch, on the axis or off it."""
        at = [replace(r, global_batch=global_batch, offload_layers=0, collect=1) for r in self.regimes]
        return list(dict.fromkeys(at))


def more_devices(bought: Mapping[TrainingOffer, tuple[int, int]], so_that: str = "") -> list[Step]:
    """The step from some counts to others, pools named in the study's order; none beyond what a study may hold."""
    if max(then for _, then in bought.values()) > MAX_DEVICES:
        return []
    words = []
    for offer, (now, then) in bought.items():
        beyond = " (beyond the study's count)" if then > offer.counts[-1] else ""
        words.append(f"{then - now} more {offer.name}{beyond}")
    label = " and ".join(words) + (f", {so_that}" if so_that else "")
    return [Step(label, {f"n_{offer.name}": str(then) for offer, (_, then) in bought.items()})]


def _spread(part: Screen, at: Ints, shape: tuple[int, ...]) -> Screen:
    """The screen of some designs of a block, in the shape of the block; the others cannot run."""

    def whole(values: NDArray[Cell]) -> NDArray[Cell]:
        result = np.zeros(shape, dtype=values.dtype)
        result.reshape(-1)[at] = values
        return result

    columns = {name: whole(values) for name, values in part.columns.items()}
    return Screen(columns=columns, feasible=whole(part.feasible), exact=part.exact)


def fleet_of(
    problem: TrainingProblem,
    regime: Regime,
    pools: Sequence[TrainingPool],
    settings: Sequence[TrainingSettings],
    bills: Sequence[PoolBill],
    alone: Sequence[tuple[Floats, Floats]] = (),
) -> TrainingFleet:
    """What the designs of a regime share; `alone` is each pool's step time alone, and how busy it is in it."""
    return TrainingFleet(
        pools=tuple(pools),
        settings=tuple(settings),
        bills=tuple(bills),
        alone_s=tuple(step_s for step_s, _ in alone),
        alone_busy=tuple(busy for _, busy in alone),
        links=problem.links,
        global_batch=regime.global_batch,
        site=problem.site,
        run=problem.run,
    )
