"""alpha of eq. (5) from scored designs of two pools: the closed form `dse.model.asymmetry` fitted to a result frame."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dse.errors import InputError
from dse.hardware import Accelerator
from dse.model.asymmetry import AlphaFit, asymmetry, fit_alpha, pool_resources

LARGEST_ETA = 100.0
"""A pool that waits longer than this many times its work hardly takes part."""


def alpha_of_designs(frame: pd.DataFrame, pools: Sequence[tuple[str, Accelerator]], compute_dtype: str) -> AlphaFit:
    """Constant alpha, as eq. (5) is written, from the eta of every feasible design that has exactly two of the pools.

    `frame` is a run's candidates (columns `n_<pool>`, `eta_<pool>`, `feasible`). InputError without such designs.
    """
    asym, etas = [], []
    frame = frame[frame["feasible"].astype(bool)]
    bought = np.stack([frame[f"n_{name}"].to_numpy(dtype=np.float64) > 0 for name, _ in pools], axis=1)
    for i in range(len(pools)):
        for j in range(i + 1, len(pools)):
            two = frame[(bought.sum(axis=1) == 2) & bought[:, i] & bought[:, j]]
            between = asymmetry(*(_resources(two, *pools[k], compute_dtype) for k in (i, j)))
            for k in (i, j):
                eta = two[f"eta_{pools[k][0]}"].to_numpy(dtype=np.float64)
                takes_part = np.isfinite(eta) & (eta <= LARGEST_ETA)
                asym.append(between[takes_part])
                etas.append(eta[takes_part])
    if not sum(map(len, etas)):
        raise InputError("alpha: no feasible design of the run works on two pools; alpha needs some")
    derived = np.concatenate(etas)
    return fit_alpha(np.concatenate(asym), np.ones(len(derived)), derived)


def _resources(rows: pd.DataFrame, name: str, device: Accelerator, compute_dtype: str) -> NDArray[np.float64]:
    return pool_resources(
        rows[f"n_{name}"].to_numpy(dtype=np.float64),
        device.peak(compute_dtype) or 0.0,
        device.memory_bandwidth_byte_s,
        device.link_byte_s,
        device.memory_byte,
    )
