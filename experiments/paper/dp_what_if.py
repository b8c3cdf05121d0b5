"""Which number, in place of the catalogue's or the study's, would give the paper's own results in figures 5 and 7.

Nothing here is tuned into the model: each is what one statement would take by itself, all else as it is.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Final

import numpy as np

from dse.catalog import load_catalog
from dse.hardware import Efficiency

from .dp_fleet import Fleet, fleet
from .setting import PROFILE, study, with_efficiency
from .statement import nearest_that_holds

SLOWEST_TAU_S, SLOWEST_LINK_BYTE_S = 1.0, 1e8
"""Ends of what is tried."""
LEAST_COMPUTE = 0.15
"""The catalogue's low value for the wafer."""
NEAR_FULL: Final = 0.8
"""Share of its full rate at which a device counts as well used."""


def _wafer() -> Efficiency:
    return load_catalog().device("wse-3", PROFILE).efficiency["train"]


def _changed(model: str, **train: float) -> Fleet:
    """The same devices, the wafer with other efficiencies."""
    return fleet(model, n_gpu=_count(model), wse=with_efficiency("train", **train))


@cache
def _count(model: str) -> int:
    return fleet(model).n_gpu


def _instead(fixed_layer_s: float) -> str:
    now = _wafer().fixed_layer_s
    if math.isnan(fixed_layer_s):
        return "nothing that is fixed on the wafer"
    return f"{fixed_layer_s * 1e6:,.0f} us a layer fixed on the wafer instead of {now * 1e6:,.0f}"


def link_gb_s() -> float:
    """Between the two sides in the study."""
    return float(study("data_parallel.toml", {}).problem.links.byte_s[0]) / 1e9


def late_threshold_2(model: str, batch: int) -> str:
    """The link, and the wafer's fixed time, at which threshold 2 reaches a batch."""
    link = nearest_that_holds(
        lambda s: fleet(model, link_byte_s=s).scaling.threshold_2 >= batch, link_gb_s() * 1e9, SLOWEST_LINK_BYTE_S
    )
    tau = nearest_that_holds(
        lambda s: _changed(model, fixed_layer_s=s).scaling.threshold_2 >= batch, _wafer().fixed_layer_s, SLOWEST_TAU_S
    )
    if math.isnan(link):
        return f"threshold 2 is {batch} with no link, but with {_instead(tau)}"
    there = fleet(model, link_byte_s=link).scaling
    return (
        f"threshold 2 is {there.threshold_2:g} with a link of {link / 1e9:.0f} GB/s instead of {link_gb_s():.0f} "
        f"(threshold 1 is then {there.threshold_1:g}), or with {_instead(tau)}"
    )


def well_used_from(f: Fleet) -> float:
    """Smallest batch at which the wafer alone is well used."""
    rate = f.scaling.batch / f.scaling.alone_s[:, 1]
    return float(f.scaling.batch[np.argmax(rate >= NEAR_FULL * rate[-1])])


def late_use(model: str, batch: int) -> str:
    """The wafer's fixed time at which it is well used from this batch on."""
    tau = nearest_that_holds(
        lambda s: well_used_from(_changed(model, fixed_layer_s=s)) >= batch, _wafer().fixed_layer_s, SLOWEST_TAU_S
    )
    return f"from {batch} on with {_instead(tau)}"


def slack_link(model: str, batch: int, most_gb_s: float) -> str:
    """The wafer's compute efficiency at which the least bandwidth at a batch comes down to a value."""

    def holds(compute: float) -> bool:
        s = _changed(model, compute=compute).scaling
        return float(s.least_link_byte_s[s.batch == batch][0]) <= most_gb_s * 1e9

    compute = nearest_that_holds(holds, _wafer().compute, LEAST_COMPUTE)
    if math.isnan(compute):
        return f"{most_gb_s:g} GB/s with no compute efficiency of the wafer from {LEAST_COMPUTE:g} on"
    return f"{most_gb_s:g} GB/s with a compute efficiency of {compute:.3f} on the wafer instead of {_wafer().compute:g}"
