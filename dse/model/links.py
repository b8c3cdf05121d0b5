"""The links on offer between two pools, as numbers, and which of them each pair of pools takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations, product

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Pair = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkTable:
    """The links on offer, each as bought for one pair of pools (L,). PUE is inside the power."""

    byte_s: Floats
    latency_s: Floats
    usd_per_h: Floats
    power_w: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Wiring:
    """Ways to link pools: one of them is what a design calls its link."""

    option: Ints
    """Link of each pair of pools, the same both ways; 0 of a pool with itself (F, P, P)."""
    per_pair: bool
    """Every pair has its own link; else one link stands for all."""


def pairs_of(n_pools: int) -> list[Pair]:
    """Unordered pairs of pools, in the order of their numbers.

    >>> pairs_of(3)
    [(0, 1), (0, 2), (1, 2)]
    """
    return list(combinations(range(n_pools), 2))


def one_link_for_all(n_links: int, n_pools: int) -> Wiring:
    """As many ways as links: every pair has the same."""
    option = np.tile(np.arange(n_links)[:, None, None], (1, n_pools, n_pools))
    option[:, np.arange(n_pools), np.arange(n_pools)] = 0
    return Wiring(option=option, per_pair=False)


def one_link_a_pair(n_links: int, n_pools: int) -> Wiring:
    """Every assignment of links to pairs, the last pair fastest.

    >>> one_link_a_pair(2, 3).option[:, [0, 0, 1], [1, 2, 2]].tolist()[:3]
    [[0, 0, 0], [0, 0, 1], [0, 1, 0]]
    """
    choices = list(product(range(n_links), repeat=len(pairs_of(n_pools))))
    return Wiring(option=assigned(np.array(choices, dtype=np.int64), n_pools), per_pair=True)


def assigned(of_pairs: Ints, n_pools: int) -> Ints:
    """Links of the pairs (F, number of pairs) -> link of each pool with each other (F, P, P)."""
    option = np.zeros((len(of_pairs), n_pools, n_pools), dtype=np.int64)
    for i, (p, o) in enumerate(pairs_of(n_pools)):
        option[:, p, o] = option[:, o, p] = of_pairs[:, i]
    return option


def links_bill(links: LinkTable, option: Ints, bought: Mapping[Pair, Bools]) -> tuple[Floats, Floats]:
    """Cost [USD/h] and power [W] of the links that are bought; option (P, P) of a block or (N, P, P).

    Equal links are counted first, so that a fleet of one link costs its price times the number of pairs.
    """
    usd_per_h = power_w = np.zeros(option.shape[:-2])
    for link in np.unique([option[..., p, o] for p, o in bought]).astype(np.int64):
        taken = np.zeros(option.shape[:-2])
        for (p, o), used in bought.items():
            here = option[..., p, o] == link
            if here.any():
                taken = taken + (used if here.all() else used & here)
        usd_per_h = usd_per_h + taken * links.usd_per_h[link]
        power_w = power_w + taken * links.power_w[link]
    return usd_per_h, power_w
