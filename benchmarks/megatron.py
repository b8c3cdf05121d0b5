"""The profile `megatron`: eight published iterations of Megatron-LM on A100s, fitted with the pipeline model.

Source: Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", arXiv:2205.05198, tables 3
and 5: GPT models of 22B to 1T on A100 80 GB, sequences of 2048, tensor parallel 8, no data parallelism; seconds of an
iteration with full, and with selective recomputation. `benchmarks/profiles.py` writes the result to the catalogue.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from dse.calibration.accuracy import Accuracy, accuracy, interval
from dse.resolve import Study

Floats = NDArray[np.float64]

MODELS = {
    "22B": (64, 6144, 48, 1, 4, 4, 1, 1.42, 1.10),
    "175B": (96, 12288, 96, 8, 64, 1, 3, 18.13, 13.75),
    "530B": (128, 20480, 105, 35, 280, 1, 3, 49.05, 37.83),
    "1T": (160, 25600, 128, 64, 512, 1, 1, 94.42, 71.49),
}
"""Heads, hidden, layers, stages, global batch, micro-batch, interleaved pieces, seconds full, seconds selective."""
LOW, HIGH = np.log([0.2, 0.01]), np.log([1.0, 1.0])


@dataclass(frozen=True, kw_only=True)
class Run:
    """One iteration as measured, and the study that predicts it."""

    model: str
    study: Study
    measured_s: float


@dataclass(frozen=True, kw_only=True)
class Megatron:
    """The profile's numbers, and how far off they are."""

    compute: float
    attention: float
    own: Accuracy
    held_out: Accuracy
    """Each model predicted by a fit to the others."""
    low: float
    high: float
    mean_pct: float
    """Mean and worst of |predicted/measured - 1| on the models held out, as others print it."""
    worst_pct: float


def runs() -> list[Run]:
    """The eight iterations."""
    found = []
    for name, (heads, hidden, layers, stages, batch, micro, chunks, full, selective) in MODELS.items():
        for recompute, seconds in (("full", full), ("selective", selective)):
            pool = {
                "device": "a100-80gb-sxm",
                "profile": "hardware",
                "name": "a100",
                "count": [8 * stages],
                "instance_size": 8,
                "stages": stages,
                "micro_batch": micro,
                "schedule": "interleaved" if chunks > 1 else "1f1b",
                "chunks": chunks,
            }
            workload = {"sequence_tokens": 2048, "global_batch": batch, "recompute": recompute}
            with tempfile.TemporaryDirectory() as folder:
                config = {"model_type": "gpt2", "n_layer": layers, "n_embd": hidden, "n_head": heads,
                          "n_inner": 4 * hidden, "vocab_size": 51200, "activation_function": "gelu",
                          "tie_word_embeddings": True}  # fmt: skip
                (Path(folder) / "config.json").write_text(json.dumps(config), encoding="utf-8")
                study = Study.from_dict(
                    {
                        "name": name,
                        "paradigm": "pp_training",
                        "workload": {"model": "config.json", **workload},
                        "pool": [pool],
                    },
                    folder=folder,
                )
            found.append(Run(model=name, study=study, measured_s=seconds))
    return found


def log_errors(numbers: Floats, some: Sequence[Run]) -> Floats:
    """log(predicted/measured) with these logarithms of e_c and e_a."""
    compute, attention = np.exp(numbers)
    errors = []
    for run in some:
        offer = run.study.problem.pools[0]
        train = replace(offer.device.efficiency["train"], compute=float(compute), attention=float(attention))
        device = replace(offer.device, efficiency={**offer.device.efficiency, "train": train})
        problem = replace(run.study.problem, pools=(replace(offer, device=device),))
        columns, _ = run.study.paradigm.space(problem).score_design({"n_a100": str(offer.counts[0])})
        errors.append(np.log(float(columns["step_time_s"][0]) / run.measured_s))
    return np.array(errors)


def fitted(some: Sequence[Run]) -> Floats:
    """Logarithms of e_c and e_a that explain some iterations best; the fixed time is the hardware's."""
    found = least_squares(lambda x: log_errors(x, some), np.log([0.7, 0.2]), bounds=(LOW, HIGH))
    return np.asarray(found.x, dtype=np.float64)


def megatron() -> Megatron:
    """The profile."""
    measured = runs()
    numbers = fitted(measured)
    out = np.concatenate([
        log_errors(fitted([r for r in measured if r.model != name]), [r for r in measured if r.model == name])
        for name in MODELS
    ])  # fmt: skip
    low, high = interval(out)
    return Megatron(
        compute=float(np.exp(numbers[0])),
        attention=float(np.exp(numbers[1])),
        own=accuracy(log_errors(numbers, measured)),
        held_out=accuracy(out),
        low=low,
        high=high,
        mean_pct=100 * float(np.abs(np.expm1(out)).mean()),
        worst_pct=100 * float(np.abs(np.expm1(out)).max()),
    )


if __name__ == "__main__":
    print(megatron())
