"""A run's folder from end to end: files, page, and, once all of it is there, no checkpoint any more."""

from __future__ import annotations

from pathlib import Path

from dse.checkpoint import clear
from dse.explore import CHECKPOINT, Result
from dse.report.page import write_report
from dse.run_folder import write_run


def write_whole_run(result: Result, folder: Path) -> Path:
    """Writes the run folder and its page, and returns the page; a complete run leaves no checkpoint."""
    write_run(result, folder)
    page = write_report(result, folder / "report.html")
    if result.complete:
        clear(folder / CHECKPOINT)
    return page
