"""What a script imports."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from dse import explore
from dse.catalog import load_catalog
from dse.resolve import Study
from dse.run_folder import write_run
from dse.scoring import explain
from dse.uncertainty import score

__all__ = ["Result", "Study", "explain", "load_catalog", "run", "score", "write_run"]


@dataclass(frozen=True, kw_only=True)
class Result(explore.Result):
    """A run, with its report."""

    def report(self, path: str | Path) -> Path:
        """Writes the HTML report; returns where it is."""
        from dse.report import write_report

        return write_report(self, Path(path))


def run(study: Study, **options: Any) -> Result:
    """Explores a study; options are those of `dse.explore.run` (method, workers, report, stop).

    Raises MethodError where a method cannot answer the study exactly, SelfCheckError where a plan scores
    differently twice.
    """
    found = explore.run(study, **options)
    return Result(**{f.name: getattr(found, f.name) for f in fields(found)})
