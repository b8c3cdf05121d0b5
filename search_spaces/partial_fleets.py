"""Partial fleets joined frontier by frontier, so that a product of any size is judged without being made.

A partial fleet is what some of a fleet's pools add up to. Two lists of them are joined tile by tile (128 by 128,
about 16k rows at a time): a tile is looked at only if the whole that its best corner would give, could improve the
front so far. This loses nothing, since a join is monotone: a part with no less rate, no more cost, no more power and
no larger largest pool gives a whole that is no worse in any of them, whatever it is joined with. So the whole
joined of the best of each tile bounds every whole of the two tiles, and a part that another equals or betters in all
four can be dropped before it is joined: every whole made of it is matched by one made of the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dse.errors import DseError
from dse.pareto import GatheredFront, RunningFront

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

TILE = 128
"""Parts on each side of a tile: 16,384 wholes, which stay in cache."""
TILES_AT_ONCE = 4096
"""Tiles that are tested against the front in one call."""
SEEDS = 128
"""Parts of each side, evenly spread, whose wholes are merged first: a front that discards tiles early."""
MOST_PARTS = 2_000_000
"""Parts that a list may keep: some hundred MiB."""
_DIGITS = 2.0**44
"""Parts that differ by less than a share of 1e-13 are alike: the rounding of a sum makes no front."""


class TooManyPartsError(DseError, ValueError):
    """A list of partial fleets, none worse than another, that would not fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Partial fleets (K,): what they add up to, and the rows of their pools."""

    rate: Floats
    """Requests/s."""
    usd_per_h: Floats
    power_w: Floats
    largest: Floats
    """Requests/s of the fastest single pool in the part: the larger, the sooner a link fills."""
    rows: Ints
    """Row of every pool's settings, -1 of pools that are not in the part (K, P)."""

    def __len__(self) -> int:
        return len(self.rate)

    def take(self, at: Ints | slice) -> Parts:
        """Some of them, in this order."""
        return Parts(
            rate=self.rate[at],
            usd_per_h=self.usd_per_h[at],
            power_w=self.power_w[at],
            largest=self.largest[at],
            rows=self.rows[at],
        )

    def down(self) -> Parts:
        """As a column, to be joined with a row of others; without rows."""
        return Parts(
            rate=self.rate[:, None],
            usd_per_h=self.usd_per_h[:, None],
            power_w=self.power_w[:, None],
            largest=self.largest[:, None],
            rows=self.rows,
        )


Join = Callable[[Parts, Parts], Parts]
"""What two parts, which broadcast together, add up to; monotone. Its rows are not looked at."""
Judge = Callable[[Parts], tuple[list[Floats], Bools]]
"""Minimised values that a whole is compared by, each monotone, and whether it may stay within the limits."""


def added(a: Parts, b: Parts) -> Parts:
    """Parts that work side by side in the same role."""
    return Parts(
        rate=a.rate + b.rate,
        usd_per_h=a.usd_per_h + b.usd_per_h,
        power_w=a.power_w + b.power_w,
        largest=np.maximum(a.largest, b.largest),
        rows=a.rows,
    )


def joined_rows(a: Parts, b: Parts) -> Ints:
    """Rows of parts of different pools, pair by pair."""
    return np.maximum(a.rows, b.rows)


def compared(values: Sequence[Floats]) -> Floats:
    """A matrix (K, M) of minimised values in which the rounding of sums does not show."""
    mantissa, exponent = np.frexp(np.stack(values, axis=1))
    return np.asarray(np.ldexp(np.round(mantissa * _DIGITS) / _DIGITS, exponent))


def in_tiles(parts: Parts) -> Parts:
    """Ordered so that a tile holds parts that are alike: halves of halves, along whatever spreads most."""
    if len(parts) <= TILE:
        return parts
    values = np.stack([parts.rate, parts.usd_per_h, parts.power_w, parts.largest], axis=1)
    spread = np.ptp(values, axis=0)
    scaled = values / np.where(spread > 0, spread, 1.0)
    done: list[Ints] = []
    todo = [np.arange(len(parts))]
    while todo:
        at = todo.pop()
        if len(at) <= TILE:
            done.append(at)
            continue
        axis = int(np.ptp(scaled[at], axis=0).argmax())
        half = -(-len(at) // (2 * TILE)) * TILE  # whole tiles, so that later cuts fall between them
        order = np.argpartition(scaled[at, axis], half - 1)
        todo += [at[order[half:]], at[order[:half]]]
    return parts.take(np.concatenate(done))


def best_of_tiles(parts: Parts) -> Parts:
    """Of every tile, a part as good as its best in everything."""
    starts = np.arange(0, len(parts), TILE)
    return Parts(
        rate=np.maximum.reduceat(parts.rate, starts),
        usd_per_h=np.minimum.reduceat(parts.usd_per_h, starts),
        power_w=np.minimum.reduceat(parts.power_w, starts),
        largest=np.minimum.reduceat(parts.largest, starts),
        rows=np.zeros((len(starts), 0), dtype=np.int64),
    )


def joined(a: Parts, b: Parts, join: Join, judge: Judge, front: RunningFront) -> Iterator[tuple[Ints, Ints, int]]:
    """Pairs of parts, by number in each list, whose whole may be on the front; and how many pairs were compared.

    The front may grow while this runs: what comes later is compared with what it is by then. Both lists are best
    in the order of `in_tiles`.
    """
    if not len(a) or not len(b):
        return
    seed_a, seed_b = (np.unique(np.linspace(0, len(p) - 1, min(SEEDS, len(p))).astype(np.int64)) for p in (a, b))
    yield _promising(a, b, seed_a, seed_b, join, judge, front)
    best_a, best_b = best_of_tiles(a), best_of_tiles(b)
    n_tiles = len(best_a) * len(best_b)
    for low in range(0, n_tiles, TILES_AT_ONCE):
        left, right = np.divmod(np.arange(low, min(low + TILES_AT_ONCE, n_tiles)), len(best_b))
        while len(left):
            values, within = judge(join(best_a.take(left), best_b.take(right)))
            open_ = np.flatnonzero(within & front.may_improve(values))
            left, right = left[open_], right[open_]
            for i, j in zip(left[:64], right[:64], strict=True):
                at_a = np.arange(i * TILE, min((i + 1) * TILE, len(a)))
                at_b = np.arange(j * TILE, min((j + 1) * TILE, len(b)))
                yield _promising(a, b, at_a, at_b, join, judge, front)
            left, right = left[64:], right[64:]


def _promising(
    a: Parts, b: Parts, at_a: Ints, at_b: Ints, join: Join, judge: Judge, front: RunningFront
) -> tuple[Ints, Ints, int]:
    """Pairs of these parts whose whole is within the limits, and not dominated as far as is quickly seen."""
    values, within = judge(join(a.take(at_a).down(), b.take(at_b)))
    keep = np.nonzero(within & front.may_improve(values))
    return at_a[keep[0]], at_b[keep[1]], within.size


def front_of(a: Parts, b: Parts, join: Join, judge: Judge, n_values: int) -> tuple[Parts, int]:
    """The wholes of two lists that no other equals or betters, and how many pairs were compared."""
    best, n_compared = GatheredFront(n_values, distinct=True), 0
    for left, right, n in joined(a, b, join, judge, best.front):
        n_compared += n
        values, _ = judge(join(a.take(left), b.take(right)))
        best.add(compared(values), left * len(b) + right)
        if len(best.front) > MOST_PARTS:
            raise TooManyPartsError(f"more than {MOST_PARTS:,} partial fleets of which none is worse than another")
    best.settle()
    left, right = np.divmod(best.front.index, max(len(b), 1))
    parts_a, parts_b = a.take(left), b.take(right)
    whole = join(parts_a, parts_b)
    rows = joined_rows(parts_a, parts_b)
    return (
        Parts(
            rate=whole.rate,
            usd_per_h=whole.usd_per_h,
            power_w=whole.power_w,
            largest=whole.largest,
            rows=rows,
        ),
        n_compared,
    )
