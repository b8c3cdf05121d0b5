"""The paper's data-parallel and serving figures: which statements pass, their files, their fleets."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from verdicts import check_files, check_statements, verdict

from dse.resolve import Study
from experiments.paper import fig5, fig7, fig16, fig17, table3
from experiments.paper.dp_fleet import fleet
from experiments.paper.figures import FIGURES, reproduce
from experiments.paper.pd_fleet import A100_80, PAIRS, TOKENS, Pair, design
from experiments.paper.setting import FOLDER, MODELS
from experiments.paper.statement import Statement

Made = tuple[Path, dict[str, list[Statement]]]
DIFFERS: Mapping[str, tuple[int, set[str]]] = {
    "fig5": (
        11,
        {
            "35B: the thresholds lie where the paper marks them (factor 2)",
            "70B: the thresholds lie where the paper marks them (factor 2)",
            "70B: the wafer is not well used until its batch approaches 32 (Fig. 6)",
        },
    ),
    "fig7": (
        6,
        {
            "35B: between 0 and 160 GB/s from batch 8 to 1024",
            "70B: between 0 and 160 GB/s from batch 8 to 1024",
        },
    ),
    "fig16": (8, {"7B: fewest GPUs a wafer, about 1:20 (factor 2)"}),
    "fig17": (5, set()),
    "table3": (
        9,
        {
            "70B, device: 4.6 GB/s (10 %)",
            "70B, node: 18.8 GB/s (10 %)",
            "70B, cluster: 150.4 GB/s (10 %)",
            "70B: the row holds for Llama-2-70B as published, with grouped keys and values",
        },
    ),
}
"""Figure -> its number of statements, and those that differ."""
ELSEWHERE = {"fig8", "fig10", "fig11", "fig12", "eq5"}
"""Figures that `test_pipelines.py` and `test_eq5.py` make."""
ROWS = {"fig5": 4 * 11, "fig7": 4 * 11, "fig16": 2 * 64, "fig17": 5 * 64, "table3": 3 * 3}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Every figure, written once."""
    folder = tmp_path_factory.mktemp("paper")
    return folder, {name: reproduce(name, folder) for name in DIFFERS}


def test_every_figure_is_pinned() -> None:
    assert set(FIGURES) == set(DIFFERS) | ELSEWHERE


@pytest.mark.slow
def test_verdicts_are_these(made: Made) -> None:
    for name, found in made[1].items():
        check_statements(name, found, *DIFFERS[name])


@pytest.mark.slow
def test_files_are_whole(made: Made) -> None:
    folder, _ = made
    assert {p.name for p in folder.iterdir()} == {
        f"{name}.{kind}" for name in DIFFERS for kind in ("csv", "svg", "png")
    }
    for name in DIFFERS:
        check_files(folder, name, ROWS[name])


@pytest.mark.slow
def test_training_verdicts_follow_the_data(made: Made) -> None:
    data = pd.read_csv(made[0] / "fig5.csv")
    above = data.assign(hybrid_samples_s=1.06 * data["aggregate_samples_s"])
    assert not verdict(fig5.judge(above), "never exceeds")
    idle = data.assign(gpu_batch=0, wse_batch=data["global_batch"])
    assert not verdict(fig5.judge(idle), "one side takes the whole batch")
    late = data.assign(threshold_2=np.inf)
    assert not verdict(fig5.judge(late), "three regimes")
    data = pd.read_csv(made[0] / "fig7.csv")
    rising = data.assign(least_link_gb_s=data["global_batch"].astype(float))
    found = fig7.judge(rising)
    assert not verdict(found, "falls with the global batch")
    assert not verdict(found, "7B: between 0 and 160")


@pytest.mark.slow
def test_serving_verdicts_follow_the_data(made: Made) -> None:
    data = pd.read_csv(made[0] / "fig16.csv")
    turned = data.assign(gpu_per_wse=1 / data["gpu_per_wse"])
    assert not verdict(fig16.judge(turned), "7B: longer inputs")
    assert not verdict(fig16.judge(turned), "70B: longer outputs")
    data = pd.read_csv(made[0] / "fig17.csv")
    always = data.assign(complementarity=1.1)
    assert not verdict(fig17.judge(always), "7B: one fixed ratio")
    assert not verdict(fig17.judge(always), "70B gains at more shapes")
    data = pd.read_csv(made[0] / "table3.csv")
    assert not verdict(table3.judge(data.assign(kv_byte_per_token=1.0)), "7B: the row follows")
    assert verdict(table3.judge(data.assign(kv_gb_s=data["paper_gb_s"])), "70B, node")


def test_training_fleet_is_the_smallest_that_keeps_up() -> None:
    for model in MODELS:
        chosen = fleet(model)
        assert (chosen.n_gpu, chosen.n_wse) == (24, 1)
        gpu_s, wse_s = chosen.scaling.alone_s[-1]
        assert gpu_s <= wse_s < np.inf
        gpu_s, wse_s = fleet(model, n_gpu=16).scaling.alone_s[-1]
        assert gpu_s > wse_s


def test_serving_instances_are_the_smallest_that_hold_the_model() -> None:
    for model, pair in PAIRS.items():
        longest = design(pair, TOKENS[-1], TOKENS[-1], n_gpu=pair.gpu_size, n_wse=pair.wse_size)
        assert longest["infeasible_reason"] == "", model
        for g, w in ((pair.gpu_size - 1, pair.wse_size), (pair.gpu_size, pair.wse_size - 1)):
            if g and w:
                smaller = Pair(model=pair.model, gpu_size=g, wse_size=w)
                row = design(smaller, TOKENS[-1], TOKENS[-1], n_gpu=g, n_wse=w)
                assert "memory" in str(row["infeasible_reason"]), (model, g, w)
    all_heads = Pair(model="llama-2-70b-mha", gpu_size=4, wse_size=8)
    assert design(all_heads, 128, 1, n_gpu=4, n_wse=8)["infeasible_reason"] != ""
    assert table3.ROWS["70B"].gpu == A100_80


def test_the_links_of_serving_never_bind() -> None:
    """Every request of the maps crosses; its cache takes next to nothing of the link."""
    for pair in PAIRS.values():
        row = design(pair, 8192, 128, n_gpu=160, n_wse=40)
        assert row["link_use_frac"] < 0.01


@pytest.mark.parametrize("file", sorted(FOLDER.glob("*.toml")), ids=lambda p: p.stem)
def test_studies_stand_alone(file: Path) -> None:
    assert Study.load(file).space.n_designs >= 1
