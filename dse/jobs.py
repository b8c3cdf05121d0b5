"""The jobs file of `dse batch`: studies and what is swept over them, as a flat list of jobs with names that last.

A job is a study file with values put at some keys. Its identifier is the study's name and a hash of those values: it
does not move when jobs are added, reordered or taken away.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, ValidationError

from dse.errors import InputError
from dse.resolve import Study, known_keys
from dse.study import Part, Positive
from dse.validation import faults_of, read_toml

RESERVED = ("batch.json", "summary.csv", "summary.parquet")
"""Files of a batch beside its jobs' folders."""
LONGEST_NAME_BYTE = 200
"""File systems take 255, and a hash and a file beside it need some."""
MOST_JOBS = 10_000
"""More is a mistake in a sweep: each job is a run with a folder of its own."""


def _values(value: object) -> object:
    if isinstance(value, list):
        if not value:
            raise ValueError("a swept key needs at least one value")
        shown = [json.dumps(v, sort_keys=True, default=str) for v in value]
        twice = sorted({text for text in shown if shown.count(text) > 1})
        if twice:
            raise ValueError(f"{', '.join(twice)} is listed twice; list each value once")
        return tuple(value)
    raise ValueError(f"got {value!r}; give a list of values to sweep")


Values = Annotated[tuple[Any, ...], BeforeValidator(_values)]


class JobEntry(Part):
    """One `[[job]]`: a study, and keys to sweep; their product is run."""

    study: Annotated[str, Field(min_length=1)]
    """Path from the jobs file."""
    sweep: Annotated[dict[str, Values], Field(default_factory=dict)]
    """Dotted key of the study -> values; `pool.0.device` is a key of the first pool."""


class Batch(Part):
    """A jobs file."""

    name: Annotated[str, Field(min_length=1, max_length=200)]
    out: Annotated[str, Field(min_length=1)] | None = None
    """Folder of all runs, from the jobs file; default runs/<name> where the command is called."""
    time_limit_s: Positive | None = None
    """Of each job, instead of its study's own."""
    max_disk_gb: Positive | None = None
    """The folder may hold this much before another job starts."""
    workers: Annotated[int, Field(ge=1, le=4096)] | None = None
    """Of each job, instead of its study's own."""
    job: Annotated[
        tuple[JobEntry, ...], Field(min_length=1), BeforeValidator(lambda v: tuple(v) if isinstance(v, list) else v)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One study to run."""

    name: str
    """Stable, and that of its folder."""
    study: Path
    changes: Mapping[str, Any]
    """Dotted key -> value."""

    def load(self) -> Study:
        """The study with its changes; InputError with every fault."""
        raw = copy.deepcopy(read_toml(self.study))
        faults = [fault for key, value in self.changes.items() if (fault := _put(raw, key, value))]
        if faults:
            raise InputError([f"{self.study} {fault}" for fault in faults])
        return Study.from_dict(raw, folder=self.study.parent, file=str(self.study))


def _put(raw: dict[str, Any], key: str, value: object) -> str:
    """Puts a value at a dotted key; what is wrong with the key, if anything."""
    table: Any = raw
    *path, last = key.split(".")
    for part in path:
        if isinstance(table, list):
            if not part.isdigit() or int(part) >= len(table):
                return f"[{key}]: {part!r} is no position in a list of {len(table)}; they count from 0"
            table = table[int(part)]
        elif isinstance(table, dict):
            table = table.setdefault(part, {})
    if isinstance(table, list) and last.isdigit() and int(last) < len(table):
        table[int(last)] = copy.deepcopy(value)
    elif isinstance(table, dict):
        table[last] = copy.deepcopy(value)
    else:
        return f"[{key}]: there is no table to hold {last!r}"
    return ""


def read_jobs(path: Path) -> tuple[Batch, list[Job]]:
    """The jobs file and its jobs, in its order; InputError with every fault of the file itself.

    A study that is wrong in itself is found when its job runs, and stops no other.
    """
    try:
        batch = Batch.model_validate(read_toml(path))
    except ValidationError as error:
        raise InputError(faults_of(error, str(path), known_keys(Batch))) from None
    jobs: dict[str, Job] = {}
    faults: list[str] = []
    for position, entry in enumerate(batch.job):
        where = f"{path} [job[{position}]"
        study = path.parent / entry.study
        inner = [(a, b) for a, b in itertools.permutations(entry.sweep, 2) if b.startswith(f"{a}.")]
        if inner:
            faults.append(f"{where}.sweep]: {inner[0][1]} is part of {inner[0][0]}; sweep one of them")
        elif not study.is_file():
            faults.append(f"{where}.study]: {study}: no such file; paths start at the jobs file")
        elif len(jobs) + math.prod(len(values) for values in entry.sweep.values()) > MOST_JOBS:
            faults.append(f"{where}.sweep]: more than {MOST_JOBS:,} jobs in all; sweep fewer values")
        else:
            faults += [f"{where}]: {fault}" for fault in _expand(entry, study, jobs)]
    if faults:
        raise InputError(faults)
    return batch, list(jobs.values())


def _expand(entry: JobEntry, study: Path, jobs: dict[str, Job]) -> list[str]:
    """Adds the jobs of one entry; what is wrong with them."""
    title, faults = _title(study), []
    for values in itertools.product(*entry.sweep.values()):
        job = Job(
            name=job_name(title, changes := dict(zip(entry.sweep, values, strict=True))), study=study, changes=changes
        )
        other = jobs.setdefault(job.name, job)
        if other is job:
            continue
        if other.study.resolve() == study.resolve():
            faults.append(f"{job.name} is listed twice; list each job once")
        else:
            faults.append(f"{other.study} and {study} are both named {title!r}; rename one")
            break
    return faults


def _title(study: Path) -> str:
    """The study's name; that of its file where it does not say one."""
    try:
        name = read_toml(study).get("name")
    except InputError:
        name = None
    return name if isinstance(name, str) and name else study.stem


def job_name(title: str, changes: Mapping[str, Any]) -> str:
    """A study's name and a hash of what is changed, whatever the order of the keys.

    >>> job_name("chat 7b", {}), job_name("chat 7b", {"limits.power_w": 1e5})
    ('chat-7b', 'chat-7b-113a5332')
    """
    if not changes:
        return folder_name(title)
    text = json.dumps(dict(sorted(changes.items())), sort_keys=True, default=str)
    return f"{folder_name(title)}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def folder_name(name: str) -> str:
    """A study's name as that of a folder.

    >>> folder_name("a/b c"), folder_name("...")
    ('a-b-c', 'study')
    """
    text = "".join(c if c.isalnum() or c in "-_." else "-" for c in name).strip("-.")
    text = text.encode()[:LONGEST_NAME_BYTE].decode(errors="ignore") or "study"
    return f"{text}-study" if text in RESERVED else text
