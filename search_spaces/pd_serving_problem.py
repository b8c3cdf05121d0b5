"""A serving study in numbers: the catalogue's values in place of names."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dse.hardware import Accelerator
from dse.model.links import LinkTable, Wiring
from dse.model.serving_load import LOAD_COLUMNS
from dse.model.serving_pool import Mix, Precision, ServingLimits
from dse.model.serving_system import LoadAsked
from dse.model.transformer import Arithmetic, arithmetic
from dse.study import Site
from dse.traffic import Traffic, traffic_of
from dse.workload import RequestClass

from .fleet_problem import link_table, portable_tables
from .fleet_study import find_model, pool_name
from .pd_serving_study import Role, Routing, ServingPool, ServingStudy, ServingWorkload, measured_device


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolOffer:
    """One pool's axes, resolved."""

    name: str
    device: Accelerator
    counts: tuple[int, ...]
    owned: int
    instance_size: tuple[int, ...]
    roles: tuple[Role, ...]
    prefill_batch: tuple[int, ...]
    max_decode_batch: tuple[int, ...]
    reserve_frac: float
    chunk_tokens: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingProblem:
    """A serving study in numbers."""

    model: Arithmetic
    classes: tuple[RequestClass, ...]
    traffic: Traffic | None
    """Facts of the trace that the classes were cut from."""
    mix: Mix
    hit_frac: float
    precisions: tuple[Precision, ...]
    routings: tuple[Routing, ...]
    limits: ServingLimits
    demand_requests_s: float | None
    load: LoadAsked
    always_loaded: bool
    """Whether every design's latencies under load are asked for, by an objective or a limit."""
    pools: tuple[PoolOffer, ...]
    links: LinkTable
    link_names: tuple[str, ...]
    per_pair: bool
    """Pairs of pools choose their links one by one."""
    wiring: Wiring | None
    """The links of the one design that is scored by its `--set` keys; None for the whole study."""
    raw_links: bool
    """Links given as bandwidths: they cost 0, which reports flag."""
    site: Site

    @property
    def compute_dtypes(self) -> tuple[str, ...]:
        """Data types of the arithmetic, in the study's order."""
        return tuple(dict.fromkeys(p.compute for p in self.precisions))


def resolve(study: ServingStudy, folder: Path) -> ServingProblem:
    """Puts the catalogue's numbers in place of names."""
    work = study.workload
    classes, traffic = _classes(work, folder)
    share = np.array([c.share for c in classes])
    links, names = link_table(study.link, study.site)
    return ServingProblem(
        model=arithmetic(find_model(work.model, folder)),
        classes=classes,
        traffic=traffic,
        mix=Mix(
            share=share if abs(share.sum() - 1.0) < 1e-12 else share / share.sum(),
            input_tokens=np.array([c.input_tokens for c in classes], dtype=np.float64),
            output_tokens=np.array([c.output_tokens for c in classes], dtype=np.float64),
        ),
        hit_frac=work.prefix_hit_frac,
        precisions=tuple(
            Precision(weight=w, kv=k, compute=c)
            for w in work.weight_dtype
            for k in work.kv_dtype
            for c in work.compute_dtype
        ),
        routings=work.routing,
        limits=ServingLimits(ttft_p99_s=work.slo.ttft_p99_s or np.inf, tpot_s=work.slo.tpot_s or np.inf),
        demand_requests_s=study.demand.requests_s if study.demand else None,
        load=LoadAsked(
            load_frac=work.load_frac,
            arrival_cv2=_arrival_cv2(work, traffic),
            limits=work.goodput_limits,
        ),
        always_loaded=any(name in LOAD_COLUMNS for name in (*study.objectives.names, *study.limits.bounds())),
        pools=tuple(_offer(p, work, folder) for p in study.pool),
        links=links,
        link_names=names,
        per_pair=study.link is not None and study.link.per_pair and len(study.pool) > 2,
        wiring=None,
        raw_links=study.link is not None and study.link.bandwidth_gb_s is not None,
        site=study.site,
    )


def portable(study: ServingStudy, problem: ServingProblem, folder: Path) -> tuple[dict[str, Any], dict[str, Path]]:
    """The study as plain tables: a trace becomes its request classes, files are named without their folder."""
    raw, files = portable_tables(study, folder)
    raw["workload"].pop("classes")  # the trace is cut
    if study.workload.trace is not None:
        del raw["workload"]["trace"]
        raw["workload"]["arrival_cv2"] = problem.load.arrival_cv2
        raw["workload"]["requests"] = [asdict(c) for c in problem.classes]
    return raw, files


def _classes(work: ServingWorkload, folder: Path) -> tuple[tuple[RequestClass, ...], Traffic | None]:
    if work.trace is not None:
        return traffic_of(folder / work.trace, work.classes)
    given = tuple(
        RequestClass(
            name=r.name or f"class{i}",
            share=r.share,
            input_tokens=r.input_tokens,
            output_tokens=r.output_tokens,
        )
        for i, r in enumerate(work.requests or ())
    )
    return given, None


def _arrival_cv2(work: ServingWorkload, traffic: Traffic | None) -> float:
    """How unevenly requests arrive: as the study says, as its trace shows, or as a Poisson stream."""
    if work.arrival_cv2 is not None:
        return work.arrival_cv2
    return traffic.gap_cv2 if traffic else 1.0


def _offer(pool: ServingPool, work: ServingWorkload, folder: Path) -> PoolOffer:
    device = measured_device(pool, work, folder)
    return PoolOffer(
        name=pool_name(pool, folder),
        device=device,
        counts=pool.counts(device),
        owned=pool.owned,
        instance_size=pool.instance_size,
        roles=pool.roles,
        prefill_batch=pool.prefill_batch,
        max_decode_batch=pool.max_decode_batch,
        reserve_frac=pool.memory_reserve_frac,
        chunk_tokens=float(pool.prefill_chunk_tokens or np.inf),
    )
