"""Training: exhaustive and Optuna give the frontier of brute force, and every row is the design it names."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dse import exhaustive, search
from dse.columns import OBJECTIVE_SENSE
from dse.progress import Stop, silent
from dse.resolve import Study
from dse.scoring import score, score_index

GPU = {
    "device": "a100-80gb-sxm", "name": "gpu", "count": {"min": 0, "max": 24, "step": 8}, "instance_size": [4, 8],
    "micro_batch": [1, 2], "zero_stage": [1, 3],
}  # fmt: skip
NEW = {"device": "h100-80gb-sxm", "name": "new", "count": [0, 8], "instance_size": [4], "micro_batch": [1, 2]}
WSE = {"device": "wse-3", "name": "wse", "count": {"min": 0, "max": 2}}
BUY = {"maximise": ["throughput_tok_s"], "minimise": ["cost_usd_per_h", "power_w"]}
RUN = {"maximise": ["throughput_tok_s"], "minimise": ["train_cost_usd", "train_energy_j"]}


def tables(paradigm: str, *pools: dict[str, Any], **changes: Any) -> dict[str, Any]:
    work = {
        "model": "llama-2-7b", "sequence_tokens": 2048, "global_batch": [32, 128], "recompute": ["selective", "full"],
        "train_tokens": 1e11,
    }  # fmt: skip
    raw: dict[str, Any] = {
        "name": "explorers",
        "paradigm": paradigm,
        "workload": work | changes.pop("workload", {}),
        "pool": list(pools),
        "link": {"bandwidth_gb_s": [5, 50]},
        "failures": {"mtbf_device_h": 40_000, "checkpoint_s": 60, "restart_s": 300},
        "search": {"trials": 300},
    }
    return raw | changes


STAGES = {"stages": [2, 4]}
ONE = {"global_batch": [128], "recompute": ["selective"]}
"""Few purchases: Optuna promises nothing, but here it tries them all."""
STUDIES = {
    "dp, two pools": tables("dp_training", GPU, WSE),
    "dp, three pools, tiers, ownership": tables(
        "dp_training", GPU | {"count": [0, 8, 16], "zero_stage": [3]}, NEW, WSE | {"count": [0, 1]},
        link={"tier": ["eth100", "ndr400"], "count": [1, 4]}, site={"cost_basis": "ownership"},
    ),
    "dp, limits": tables("dp_training", GPU, WSE, limits={"power_w": 50e3, "train_time_s": 1.6e6}),
    "pp, chain": tables(
        "pp_training", GPU | STAGES | {"count": [0, 8, 16], "schedule": ["gpipe", "1f1b", "interleaved"]},
        NEW | {"stages": [1, 2]}, WSE | {"count": [0, 2]}, workload=ONE,
    ),
    "pp, offload": tables(
        "pp_training", GPU | STAGES | {"offload_layers": [0, 1, 2], "collect": [1, 2]}, WSE,
        site={"cost_basis": "ownership"}, workload=ONE,
    ),
    "pp, offload, limits": tables(
        "pp_training", GPU | STAGES | {"offload_layers": [1], "schedule": ["gpipe", "1f1b"]}, WSE,
        limits={"bubble_frac": 0.6, "cost_usd_per_h": 150.0}, workload=ONE | {"global_batch": [32, 128]},
    ),
}  # fmt: skip

Points = list[tuple[float, ...]]


def digits(x: float) -> float:
    """Twelve significant digits, in binary: what counts as equal."""
    mantissa, exponent = math.frexp(x)
    return math.ldexp(round(mantissa * 2**40) / 2**40, exponent)


def every_design(study: Study) -> pd.DataFrame:
    index = np.arange(study.space.n_designs)
    return score_index(study, index[study.space.legal(index)])


def brute_force(study: Study, frame: pd.DataFrame) -> Points:
    """Distinct points that no other dominates, smaller being better; all pairs compared."""
    names = study.envelope.objectives.names
    rows = frame.loc[frame["feasible"], list(names)].itertuples(index=False)
    signs = [-1.0 if OBJECTIVE_SENSE[o] == "max" else 1.0 for o in names]
    points = sorted({tuple(digits(sign * x) for sign, x in zip(signs, row, strict=True)) for row in rows})
    return [
        p for p in points if not any(q != p and all(a <= b for a, b in zip(q, p, strict=True)) for q in points)
    ]  # fmt: skip


def same(found: Any, wanted: Points) -> bool:
    points = sorted({tuple(p) for p in found.tolist()})
    return len(points) == len(wanted) and all(
        math.isclose(a, b, rel_tol=1e-9) for p, q in zip(points, wanted, strict=True) for a, b in zip(p, q, strict=True)
    )


@pytest.mark.slow
@pytest.mark.parametrize("objectives", [BUY, RUN], ids=["buy", "run"])
@pytest.mark.parametrize("name", STUDIES)
def test_every_method_gives_the_brute_force_frontier(name: str, objectives: dict[str, Any]) -> None:
    study = Study.from_dict(STUDIES[name] | {"objectives": objectives})
    frame = every_design(study)
    wanted = brute_force(study, frame)
    assert len(wanted) > 1
    grid = exhaustive.explore(study, workers=1, address="local", report=silent, stop=Stop())
    assert same(grid.points, wanted)
    assert grid.candidates == len(frame)
    sampled = search.explore(study, workers=1, address="local", report=silent, stop=Stop())
    assert same(sampled.points, wanted)


@pytest.mark.parametrize("name", STUDIES)
def test_a_row_is_scored_alone_as_in_its_block(name: str) -> None:
    study = Study.from_dict(STUDIES[name])
    frame = every_design(study)
    for i in range(0, len(frame), max(len(frame) // 12, 1)):
        row = frame.iloc[i]
        alone = score(study, study.space.settings_of(row)).iloc[0]
        for column in frame.columns.difference(["design_id", "infeasible_reason"]):
            want, got = row[column], alone[column]
            if isinstance(want, float):
                assert got == pytest.approx(want, rel=1e-12, nan_ok=True), column
            else:
                assert got == want, column
