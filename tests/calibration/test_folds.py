"""Errors on rows that a fit did not see, and the few numbers that sum errors up."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import t as student
from toy_measurements import START, TOY, as_read, filled, layout, own_files, reduced, static, synthetic

from dse.calibration import folds
from dse.calibration.accuracy import accuracy, covered_frac, interval
from dse.calibration.data import Measurements
from dse.calibration.fit import fit, log_errors, with_numbers
from dse.calibration.folds import FEW_ROWS, held_out_coverage, held_out_errors
from dse.calibration.profiles import cautious, fitted_profile
from dse.calibration.validate import validations
from dse.catalog import load_catalog

MODEL = load_catalog().model
STATIC = "serving, static batches"


def held(m: Measurements, key: str) -> pd.DataFrame:
    found = held_out_errors(m.layout, m.rows, START, m.layout.parameters, MODEL, key)
    assert found is not None
    return found


FIVE = ["llama-2-7b", "llama-2-13b", "qwen2.5-7b", "llama-3.1-8b", "mistral-7b"]


@pytest.mark.slow
@pytest.mark.parametrize(("key", "odd"), [("model", "qwen2.5-7b"), ("shape", "700")])
def test_rows_of_a_fold_never_enter_its_fit(key: str, odd: str, tmp_path: Path) -> None:
    """One model's (one length's) times are thirty times too long: only its own held-out errors explode.

    They are those of the clean fit, less the factor: no odd row had a say. The other folds' fits see the odd rows, and
    shrug them off as outliers.
    """
    raw = filled(static(model=FIVE, input_tokens=[100, 300, 700, 1500, 4000], output_tokens=[64]), layout(STATIC), TOY)
    clean = as_read(raw, tmp_path, name="clean")
    rows = clean.rows[key].astype(str) == odd
    assert rows.mean() == 0.2
    spoiled = raw.assign(e2e_latency_s=raw["e2e_latency_s"] * np.where(rows, 30.0, 1.0))
    before, after = held(clean, key)["e2e_s"], held(as_read(spoiled, tmp_path), key)["e2e_s"]
    assert before.abs().max() < 0.1
    assert after[rows].to_numpy() == pytest.approx(before[rows].to_numpy() - np.log(30.0), abs=1e-6)
    assert after[~rows].abs().median() < 0.5
    assert after[~rows].abs().max() < 2.0 < after[rows].abs().min()
    assert len(before) == len(raw)
    assert before.notna().all()


def test_a_fold_is_the_fit_to_the_others(tmp_path: Path) -> None:
    m = synthetic(STATIC, static(), tmp_path, noise=0.1, seed=3)
    found = held(m, "model")
    out = m.rows["model"] == "llama-2-13b"
    numbers = fit(m.layout, m.rows[~out], START, m.layout.parameters, MODEL, prior=True).numbers
    device = with_numbers(START, m.layout.parameters, [f.value for f in numbers])
    wanted = log_errors(m.layout, m.rows[out], device, MODEL)["e2e_s"]
    assert found["e2e_s"][out].to_numpy() == pytest.approx(wanted.to_numpy(), abs=1e-9)
    by_shape = held(m, "shape")
    assert not np.allclose(by_shape["e2e_s"], found["e2e_s"])


def test_few_rows_leave_one_out_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def watched(layout_: object, rows: pd.DataFrame, *rest: object, **options: object) -> object:
        seen.append(len(rows))
        return fit(layout_, rows, *rest, **options)  # type: ignore[arg-type] # passed on as they came

    monkeypatch.setattr(folds, "fit", watched)
    few = synthetic("all-reduce, NCCL", reduced(num_gpus=[4], message_size=[2**k for k in range(8, 26, 3)]), tmp_path)
    assert len(few.rows) < FEW_ROWS
    assert held(few, "model").notna().all(axis=None)  # all of one model, all of one shape
    assert seen == [len(few.rows) - 1] * len(few.rows)
    seen.clear()
    many = synthetic("all-reduce, NCCL", reduced(), tmp_path)
    held(many, "shape")
    assert seen == [16] * 3  # 24 rows, 8 of each number of devices
    one = held_out_errors(many.layout, many.rows, START, many.layout.parameters, MODEL, "model")
    assert one is None  # of one model there is nothing to leave out


# -- numbers that sum errors up ---------------------------------------------------------------------


def test_accuracy_by_hand() -> None:
    """Predicted over measured: 1.2, 0.9, 1.02, 0.5, 1.0."""
    found = accuracy(np.log([1.2, 0.9, 1.02, 0.5, 1.0]))
    assert found.n == 5
    assert found.median_pct == pytest.approx(10.0)  # of 0, 2, 10, 20, 50
    assert found.p90_pct == pytest.approx(20 + 0.6 * 30)
    assert found.bias_pct == pytest.approx(0.0)  # of -50, -10, 0, 2, 20
    nothing = accuracy([np.nan, np.inf])
    assert nothing.n == 0
    assert np.isnan([nothing.median_pct, nothing.p90_pct, nothing.bias_pct]).all()


def test_interval_of_many_rows_is_between_their_order_statistics() -> None:
    """39 rows: the fourth from either end, as (39 + 1) 0.1 = 4; measured over predicted."""
    ratio = np.sort(np.random.default_rng(0).lognormal(0.1, 0.3, 39))
    assert interval(-np.log(ratio)) == pytest.approx((ratio[3], ratio[35]))
    assert covered_frac(-np.log(ratio), *interval(-np.log(ratio))) == pytest.approx(33 / 39)


def test_interval_of_few_rows_is_students() -> None:
    logs = np.array([0.05, -0.1, 0.2, 0.0])
    half = student.ppf(0.9, 3) * np.std(logs, ddof=1) * np.sqrt(1 + 1 / 4)
    assert interval(-logs) == pytest.approx((np.exp(logs.mean() - half), np.exp(logs.mean() + half)))
    assert np.isnan(interval([0.1])).all()
    assert np.isnan(covered_frac([], 0.9, 1.1))


@pytest.mark.parametrize("n", [6, 19, 20, 60])
def test_interval_holds_eighty_percent_of_new_rows(n: int) -> None:
    """Averaged over 400 samples; 76 to 84 % is three standard errors even where only the sample mean is lucky."""
    rng = np.random.default_rng(n)
    share = []
    for _ in range(400):
        errors = rng.normal(0.05, 0.2, n + 50)
        share.append(covered_frac(errors[n:], *interval(errors[:n])))
    assert np.mean(share) == pytest.approx(0.8, abs=0.04)


def test_held_out_coverage_by_hand() -> None:
    """Fold b lies inside the interval of fold a's 39 rows, but for one row of four; a's lie outside of b's."""
    a = np.linspace(-0.4, 0.4, 39)
    b = np.array([0.0, 0.01, -0.01, 3.0])
    errors, fold = pd.Series([*a, *b]), pd.Series(["a"] * 39 + ["b"] * 4)
    low, high = interval(b)
    inside = 3 + sum(low <= x <= high for x in np.exp(-a))
    assert held_out_coverage(errors, fold) == pytest.approx(inside / 43)
    assert np.isnan(held_out_coverage(pd.Series([0.1, 0.2]), pd.Series(["a", "a"])))


# -- lines of a validation, and profiles ------------------------------------------------------------


def test_validation_lines_by_hand(tmp_path: Path) -> None:
    """Prediction is exact but for two rows: 25 % over and 20 % under what was measured."""
    names = own_files(tmp_path, TOY)
    raw = filled(static(), layout(STATIC), TOY)
    raw.loc[[3, 10], "e2e_latency_s"] *= [0.8, 1.25]
    (line,) = validations(as_read(raw, tmp_path, names), names, folds=True)
    assert line.device in ("toy", str(names.devices["toy"]))
    assert (line.data, line.phase, line.quantity, line.profile) == ("rows", "prefill+decode", "e2e_s", "default")
    assert (line.error.n, line.error.median_pct, line.error.p90_pct) == (len(raw), 0, 0)
    assert line.worst["line"].tolist()[:2] == [5, 12]
    assert line.worst["error_pct"].to_numpy()[:2] == pytest.approx([25, -20])
    assert line.rows["predicted"].to_numpy() == pytest.approx(
        line.rows["measured"] * (1 + line.rows["error_pct"] / 100)
    )
    assert np.isnan(line.coverage80)  # the catalogue knows nothing of this device
    assert [h.by for h in line.held_out] == ["by model", "by shape"]
    assert all(h.error.n == len(raw) and h.error.median_pct < 1 for h in line.held_out)


def test_coverage_counts_rows_inside_the_catalogues_interval(tmp_path: Path) -> None:
    """Rows that take 0.5, 1 and 2 times the prediction: one of three inside any of the profile's intervals."""
    known = load_catalog().errors_of("h100-80gb-sxm", "vllm", "decode", "bf16")[0]
    assert 0.5 < known.low < 1 < known.high < 2
    raw = static(model=["llama-2-7b"], n_devices=[1], batch=[4], input_tokens=[500], output_tokens=[50, 60, 70])
    exact = filled(raw, layout(STATIC), load_catalog().device("h100-80gb-sxm", "vllm")).assign(device="H100")
    exact["e2e_latency_s"] *= [0.5, 1.0, 2.0]
    (line,) = validations(as_read(exact, tmp_path), own_files(tmp_path), folds=False)
    assert line.coverage80 == pytest.approx(1 / 3)


def test_cautious_numbers_are_slow_for_three_quarters_of_the_rows(tmp_path: Path) -> None:
    """And have the law's three numbers only; prefill the slowest of the stacks'."""
    m = synthetic(STATIC, static(), tmp_path, noise=0.2, seed=5)
    rows = m.rows.assign(device="h100-80gb-sxm")
    stack = fitted_profile(m, rows, "h100-80gb-sxm", "mine", "bf16")
    assert stack.efficiency["decode"].sequence_s > 0
    found = cautious(m, rows, "h100-80gb-sxm", [stack])
    assert found["prefill"].compute == pytest.approx(stack.efficiency["prefill"].compute, rel=0.005)
    for e in found.values():
        assert (e.sequence_s, e.attention, e.exposed, dict(e.by_dtype)) == (0.0, None, 1.0, {})
    base = load_catalog().device("h100-80gb-sxm", "hardware")
    errors = log_errors(m.layout, rows, replace(base, efficiency={**base.efficiency, **found}), MODEL)["e2e_s"]
    assert (errors >= -1e-3).mean() >= 0.74
