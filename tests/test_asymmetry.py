"""Eq. (5) in closed form: by hand, its limits, alpha found again, and how far it is from the derived eta."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dse.errors import InputError
from dse.model.asymmetry import (
    asymmetry,
    eta_closed_form,
    fit_alpha,
    law_of_two,
    load_frac,
    pool_resources,
    residuals,
    shortfall,
)
from dse.model.roofline import idle_over_busy
from dse.resolve import Study
from experiments.paper.asymmetry import (
    CHOSEN,
    FORMS,
    designs,
    errors,
    fit_form,
    fitted_eta,
    run,
    training_part,
    worst_held_out,
)

PAIRS = [
    ("a100-40gb-sxm", "wse-3"),
    ("a100-80gb-sxm", "wse-2"),
    ("h100-80gb-sxm", "wse-3"),
    ("a100-80gb-sxm", "h100-80gb-sxm"),
]
MODELS = ("llama-2-7b", "llama-2-13b", "llama-2-70b")


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    """A small part of the experiment's designs: one pair, one model and two count ratios are held out."""
    return designs(PAIRS, MODELS, global_batches=(256, 1024), requests=((1024, 256), (2048, 256)))


@pytest.fixture(scope="module")
def table(frame: pd.DataFrame) -> pd.DataFrame:
    return errors(frame)


def test_eq_5_by_hand() -> None:
    # 16 A100 and one wafer: P 4.992 and 12.5 PF, B 0.02488 and 21 PB/s, C 4.8 and 0.15 TB/s, M 0.64 and 0.044 TB
    gpus = pool_resources(16, 312e12, 1.555e12, 300e9, 40e9)
    wafer = pool_resources(1, 12.5e15, 21e15, 150e9, 44e9)
    asym = asymmetry(gpus, wafer)
    by_hand = [1 - 4.992 / 12.5, 1 - 0.02488 / 21, 1 - 0.15 / 4.8, 1 - 0.044 / 0.64]
    assert asym == pytest.approx(by_hand, rel=1e-12)
    # share 0.2 where 0.3 would balance: (0.3 - 0.2)/(0.2 * 0.7)
    phi = shortfall([0.2], [0.3])
    assert phi == pytest.approx([0.1 / 0.14])
    alpha = [0.1, 0.2, 0.3, 0.4]
    by_hand_eta = sum(a * x for a, x in zip(alpha, by_hand, strict=True)) * 0.1 / 0.14
    assert eta_closed_form(alpha, [asym], phi) == pytest.approx([by_hand_eta])


def test_several_features_add_up() -> None:
    alpha, asym, features = [[1.0, 0.0], [0.5, 2.0]], [[0.5, 0.25], [0.1, 0.0]], [[2.0, 1.0], [0.0, 3.0]]
    assert eta_closed_form(alpha, asym, features) == pytest.approx([2 * 0.5 + 0.25 + 0.5, 3 * 0.05])


def test_the_shortfall_is_the_idle_time_of_pools_whose_times_follow_the_law() -> None:
    rate, half, work = np.array([3.0, 10.0]), np.array([5.0, 40.0]), np.array([20.0, 44.0])
    time_s = (work + half) / rate
    other = [1, 0]
    share = load_frac(work, half, work[other], half[other])
    assert shortfall(share, rate / rate.sum()) == pytest.approx(idle_over_busy(time_s / time_s.max()))
    assert time_s[0] != time_s[1]


@given(st.floats(0.1, 1e4), st.floats(0.0, 1e4), st.floats(1.0, 1e3), st.floats(1.5, 10.0))
def test_two_times_give_the_law_again(rate: float, half: float, work: float, factor: float) -> None:
    times = [(w + half) / rate for w in (work, factor * work)]
    got_rate, got_half = law_of_two(work, times[0], factor * work, times[1])
    assert got_rate == pytest.approx(rate, rel=1e-6)
    assert got_half == pytest.approx(half, rel=1e-6, abs=1e-6 * (work + half))


def test_alpha_is_found_again() -> None:
    rng = np.random.default_rng(7)
    asym, features = rng.uniform(0.0, 1.0, (200, 4)), rng.uniform(0.0, 3.0, (200, 2))
    alpha = np.array([[0.5, 0.0, 0.25, 1.5], [0.0, 2.0, 0.0, 0.125]])
    fit = fit_alpha(asym, features, eta_closed_form(alpha, asym, features))
    assert fit.alpha == pytest.approx(alpha, abs=1e-9)
    assert fit.residuals.relative_p90 < 1e-9


def test_alpha_is_never_negative() -> None:
    asym = np.array([[1.0, 0.2], [0.2, 1.0], [0.5, 0.5]])
    fit = fit_alpha(asym, np.ones(3), np.array([1.0, 0.0, 0.2]))
    assert fit.alpha.min() == 0.0


def test_nothing_is_lost_without_asymmetry_or_at_balance() -> None:
    equal = asymmetry([1.0, 2.0, 0.0, 4.0], [1.0, 2.0, 0.0, 4.0])
    assert equal.tolist() == [0.0] * 4
    assert eta_closed_form([9.0] * 4, [equal], shortfall([0.1], [0.5])).tolist() == [0.0]
    balanced = np.array([0.1, 0.5, 0.9])
    assert eta_closed_form([9.0] * 4, np.ones((3, 4)), shortfall(balanced, balanced)).tolist() == [0.0] * 3


@given(st.floats(0.01, 0.99), st.floats(0.01, 0.99))
def test_only_the_pool_that_is_given_too_little_waits(share: float, balanced: float) -> None:
    own, other = shortfall(share, balanced), shortfall(1.0 - share, 1.0 - balanced)
    assert min(own, other) == pytest.approx(0.0, abs=1e-12)
    assert (own > 1e-9) <= (share < balanced)


def test_swapping_the_pools_swaps_eta() -> None:
    x, y = np.array([4.0, 1.0, 2.0, 3.0]), np.array([1.0, 9.0, 2.0, 5.0])
    alpha, share, balanced = [0.3, 0.1, 0.2, 0.4], np.array([0.2, 0.8]), np.array([0.6, 0.4])
    eta = eta_closed_form(alpha, np.stack([asymmetry(x, y)] * 2), shortfall(share, balanced))
    swapped = eta_closed_form(alpha, np.stack([asymmetry(y, x)] * 2), shortfall(share[::-1], balanced[::-1]))
    assert eta.tolist() == swapped[::-1].tolist()
    assert eta[0] > 0.0 == eta[1]


def test_faults_are_named_together() -> None:
    with pytest.raises(InputError) as caught:
        fit_alpha([[0.5, 0.5]], [np.inf, 1.0], [-1.0])
    assert len(caught.value.faults) == 3
    with pytest.raises(InputError, match="score at least one design"):
        fit_alpha(np.zeros((0, 4)), np.zeros(0), np.zeros(0))


def test_residuals_tell_eta_from_its_throughput() -> None:
    found = residuals([1.0, 1.0, 5.0], [1.0, 2.0, 3.0])
    assert (found.n, found.eta_median) == (3, 1.0)
    assert found.relative_median == pytest.approx(1 / 3)


def test_derived_eta_of_a_design_has_one_pool_that_waits(frame: pd.DataFrame) -> None:
    training = frame[frame["paradigm"] == "dp_training"]
    first, second = (training[training["is_first"] == side] for side in (True, False))
    assert np.minimum(first["eta"].to_numpy(), second["eta"].to_numpy()).max() == 0.0
    assert first["work_frac"].to_numpy() == pytest.approx(1.0 - second["work_frac"].to_numpy())


def test_eta_at_the_best_split_is_the_score_s(frame: pd.DataFrame) -> None:
    pair = ("a100-40gb-sxm", "wse-3")
    work = {"model": "llama-2-7b", "sequence_tokens": 2048, "global_batch": 256, "recompute": "full"}
    gpu = {"device": pair[0], "name": "gpu", "count": [32], "instance_size": 8, "zero_stage": 3}
    study = {
        "name": "one",
        "paradigm": "dp_training",
        "workload": work | {"overlap_frac": 1.0},
        "pool": [gpu, {"device": pair[1], "name": "wse", "count": [1]}],
        "link": {"bandwidth_gb_s": [100]},
    }
    scored = Study.from_dict(study).space.numbers(np.zeros(1, dtype=np.int64))
    same = frame[(frame["pair"] == " + ".join(pair)) & (frame["model"] == work["model"]) & (frame["workload"] == "256")]
    best = same[(same["ratio"] == 32) & (same["work_frac"] == same["best_frac"])]
    ours = [
        best[(best["pool"] == device) & (best["n"] == n)]["eta"].item() for device, n in zip(pair, (32, 1), strict=True)
    ]
    assert ours == pytest.approx([scored["eta_gpu"][0], scored["eta_wse"][0]], abs=1e-12)


def test_no_held_out_row_is_fitted(frame: pd.DataFrame) -> None:
    train = training_part(frame)
    assert 0 < len(train) < len(frame)
    assert "llama-2-70b" not in set(train["model"])
    assert "h100-80gb-sxm + wse-3" not in set(train["pair"])
    assert not set(train.loc[train["kind"] == "gpu+wafer", "workload"]) & {"2048/256"}


# Bounds of the largest median and 90th percentile of the relative miss of 1 + eta over held-out groups. These designs
# show 1.05 and 3.3 % in training, 0.04 and 0.11 % in serving; all of the experiment's 1.7 and 5.5, 0.05 and 0.2 %.
@pytest.mark.parametrize(("paradigm", "median", "p90"), [("dp_training", 0.02, 0.06), ("pd_serving", 0.001, 0.003)])
def test_derived_and_fitted_agree_on_unseen_gpus_and_wafers(
    table: pd.DataFrame, paradigm: str, median: float, p90: float
) -> None:
    found = worst_held_out(table, paradigm, "gpu+wafer", CHOSEN)
    print(f"{paradigm}: median {found[0]:.2%}, 90th percentile {found[1]:.2%}")
    assert found[0] < median
    assert found[1] < p90


def test_the_literal_shapes_do_not(table: pd.DataFrame) -> None:
    for form in ("constant", "split"):
        assert worst_held_out(table, "dp_training", "gpu+wafer", form)[1] > 0.5


def test_like_pools_are_out_of_range(table: pd.DataFrame) -> None:
    with_asymmetry = worst_held_out(table, "dp_training", "gpu+gpu", CHOSEN)[1]
    without = worst_held_out(table, "dp_training", "gpu+gpu", "no asymmetry")[1]
    assert without < 0.1 < with_asymmetry


def test_every_form_fits_and_is_finite(frame: pd.DataFrame) -> None:
    training = frame[frame["paradigm"] == "dp_training"]
    for form in FORMS:
        eta = fitted_eta(fit_form(training, form), training, form)
        assert np.isfinite(eta).all()
        assert eta.min() >= 0.0


@pytest.mark.slow
def test_the_experiment_writes_what_it_found(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("eq5")
    table, statements = run(folder)
    assert len(pd.read_csv(folder / "eq5.csv")) == len(table)
    assert {tuple(s) for s in statements} == {("figure", "statement", "pass", "value", "paper")}
    assert [s["pass"] for s in statements] == [True, False, False, True, False, True, False, False]
