"""Which link each pair of pools takes: the ways on offer, their names in results, and their `--set` keys.

A pair is called `<a>~<b>`, pools in the study's order: no pool's name has a `~`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from dse.model.links import LinkTable, Pair, Wiring, assigned, one_link_a_pair, one_link_for_all, pairs_of

from .design_keys import DesignKeys

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Objects = NDArray[np.object_]

MOST_WIRINGS = 4096
"""Ways to link pools that a grid numbers; each multiplies the number of designs."""
MOST_NUMBERED = 2**62
"""Grid indices are 64-bit integers."""


def wiring_on_offer(n_links: int, n_pools: int, *, per_pair: bool, n_settings: int) -> Wiring:
    """Every assignment of links to pairs, where a grid of `n_settings` designs a link can number them.

    Else, and with fewer than two pairs, one link for all pairs: designs that the grid lacks can still be given by
    their `--set` keys.
    """
    ways = n_ways(n_links, n_pools)
    if per_pair and n_pools > 2 and ways <= MOST_WIRINGS and ways * n_settings < MOST_NUMBERED:
        return one_link_a_pair(n_links, n_pools)
    return one_link_for_all(n_links, n_pools)


def n_ways(n_links: int, n_pools: int) -> int:
    """Assignments of links to pairs.

    >>> n_ways(3, 4)
    729
    """
    return int(n_links) ** math.comb(n_pools, 2)


def unnumbered(n_links: int, n_pools: int, n_settings: int) -> str:
    """Why the grid lacks assignments."""
    ways = n_ways(n_links, n_pools)
    many = f"a link per pair gives {ways:.4g} ways to link {n_pools} pools"
    if ways > MOST_WIRINGS:
        return f"{many}, at most {MOST_WIRINGS:,} are numbered; use a method that needs no grid (milp), or fewer links"
    return f"{many} and {ways * n_settings:.3g} designs, more than can be numbered; use milp, or shorten an axis"


def pair_names(pools: Sequence[str]) -> dict[Pair, str]:
    """What each pair of pools is called.

    >>> pair_names(["gpu", "wse-3"])
    {(0, 1): 'gpu~wse-3'}
    """
    return {(p, o): f"{pools[p]}~{pools[o]}" for p, o in pairs_of(len(pools))}


def pair_keys(pools: Sequence[str]) -> list[str]:
    """`--set` keys of the pairs, either pool first."""
    return [f"link_{pools[p]}~{pools[o]}" for a, b in pairs_of(len(pools)) for p, o in ((a, b), (b, a))]


def link_texts(names: Sequence[str], pools: Sequence[str], option: Ints, bought: Mapping[Pair, Bools]) -> Objects:
    """The links that designs buy, in words (N,): one name where all are alike, else pair by pair; `none` if none.

    >>> both = {(0, 1): np.array([True, True]), (0, 2): np.array([True, False]), (1, 2): np.array([False, False])}
    >>> link_texts(["slow", "fast"], ["a", "b", "c"], assigned(np.array([[0, 1, 0]] * 2), 3), both).tolist()
    ['a~b: slow, a~c: fast', 'slow']
    """
    called = pair_names(pools)
    texts = np.full(len(option), "none", dtype=object)
    least, most = np.full(len(option), len(names)), np.full(len(option), -1)
    for (p, o), used in bought.items():
        least = np.where(used, np.minimum(least, option[:, p, o]), least)
        most = np.where(used, np.maximum(most, option[:, p, o]), most)
    alike = least == most
    texts[alike] = np.array(names, dtype=object)[most[alike]]
    for i in np.flatnonzero(least < most):
        each = [f"{called[p, o]}: {names[option[i, p, o]]}" for (p, o), used in bought.items() if used[i]]
        texts[i] = ", ".join(each)
    return texts


def settings_of_links(text: str, pools: Sequence[str]) -> dict[str, str]:
    """The `--set` keys that give these links again.

    >>> settings_of_links("a~b: 1 x eth100, a~c: 2 x ndr400", ["a", "b", "c"])
    {'link_a~b': '1 x eth100', 'link_a~c': '2 x ndr400'}
    >>> settings_of_links("1 x eth100", ["a", "b"]), settings_of_links("none", ["a", "b"])
    ({'link': '1 x eth100'}, {})
    """
    if text == "none":
        return {}
    if not any(text.startswith(f"{name}: ") for name in pair_names(pools).values()):
        return {"link": text}
    each = (part.partition(": ") for part in text.split(", "))
    return {f"link_{pair}": name for pair, _, name in each}


def chosen_links(
    keys: DesignKeys, links: LinkTable, names: tuple[str, ...], pools: Sequence[str]
) -> tuple[LinkTable, tuple[str, ...], Wiring]:
    """The links on offer and those asked for: `link` or `link_gb_s` for all pairs, `link_<a>~<b>` for one."""
    table, table_names, for_all = keys.link(links, names)
    given = {}
    for (p, o), name in pair_names(pools).items():
        asked = [k for k in (f"link_{name}", f"link_{pools[o]}~{pools[p]}") if k in keys.given]
        if len(asked) > 1:
            keys.faults.append(f"--set {asked[0]}, {asked[1]}: name the same pair of pools; give one of them")
        if asked:
            given[p, o] = names.index(keys.choice(asked[0], names[0], names))
    offset = 0
    if given and table is not links:  # a raw bandwidth for all pairs but those named
        offset = len(table_names)
        table, table_names = _joined(table, links), table_names + names
    of_pairs = [given[pair] + offset if pair in given else for_all for pair in pairs_of(len(pools))]
    option = assigned(np.array([of_pairs], dtype=np.int64), len(pools))
    return table, table_names, Wiring(option=option, per_pair=bool(given))


def _joined(a: LinkTable, b: LinkTable) -> LinkTable:
    return LinkTable(
        byte_s=np.concatenate([a.byte_s, b.byte_s]),
        latency_s=np.concatenate([a.latency_s, b.latency_s]),
        usd_per_h=np.concatenate([a.usd_per_h, b.usd_per_h]),
        power_w=np.concatenate([a.power_w, b.power_w]),
    )
