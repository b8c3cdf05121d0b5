"""The catalogue's profiles: sourced, sane, cautious by default, and at work in the physics; draws that use them."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from random_designs import draw
from random_training import draw_dp, draw_pp
from toy_measurements import TOY

import dse.catalog
from dse.calibration.training_step import step_s
from dse.calibration.validate import catalogue_errors
from dse.catalog import load_catalog
from dse.hardware import Efficiency
from dse.model.phases import decode_time, prefill_time
from dse.model.transformer import arithmetic

FOLDER = Path(dse.catalog.__file__).parent
LLAMA = load_catalog().model("llama-2-7b")
N_LIN, N_HEAD, L, H = 6_476_005_376, 32000 * 4096, 32, 4096
DTYPES = {"weight_dtype_byte": 2.0, "kv_dtype_byte": 2.0}


def rows_of(name: str) -> list[dict[str, str]]:
    with (FOLDER / name).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_every_error_has_a_citation_and_a_sane_interval() -> None:
    known = load_catalog()
    assert len(known.errors) == len(rows_of("accuracy.csv")) > 40
    for e in known.errors:
        about = (e.device, e.profile, e.phase, e.quantity)
        assert known.citations[e.source].strip(), about
        assert e.device in known.devices, about
        assert e.profile in known.profiles[e.device], about
        assert 0 < e.low < e.high, about
        assert e.low < 1.1, about
        assert e.high > 1.0, about
        assert (e.n == 0) == np.isnan(e.median_pct), about
        if e.n:
            assert 0 <= e.median_pct <= e.p90_pct, about
            assert abs(e.bias_pct) <= e.median_pct + 0.1, about


def test_default_profiles_are_not_optimistic() -> None:
    """Where they were measured, the median prediction is no shorter than what was measured."""
    judged = [e for e in load_catalog().errors if e.profile == "default" and e.n]
    assert {e.device for e in judged} >= {"a100-40gb-sxm", "h100-80gb-sxm", "h200-141gb-sxm", "b200-180gb-sxm", "wse-2"}
    assert [(e.device, e.phase, e.bias_pct) for e in judged if e.bias_pct < -1] == []


def test_default_profiles_have_the_laws_three_numbers_only() -> None:
    for name, device in load_catalog().devices.items():
        for phase, e in device.efficiency.items():
            assert (e.attention, e.sequence_s, e.exposed) == (None, 0.0, 1.0), (name, phase)
            assert not e.by_dtype or phase == "train", (name, phase)


def test_fitted_numbers_are_shares_and_times() -> None:
    rows = rows_of("efficiency_fitted.csv")
    assert len(rows) > 150
    for row in rows:
        value, about = float(row["value"]), tuple(row.values())[:5]
        if row["parameter"] in ("compute", "memory", "attention"):
            assert 0 < value <= 1, about
            assert row["unit"] == "1", about
        elif row["parameter"] == "exposed":
            assert 0 <= value <= 1, about
        else:
            assert row["parameter"] in ("fixed_layer", "sequence"), about
            assert row["unit"] == "us", about
            assert 0 <= value < 1e4, about
        assert row["source"] in load_catalog().citations, about
        if row["low"]:
            assert float(row["low"]) <= value <= float(row["high"]), about


def test_profiles_bring_their_interval_to_the_device() -> None:
    known = load_catalog()
    e = known.device("h100-80gb-sxm", "vllm").efficiency["decode"]
    listed = known.errors_of("h100-80gb-sxm", "vllm", "decode", "bf16")[0]
    assert e.interval is not None
    assert (e.interval.low, e.interval.high, e.interval.n) == (listed.low, listed.high, listed.n)
    own = known.errors_of("h100-80gb-sxm", "vllm", "decode", "fp8")[0]
    fp8 = e.at("fp8").interval
    assert fp8 is not None
    assert (fp8.low, fp8.high, fp8.n) == (own.low, own.high, own.n) != (listed.low, listed.high, listed.n)
    with_train = known.device("h100-80gb-sxm", "vllm").efficiency["train"]
    assert with_train == known.device("h100-80gb-sxm").efficiency["train"]  # a phase that the profile lacks


def test_catalogue_errors_as_a_table() -> None:
    frame = catalogue_errors()
    assert len(frame) == len(load_catalog().errors)
    assert (frame["source"].str.len() > 20).all()
    assert set(catalogue_errors(["wse-2"])["device"]) == {"wse-2"}


@pytest.mark.parametrize(("device", "profile"), [("h100-80gb-sxm", "vllm"), ("b200-180gb-sxm", "vllm")])
def test_numbers_of_a_data_type_reach_the_physics(device: str, profile: str) -> None:
    """Numbers of fp8 (fp4) apart from those of the rest: times change by more than the peak does."""
    dtype = "fp8" if device.startswith("h100") else "fp4"
    one, a = load_catalog().device(device, profile), arithmetic(LLAMA)
    base = one.efficiency["decode"]
    own = base.at(dtype)
    assert own != replace(base, by_dtype={})
    assert base.at("int8") is base
    common = {"g": 2, "batch": 16, "context_tokens": 900, "compute_dtype": dtype, **DTYPES}
    without = replace(one, efficiency={p: replace(e, by_dtype={}) for p, e in one.efficiency.items()})
    mine, rest = decode_time(one, a, **common), decode_time(without, a, **common)  # type: ignore[arg-type] # keywords of mixed types
    assert float(mine.fixed_s) == pytest.approx(L * own.fixed_layer_s + 16 * own.sequence_s, rel=1e-12)
    assert float(rest.fixed_s) == pytest.approx(L * base.fixed_layer_s + 16 * base.sequence_s, rel=1e-12)
    assert float(mine.memory_s) == pytest.approx(float(rest.memory_s) * base.memory / own.memory, rel=1e-12)


# -- attention, sequence_s, exposed by hand ----------------------------------------------------------


def test_attention_scores_at_their_own_share_of_the_peak() -> None:
    phase = Efficiency(compute=0.5, memory=0.9, fixed_layer_s=0.0, attention=0.1)
    device = replace(TOY, efficiency={"prefill": phase, "decode": phase})
    t = prefill_time(device, arithmetic(LLAMA), g=1, batch=2, input_tokens=6000, hit_frac=0.25, compute_dtype="bf16",
                     **DTYPES)  # fmt: skip
    scores = 2 * 2 * L * H * (6000**2 - 1500**2)
    rest = 2 * (2 * N_LIN * 4500 + 2 * N_HEAD)
    assert float(t.compute_s) == pytest.approx(rest / (4e14 * 0.5) + scores / (4e14 * 0.1), rel=1e-12)
    assert float(t.flop) == pytest.approx(rest + scores, rel=1e-12)  # what is done, not what it counts as
    d = decode_time(device, arithmetic(LLAMA), g=1, batch=500, context_tokens=3000, compute_dtype="bf16", **DTYPES)
    each = 2 * (N_LIN + N_HEAD) / (4e14 * 0.5) + 4 * L * H * 3000 / (4e14 * 0.1)
    assert float(d.compute_s) == pytest.approx(500 * each, rel=1e-12)


@pytest.mark.parametrize(("arrangement", "g", "prefill_s", "latency_s", "decode_s"), [
    ("tensor", 1, 6, 6, 6), ("tensor", 4, 6, 6, 6), ("pipeline", 1, 6, 6, 6), ("pipeline", 4, 1.5, 6, 1.5),
])  # fmt: skip
def test_host_time_of_every_sequence(
    arrangement: str, g: int, prefill_s: float, latency_s: float, decode_s: float
) -> None:
    """Six sequences at a second each; in a pipeline of four groups of 1.5 follow each other, a prompt all at once."""
    phase = Efficiency(compute=0.5, memory=0.9, fixed_layer_s=1e-4)
    a = arithmetic(LLAMA)
    found = []
    for sigma in (0.0, 1.0):
        e = replace(phase, sequence_s=sigma)
        device = replace(TOY, arrangement=arrangement, efficiency={"prefill": e, "decode": e})
        t = prefill_time(device, a, g=g, batch=6, input_tokens=500, hit_frac=0.0, compute_dtype="bf16", **DTYPES)
        d = decode_time(device, a, g=g, batch=6, context_tokens=500, compute_dtype="bf16", **DTYPES)
        found.append(np.array([t.occupancy_s, t.latency_s, d.occupancy_s]))
    assert found[1] - found[0] == pytest.approx([prefill_s, latency_s, decode_s], rel=1e-9)


def test_exposed_share_of_the_last_all_reduce() -> None:
    def step(e: Efficiency, n: int = 4) -> float:
        return step_s(replace(TOY, efficiency={"train": e}), LLAMA, sequence_tokens=2048, recompute="none", n=n,
                      micro_batch=2, batch=8.0 * n, dtype="bf16")  # fmt: skip

    whole = Efficiency(compute=0.5, memory=0.9, fixed_layer_s=1e-3)
    reduce_s = 6e-6 + 2 * 3 / 4 * 2 * 6_738_415_616 / (300e9 * 0.7)
    assert step(whole) - step(replace(whole, exposed=0.0)) == pytest.approx(reduce_s, rel=1e-9)
    assert step(whole) - step(replace(whole, exposed=0.75)) == pytest.approx(reduce_s / 4, rel=1e-9)
    assert step(whole, n=1) == step(replace(whole, exposed=0.0), n=1)
    # attention, in the same steps: four micro-steps of two samples, three passes
    scores = 3 * 8 * 2 * L * H * 2048**2
    slower = step(replace(whole, attention=0.125)) - step(whole)
    assert slower == pytest.approx(scores / 4e14 * (1 / 0.125 - 1 / 0.5), rel=1e-9)
    assert step(replace(whole, by_dtype={"fp8": replace(whole, compute=0.1)})) == step(whole)
    assert step(replace(whole, by_dtype={"fp16": replace(whole, compute=0.1)})) > step(whole)  # bf16's twin


def test_random_draws_use_the_new_numbers(tmp_path: Path) -> None:
    """The plain models are compared on devices that have them, alone and by data type."""
    serving = [(d.case.compute_dtype, p.device["efficiency"][phase]) for d in (draw(s, tmp_path) for s in range(60))
               for p in d.pools for phase in ("prefill", "decode")]  # fmt: skip
    training = [(d.case.dtype, p.device["efficiency"]["train"]) for one in (draw_dp, draw_pp)
                for d in (one(s, tmp_path) for s in range(40)) for p in d.bought]  # fmt: skip
    for tables, keys in ((serving, ("attention", "sequence_s")), (training, ("attention", "exposed"))):
        for key in keys:
            assert sum(key in e for _, e in tables) > 20
            assert sum(key in own for _, e in tables for own in e.get("by_dtype", {}).values()) > 10
        assert sum(dtype in e.get("by_dtype", {}) for dtype, e in tables) > 10
        assert any(dtype == "fp16" and "bf16" in e.get("by_dtype", {}) for dtype, e in serving)
