"""What a plan's binding rows are worth: prices of the linear program that is left when its integers are fixed.

Sets        rows that hold back the rate, with their dual y = d rate / d right-hand side (scaled rates)
Worth       of one device more in pool p, at its instance size: y R[p,k]/n (prefill), y D[p,k]/n (decode),
            B[p,k]/n (both phases), work stealing y/g of respect_capacity; of 1 GB/s more between pools:
            y d(right-hand side)/dS

A price holds until another row binds; respect_ttft, which no single thing relaxes, has none. Symbols:
`pd_provisioning`, `pd_split`, `pd_stealing`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyomo.environ as pyo
from numpy.typing import NDArray

from .pd_choice import FOR_ALL, choice_of, link_taken
from .pd_provisioning_data import RATE, ProvisioningData

Ints = NDArray[np.int64]

GB = 1e9
SMALL = 1e-9
"""A price below this is the solver's rounding."""


class Worth(NamedTuple):
    """What one unit more of something is worth."""

    row: str
    """Name of the row that binds."""
    pool: int | None
    """The pool whose devices it counts; None: the link."""
    requests_s: float
    """Per device, or per GB/s between pools."""
    pair: tuple[int, int] | None = None
    """The pools between which the link is, where every pair has its own."""


Price = Callable[[Any], float]


def place(m: pyo.ConcreteModel, data: ProvisioningData, plan: tuple[int, Ints, Sequence[int]]) -> bool:
    """Fixes every integer to a plan: its regime, link of every pool with each other, and table row per pool.

    False where the plan is another regime's, where an option was left out, and where busy devices cost more: then the
    rate is held at capacity by binaries, and no row has a price.
    """
    regime, option, rows = plan
    if regime != data.regime or data.metered:
        return False
    for p, t in enumerate(data.pools):
        at = np.flatnonzero(t.row == rows[p])
        if not len(at):
            return False
        for k in range(len(t.row)):
            _hold(m.pick[p, k], k == at[0])
    links = {choice_of(data, p, o): int(option[p, o]) for p, o in m.PAIRS} or {FOR_ALL: 0}
    for (p, o, link), binary in m.use.items():
        _hold(binary, link == links[p, o])
    if data.stealing:
        bought = sum(bool(t.active[_chosen(m, p, t.row)]) for p, t in enumerate(data.pools))
        _hold(m.alone, bought == 1)
    return True


def _hold(binary: Any, value: bool) -> None:
    """A fixed binary is no integer to the solver: only a linear program has prices."""
    binary.domain = pyo.Reals
    binary.fix(int(value))


def _chosen(m: pyo.ConcreteModel, p: int, row: Any) -> int:
    return int(np.argmax([pyo.value(m.pick[p, k]) for k in range(len(row))]))


def worths(m: pyo.ConcreteModel, data: ProvisioningData, price: Price) -> list[Worth]:
    """Worth of what binds in a model whose integers are fixed; `price` gives a row's dual."""
    found = _of_stealing(m, data, price) if data.stealing else _of_split(m, data, price)
    return [w for w in found if w.requests_s > SMALL * data.scale[RATE]]


def _of_split(m: pyo.ConcreteModel, data: ProvisioningData, price: Price) -> list[Worth]:
    found = []
    for phase in ("prefill", "decode"):
        y = price(getattr(m, f"{phase}_at_capacity"))
        for p, t in enumerate(data.pools):
            k = _chosen(m, p, t.row)
            rate = float(getattr(t, f"{phase}_rate")[k])
            if rate > 0:
                found.append(Worth(f"{phase}_at_capacity", p, y * rate / float(t.devices[k])))
    for p, t in enumerate(data.pools):
        k = _chosen(m, p, t.row)
        if t.both_rate[k] > 0:
            found.append(Worth("count_served", p, float(t.both_rate[k] / t.devices[k])))
    rows = [(0, 1, m.respect_link)] if hasattr(m, "respect_link") else []
    rows += [(p, o, row) for (p, o), row in zip(m.rows_of_pairs, m.respect_pair.values(), strict=True)]
    for p, o, row in rows:
        per_byte_s = (
            float(pyo.value(m.crossing)) * data.scale[RATE] / float(data.link_byte_s[link_taken(m, data, p, o)])
        )
        found.append(_of_link(row, data, price(row) * per_byte_s, p, o))
    return found


def _of_link(row: Any, data: ProvisioningData, per_byte_s: float, p: int, o: int) -> Worth:
    pair = (p, o) if data.per_pair else None
    return Worth(row.parent_component().name, None, per_byte_s * GB, pair)


def _of_stealing(m: pyo.ConcreteModel, data: ProvisioningData, price: Price) -> list[Worth]:
    found = []
    for (p, j), row in m.respect_capacity.items():
        t = data.pools[p]
        k = _chosen(m, p, t.row)
        if t.config[k] == j and t.active[k]:
            unit = float(np.where(t.config == j, t.instances, 0.0).max()) or 1.0
            per_instance = price(row) * data.scale[RATE] / unit
            found.append(Worth("respect_capacity", p, per_instance * float(t.instances[k] / t.devices[k])))
    per_byte_s = data.scale[RATE] / data.widest_byte_s
    for (p, o), row in m.respect_link.items():
        found.append(_of_link(row, data, price(row) * per_byte_s, p, o))
    return found
