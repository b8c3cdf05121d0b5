"""Whole training designs, every number by hand: a model and devices of round numbers.

The model: L = 4 layers, h = 1,000, 10 heads of 100, plain feed-forward f = 4,000, V = 10,000; sequences of 1,000.
    attention 4 h h = 4e6, feed-forward 2 h f = 8e6: 12e6 a layer, with norms 2 h 12.002e6
    N_lin = 48e6, head and embedding V h = 10e6 each, last norm 1,000: 68.009e6 parameters
    F = 2 x 48e6 x 1,000 + 2 x 4 x 1,000 x 1,000^2 + 2 x 10e6 x 1,000 = 96e9 + 8e9 + 20e9 = 124e9 flop a sequence
        of a layer (96e9 + 8e9)/4 = 26e9, of the head 20e9, of the scores 8e9
    between layers s h 2 = 2e6 byte a sequence
    kept of a layer: s h (18 + 2 x 2 f/h + 5 a s/h) = 1e6 (18 + 16 + 50) = 84e6 byte; selective 34e6; full 2e6
An instance of two GPUs: 2 x 1e14 x 0.5 = 1e14 flop/s; a wafer: 1e15 x 0.2 = 2e14 flop/s.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from dse.resolve import Study
from dse.scoring import explain

MODEL = {
    "num_hidden_layers": 4, "hidden_size": 1000, "num_attention_heads": 10, "intermediate_size": 4000,
    "vocab_size": 10000, "hidden_act": "relu",
}  # fmt: skip
GPU = """
name = "hand-gpu"
kind = "gpu"
arrangement = "tensor"
peak_flop_s = { bf16 = 1e14 }
memory_byte = 1e9
memory_bandwidth_byte_s = 1e12
node_size = 4
link_byte_s = 100e9
link_latency_s = 1e-5
link_efficiency = 0.5
scale_out_byte_s = 10e9
scale_out_latency_s = 2e-5
idle_w = 100
full_w = 400
host_w = 50
rental_usd_per_h = 2.0
[efficiency.train]
compute = 0.5
memory = 0.5
fixed_layer_s = 1e-4
[efficiency.prefill]
compute = 0.5
memory = 0.5
fixed_layer_s = 1e-4
[efficiency.decode]
compute = 0.5
memory = 0.5
fixed_layer_s = 1e-4
"""
WAFER = """
name = "hand-wse"
kind = "wse"
arrangement = "pipeline"
peak_flop_s = { bf16 = 1e15 }
memory_byte = 0.5e9
memory_bandwidth_byte_s = 1e15
streaming_byte = 4e9
node_size = 1
link_byte_s = 100e9
link_latency_s = 1e-5
link_efficiency = 0.5
scale_out_byte_s = 20e9
scale_out_latency_s = 2e-5
idle_w = 5000
full_w = 20000
host_w = 1000
rental_usd_per_h = 50.0
[efficiency.train]
compute = 0.2
memory = 0.5
fixed_layer_s = 5e-5
[efficiency.prefill]
compute = 0.2
memory = 0.5
fixed_layer_s = 5e-5
[efficiency.decode]
compute = 0.2
memory = 0.5
fixed_layer_s = 5e-5
"""


def study(folder: Path, paradigm: str, gpu: dict[str, Any], wse: dict[str, Any], **changes: Any) -> dict[str, Any]:
    (folder / "hand.json").write_text(json.dumps(MODEL), encoding="utf-8")
    (folder / "gpu.toml").write_text(GPU, encoding="utf-8")
    (folder / "wse.toml").write_text(WAFER, encoding="utf-8")
    work = {"model": "hand.json", "sequence_tokens": 1000, "global_batch": [64], "recompute": ["none"]}
    pools = [{"device": "gpu.toml", "name": "gpu", **gpu}] if gpu else []
    pools += [{"device": "wse.toml", "name": "wse", **wse}] if wse else []
    raw: dict[str, Any] = {
        "name": "hand",
        "paradigm": paradigm,
        "workload": work | changes.pop("workload", {}),
        "pool": pools,
        "site": {"pue": 1.25, "carbon_g_per_kwh": 360},
    }
    if len(pools) > 1:
        raw["link"] = {"bandwidth_gb_s": [10], "latency_s": 1e-3}
    return raw | changes


def scored(raw: dict[str, Any], folder: Path, **settings: Any) -> tuple[pd.Series, dict[str, Any]]:
    frame, detail = explain(Study.from_dict(raw, folder=folder), settings)
    return frame.iloc[0], dict(detail)


def near(value: float) -> Any:
    return pytest.approx(value, rel=1e-9)


# -- data parallel ----------------------------------------------------------------------------------


def test_dp_gpus_and_a_wafer(tmp_path: Path) -> None:
    """8 GPUs in 4 replicas of 2, micro-batch 2; one wafer; 64 sequences, selective recompute; link 10 GB/s, 1 ms.

    A sequence: 3 x 124e9 + 8e9 = 380e9 flop: 3.8 ms on two GPUs, 1.9 ms on the wafer.
    GPU, a micro-step: fixed 3 passes x 4 layers x 0.1 ms = 1.2 ms;
        4 x 4 all-reduces of 2 x 2e6 byte: 1e-5 + 2 (1/2) 4e6/(100e9 x 0.5) = 0.09 ms each, 1.44 ms together
    GPU, once: gradients 2 x 68.009e6/2 byte over 4 replicas on scale-out, since 8 GPUs are two nodes:
        2e-5 + 2 (3/4) 68.009e6/(10e9 x 0.5) = 20.4227 ms
    Wafer: fixed 3 x 4 x 0.05 ms = 0.6 ms, once
    32 to each: GPUs 8 a replica in 4 micro-steps: 30.4 + 4 (1.2 + 1.44) + 20.4227 = 61.3827 ms;
        wafer 0.6 + 32 x 1.9 = 61.4 ms. One replica-sample more on the GPUs is 67.8 ms, one less leaves 36 for the
        wafer, 69 ms: this is the best.
    Exchange of 2 (1/2) 2 x 68.009e6 = 136.018e6 byte: 13.6018 ms + 1 ms; the step 61.4 + 14.6018 = 76.0018 ms
    """
    raw = study(
        tmp_path,
        "dp_training",
        {"count": [8], "instance_size": [2], "micro_batch": [2], "zero_stage": [1]},
        {"count": [1]},
        workload={"recompute": ["selective"], "train_tokens": 1e9},
        failures={"mtbf_device_h": 10_000, "checkpoint_s": 100, "restart_s": 400, "checkpoint_interval_s": 1000},
    )
    row, detail = scored(raw, tmp_path)
    step = 0.0760018
    assert (row["batch_gpu"], row["batch_wse"]) == (32, 32)
    assert row["step_time_s"] == near(step)
    assert row["sync_s"] == near(0.0146018)
    assert row["link_use_frac"] == near(0.0136018 / step)
    tok = 64_000 / step
    assert row["throughput_tok_s"] == near(tok)
    assert row["throughput_samples_s"] == near(64 / step)

    busy_gpu, busy_wse = 0.0613827 / step, 0.0614 / step
    assert row["busy_gpu"] == near(busy_gpu)
    assert row["eta_gpu"] == near(step / 0.0613827 - 1)
    # compute 30.4 ms is longer than communication, 5.76 + 20.4227 ms: 32 x 380e9 flop at 8e14 are 15.2 ms
    assert row["u_gpu"] == near(0.0152 / 0.0613827 * busy_gpu)
    assert row["u_wse"] == near(0.01216 / 0.0614 * busy_wse)
    assert row["mfu_gpu"] == near(3 * 124e9 * 32 / (step * 8e14))
    assert row["mfu_wse"] == near(3 * 124e9 * 32 / (step * 1e15))
    shares = detail["pools"]["gpu"]["time_frac"]
    assert shares["compute"] == near(0.0304 / 0.0613827)
    assert shares["communication"] == near(0.0261827 / 0.0613827)
    assert shares["fixed"] == near(0.0048 / 0.0613827)

    # GPU: states 68.009e6/2 (2 + 2 + 12/4) = 238.0315e6, kept 4 x 2 x 34e6/2 = 136e6, of 900e6
    # wafer: inside 450e6 - 34e6 = 416e6; outside 4e9 - 16 x 68.009e6 - 32 x 4 x 2e6 = 2,655.856e6
    assert detail["pools"]["gpu"]["memory"]["margin_byte"] == near(525_968_500)
    assert row["mem_margin_byte"] == near(416e6)

    assert row["power_w"] == near(1.25 * (8 * 450 + 21_000))
    watt = 1.25 * (8 * (150 + 300 * busy_gpu) + 6_000 + 15_000 * busy_wse)
    assert row["power_mean_w"] == near(watt)
    assert row["cost_usd_per_h"] == near(8 * 2 + 50)
    assert row["usd_per_mtok"] == near(66 / (tok * 3600) * 1e6)
    assert row["energy_j_per_tok"] == near(watt / tok)
    assert row["co2_g_per_mtok"] == near(watt / tok / 3.6e6 * 360 * 1e6)

    # alone: GPUs 16 a replica in 8 micro-steps 60.8 + 21.12 + 20.4227 = 102.3427 ms; wafer 0.6 + 121.6 = 122.2 ms
    gpu, wse = 64_000 / 0.1023427, 64_000 / 0.1222
    assert row["aggregate_tok_s"] == near(gpu + wse)
    assert row["complementarity"] == near(tok / (gpu + wse))
    assert row["gain"] == near(tok / gpu)
    assert row["gain_equal_cost"] == near(tok / (66 * gpu / 16))
    assert row["gain_equal_power"] == near(tok / (30_750 * gpu / 4_500))

    # 9 devices of 10,000 h: M = 4e6 s; a checkpoint of 100 s after every 1,000 s, 400 s to restart
    useful = 1000 / 1100 * (1100 / 4e6) / (math.exp(1100 / 4e6) - 1) * math.exp(-400 / 4e6)
    assert row["goodput_frac"] == near(useful)
    assert row["train_time_s"] == near(1e9 / tok / useful)
    assert row["train_energy_j"] == near(1e9 / tok / useful * watt)
    assert row["train_cost_usd"] == near(1e9 / tok / useful / 3600 * 66)


def test_dp_least_bandwidth_without_latency(tmp_path: Path) -> None:
    """The mix takes 61.4 ms and the exchange of 136.018e6 byte; the GPUs alone 102.3427 ms."""
    raw = study(
        tmp_path,
        "dp_training",
        {"count": [8], "instance_size": [2], "micro_batch": [2]},
        {"count": [1]},
        workload={"recompute": ["selective"]},
        link={"bandwidth_gb_s": [10]},
    )
    _, detail = scored(raw, tmp_path)
    least = 136.018e6 / (0.1023427 - 0.0614)
    assert detail["system"]["least_link_byte_s"] == near(least)
    above, _ = scored(raw, tmp_path, link_gb_s=least / 1e9 * 1.001)
    below, _ = scored(raw, tmp_path, link_gb_s=least / 1e9 * 0.999)
    assert above["gain"] > 1
    assert below["gain"] == 1
    assert below["batch_wse"] == 0


def test_dp_a_wafer_that_holds_few_samples(tmp_path: Path) -> None:
    """Outside memory of 1.2e9 byte: less states 1.2e9 - 1,088.144e6 = 111.856e6, 13 sequences of 8e6 byte.

    The GPUs must take 51 of 64 and more: 13 a replica in 7 micro-steps, 49.4 + 18.48 + 20.4227 = 88.3027 ms, for 52.
    Over 10 GB/s the exchange makes that 102.9045 ms, longer than the GPUs alone, 102.3427 ms: the wafer idles.
    Over 1,000 GB/s it is 88.3027 + 0.136018 + 1 ms.
    """
    raw = study(
        tmp_path,
        "dp_training",
        {"count": [8], "instance_size": [2], "micro_batch": [2]},
        {"count": [1]},
        workload={"recompute": ["selective"]},
    )
    (tmp_path / "wse.toml").write_text(WAFER.replace("streaming_byte = 4e9", "streaming_byte = 1.2e9"))
    row, _ = scored(raw, tmp_path)
    assert (row["batch_gpu"], row["batch_wse"], row["sync_s"]) == (64, 0, 0)
    assert row["step_time_s"] == near(0.1023427)
    assert (row["busy_wse"], row["mfu_wse"], row["eta_wse"]) == (0, 0, math.inf)
    row, _ = scored(raw, tmp_path, link_gb_s=1000)
    assert (row["batch_gpu"], row["batch_wse"]) == (52, 12)
    assert row["step_time_s"] == near(0.089438718)
    assert row["aggregate_tok_s"] == near(64_000 / 0.1023427)  # alone the wafer cannot hold the batch
    assert row["gain"] == near(0.1023427 / 0.089438718)


# -- pipelines --------------------------------------------------------------------------------------

GPU_CHAIN = {"count": [8], "instance_size": [2], "stages": [2]}
"""8 GPUs as 2 pipelines of 2 stages. With 8 sequences and micro-batch 1 each takes N = 4.

A layer of one sequence, nothing recomputed: forward 0.1 + 0.26 + 2 x (1e-5 + 2e6/50e9 = 0.05) = 0.46 ms,
backward 2 x 0.36 + 0.1 = 0.82 ms. Head 0.2 ms forward, 0.4 back. Between stages, 4 GPUs being one node, 0.05 ms.
Two layers each: f = 0.92 + 0.05 = 0.97, b = 1.64 | f = 0.92 + 0.2 = 1.12, b = 1.64 + 0.4 + 0.05 = 2.09 ms.
(Three and one would be 3.89 ms on the first stage.)
Gradients of the last stage, 2 x 12.002e6 + 10.001e6 = 34.005e6 parameters, are 34.005e6 byte a GPU, over 2 pipelines
on scale-out: 2e-5 + 34.005e6/5e9 = 6.821 ms.
"""


@pytest.mark.parametrize(
    ("schedule", "time_s", "margin_byte"),
    [
        # 0.97 + 1.64 + 1.12 + 2.09 + 3 (1.12 + 2.09); 4 micro-batches kept: 170.025e6 + 2 x 4 x 42e6 of 900e6
        ("gpipe", 15.45e-3, 393.975e6),
        # second stage: F1 0.97-2.09, B1 -4.18, F2 -5.30, B2 -7.39, F3 -8.51, B3 -10.60, F4 -11.72, B4 -13.81;
        # then B4 of the first, 1.64. First stage: states 34.004e6/2 (2 + 2 + 12/2) = 170.02e6, 2 x 2 x 42e6 kept
        ("1f1b", 15.45e-3, 561.98e6),
        # 4 x 3.21 + (5.82 - 3.21)/2 + 2 x (0.05 + 0.05); in flight (2 + 2 + 1)/2 = 2.5
        ("interleaved", 14.345e-3, 519.98e6),
    ],
)
def test_pp_gpus_only(tmp_path: Path, schedule: str, time_s: float, margin_byte: float) -> None:
    raw = study(
        tmp_path, "pp_training", GPU_CHAIN | {"schedule": [schedule], "chunks": [2]}, {}, workload={"global_batch": [8]}
    )
    row, detail = scored(raw, tmp_path)
    step = time_s + 6.821e-3
    assert row["step_time_s"] == near(step)
    assert row["sync_s"] == near(6.821e-3)
    assert row["layers"] == "2x2"
    assert row["throughput_tok_s"] == near(8_000 / step)
    busy = 4 * (2.61e-3 + 3.21e-3) / 2 / step
    assert row["busy_gpu"] == near(busy)
    assert row["bubble_frac"] == near(1 - busy)
    # arithmetic 2 x 0.78 | 2 x 0.78 + 0.6 of 2.61 | 3.21 ms; half of the peak while it lasts
    assert row["u_gpu"] == near(0.5 * (1.56 + 2.16) / (2.61 + 3.21) * busy)
    assert row["mfu_gpu"] == near(3 * 124e9 * 8 / (step * 8e14))
    assert row["mem_margin_byte"] == near(margin_byte)
    assert row["cost_usd_per_h"] == near(16)
    assert row["power_mean_w"] == near(1.25 * 8 * (150 + 300 * busy))
    assert row["gain"] == row["complementarity"] == 1
    assert detail["system"]["micro_batches"] == 4
    assert detail["system"]["path_s"] == near(5.82e-3)
    assert detail["system"]["verdict"] == "feasible"


def test_pp_wafers_end_the_chain(tmp_path: Path) -> None:
    """2 pipelines: two GPU stages, then a wafer each; full recompute, GPipe, N = 4; link 10 GB/s, 1 ms.

    GPU layer: forward 0.46, backward 3 x 0.36 + 4 x 0.05 = 1.28 ms. Wafer layer: 0.05 + 0.13 = 0.18, backward 0.54;
    head 0.1 and 0.3 ms. To the wafer and back: 1 + 2e6/10e9 = 1.2 ms.
    One layer | one | two: 0.51 + 1.28 | 0.46 + 1.2 + 1.28 + 0.05 | 0.36 + 0.1 + 1.08 + 0.3 + 1.2: 1.79, 2.99, 3.04 ms
    GPipe: 7.82 + 3 (1.66 + 2.58) = 20.54 ms. Gradients: wafers 68.01e6 byte at 20e9 x 0.5, 6.821 ms; GPUs 4.42 ms.
    """
    raw = study(
        tmp_path,
        "pp_training",
        GPU_CHAIN | {"schedule": ["gpipe"]},
        {"count": [2]},
        workload={"global_batch": [8], "recompute": ["full"]},
    )
    row, _ = scored(raw, tmp_path)
    step = 20.54e-3 + 6.821e-3
    assert row["layers"] == "2x1 1x2"
    assert row["step_time_s"] == near(step)
    assert row["sync_s"] == near(6.821e-3)
    assert row["busy_gpu"] == near(4 * (1.79e-3 + 2.99e-3) / 2 / step)
    assert row["busy_wse"] == near(4 * 3.04e-3 / step)
    assert row["bubble_frac"] == near(1 - 4 * 7.82e-3 / 3 / step)
    # two layers of GPUs 2 x 4 x 26e9, two of wafers and the head 4 (2 x 26e9 + 20e9), 8 sequences
    assert row["mfu_gpu"] == near(3 * 8 * 52e9 / (step * 8e14))
    assert row["mfu_wse"] == near(3 * 8 * 72e9 / (step * 2e15))
    # wafers: 1.48 of 3.04 ms are arithmetic, 1.2 ms a transfer
    assert row["u_wse"] == near(0.2 * (2 * 0.52 + 0.4) / 3.04 * row["busy_wse"])
    # a wafer's two layers go out and come back: 8 x 2e6 byte each way
    assert row["link_use_frac"] == near(16e6 / 10e9 / step)
    # wafer: inside 450e6 - 84e6; outside 4e9 - 34.005e6 x 10 - 2 x 4 x 2e6. GPU: 22.002e6/2 x 10 + 4 x 2e6 of 900e6
    assert row["mem_margin_byte"] == near(366e6)


def test_pp_a_wafer_takes_a_layer_of_each_stage(tmp_path: Path) -> None:
    """One pipeline, one wafer, k = 1: the wafer is one more stage. GPipe, N = 4.

    GPU stages keep a layer each and send everything over the link, 1.2 ms; only the last has no forward to send:
        0.46 + 1.2 | 0.82 + 1.2, and 0.46 + 0.2 | 0.82 + 0.4 + 1.2 ms; the wafer's two layers 0.36 | 0.72 ms
    7.84 + 3 (1.66 + 2.42) = 20.08 ms, and the wafer's own 3 returns, 3.6 ms: 23.68 ms; no gradients to share.
    """
    raw = study(
        tmp_path,
        "pp_training",
        GPU_CHAIN | {"count": [4], "schedule": ["gpipe"]},
        {"count": [1], "offload_layers": [1]},
        workload={"global_batch": [4]},
    )
    row, detail = scored(raw, tmp_path)
    assert row["layers"] == "2x1 + 1 each on wafers"
    assert row["step_time_s"] == near(23.68e-3)
    assert row["sync_s"] == 0
    assert row["busy_gpu"] == near(4 * (3.68e-3 + 3.08e-3) / 2 / 23.68e-3)
    assert row["bubble_frac"] == near(1 - row["busy_gpu"])
    assert row["busy_wse"] == near(4 * 1.08e-3 / 23.68e-3)
    # two stages: forward 2 and back 2 to the wafer, less the last forward; 4 x 2e6 byte each
    assert row["link_use_frac"] == near(3 * 8e6 / 10e9 / 23.68e-3)
    # k = 1 breaks even where K tau_wse is l tau_gpu: 2 x 1.28 ms / 2; a wafer's layer takes 3 x 0.18 ms
    assert detail["system"]["offload_threshold_s"] == near(1.28e-3)
    assert detail["system"]["wafer_layer_s"] == near(0.54e-3)
    # alone: GPUs 5.82 + 3 x 3.21 = 15.45 ms; the wafer all 4 at once, 0.6 + 4 x 372e9/2e14 = 8.04 ms
    assert row["aggregate_tok_s"] == near(4_000 / 15.45e-3 + 4_000 / 8.04e-3)
    assert row["gain"] == near(8.04 / 23.68)


def test_pp_a_wafer_collects_micro_batches(tmp_path: Path) -> None:
    """Two pipelines, one wafer that takes q = 2 micro-batches at once; 8 sequences, N = 4.

    A layer of two sequences on the wafer: 3 (0.05 + 0.26) = 0.93 ms; the two layers of a call 1.86 ms, one call a tick.
    The slowest stage takes 3.68 ms: path 3.68 + 3.08 + 1.86, 3 ticks of 3.68, 3 returns of 1.2: 23.26 ms.
    Gradients of the last GPU stage, 22.003e6 parameters: 2e-5 + 22.003e6/5e9 = 4.4206 ms.
    """
    raw = study(
        tmp_path,
        "pp_training",
        GPU_CHAIN,
        {"count": [1], "offload_layers": [1], "collect": [2]},
        workload={"global_batch": [8]},
    )
    row, detail = scored(raw, tmp_path)
    step = 23.26e-3 + 4.4206e-3
    assert row["step_time_s"] == near(step)
    assert row["sync_s"] == near(4.4206e-3)
    assert row["busy_wse"] == near(4 * 1.86e-3 / step)
    assert row["mfu_wse"] == near(3 * 8 * 2 * 26e9 / (step * 1e15))
    assert detail["system"]["wafer_layer_s"] == near(0.93e-3 / 2)
    three, _ = scored(raw, tmp_path, collect=3)
    assert not three["feasible"]
    assert three["throughput_tok_s"] == 0


def test_pp_wafers_that_each_run_the_whole_model(tmp_path: Path) -> None:
    """2 wafers, 8 sequences: 4 each at once, 3 x 4 x 0.05 + 4 x 372e9/2e14 = 8.04 ms, gradients 13.6218 ms."""
    raw = study(tmp_path, "pp_training", {}, {"count": [2]}, workload={"global_batch": [8]})
    row, _ = scored(raw, tmp_path)
    assert row["step_time_s"] == near(8.04e-3 + 2e-5 + 136.018e6 / 10e9)
    assert row["sync_s"] == near(2e-5 + 136.018e6 / 10e9)
    assert row["bubble_frac"] == 0
    assert row["layers"] == "whole model"
    same = study(tmp_path, "dp_training", {}, {"count": [2]}, workload={"global_batch": [8]})
    assert scored(same, tmp_path)[0]["step_time_s"] == near(row["step_time_s"])
