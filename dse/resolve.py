"""A study file becomes a study in numbers: envelope and paradigm part validated together."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from dse.errors import InputError, unknown_name
from dse.paradigms import PARADIGMS, Paradigm
from dse.study import Envelope
from dse.validation import faults_of, read_toml
from search_spaces.space import Space


@dataclass(frozen=True, kw_only=True)
class Study:
    """A study whose every name has become a number."""

    envelope: Envelope
    problem: Any
    """The paradigm's own numbers."""
    space: Space
    paradigm: Paradigm
    folder: Path
    """Where the paths in the study start."""

    @classmethod
    def load(cls, path: str | Path) -> Study:
        """Reads and resolves a study file; InputError with every fault."""
        file = Path(path)
        return cls.from_dict(read_toml(file), folder=file.parent, file=str(path))

    @classmethod
    def from_dict(cls, raw: Mapping[str, object], *, folder: Path | str = ".", file: str = "study") -> Study:
        """Resolves a study given as nested tables."""
        name = raw.get("paradigm")
        if not isinstance(name, str) or name not in PARADIGMS:
            if name is None:
                fault = f"{file} [paradigm]: is missing; there are: {', '.join(PARADIGMS)}"
            else:
                fault = unknown_name(f"{file} [paradigm]", "paradigm", str(name), PARADIGMS)
            raise InputError([fault, *_envelope_faults(raw, file)])
        paradigm = PARADIGMS[name]
        envelope = _validate(paradigm, raw, Path(folder), file)
        problem = paradigm.resolve(envelope, Path(folder))
        try:
            space = paradigm.space(problem)
        except InputError as error:
            raise InputError([f"{file}: {fault}" for fault in error.faults]) from None
        return cls(envelope=envelope, problem=problem, space=space, paradigm=paradigm, folder=Path(folder))

    def portable(self) -> tuple[dict[str, Any], dict[str, Path]]:
        """The study as plain tables that stand alone in another folder, and the files it needs there."""
        return self.paradigm.portable(self.envelope, self.problem, self.folder)

    def changed(self, values: Mapping[str, object]) -> Study:
        """The study with other values at these dotted keys (`limits.power_w`); None drops a key.

        Its questions are about the study as it is written: they go where more is changed than how it is explored.
        """
        raw = self.envelope.model_dump(mode="json", exclude_unset=True)
        if not all(key.startswith(("search", "compute")) for key in values):
            raw.pop("question", None)
        for key, value in values.items():
            *path, name = key.split(".")
            tables = [raw]
            for part in path:
                tables.append(tables[-1].setdefault(part, {}))
            tables[-1][name] = value
            if value is None:
                _drop(tables, [*path, name])
        return Study.from_dict(raw, folder=self.folder, file=self.name)

    @property
    def traffic(self) -> dict[str, Any] | None:
        """Facts of the trace that the requests were cut from; None where there is none."""
        found = getattr(self.problem, "traffic", None)
        return None if found is None else asdict(found)

    @property
    def name(self) -> str:
        """The study's name."""
        return self.envelope.name


def _drop(tables: list[dict[str, Any]], keys: list[str]) -> None:
    """Removes the last key, and the tables on the way to it that this leaves empty."""
    for table, key in zip(reversed(tables), reversed(keys), strict=True):
        del table[key]
        if table:
            return


def _envelope_faults(raw: Mapping[str, object], file: str) -> list[str]:
    """Faults of what every study has; the paradigm's own part cannot be judged without knowing it."""
    known = {key: value for key, value in raw.items() if key in Envelope.model_fields and key != "paradigm"}
    try:
        Envelope.model_validate({**known, "paradigm": "unknown"})
    except ValidationError as error:
        return faults_of(error, file, known_keys(Envelope))
    return []


def _validate(paradigm: Paradigm, raw: Mapping[str, object], folder: Path, file: str) -> Envelope:
    try:
        return paradigm.study_type.model_validate(dict(raw), context={"folder": folder})
    except ValidationError as error:
        raise InputError(faults_of(error, file, known_keys(paradigm.study_type))) from None


def known_keys(model: type[BaseModel]) -> dict[str, list[str]]:
    """Path of each table of a study -> the keys it may have."""
    schema = model.model_json_schema()
    definitions = schema.get("$defs", {})
    found: dict[str, list[str]] = {}

    def walk(node: Mapping[str, Any], path: str) -> None:
        if "$ref" in node:
            node = definitions[node["$ref"].rsplit("/", 1)[1]]
        for option in node.get("anyOf", []):
            walk(option, path)
        if "items" in node:
            walk(node["items"], path)
        if "properties" in node:
            found.setdefault(path, []).extend(node["properties"])
            for key, value in node["properties"].items():
                walk(value, f"{path}.{key}" if path else key)

    walk(schema, "")
    return found


def json_schema() -> str:
    """JSON Schema of a study file, all paradigms."""
    parts = {name: p.study_type.model_json_schema() for name, p in PARADIGMS.items()}
    definitions: dict[str, Any] = {}
    for part in parts.values():
        definitions |= part.pop("$defs", {})
    whole = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "heterodse study",
        "oneOf": list(parts.values()),
        "$defs": definitions,
    }
    return json.dumps(whole, indent=2)
