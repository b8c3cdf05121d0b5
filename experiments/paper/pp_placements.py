"""Every way of pairing GPU pipelines with one wafer at micro-batches of their own (figures 11 and 12).

The GPUs of Fig. 8 form R = 1, 2, 4 or 8 pipelines of as many stages; the wafer collects q of their micro-batches m_g,
m_w = q m_g, q divides R; each stage hands over k layers and keeps one at least.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Final

import numpy as np
import pandas as pd

from dse.model.pp_training_explain import verdict
from search_spaces.pp_training import PpSpace

from .pp_fleet import FILE, SIZES, layout
from .setting import MODELS, changed, study, with_memory, with_memoryx

AMPLE_BYTE: Final = 1e13
MICRO_BATCHES: Final = (1, 2, 4, 8, 16, 32, 64)
FEASIBLE, VIOLATION, INFEASIBLE = VERDICTS = ("feasible", "memory violation", "structurally infeasible")


@cache
def placements(model: str, gpu_memory_byte: float = 0.0) -> pd.DataFrame:
    """One row for each R, m_g, m_w and k whose m_w is q m_g: its verdict, and its throughput (0 if it cannot run).

    A memory of the GPUs may be given to ask what if; `gpu_needs_byte` is what a placement takes of it.
    """
    found = _space(model, gpu_memory_byte)
    offer = found.problem.pools[0]
    gpu, wafer = found.options
    rows = np.stack([np.arange(len(gpu)), np.full(len(gpu), len(wafer) - 1)]).astype(np.int64)
    parts = []
    for regime in found.regimes:
        scored = found.evaluated(found.system(regime), rows, np.zeros(len(gpu), dtype=np.int64))
        parts.append(
            pd.DataFrame(
                {
                    "model": model,
                    "pipelines": gpu.replicas.astype(int),
                    "gpu_micro_batch": gpu.micro_batch,
                    "wse_micro_batch": gpu.micro_batch * regime.collect,
                    "collect": regime.collect,
                    "offload_layers": regime.offload_layers,
                    "verdict": [verdict(scored, i) for i in range(len(gpu))],
                    "samples_s": scored.columns["throughput_samples_s"],
                    "gpu_needs_byte": offer.device.memory_byte
                    - scored.steps.margin_byte[:, 0] / (1.0 - offer.reserve_frac),
                    "wse_memory_short": scored.steps.margin_byte[:, 1] < 0,
                }
            )
        )
    return pd.concat(parts, ignore_index=True)


def _space(model: str, gpu_memory_byte: float) -> PpSpace:
    at = layout(model)
    split = [g for g in SIZES if at.gpus_a_stage % g == 0]
    pools: Mapping[str, Mapping[str, object]] = {
        "gpu": {"count": [at.n_gpu], "instance_size": split, "stages": [at.stages], "micro_batch": list(MICRO_BATCHES)},
        "wse": {
            "count": [1],
            "offload_layers": list(range(1, int(at.layers_a_stage))),
            "collect": [at.gpus_a_stage // g for g in reversed(split)],
        },
    }
    problem = study(FILE, {"model": MODELS[model]}, pools).problem
    if gpu_memory_byte:
        problem = changed(problem, "gpu", with_memory(gpu_memory_byte))
    return PpSpace(changed(problem, "wse", with_memoryx))


def memory_that_gives(model: str, samples_s: float) -> float:
    """Least memory of a GPU [byte] with which decoupled pipelines are faster than this; infinite if none suffices."""
    found = placements(model, AMPLE_BYTE)
    faster = (found["collect"] > 1) & (found["samples_s"] > samples_s)
    return float(min(found.loc[faster, "gpu_needs_byte"], default=np.inf))


def by_micro_batches(model: str) -> pd.DataFrame:
    """One row for each pair of micro-batches: what stands in the way of one layer a stage, and the fastest for any k.

    Of several R the best verdict counts. A wafer's micro-batch that is no multiple of the GPUs' has no structure.
    """
    found = placements(model).set_index(["gpu_micro_batch", "wse_micro_batch"]).sort_index()
    pairs = pd.MultiIndex.from_product([MICRO_BATCHES, MICRO_BATCHES], names=found.index.names)
    one_layer = found[found["offload_layers"] == 1].groupby(level=[0, 1])["verdict"].agg(best_verdict)
    fits = found[found["verdict"] == FEASIBLE]
    least = fits.groupby(level=[0, 1])["offload_layers"].min()
    fastest = fits.sort_values("samples_s").groupby(level=[0, 1]).tail(1)
    short = found["wse_memory_short"].groupby(level=[0, 1]).any()
    rows = pd.DataFrame(
        {
            "model": model,
            "verdict": one_layer.reindex(pairs, fill_value=INFEASIBLE),
            "least_layers": least.reindex(pairs, fill_value=0),
            "wse_memory_short": short.reindex(pairs, fill_value=False),
            "samples_s": fastest["samples_s"].reindex(pairs, fill_value=0.0),
            "pipelines": fastest["pipelines"].reindex(pairs, fill_value=0),
            "offload_layers": fastest["offload_layers"].reindex(pairs, fill_value=0),
        }
    )
    return rows.reset_index()


def best_verdict(verdicts: pd.Series) -> str:
    """The one nearest to feasible.

    >>> best_verdict(pd.Series(["structurally infeasible", "memory violation"]))
    'memory violation'
    """
    return min(verdicts, key=VERDICTS.index)
