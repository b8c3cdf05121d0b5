"""A study of several scenarios in numbers: the catalogue's values in place of names, scenarios as arrays."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dse.errors import InputError
from dse.hardware import Accelerator
from dse.model.links import LinkTable
from dse.model.robust_tables import Scenarios
from dse.model.serving_pool import Mix, Precision
from dse.model.transformer import Arithmetic, arithmetic
from dse.study import Site
from dse.traffic import trace_classes, trace_tally, trace_windows
from dse.workload import RequestClass

from .fleet_problem import link_table, portable_tables
from .fleet_study import find_device, find_model, pool_name
from .pd_serving_study import Role
from .robust_serving_study import (
    LEAST_OUTPUT,
    MAX_SCENARIOS,
    Adaptation,
    RobustPool,
    RobustStudy,
    RobustWorkload,
    Scenario,
    class_names,
    scenario_name,
)

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class RobustOffer:
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
    spares: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RobustProblem:
    """A study of several scenarios in numbers."""

    model: Arithmetic
    classes: tuple[RequestClass, ...]
    mix: Mix
    """Class shapes, and their default shares."""
    scenarios: Scenarios
    hit_frac: float
    precision: Precision
    adaptations: tuple[Adaptation, ...]
    tpot_s: float
    headroom: float
    """Every demand is met so many times."""
    pools: tuple[RobustOffer, ...]
    links: LinkTable
    link_names: tuple[str, ...]
    raw_links: bool
    """Links given as bandwidths: they cost 0, which reports flag."""
    site: Site

    @property
    def compute_dtypes(self) -> tuple[str, ...]:
        """Data type of the arithmetic."""
        return (self.precision.compute,)


def resolve(study: RobustStudy, folder: Path) -> RobustProblem:
    """Puts the catalogue's numbers in place of names."""
    work = study.workload
    pools = tuple(_offer(p, folder) for p in study.pool)
    if work.trace is not None:
        classes, scenarios = _scenarios_of_trace(work, folder, len(pools))
    else:
        classes = _classes(work)
        scenarios = _scenarios(study.scenario, classes, pools)
    links, names = link_table(study.link, study.site)
    return RobustProblem(
        model=arithmetic(find_model(work.model, folder)),
        classes=classes,
        mix=Mix(
            share=np.array([c.share for c in classes]),
            input_tokens=np.array([c.input_tokens for c in classes], dtype=np.float64),
            output_tokens=np.array([c.output_tokens for c in classes], dtype=np.float64),
        ),
        scenarios=scenarios,
        hit_frac=work.prefix_hit_frac,
        precision=Precision(weight=work.weight_dtype, kv=work.kv_dtype, compute=work.compute_dtype),
        adaptations=study.adaptation,
        tpot_s=work.slo.tpot_s or np.inf,
        headroom=study.demand.headroom,
        pools=pools,
        links=links,
        link_names=names,
        raw_links=study.link is not None and study.link.bandwidth_gb_s is not None,
        site=study.site,
    )


def portable(study: RobustStudy, problem: RobustProblem, folder: Path) -> tuple[dict[str, Any], dict[str, Path]]:
    """The study as plain tables: a trace becomes classes and scenarios, files are named without their folder."""
    raw, files = portable_tables(study, folder)
    raw["workload"].pop("classes")  # the trace is cut
    if study.workload.trace is not None:
        del raw["workload"]["trace"], raw["workload"]["window_s"]
        raw["workload"]["requests"] = [
            {"name": c.name, "share": c.share, "input_tokens": c.input_tokens, "output_tokens": c.output_tokens}
            for c in problem.classes
        ]
        raw["scenario"] = plain_scenarios(problem, tuple(o.name for o in problem.pools))
    return raw, files


def plain_scenarios(problem: RobustProblem, pools: tuple[str, ...]) -> list[dict[str, Any]]:
    """The scenarios as tables of a study file."""
    known, names = problem.scenarios, [c.name for c in problem.classes]
    demand = known.demand_requests_s
    return [
        {
            "name": name,
            "weight": float(known.weight[w]),
            "mix": dict(zip(names, known.mix[w].tolist(), strict=True)),
            "available_frac": dict(zip(pools, known.available_frac[w].tolist(), strict=True)),
        }
        | ({} if demand is None else {"demand_requests_s": float(demand[w])})
        for w, name in enumerate(known.names)
    ]


def _scenarios_of_trace(work: RobustWorkload, folder: Path, n_pools: int) -> tuple[tuple[RequestClass, ...], Scenarios]:
    """Classes of a trace, and a scenario for each of its windows in which something arrives.

    InputError for a malformed trace, too many windows, and classes that decode nothing.
    """
    path, window_s = folder / (work.trace or ""), float(work.window_s or 1.0)
    cut = trace_classes(trace_tally(path), work.classes)
    short = [c.name for c in cut.classes if c.output_tokens < LEAST_OUTPUT]
    if short:
        raise InputError(
            f"workload.classes: {', '.join(short)} of {path} has fewer than {LEAST_OUTPUT:g} output tokens on average; "
            "take fewer classes"
        )
    found = trace_windows(path, cut, window_s)
    busy = found.requests.sum(axis=1) > 0
    if busy.sum() > MAX_SCENARIOS:
        raise InputError(
            f"workload.window_s: {window_s:g} s makes {int(busy.sum())} scenarios of {path}, at most {MAX_SCENARIOS} "
            f"are allowed; take {window_s * busy.sum() / MAX_SCENARIOS:.3g} s or more"
        )
    names = tuple(f"{start:.0f} to {start + window_s:.0f} s" for start in found.start_s[busy])
    rates = found.requests[busy] / found.lasted_s[busy][:, None]
    return cut.classes, scenarios_of_rates(names, rates, n_pools)


def scenarios_of_rates(names: tuple[str, ...], rates: Floats, n_pools: int) -> Scenarios:
    """Scenarios of equal weight from requests/s of every class in every window (W, C); none may be empty.

    >>> found = scenarios_of_rates(("a", "b"), np.array([[3.0, 1.0], [0.0, 2.0]]), 1)
    >>> found.mix.tolist(), found.demand_requests_s.tolist()
    ([[0.75, 0.25], [0.0, 1.0]], [4.0, 2.0])
    """
    total = rates.sum(axis=1)
    return Scenarios(
        names=names,
        mix=rates / total[:, None],
        weight=np.full(len(names), 1.0 / len(names)),
        demand_requests_s=total,
        available_frac=np.ones((len(names), n_pools)),
    )


def _classes(work: RobustWorkload) -> tuple[RequestClass, ...]:
    requests = work.requests or ()
    total = sum(r.share for r in requests)
    return tuple(
        RequestClass(name=name, share=r.share / total, input_tokens=r.input_tokens, output_tokens=r.output_tokens)
        for name, r in zip(class_names(requests), requests, strict=True)
    )


def _scenarios(
    given: tuple[Scenario, ...], classes: tuple[RequestClass, ...], pools: tuple[RobustOffer, ...]
) -> Scenarios:
    default = {c.name: c.share for c in classes}
    mix = np.array([[(s.mix or default).get(c.name, 0.0) for c in classes] for s in given], dtype=np.float64)
    weight = np.array([s.weight for s in given], dtype=np.float64)
    asked = [s.demand_requests_s for s in given if s.demand_requests_s is not None]
    growth = np.array([s.growth for s in given])
    return Scenarios(
        names=tuple(scenario_name(s, i) for i, s in enumerate(given)),
        mix=mix / mix.sum(axis=1, keepdims=True),
        weight=weight / weight.sum(),
        demand_requests_s=np.array(asked) * growth if asked else None,
        available_frac=np.array([[s.available_frac.get(p.name, 1.0) for p in pools] for s in given], dtype=np.float64),
    )


def _offer(pool: RobustPool, folder: Path) -> RobustOffer:
    device = find_device(pool.device, pool.profile, folder)
    return RobustOffer(
        name=pool_name(pool, folder),
        device=device,
        counts=pool.counts(device),
        owned=pool.owned,
        instance_size=pool.instance_size,
        roles=pool.roles,
        prefill_batch=pool.prefill_batch,
        max_decode_batch=pool.max_decode_batch,
        reserve_frac=pool.memory_reserve_frac,
        spares=pool.spares,
    )
