"""One fleet for several scenarios given as `--set key=value`, on or off the study's axes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from dse.errors import InputError
from dse.model.links import LinkTable
from dse.model.robust_serving import ADAPTIVE, FIXED
from dse.model.serving_pool import ANY, BOTH, ROLE_NAMES

from .design_keys import DesignKeys
from .robust_serving_options import Row, settings_of_rows
from .robust_serving_problem import RobustOffer, RobustProblem
from .robust_serving_study import ADAPTATIONS

_POOL_KEYS = ("n", "instance_size", "role", "prefill_batch", "max_decode_batch")
_FLEET_KEYS = ("link_gb_s", "link", "adaptation")


class RobustDesign:
    """Reads `--set key=value` into one design; InputError with every fault."""

    def __init__(self, problem: RobustProblem, given: Mapping[str, str]) -> None:
        known = [f"{k}_{o.name}" for o in problem.pools for k in _POOL_KEYS]
        keys = DesignKeys(given, known + list(_FLEET_KEYS))
        self.adaptation = keys.choice("adaptation", problem.adaptations[0], ADAPTATIONS)
        rows = [self._pool(keys, o) for o in problem.pools]
        links, names, link = keys.link(problem.links, problem.link_names)
        dtype = problem.precision.compute
        for offer, row in zip(problem.pools, rows, strict=True):
            keys.computes_in(offer.device.name, row[0], offer.device.peak(dtype), dtype, offer.device.peak_flop_s)
        keys.something_bought(row[0] for row in rows)
        if keys.faults:
            raise InputError(keys.faults)
        self.settings = [settings_of_rows([row]) for row in rows]
        self.problem = replace(
            problem,
            links=_only(links, link),
            link_names=(names[link],),
            adaptations=(self.adaptation,),
            pools=tuple(_alone(o, row) for o, row in zip(problem.pools, rows, strict=True)),
        )

    def _pool(self, keys: DesignKeys, offer: RobustOffer) -> Row:
        name = offer.name
        n = keys.whole(f"n_{name}", offer.counts[0], 0)
        if self.adaptation == ADAPTIVE:
            return (n, 0, ANY, 0, 0)
        fitting = [g for g in offer.instance_size if n % g == 0]
        g = keys.whole(f"instance_size_{name}", fitting[0] if fitting else offer.instance_size[0], 1)
        if n % g:
            keys.faults.append(f"--set n_{name}: got {n}, must be a multiple of instance_size_{name} = {g}")
        role = keys.choice(f"role_{name}", offer.roles[0], ROLE_NAMES[:3])
        prefill = keys.whole(f"prefill_batch_{name}", offer.prefill_batch[0], 1)
        decode = keys.whole(f"max_decode_batch_{name}", max(offer.max_decode_batch), 1)
        code = ROLE_NAMES.index(role) if self.adaptation == FIXED else ANY
        return (n, g, code if n or self.adaptation != FIXED else BOTH, prefill, decode)


def _only(links: LinkTable, link: int) -> LinkTable:
    """The table with one link."""
    at = np.array([link])
    return LinkTable(
        byte_s=links.byte_s[at], latency_s=links.latency_s[at], usd_per_h=links.usd_per_h[at], power_w=links.power_w[at]
    )


def _alone(offer: RobustOffer, row: Row) -> RobustOffer:
    """The offer with the axes of one setting; where devices are divided anew the study's own sizes and batches stay."""
    n, g, role, prefill, decode = row
    if g == 0:
        return replace(offer, counts=(n,))
    roles = (ROLE_NAMES[role],) if role in range(3) else offer.roles
    one = replace(offer, counts=(n,), instance_size=(g,), prefill_batch=(prefill,), max_decode_batch=(decode,))
    return replace(one, roles=roles)  # type: ignore[arg-type]
