"""`dse paper`: statements for people and for machines, where files go, names that nothing carries."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


def dse(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dse", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.slow
def test_json_is_a_list_of_statements_and_the_default_folder_is_runs_paper(tmp_path: Path) -> None:
    done = dse("paper", "fig7", "table3", "fig7", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert [r["figure"] for r in rows] == ["fig7"] * 6 + ["table3"] * 9
    for row in rows:
        assert set(row) == {"figure", "statement", "pass", "value", "paper"}
        assert isinstance(row["pass"], bool)
    assert len(list((tmp_path / "runs" / "paper").iterdir())) == 6


@pytest.mark.slow
def test_the_table_has_the_papers_number_beside_ours(tmp_path: Path) -> None:
    done = dse("paper", "table3", "--out", tmp_path / "here", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "6.55 GB/s" in done.stdout
    assert "differs" in done.stdout
    assert "5 of 9 statements pass, 4 differ" in done.stdout
    assert (tmp_path / "here" / "table3.png").exists()
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_a_wrong_name_or_folder_stops_before_any_work(tmp_path: Path) -> None:
    done = dse("paper", "fig7", "tabel3", "fig99x", cwd=tmp_path)
    assert done.returncode == 2
    assert "no figure named 'tabel3'; did you mean table3?" in done.stderr
    assert "fig99x" in done.stderr
    (tmp_path / "taken").write_text("")
    done = dse("paper", "fig7", "--out", "taken", cwd=tmp_path)
    assert done.returncode == 2
    assert "is a file" in done.stderr
    assert list(tmp_path.iterdir()) == [tmp_path / "taken"]
