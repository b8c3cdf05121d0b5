"""What a planner may doubt or bargain for: every number that can be turned, its range, and the study with it turned."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from dse.columns import WHOLE_UNITS, column
from dse.hardware import Accelerator
from dse.resolve import Study
from dse.scoring import bounds_of, limit_key
from dse.uncertainty import slowed, time_sources

ASSUMED_FRAC: Final = 0.3
"""Where a price has no range in its source, it is turned by this share."""
LIMIT_FRAC: Final = 0.2
"""A limit, or a demand, is turned by this share."""
RENTAL: Final = "rental_usd_per_h"
PRICE_REACH: Final = (0.1, 10.0)
LINK_REACH: Final = (0.01, 100.0)
LIMIT_REACH: Final = (0.25, 4.0)
PUE_MOST: Final = 3.0
"""The highest that a study may have."""
PUE_RANGE: Final = (1.0, 1.56)
"""From nothing beside the machines to the mean of sites (Uptime Institute, Global Data Center Survey 2024)."""


@dataclass(frozen=True, kw_only=True)
class Knob:
    """One number that can be turned."""

    name: str
    unit: str
    now: float
    low: float
    high: float
    basis: str
    """Where the range comes from."""
    reach: tuple[float, float]
    """Least and largest value that break-evens are looked for in."""
    turned: Callable[[float], Study]
    """The study with this value. InputError where it does not allow it."""


def knobs(study: Study) -> list[Knob]:
    """All knobs of a study, prices first."""
    return [*_prices(study), *bandwidths(study), *_site(study), *_bounds(study), *_times(study)]


def _prices(study: Study) -> Iterator[Knob]:
    """The price that the site's cost basis reads, of each device."""
    rental = study.envelope.site.cost_basis == "rental"
    key, unit = (RENTAL, "USD/h") if rental else ("capex_usd", "USD")
    for offers in _alike(study, key):
        device = offers[0].device
        now = getattr(device, key)
        if not now:
            continue
        lone = all(o in offers or o.device.name != device.name for o in study.problem.pools)
        whose = device.name if lone else " and ".join(o.name for o in offers)
        span = device.rental_range_usd_per_h if rental else device.capex_range_usd
        low, high = span or (now * (1 - ASSUMED_FRAC), now * (1 + ASSUMED_FRAC))
        yield Knob(
            name=f"{'rental' if rental else 'price'} of {whose}",
            unit=unit,
            now=now,
            low=low,
            high=high,
            basis="range of the catalogue" if span else f"no range known: {ASSUMED_FRAC * 100:.0f} % either way",
            reach=(now * PRICE_REACH[0], now * PRICE_REACH[1]),
            turned=_repriced(study, {o.name for o in offers}, key),
        )


def price_of(study: Study, device: str) -> Knob:
    """The price of one device that the site's cost basis reads, in all pools that offer it.

    Its reach starts at nothing, and ends at ten times today's price, or the dearest other's where
    the device is free today.
    """
    key, unit = (RENTAL, "USD/h") if study.envelope.site.cost_basis == "rental" else ("capex_usd", "USD")
    offers = [offer for offer in study.problem.pools if offer.device.name == device]
    now = min(getattr(offer.device, key) for offer in offers)
    dearest = max(getattr(offer.device, key) or 0.0 for offer in study.problem.pools)
    most = (now or dearest or 1.0) * PRICE_REACH[1]
    return Knob(
        name=f"price of {device}",
        unit=unit,
        now=now,
        low=0.0,
        high=most,
        basis="from nothing",
        reach=(0.0, most),
        turned=_repriced(study, {offer.name for offer in offers}, key),
    )


def _alike(study: Study, key: str) -> list[list[Any]]:
    """Pools of one device at one price, together."""
    groups: dict[tuple[str, float | None], list[Any]] = {}
    for offer in study.problem.pools:
        groups.setdefault((offer.device.name, getattr(offer.device, key)), []).append(offer)
    return list(groups.values())


def _repriced(study: Study, pools_of_it: set[str], key: str) -> Callable[[float], Study]:
    def turned(value: float) -> Study:
        def changed(d: Accelerator) -> Accelerator:
            return replace(d, rental_usd_per_h=value) if key == RENTAL else replace(d, capex_usd=value)

        offers = study.problem.pools
        pools = tuple(replace(o, device=changed(o.device)) if o.name in pools_of_it else o for o in offers)
        problem = replace(study.problem, pools=pools)
        return replace(study, problem=problem, space=study.space.varied(problem))

    return turned


def bandwidths(study: Study) -> Iterator[Knob]:
    """Bandwidth of every link on offer at once, as a multiple of today's."""
    if len(study.problem.pools) < 2:
        return

    def turned(value: float) -> Study:
        links = study.problem.links
        problem = replace(study.problem, links=replace(links, byte_s=np.asarray(links.byte_s) * value))
        return replace(study, problem=problem, space=study.space.varied(problem))

    yield Knob(
        name="bandwidth of every link",
        unit="x",
        now=1.0,
        low=0.5,
        high=2.0,
        basis="half and twice",
        reach=LINK_REACH,
        turned=turned,
    )


def _site(study: Study) -> Iterator[Knob]:
    """Energy price, where cost depends on it, and PUE."""
    site = study.envelope.site
    yield Knob(
        name="PUE",
        unit="",
        now=site.pue,
        low=min(PUE_RANGE[0], site.pue),
        high=max(PUE_RANGE[1], site.pue),
        basis="from 1 to the mean of sites in 2024 (Uptime Institute)",
        reach=(1.0, PUE_MOST),
        turned=_of_site(study, "site.pue"),
    )
    price = site.energy_usd_per_kwh
    if price > 0 and (site.cost_basis == "ownership" or any(offer.owned for offer in study.problem.pools)):
        yield Knob(
            name="price of energy",
            unit="USD/kWh",
            now=price,
            low=price / 2,
            high=price * 2,
            basis="half and twice",
            reach=(price * PRICE_REACH[0], price * PRICE_REACH[1]),
            turned=_of_site(study, "site.energy_usd_per_kwh"),
        )


def _bounds(study: Study) -> Iterator[Knob]:
    """The demand, and each limit of the study."""
    demand = study.space.demand
    for name, (low, high) in bounds_of(study).items():
        for value, is_low in ((low, True), (high, False)):
            if not np.isfinite(value) or value <= 0:
                continue
            key = limit_key(study, name, low=is_low)
            asked = demand is not None and key.startswith("demand.")
            yield Knob(
                name="demand" if asked else f"{'lower' if is_low else 'upper'} limit on {name}",
                unit=name,
                now=value,
                **_around(name, value),
                reach=(value * LIMIT_REACH[0], value * LIMIT_REACH[1]),
                turned=_bound(study, key),
            )


def _around(name: str, value: float) -> dict[str, Any]:
    """Both ends of a limit's range, and what they are: whole numbers move by one, shares stay at most 1."""
    known = column(name)
    if known is not None and known.unit in WHOLE_UNITS:
        return {"low": max(value - 1, 0.0), "high": value + 1, "basis": "one less and one more"}
    high = value * (1 + LIMIT_FRAC)
    if known is not None and known.name.endswith("_frac"):
        high = min(high, max(value, 1.0))
    return {"low": value * (1 - LIMIT_FRAC), "high": high, "basis": f"{LIMIT_FRAC * 100:.0f} % either way"}


def _bound(study: Study, key: str) -> Callable[[float], Study]:
    """The study with another limit, which its designs' scores do not know of, or another demand."""

    def turned(value: float) -> Study:
        changed = study.changed({key: value})
        return changed if key.startswith("demand.") else replace(study, envelope=changed.envelope)

    return turned


def _of_site(study: Study, key: str) -> Callable[[float], Study]:
    """The study at another site."""

    def turned(value: float) -> Study:
        changed = study.changed({key: value})
        problem = replace(changed.problem, pools=study.problem.pools)
        return replace(changed, problem=problem, space=study.space.varied(problem))

    return turned


def _times(study: Study) -> Iterator[Knob]:
    """Times of each pool's phases, at both ends of their 80 % interval."""
    for source in time_sources(study):

        def turned(value: float, source: Any = source) -> Study:
            return slowed(study, source, value)

        yield Knob(
            name=source.label,
            unit="x",
            now=1.0,
            low=source.low,
            high=source.high,
            basis=source.basis,
            reach=(source.low / 2, source.high * 2),
            turned=turned,
        )
