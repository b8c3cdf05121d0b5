"""Iteration times of Megatron-LM on A100s against the pipeline model, with the catalogue's profile `hardware`.

Source: Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", arXiv:2205.05198, tables 3
and 5: GPT models of 22B, 175B, 530B and 1T on A100 80 GB, sequences of 2048, tensor parallel 8, no data parallelism;
seconds of an iteration with full recomputation and without sequence parallelism, and with selective recomputation and
sequence parallelism. That profile's training efficiency of the A100 was fitted to MPT runs, not to these. The
default profile is cautious: it may be slower than was measured, but not much faster.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dse.resolve import Study
from dse.scoring import score

CASES = {
    "22B": (64, 6144, 48, 1, 4, 4, 1, 1.42, 1.10),
    "175B": (96, 12288, 96, 8, 64, 1, 3, 18.13, 13.75),
    "530B": (128, 20480, 105, 35, 280, 1, 3, 49.05, 37.83),
    "1T": (160, 25600, 128, 64, 512, 1, 1, 94.42, 71.49),
}
"""Heads, hidden, layers, stages, global batch, micro-batch, interleaved pieces, seconds full, seconds selective."""
LARGEST_ERROR = 0.25
"""A check of orders of magnitude: another software stack, another fit."""
LARGEST_PROMISE = 0.10
"""How much faster than measured the default profile may be."""


def predicted_s(folder: Path, name: str, recompute: str, profile: str) -> float:
    heads, hidden, layers, stages, batch, micro, chunks, _, _ = CASES[name]
    config = {
        "model_type": "gpt2",
        "n_layer": layers,
        "n_embd": hidden,
        "n_head": heads,
        "n_inner": 4 * hidden,
        "vocab_size": 51200,
        "activation_function": "gelu",
        "tie_word_embeddings": True,
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    schedule = "interleaved" if chunks > 1 else "1f1b"
    study = Study.from_dict(
        {
            "name": name,
            "paradigm": "pp_training",
            "workload": {
                "model": "config.json",
                "sequence_tokens": 2048,
                "global_batch": batch,
                "recompute": recompute,
            },
            "pool": [
                {
                    "device": "a100-80gb-sxm",
                    "name": "a100",
                    "profile": profile,
                    "count": [8 * stages],
                    "instance_size": 8,
                    "stages": stages,
                    "micro_batch": micro,
                    "schedule": schedule,
                    "chunks": chunks,
                }
            ],
        },
        folder=folder,
    )
    row = score(study, {"n_a100": 8 * stages}).iloc[0]
    assert row["infeasible_reason"] == "", row["infeasible_reason"]
    return float(row["step_time_s"])


@pytest.mark.parametrize("name", CASES)
def test_iteration_times_are_of_the_right_size(name: str, tmp_path: Path) -> None:
    *_, full, selective = CASES[name]
    for recompute, measured in (("full", full), ("selective", selective)):
        error = predicted_s(tmp_path, name, recompute, "hardware") / measured - 1
        print(f"{name} {recompute}: {error:+.1%}")
        assert abs(error) < LARGEST_ERROR, f"{name} {recompute}: {error:+.1%}"


@pytest.mark.parametrize("name", CASES)
def test_default_promises_little_more_than_was_measured(name: str, tmp_path: Path) -> None:
    *_, full, selective = CASES[name]
    for recompute, measured in (("full", full), ("selective", selective)):
        default = predicted_s(tmp_path, name, recompute, "default")
        error = default / measured - 1
        print(f"{name} {recompute}, default profile: {error:+.1%}")
        assert error > -LARGEST_PROMISE, f"{name} {recompute}: {error:+.1%}"
        assert default > predicted_s(tmp_path, name, recompute, "hardware")
