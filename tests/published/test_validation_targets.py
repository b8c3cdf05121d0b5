"""Public measurements against the shipped profiles and against fits that did not see them; skipped without the data.

Targets: docs/model.md, section 8 ("Realistic out of sample"), a line per kind of measurement; errors are printed.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from dse.calibration.data import Measurements, Names, read_measurements
from dse.calibration.fit import fit, log_errors, with_numbers
from dse.calibration.profiles import HARDWARE, LONGEST_TRAINED, touched
from dse.calibration.validate import Validation, validations
from dse.catalog import load_catalog

DATA = Path(__file__).parents[3] / "shared" / "data"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not DATA.is_dir(), reason="the public measurements are not beside the checkout"),
]
ALCF, LOADED, SPLIT = (
    "serving_e2e_alcf", "serving_silicon_inferencex", "serving_prefill_decode_power_splitwise",
)  # fmt: skip
WSE_SERVING, MPT, WSE_TRAINING = "serving_wse2_waferllm", "training_mpt", "training_wse"
NAMES = Names()


@cache
def measured(file: str, profile: str = "") -> Measurements:
    return read_measurements(DATA / f"{file}.csv", NAMES, profile)


@cache
def lines(file: str, device: str = "") -> tuple[Validation, ...]:
    m = measured(file)
    kept = m.where(m.rows["device"].str.startswith(device))
    return tuple(validations(kept, NAMES, folds=True))


def judged(line: Validation, median: float, p90: float) -> list[str]:
    """Errors of a line, on its rows and on held-out folds, that miss the target."""
    about = f"{line.data}, {line.device}, {line.profile}, {line.quantity}"
    print(f"{about}: {line.error.median_pct:.1f} / {line.error.p90_pct:.1f} % of {line.error.n}")
    missed = []
    for by, e in [("shipped", line.error), *((h.by, h.error) for h in line.held_out)]:
        print(f"    {by}: {e.median_pct:.1f} / {e.p90_pct:.1f} %")
        if not (e.median_pct <= median and e.p90_pct <= p90):
            missed.append(f"{about}, {by}: {e.median_pct:.1f} / {e.p90_pct:.1f} %, allowed {median:g} / {p90:g} %")
    return missed


def test_static_serving_of_gpus_by_device_and_stack() -> None:
    found = lines(ALCF)
    assert len(found) == 4
    assert all({h.by for h in line.held_out} == {"by model", "by shape"} for line in found)
    assert not [fault for line in found for fault in judged(line, 10, 25)]


def test_serving_under_load_pooled_over_devices_by_stack() -> None:
    """Time per token 10 %, time to first token 25 %, median; pooled rows of all devices."""
    for quantity, allowed in (("tpot_s", 10.0), ("ttft_s", 25.0)):
        for stack in ("tensorrt-llm", "vllm"):
            own = [x for x in lines(LOADED) if (x.quantity, x.profile) == (quantity, stack)]
            assert len(own) >= 2
            errors = pd.concat([x.rows["error_pct"] for x in own]).abs()
            weight = np.array([x.error.n for x in own])
            held = np.average([h.error.median_pct for x in own for h in x.held_out], weights=weight)
            print(f"{stack} {quantity}: median {errors.median():.1f} %, held out {held:.1f} %, of {len(errors)}")
            assert errors.median() <= allowed
            assert held <= allowed


def test_training_on_a100() -> None:
    (line,) = lines(MPT, "a100")
    assert line.error.n > 20
    assert not judged(line, 4, 9)


def test_training_and_decode_on_wafers() -> None:
    found = [*lines(WSE_TRAINING), *(x for x in lines(WSE_SERVING) if x.quantity == "decode_step_s")]
    assert {x.device for x in found} == {"wse-2", "wse-3"}
    assert not [fault for line in found for fault in judged(line, 15, 25)]


def test_shipped_intervals_hold_most_rows() -> None:
    """Meant for 80 %, from held-out errors: of the very rows they may hold more, hardly fewer."""
    for line in (*lines(ALCF), *lines(LOADED), *lines(MPT, "a100")):
        print(f"{line.device}, {line.profile}, {line.quantity}: {line.coverage80:.2f} of {line.error.n}")
        assert 0.7 <= line.coverage80 <= 1.0


@pytest.mark.parametrize("file", [ALCF, LOADED, SPLIT, WSE_SERVING, MPT, WSE_TRAINING])
def test_catalogues_fitted_profiles_are_a_refit(file: str) -> None:
    m = measured(file)
    rows = m.rows.assign(dtype=m.rows["dtype"].replace({"fp16": "bf16"}))
    known, compared = load_catalog(), 0
    for (name, stack, dtype), part in rows.groupby(["device", "stack", "dtype"]):
        base = known.device(str(name), HARDWARE)
        found = fit(m.layout, part, base, m.layout.parameters, NAMES.model, prior=True)
        fitted = with_numbers(base, m.layout.parameters, [f.value for f in found.numbers])
        for phase in touched(m.layout.parameters):
            mine, theirs = (
                fitted.efficiency[phase],
                known.device(str(name), str(stack)).efficiency[phase].at(str(dtype)),
            )
            for key in ("compute", "memory", "fixed_layer_s", "attention", "sequence_s", "exposed"):
                wanted, shipped = getattr(mine, key), getattr(theirs, key)
                assert shipped == (wanted if wanted is None else pytest.approx(wanted, rel=0.01, abs=1e-9)), (
                    f"{name}, {stack}, {dtype}, {phase}.{key}"
                )
                compared += 1
    print(f"{file}: {compared} numbers")
    assert compared >= 12


@pytest.mark.parametrize("file", [ALCF, LOADED, MPT])
def test_three_quarters_of_points_are_at_least_as_fast_as_the_default_says(file: str) -> None:
    """What sources_fitted.csv claims; one point in a hundred is left to rounding to three digits."""
    m = measured(file, "default")
    fitted_to = {e.device for e in load_catalog().errors if e.profile == "default" and e.n > 15
                 and e.quantity in {q.name for q in m.layout.quantities}}  # fmt: skip
    assert fitted_to
    faults = []
    for name, rows in m.rows[m.rows["device"].isin(fitted_to)].groupby("device"):
        kept = rows
        if "sequence_tokens" in rows:
            node = NAMES.device(str(name), "default").node_size
            kept = rows[(rows["sequence_tokens"] <= LONGEST_TRAINED) & (rows["n"] <= node)]
        errors = log_errors(m.layout, kept, NAMES.device(str(name), "default"), NAMES.model).stack()
        share = float((errors >= -0.005).mean())
        print(f"{file}, {name}: {share:.3f} of {len(errors)} at least as fast")
        if share < 0.74:
            faults.append(f"{name}: {share:.3f} of {len(errors)}")
    assert not faults
