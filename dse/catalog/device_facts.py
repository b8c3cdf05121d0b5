"""The numbers of a device file as catalogue rows, so that a report shows them with their sources too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from dse.catalog.loader import Fact, Grade
from dse.validation import read_toml

UNSOURCED = "the device file gives no source"


def device_file_facts(path: Path) -> list[Fact]:
    """One row a number of a (valid) device file, in its own units (SI); without a source the grade is D."""
    raw = read_toml(path)
    sources = cast("Mapping[str, Any]", raw.get("source", raw.get("sources", {})))
    facts = []
    for key, value in _leaves({k: v for k, v in raw.items() if k not in ("source", "sources", "name")}):
        given = sources.get(key, UNSOURCED)
        source = given if isinstance(given, Mapping) else {"text": str(given)}
        facts.append(
            Fact(
                table="devices",
                name=str(raw["name"]),
                profile="",
                phase="",
                dtype="",
                parameter=key,
                value=f"{value:g}" if isinstance(value, float) else str(value),
                unit="1",
                low="",
                high="",
                source=str(source.get("text", UNSOURCED)),
                date=str(source.get("date", "")),
                grade=cast("Grade", source.get("grade", "D")),
            )
        )
    return facts


def file_sources(path: Path) -> dict[str, dict[str, str]]:
    """The source of every key that a (valid) device file gives one for."""
    raw = read_toml(path)
    given = cast("Mapping[str, Any]", raw.get("source", raw.get("sources", {})))
    return {key: dict(s) if isinstance(s, Mapping) else {"text": str(s)} for key, s in given.items()}


def _leaves(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
