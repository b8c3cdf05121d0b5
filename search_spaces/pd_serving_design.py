"""One serving design given as `--set key=value`, on or off the study's axes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from dse.errors import InputError, unknown_name
from dse.model.links import LinkTable
from dse.model.serving_pool import (
    ANY,
    BOTH,
    ROLE_NAMES,
    Precision,
    Settings,
)
from dse.units import DTYPE_BYTE

from .fleet_study import MAX_DEVICES
from .pd_serving_options import Regime
from .pd_serving_problem import PoolOffer, ServingProblem

_POOL_KEYS = ("n", "instance_size", "role", "prefill_batch", "max_decode_batch")


class DesignKeys:
    """Reads `--set key=value` into one design; InputError with every fault."""

    def __init__(self, problem: ServingProblem, given: Mapping[str, str]) -> None:
        self.faults: list[str] = []
        self._given = dict(given)
        known = [f"{k}_{o.name}" for o in problem.pools for k in _POOL_KEYS]
        known += ["link_gb_s", "link", "routing", "weight_dtype", "kv_dtype", "compute_dtype"]
        self.faults += [unknown_name("--set", "design key", k, known) for k in given if k not in known]
        first = problem.precisions[0]
        precision = Precision(
            weight=self._choice("weight_dtype", first.weight, DTYPE_BYTE),
            kv=self._choice("kv_dtype", first.kv, DTYPE_BYTE),
            compute=self._choice("compute_dtype", first.compute, DTYPE_BYTE),
        )
        routing = self._choice("routing", problem.routings[0], ("split", "work_stealing"))
        self.regime = Regime(precision, "split" if routing == "split" else "work_stealing")
        rows = [self._pool(o) for o in problem.pools]
        self.pools = [_one(row) for row in rows]
        links, names, self.link = self._link(problem)
        for offer, row in zip(problem.pools, rows, strict=True):
            if row[0] and not offer.device.peak(precision.compute):
                has = ", ".join(offer.device.peak_flop_s)
                self.faults.append(f"--set compute_dtype={precision.compute}: {offer.device.name} computes in {has}")
        if not any(row[0] for row in rows) and not self.faults:
            self.faults.append("--set: every pool has 0 devices; give at least one n_<pool>")
        if self.faults:
            raise InputError(self.faults)
        self.problem = replace(
            problem, links=links, link_names=names, precisions=(precision,), routings=(self.regime.routing,)
        )

    def _choice(self, key: str, default: str, allowed: Sequence[str] | Mapping[str, float]) -> str:
        value = self._given.get(key, default)
        if value not in allowed:
            self.faults.append(f"--set {key}: got {value!r}, must be one of {', '.join(allowed)}")
            return default
        return value

    def _whole(self, key: str, default: int, at_least: int) -> int:
        text = self._given.get(key)
        if text is None:
            return default
        value = int(text) if re.fullmatch(r"[0-9]{1,9}", text) else -1
        if not at_least <= value <= MAX_DEVICES:
            allowed = f"must be a whole number, at least {at_least} and at most {MAX_DEVICES:,}"
            self.faults.append(f"--set {key}: got {text!r}, {allowed}")
            return default
        return value

    def _pool(self, offer: PoolOffer) -> tuple[int, int, int, int, int]:
        name = offer.name
        n = self._whole(f"n_{name}", offer.counts[0], 0)
        fitting = [g for g in offer.instance_size if n % g == 0]
        g = self._whole(f"instance_size_{name}", fitting[0] if fitting else offer.instance_size[0], 1)
        if n % g:
            self.faults.append(f"--set n_{name}: got {n}, must be a multiple of instance_size_{name} = {g}")
        role = self._choice(f"role_{name}", offer.roles[0], ROLE_NAMES[:3])
        code = ANY if self.regime.routing == "work_stealing" else ROLE_NAMES.index(role)
        prefill = self._whole(f"prefill_batch_{name}", offer.prefill_batch[0], 1)
        decode = self._whole(f"max_decode_batch_{name}", max(offer.max_decode_batch), 1)
        return (n, g, code if n else BOTH, prefill, decode)

    def _link(self, problem: ServingProblem) -> tuple[LinkTable, tuple[str, ...], int]:
        names = problem.link_names
        if "link" in self._given:
            name = self._choice("link", names[0], names)
            return problem.links, names, names.index(name)
        text = self._given.get("link_gb_s")
        if text is None:
            return problem.links, names, 0
        gb_s = float(text) if re.fullmatch(r"[0-9.]{1,20}(e[+-]?[0-9]{1,3})?", text) and text.count(".") < 2 else -1.0
        if not 1e-6 <= gb_s <= 1e9:
            self.faults.append(f"--set link_gb_s: got {text[:40]!r}, must be a number of GB/s, 1e-6 to 1e9")
            return problem.links, names, 0
        on_offer = np.flatnonzero(np.isclose(problem.links.byte_s, gb_s * 1e9, rtol=1e-12, atol=0.0))
        if len(on_offer):
            return problem.links, names, int(on_offer[0])
        latency = float(problem.links.latency_s[0])
        raw = LinkTable(
            byte_s=np.array([gb_s * 1e9]),
            latency_s=np.array([latency]),
            usd_per_h=np.zeros(1),
            power_w=np.zeros(1),
        )
        return raw, (f"{gb_s:.12g} GB/s",), 0


def _one(row: tuple[int, int, int, int, int]) -> Settings:
    n, g, role, prefill, decode = (np.array([v], dtype=np.int64) for v in row)
    return Settings(n=n, g=g, role=role, prefill_batch=prefill, max_decode_batch=decode)
