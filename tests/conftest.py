"""Small studies that many tests use."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

CHAT = {"name": "chat", "share": 1.0, "input_tokens": 1024, "output_tokens": 256}


def small_study(**changes: Any) -> dict[str, Any]:
    """A100 + WSE-3 on Llama-2-7B; `changes` replace whole top-level tables."""
    study: dict[str, Any] = {
        "name": "small",
        "paradigm": "pd_serving",
        "workload": {"model": "llama-2-7b", "requests": [dict(CHAT)]},
        "pool": [
            {"device": "a100-40gb-sxm", "name": "gpu", "count": {"min": 0, "max": 24, "step": 4}},
            {"device": "wse-3", "name": "wse", "count": {"min": 0, "max": 3}},
        ],
        "link": {"bandwidth_gb_s": [25, 100, 400]},
    }
    return copy.deepcopy(study | changes)


@pytest.fixture
def small() -> dict[str, Any]:
    """The small study as tables."""
    return small_study()


@pytest.fixture(autouse=True)
def short_what_if(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs by the command look into what-ifs and questions briefly; tests of them ask for what they need."""
    monkeypatch.setattr("dse.sensitivity.MOST_S", 0.3)
    monkeypatch.setattr("dse.questions.MOST_S", 20.0)


@pytest.fixture
def blank_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of this process write a blank page as large as a small run's: drawing it takes most of their time."""

    def write(_: object, path: Path) -> Path:
        path.write_text(" " * 400_000, encoding="utf-8")
        return path

    monkeypatch.setattr("dse.report.folder.write_report", write)


LONG = (
    "test_kills.py",
    "test_docs.py",
    "test_batch.py",
    "test_run.py",
    "test_report_browser.py",
)
"""Files of the longest tests. They start first, so that no process is left with one of them at the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The files of long tests first; within a file, and among the others, the order stays."""
    rank = {name: i for i, name in enumerate(LONG)}
    items.sort(key=lambda item: rank.get(item.path.name, len(LONG)))
