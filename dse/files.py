"""Files that are whole or not there: written beside, then renamed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Where to write what becomes `path` once it is written; an error leaves `path` as it was."""
    beside = path.with_name(f".{path.name}.new")
    yield beside
    beside.replace(path)


def write_whole(path: Path, text: str) -> None:
    """Writes a text file in UTF-8."""
    with whole(path) as beside:
        beside.write_text(text, encoding="utf-8")
