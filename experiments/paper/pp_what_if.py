"""Which number, in place of the catalogue's or the layout's, would give the paper's own results in figures 8 and 10.

Nothing here is tuned into the model: each is what one statement would take by itself, all else as it is.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

from dse.catalog import load_catalog
from dse.hardware import Efficiency

from .pp_fleet import OFFLOADED, Layout, gpu_alone, hybrid, layers, wafer_alone
from .setting import PROFILE, Change, with_efficiency
from .statement import nearest_that_holds

SLOWEST_TAU_S: Final = 1.0
LEAST_COMPUTE: Final = 1e-4
"""Ends of what is tried."""


def _wafer() -> Efficiency:
    return load_catalog().device("wse-3", PROFILE).efficiency["train"]


def gains(at: Layout, wse: Change | None = None) -> bool:
    """Whether handing over some layers beats GPUs alone and the wafer at its best."""
    most = max(gpu_alone(at).samples_s, wafer_alone(at.model, wse=wse).samples_s)
    return any(hybrid(at, k, wse=wse).samples_s > most for k in OFFLOADED)


def no_gain(at: Layout) -> str:
    """The wafer's fixed time, and the stages of as many GPUs, at which no uniform offload gains."""
    now = _wafer().fixed_layer_s
    tau = nearest_that_holds(lambda s: not gains(at, with_efficiency("train", fixed_layer_s=s)), now, SLOWEST_TAU_S)
    fixed = (
        "with nothing that is fixed on the wafer"
        if math.isnan(tau)
        else f"with {tau * 1e6:,.0f} us a layer fixed on the wafer instead of {now * 1e6:,.0f}"
    )
    more = (replace(at, stages=k) for k in range(at.stages + 1, layers(at.model) // 2 + 1))
    enough = next((m for m in more if not gains(m)), None)
    stages = "with no number of stages" if enough is None else f"with {enough.stages} stages ({enough.n_gpu} A100)"
    return f"no gain {fixed}, or {stages}"


def no_crossing(at: Layout, micro_batch: int) -> str:
    """The wafer's compute efficiency, and the stages, at which it needs the threshold's time at this micro-batch."""
    now = _wafer().compute

    def above(compute: float) -> bool:
        found = hybrid(at, 1, micro_batch=micro_batch, wse=with_efficiency("train", compute=compute))
        return float(found.system["wafer_layer_s"]) >= float(found.system["offload_threshold_s"])

    compute = nearest_that_holds(above, now, LEAST_COMPUTE)
    found = hybrid(at, 1, micro_batch=micro_batch).system
    stages = at.stages * math.sqrt(float(found["offload_threshold_s"]) / float(found["wafer_layer_s"]))
    return (
        f"above it up to {micro_batch} with a compute efficiency of {compute:.2g} on the wafer instead of {now:g}, "
        f"or with {math.ceil(stages)} stages"
    )
