"""The report page and the run folder read back: whole, offline, escaped, and clear about what is missing."""

from __future__ import annotations

import dataclasses
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from dse.errors import InputError
from dse.explore import Result, run
from dse.report import load_run, write_report
from dse.report.chart_data import scene
from dse.report.designs import bill_of_materials
from dse.report.frontier_rows import TABLE_ROWS, distinct_rows, frontier_table, spread
from dse.report.page import page
from dse.report.rows import ratio_text
from dse.report.why import why
from dse.resolve import Study
from dse.run_folder import write_run

CHAT = {"name": "chat", "share": 1.0, "input_tokens": 1024, "output_tokens": 256}
HOSTILE = "<script>alert(1)</script>"


def study(**changes: Any) -> Study:
    raw: dict[str, Any] = {
        "name": "small",
        "paradigm": "pd_serving",
        "workload": {"model": "llama-2-7b", "requests": [CHAT]},
        "pool": [
            {"device": "a100-40gb-sxm", "name": "gpu", "count": {"min": 0, "max": 24, "step": 4}},
            {"device": "wse-3", "name": "wse", "count": {"min": 0, "max": 3}, "roles": ["decode"]},
        ],
        "link": {"bandwidth_gb_s": [25, 100, 400]},
    }
    return Study.from_dict({k: v for k, v in (raw | changes).items() if v is not None})


@pytest.fixture(scope="module")
def result() -> Result:
    return run(study())


@pytest.fixture(scope="module")
def html(result: Result) -> str:
    return page(result)


@pytest.fixture
def folder(result: Result, tmp_path: Path) -> Path:
    write_run(result, tmp_path / "run")
    return tmp_path / "run"


def one_pool(**changes: Any) -> Study:
    return study(pool=[{"device": "a100-40gb-sxm", "count": {"min": 0, "max": 8}}], link=None, **changes)


class Links(HTMLParser):
    """Collects what a page would load or link to, its headings, and ids."""

    def __init__(self) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.ids: list[str] = []
        self.heads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.targets += [found[k] or "" for k in ("src", "href") if k in found]
        self.ids += [found["id"] or ""] if "id" in found else []
        self.heads += [tag] if re.fullmatch(r"h[1-6]", tag) else []


def without_scripts(text: str) -> str:
    return re.sub(r"<script.*?</script>", "", text, flags=re.S)


def spec_of(text: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="spec">(.*?)</script>', text, re.S)
    assert found
    return dict(json.loads(found.group(1)))


def test_page_is_self_contained_and_its_links_lead_somewhere(html: str) -> None:
    links = Links()
    links.feed(without_scripts(html))
    assert len(html.encode()) < 2_000_000
    assert all(t.startswith(("#", "data:")) for t in links.targets)
    assert {t[1:] for t in links.targets if t.startswith("#")} <= set(links.ids)
    assert len(links.ids) == len(set(links.ids))
    assert links.heads[:2] == ["h1", "h2"]
    assert "default-src 'none'" in html


def test_headline_says_what_to_get_and_why(result: Result, html: str) -> None:
    row = result.recommended
    assert row is not None
    sentence = bill_of_materials(result.study, row)
    assert re.fullmatch(r"Rent \d+ × gpu for prefill and \d × wse for decode, joined by links of \d+ GB/s\.", sentence)
    assert sentence in html
    assert result.info["verdict"]["word"] == "exploited"
    assert result.info["verdict"]["design_id"] == row["design_id"]
    assert html.index("Does mixing pay?") < html.index('<dl class="figures"')
    assert str(row["bottleneck"]) in html
    assert "Links cost nothing here" in html


def test_hostile_names_stay_text() -> None:
    text = page(run(study(name=HOSTILE, workload={"model": "llama-2-7b", "requests": [CHAT | {"name": HOSTILE}]})))
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text


def test_hostile_pool_names_are_refused() -> None:
    for name in ("</script><b>", "a[/]b", "a b", "a\x00b", "x" * 61, "-x", "..", "abc\n"):
        pools = [{"device": "a100-40gb-sxm", "name": name, "count": {"min": 0, "max": 8}}]
        with pytest.raises(InputError, match="pool's name has at most 60 letters"):
            study(pool=pools, link=None)


def test_charts_link_and_ring_the_recommended_design(result: Result, html: str) -> None:
    spec = spec_of(html)
    assert [p["name"] for p in spec["params"]] == ["brush", "click"]
    assert all(len(p["views"]) == 2 for p in spec["params"])
    picks = [d for values in spec["datasets"].values() for d in values if d.get("pick")]
    row = result.recommended
    assert row is not None
    assert picks[0]["o0"] == pytest.approx(row["throughput_tok_s"])
    assert picks[0]["o2"] == pytest.approx(row["power_w"] / 1e3)


def test_incomplete_run_says_so(result: Result) -> None:
    stopped = dataclasses.replace(result, info=result.info | {"complete": False, "stopped": "time limit of 5 s"})
    text = page(stopped)
    assert "Incomplete run" in text
    assert "time limit of 5 s" in text
    assert "the run stopped before the space was covered" in text


def test_infeasible_run_shows_the_nearest_design() -> None:
    text = page(run(study(limits={"power_w": 100.0})))
    assert "No feasible design" in text
    assert "power_w 3.12 kW is above 100 W" in text
    assert 'id="charts"' not in text


def test_one_pool_has_nothing_to_combine() -> None:
    found = run(one_pool())
    text = page(found)
    row = found.recommended
    assert row is not None
    assert found.info["verdict"]["word"] == "single pool"
    assert found.info["verdict"]["gain"] is None
    assert ratio_text(row) == "no wafers"
    assert "single pool" in text


@pytest.mark.parametrize(
    "objectives",
    [
        {"maximise": ["throughput_tok_s"], "minimise": ["usd_per_mtok"]},
        {"maximise": ["throughput_tok_s", "tok_s_per_user"], "minimise": ["power_w"]},
        {"maximise": ["requests_s"], "minimise": ["cost_usd_per_h", "power_w", "tpot_s"]},
    ],
)
def test_any_objectives_make_a_page(objectives: dict[str, Any]) -> None:
    found = run(study(objectives=objectives))
    spec = spec_of(page(found))
    assert len(spec["params"][0]["views"]) == len(objectives["minimise"])


def test_limits_are_drawn_inside_the_picture_and_told_outside() -> None:
    found = run(study(limits={"cost_usd_per_h": 1e5, "power_w": 5e4}, demand={"requests_s": 20}))
    distinct = distinct_rows(found.frontier, found.study.envelope.objectives.names, 0)
    drawn = scene(found, distinct)
    assert drawn is not None
    assert drawn.limits == {0: [pytest.approx(20 * 256)], 2: [50.0]}
    assert drawn.notes[0] == "The limit, cost of at most 100,000 USD/h, lies outside the picture."


def test_ties_become_one_row_that_keeps_the_recommended_design(result: Result) -> None:
    twice = pd.concat([result.frontier, result.frontier], ignore_index=True)
    n, objectives = len(result.frontier), result.study.envelope.objectives.names
    distinct = distinct_rows(twice, objectives, n + 1)
    assert sum(distinct.ties) == 2 * n
    assert len(distinct.frame) < 2 * n
    assert not distinct.frame.duplicated(list(objectives)).any()
    assert distinct.frame["design_id"].iloc[distinct.pick] == twice["design_id"].iloc[n + 1]
    assert distinct.frame["on_front"].all()


def test_long_frontiers_are_thinned_and_keep_the_recommended_row(result: Result) -> None:
    long = pd.concat([result.frontier.head(1)] * 500, ignore_index=True)
    long["throughput_tok_s"] = range(1, 501)
    distinct = distinct_rows(long, result.study.envelope.objectives.names, 123)
    table = frontier_table(result.study, distinct)
    assert table.total == 500
    assert TABLE_ROWS - 1 <= len(table.rows) <= TABLE_ROWS
    assert sum(pick for _, pick, _ in table.rows) == 1
    assert spread(3, 5, -1) == [0, 1, 2]


def test_why_adds_up(result: Result) -> None:
    row = result.recommended
    assert row is not None
    found = why(result, row, recommended=True)
    assert found is not None
    assert found.drift == ""
    assert [p.name for p in found.pools] == ["gpu", "wse"]
    for pool in found.pools:
        assert sum(b.share for b in pool.memory) == pytest.approx(1.0)
    assert any("buys nothing" in m[4] for m in found.more)


def test_a_changed_model_is_admitted(result: Result) -> None:
    old = result.frontier.assign(cost_usd_per_h=result.frontier["cost_usd_per_h"] * 2)
    assert "Changed since the run" in page(dataclasses.replace(result, frontier=old))


def test_assumptions_name_device_files_and_estimates(tmp_path: Path, html: str) -> None:
    assert re.search(r"<strong>\d+</strong> of them are estimates", html)
    efficiency = {"compute": 0.5, "memory": 0.8, "fixed_layer_s": 1e-5}
    device = {
        "name": "toy", "kind": "gpu", "arrangement": "tensor", "peak_flop_s": {"bf16": 1e15},
        "memory_byte": 8e10, "memory_bandwidth_byte_s": 3e12, "node_size": 8,
        "link_byte_s": 4.5e11, "link_latency_s": 3e-6,
        "link_efficiency": 0.8, "scale_out_byte_s": 5e10, "scale_out_latency_s": 1e-5, "idle_w": 100.0,
        "full_w": 700.0, "host_w": 300.0, "rental_usd_per_h": 2.0, "capex_usd": 3e4,
        "efficiency": {"prefill": efficiency, "decode": efficiency},
    }  # fmt: skip
    import tomli_w

    (tmp_path / "toy.toml").write_text(tomli_w.dumps(device))
    raw = one_pool().envelope.model_dump(mode="json", exclude_unset=True)
    raw["pool"][0]["device"] = "toy.toml"
    text = page(run(Study.from_dict(raw, folder=tmp_path)))
    assert "toy.toml as its file gives it, in SI" in text
    assert "the device file gives no source" in text


def test_write_report_leaves_one_file(result: Result, tmp_path: Path) -> None:
    assert write_report(result, tmp_path / "report.html") == tmp_path / "report.html"
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]


def test_run_folder_comes_back_equal(result: Result, folder: Path) -> None:
    again = load_run(folder)
    pd.testing.assert_frame_equal(again.frontier, result.frontier)
    pd.testing.assert_frame_equal(again.candidates, result.candidates)
    assert again.info == json.loads(json.dumps(result.info))
    assert again.study.envelope.name == "small"
    assert page(again) == page(result)


def test_infeasible_run_folder_comes_back(tmp_path: Path) -> None:
    found = run(study(limits={"power_w": 100.0}))
    write_run(found, tmp_path)
    again = load_run(tmp_path)
    assert again.recommended is None
    assert (again.candidates["infeasible_reason"] != "").all()
    assert "No feasible design" in page(again)


def faults(folder: Path) -> tuple[str, ...]:
    with pytest.raises(InputError) as caught:
        load_run(folder)
    return caught.value.faults


def test_each_missing_file_is_one_sentence(folder: Path) -> None:
    for name in ("study.toml", "frontier.csv", "candidates.parquet", "run.json"):
        (folder / name).unlink()
    found = faults(folder)
    assert len(found) == 4
    assert found[1].startswith(f"{folder / 'frontier.csv'}: is missing")
    assert all("run the study again" in f for f in found)


def test_no_folder_and_no_directory(tmp_path: Path) -> None:
    assert "no such run folder" in faults(tmp_path / "nowhere")[0]
    (tmp_path / "file").write_text("")
    assert "is a file" in faults(tmp_path / "file")[0]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("frontier.csv", "", "is damaged"),
        ("frontier.csv", "design_id,nonsense\nd1,2\n", "is no result column"),
        ("candidates.parquet", "not parquet", "is damaged"),
        ("run.json", "{", "is damaged"),
        ("run.json", "[]", "must be an object"),
        ("run.json", "{}", "has no complete"),
        ("study.toml", "name = ", "not valid TOML"),
    ],
)
def test_damaged_files_are_named(folder: Path, name: str, text: str, said: str) -> None:
    (folder / name).write_text(text)
    assert any(f.startswith(str(folder / name)) and said in f for f in faults(folder))


def test_damaged_numbers_and_strange_runs_are_named(folder: Path) -> None:
    csv = folder / "frontier.csv"
    frame = pd.read_csv(csv, dtype="str", keep_default_na=False)
    frame.loc[0, "power_w"] = "12x"
    frame.loc[0, "feasible"] = "perhaps"
    frame.to_csv(csv, index=False)
    found = faults(folder)
    assert len(found) == 2
    assert any("[power_w]" in f and "12x" in f for f in found)
    assert any("'perhaps', must be True or False" in f for f in found)


def test_files_of_different_runs_are_refused(folder: Path) -> None:
    info = json.loads((folder / "run.json").read_text())
    info["recommended"]["design_id"] = "d0"
    (folder / "run.json").write_text(json.dumps(info))
    assert "different runs" in faults(folder)[0]
    info["recommended"]["position"] = 10_000
    (folder / "run.json").write_text(json.dumps(info))
    assert "recommends row 10000" in faults(folder)[0]
