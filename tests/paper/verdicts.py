"""What the tests of all figures check: which statements pass is pinned, so that a change in the model shows."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from experiments.paper.statement import Statement

PAGE = (Path(__file__).parents[2] / "docs" / "paper.md").read_text(encoding="utf-8")


def verdict(found: list[Statement], part: str) -> bool:
    (one,) = [s for s in found if part in s.statement]
    return one.passes


def on_page(statement: str, passes: bool, value: str, paper: str) -> bool:
    """Whether docs/paper.md has the statement with verdict and numbers; its tables are those of `dse paper --json`."""
    return f"\n| {'pass' if passes else 'differs'} | {statement} | {value} | {paper} |" in PAGE


def check_statements(name: str, found: list[Statement], n: int, differs: set[str]) -> None:
    assert {s.figure for s in found} == {name}
    assert (len(found), {s.statement for s in found if not s.passes}) == (n, differs), name
    assert len({s.statement for s in found}) == len(found)
    assert all(on_page(s.statement, s.passes, s.value, s.paper) for s in found)
    assert all(s.value and s.paper and "nan" not in s.value and "inf " not in s.value for s in found)


def check_files(folder: Path, name: str, n_rows: int) -> pd.DataFrame:
    """The data of a figure, which are complete; its pictures are pictures."""
    data = pd.read_csv(folder / f"{name}.csv")
    assert len(data) == n_rows
    assert not data.drop(columns="paper_gb_s", errors="ignore").isna().any().any()
    assert (folder / f"{name}.svg").read_text(encoding="utf-8").startswith("<svg")
    assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    return data
