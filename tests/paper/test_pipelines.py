"""The paper's pipeline figures: which statements pass, their files, their fleets, and the model against a replay."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from verdicts import check_files, check_statements, verdict

from experiments.paper import fig8, fig10, fig11, fig12
from experiments.paper.figures import reproduce
from experiments.paper.pp_fleet import OFFLOADED, Layout, gpu_alone, hybrid, layers, layout, of_table_3, wafer_alone
from experiments.paper.pp_placements import FEASIBLE, VIOLATION, memory_that_gives, placements
from experiments.paper.pp_replay import Replay, replayed_samples_s
from experiments.paper.setting import MODELS, with_efficiency
from experiments.paper.statement import Statement

Made = tuple[Path, dict[str, list[Statement]]]
DIFFERS: Mapping[str, tuple[int, set[str]]] = {
    "fig8": (
        5,
        {
            "35B: no uniform offload beats the best single platform",
            "70B: no uniform offload beats the best single platform",
            "one layer of each stage is the best that can be handed over, for every model",
        },
    ),
    "fig10": (6, {f"{model}: the wafer stays above the threshold up to micro-batch 64" for model in MODELS}),
    "fig11": (5, set()),
    "fig12": (
        6,
        {
            "7B: decoupled pipelines beat the wafer alone at its best",
            "13B: decoupled pipelines beat the wafer alone at its best",
            "70B: decoupled pipelines do not beat the wafer alone",
            "the gain over the wafer needs 0.2 to 5 GB/s, for every model",
        },
    ),
}
"""Figure -> its number of statements, and those that differ."""
ROWS = {"fig8": 4 * 2 * 7, "fig10": 4 * 7, "fig11": 4 * 49, "fig12": 4}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Every figure, written once."""
    folder = tmp_path_factory.mktemp("pipelines")
    return folder, {name: reproduce(name, folder) for name in DIFFERS}


@pytest.mark.slow
def test_verdicts_are_these(made: Made) -> None:
    for name, found in made[1].items():
        check_statements(name, found, *DIFFERS[name])


@pytest.mark.slow
def test_files_are_whole(made: Made) -> None:
    for name in DIFFERS:
        check_files(made[0], name, ROWS[name])


@pytest.mark.slow
def test_verdicts_follow_the_data(made: Made) -> None:
    data = {name: pd.read_csv(made[0] / f"{name}.csv") for name in DIFFERS}
    hybrids = data["fig8"]["offload_layers"] > 0
    slow = data["fig8"].assign(samples_s=data["fig8"]["samples_s"].where(~hybrids, 1 / data["fig8"]["offload_layers"]))
    assert all(s.passes for s in fig8.judge(slow))
    fast = data["fig8"].assign(samples_s=data["fig8"]["samples_s"].where(~hybrids, 99.0))
    assert not any(s.passes for s in fig8.judge(fast) if "uniform" in s.statement)
    rising = data["fig10"].assign(wse_of_threshold=2.0, gpu_verdict=FEASIBLE)
    assert not verdict(fig10.judge(rising), "falls with every doubling")
    assert not verdict(fig10.judge(rising), "GPUs cannot hold")
    assert verdict(fig10.judge(rising), "7B: the wafer stays above")
    free = data["fig11"].assign(verdict=FEASIBLE, least_layers=1, wse_memory_short=True)
    assert [s.passes for s in fig11.judge(free)] == [False, True, False, False, False]
    nothing = fig11.judge(data["fig11"].assign(verdict=VIOLATION, least_layers=0))
    assert [s.passes for s in nothing] == [False, False, True, True, False]
    assert ["none" in s.value for s in nothing] == [True, True, True, False, False]
    best = data["fig12"].assign(hybrid_samples_s=data["fig12"]["aggregate_samples_s"], least_link_gb_s=9.0)
    assert not verdict(fig12.judge(best), "none reaches the sum")
    assert not verdict(fig12.judge(best), "the gain over the wafer needs")
    faster = data["fig12"].assign(hybrid_samples_s=data["fig12"]["wse_samples_s"] + 0.1, least_link_gb_s=1.0)
    assert all(s.passes for s in fig12.judge(faster) if not s.statement.startswith("70B"))


def test_the_fleet_is_the_smallest_that_holds_the_model() -> None:
    assert {m: (layout(m).stages, layout(m).gpus_a_stage) for m in MODELS} == {
        "7B": (4, 2),
        "13B": (4, 2),
        "35B": (4, 8),
        "70B": (8, 8),
    }
    assert {m: of_table_3(m).n_gpu for m in MODELS} == {"7B": 32, "13B": 32, "35B": 32, "70B": 64}
    for model in MODELS:
        at = layout(model)
        assert layers(model) % at.stages == 0
        smaller = Layout(model=model, stages=at.stages, gpus_a_stage=at.gpus_a_stage // 2)
        assert gpu_alone(smaller).verdict == VIOLATION
        assert hybrid(at, 1).verdict == FEASIBLE
    assert gpu_alone(Layout(model="70B", stages=4, gpus_a_stage=8)).verdict == VIOLATION
    five = Layout(model="70B", stages=5, gpus_a_stage=8)
    assert (gpu_alone(five).verdict, hybrid(five, 1).verdict) == (FEASIBLE, VIOLATION)


def test_one_design_by_hand() -> None:
    """7B, four stages of two A100, one layer of each on the wafer: 36.7 ms a micro-batch on the last stage."""
    s, h, f, v = 2048, 4096, 11008, 32000
    score = 2 * h * s**2
    layer = 2 * (4 * h * h + 3 * h * f) * s + score
    gpu, wafer = 2 * 312e12 * 0.63, 12.5e15 * 0.2244
    hop = 2 * s * h
    allreduce = 7.3e-6 + hop / (300e9 * 0.61)  # two devices: 2 (g-1)/g = 1
    on_gpu = 3 * 100e-6 + (3 * layer + score) / gpu + 4 * allreduce
    on_wafer = 3 * 1510e-6 + (3 * layer + score) / wafer
    found = hybrid(layout("7B"), 1)
    assert found.system["wafer_layer_s"] == pytest.approx(on_wafer, rel=1e-9)
    assert found.system["offload_threshold_s"] == pytest.approx(8 * on_gpu / 4, rel=1e-9)
    head = 3 * 2 * v * h * s / gpu
    out = found.row["link_use_frac"] * found.row["step_time_s"] / (7 * 1024)
    assert out == pytest.approx(hop / 150e9, rel=1e-9)
    last, others = 7 * on_gpu + head, 7 * on_gpu
    assert 4 * on_wafer < others < last
    assert 1024 / found.samples_s == pytest.approx(1023 * last + 3 * others + 4 * on_wafer, rel=5e-3)
    # alone: a wafer pays what is fixed once a batch, or once a micro-batch
    model = 32 * (3 * layer + score) + 3 * 2 * v * h * s
    assert wafer_alone("7B").samples_s == pytest.approx(1024 / (96 * 1510e-6 + 1024 * model / wafer), rel=1e-9)
    assert wafer_alone("7B", batch=1).samples_s == pytest.approx(1 / (96 * 1510e-6 + model / wafer), rel=1e-9)


@pytest.mark.parametrize("model", list(MODELS))
def test_a_wafer_at_the_threshold_breaks_even(model: str) -> None:
    """Slower than l tau_gpu/K a layer, one layer of each stage costs throughput; well below, it gains."""
    at = layout(model)
    threshold = float(hybrid(at, 1).system["offload_threshold_s"])
    alone = gpu_alone(at).samples_s
    slower = with_efficiency("train", fixed_layer_s=1.1 * threshold / 3)
    assert hybrid(at, 1, wse=slower).samples_s < alone
    faster = with_efficiency("train", fixed_layer_s=0.1 * threshold / 3)
    assert hybrid(at, 1, wse=faster).samples_s > alone


@pytest.mark.parametrize(("model", "most"), [("7B", 2), ("13B", 3), ("35B", 2), ("70B", 1)])
def test_the_model_s_time_is_the_replay_s(model: str, most: int) -> None:
    """2 (K - s) forwards ahead, as memory counts; with K - s it is slower. From `most` layers on the wafer binds."""
    at = layout(model)
    for k in OFFLOADED:
        model_s = hybrid(at, k).samples_s
        assert replayed_samples_s(at, k) == pytest.approx(model_s, rel=5e-4 if k <= most else 0.07)
        if k <= most:
            assert replayed_samples_s(at, k, warm_up=1) < 0.98 * model_s


def test_a_replay_by_hand() -> None:
    """A wafer that takes no time leaves 1F1B; one that takes all of it is busy throughout."""
    times = {"forward": [1.0] * 3, "backward": [2.0] * 3, "ahead": [2, 1, 0], "n": 10}
    assert Replay(**times, visits=(0.0, 0.0)).run() == pytest.approx((10 + 2) * 3.0)
    assert Replay(**times, visits=(100.0, 200.0)).run() == pytest.approx(3 * 10 * 300.0, rel=0.05)
    # two stages: a round of both and two visits pass two micro-batches
    pair = {"forward": [1.0] * 2, "backward": [2.0] * 2, "visits": (0.2, 0.4)}
    assert Replay(**pair, ahead=[1, 0], n=1000).run() / 1000 == pytest.approx((3.0 + 3.0 + 0.2 + 0.4) / 2, rel=0.05)
    assert Replay(**pair, ahead=[2, 0], n=1000).run() / 1000 == pytest.approx(3.0, rel=0.01)
    with pytest.raises(ValueError, match="must be the same"):
        replayed_samples_s(layout("7B"), 1, pipelines=2)


def test_placements_are_those_that_are_scored_one_by_one() -> None:
    found = placements("7B").sample(12, random_state=1)
    for row in found.itertuples():
        one = hybrid(
            layout("7B"),
            int(row.offload_layers),
            micro_batch=int(row.gpu_micro_batch),
            pipelines=int(row.pipelines),
            collect=int(row.collect),
        )
        assert one.verdict == row.verdict
        assert one.samples_s == pytest.approx(row.samples_s, rel=1e-12)


@pytest.mark.parametrize("model", ["7B", "13B"])
def test_the_memory_that_gives_is_where_the_gain_begins(model: str) -> None:
    wafer = wafer_alone(model).samples_s
    byte = memory_that_gives(model, wafer)
    less, more = (placements(model, f * byte) for f in (0.999, 1.001))
    assert less.loc[less["collect"] > 1, "samples_s"].max() <= wafer
    assert more.loc[more["collect"] > 1, "samples_s"].max() > wafer
    assert memory_that_gives(model, 1e6) == np.inf


@pytest.mark.slow
def test_the_least_bandwidth_is_where_the_gain_ends(made: Made) -> None:
    for row in pd.read_csv(made[0] / "fig12.csv").itertuples():
        keys = {"micro_batch": row.gpu_micro_batch, "pipelines": row.pipelines}
        keys["collect"] = row.wse_micro_batch // row.gpu_micro_batch
        at = layout(row.model)
        assert np.isinf(row.least_link_gb_s) == (row.gain_from_gpu_gb > 40)
        if np.isinf(row.least_link_gb_s):
            assert row.hybrid_samples_s < row.wse_samples_s
        else:
            less, more = (
                hybrid(at, row.offload_layers, link_gb_s=f * row.least_link_gb_s, **keys).samples_s
                for f in (0.999, 1.001)
            )
            assert less < row.wse_samples_s < more
        assert row.hybrid_samples_s == pytest.approx(hybrid(at, row.offload_layers, **keys).samples_s)
