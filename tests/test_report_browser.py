"""The page in a real browser: opened from disk without network, its views linked, usable by keyboard, readable."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, sync_playwright

from dse.compare import compare
from dse.explore import Result, run, with_answers, with_what_if
from dse.progress import Stop
from dse.report import write_report
from dse.report.compare import write_comparison
from dse.report.frontier_rows import distinct_rows
from dse.resolve import Study

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt install chromium, or set CHROMIUM")

HOSTILE = "<script>document.title='broken'</script>"
CHAT = {"name": "chat", "share": 1.0, "input_tokens": 1024, "output_tokens": 256}
AT_ONCE = 200
"""Rows of the table at most."""


def explored(**changes: Any) -> Result:
    raw: dict[str, Any] = {
        "name": HOSTILE,
        "paradigm": "pd_serving",
        "workload": {"model": "llama-2-7b", "requests": [CHAT]},
        "pool": [
            {"device": "a100-40gb-sxm", "name": "gpu", "count": {"min": 0, "max": 64, "step": 4}},
            {"device": "wse-3", "name": "wse", "count": {"min": 0, "max": 3}},
        ],
        "link": {"bandwidth_gb_s": [25, 100, 400]},
        "limits": {"cost_usd_per_h": 250, "power_w": 9e4},
    }
    return run(Study.from_dict(raw | changes))


@pytest.fixture(scope="module")
def result() -> Result:
    asked = {"ask": ["cheapest_for_demand", "hybrid_against_homogeneous"], "demand_requests_s": 100}
    return with_answers(with_what_if(explored(question=asked), Stop()), Stop())


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def file(result: Result, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(result, tmp_path_factory.mktemp("page") / "report.html")


@pytest.fixture(scope="module")
def comparison(result: Result, tmp_path_factory: pytest.TempPathFactory) -> Path:
    tighter = explored(limits={"cost_usd_per_h": 250, "power_w": 6e4})
    found = compare({"now": result, "tighter": tighter})
    return write_comparison(found, tmp_path_factory.mktemp("comparison") / "comparison.html")


def opened(browser: Browser, file: Path, **options: Any) -> tuple[Page, list[str]]:
    """The page without network, and what went wrong in it: errors, and requests for anything but itself."""
    context = browser.new_context(offline=True, reduced_motion="reduce", **options)
    page, wrong = context.new_page(), list[str]()
    page.on("console", lambda m: wrong.append(m.text) if m.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda r: wrong.append(r.url) if not r.url.startswith(("file:", "data:", "blob:")) else None)
    page.goto(file.as_uri())
    page.wait_for_selector("#charts svg.marks")
    return page, wrong


def rows_of(page: Page) -> list[int]:
    return [
        int(n) for n in page.eval_on_selector_all("table.frontier tbody tr", "rows => rows.map(r => r.dataset.row)")
    ]


def column_of(page: Page, k: int) -> list[str]:
    found = page.eval_on_selector_all("table.frontier tbody tr", f"rows => rows.map(r => r.children[{k}].innerText)")
    return [str(text) for text in found]


def brush(page: Page, left: float, right: float) -> None:
    """Drags over the first plane, between two shares of its points' width."""
    points = page.locator("#charts g[class*=plane]").first
    points.scroll_into_view_if_needed()
    box = points.bounding_box()
    assert box is not None
    x, width, top, bottom = box["x"], box["width"], box["y"] - 4, box["y"] + box["height"] + 2
    page.mouse.move(x + left * width, top)
    page.mouse.down()
    page.mouse.move(x + right * width, bottom, steps=6)
    page.mouse.up()
    page.wait_for_function("document.getElementById('picked-rows').textContent !== ''")


@pytest.mark.parametrize("width", [1440, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_opens_from_disk_without_network_and_is_readable(
    browser: Browser, file: Path, width: int, scheme: str
) -> None:
    page, wrong = opened(browser, file, viewport={"width": width, "height": 900}, color_scheme=scheme)
    page.wait_for_selector("#why-charts svg.marks")
    page.wait_for_selector("#tornado svg.marks")
    assert wrong == []
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    found = Axe().run(page, options={"resultTypes": ["violations"]})
    page.context.close()
    told = [(v["id"], [n["html"][:160] for n in v["nodes"]][:3]) for v in found.response["violations"]]
    assert told == []


def test_a_hostile_name_stays_text(browser: Browser, file: Path) -> None:
    page, _ = opened(browser, file)
    assert page.locator("h1").inner_text() == HOSTILE
    assert page.title().startswith(HOSTILE)
    page.context.close()


def test_answers_are_drawn_each_in_its_place(browser: Browser, file: Path) -> None:
    page, wrong = opened(browser, file)
    page.wait_for_selector("#question-1-1 svg.marks")
    assert page.locator("#questions .planes svg.marks").count() == 3
    page.set_viewport_size({"width": 390, "height": 800})
    page.wait_for_timeout(600)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert not wrong


def test_brushing_filters_the_table(browser: Browser, file: Path, result: Result) -> None:
    page, wrong = opened(browser, file, viewport={"width": 1440, "height": 900})
    before = rows_of(page)
    brush(page, 0.25, 0.6)
    picked = rows_of(page)
    assert 0 < len(picked) < len(before)
    assert set(picked) < set(before)
    said = page.locator("#picked-rows").inner_text()
    assert said.startswith(f"{len(picked)} picked")
    heads = page.eval_on_selector_all("table.frontier thead th", "heads => heads.map(h => h.innerText)")
    costs = [float(text.replace(",", "")) for text in column_of(page, heads.index("USD/h"))]
    every = distinct_rows(result.frontier, result.study.envelope.objectives.names, 0).frame["cost_usd_per_h"].round(2)
    between = every[(min(costs) * 0.999 <= every) & (every <= max(costs) * 1.001)]  # four figures are printed
    assert len(between) == len(picked)
    assert every.min() < min(costs) < max(costs) < every.max()
    page.locator("#charts g[class*=plane]").first.dblclick(force=True)
    page.wait_for_function("document.getElementById('picked-rows').textContent === ''")
    assert rows_of(page) == before
    assert wrong == []
    page.context.close()


def test_a_click_on_a_point_explains_it(browser: Browser, file: Path) -> None:
    page, wrong = opened(browser, file, viewport={"width": 1440, "height": 900})
    page.locator("#charts g[class*=plane] path").first.click()
    page.wait_for_function("document.querySelector('.panel').hidden")
    row = page.locator("#design").input_value()
    assert page.locator(".panel:not([hidden])").get_attribute("data-row") == row
    assert page.locator(".panel:not([hidden])").count() == 1
    assert wrong == []
    page.context.close()


def test_the_keyboard_reaches_the_recommended_design_and_the_others(browser: Browser, file: Path) -> None:
    page, wrong = opened(browser, file)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    first = page.locator("#result .buy").inner_text()
    assert page.evaluate("location.hash") == "#main"
    page.locator("#design").focus()
    assert page.locator("#design option").first.inner_text().startswith("recommended: ")
    assert page.locator(".panel:not([hidden]) .chosen").inner_text().startswith(first)
    page.keyboard.press("ArrowDown")
    page.wait_for_function("document.querySelector('.panel').hidden")
    assert page.locator(".panel:not([hidden])").count() == 1
    button = page.locator("table.frontier tr.pick button.see")
    button.focus()
    page.keyboard.press("Enter")
    page.wait_for_function("!document.querySelector('.panel').hidden")
    assert page.evaluate("document.activeElement.id") == "design"
    assert wrong == []
    page.context.close()


@pytest.mark.parametrize("width", [1440, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_comparison_opens_and_is_readable_too(browser: Browser, comparison: Path, width: int, scheme: str) -> None:
    page, wrong = opened(browser, comparison, viewport={"width": width, "height": 900}, color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    found = Axe().run(page, options={"resultTypes": ["violations"]})
    page.context.close()
    assert [(v["id"], [n["html"][:160] for n in v["nodes"]][:3]) for v in found.response["violations"]] == []
    assert wrong == []


def test_print_shows_everything(browser: Browser, file: Path) -> None:
    page, _ = opened(browser, file)
    page.emulate_media(media="print")
    assert page.locator("#table").is_visible()
    assert len(page.pdf(format="A4")) > 50_000
    page.context.close()


def test_a_frontier_of_ten_thousand_rows_stays_usable(browser: Browser, result: Result, tmp_path: Path) -> None:
    copies = -(-10_000 // len(result.frontier))
    long = pd.concat([result.frontier] * copies, ignore_index=True).head(10_000)
    stretch = 1 + np.arange(len(long)) * 1e-5
    long["cost_usd_per_h"] *= stretch
    long["throughput_tok_s"] *= stretch
    file = write_report(dataclasses.replace(result, frontier=long), tmp_path / "long.html")
    assert file.stat().st_size < 8_000_000
    page, wrong = opened(browser, file, viewport={"width": 1440, "height": 900})
    assert len(rows_of(page)) <= AT_ONCE
    brush(page, 0.3, 0.5)
    said = page.locator("#picked-rows").inner_text()
    counted = re.match(r"([\d,]+) picked in the chart; (\d+) of them are shown", said)
    assert counted
    assert int(counted[1].replace(",", "")) > AT_ONCE
    assert len(rows_of(page)) == int(counted[2]) <= AT_ONCE
    assert wrong == []
    page.context.close()
