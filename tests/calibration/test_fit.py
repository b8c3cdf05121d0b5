"""Numbers fitted to measurements of a device whose numbers are known: found again, or refused with a reason."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from conftest import small_study
from toy_measurements import (
    START,
    TOY,
    apart,
    as_read,
    filled,
    layout,
    own_files,
    reduced,
    sharded,
    static,
    synthetic,
)

from dse.calibration.calibrate import Calibration, calibrate
from dse.calibration.data import Measurements
from dse.calibration.fit import Fit, fit, log_errors
from dse.catalog import load_catalog, load_device_file
from dse.errors import InputError
from dse.hardware import Accelerator
from dse.model.phases import decode_time
from dse.model.transformer import arithmetic
from dse.resolve import Study
from dse.uncertainty import score

STATIC, APART, SHARDED, NCCL = (
    "serving, static batches", "serving, phases apart", "training, sharded", "all-reduce, NCCL",
)  # fmt: skip
FOUND: dict[str, tuple[pd.DataFrame, dict[str, float]]] = {
    STATIC: (static(), {"compute": 0.55, "memory": 0.75, "fixed_layer_s": 9e-5, "sequence_s": 6e-5}),
    APART: (
        apart(),
        {"compute": 0.55, "memory": 0.75, "prefill.fixed_layer_s": 9e-5, "decode.fixed_layer_s": 9e-5,
         "sequence_s": 6e-5},
    ),
    SHARDED: (sharded(), {"compute": 0.6, "fixed_layer_s": 1e-3, "attention": 0.3, "exposed": 0.4}),
    NCCL: (reduced(), {"link_latency_s": 6e-6, "link_efficiency": 0.7}),
}  # fmt: skip
"""What each kind of table tells, and what is true of the made-up device."""


def fitted(m: Measurements, base: Accelerator = START) -> Fit:
    return fit(m.layout, m.rows, base, m.layout.parameters, load_catalog().model)


def calibrated(m: Measurements, phase: str, base: Accelerator = START, **changes: Any) -> Calibration:
    named = replace(m, rows=m.rows.assign(device="toy"))  # the command names the rows of a device file so
    return calibrate(named, base, phase, name="toy-new", **changes)


@pytest.mark.parametrize("kind", FOUND)
def test_exact_times_give_the_numbers_back(kind: str, tmp_path: Path) -> None:
    raw, truth = FOUND[kind]
    base = replace(START, link_latency_s=2e-6, link_efficiency=0.9) if kind == NCCL else START
    found = fitted(synthetic(kind, raw, tmp_path), base)
    assert {f.parameter.name: f.value for f in found.numbers} == pytest.approx(truth, rel=1e-3)
    assert found.n == (2 if kind == APART else 1) * len(raw)
    assert not found.unidentified


@pytest.mark.parametrize("kind", FOUND)
def test_noisy_times_give_the_numbers_back_within_a_few_percent(kind: str, tmp_path: Path) -> None:
    raw, truth = FOUND[kind]
    found = fitted(synthetic(kind, raw, tmp_path, noise=0.02, seed=7))
    for f in found.numbers:
        wide = 0.25 if f.parameter.name in ("sequence_s", "exposed") else 0.1
        assert f.value == pytest.approx(truth[f.parameter.name], rel=wide), f.parameter.name
        assert f.low < f.value < f.high
        assert f.identified
        assert not f.at_bound


def covered(kind: str, noise: float, repetitions: int) -> float:
    """Share of numbers, over seeded repetitions, whose interval holds the truth."""
    (raw, truth), one = FOUND[kind], layout(kind)
    inside = []
    for seed in range(repetitions):
        rows = one.read(filled(raw, one, TOY, noise, seed))
        found = fit(one, rows.assign(model=rows["raw_model"]), START, one.parameters, load_catalog().model)
        inside += [f.low <= truth[f.parameter.name] <= f.high for f in found.numbers]
    return float(np.mean(inside))


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "repetitions"), [(NCCL, 60), (STATIC, 15)])
def test_eighty_percent_intervals_hold_the_truth_in_about_eighty_percent(kind: str, repetitions: int) -> None:
    share = covered(kind, 0.03, repetitions)
    print(f"{kind}: {share:.2f} of intervals hold the truth")
    assert 0.65 < share < 0.92  # a half-width of 0.67 or 2 standard deviations gives 0.5 or 0.95


def test_intervals_widen_with_noise_and_narrow_with_rows(tmp_path: Path) -> None:
    def width(m: Measurements) -> float:
        f = next(f for f in fitted(m).numbers if f.parameter.name == "memory")
        return float(np.log(f.high / f.low))

    clean, noisy = (width(synthetic(STATIC, static(), tmp_path, noise=x)) for x in (0.01, 0.08))
    more = width(synthetic(STATIC, pd.concat([static()] * 4, ignore_index=True), tmp_path, noise=0.08))
    assert noisy > 4 * clean
    assert more < 0.7 * noisy


def test_outliers_do_not_pull_it_far(tmp_path: Path) -> None:
    raw, truth = FOUND[STATIC]
    spoiled = filled(raw, layout(STATIC), TOY, 0.02, seed=1)
    at = np.random.default_rng(5).choice(len(spoiled), len(spoiled) // 10, replace=False)
    spoiled.loc[at, "e2e_latency_s"] *= 5.0
    found = fitted(as_read(spoiled, tmp_path))
    for f in found.numbers:
        assert f.value == pytest.approx(truth[f.parameter.name], rel=0.25 if f.parameter.name == "sequence_s" else 0.1)


# -- what the rows cannot tell ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "raw", "phase", "missing"),
    [
        (STATIC, static(model=["llama-2-7b"], n_devices=[1], batch=[1], input_tokens=[16, 32, 64]), "serving",
         {"compute": "passes that arithmetic binds", "memory": "decode steps of a large model at batch 1",
          "fixed_layer_s": "the smallest model at batch 1"}),
        (APART, apart(batch=[1], input_tokens=[8, 16]), "prefill", {"compute": "passes that arithmetic binds"}),
        (APART, apart(), "decode", {"compute": "passes that arithmetic binds"}),
        (NCCL, reduced(message_size=[64, 128, 256]), "link",
         {"link_efficiency": "messages of a hundred megabytes and more"}),
        (NCCL, reduced(message_size=[2**26, 2**28]), "link", {"link_latency_s": "messages of a few kilobytes"}),
    ],
)  # fmt: skip
def test_refuses_what_the_rows_cannot_tell(
    kind: str, raw: pd.DataFrame, phase: str, missing: dict[str, str], tmp_path: Path
) -> None:
    with pytest.raises(InputError) as caught:
        calibrated(synthetic(kind, raw, tmp_path, noise=0.02), phase)
    faults = caught.value.faults
    assert len(faults) == len(missing)
    for fault, (name, wanted) in zip(faults, missing.items(), strict=True):
        assert fault.startswith("rows: ")
        assert f"cannot tell {name} of {phase}" in fault
        assert wanted in fault
        assert f"--hold {name}" in fault


def test_refusal_names_the_devices_own_number(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"keep the device's 0\.4 with --hold compute"):
        calibrated(synthetic(APART, apart(), tmp_path, noise=0.02), "decode")


def test_held_numbers_keep_the_devices_value(tmp_path: Path) -> None:
    base = replace(START, efficiency={**START.efficiency, "decode": replace(START.efficiency["decode"], compute=0.55)})
    found = calibrated(synthetic(APART, apart(), tmp_path, noise=0.02), "decode", base, hold=["compute"])
    assert found.fit is not None
    assert [f.parameter.name for f in found.fit.numbers] == ["memory", "decode.fixed_layer_s", "sequence_s"]
    assert found.device.efficiency["decode"].compute == 0.55
    assert found.device.efficiency["decode"].memory == pytest.approx(0.75, rel=0.05)
    assert found.device.efficiency["prefill"] == base.efficiency["prefill"]  # not asked for
    assert found.device.efficiency["train"] == base.efficiency["train"]


@pytest.mark.parametrize(
    ("hold", "text"),
    [
        (["speed"], "--hold 'speed': no such number of phase link; there are: link_latency_s, link_efficiency"),
        (["link_latency_s", "link_efficiency"], "every number of phase link is held, so there is nothing to fit"),
    ],
)
def test_bad_holds(hold: list[str], text: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        calibrated(synthetic(NCCL, reduced(), tmp_path), "link", hold=hold)
    assert text in str(caught.value)


def test_optional_numbers_that_nothing_shows_are_left_out(tmp_path: Path) -> None:
    """Runs on one device have no all-reduce to expose."""
    found = calibrated(synthetic(SHARDED, sharded(n_gpus=[1]), tmp_path, noise=0.01), "train")
    assert [p.name for p in found.dropped] == ["exposed"]
    assert "few micro-steps" in found.dropped[0].wanted
    e = found.device.efficiency["train"]
    assert e.exposed == START.efficiency["train"].exposed == 1.0
    assert e.compute == pytest.approx(0.6, rel=0.1)
    assert e.attention == pytest.approx(0.3, rel=0.1)


def test_interval_of_a_number_that_vanishes_reaches_what_the_rows_do_not_rule_out(tmp_path: Path) -> None:
    """At batch 1 the time per sequence hides behind the time per layer: `none` may be wrong, and must say so."""
    ends = []
    for seed in (4, 5, 7, 8):
        m = synthetic(STATIC, static(batch=[1], input_tokens=[128, 512]), tmp_path, noise=0.02, seed=seed)
        f = next(f for f in fitted(m).numbers if f.parameter.name == "sequence_s")
        if not f.value:
            ends.append(f.high)
    assert ends, "no repetition lost the number"
    assert sum(high > 6e-5 for high in ends) > len(ends) / 2, ends


# -- wrong questions --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "raw", "phase", "changes", "text"),
    [
        (NCCL, reduced(), "decode", {}, "measures no decode; it measures: link"),
        (STATIC, static(), "train", {}, "measures no train; it measures: prefill+decode"),
        (STATIC, static(), "serving", {"stack": "sglang"}, "--stack 'sglang': rows has no such rows of this device"),
        (STATIC, pd.concat([static(), static().assign(framework="SGLang")]), "serving", {},
         "has rows of several kinds (sglang, vllm); choose one with --stack"),
        (STATIC, static(), "serving", {"dtype": "fp8"}, "--dtype 'fp8': rows has no such rows of this device"),
        (STATIC, static(), "serving", {"table": True}, "--table: rows does not time serving apart"),
        (NCCL, reduced(), "link", {"table": True}, "--table: rows does not time link apart"),
    ],
)  # fmt: skip
def test_wrong_questions_get_one_sentence(
    kind: str, raw: pd.DataFrame, phase: str, changes: dict[str, Any], text: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError) as caught:
        calibrated(synthetic(kind, raw.reset_index(drop=True), tmp_path), phase, **changes)
    assert text in str(caught.value)
    assert len(caught.value.faults) == 1


def test_rows_of_another_device_are_named(tmp_path: Path) -> None:
    m = synthetic(NCCL, reduced(), tmp_path)
    with pytest.raises(InputError, match=r"no row of device 'toy'; it has rows of: .*toy"):
        calibrate(m, START, "link", name="x")  # the rows are called by their device file here
    with pytest.raises(InputError, match=r"rows: no row of device 'h100-80gb-sxm'"):
        calibrated(m, "link", load_catalog().device("h100-80gb-sxm"))


def test_one_of_two_stacks_is_chosen(tmp_path: Path) -> None:
    """The other stack's rows, four times as slow, do not enter."""
    mine = filled(static(), layout(STATIC), TOY)
    other = mine.assign(framework="SGLang", e2e_latency_s=4 * mine["e2e_latency_s"])
    m = as_read(pd.concat([mine, other], ignore_index=True), tmp_path)
    found = calibrated(m, "serving", stack="vllm")
    assert found.n_rows == len(mine)
    assert found.errors["e2e_s"].p90_pct < 0.1


# -- measured tables --------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_table_reproduces_its_points_and_never_falls(phase: str, tmp_path: Path) -> None:
    """Times that rise with the work: the table gives every one of them back."""
    raw = apart(model=["llama-2-7b"], tp=[1], batch=[1], input_tokens=[64, 256, 1024, 4096])
    m = synthetic(APART, raw, tmp_path)
    found = calibrated(m, phase, table=True)
    assert found.fit is None
    assert found.device.efficiency["prefill" if phase == "prefill" else "decode"].table_flop
    assert found.errors["prefill_s" if phase == "prefill" else "decode_step_s"].p90_pct < 1e-3
    other = "decode" if phase == "prefill" else "prefill"
    assert found.device.efficiency[other] == START.efficiency[other]  # type: ignore[index] # a str, a Phase by its values


def test_table_of_noisy_times_is_monotone_and_keeps_their_mean(tmp_path: Path) -> None:
    m = synthetic(APART, apart(), tmp_path, noise=0.4, seed=2)
    e = calibrated(m, "prefill", table=True).device.efficiency["prefill"]
    x, y = np.array(e.table_flop), np.array(e.table_s)
    assert (np.diff(x) > 0).all()
    assert (np.diff(y) >= 0).all()
    assert len(x) > 20
    assert (np.diff(y) == 0).any()  # the noise made some times fall: pooled
    assert y[0] < 0.2 * y[-1]


def test_table_needs_two_works(tmp_path: Path) -> None:
    raw = apart(model=["llama-2-7b"], tp=[1], batch=[1], input_tokens=[512])
    with pytest.raises(InputError, match="does not time prefill apart at two works or more"):
        calibrated(synthetic(APART, raw, tmp_path), "prefill", table=True)
    twice = pd.concat([raw, raw], ignore_index=True)
    with pytest.raises(InputError, match="times prefill at one work only; a table needs two"):
        calibrated(synthetic(APART, twice, tmp_path), "prefill", table=True)


# -- what is written --------------------------------------------------------------------------------


def test_device_file_reads_back_and_scores(tmp_path: Path) -> None:
    found = calibrated(synthetic(STATIC, static(), tmp_path, noise=0.02), "serving")
    path = tmp_path / "toy-new.toml"
    path.write_text(found.file_text, encoding="utf-8")
    again = load_device_file(path)
    assert again.name == "toy-new"
    for phase in ("prefill", "decode"):
        mine, theirs = again.efficiency[phase], found.device.efficiency[phase]
        for key in ("compute", "memory", "fixed_layer_s", "sequence_s"):
            assert getattr(mine, key) == pytest.approx(getattr(theirs, key), rel=1e-11), key
        assert mine.interval is not None
        assert theirs.interval is not None
        assert (mine.interval.n, mine.interval.quantity) == (len(static()), "e2e_s")
        assert mine.interval.low == pytest.approx(theirs.interval.low)
        assert mine.interval.low < 1 < mine.interval.high
    assert again.efficiency["train"] == START.efficiency["train"]
    sources = tomllib.loads(found.file_text)["source"]
    for key in ("prefill.compute", "decode.compute", "decode.sequence_s", "prefill.fixed_layer_s"):
        source = sources[f"efficiency.{key}"]
        assert source["grade"] == "B"
        assert "fit to 72 rows of rows (serving, static batches, vllm, bf16)" in source["text"]
        assert "median" in source["text"]
    raw = small_study(pool=[{"device": "toy-new.toml", "name": "gpu", "count": [8], "instance_size": [2]}])
    raw.pop("link")
    row = score(Study.from_dict(raw, folder=tmp_path), {"n_gpu": 8}).iloc[0]
    assert 0 < row["throughput_low_tok_s"] < row["throughput_tok_s"] < row["throughput_high_tok_s"]
    step = decode_time(
        again, arithmetic(load_catalog().model("llama-2-7b")), g=1, batch=8, context_tokens=1000, weight_dtype_byte=2,
        kv_dtype_byte=2, compute_dtype="bf16",
    )  # fmt: skip
    assert float(step.fixed_s) == pytest.approx(32 * 9e-5 + 8 * 6e-5, rel=0.05)


def test_link_numbers_and_tables_are_written_too(tmp_path: Path) -> None:
    base = replace(START, link_latency_s=2e-6, link_efficiency=0.9)
    path = tmp_path / "new.toml"
    path.write_text(calibrated(synthetic(NCCL, reduced(), tmp_path), "link", base).file_text, encoding="utf-8")
    again = load_device_file(path)
    assert (again.link_latency_s, again.link_efficiency) == pytest.approx((6e-6, 0.7), rel=1e-3)
    m = synthetic(APART, apart(), tmp_path)
    path.write_text(calibrated(m, "prefill", table=True).file_text, encoding="utf-8")
    text = tomllib.loads(path.read_text())["source"]["efficiency.prefill.table_s"]
    assert text["grade"] == "A"
    assert len(load_device_file(path).efficiency["prefill"].table_s) > 10


def test_residuals_hold_every_row_once(tmp_path: Path) -> None:
    raw = filled(apart(), layout(APART), TOY, 0.05, seed=4)
    raw.loc[[0, 5], "prefill_ms"] = np.nan
    m = as_read(raw, tmp_path)
    found = calibrated(m, "serving")
    table = found.residuals
    assert set(table["quantity"]) == {"prefill_s", "decode_step_s"}  # power is compared elsewhere, never fitted
    for quantity, column in (("prefill_s", "prefill_ms"), ("decode_step_s", "decode_ms_per_step")):
        mine = table[table["quantity"] == quantity]
        given = raw[column].dropna()
        assert mine["line"].tolist() == [i + 2 for i in given.index]
        assert mine["measured"].to_numpy() == pytest.approx(given.to_numpy() / 1e3)
        assert np.median(mine["error_pct"].abs()) == pytest.approx(found.errors[quantity].median_pct)
    ratio = table["predicted"] / table["measured"] - 1
    assert table["error_pct"].to_numpy() == pytest.approx(100 * ratio.to_numpy())


def test_errors_are_those_of_the_numbers_that_were_written(tmp_path: Path) -> None:
    names = own_files(tmp_path)
    m = synthetic(STATIC, static(), tmp_path, noise=0.05, seed=9)
    found = calibrated(m, "serving")
    again = log_errors(m.layout, m.rows, found.device, names.model)["e2e_s"]
    assert np.median(np.abs(np.expm1(again))) * 100 == pytest.approx(found.errors["e2e_s"].median_pct)
    assert found.errors["e2e_s"].n == found.n_rows == len(static())
    assert set(found.held_out) == {("e2e_s", "model"), ("e2e_s", "shape")}
    low, high = found.intervals["e2e_s"]
    assert 0.8 < low < 0.97
    assert 1.03 < high < 1.25
