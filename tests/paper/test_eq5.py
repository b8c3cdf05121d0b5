"""Eq. (5) in `dse paper`: designs and their derived eta, what the forms of alpha miss, statements and files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from verdicts import check_files, on_page, verdict

from dse.resolve import Study
from experiments.paper import eq5
from experiments.paper.eq5_designs import designs
from experiments.paper.eq5_forms import CHOSEN, FORMS, column, errors, training_part, with_fits, worst_held_out
from experiments.paper.setting import PROFILE

PAIRS = [
    ("a100-40gb-sxm", "wse-3"),
    ("a100-80gb-sxm", "wse-2"),
    ("h100-80gb-sxm", "wse-3"),
    ("a100-80gb-sxm", "h100-80gb-sxm"),
]
MODELS = ("llama-2-7b", "llama-2-13b", "llama-2-70b")
N_ROWS = 30_363
"""Pools that wait, of all designs."""
DIFFERS = {
    "data parallel, GPU + wafer: eq. (5), alpha constant, gives 1 + eta within the paper's error",
    "data parallel, GPU + wafer: eq. (5), alpha any function of w1:w2 alone, gives 1 + eta within the paper's error",
    "data parallel, two kinds of GPU: eq. (5), alpha in proportion to the shortfall of load, gives 1 + eta within the "
    "paper's error",
    "prefill/decode, two kinds of GPU: eq. (5), alpha in proportion to the shortfall of load, gives 1 + eta within the "
    "paper's error",
    "data parallel, GPU + wafer: the differences in P, B, C, M tell more of eta than the shortfall of load alone",
}


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    """A small part of the experiment's designs: one pair, one model and two count ratios are held out."""
    return with_fits(designs(PAIRS, MODELS, global_batches=(256, 1024), requests=((1024, 256), (2048, 256))))


@pytest.fixture(scope="module")
def table(frame: pd.DataFrame) -> pd.DataFrame:
    return errors(frame)


def test_derived_eta_of_a_design_has_one_pool_that_waits(frame: pd.DataFrame) -> None:
    training = frame[frame["paradigm"] == "dp_training"]
    first, second = (training[training["is_first"] == side] for side in (True, False))
    assert np.minimum(first["eta"].to_numpy(), second["eta"].to_numpy()).max() == 0.0
    assert first["work_frac"].to_numpy() == pytest.approx(1.0 - second["work_frac"].to_numpy())


def test_eta_at_the_best_split_is_the_score_s(frame: pd.DataFrame) -> None:
    pair = ("a100-40gb-sxm", "wse-3")
    work = {"model": "llama-2-7b", "sequence_tokens": 2048, "global_batch": 256, "recompute": "full"}
    gpu = {"device": pair[0], "name": "gpu", "profile": PROFILE, "count": [32], "instance_size": 8, "zero_stage": 3}
    study = {
        "name": "one",
        "paradigm": "dp_training",
        "workload": work | {"overlap_frac": 1.0},
        "pool": [gpu, {"device": pair[1], "name": "wse", "profile": PROFILE, "count": [1]}],
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
    for form in FORMS:
        eta = frame[column(form)]
        assert np.isfinite(eta).all()
        assert eta.min() >= 0.0


def test_verdicts_follow_the_data(frame: pd.DataFrame) -> None:
    data = frame[frame["eta"] > 0]
    exact = data.assign(**{column(form): data["eta"] for form in FORMS})
    found = eq5.judge(exact)
    assert verdict(found, "alpha constant")
    assert verdict(found, "data parallel, two kinds of GPU")
    assert not verdict(found, "tell more of eta")
    far = data.assign(**{column(CHOSEN): data["eta"] + 1.0})
    assert not verdict(eq5.judge(far), "prefill/decode, GPU + wafer")


@pytest.mark.slow
def test_the_command_judges_all_designs(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "dse", "paper", "eq5", "--json", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert {tuple(row) for row in rows} == {("figure", "statement", "pass", "value", "paper")}
    assert (len(rows), {row["statement"] for row in rows if not row["pass"]}) == (8, DIFFERS)
    assert all(on_page(row["statement"], row["pass"], row["value"], row["paper"]) for row in rows)
    data = check_files(tmp_path, "eq5", N_ROWS)
    assert data["eta"].min() > 0
    assert set(data["paradigm"]) == {"dp_training", "pd_serving"}
