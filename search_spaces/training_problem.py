"""A training study in numbers: the catalogue's values in place of names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dse.hardware import Accelerator
from dse.model.links import LinkTable
from dse.model.training_memory import Recompute
from dse.model.training_run import TrainingRun
from dse.model.training_work import TrainingWork, training_work
from dse.study import Site
from dse.units import SECONDS_PER_HOUR
from dse.workload import Transformer

from .fleet_problem import link_table, portable_tables
from .fleet_study import find_device, find_model, pool_name
from .training_study import TrainingPool, TrainingStudy


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainingOffer:
    """One pool's axes, resolved."""

    name: str
    device: Accelerator
    counts: tuple[int, ...]
    owned: int
    instance_size: tuple[int, ...]
    micro_batch: tuple[int, ...]
    zero_stage: tuple[int, ...]
    stages: tuple[int, ...]
    """(1,) in data parallel."""
    reserve_frac: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingProblem:
    """A training study in numbers."""

    model: Transformer
    sequence_tokens: float
    compute_dtypes: tuple[str, ...]
    recompute: tuple[Recompute, ...]
    global_batch: tuple[int, ...]
    overlap_frac: float
    run: TrainingRun
    pools: tuple[TrainingOffer, ...]
    links: LinkTable
    link_names: tuple[str, ...]
    raw_links: bool
    """Links given as bandwidths: they cost 0, which reports flag."""
    site: Site

    def work(self, recompute: Recompute) -> TrainingWork:
        """Arithmetic of one sequence under one recompute mode."""
        return training_work(self.model, self.sequence_tokens, recompute)


def resolved_fields(
    study: TrainingStudy, pools: Sequence[TrainingPool], stages: Sequence[tuple[int, ...]], folder: Path
) -> dict[str, Any]:
    """The fields of a `TrainingProblem`; `stages` of each pool."""
    work, failures = study.workload, study.failures
    links, names = link_table(study.link, study.site)
    hours = [p.mtbf_device_h or failures.mtbf_device_h or np.inf for p in pools]
    return {
        "model": find_model(work.model, folder),
        "sequence_tokens": float(work.sequence_tokens),
        "compute_dtypes": work.compute_dtype,
        "recompute": work.recompute,
        "global_batch": work.global_batch,
        "overlap_frac": work.overlap_frac,
        "run": TrainingRun(
            tokens=work.train_tokens,
            mtbf_device_s=np.array(hours) * SECONDS_PER_HOUR,
            checkpoint_s=failures.checkpoint_s,
            restart_s=failures.restart_s,
            interval_s=failures.checkpoint_interval_s,
        ),
        "pools": tuple(_offer(p, k, folder) for p, k in zip(pools, stages, strict=True)),
        "links": links,
        "link_names": names,
        "raw_links": study.link is not None and study.link.bandwidth_gb_s is not None,
        "site": study.site,
    }


def _offer(pool: TrainingPool, stages: tuple[int, ...], folder: Path) -> TrainingOffer:
    device = find_device(pool.device, pool.profile, folder)
    return TrainingOffer(
        name=pool_name(pool, folder),
        device=device,
        counts=pool.counts(device),
        owned=pool.owned,
        instance_size=pool.instance_size,
        micro_batch=pool.micro_batch,
        zero_stage=pool.zero_stage,
        stages=stages,
        reserve_frac=pool.memory_reserve_frac,
    )


def portable(study: TrainingStudy, _: TrainingProblem, folder: Path) -> tuple[dict[str, Any], dict[str, Path]]:
    """The study as plain tables that stand alone, and the files it needs."""
    return portable_tables(study, folder)
