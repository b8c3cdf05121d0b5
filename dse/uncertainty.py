"""How sure a score is: intervals of throughput and cost from measured errors and price ranges.

Every source of error is tried alone: the times of one pool's phase at both ends of their 80 % interval, one pool's
price at both ends of its range. The design is scored again each time, so limits, links and the split of the work answer
as they would. Sources are taken as independent, so their effects add as squares:

    low = T - sqrt(sum_s d_s^2)        d_s: how much the worse end of source s takes from T; high likewise

Cost per token joins both, as relative errors: up hypot(cost_high/cost - 1, T/T_low - 1), down likewise.

Phases that were measured together (one end-to-end time) move together, and so do pools of one device. A device without
measurements is taken to be 30 % off. Price ranges are those of the catalogue: offers seen, for an estimate its low and
high.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dse.hardware import Accelerator, Efficiency, Phase, TimeInterval
from dse.model.bill import pool_bill
from dse.model.cost import usd_per_mtok
from dse.resolve import Study
from dse.scoring import score as scored_once

Floats = NDArray[np.float64]
Values = NDArray[np.generic]

ASSUMED = 1.3
"""Where nothing was measured, times are taken to lie within this factor, either way. Models carried to a stack that
they were not fitted to are commonly 25 % off in one case of ten (docs/calibration.md)."""

NOTICED = 1e-4
"""Share of a value below which a source does not move it."""
PRICES = "low and high of its price"

INTERVALS: Mapping[str, tuple[str, str]] = {
    "throughput_tok_s": ("throughput_low_tok_s", "throughput_high_tok_s"),
    "cost_usd_per_h": ("cost_low_usd_per_h", "cost_high_usd_per_h"),
    "usd_per_mtok": ("usd_per_mtok_low", "usd_per_mtok_high"),
}
"""Column -> the ends of its interval."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One thing that may be otherwise than assumed."""

    members: tuple[tuple[str, Phase], ...]
    """Pools and phases that move together: of one device, measured as one quantity."""
    label: str
    low: float
    """Factor on time at one end: below 1 faster."""
    high: float
    measured: int
    """Measurements behind the interval; 0 where none are of this very device and stack."""
    assumed: bool
    """No measurement at all: a stated guess."""

    def holds(self, pool: str, phase: Phase) -> bool:
        """Whether a pool's phase is one of them."""
        return (pool, phase) in self.members

    @property
    def basis(self) -> str:
        """What the interval rests on, in words."""
        span = f"{self.low:.2f} to {self.high:.2f} of the predicted time"
        if self.assumed:
            return f"no measurement: assumed {span}"
        return f"{span}, {self.measured} measurements" if self.measured else f"{span}, carried over from a relative"


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """What one source does to one design, at both ends."""

    column: str
    """Throughput or cost."""
    source: str
    low: float
    """Of the column's value."""
    high: float
    basis: str
    """What the source's range rests on."""

    @property
    def text(self) -> str:
        """The source with what it rests on."""
        return f"{self.source} ({self.basis})" if self.basis else self.source


def phases_of(study: Study) -> tuple[Phase, ...]:
    """The phases whose times a study's paradigm rests on."""
    return study.paradigm.phases


def time_sources(study: Study) -> list[Source]:
    """What is not sure about the pools' times: one source a device and quantity that was measured."""
    groups: dict[tuple[str, str], list[tuple[str, Phase, TimeInterval | None]]] = {}
    for offer in study.problem.pools:
        for phase in phases_of(study):
            known = _widest(offer.device.efficiency[phase], study.problem.compute_dtypes)
            quantity = known.quantity if known else f"assumed {phase}"
            groups.setdefault((offer.device.name, quantity), []).append((offer.name, phase, known))
    return [_source(members) for members in groups.values()]


def _widest(e: Efficiency, dtypes: Sequence[str]) -> TimeInterval | None:
    """The interval of a phase over a study's data types: from the lowest to the highest end.

    The quantity is that of the most measurements; one data type without any makes the whole an estimate.
    """
    found = [i for dtype in dtypes if (i := e.at(dtype).interval) is not None]
    if len(found) < len(dtypes):
        return None
    most = max(found, key=lambda i: i.n)
    return replace(
        most,
        low=min(i.low for i in found),
        high=max(i.high for i in found),
        n=most.n if all(i.n for i in found) else 0,
    )


def _source(members: Sequence[tuple[str, Phase, TimeInterval | None]]) -> Source:
    """What moves together, by the widest of its intervals."""
    pools = dict.fromkeys(pool for pool, _, _ in members)
    phases = dict.fromkeys(phase for _, phase, _ in members)
    known = [i for _, _, i in members if i is not None]
    return Source(
        members=tuple((pool, phase) for pool, phase, _ in members),
        label=f"{' and '.join(phases)} times of {', '.join(pools)}",
        low=min((i.low for i in known), default=1.0 / ASSUMED),
        high=max((i.high for i in known), default=ASSUMED),
        measured=min((i.n for i in known), default=0),
        assumed=not known,
    )


def slowed(study: Study, source: Source, factor: float) -> Study:
    """The study with the phases of a source this many times as slow."""

    def change(e: Efficiency) -> Efficiency:
        own = {dtype: replace(x, slowdown=factor) for dtype, x in e.by_dtype.items()}
        return replace(e, slowdown=factor, by_dtype=own)

    def device(pool: str, d: Accelerator) -> Accelerator:
        phases = {p: change(e) if source.holds(pool, p) else e for p, e in d.efficiency.items()}
        return replace(d, efficiency=phases)

    touched = {pool for pool, _ in source.members}
    offers = (replace(o, device=device(o.name, o.device)) if o.name in touched else o for o in study.problem.pools)
    problem = replace(study.problem, pools=tuple(offers))
    return replace(study, problem=problem, space=study.space.varied(problem))


def with_intervals(study: Study, frame: pd.DataFrame) -> pd.DataFrame:
    """The frame of designs with the ends of their throughput, cost and cost per token beside them."""
    numbered = frame["design_id"].str.startswith("d").to_numpy(dtype=np.bool_)
    index = np.array([int(d[1:]) for d in frame["design_id"][numbered]], dtype=np.int64)
    given = [study.space.settings_of({str(k): v for k, v in row.items()}) for _, row in frame[~numbered].iterrows()]

    def scored(variant: Study) -> Mapping[str, Values]:
        tok_s = np.empty(len(frame))
        tok_s[numbered] = variant.space.numbers(index)["throughput_tok_s"]
        # designs that the grid lacks: plans of a program, by their keys
        tok_s[~numbered] = [float(variant.space.score_design(s)[0]["throughput_tok_s"][0]) for s in given]
        return {"throughput_tok_s": tok_s}

    return _placed(frame, _ends(study, frame, scored).columns)


def with_intervals_of(frame: pd.DataFrame, known: pd.DataFrame) -> pd.DataFrame:
    """The frame of designs with the ends that another frame, which holds them too, has of them."""
    rows = known.set_index("design_id").loc[frame["design_id"]]
    return _placed(frame, {name: rows[name].to_numpy() for pair in INTERVALS.values() for name in pair})


def explained(study: Study, frame: pd.DataFrame, settings: Mapping[str, str]) -> tuple[pd.DataFrame, list[Effect]]:
    """One design given as `--set` keys: its frame with intervals, and each source's effect on throughput and cost.

    Effects are in the order of their size, relative to the value they move.
    """

    def scored(variant: Study) -> Mapping[str, Values]:
        return variant.space.score_design(dict(settings))[0]

    ends = _ends(study, frame, scored)
    basis = {source.label: source.basis for source in time_sources(study)}
    value = {c: float(frame[c].iloc[0]) for c in ("throughput_tok_s", "cost_usd_per_h")}
    effects = [
        Effect(column=column, source=label, low=float(low[0]), high=float(high[0]), basis=basis.get(label, PRICES))
        for column, label, low, high in ends.effects
        if high[0] - low[0] > NOTICED * value[column]
    ]

    def size(e: Effect) -> float:
        at = value[e.column]
        return (e.high - e.low) / at if at else 0.0

    return _placed(frame, ends.columns), sorted(effects, key=size, reverse=True)


def trust(study: Study, row: pd.Series[Any]) -> dict[str, Any]:
    """How sure one design is, for run.json: its interval, and what each source does to it, the largest first."""
    settings = study.space.settings_of({str(k): v for k, v in row.items()})
    frame, effects = explained(study, pd.DataFrame([row]), settings)
    ends = {name: float(frame[name].iloc[0]) for pair in INTERVALS.values() for name in pair}
    return {"design_id": str(row["design_id"]), **ends, "effects": [asdict(e) for e in effects]}


def score(study: Study, settings: Mapping[str, Any]) -> pd.DataFrame:
    """Result frame, of one row, of one design given as `--set` keys, with its intervals."""
    text = {k: str(v) for k, v in settings.items()}
    return explained(study, scored_once(study, text), text)[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ends:
    columns: dict[str, Floats]
    effects: list[tuple[str, str, Floats, Floats]]
    """Column, source, and both ends of the value (N,)."""


def _ends(study: Study, frame: pd.DataFrame, scored: Callable[[Study], Mapping[str, Values]]) -> _Ends:
    tok = frame["throughput_tok_s"].to_numpy(dtype=np.float64)
    cost = frame["cost_usd_per_h"].to_numpy(dtype=np.float64)
    effects = [("throughput_tok_s", *rest) for rest in _time_effects(study, frame, tok, scored)]
    effects += [("cost_usd_per_h", *rest) for rest in _price_effects(study, frame, cost)]
    tok_low, tok_high = _squared(tok, [(low, high) for column, _, low, high in effects if column == "throughput_tok_s"])
    cost_low, cost_high = _squared(
        cost, [(low, high) for column, _, low, high in effects if column == "cost_usd_per_h"]
    )
    mtok = usd_per_mtok(cost, tok)
    with np.errstate(divide="ignore", invalid="ignore"):
        up = np.hypot(_relative(cost_high - cost, cost), np.where(tok_low > 0, tok / tok_low - 1.0, np.inf))
        down = np.hypot(_relative(cost - cost_low, cost), np.where(tok_high > 0, 1.0 - tok / tok_high, 0.0))
        ends = {"usd_per_mtok_low": mtok * np.maximum(1.0 - down, 0.0), "usd_per_mtok_high": mtok * (1.0 + up)}
    return _Ends(
        columns={
            "throughput_low_tok_s": tok_low,
            "throughput_high_tok_s": tok_high,
            "cost_low_usd_per_h": cost_low,
            "cost_high_usd_per_h": cost_high,
            **{name: np.where(tok > 0, v, np.inf) for name, v in ends.items()},
        },
        effects=effects,
    )


def _relative(difference: Floats, base: Floats) -> Floats:
    return np.divide(difference, base, out=np.zeros_like(difference), where=base > 0)


def _time_effects(
    study: Study, frame: pd.DataFrame, tok: Floats, scored: Callable[[Study], Mapping[str, Values]]
) -> Iterator[tuple[str, Floats, Floats]]:
    for source in time_sources(study):
        if not any((frame[f"n_{pool}"] > 0).any() for pool, _ in source.members):
            continue
        both = []
        for factor in (source.low, source.high):
            again = scored(slowed(study, source, factor))
            both.append(np.asarray(again["throughput_tok_s"], dtype=np.float64))
        low, high = np.minimum(np.minimum(*both), tok), np.maximum(np.maximum(*both), tok)
        yield source.label, np.where(tok > 0, low, 0.0), np.where(tok > 0, high, 0.0)


def _price_effects(study: Study, frame: pd.DataFrame, cost: Floats) -> Iterator[tuple[str, Floats, Floats]]:
    """Cost with one device at both ends of its price range; exact, since cost is linear in a price."""
    offers: dict[str, list[Any]] = {}
    for offer in study.problem.pools:
        offers.setdefault(offer.device.name, []).append(offer)
    for same in offers.values():
        ends = _priced_ends(same[0].device)
        if not ends:
            continue
        both = []
        for device in ends:
            moved = np.zeros_like(cost)
            for offer in same:
                n = frame[f"n_{offer.name}"].to_numpy(dtype=np.int64)
                bills = (pool_bill(d, study.envelope.site, n, offer.owned) for d in (device, offer.device))
                after, now = (bill.idle_usd_per_h for bill in bills)
                moved = moved + after - now
            both.append(cost + moved)
        low, high = np.minimum(*both), np.maximum(*both)
        label = f"price of {', '.join(offer.name for offer in same)}"
        yield label, np.minimum(low, cost), np.maximum(high, cost)


def _priced_ends(device: Accelerator) -> list[Accelerator]:
    """The device at both ends of its price ranges; nothing where none is known. A bill reads the price it needs."""
    if device.rental_range_usd_per_h is None and device.capex_range_usd is None:
        return []
    rent, capex = device.rental_range_usd_per_h, device.capex_range_usd
    return [
        replace(
            device,
            rental_usd_per_h=rent[end] if rent else device.rental_usd_per_h,
            capex_usd=capex[end] if capex else device.capex_usd,
        )
        for end in (0, 1)
    ]


def _squared(value: Floats, ends: Sequence[tuple[Floats, Floats]]) -> tuple[Floats, Floats]:
    """Both ends of a value, effects of independent sources added as squares."""
    down, up = np.zeros_like(value), np.zeros_like(value)
    for low, high in ends:
        down += (value - low) ** 2
        up += (high - value) ** 2
    return np.maximum(value - np.sqrt(down), 0.0), value + np.sqrt(up)


def _placed(frame: pd.DataFrame, ends: Mapping[str, Floats]) -> pd.DataFrame:
    """The frame with each interval behind its column."""
    result: dict[str, Any] = {}
    for name in frame.columns:
        result[str(name)] = frame[name]
        for column in INTERVALS.get(str(name), ()):
            result[column] = ends[column]
    return pd.DataFrame(result, index=frame.index)
