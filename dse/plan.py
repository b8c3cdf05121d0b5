"""One design in a form that a deployer reads: pools, parallelism, batches, memory, link, and what is predicted.

Everything is a figure of the run or of the design scored again, under the names of the result columns; nothing is
computed here. The fields are documented in docs/export.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import pandas as pd

from dse.columns import column, pool_of
from dse.deploy import dynamo, vllm
from dse.errors import InputError, unknown_name
from dse.explore import Result
from dse.hardware import Accelerator
from dse.resolve import Study
from dse.scoring import explain
from dse.units import json_safe

FORMAT: Final = "heterodse-plan/1"
PREDICTED: Final = (
    "throughput_tok_s", "throughput_low_tok_s", "throughput_high_tok_s", "throughput_samples_s",
    "throughput_worst_tok_s", "headroom", "binding_scenario", "requests_s",
    "input_tok_s", "ttft_mean_s", "ttft_p99_s", "tpot_s", "step_time_s", "train_time_s", "cost_usd_per_h",
    "usd_per_mtok", "power_w", "power_mean_w", "energy_j_per_tok", "mem_margin_byte", "gpu_wse_ratio", "bottleneck",
)  # fmt: skip
FLEET: Final = (
    "routing", "adaptation", "weight_dtype", "kv_dtype", "compute_dtype", "link", "link_gb_s", "link_use_frac",
    "global_batch",
    "recompute", "schedule", "offload_layers", "collect", "layers", "layout", "pool_order",
)  # fmt: skip

RESCORED: Final = 1e-6
"""Relative difference to the run's own score above which no plan is made."""

Plan = dict[str, Any]


def plan_of(result: Result, design_id: str | None = None) -> Plan:
    """The plan of a design of the run, by default the recommended one, as plain data.

    InputError for a design that the run does not have, for one that is not feasible, and for a run without any.
    """
    row = _row(result, design_id)
    study = result.study
    settings = study.space.settings_of({str(k): v for k, v in row.items()})
    frame, detail = explain(study, settings)
    _refuse_drift(frame.iloc[0], row)
    picked = result.recommended
    pools = [_pool(study, row, k, detail["pools"]) for k in range(len(study.problem.pools))]
    plan: Plan = {
        "format": FORMAT,
        "study": study.name,
        "paradigm": study.envelope.paradigm,
        "design_id": str(row["design_id"]),
        "recommended": picked is not None and str(picked["design_id"]) == str(row["design_id"]),
        "rule": result.info["recommended"]["rule"],
        "complete": result.complete,
        "model": study.envelope.model_dump()["workload"]["model"],
        "settings": settings,
        "fleet": _columns(row, FLEET),
        "pools": [pool for pool in pools if pool["n"] > 0],
        "predicted": _columns(row, PREDICTED),
        "link": {
            key: detail["system"][key]
            for key in ("link_byte_s", "link_need_byte_s", "links_bought", "link_cost_usd_per_h", "link_power_w")
        },
    }
    if "scenarios" in detail["system"]:
        plan["scenarios"] = detail["system"]["scenarios"]
    classes = getattr(study.problem, "classes", ())
    if classes:
        plan["requests"] = [
            {"name": c.name, "share": float(s), "input_tokens": c.input_tokens, "output_tokens": c.output_tokens}
            for c, s in zip(classes, study.problem.mix.share, strict=True)
        ]
    if study.envelope.paradigm == "pd_serving":
        plan["deploy"] = {"vllm": vllm(plan), "dynamo": dynamo(plan)}
    units = {name: unit_of(name) for name in (*plan["predicted"], *plan["fleet"])}
    plan["units"] = {name: unit for name, unit in units.items() if unit}
    return dict(json_safe(plan))


def _refuse_drift(again: pd.Series, row: pd.Series) -> None:
    """A plan is of one model and one catalogue."""
    for name in ("throughput_tok_s", "cost_usd_per_h", "power_w"):
        if not math.isclose(float(again[name]), float(row[name]), rel_tol=RESCORED):
            raise InputError(
                f"scored today the design has {name} {float(again[name]):.6g}, the run found {float(row[name]):.6g}: "
                "the catalogue or the model has changed since; run the study again"
            )


def unit_of(name: str) -> str:
    """Unit of a result column; empty for text."""
    known = column(name)
    return known.unit if known is not None else ""


def _row(result: Result, design_id: str | None) -> pd.Series:
    if result.recommended is None:
        raise InputError("the run has no feasible design; there is nothing to deploy")
    if design_id is None:
        return result.recommended
    for frame in (result.frontier, result.candidates):
        found = frame[frame["design_id"] == design_id]
        if len(found):
            row = found.iloc[0]
            if not row["feasible"]:
                raise InputError(f"--design {design_id}: is not feasible: {row['infeasible_reason']}")
            return row
    raise InputError(unknown_name("--design", "design of the run", design_id, list(result.frontier["design_id"])))


def _columns(row: pd.Series, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: _plain(row[name]) for name in names if name in row.index}


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value


def _pool(study: Study, row: pd.Series, k: int, explained: Mapping[str, Any]) -> Plan:
    """One pool: what it is, how it is divided, what it holds and what it does."""
    offer = study.problem.pools[k]
    name, device = offer.name, offer.device
    n = int(row[f"n_{name}"])
    if n == 0:
        return {"name": name, "device": device.name, "n": 0}
    p = explained[name]
    memory = p["memory"]
    design = {
        str(c).removesuffix(f"_{name}"): _plain(row[c])
        for c in row.index
        if pool_of(str(c)) == name and str(c) not in (f"n_{name}",)
    }
    return {
        "name": name,
        "device": device.name,
        "kind": device.kind,
        "n": n,
        "instances": float(p["instances"]),
        "instance_size": int(row[f"instance_size_{name}"]),
        "role": str(p["role"]),
        "parallel": _parallel(device, row, name),
        "design": design,
        "memory_reserve_frac": getattr(offer, "reserve_frac", 1 - memory["usable_byte"] / memory["device_byte"]),
        "memory_device_byte": {
            **memory["held"],
            "headroom": memory["usable_byte"] - sum(memory["held"].values()),
            "reserve": memory["device_byte"] - memory["usable_byte"],
            "whole": memory["device_byte"],
        },
        "memory_outside_byte": dict(memory["outside"]),
        "busy_frac": p["busy_frac"],
        "binding": p["binding"],
        "cost_usd_per_h": p["cost_usd_per_h"],
        "power_w": p["power_w"],
        "phases": {
            phase: {"request_frac": t["request_frac"], "batch": list(t["batch"])}
            for phase, t in p.get("phases", {}).items()
        },
    }


def _parallel(device: Accelerator, row: pd.Series, name: str) -> dict[str, int]:
    """How an instance is divided, and how many of it there are."""
    size, n = int(row[f"instance_size_{name}"]), int(row[f"n_{name}"])
    if size == 0:  # divided anew in every scenario, which the plan lists
        return {"tensor": 0, "pipeline": 0, "data": 0}
    stages = int(row[f"stages_{name}"]) if f"stages_{name}" in row.index else 0
    inside = {"tensor": size, "pipeline": 1} if device.arrangement == "tensor" else {"tensor": 1, "pipeline": size}
    if stages > 0:  # an instance is one stage of a pipeline of several
        return {"tensor": size, "pipeline": stages, "data": n // (size * stages)}
    return {**inside, "data": n // size}
