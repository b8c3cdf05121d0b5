"""What is left to search of a frontier: boxes below known points (any number of minimised objectives).

A box holds every point y with y < u for its upper corner u. A point z splits every box that contains it into boxes
with one side of u lowered to z's (the local upper bounds of Klamroth, Lacour, Vanderpooten, EJOR 245(3), 2015,
doi:10.1016/j.ejor.2015.03.031). The boxes together hold every point that no known point dominates; each is in no other.
Two objectives leave at most one box more than points, three about two boxes a point.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Box:
    """Upper corner, and how many of the programs are known to have no plan in it."""

    upper: Floats
    empty_in: int = 0


def shrink(boxes: Sequence[Box], point: Floats) -> list[Box]:
    """Boxes that cover what a point leaves open, without those inside another.

    >>> [box.upper.tolist() for box in shrink([Box(np.array([np.inf, np.inf]))], np.array([1.0, 2.0]))]
    [[1.0, inf], [inf, 2.0]]
    """
    split = [bool((point < box.upper).all()) for box in boxes]
    kept = [box for box, inside in zip(boxes, split, strict=True) if not inside]
    fresh = [
        replace(box, upper=np.where(np.arange(len(point)) == axis, point, box.upper))
        for box, inside in zip(boxes, split, strict=True)
        if inside
        for axis in range(len(point))
    ]
    if not fresh:
        return kept
    corners = np.array([box.upper for box in (*kept, *fresh)])
    result = kept
    for i, box in enumerate(fresh, start=len(kept)):
        around = np.asarray((box.upper <= corners).all(axis=1))
        same = np.asarray((box.upper == corners).all(axis=1))
        around[i] = False
        around[i + 1 :] &= ~same[i + 1 :]
        if not around.any():
            result.append(box)
    return result


def sizes(boxes: Sequence[Box], ideal: Floats, width: Floats) -> Floats:
    """Share of the search range, from the ideal point up by its width, that each box holds (N,)."""
    sides = np.clip((np.array([box.upper for box in boxes]) - ideal) / width, 0.0, 1.0)
    return np.asarray(sides.prod(axis=1))
