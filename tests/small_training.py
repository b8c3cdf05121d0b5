"""Small training studies that many tests use: A100 and WSE-3 on Llama-2-7B, data parallel and as a pipeline."""

from __future__ import annotations

import copy
from typing import Any

GPU: dict[str, Any] = {
    "device": "a100-40gb-sxm", "name": "gpu", "count": {"min": 0, "max": 16, "step": 8}, "instance_size": [4, 8],
    "micro_batch": [1, 4], "zero_stage": [1, 3],
}  # fmt: skip
WSE: dict[str, Any] = {"device": "wse-3", "name": "wse", "count": {"min": 0, "max": 2}}


def data_parallel(**changes: Any) -> dict[str, Any]:
    """Shares of a batch on two pools, with a run to a number of tokens and failures."""
    study: dict[str, Any] = {
        "name": "small-dp",
        "paradigm": "dp_training",
        "workload": {
            "model": "llama-2-7b",
            "sequence_tokens": 2048,
            "global_batch": [128, 512],
            "recompute": ["none", "full"],
            "train_tokens": 1e11,
        },
        "pool": [GPU, WSE],
        "link": {"bandwidth_gb_s": [10, 100]},
        "failures": {"mtbf_device_h": 40_000, "checkpoint_s": 60, "restart_s": 300},
    }
    return copy.deepcopy(study | changes)


def pipelined(**changes: Any) -> dict[str, Any]:
    """Stages on GPUs, layers of them on wafers."""
    gpu = GPU | {"stages": [1, 2], "schedule": ["1f1b", "gpipe"], "offload_layers": [0, 1], "collect": [1, 2]}
    return data_parallel(name="small-pp", paradigm="pp_training", pool=[gpu, WSE]) | changes


MIXED = {"n_gpu": {"min": 8}, "n_wse": {"min": 1}}
"""Limits that leave mixes only."""
