"""One serving design given as `--set key=value`, on or off the study's axes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from dse.errors import InputError
from dse.model.serving_pool import ANY, BOTH, ROLE_NAMES, Precision, Settings
from dse.units import DTYPE_BYTE

from .design_keys import DesignKeys
from .pd_serving_links import chosen_links, pair_keys
from .pd_serving_options import Regime
from .pd_serving_problem import PoolOffer, ServingProblem

_POOL_KEYS = ("n", "instance_size", "role", "prefill_batch", "max_decode_batch")
_FLEET_KEYS = ("link_gb_s", "link", "routing", "weight_dtype", "kv_dtype", "compute_dtype")


class ServingDesign:
    """Reads `--set key=value` into one design; InputError with every fault."""

    def __init__(self, problem: ServingProblem, given: Mapping[str, str]) -> None:
        names = [o.name for o in problem.pools]
        known = [f"{k}_{name}" for name in names for k in _POOL_KEYS]
        keys = DesignKeys(given, known + list(_FLEET_KEYS) + pair_keys(names))
        first = problem.precisions[0]
        precision = Precision(
            weight=keys.choice("weight_dtype", first.weight, DTYPE_BYTE),
            kv=keys.choice("kv_dtype", first.kv, DTYPE_BYTE),
            compute=keys.choice("compute_dtype", first.compute, DTYPE_BYTE),
        )
        self.regime = Regime(precision, keys.choice("routing", problem.routings[0], ("split", "work_stealing")))
        rows = [self._pool(keys, o) for o in problem.pools]
        self.pools = [_one(row) for row in rows]
        links, link_names, self.wiring = chosen_links(keys, problem.links, problem.link_names, names)
        for offer, row in zip(problem.pools, rows, strict=True):
            device = offer.device
            keys.computes_in(device.name, row[0], device.peak(precision.compute), precision.compute, device.peak_flop_s)
        keys.something_bought(row[0] for row in rows)
        if keys.faults:
            raise InputError(keys.faults)
        self.problem = replace(
            problem,
            links=links,
            link_names=link_names,
            wiring=self.wiring,
            precisions=(precision,),
            routings=(self.regime.routing,),
        )

    def _pool(self, keys: DesignKeys, offer: PoolOffer) -> tuple[int, int, int, int, int]:
        name = offer.name
        n = keys.whole(f"n_{name}", offer.counts[0], 0)
        fitting = [g for g in offer.instance_size if n % g == 0]
        g = keys.whole(f"instance_size_{name}", fitting[0] if fitting else offer.instance_size[0], 1)
        if n % g:
            keys.faults.append(f"--set n_{name}: got {n}, must be a multiple of instance_size_{name} = {g}")
        role = keys.choice(f"role_{name}", offer.roles[0], ROLE_NAMES[:3])
        code = ANY if self.regime.routing == "work_stealing" else ROLE_NAMES.index(role)
        prefill = keys.whole(f"prefill_batch_{name}", offer.prefill_batch[0], 1)
        decode = keys.whole(f"max_decode_batch_{name}", max(offer.max_decode_batch), 1)
        return (n, g, code if n else BOTH, prefill, decode)


def _one(row: tuple[int, int, int, int, int]) -> Settings:
    n, g, role, prefill, decode = (np.array([v], dtype=np.int64) for v in row)
    return Settings(n=n, g=g, role=role, prefill_batch=prefill, max_decode_batch=decode)
