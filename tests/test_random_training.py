"""Random training designs scored by the program and by `plain_training`: every column that both define, to 1e-9."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import plain_training as plain
import pytest
from random_training import Drawn, draw_dp, draw_pp

from dse.resolve import Study
from dse.scoring import explain

TOLERANCE = 1e-9
CANCELS = ("eta", "bubble")
"""1/busy - 1 and 1 - busy: compared to 1e-9 of 1."""


def same(name: str, want: float, got: float) -> bool:
    if math.isnan(want) or math.isnan(got):
        return math.isnan(want) and math.isnan(got)
    if math.isinf(want) or math.isinf(got):
        return want == got
    if name.startswith(CANCELS) and abs(want - got) <= TOLERANCE:
        return True
    return abs(want - got) <= TOLERANCE * max(abs(want), abs(got))


def differences(d: Drawn, folder: Path) -> list[str]:
    """Columns of one random design in which program and plain model differ."""
    frame, detail = explain(Study.from_dict(d.raw, folder=folder), d.settings)
    row = frame.iloc[0]
    names = [name for name, p in zip(d.names, d.pools, strict=True) if p.n]
    if d.raw["paradigm"] == "dp_training":
        division = [int(row[f"batch_{name}"]) for name in names]
        want, alone = plain.dp_score(d.case, d.bought, division), plain.dp_alone
        if want["feasible"]:
            # of divisions that are equally good the program's is followed; it must be one of them
            assert sum(division) == d.case.batch
            assert same("step", want.pop("best_step_s"), row["step_time_s"])
    else:
        want, alone = plain.pp_score(d.case, d.bought), plain.pp_alone
        assert detail["system"]["verdict"] == plain.piped(d.case, d.bought).verdict
    pools: list[dict[str, float]] = want.pop("pools", [])
    pairs = [(name, value, row[name]) for name, value in want.items()]
    for name, numbers in zip(names, pools, strict=False):
        pairs += [(f"{k}_{name}", value, row[f"{k}_{name}"]) for k, value in numbers.items()]
        pairs.append((f"explained busy_{name}", numbers["busy"], detail["pools"][name]["busy_frac"]))
    tok_per_usd, tok_per_w = plain.best_alone(d.menu(), alone)
    if tok_per_w > 0:
        pairs.append(
            ("gain_equal_power", row["throughput_tok_s"] / row["power_w"] / tok_per_w, row["gain_equal_power"])
        )
        pairs.append(("gain_equal_cost", row["throughput_tok_s"] / row["cost_usd_per_h"] / tok_per_usd,
                      row["gain_equal_cost"]))  # fmt: skip
    return [
        f"{d.raw['name']} {name}: plain {value!r}, program {got!r}"
        for name, value, got in pairs
        if not same(name, float(value), float(got))
    ]


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 320, 80))
@pytest.mark.parametrize("draw", [draw_dp, draw_pp])
def test_random_designs_score_as_the_page_says(draw: Any, first: int, tmp_path: Path) -> None:
    faults = [f for seed in range(first, first + 80) for f in differences(draw(seed, tmp_path), tmp_path)]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("draw", [draw_dp, draw_pp])
def test_a_few_random_designs(draw: Any, tmp_path: Path) -> None:
    faults = [f for seed in range(10_000, 10_012) for f in differences(draw(seed, tmp_path), tmp_path)]
    assert not faults, "\n".join(faults)


def test_draws_cover_what_matters(tmp_path: Path) -> None:
    drawn = [draw_dp(seed, tmp_path) for seed in range(150)]
    pools = [p for d in drawn for p in d.bought]
    assert {len(d.bought) for d in drawn} == {1, 2, 3, 4}
    assert {(p.streams, p.device["arrangement"]) for p in pools} >= {
        (True, "pipeline"), (True, "tensor"), (False, "tensor"), (False, "pipeline"),
    }  # fmt: skip
    assert {p.zero for p in pools} == {0, 1, 2, 3}
    assert {d.case.recompute for d in drawn} == {"none", "selective", "full"}
    assert any("table_flop" in p.device["efficiency"]["train"] for p in pools)
    assert any(d.case.model.experts for d in drawn)
    assert any(d.case.model.kv_rank for d in drawn)
    assert any(d.case.model.sliding_window and d.case.sequence > d.case.model.sliding_window for d in drawn)
    # both what memory forbids and what it caps
    steps = [(d, plain.best_step_s(d.case, d.bought)) for d in drawn]
    assert 0.6 < sum(step < math.inf for _, step in steps) / len(steps) < 0.95
    assert any(step < math.inf and plain.largest_share(d.case, p) < d.case.batch for d, step in steps for p in d.bought)


def test_draws_cover_what_pipelines_do(tmp_path: Path) -> None:
    drawn = [draw_pp(seed, tmp_path) for seed in range(300)]
    found = [(d, plain.piped(d.case, d.bought)) for d in drawn]
    assert {p.verdict for _, p in found} == {plain.FEASIBLE, plain.BROKEN, plain.NO_ROOM}
    works = [d for d, p in found if p.verdict == plain.FEASIBLE]
    assert len(works) > 150
    assert {d.case.schedule for d in works} == {"gpipe", "1f1b", "interleaved"}
    assert {len(d.bought) for d in works} == {1, 2, 3}
    offloads = [d for d in works if d.case.offload]
    assert any(d.case.collect > 1 for d in offloads)
    assert any(len(d.bought) > 2 for d in offloads)
    servers = [(d, next(p for p in d.bought if p.streams)) for d in offloads]
    assert any(p.replicas > 1 for _, p in servers)
    assert any(p.streams for d in works if not d.case.offload and len(d.bought) > 1 for p in d.bought)
    assert any(d.case.layers for d in works)
    assert any(list(d.case.order) != sorted(d.case.order) for d in works)
    assert any(len(set(d.case.modes)) > 1 for d in works)
    assert any(d.case.modes and d.case.offload for d in works)
