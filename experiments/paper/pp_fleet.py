"""The fleets of figures 8 and 10 to 12: one pipeline of A100s, and one WSE-3 that serves its stages (section 5.3).

The paper prints no counts: it selects hardware "according to the deployment and parallelization requirements" of each
workload (section 5.1). Ours follow one rule for all models:

- Four stages: the most that divide the layers of all four models and leave each stage a layer of its own when four are
  handed over, as Fig. 8 does.
- Each stage on as few GPUs of a node (1, 2, 4 or 8; 40 GB, the paper's table 2) as hold the model at micro-batch 1,
  both without offload and with one layer of each stage handed over, which keeps more micro-batches in flight. Where a
  whole node is too small, the next number of stages that divides the layers.

That makes 8, 8, 32 and 64 A100: whole DGX nodes. GPUs and wafer alone then add up to 50 samples/s for 7B, and so do the
bars of Fig. 12, whose axis ends there. Without offload five stages of a node, 40 A100, would hold 70B.

- Beside it, `of_table_3`: a stage on each node of the paper's table 3, four GPUs, and its cluster of eight nodes.
- 1F1B, selective recomputation, 2048 tokens a sequence, 1024 sequences a step.
- Decoupled (figures 11 and 12): the same GPUs as one, two, four or eight pipelines of as many stages, with the
  optimizer's states shared out among the pipelines (ZeRO stage 1).
- 150 GB/s between the two sides, which is what the ports of one wafer system carry.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from dse.catalog import load_catalog
from dse.errors import InputError
from search_spaces.pp_training import PpSpace

from .setting import MODELS, Change, changed, study, with_memoryx

FILE: Final = "pipeline.toml"
GLOBAL_BATCH: Final = 1024
STAGES: Final = 4
SIZES: Final = (1, 2, 4, 8)
"""GPUs of a stage: a node or less."""
OFFLOADED: Final = (1, 2, 3, 4)
"""Layers of each stage that Fig. 8 hands to the wafer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """One pipeline: a model, its stages, and what each runs on."""

    model: str
    stages: int
    gpus_a_stage: int

    @property
    def n_gpu(self) -> int:
        """GPUs of the pipeline."""
        return self.stages * self.gpus_a_stage

    @property
    def layers_a_stage(self) -> float:
        """Where nothing is handed over; whole in the layouts of the rule."""
        return layers(self.model) / self.stages


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """One design: its columns, and what explains the whole."""

    row: Mapping[str, Any]
    system: Mapping[str, Any]

    @property
    def samples_s(self) -> float:
        """Throughput; 0 where it cannot run."""
        return float(self.row["throughput_samples_s"])

    @property
    def verdict(self) -> str:
        """`feasible`, `memory violation` or `structurally infeasible`."""
        return str(self.system["verdict"])


def layers(model: str) -> int:
    """Layers of one of the paper's models."""
    return load_catalog().model(MODELS[model]).layers


@cache
def layout(model: str) -> Layout:
    """The pipeline of a model by the rule above."""
    return _smallest(model, STAGES, SIZES)


@cache
def of_table_3(model: str) -> Layout:
    """A stage on each node of four; eight of them are the cluster of table 3, and more where memory asks for it."""
    return _smallest(model, 8, (4,))


def _smallest(model: str, least_stages: int, sizes: tuple[int, ...]) -> Layout:
    for stages in range(least_stages, layers(model) + 1):
        if layers(model) % stages == 0:
            for g in sizes:
                at = Layout(model=model, stages=stages, gpus_a_stage=g)
                if gpu_alone(at).verdict == hybrid(at, OFFLOADED[0]).verdict == "feasible":
                    return at
    raise InputError(f"{FILE}: no number of stages of {max(sizes)} GPUs or less holds {model}, offload or not")


@cache
def space(model: str, wse: Change | None = None, gpu: Change | None = None) -> PpSpace:
    """The designs of one model; the wafer and the GPU may be changed to ask what if."""
    problem = changed(study(FILE, {"model": MODELS[model]}).problem, "wse", with_memoryx)
    problem = changed(problem, "wse", wse) if wse else problem
    return PpSpace(changed(problem, "gpu", gpu) if gpu else problem)


def settings_of(
    at: Layout, *, offload: int, micro_batch: int = 1, pipelines: int = 1, collect: int = 1
) -> dict[str, str]:
    """The keys of a design whose GPUs form some pipelines, with or without the wafer."""
    values = {
        "n_gpu": at.n_gpu,
        "instance_size_gpu": at.gpus_a_stage // pipelines,
        "stages_gpu": at.stages,
        "micro_batch_gpu": micro_batch,
        "n_wse": 1 if offload else 0,
        "offload_layers": offload,
    }
    if offload:
        values["collect"] = collect
    return {key: str(value) for key, value in values.items()}


def _score(found: PpSpace, settings: Mapping[str, str]) -> Scored:
    columns, explained = found.score_design(settings)
    return Scored(row={name: values[0] for name, values in columns.items()}, system=explained["system"])


def gpu_alone(at: Layout, *, micro_batch: int = 1, pipelines: int = 1) -> Scored:
    """The pipeline without a wafer."""
    return _score(space(at.model), settings_of(at, offload=0, micro_batch=micro_batch, pipelines=pipelines))


def wafer_alone(model: str, *, batch: int = GLOBAL_BATCH, wse: Change | None = None) -> Scored:
    """One wafer that holds the whole model and runs a batch at once."""
    keys = {"n_gpu": 0, "n_wse": 1, "offload_layers": 0, "global_batch": batch}
    return _score(space(model, wse), {key: str(value) for key, value in keys.items()})


def hybrid(
    at: Layout,
    offload: int,
    *,
    micro_batch: int = 1,
    pipelines: int = 1,
    collect: int = 1,
    link_gb_s: float = 0.0,
    wse: Change | None = None,
    gpu: Change | None = None,
) -> Scored:
    """The pipeline with some layers of each stage on the wafer; another link may be given to ask what if."""
    keys = settings_of(at, offload=offload, micro_batch=micro_batch, pipelines=pipelines, collect=collect)
    link = {"link_gb_s": repr(link_gb_s)} if link_gb_s else {}
    return _score(space(at.model, wse, gpu), keys | link)
