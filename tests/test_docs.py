"""README and docs say what the program does: blocks run, studies and device files load, tables are complete."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest
from killing import BLANK_PAGE

from dse.catalog import load_device_file
from dse.columns import COLUMNS
from dse.jobs import Batch
from dse.paradigms import PARADIGMS
from dse.resolve import Study, known_keys

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
NOT_RUN = ("make ", "git clone", "cd ", "python3 -m venv", ".venv/", ". .venv/")
"""Lines of a shell block that build an environment; `make test` would run this test again."""
BLOCK = re.compile(r"^```(\w*)[ ]?([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """One fenced block: its language, what stands beside it (a file name), and its text."""

    language: str
    label: str
    text: str


def blocks(page: Path, *languages: str) -> list[Block]:
    found = [Block(*m.groups()) for m in BLOCK.finditer(page.read_text(encoding="utf-8"))]
    return [b for b in found if not languages or b.language in languages]


def runnable(text: str) -> str:
    """A shell block without the lines that set up an environment."""
    return "\n".join(line for line in text.splitlines() if not line.startswith(NOT_RUN))


def name_of(page: Path) -> str:
    return page.name


BRIEF_RUN = """
from dse import sensitivity
sensitivity.MOST_S = 0.3
"""
MAIN = """
from dse.cli import main
main()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder like a clone: the experiments."""
    shutil.copytree(ROOT / "experiments", tmp_path / "experiments", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def add_command(folder: Path, *, page: bool) -> None:
    """A command `dse` that is this program, but for runs that look into what-ifs briefly, and maybe draw no page."""
    command, program = folder / "bin" / "dse", folder / "bin" / "brief.py"
    command.parent.mkdir()
    lines = (BRIEF_RUN if page else BRIEF_RUN + BLANK_PAGE).strip().replace("\n", "\n    ")
    program.write_text(f"import sys\nif sys.argv[1:2] in (['run'], ['batch']):\n    {lines}\n{MAIN}", encoding="utf-8")
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{program}" "$@"\n', encoding="utf-8")
    command.chmod(0o755)


def run_in(folder: Path, *command: str) -> str:
    path = os.pathsep.join([str(folder / "bin"), os.environ.get("PATH", "")])
    modules = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    env = os.environ | {"PATH": path, "PYTHONPATH": modules}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def write_files(page: Path, folder: Path) -> None:
    """The files that a page shows, under the names beside their fences."""
    for block in blocks(page, "toml", "csv"):
        if block.label:
            (folder / block.label).write_text(block.text, encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_shell_and_python_blocks_run(page: Path, folder: Path) -> None:
    add_command(folder, page=page.name == "README.md")
    write_files(page, folder)
    previous = ""
    for block in blocks(page):
        if block.language == "sh" and runnable(block.text).strip():
            run_in(folder, "bash", "-euc", runnable(block.text))
        elif block.language == "python":
            previous = run_in(folder, sys.executable, "-c", block.text)
        elif block.language == "text" and not block.label and previous:
            assert block.text == previous, "the output shown is not what the block above prints"
            previous = ""


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_toml_blocks_are_studies_or_device_files(page: Path, tmp_path: Path) -> None:
    write_files(page, tmp_path)
    quickstart = tomllib.loads((ROOT / "experiments" / "quickstart.toml").read_text(encoding="utf-8"))
    for block in blocks(page, "toml"):
        raw = tomllib.loads(block.text)
        if "arrangement" in raw:
            load_device_file(tmp_path / block.label)
        elif "job" in raw:
            Batch.model_validate(raw)
        elif "paradigm" in raw:
            Study.load(tmp_path / block.label)
        else:  # part of a study
            Study.from_dict(quickstart | raw, folder=tmp_path)


@pytest.mark.slow
def test_demo_prints_what_the_pages_show(folder: Path) -> None:
    shown = [(page.name, b.text) for page in PAGES for b in blocks(page, "text") if b.label == "demo"]
    assert "README.md" in dict(shown)
    command = ("run", "experiments/quickstart.toml", "--out", "runs/quickstart")
    printed = run_in(folder, sys.executable, "-m", "dse", *command).splitlines()  # with all of its what-ifs

    def settled(line: str) -> str:
        return re.sub(r"\d+\.\d+ s,", "N s,", line).rstrip()

    whole = "\n" + "".join(settled(line) + "\n" for line in printed)
    stale = [
        f"{name}:\n{part}"
        for name, text in shown
        for part in re.split(r"^\.\.\.\n", text, flags=re.MULTILINE)
        if "\n" + "".join(settled(line) + "\n" for line in part.splitlines()) not in whole
    ]
    assert not stale, "shown without a gap, but not printed so by `make demo`:\n" + "\n".join(stale)


def test_every_result_column_is_documented_with_its_unit_and_meaning() -> None:
    text = (ROOT / "docs" / "reports.md").read_text(encoding="utf-8")
    rows = {
        m[1]: (m[2], m[3]) for m in re.finditer(r"^\| `([^`]+)` \| ([^|]+) \| [^|]+ \| (.+) \|$", text, re.MULTILINE)
    }
    assert {c.name: (c.unit or "-", c.meaning) for c in COLUMNS} == {
        name: row for name, row in rows.items() if name in {c.name for c in COLUMNS}
    }
    assert len(rows) >= len(COLUMNS)


def test_every_key_of_a_study_is_documented() -> None:
    text = (ROOT / "docs" / "studies.md").read_text(encoding="utf-8")
    for paradigm in PARADIGMS.values():
        keys = {key for table in known_keys(paradigm.study_type).values() for key in table}
        tables = {"workload", "pool", "link", "demand", "site", "objectives", "limits", "search", "compute", "slo"}
        lacking = [k for k in sorted(keys - tables) if not re.search(rf"\b{k}\b", text)]
        assert not lacking
        assert all(f"{t}]" in text for t in tables)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    text = BLOCK.sub("", page.read_text(encoding="utf-8"))
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path) if path else page
        assert file.exists(), target
        if anchor:
            heads = re.findall(r"^#+ (.+)$", BLOCK.sub("", file.read_text(encoding="utf-8")), re.MULTILINE)
            anchors = {re.sub(r"[^\w\- ]", "", h.lower()).strip().replace(" ", "-") for h in heads}
            assert anchor in anchors, target


def test_one_version_everywhere() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    assert f"## [{version}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


def test_architecture_lists_every_module_of_the_physics() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    modules = {p.name for p in (ROOT / "dse" / "model").glob("*.py")} - {"__init__.py"}
    (section,) = re.findall(r"^## The modules of the physics$(.*?)^## ", text, re.MULTILINE | re.DOTALL)
    assert set(re.findall(r"\w+\.py", section)) == modules


def test_every_example_study_is_named() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    examples = [p.name for p in (ROOT / "experiments").iterdir() if p.suffix in (".toml", ".csv")]
    assert [name for name in examples if name not in text] == []
