"""Runs compared: what changed is what was changed, designs are told by what they are, and nothing is hidden."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import small_study
from small_training import data_parallel
from typer.testing import CliRunner

from dse.cli.app import app
from dse.cli.report import names_of
from dse.compare import KEPT, MOST_DESIGNS, compare, covered
from dse.errors import InputError
from dse.explore import Result, run
from dse.report.compare import comparison_page, frontier_words
from dse.resolve import Study
from dse.run_folder import write_run

HOSTILE = "<script>alert(1)</script>"


def made(**changes: Any) -> Result:
    return run(Study.from_dict(small_study(**changes)))


@pytest.fixture(scope="module")
def base() -> Result:
    return made()


def test_the_same_run_twice_is_the_same(base: Result) -> None:
    (a,) = compare({"a": base, "b": base}).against
    assert a.changes == []
    assert a.hypervolume_frac == 1.0
    assert (a.dominated_frac, a.dominates_frac) == (0.0, 0.0)
    assert a.counts == (0, 0, len(base.frontier))
    assert a.moved == 0
    assert "dominates as much as that of x" in frontier_words("x", a)


def test_a_price_in_a_device_file_is_the_only_change(tmp_path: Path) -> None:
    text = CliRunner().invoke(app, ["catalog", "devices", "wse-3", "--toml"]).stdout
    for name, price in (("now", None), ("later", 50.0)):
        lines = [
            f"rental_usd_per_h = {price}" if price and line.startswith("rental_usd_per_h") else line
            for line in text.splitlines()
        ]
        (tmp_path / name).mkdir()
        (tmp_path / name / "wafer.toml").write_text("\n".join(lines))
    raw = small_study()
    raw["pool"][1]["device"] = "wafer.toml"
    runs = {name: run(Study.from_dict(raw, folder=tmp_path / name)) for name in ("now", "later")}
    (a,) = compare(runs).against
    assert [(c.key, c.after, c.resolved) for c in a.changes] == [("wse.rental_usd_per_h", "50", True)]
    assert a.hypervolume_frac > 1
    assert a.dominates_frac == 0.0
    assert a.moved > 0


def test_a_tighter_limit_takes_designs_and_says_so(base: Result) -> None:
    tight = made(limits={"power_w": float(base.frontier["power_w"].median())})
    (a,) = compare({"base": base, "tight": tight}).against
    assert [c.key for c in a.changes] == ["limits.power_w"]
    went, came, stayed = a.counts
    assert went > 0
    assert came == 0
    assert went + stayed == len(base.frontier)
    assert all("power_w" in f.why and "is above" in f.why for f in a.went)
    assert a.moved == 0


def test_another_pool_comes_in_by_its_name_and_beats_what_went(base: Result) -> None:
    pools = [*small_study()["pool"], {"device": "h200-141gb-sxm", "name": "h200", "count": {"min": 0, "max": 8}}]
    more = made(pool=pools)
    (a,) = compare({"base": base, "more": more}).against
    assert {c.key.split(".")[1] for c in a.changes if not c.resolved} == {"h200"}
    assert a.hypervolume_frac >= 1
    assert a.dominates_frac == 0.0
    assert a.counts[1] > 0
    for fate in a.went:
        assert fate.why.startswith(("beaten by", "equalled by"))
    (back,) = compare({"more": more, "base": base}).against
    assert any(f.why.startswith("not on offer") for f in back.went)


def test_coverage_is_counted_by_hand() -> None:
    ours, theirs = np.array([[1.0, 1.0], [2.0, 0.5], [0.5, 3.0]]), np.array([[1.0, 0.9], [2.0, 0.5]])
    assert covered(ours, theirs) == pytest.approx(1 / 3)
    assert covered(theirs, ours) == 0.0
    assert covered(ours, np.zeros((0, 2))) == 0.0


def test_objectives_that_differ_are_shared_or_refused(base: Result) -> None:
    other = made(objectives={"minimise": ["cost_usd_per_h"]})
    found = compare({"a": base, "b": other})
    assert found.objectives == ("throughput_tok_s", "cost_usd_per_h")
    assert "different objectives" in " ".join(found.warnings)
    lone = made(objectives={"maximise": ["requests_s"], "minimise": ["power_w"]})
    with pytest.raises(InputError, match="a comparison needs two"):
        compare({"a": base, "b": replace_objectives(lone)})


def replace_objectives(result: Result) -> Result:
    return run(result.study.changed({"objectives.minimise": ["tpot_s"]}))


def test_other_paradigms_and_too_many_runs_are_refused(base: Result) -> None:
    with pytest.raises(InputError, match="different paradigms"):
        compare({"serving": base, "training": run(Study.from_dict(data_parallel()))})
    with pytest.raises(InputError, match="2 to 6"):
        compare({str(k): base for k in range(7)})


def test_incomplete_and_infeasible_runs_are_compared_with_a_warning(base: Result) -> None:
    stopped = replace(base, info=base.info | {"complete": False, "stopped": "time limit of 5 s"})
    nothing = made(limits={"power_w": 10.0})
    found = compare({"base": base, "stopped": stopped, "nothing": nothing})
    assert any("time limit of 5 s" in w for w in found.warnings)
    assert found.against[1].hypervolume_frac == 0.0
    assert found.against[1].counts == (len(base.frontier), 0, 0)
    text = comparison_page(found)
    assert "No design is feasible." in text
    (empty,) = compare({"nothing": nothing, "again": nothing}).against
    assert np.isnan(empty.hypervolume_frac)
    comparison_page(compare({"nothing": nothing, "again": nothing}))


def test_training_runs_compare() -> None:
    first = run(Study.from_dict(data_parallel()))
    second = run(first.study.changed({"workload.sequence_tokens": 1024}))
    (a,) = compare({"a": first, "b": second}).against
    assert [c.key for c in a.changes] == ["workload.sequence_tokens"]
    assert "Training throughput" in comparison_page(compare({"a": first, "b": second}))


def test_long_tables_are_thinned_and_counted() -> None:
    many = run(Study.from_dict(small_study(pool=[
        {"device": "a100-40gb-sxm", "name": "gpu", "count": {"min": 0, "max": 400}},
        {"device": "wse-3", "name": "wse", "count": {"min": 0, "max": 4}},
    ])))  # fmt: skip
    (a,) = compare({"many": many, "none": made(limits={"power_w": 10.0})}).against
    assert a.counts[0] == len(many.frontier) > MOST_DESIGNS
    assert len(a.went) == MOST_DESIGNS


def test_the_page_holds_the_numbers_and_hostile_names_stay_text(base: Result) -> None:
    hostile = run(Study.from_dict(small_study() | {"name": HOSTILE}))
    text = comparison_page(compare({"base": base, HOSTILE: hostile}))
    assert HOSTILE not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "http://" not in text.replace("http://www.w3.org", "")


@pytest.fixture
def folders(base: Result, tmp_path: Path) -> list[Path]:
    made_folders = [tmp_path / "old" / "run", tmp_path / "new" / "run", tmp_path / "third"]
    tight = made(limits={"power_w": 40e3})
    for folder, result in zip(made_folders, (base, tight, base), strict=True):
        write_run(result, folder)
    return made_folders


def test_the_command_writes_a_page_and_prints_what_moved(folders: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    done = CliRunner().invoke(app, ["report", *map(str, folders), "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert "old/run -> new/run: 1 change\n" in done.stdout
    assert "limits.power_w: not there -> 40000" in done.stdout
    assert "old/run -> third: 0 changes\n" in done.stdout
    assert out.read_text().count("<h2 id=") == 4


def test_the_command_as_json_says_the_same(folders: list[Path], tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["report", *map(str, folders[:2]), "--json", "--out", str(tmp_path / "p.html")])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["against"][0]["changes"][0]["key"] == "limits.power_w"
    assert set(KEPT) <= set(told["picks"][0])
    counts = told["against"][0]["counts"]
    assert counts["went"] + counts["stayed"] == len(told["against"][0]["went"]) + len(told["against"][0]["stayed"])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("twice", "given twice"),
        ("damaged", "is damaged"),
        ("missing", "no such run folder"),
        ("what-if", "is for one run"),
    ],
)
def test_bad_calls_are_told_in_a_sentence(folders: list[Path], tmp_path: Path, change: str, said: str) -> None:
    call = [str(folders[0]), str(folders[1])]
    if change == "twice":
        call[1] = str(folders[0]) + "/."
    elif change == "damaged":
        (folders[1] / "run.json").write_text("{")
    elif change == "missing":
        shutil.rmtree(folders[1])
    else:
        call.append("--what-if")
    done = CliRunner().invoke(app, ["report", *call, "--out", str(tmp_path / "x.html")])
    assert said in str(done.exception or done.output)
    assert done.exit_code != 0
    assert not (tmp_path / "x.html").exists()


def test_folders_are_named_by_what_tells_them_apart() -> None:
    assert names_of([Path("runs/a"), Path("old/a"), Path("b")]) == ["runs/a", "old/a", "b"]
