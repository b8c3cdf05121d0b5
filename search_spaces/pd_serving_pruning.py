"""The frontier of a serving study without looking at every design: split routing, pools joined frontier by frontier.

Once it is settled which pools prefill, which decode and which do both (or are absent), a design's rate is

    r = min(R, D, s (R / max R_p)(D / max D_q)) + B,    R = sum R_p, D = sum D_q, B = sum B_p, s = S / (v per request),

since the link of p and q carries the share (R_p / R)(D_q / D) of all requests, and is fullest between the fastest
of each side; cost and power are sums, and the number of links is that of prefilling times decoding pools. So:

- r grows with R, D and B, and falls with max R_p and max D_q; nothing else of a pool matters. Of the pools that
  prefill, an incomplete set is dropped where another has no less R, no more cost, power and max R_p: whatever joins
  both, the first is no worse. The same for pools that decode (D, max D_q), and that do both (B).
- max R_p counts only beyond s: if all R_p <= s then s R / max R_p >= R, so the third term is no less than
  R D / max D_q >= R, and the link does not fill (the same with D). Sets below s are therefore alike in it, and where
  no R_p or no D_q of a pattern exceeds s the link is left out, and of the links that do not fill only those count
  that no other undercuts in cost and power.
- With a TTFT limit and one pool that prefills, r <= R'_p, the rate that meets the limit through its link: R'_p takes
  the place of R_p. With several the share of each is held, r <= R'_p R / R_p, which is refused here.
- An upper limit on cost, power or cost per token, a lower one on rate or demand, rule out every whole of a part, or
  of a tile, whose best corner breaks them.
- Cost per token is cost / rate: better in both is better in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dse.model.cost import usd_per_mtok
from dse.model.links import pairs_of
from dse.model.serving_pool import BOTH, DECODE, PREFILL
from dse.pareto import RunningFront, signed

from .partial_fleets import Join, Judge, Parts, added, front_of, in_tiles, joined, joined_rows
from .space import Pruned

if TYPE_CHECKING:
    from .pd_serving import ServingSpace

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Bounds = Mapping[str, tuple[float, float]]

RATES = ("throughput_tok_s", "requests_s", "input_tok_s")
SPENT = ("cost_usd_per_h", "power_w", "usd_per_mtok")
SLACK = 1e-9
"""Share by which a sum may pass a limit here; the model's own sum decides."""
MOST_PATTERNS = 100_000
"""Ways to give pools their roles, times ways to link them, that are gone through."""


def refusal(space: ServingSpace, objectives: Sequence[str], bounds: Bounds) -> str:
    """Why nothing can be dropped unseen; empty where it can."""
    columns = (*RATES, *SPENT)
    strange = [o for o in objectives if o not in columns]
    if strange:
        return f"objective {', '.join(strange)} does not follow from rate, cost and power alone"
    for name, (low, high) in bounds.items():
        if name.startswith("n_") and name[2:] in space.pool_names:
            continue
        if name not in columns:
            return f"a limit on {name} does not follow from rate, cost and power alone"
        if (name in RATES and np.isfinite(high)) or (name in SPENT and np.isfinite(low)):
            return f"a limit that a better {name} breaks"
    patterns = 3 ** len(space.pool_names) * len(space.wiring.option)
    if patterns > MOST_PATTERNS:
        return f"{patterns:,} ways to give pools their roles and links"
    return next(filter(None, (_refused(space, regime) for regime in range(len(space.regimes)))), "")


def _refused(space: ServingSpace, regime: int) -> str:
    system = space.system(regime)
    if system.stealing:
        return "under work stealing the rate does not follow from the rates of the pools"
    if any(bool(t.bill.busy_usd_per_h.any()) for t in system.tables):
        return "busy devices cost more than idle ones (ownership, or devices owned), so a faster pool may be dearer"
    prefill = [t.prefill_rate[t.feasible & ok] for t, ok in zip(system.tables, space.listed(regime), strict=True)]
    decode = [t.decode_rate[t.feasible & ok] for t, ok in zip(system.tables, space.listed(regime), strict=True)]
    several = len(prefill) > 2 and sum(bool(r.any()) for r in prefill) > 1  # of two pools the other decodes
    if several and np.isfinite(system.limits.ttft_p99_s):
        return "a TTFT limit holds the share of each of several prefilling pools"
    if space.wiring.per_pair:
        if np.isfinite(system.limits.ttft_p99_s):
            return "a TTFT limit holds every pair of pools by its own link"
        most = min(max(r.max(initial=0.0) for r in side) for side in (prefill, decode))
        if most > system.links.byte_s.min() / system.request_kv_byte:
            return "a link that one pair of pools has to itself may fill"
    return ""


def pruned(space: ServingSpace, objectives: Sequence[str], bounds: Bounds, front: RunningFront) -> Iterator[Pruned]:
    """Designs that may be on the frontier, lot by lot; `front` is what is known of it, and may grow in between."""
    for regime in range(len(space.regimes)):
        yield from Patterns(space, regime, objectives, bounds).survivors(front)


@dataclass(frozen=True, slots=True)
class Linked:
    """One way to link the pools of a pattern."""

    way: int
    usd_per_h: float
    power_w: float
    full: float
    """Requests/s that a link carries; infinite where none can fill."""


def _undercuts(a: Linked, b: Linked) -> bool:
    """Whether a link that does not fill costs no more than another."""
    return bool(np.isinf(a.full)) and a.usd_per_h <= b.usd_per_h and a.power_w <= b.power_w


class Patterns:
    """One regime, pattern by pattern: which pools prefill, which decode, and which do both or are absent."""

    def __init__(self, space: ServingSpace, regime: int, objectives: Sequence[str], bounds: Bounds) -> None:
        self.space, self.regime, self.system = space, regime, space.system(regime)
        self.objectives, self.bounds = objectives, bounds
        self.listed = space.listed(regime)
        columns = {*objectives, *bounds}
        self.counts_cost = bool(columns & {"cost_usd_per_h", "usd_per_mtok"})
        self.counts_power = "power_w" in columns
        self.held = bool(np.isfinite(self.system.limits.ttft_p99_s))
        self._sides: dict[tuple[int, tuple[int, ...], int, float], Parts] = {}
        self.n_compared = 0

    # -- options and what they add up to -----------------------------------------------------------

    def options(self, role: int, p: int, way: int) -> Parts:
        """Settings of one pool in one role beside others; doing both includes being absent."""
        table = self.system.tables[p]
        may = table.feasible & self.allowed(p)
        picked = table.active & self.listed[p] & (table.settings.role == role)
        row = np.flatnonzero(may & (picked | ~table.active if role == BOTH else picked))
        return self.parts(p, row, self._rate(role, p, way)[row])

    def _rate(self, role: int, p: int, way: int) -> Floats:
        table = self.system.tables[p]
        if role == PREFILL and self.held:
            other = (p + 1) % len(self.system.tables)
            link = self.system.wiring.option[way, p, other]
            return np.minimum(table.prefill_rate, table.prefill_rate_ttft[:, link])
        return {PREFILL: table.prefill_rate, DECODE: table.decode_rate, BOTH: table.both_rate}[role]

    def allowed(self, p: int) -> Bools:
        """Settings within the limits on the number of devices."""
        low, high = self.bounds.get(f"n_{self.space.pool_names[p]}", (-np.inf, np.inf))
        n = self.system.tables[p].settings.n
        return (n >= low) & (n <= high)

    def parts(self, p: int, row: Ints, rate: Floats) -> Parts:
        """Settings of one pool as parts."""
        bill, n_pools = self.system.tables[p].bill, len(self.system.tables)
        rows = np.full((len(row), n_pools), -1, dtype=np.int64)
        rows[:, p] = row
        return Parts(
            rate=rate,
            usd_per_h=bill.idle_usd_per_h[row] * self.counts_cost,
            power_w=bill.provisioned_w[row] * self.counts_power,
            largest=rate,
            rows=rows,
        )

    def nothing(self) -> Parts:
        """No pool at all."""
        n_pools = len(self.system.tables)
        none = np.zeros(1)
        rows = np.full((1, n_pools), -1, dtype=np.int64)
        return Parts(rate=none, usd_per_h=none, power_w=none, largest=none, rows=rows)

    def side(self, role: int, pools: tuple[int, ...], way: int, full: float) -> Parts:
        """Sets of these pools, all in one role, that no other equals or betters; a link is full at `full`."""
        if not pools:
            return self.nothing()
        key = (role, pools, way if self.held and role == PREFILL else 0, full)
        if key not in self._sides:
            before = self.side(role, pools[:-1], way, full)
            judge, n_values = self._side_judge(full)
            found, n = front_of(before, in_tiles(self.options(role, pools[-1], way)), added, judge, n_values)
            self.n_compared += n
            self._sides[key] = in_tiles(found)
        return self._sides[key]

    # -- how wholes are compared --------------------------------------------------------------------

    def _within(self, parts: Parts) -> Bools:
        """Whether parts leave room below the limits."""
        ok = np.ones(np.shape(parts.rate), dtype=np.bool_)
        for name, spent in (("cost_usd_per_h", parts.usd_per_h), ("power_w", parts.power_w)):
            most = self.bounds.get(name, (-np.inf, np.inf))[1]
            ok &= spent <= most + abs(most) * SLACK if np.isfinite(most) else ok
        return ok

    def _side_judge(self, full: float) -> tuple[Judge, int]:
        """Compares parts of a whole; below `full` the largest pool is alike in all."""
        n_values = 1 + self.counts_cost + self.counts_power + bool(np.isfinite(full))

        def judge(parts: Parts) -> tuple[list[Floats], Bools]:
            values = [-parts.rate]
            values += [parts.usd_per_h] if self.counts_cost else []
            values += [parts.power_w] if self.counts_power else []
            values += [np.maximum(parts.largest, full)] if np.isfinite(full) else []
            return values, self._within(parts)

        return judge, n_values

    def whole_judge(self, parts: Parts) -> tuple[list[Floats], Bools]:
        """Compares whole designs by the study's objectives."""
        columns = {
            "requests_s": parts.rate,
            "throughput_tok_s": parts.rate * self.system.output_tok,
            "input_tok_s": parts.rate * self.system.input_tok,
            "cost_usd_per_h": parts.usd_per_h,
            "power_w": parts.power_w,
        }
        if "usd_per_mtok" in self.objectives or "usd_per_mtok" in self.bounds:
            columns["usd_per_mtok"] = usd_per_mtok(parts.usd_per_h, columns["throughput_tok_s"])
        ok = self._within(parts) & (parts.rate > 0)
        for name, (low, high) in self.bounds.items():
            if name in RATES:
                ok &= columns[name] >= low - abs(low) * SLACK
            elif name == "usd_per_mtok":
                ok &= columns[name] <= high + abs(high) * SLACK
        return signed(columns, self.objectives), ok

    def _cross(self, linked: Linked) -> Join:
        """Prefilling with decoding pools, over links that this way buys."""

        def cross(a: Parts, b: Parts) -> Parts:
            rate = np.minimum(a.rate, b.rate)
            if np.isfinite(linked.full):
                largest = a.largest * b.largest
                carried = linked.full * a.rate * b.rate
                room = np.divide(carried, largest, out=np.full(rate.shape, np.inf), where=largest > 0)
                rate = np.minimum(rate, room)
            return Parts(
                rate=rate,
                usd_per_h=a.usd_per_h + b.usd_per_h + linked.usd_per_h,
                power_w=a.power_w + b.power_w + linked.power_w,
                largest=np.zeros(rate.shape),
                rows=a.rows,
            )

        return cross

    # -- the patterns -------------------------------------------------------------------------------

    def ways(self, prefill: tuple[int, ...], decode: tuple[int, ...]) -> list[Linked]:
        """Ways to link these pools that are worth it: all that may fill, and of the others what is not undercut."""
        links, option = self.system.links, self.system.wiring.option
        crossing = [(min(p, o), max(p, o)) for p in prefill for o in decode]
        unused = [pair for pair in pairs_of(len(self.system.tables)) if pair not in crossing]
        found: list[Linked] = []
        for way in range(len(option)):
            if (self.system.wiring.per_pair and any(option[way][u] for u in unused)) or (not crossing and way):
                continue
            bought = [option[way][pair] for pair in crossing]
            usd = float(links.usd_per_h[bought].sum()) * self.counts_cost
            watts = float(links.power_w[bought].sum()) * self.counts_power
            full = float(links.byte_s[bought].min(initial=np.inf)) / self.system.request_kv_byte
            if not crossing or self._never_fills(prefill, decode, full):
                full = np.inf
            new = Linked(way, usd, watts, full)
            if np.isfinite(full) or self.held or not any(_undercuts(known, new) for known in found):
                found.append(new)
        return found

    def _never_fills(self, prefill: tuple[int, ...], decode: tuple[int, ...], full: float) -> bool:
        tables = self.system.tables
        fastest = (
            max(float(tables[p].prefill_rate.max(initial=0.0)) for p in prefill),
            max(float(tables[p].decode_rate.max(initial=0.0)) for p in decode),
        )
        return min(fastest) <= full

    def survivors(self, front: RunningFront) -> Iterator[Pruned]:
        """Designs of this regime that may be on the frontier."""
        yield Pruned(self._index(0, self._alone()), self.n_compared)
        n_pools = len(self.system.tables)
        for roles in product((BOTH, DECODE, PREFILL), repeat=n_pools):
            prefill, decode, rest = (tuple(p for p in range(n_pools) if roles[p] == r) for r in (PREFILL, DECODE, BOTH))
            if bool(prefill) != bool(decode) and all(self._may_be_absent(p) for p in prefill + decode):
                continue  # no worse without these pools: they have no one to work with
            for linked in self.ways(prefill, decode):
                first, second, join = self.pattern(prefill, decode, rest, linked)
                for left, right, n in joined(first, second, join, self.whole_judge, front):
                    compared, self.n_compared = self.n_compared + n, 0
                    rows = joined_rows(first.take(left), second.take(right))
                    yield Pruned(self._index(linked.way, rows), compared)

    def _may_be_absent(self, p: int) -> bool:
        return bool((~self.system.tables[p].active & self.allowed(p)).any())

    def _alone(self) -> Ints:
        """One pool that does both, whatever roles are listed (N, P)."""
        rows = []
        absent = [np.flatnonzero(~t.active & self.allowed(p)) for p, t in enumerate(self.system.tables)]
        for p, table in enumerate(self.system.tables):
            own = np.flatnonzero(table.active & table.feasible & (table.settings.role == BOTH) & self.allowed(p))
            if all(len(a) for q, a in enumerate(absent) if q != p):
                fleet = np.tile([a[0] if len(a) else 0 for a in absent], (len(own), 1))
                fleet[:, p] = own
                rows.append(fleet)
        return np.concatenate(rows) if rows else np.zeros((0, len(absent)), dtype=np.int64)

    def pattern(
        self, prefill: tuple[int, ...], decode: tuple[int, ...], rest: tuple[int, ...], linked: Linked
    ) -> tuple[Parts, Parts, Join]:
        """The two lists whose wholes are a pattern's designs: prefill and decode, or these joined, and the rest."""
        first, second = self.side(PREFILL, prefill, linked.way, linked.full), self.side(DECODE, decode, 0, linked.full)
        cross = self._cross(linked)
        if not prefill and not decode and len(rest) > 1:  # their own front would be larger than what is left of it
            return self.side(BOTH, rest[:-1], 0, np.inf), self.side(BOTH, rest[-1:], 0, np.inf), added
        if not rest:
            return first, second, cross
        judge, n_values = self._side_judge(np.inf)
        crossed, n = front_of(first, second, cross, judge, n_values)
        self.n_compared += n
        return in_tiles(crossed), self.side(BOTH, rest, 0, np.inf), added

    def _index(self, way: int, rows: Ints) -> Ints:
        return self.space.grid.encode(self.regime, np.full(len(rows), way, dtype=np.int64), list(rows.T))
