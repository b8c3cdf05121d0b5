"""Questions: every answer against brute force over all candidates, brackets run again, and honest refusals."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import tomli_w
from conftest import small_study
from small_training import data_parallel
from typer.testing import CliRunner

from dse import exact
from dse.bisection import WIDTH
from dse.cli.app import app
from dse.errors import InputError
from dse.explore import run, with_answers
from dse.progress import Stop
from dse.question_lines import rounded
from dse.questions import answers
from dse.report import load_run
from dse.report.page import page
from dse.report.questions import asked
from dse.resolve import Study
from dse.run_folder import write_run
from dse.scoring import score_index
from dse.whatif import raised_limits

COUNTS = ["n_gpu", "n_wse"]
LIMITS = {"budget_usd_per_h": 120, "power_w": 60e3}
OF_LIMITS = ["best_within_limits", "hybrid_against_homogeneous", "least_link", "entry_price"]
ALL = ["cheapest_for_demand", *OF_LIMITS]


def handing_over(**changes: Any) -> dict[str, Any]:
    """The small study with wafers that decode only, and GPUs that prefill where there are wafers: mixes need a link."""
    raw = small_study(**changes)
    raw["pool"][0]["roles"], raw["pool"][1]["roles"] = ["prefill"], ["decode"]
    return raw


def answered(raw: dict[str, Any], folder: Path = Path()) -> dict[str, dict[str, Any]]:
    return {answer["ask"]: answer for answer in answers(Study.from_dict(raw, folder=folder), Stop())}


def one(ask: str, raw: dict[str, Any], folder: Path = Path(), **question: Any) -> dict[str, Any]:
    return answered({**raw, "question": {"ask": ask, **question}}, folder)[ask]


def feasible(raw: dict[str, Any], folder: Path = Path()) -> pd.DataFrame:
    """Every feasible design of a study, by looking at all of them."""
    study = Study.from_dict({k: v for k, v in raw.items() if k != "question"}, folder=folder)
    index = np.arange(study.space.n_designs, dtype=np.int64)
    frame = score_index(study, index[study.space.legal(index)])
    return frame[frame["feasible"]]


def mixes(frame: pd.DataFrame) -> pd.DataFrame:
    return frame[(frame[COUNTS] > 0).all(axis=1)]


def lone(frame: pd.DataFrame) -> pd.DataFrame:
    return frame[(frame[COUNTS] > 0).sum(axis=1) == 1]


def with_price(raw: dict[str, Any], price: float, folder: Path) -> dict[str, Any]:
    """The study as a user changes the wafer's price: by a device file of the catalogue's numbers, one line changed."""
    text = CliRunner().invoke(app, ["catalog", "devices", "wse-3", "--toml"]).stdout
    lines = [f"rental_usd_per_h = {price!r}" if x.startswith("rental_usd_per_h") else x for x in text.splitlines()]
    (folder / "priced.toml").write_text("\n".join(lines))
    pools = [{**pool, "device": "priced.toml"} if pool["device"] == "wse-3" else pool for pool in raw["pool"]]
    return {**raw, "pool": pools}


# -- against brute force ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("demand", [40.0, 90.0, 130.0, 250.0])
@pytest.mark.parametrize("raw", [small_study(), handing_over()], ids=["both", "handing over"])
def test_the_cheapest_fleet_is_the_cheapest_of_all(raw: dict[str, Any], demand: float) -> None:
    answer = one("cheapest_for_demand", raw, demand_requests_s=demand)
    frame = feasible({**raw, "demand": {"requests_s": demand}})
    values = answer["values"]
    assert answer["value"] == pytest.approx(frame["cost_usd_per_h"].min(), rel=1e-12)
    assert values["best"]["requests_s"] >= demand
    for key, kept in (("best_of_one_device", lone(frame)), ("best_mix", mixes(frame))):
        if values[key] is not None:
            assert values[key]["cost_usd_per_h"] == pytest.approx(kept["cost_usd_per_h"].min(), rel=1e-12)
    assert (values["best_of_one_device"] is None) == (not len(lone(frame)))


def test_a_demand_of_the_study_is_the_default_and_its_limits_hold() -> None:
    raw = small_study(demand={"requests_s": 60}, limits={"power_w": 60e3, "n_wse": {"min": 1}})
    answer = one("cheapest_for_demand", raw)
    assert answer["value"] == pytest.approx(feasible(raw)["cost_usd_per_h"].min(), rel=1e-12)
    assert answer["values"]["demand_requests_s"] == 60


def test_a_demand_beyond_reach_names_the_most_that_is_served() -> None:
    answer = one("cheapest_for_demand", small_study(), demand_requests_s=4000)
    most = feasible(small_study())["requests_s"].max()
    assert answer["value"] is None
    assert answer["missing"] == ""
    assert f"the most is {most:,.1f} requests/s" in answer["line"]


CAPS = [{"budget_usd_per_h": 120}, {"power_w": 60e3}, LIMITS, {"budget_usd_per_h": 1e4}, {"budget_usd_per_h": 28}]


@pytest.mark.parametrize("caps", CAPS, ids=str)
@pytest.mark.parametrize("raw", [small_study(), data_parallel()], ids=["serving", "training"])
def test_the_fastest_fleet_and_what_binds_it(raw: dict[str, Any], caps: dict[str, float]) -> None:
    answer = one("best_within_limits", raw, **caps)
    frame = feasible(raw)
    columns = {"budget_usd_per_h": "cost_usd_per_h", "power_w": "power_w"}

    def fastest(*lifted: str) -> float:
        kept = frame
        for key, cap in caps.items():
            kept = kept if key in lifted else kept[kept[columns[key]] <= cap]
        return float(kept["throughput_tok_s"].max())

    assert answer["value"] == pytest.approx(fastest(), rel=1e-12)
    binding = [columns[key] for key in caps if fastest(key) > fastest() * (1 + 1e-9)]
    expected = binding[0] if len(binding) == 1 else "each" if binding else "together"
    if not binding and fastest(*caps) <= fastest() * (1 + 1e-9):
        expected = "none"
    assert answer["values"]["binding"] == expected
    kept = lone(frame)
    for key, cap in caps.items():
        kept = kept[kept[columns[key]] <= cap]
    single = answer["values"]["best_of_one_device"]
    assert single["throughput_tok_s"] == pytest.approx(kept["throughput_tok_s"].max(), rel=1e-12)


@pytest.mark.parametrize("raw", [small_study(), handing_over(), data_parallel()], ids=["both", "handing", "training"])
def test_mixes_and_one_device_each_within_one_cap(raw: dict[str, Any]) -> None:
    answer = one("hybrid_against_homogeneous", raw, **LIMITS)
    frame = feasible(raw)
    caps = {"equal_cost": ("cost_usd_per_h", 120), "equal_power": ("power_w", 60e3)}
    for key, (column, cap) in caps.items():
        within, values = frame[frame[column] <= cap], answer["values"][key]
        best = [float(kept["throughput_tok_s"].max()) for kept in (mixes(within), lone(within))]
        assert [values[k]["throughput_tok_s"] for k in ("best_mix", "best_of_one_device")] == pytest.approx(best)
        assert values["ratio"] == pytest.approx(best[0] / best[1], rel=1e-12)
        more = float(lone(frame)["throughput_tok_s"].max()) > best[1] * (1 + 1e-9)
        assert values["no_faster_one_device_on_offer"] == (not more)
    assert answer["value"] == answer["values"]["equal_cost"]["ratio"]
    assert {point["against"] for point in answer["frontier"]} == {"cost_usd_per_h", "power_w"}


@pytest.mark.parametrize("caps", [{"budget_usd_per_h": 120}, {"demand_requests_s": 70}], ids=str)
def test_both_ends_of_the_least_link_hold_when_they_are_run(caps: dict[str, float]) -> None:
    raw = handing_over(pool=[{**small_study()["pool"][0], "count": [0, 8, 12, 24]}, small_study()["pool"][1]])
    raw["pool"][0]["roles"], raw["pool"][1]["roles"] = ["prefill"], ["decode"]
    if "demand_requests_s" in caps:  # dear GPUs, so that the mix may win
        raw["pool"][0]["count"] = [0, 8, 80]
    answer = one("least_link", raw, **caps)
    inside, outside = answer["bracket"]
    assert inside > outside > inside * (1 - 1.01 * WIDTH)
    assert answer["value"] == inside

    def pays(link: float) -> bool:
        limits = {"cost_usd_per_h": caps["budget_usd_per_h"]} if "budget_usd_per_h" in caps else {}
        demand = {"demand": {"requests_s": caps["demand_requests_s"]}} if "demand_requests_s" in caps else {}
        frame = feasible({**raw, "link": {"bandwidth_gb_s": link}, "limits": limits, **demand})
        keys = ["cost_usd_per_h", "lost"] if demand else ["lost", "cost_usd_per_h"]
        frame = frame.assign(lost=-frame["throughput_tok_s"])
        best = [kept.sort_values(keys)[keys].to_numpy()[:1].tolist() for kept in (mixes(frame), lone(frame))]
        return bool(best[0]) and (not best[1] or best[0] <= best[1])

    assert pays(inside)
    assert not pays(outside)


@pytest.mark.parametrize("question", [{"demand_requests_s": 65}, {"budget_usd_per_h": 120}], ids=str)
def test_both_ends_of_an_entry_price_hold_when_they_are_run(question: dict[str, float], tmp_path: Path) -> None:
    raw = small_study()
    answer = one("entry_price", raw, **question)
    inside, outside = answer["bracket"]
    assert inside < outside < inside * (1 + 1.01 * WIDTH)

    def bought(price: float) -> bool:
        limits = {"cost_usd_per_h": question["budget_usd_per_h"]} if "budget_usd_per_h" in question else {}
        demand = {"demand": {"requests_s": question["demand_requests_s"]}} if "demand_requests_s" in question else {}
        frame = feasible(with_price({**raw, "limits": limits, **demand}, price, tmp_path), tmp_path)
        column = "cost_usd_per_h" if demand else "throughput_tok_s"
        value = frame[column].min() if demand else frame[column].max()
        return bool((frame[np.isclose(frame[column], value, rtol=1e-9, atol=0)]["n_wse"] > 0).all())

    assert bought(inside)
    assert not bought(outside)


def test_frontiers_behind_an_answer_are_exact_and_hold_the_best() -> None:
    answer = one("best_within_limits", small_study(), **LIMITS)
    frame = feasible(small_study(limits={"cost_usd_per_h": 120, "power_w": 60e3}))
    points = [p for p in answer["frontier"] if p["kind"] == "all fleets"]
    assert 1 < len(answer["frontier"]) <= 200
    assert [p["throughput_tok_s"] for p in points if p["best"]] == [answer["value"]]
    for point in points:
        cheaper = frame[frame["cost_usd_per_h"] <= point["cost_usd_per_h"] * (1 + 1e-12)]
        assert cheaper["throughput_tok_s"].max() == pytest.approx(point["throughput_tok_s"], rel=1e-12)
        same = np.isclose(frame["throughput_tok_s"], point["throughput_tok_s"], rtol=1e-12)
        assert (frame[same][COUNTS] == [point[c] for c in COUNTS]).all(axis=1).any()


@pytest.mark.parametrize("raw", [small_study(), handing_over()], ids=["both", "handing over"])
def test_designs_dropped_unseen_change_no_answer(raw: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    asked_of = {**raw, "question": {"ask": ALL, "demand_requests_s": 65, **LIMITS}}
    enumerated = answered(asked_of)
    monkeypatch.setattr("dse.pruning.PRUNED_DESIGNS", 0)
    for ask, answer in answered(asked_of).items():
        assert answer["line"] == enumerated[ask]["line"]
        assert answer["bracket"] == enumerated[ask]["bracket"]


@pytest.mark.slow
def test_exact_programs_give_the_same_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = small_study(
        question={"ask": ["cheapest_for_demand", "best_within_limits"], "demand_requests_s": 90, **LIMITS}
    )
    enumerated = answered(raw)
    monkeypatch.setattr(exact, "choose_method", lambda _: ("milp", "for a test"))
    for ask, answer in answered(raw).items():
        assert answer["value"] == pytest.approx(enumerated[ask]["value"], rel=1e-9)
        assert answer["proof"]["kind"] == "milp"
        assert answer["proof"]["largest_gap"] < 1e-6


# -- limits of the questions ------------------------------------------------------------------------------------------


def test_a_wafer_that_no_price_lets_in() -> None:
    answer = one("entry_price", small_study(), power_w=20e3)
    assert "not bought even when free" in answer["line"]
    assert (answer["value"], answer["bracket"]) == (None, [None, 0.0])


def test_a_wafer_that_is_bought_at_any_price() -> None:
    answer = one("entry_price", small_study(), demand_requests_s=150)
    assert "at any price up to 882.10 USD/h" in answer["line"]
    assert "no fleet without it is feasible" in answer["line"]
    assert answer["bracket"] == [answer["value"], None]


def test_a_wafer_that_is_free_today_has_an_entry_price(tmp_path: Path) -> None:
    free = with_price(small_study(), 0.0, tmp_path)
    answer = one("entry_price", free, tmp_path, demand_requests_s=40)
    priced = one("entry_price", small_study(), demand_requests_s=40)
    assert answer["values"]["price_today"] == 0
    assert answer["values"]["bought_today"]
    assert answer["bracket"] == [answer["values"]["looked_at"][1], None]  # ten times the other's price
    assert answer["value"] < priced["value"]


def test_a_price_of_purchase_under_ownership() -> None:
    answer = one("entry_price", small_study(site={"cost_basis": "ownership"}), demand_requests_s=65)
    inside, outside = answer["bracket"]
    assert answer["unit"] == "USD"
    assert 0 < inside < outside < answer["values"]["price_today"]


def test_mixing_that_never_pays_and_mixing_that_always_does() -> None:
    never = one("least_link", small_study(), demand_requests_s=40)
    assert "Mixing never pays, whatever the link" in never["line"]
    assert never["value"] is None
    always = one("least_link", small_study(), **LIMITS)
    assert "Mixing pays already at the narrowest link" in always["line"]
    assert always["bracket"] == [4.0, None]


def test_devices_that_stand_idle_make_no_mix_that_pays() -> None:
    raw = data_parallel(workload={**data_parallel()["workload"], "global_batch": [128]})
    answer = one("least_link", raw, budget_usd_per_h=1e4)
    idle = one("least_link", {**raw, "link": {"bandwidth_gb_s": 1e-3}}, budget_usd_per_h=1e4)
    assert answer["value"] is None or answer["value"] > 0.01
    assert idle["value"] is None
    mix, single = (idle["values"][k] for k in ("best_mix", "best_of_one_device"))
    assert mix["throughput_tok_s"] <= single["throughput_tok_s"] * (1 + 1e-9)


def test_no_fleet_at_all_is_an_answer() -> None:
    found = answered(small_study(question={"ask": OF_LIMITS, "power_w": 10.0}))
    assert "No fleet on offer is feasible within 10 W" in found["best_within_limits"]["line"]
    assert "no fleet is feasible" in found["hybrid_against_homogeneous"]["line"]
    assert "no fleet is feasible" in found["least_link"]["line"]
    assert "no fleet is feasible" in found["entry_price"]["line"]
    assert all(not answer["missing"] for answer in found.values())


def test_a_study_of_one_device_answers_what_it_can() -> None:
    raw = {**small_study(), "pool": small_study()["pool"][:1]}
    raw.pop("link")
    assert "no other device is on offer" in one("cheapest_for_demand", raw, demand_requests_s=40)["line"]
    assert "the budget binds" in one("best_within_limits", raw, budget_usd_per_h=20)["line"]


def test_time_that_is_up_leaves_no_half_answer() -> None:
    study = Study.from_dict(small_study(question={"ask": ALL, "demand_requests_s": 40, **LIMITS}))
    for answer in answers(study, Stop(time_limit_s=0.0)):
        assert answer["missing"] == "time limit of 0 s"
        assert answer["line"] == f"{answer['ask']} is not answered: time limit of 0 s."
        assert (answer["value"], answer["frontier"], answer["values"], answer["explorations"]) == (None, [], {}, 0)


def test_a_space_that_nothing_proves_is_said_to_be_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact, "choose_method", lambda _: ("optuna", "the grid is too large"))
    answer = one("best_within_limits", small_study(), **LIMITS)
    assert answer["missing"] == "no exact method answers it: the grid is too large"


def test_a_lower_price_and_a_wider_link_never_hurt() -> None:
    found = [
        one("entry_price", small_study(), power_w=60e3, budget_usd_per_h=budget)["value"] for budget in (100, 120, 140)
    ]
    assert found == sorted(found)
    prices = [
        one("cheapest_for_demand", handing_over(link={"bandwidth_gb_s": s}), demand_requests_s=60)["value"]
        for s in (5, 20, 80)
    ]
    assert prices == sorted(prices, reverse=True)


def test_brackets_are_told_rounded_to_the_side_that_holds() -> None:
    for value in (0.00123456, 1.0, 119.9966, 6.0455, 12_345.6, 9.9999):
        assert rounded(value, up=False) <= value * (1 + 1e-9)
        assert rounded(value, up=True) >= value * (1 - 1e-9)
        assert rounded(value, up=True) == pytest.approx(value, rel=1.1e-3)


# -- bad input --------------------------------------------------------------------------------------------------------


def faults(raw: dict[str, Any], **question: Any) -> str:
    with pytest.raises(InputError) as error:
        Study.from_dict({**raw, "question": question})
    return str(error.value)


def bad() -> Iterator[tuple[dict[str, Any], dict[str, Any], str]]:
    pools = small_study()["pool"]
    gpus = {**small_study(), "pool": pools[:1]}
    wafers = [*pools, {"device": "wse-2", "name": "old", "count": [0, 1]}]
    yield small_study(), {"ask": "cheapest_for_demand"}, "give question.demand_requests_s or demand.requests_s"
    yield small_study(), {"ask": "best_within_limits"}, "give question.budget_usd_per_h, question.power_w, limits.cost"
    yield small_study(), {"ask": "least_link"}, "neither a demand nor a limit"
    yield gpus, {"ask": "least_link", "power_w": 1e5}, "the study has a100-40gb-sxm only; add a [[pool]]"
    yield gpus, {"ask": "entry_price", "power_w": 1e5}, "the study has no wafer; name one of a100-40gb-sxm"
    yield small_study(), {"ask": "entry_price", "power_w": 1e5, "device": "wse-4"}, "did you mean wse-3"
    yield small_study(), {"ask": "best_within_limits", "power_w": 1e5, "device": "wse-3"}, "no question asked uses it"
    yield small_study(), {"ask": "best_within_limits", "power_w": -1}, "question.power_w"
    yield small_study(), {"ask": "everything"}, "cheapest_for_demand"
    yield small_study(), {"ask": []}, "at least one value"
    yield small_study(), {"ask": ["entry_price", "entry_price"], "power_w": 1e5}, "listed twice"
    yield small_study(), {"ask": "entry_price", "price": 3}, "no key named 'price'"
    yield data_parallel(), {"ask": "cheapest_for_demand"}, "which dp_training has none of; ask one of best_within"
    yield data_parallel(), {"ask": "entry_price", "demand_requests_s": 4}, "dp_training has no requests; remove it"
    yield (
        small_study(limits={"requests_s": {"max": 30}}),
        {"ask": "cheapest_for_demand", "demand_requests_s": 40},
        "no design can meet both",
    )
    if "wse-2" in CliRunner().invoke(app, ["catalog", "devices"]).stdout:
        yield small_study(pool=wafers), {"ask": "entry_price", "power_w": 1e5}, "2 kinds of wafer"


@pytest.mark.parametrize(("raw", "question", "said"), list(bad()), ids=lambda x: x if isinstance(x, str) else "")
def test_bad_questions_are_refused_with_the_way_out(raw: dict[str, Any], question: dict[str, Any], said: str) -> None:
    told = faults(raw, **question)
    assert said in told
    assert "question" in told


def test_faults_of_questions_come_with_all_others() -> None:
    told = faults(small_study(limits={"n_tpu": {"max": 3}}), ask=["cheapest_for_demand", "best_within_limits"])
    assert len(told.splitlines()) == 3
    assert "n_tpu" in told


# -- around a run -----------------------------------------------------------------------------------------------------


def test_changed_studies_ask_nothing_and_other_ways_to_explore_keep_the_question() -> None:
    raw = small_study(limits={"cost_usd_per_h": 120}, question={"ask": ["best_within_limits"]})
    study = Study.from_dict(raw)
    assert study.changed({"limits.cost_usd_per_h": None}).envelope.question is None
    assert study.changed({"search.seed": 3}).envelope.question == study.envelope.question
    assert raised_limits(study, run(study).frontier, Stop())[0]


@pytest.mark.slow
def test_answers_are_printed_kept_and_on_the_page(tmp_path: Path) -> None:
    file, folder = tmp_path / "study.toml", tmp_path / "run"
    question = {"ask": ["cheapest_for_demand", "hybrid_against_homogeneous"], "demand_requests_s": 90, **LIMITS}
    file.write_text(tomli_w.dumps(small_study(question=question)))
    done = CliRunner().invoke(app, ["run", str(file), "--out", str(folder), "--no-what-if", "--progress", "none"])
    assert done.exit_code == 0, done.output
    kept = json.loads((folder / "run.json").read_text())["answers"]
    assert [line.removeprefix("Question: ") for line in done.stdout.splitlines() if line.startswith("Question: ")] == [
        answer["line"] for answer in kept
    ]
    assert [answer["ask"] for answer in kept] == question["ask"]
    result, text = load_run(folder), (folder / "report.html").read_text()
    assert 'id="questions"' in text
    for told in asked(result.study, result.info):
        assert told.line in text
        assert told.planes
        assert told.rows
    assert text.count('class="drawn" role="group" aria-label="Frontiers behind') == 3
    assert "question-specs" in text


def test_a_run_without_questions_says_nothing_of_them() -> None:
    result = run(Study.from_dict(small_study()))
    assert with_answers(result, Stop()) is result
    assert asked(result.study, result.info) == []


def test_a_study_without_a_feasible_design_may_still_be_asked(tmp_path: Path) -> None:
    raw = small_study(demand={"requests_s": 4000}, question={"ask": "cheapest_for_demand", "demand_requests_s": 40})
    result = with_answers(run(Study.from_dict(raw)), Stop())
    assert result.recommended is None
    write_run(result, tmp_path / "run")
    text = page(load_run(tmp_path / "run"))
    assert "question-specs" in text
    assert "vegaEmbed" in text


def test_what_was_not_answered_has_no_proof_and_no_chart() -> None:
    result = run(Study.from_dict(small_study(question={"ask": "best_within_limits", "power_w": 10.0})))
    spent = with_answers(result, Stop(time_limit_s=0.0))
    (told,) = asked(spent.study, spent.info)
    assert "is not answered" in told.line
    assert (told.proof, told.planes, told.rows) == ("", [], [])
    found = with_answers(result, Stop())
    (told,) = asked(found.study, found.info)
    assert "No fleet on offer" in told.line
    assert told.proof.startswith("Exact: in 1 exploration ")
