"""What if: ends scored by hand, break-even values run again on both sides of them, and honest gaps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from conftest import small_study
from small_training import data_parallel
from typer.testing import CliRunner

from dse.cli.app import app
from dse.explore import run, with_what_if
from dse.knobs import knobs
from dse.progress import Stop
from dse.report import load_run
from dse.report.page import page
from dse.report.sensitivity import break_evens, tornado_bars, value_text, what_if
from dse.resolve import Study
from dse.run_folder import write_run
from dse.scoring import score
from dse.sensitivity import KEPT, sensitivity

SERVING = small_study(limits={"cost_usd_per_h": 150, "power_w": 60e3})


def answered(raw: dict[str, Any]) -> dict[str, Any]:
    return dict(with_what_if(run(Study.from_dict(raw)), Stop()).info["sensitivity"])


@pytest.fixture(scope="module")
def serving() -> dict[str, Any]:
    return answered(SERVING)


def kinds_bought(study: Study, row: pd.Series) -> set[str]:
    return {offer.device.name for offer in study.problem.pools if row[f"n_{offer.name}"] > 0}


def with_price(raw: dict[str, Any], device: str, price: float, folder: Path) -> Study:
    """The study as a user changes a price: by a device file of the catalogue's numbers with one line changed."""
    text = CliRunner().invoke(app, ["catalog", "devices", device, "--toml"]).stdout
    lines = [f"rental_usd_per_h = {price!r}" if x.startswith("rental_usd_per_h") else x for x in text.splitlines()]
    (folder / "priced.toml").write_text("\n".join(lines))
    pools = [{**pool, "device": "priced.toml", "name": pool.get("name", device)} if pool["device"] == device else pool
             for pool in raw["pool"]]  # fmt: skip
    return Study.from_dict({**raw, "pool": pools}, folder=folder)


@pytest.mark.parametrize("raw", [SERVING, data_parallel()], ids=["serving", "training"])
def test_ends_are_the_design_scored_again(raw: dict[str, Any]) -> None:
    result = run(Study.from_dict(raw))
    row = result.recommended
    assert row is not None
    found = sensitivity(result.study, row, Stop())
    settings = result.study.space.settings_of({str(k): v for k, v in row.items()})
    for knob, record in zip(knobs(result.study), found["knobs"], strict=True):
        for end in record["ends"]:
            again = score(knob.turned(end["value"]), settings) if "bandwidth" not in knob.name else None
            for name in KEPT if again is not None else ():
                assert end[name] == pytest.approx(float(again[name].iloc[0]), rel=1e-9)


def test_the_untouched_value_changes_nothing(serving: dict[str, Any]) -> None:
    result = run(Study.from_dict(SERVING))
    row = result.recommended
    assert row is not None
    for knob in knobs(result.study):
        again = run(knob.turned(knob.now), method="exhaustive") if knob.unit.startswith("USD") else None
        if again is not None and again.recommended is not None:
            assert again.recommended["design_id"] == row["design_id"]
    assert serving["kept"] == {name: float(row[name]) for name in KEPT}
    assert serving["explorations"] > 0
    assert serving["missing"] == ""


@pytest.mark.parametrize("raw", [SERVING, data_parallel()], ids=["serving", "training"])
def test_a_break_even_price_holds_when_it_is_run(raw: dict[str, Any], tmp_path: Path) -> None:
    found = answered(raw)
    priced = [k for k in found["knobs"] if k["unit"] == "USD/h"]
    checked = 0
    for knob in priced:
        device = knob["name"].removeprefix("rental of ")
        for change in knob["changes"]:
            inside = run(with_price(raw, device, change["inside"], tmp_path))
            outside = run(with_price(raw, device, change["outside"], tmp_path))
            assert inside.recommended is not None
            assert kinds_bought(inside.study, inside.recommended) == set(found["kinds"])
            if change["pick"] is None:
                assert outside.recommended is None
            else:
                assert outside.recommended is not None
                assert kinds_bought(outside.study, outside.recommended) != kinds_bought(
                    inside.study, inside.recommended
                )
                assert outside.recommended["cost_usd_per_h"] == pytest.approx(
                    change["pick"]["cost_usd_per_h"], rel=1e-9
                )
            assert abs(change["outside"] / change["inside"] - 1) <= 1.01e-3
            checked += 1
    assert checked > 0


def test_a_price_at_which_mixing_breaks_even_has_gain_one(serving: dict[str, Any]) -> None:
    study = Study.from_dict(SERVING)
    result = run(study)
    row = result.recommended
    assert row is not None
    settings = study.space.settings_of({str(k): v for k, v in row.items()})
    by_name = {knob.name: knob for knob in knobs(study)}
    assert serving["mixing"]
    for one in serving["mixing"]:
        gains = [
            float(score(by_name[one["name"]].turned(one[side]), settings)["gain_equal_cost"].iloc[0])
            for side in ("inside", "outside")
        ]
        assert (gains[0] > 1) == one["pays_now"]
        assert (gains[1] > 1) != one["pays_now"]
        assert gains == pytest.approx([1, 1], abs=2e-3)


def test_knobs_without_effect_have_no_bar_and_bars_are_sorted(serving: dict[str, Any]) -> None:
    bars = tornado_bars(serving)
    sizes = [bar["size"] for bar in bars]
    assert sizes == sorted(sizes, reverse=True)
    assert not [bar for bar in bars if "limit" in bar["knob"]]
    assert {bar["knob"] for bar in bars} >= {"rental of a100-40gb-sxm", "rental of wse-3"}


def test_time_that_is_up_is_admitted() -> None:
    result = run(Study.from_dict(SERVING))
    stop = Stop(time_limit_s=0.0)
    found = with_what_if(result, stop).info["sensitivity"]
    assert found["explorations"] == 0
    assert all("changes" not in knob for knob in found["knobs"])
    told = what_if({"sensitivity": found})
    assert told is not None
    assert told.missing.startswith("Not explored (")
    assert "rental of wse-3" in told.missing
    assert told.rows[0].low == "not explored"


def test_one_pool_and_no_pick_are_no_obstacle() -> None:
    raw = {**small_study(), "pool": small_study()["pool"][:1]}
    raw.pop("link")
    found = answered(raw)
    assert found["mixing"] == []
    assert not [k for k in found["knobs"] if "link" in k["name"]]
    nothing = run(Study.from_dict(small_study(limits={"power_w": 10.0})))
    assert with_what_if(nothing, Stop()) is nothing


def test_a_cheaper_device_never_makes_the_cheapest_fleet_dearer() -> None:
    study = Study.from_dict(small_study(demand={"requests_s": 20}))
    knob = next(k for k in knobs(study) if k.name == "rental of wse-3")
    costs = []
    for value in np.geomspace(*knob.reach, 9):
        pick = run(knob.turned(float(value))).recommended
        assert pick is not None
        costs.append(pick["cost_usd_per_h"])
    assert (np.diff(costs) >= -1e-9).all()


def test_a_site_turned_is_the_study_with_that_site() -> None:
    study = Study.from_dict(small_study(site={"cost_basis": "ownership"}))
    for name, key, value in (("PUE", "site.pue", 1.5), ("price of energy", "site.energy_usd_per_kwh", 0.2)):
        knob = next(k for k in knobs(study) if k.name == name)
        turned, changed = run(knob.turned(value)), run(study.changed({key: value}))
        pd.testing.assert_frame_equal(turned.frontier, changed.frontier)


def test_the_same_twice_and_on_the_page(serving: dict[str, Any]) -> None:
    assert answered(SERVING) == serving
    result = run(Study.from_dict(SERVING))
    text = page(replace(result, info=result.info | {"sensitivity": serving}))
    for line in break_evens(serving):
        assert line.replace("'", "&#39;") in text
    assert 'id="tornado-spec"' in text
    assert 'id="what-if"' not in page(result)


def test_values_read_as_people_write_them() -> None:
    assert value_text("USD", 1_900_000.0) == "1,900,000 USD"


def test_a_pick_that_an_exact_exploration_does_not_share_is_admitted() -> None:
    result = run(Study.from_dict(SERVING))
    pure = result.frontier[result.frontier["n_wse"] == 0]
    assert len(pure)
    found = sensitivity(result.study, pure.iloc[0], Stop())
    assert found["missing"].startswith("explored exactly, the study picks")
    assert all("changes" not in knob for knob in found["knobs"])


def test_a_kept_design_that_cannot_serve_any_more_leaves_a_page_and_a_folder(tmp_path: Path) -> None:
    raw = small_study(
        objectives={"minimise": ["usd_per_mtok"]},
        workload={**small_study()["workload"], "slo": {"ttft_p99_s": 0.1}},
    )
    raw["pool"] = raw["pool"][:1]
    raw.pop("link")
    result = run(Study.from_dict(raw))
    assert result.recommended is not None
    row = result.recommended.copy()
    found = sensitivity(result.study, row, Stop())
    ends = [end["usd_per_mtok"] for knob in found["knobs"] for end in knob["ends"]]
    assert not np.isfinite(ends).all()
    told = replace(result, info=result.info | {"sensitivity": found})
    assert "it cannot serve" in page(told)
    write_run(told, tmp_path / "run")
    assert "it cannot serve" in page(load_run(tmp_path / "run"))


def test_two_files_of_one_name_at_two_prices_are_two_knobs(tmp_path: Path) -> None:
    text = CliRunner().invoke(app, ["catalog", "devices", "a100-40gb-sxm", "--toml"]).stdout
    for name, price in (("spot", 0.6), ("ondemand", 1.29)):
        lines = [f"rental_usd_per_h = {price}" if x.startswith("rental_usd_per_h") else x for x in text.splitlines()]
        (tmp_path / f"{name}.toml").write_text("\n".join(lines))
    pools = [{"device": f"{n}.toml", "name": n, "count": {"min": 0, "max": 8, "step": 4}} for n in ("spot", "ondemand")]
    study = Study.from_dict(small_study(pool=pools), folder=tmp_path)
    priced = {k.name: k for k in knobs(study) if k.unit == "USD/h"}
    assert {name: k.now for name, k in priced.items()} == {"rental of spot": 0.6, "rental of ondemand": 1.29}
    for knob in priced.values():
        pd.testing.assert_frame_equal(run(knob.turned(knob.now)).frontier, run(study).frontier)


def test_whole_limits_move_by_one_and_shares_stay_shares() -> None:
    limits = {"n_wse": {"max": 2}, "link_use_frac": {"max": 0.95}}
    found = {k.name: k for k in knobs(Study.from_dict(small_study(limits=limits)))}
    devices, share = found["upper limit on n_wse"], found["upper limit on link_use_frac"]
    assert (devices.low, devices.high) == (1, 3)
    assert share.high == 1.0
