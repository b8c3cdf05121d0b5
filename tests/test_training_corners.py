"""Corners of training designs, each at its smallest: what an independent reference once found wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from test_train_by_hand import GPU, GPU_CHAIN, MODEL, WAFER, near, scored, study

from dse.errors import InputError
from dse.exhaustive import explore
from dse.progress import Stop, silent
from dse.resolve import Study


def test_mfu_of_a_stage_counts_its_own_arithmetic(tmp_path: Path) -> None:
    """Two layers on GPUs, 2 x 26e9 flop a sequence; two and the head on wafers, 72e9; 8 sequences, selective."""
    raw = study(
        tmp_path, "pp_training", GPU_CHAIN, {"count": [2]}, workload={"global_batch": [8], "recompute": ["selective"]}
    )
    row, _ = scored(raw, tmp_path)
    assert row["layers"] == "2x1 1x2"
    assert row["mfu_gpu"] == near(3 * 8 * 52e9 / (row["step_time_s"] * 8e14))
    assert row["mfu_wse"] == near(3 * 8 * 72e9 / (row["step_time_s"] * 2e15))


def test_the_best_single_pool_costs_what_it_costs(tmp_path: Path) -> None:
    raw = study(tmp_path, "pp_training", GPU_CHAIN, {}, workload={"global_batch": [8]})
    raw["site"] |= {"cost_basis": "ownership", "energy_usd_per_kwh": 0.2}
    (tmp_path / "gpu.toml").write_text(GPU.replace("host_w = 50\n", "host_w = 50\ncapex_usd = 10000\n"))
    row, _ = scored(raw, tmp_path)
    assert row["gain_equal_power"] == near(1)
    assert row["gain_equal_cost"] == near(1)


def test_one_stage_of_a_tied_model_is_the_model(tmp_path: Path) -> None:
    """58.009e6 parameters, once: 2e-5 + 2 (3/4) 58.009e6/5e9 = 17.4227 ms for the gradients of 4 replicas."""
    pool = {"count": [8], "instance_size": [2]}
    raw = study(tmp_path, "pp_training", pool, {}, workload={"global_batch": [16]})
    (tmp_path / "hand.json").write_text(json.dumps(MODEL | {"tie_word_embeddings": True}))
    dp = scored(raw | {"paradigm": "dp_training"}, tmp_path)[0]
    pp = scored(raw, tmp_path)[0]
    once = 2e-5 + 1.5 * 58.009e6 / 5e9
    assert dp["step_time_s"] == near(4 * (4 * 1.28e-3 + 6e-4) + once)
    assert pp["sync_s"] == near(once)
    assert pp["step_time_s"] == near(dp["step_time_s"])
    assert pp["mem_margin_byte"] == near(dp["mem_margin_byte"])


def test_a_step_is_no_shorter_than_the_wafers_work(tmp_path: Path) -> None:
    """32 pipelines, N = 1, q = 1: 32 calls of 1.08 ms, 34.56 ms.

    The page has 3.68 + 3.08 + 1.08 + 3 x 1.2 = 11.44 ms; the link needs 3 x 32 x 2e6/10e9 = 19.2 ms.
    """
    raw = study(
        tmp_path,
        "pp_training",
        GPU_CHAIN | {"count": [128]},
        {"count": [1], "offload_layers": [1]},
        workload={"global_batch": [32]},
    )
    row, _ = scored(raw, tmp_path)
    assert row["step_time_s"] - row["sync_s"] >= 19.2e-3 * (1 - 1e-9)
    assert row["step_time_s"] - row["sync_s"] >= 32 * 1.08e-3


def test_more_micro_batches_fill_a_pipeline_better(tmp_path: Path) -> None:
    raw = study(
        tmp_path, "pp_training", GPU_CHAIN | {"count": [128]}, {"count": [1], "offload_layers": [1]},
        workload={"global_batch": [32, 64, 256]},
    )  # fmt: skip
    rates = [scored(raw, tmp_path, global_batch=g)[0]["throughput_tok_s"] for g in (32, 64, 256)]
    assert rates == sorted(rates)


def test_an_exchange_hides_behind_no_more_than_the_step(tmp_path: Path) -> None:
    """136.018e6 byte over 2 GB/s take 68 ms, more than the 61.4 ms of the pools; over 0.1 GB/s 1.36 s: no mix pays."""
    raw = study(
        tmp_path,
        "dp_training",
        {"count": [8], "instance_size": [2], "micro_batch": [2]},
        {"count": [1]},
        workload={"recompute": ["selective"], "overlap_frac": 1.0},
        link={"bandwidth_gb_s": [0.1, 2.0]},
    )
    row, detail = scored(raw, tmp_path, link_gb_s=2.0)
    assert row["batch_wse"] > 0
    assert row["step_time_s"] == near(136.018e6 / 2e9)
    assert row["link_use_frac"] == near(1)
    assert detail["system"]["f_flop_s"] <= detail["system"]["link_bound_flop_s"] * (1 + 1e-12)
    assert scored(raw, tmp_path, link_gb_s=0.1)[0]["batch_wse"] == 0


@pytest.mark.parametrize(("latency_s", "overlap"), [(1e-3, 0.0), (0.0, 0.5), (0.041, 0.0)])
def test_the_least_bandwidth_is_that_of_the_scored_mix(tmp_path: Path, latency_s: float, overlap: float) -> None:
    """102.3427 ms alone, 61.4 ms together: (1 - o) 136.018e6 byte in 40.9427 ms - (1 - o) l."""
    raw = study(
        tmp_path,
        "dp_training",
        {"count": [8], "instance_size": [2], "micro_batch": [2]},
        {"count": [1]},
        workload={"recompute": ["selective"], "overlap_frac": overlap},
        link={"bandwidth_gb_s": [10], "latency_s": latency_s},
    )
    spare = 0.0409427 - (1 - overlap) * latency_s
    least = (1 - overlap) * 136.018e6 / spare if spare > 0 else float("inf")
    assert scored(raw, tmp_path)[1]["system"]["least_link_byte_s"] == near(least)


def test_a_table_that_gives_a_sample_less_than_no_time_is_refused(tmp_path: Path) -> None:
    """190e9 flop a device: 5 ms - 0.81e12 x 95 ms/1e12 = -72 ms."""
    raw = study(
        tmp_path, "dp_training", {"count": [8], "instance_size": [2]}, {"count": [1]},
        workload={"recompute": ["selective"]},
    )  # fmt: skip
    table = "[efficiency.train]\ntable_flop = [1e12, 2e12]\ntable_s = [0.005, 0.1]\n"
    (tmp_path / "gpu.toml").write_text(GPU.replace("[efficiency.train]\n", table))
    try:
        row, _ = scored(raw, tmp_path)
    except InputError:
        return
    assert row["batch_gpu"] + row["batch_wse"] == 64
    assert row["step_time_s"] > 0


def test_what_a_wafer_holds_outside(tmp_path: Path) -> None:
    """Two layers and the head in full recompute: 34.005e6 x 10 byte of states, 4 x 2 x 2e6 of inputs."""
    raw = study(
        tmp_path,
        "pp_training",
        GPU_CHAIN | {"schedule": ["gpipe"]},
        {"count": [2]},
        workload={"global_batch": [8], "recompute": ["full"]},
    )
    memory = scored(raw, tmp_path)[1]["pools"]["wse"]["memory"]
    assert sum(memory["outside"].values()) == near(356.05e6)


def test_unequal_numbers_of_pipelines_are_structurally_infeasible(tmp_path: Path) -> None:
    raw = study(tmp_path, "pp_training", GPU_CHAIN, {"count": [3]}, workload={"global_batch": [8]})
    row, detail = scored(raw, tmp_path)
    assert not row["feasible"]
    assert "structure" in row["infeasible_reason"]
    assert detail["system"]["verdict"] == "structurally infeasible"


def test_an_empty_space_is_refused(tmp_path: Path) -> None:
    raw = study(tmp_path, "pp_training", GPU_CHAIN | {"schedule": ["interleaved"]}, {"count": [1], "offload_layers": 1})
    with pytest.raises(InputError):
        Study.from_dict(raw, folder=tmp_path)


def test_a_pool_alone_may_use_every_schedule_of_the_study(tmp_path: Path) -> None:
    """8 GPUs alone: 15.45 ms under 1F1B, 14.345 ms interleaved, and 6.821 ms for the gradients; 4,500 W."""
    raw = study(
        tmp_path,
        "pp_training",
        GPU_CHAIN | {"schedule": ["1f1b", "interleaved"], "chunks": [2]},
        {"count": [1], "offload_layers": [1]},
        workload={"global_batch": [8]},
    )
    slow = WAFER.replace("compute = 0.2", "compute = 0.001")
    (tmp_path / "wse.toml").write_text(slow)
    row, _ = scored(raw, tmp_path)
    alone = 8_000 / 21.166e-3 / 4_500
    assert row["gain_equal_power"] == near(row["throughput_tok_s"] / (row["power_w"] * alone))


def test_a_wider_link_never_slows_a_pipeline(tmp_path: Path) -> None:
    """12 layers, two GPU stages and a wafer, N = 2: 19.743 ms over 7 GB/s (4, 2, 6), 19.860 over 10 (3, 3, 6)."""
    raw = study(
        tmp_path,
        "pp_training",
        GPU_CHAIN | {"count": [4], "schedule": ["gpipe"]},
        {"count": [1]},
        workload={"global_batch": [2]},
    )
    (tmp_path / "hand.json").write_text(json.dumps(MODEL | {"num_hidden_layers": 12}))
    narrow, wide = (scored(raw, tmp_path, link_gb_s=s)[0]["step_time_s"] for s in (7, 10))
    assert wide <= narrow * (1 + 1e-9)


def test_a_pipeline_of_wafers_tries_its_micro_batches(tmp_path: Path) -> None:
    """Two wafers in a row, 8 sequences: micro-batch 1 pays 8 times what no batch removes, micro-batch 4 twice."""
    raw = study(
        tmp_path,
        "pp_training",
        {},
        {"count": [2], "stages": [2], "micro_batch": [1, 2, 4]},
        workload={"global_batch": [8]},
        objectives={"maximise": ["throughput_tok_s"], "minimise": ["cost_usd_per_h"]},
    )
    rates = [scored(raw, tmp_path, micro_batch_wse=m)[0]["throughput_tok_s"] for m in (1, 2, 4)]
    found = explore(Study.from_dict(raw, folder=tmp_path), workers=1, address="local", report=silent, stop=Stop())
    assert -found.points[:, 0].min() == near(max(rates))
