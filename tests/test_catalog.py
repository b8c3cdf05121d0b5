"""The catalogue: complete, sourced, and strict about its own files; device and model files."""

from __future__ import annotations

import json
import shutil
import tomllib
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import tomli_w

import dse.catalog
from dse.catalog import device_file_text, load_catalog, load_device_file, load_model_file
from dse.catalog.loader import DEVICE_DIMENSION, read_catalog
from dse.errors import InputError, UnknownNameError
from dse.model.transformer import arithmetic

FOLDER = Path(dse.catalog.__file__).parent
DEVICES = {
    "a100-40gb-sxm", "a100-80gb-sxm", "h100-80gb-sxm", "h200-141gb-sxm", "b200-180gb-sxm", "gb200-nvl72", "mi300x",
    "mi325x", "l40s", "tpu-v5e", "tpu-v5p", "trainium2", "gaudi3", "wse-2", "wse-3",
}  # fmt: skip
MODELS = {
    "llama-2-7b", "llama-2-13b", "llama-2-70b", "llama-2-70b-mha", "codellama-34b", "llama-3.1-8b", "llama-3.1-70b",
    "llama-3.1-405b", "qwen2.5-7b", "qwen2.5-32b", "qwen2.5-72b", "mistral-7b", "mixtral-8x7b", "deepseek-v3",
    "mpt-125m", "mpt-350m", "mpt-760m", "mpt-1b", "mpt-3b", "mpt-7b", "mpt-13b", "mpt-30b", "mpt-70b", "gpt-3-1.3b",
    "gpt-3-2.7b", "gpt-3-6.7b", "gpt-3-13b",
}  # fmt: skip
LINKS = {"pcie5-x16", "eth100", "eth200", "eth400", "eth800", "ndr400", "nvlink4", "wafer-io"}


def test_everything_asked_for_is_there() -> None:
    known = load_catalog()
    assert set(known.devices) >= DEVICES
    assert set(known.models) >= MODELS
    assert set(known.links) >= LINKS
    assert all("default" in known.profiles[d] for d in known.devices)


def test_every_number_has_source_date_and_grade_and_estimates_have_a_range() -> None:
    for fact in load_catalog().facts:
        assert fact.source in load_catalog().citations
        assert fact.date[:2] == "20"
        if fact.low and fact.high:
            assert float(fact.low) <= float(fact.value) <= float(fact.high), fact.key
        if fact.table in ("prices", "efficiency") and fact.grade == "D":
            assert fact.low, fact.key
            assert fact.high, fact.key


def test_devices_are_physically_sane() -> None:
    for d in load_catalog().devices.values():
        assert d.idle_w < d.full_w
        assert d.scale_out_byte_s <= d.link_byte_s
        assert (d.arrangement == "pipeline") == (d.kind == "wse")
        peaks = d.peak_flop_s
        assert peaks.get("fp8", peaks["bf16"]) >= peaks["bf16"]
        assert d.peak("fp16") is not None
        assert d.rental_usd_per_h
        assert d.capex_usd


def test_unknown_names_suggest_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="h100-80gb-sxm"):
        load_catalog().device("h100")
    with pytest.raises(UnknownNameError, match=r"did you mean vllm\?"):
        load_catalog().device("h100-80gb-sxm", "vlm")
    with pytest.raises(LookupError, match=r"llama-2-7b"):
        load_catalog().model("llama2-7b")
    with pytest.raises(UnknownNameError, match="ndr400"):
        load_catalog().link("ndr40")


def test_spoiled_catalogue_reports_all_faults_together(tmp_path: Path) -> None:
    for path in FOLDER.glob("*.csv"):
        shutil.copy(path, tmp_path)
    devices = (tmp_path / "devices.csv").read_text().splitlines()
    spoiled = [
        line.replace(",40,GB,", ",-40,GB,") if line.startswith("a100-40gb-sxm,memory,") else line
        for line in devices
        if not line.startswith("wse-3,memory_bandwidth,")
    ]
    spoiled.append("wse-3,memory_bandwidth,21,PB/min,,,cerebras,2024,A")
    spoiled.append("h200-141gb-sxm,memmory,141,GB,,,nowhere,,E")
    spoiled.append(spoiled[5])
    (tmp_path / "devices.csv").write_text("\n".join(spoiled) + "\n")
    with pytest.raises(InputError) as caught:
        read_catalog(tmp_path)
    text = str(caught.value)
    for part in (
        "-40, must be",
        "PB/min",
        "did you mean memory",
        "grade is 'E'",
        "date is empty",
        "no citation",
        "repeats line",
    ):
        assert part in text
    assert len(caught.value.faults) >= 7


DEVICE: dict[str, Any] = {
    "name": "toy",
    "kind": "gpu",
    "arrangement": "tensor",
    "peak_flop_s": {"bf16": 1e15, "fp8": 2e15},
    "memory_byte": 80e9,
    "memory_bandwidth_byte_s": 3e12,
    "node_size": 8,
    "link_byte_s": 450e9,
    "link_latency_s": 3e-6,
    "link_efficiency": 0.8,
    "scale_out_byte_s": 50e9,
    "scale_out_latency_s": 1e-5,
    "idle_w": 100,
    "full_w": 700,
    "host_w": 300,
    "rental_usd_per_h": 2.0,
    "efficiency": {
        "prefill": {"compute": 0.5, "memory": 0.8, "fixed_layer_s": 1e-5},
        "decode": {"compute": 0.5, "memory": 0.8, "fixed_layer_s": 1e-5},
    },
    "source": {"rental_usd_per_h": {"text": "an offer", "date": "2026-11", "grade": "C"}},
}


def test_device_file(tmp_path: Path) -> None:
    path = tmp_path / "toy.toml"
    path.write_text(tomli_w.dumps(DEVICE))
    device = load_device_file(path)
    assert device.peak("fp16") == 1e15
    assert device.peak("int8") is None
    assert device.efficiency["decode"].memory == 0.8
    assert device.capex_usd is None


@pytest.mark.parametrize("name", ["h100-80gb-sxm", "wse-3"])
def test_catalogue_device_as_a_file_reads_back(name: str, tmp_path: Path) -> None:
    known = load_catalog()
    path = tmp_path / "device.toml"
    path.write_text(device_file_text(known.device(name), known.device_sources(name)))
    again = load_device_file(path)
    for key, value in asdict(known.device(name)).items():
        if isinstance(value, float):
            assert getattr(again, key) == pytest.approx(value, rel=1e-11), key
    assert again.efficiency["decode"].memory == known.device(name).efficiency["decode"].memory
    assert "efficiency.decode.memory" in tomllib.loads(path.read_text())["source"]


def test_spoiled_device_file_reports_all_faults_together(tmp_path: Path) -> None:
    path = tmp_path / "toy.toml"
    spoiled = {**DEVICE, "memory_byte": -1.0, "node_size": 2.5, "surprise": 1, "peak_flop_s": {"bf17": 1e15}}
    del spoiled["kind"]
    path.write_text(tomli_w.dumps(spoiled))
    with pytest.raises(InputError) as caught:
        load_device_file(path)
    assert len(caught.value.faults) == 5
    assert all(fault.startswith("toy.toml [") for fault in caught.value.faults)


def test_device_table_and_file_hold_the_same_facts() -> None:
    assert set(DEVICE_DIMENSION) >= {"memory", "memory_bandwidth", "link", "scale_out", "idle", "full", "host"}


LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "intermediate_size": 11008, "vocab_size": 32000, "hidden_act": "silu", "tie_word_embeddings": False,
}  # fmt: skip


def test_model_file_matches_the_catalogue(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA))
    assert arithmetic(load_model_file(path)) == arithmetic(load_catalog().model("llama-2-7b"))


def test_expert_and_latent_model_files(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA | {
        "num_key_value_heads": 8, "hidden_size": 4096, "intermediate_size": 14336, "num_local_experts": 8,
        "num_experts_per_tok": 2,
    }))  # fmt: skip
    assert (
        arithmetic(load_model_file(path)).total_parameters
        == arithmetic(load_catalog().model("mixtral-8x7b")).total_parameters
    )
    path.write_text(json.dumps({
        "model_type": "deepseek_v3", "hidden_size": 7168, "num_hidden_layers": 61, "num_attention_heads": 128,
        "num_key_value_heads": 128, "intermediate_size": 18432, "moe_intermediate_size": 2048, "n_routed_experts": 256,
        "n_shared_experts": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 3, "q_lora_rank": 1536,
        "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "vocab_size": 129280,
    }))  # fmt: skip
    assert arithmetic(load_model_file(path)) == arithmetic(load_catalog().model("deepseek-v3"))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"hidden_size": None}, "hidden_size]: is missing"),
        ({"num_hidden_layers": -2}, "whole number, 1 to"),
        ({"num_attention_heads": "many"}, "whole number"),
        ({"num_key_value_heads": 5}, "must divide"),
        ({"tie_word_embeddings": "no"}, "true or false"),
        ({"num_local_experts": 4, "num_experts_per_tok": 9}, "must be 1 to 4"),
    ],
)
def test_spoiled_model_file(change: dict[str, Any], expected: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({k: v for k, v in (LLAMA | change).items() if v is not None}))
    with pytest.raises(InputError, match=r"config\.json") as caught:
        load_model_file(path)
    assert expected in str(caught.value)
    path.write_text("{")
    with pytest.raises(InputError, match="not valid JSON"):
        load_model_file(path)
