"""What a long run has found so far, on disk, so that a run that was stopped or killed goes on where it was.

A checkpoint is one file: what the run is of (study, method, versions, code), and the explorer's own state. It is
written beside and renamed, so that a kill at any moment leaves the one before. A state is a flat dict of NumPy arrays
and plain JSON values; numbers come back bit for bit.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from dse.errors import InputError
from dse.files import whole

EVERY_S = 5.0
"""Between two saves [s]: at most this much work is done again after a kill."""
SHARE = 0.02
"""Saving may take this share of a run's time; a save that takes long makes the next one wait."""
FILE = "state.npz"
FORMAT = 1
CODE = ("dse", "formulations", "search_spaces")
"""Packages whose text decides what a run finds."""

State = dict[str, Any]


@dataclass(slots=True)
class Checkpoint:
    """One run's place on disk; an explorer loads it once, saves when it is due, and saves last when it is stopped."""

    folder: Path
    identity: Mapping[str, Any]
    """What the run is of; a checkpoint of something else is refused."""
    resume: bool = False
    """Whether what is there is continued; else it is dropped with the first save."""
    spent_s: float = 0.0
    """Time of the sittings before this one [s]."""
    _begun_s: float = field(default_factory=time.monotonic)
    _saved_s: float = field(default_factory=time.monotonic)
    _pause_s: float = field(default_factory=lambda: EVERY_S)

    @property
    def path(self) -> Path:
        """The file."""
        return self.folder / FILE

    def load(self) -> State | None:
        """The state to go on from; None where there is none or it is not wanted. InputError if it is another run's."""
        if self.folder.exists() and not self.folder.is_dir():
            raise InputError(f"{self.folder}: is a file, and the checkpoint's folder; take it away")
        if not self.resume:
            self.clear()
        if not self.path.exists():
            return None
        header, state = _read(self.path)
        differences = _differences(header["identity"], _plain(self.identity))
        if differences:
            raise InputError(
                f"--resume: {self.folder} is the checkpoint of another run: {'; '.join(differences)}; "
                "undo the change, or run without --resume to start over"
            )
        self.spent_s = float(header["spent_s"])
        return state

    def due(self) -> bool:
        """Whether enough time has passed since the last save."""
        return time.monotonic() - self._saved_s >= self._pause_s

    def save(self, state: State) -> None:
        """Puts a state in the place of the last one."""
        started = time.monotonic()
        arrays = {name: value for name, value in state.items() if isinstance(value, np.ndarray)}
        header = {
            "format": FORMAT,
            "identity": self.identity,
            "spent_s": self.spent_s + started - self._begun_s,
            "values": {name: value for name, value in state.items() if name not in arrays},
            "arrays": list(arrays),
        }
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with whole(self.path) as beside, beside.open("wb") as file:
                np.savez_compressed(file, np.array(json.dumps(header)), *arrays.values())
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise InputError(f"{self.folder}: the checkpoint cannot be written: {error.strerror}") from None
        self._saved_s = time.monotonic()
        self._pause_s = max(EVERY_S, (self._saved_s - started) / SHARE)

    def clear(self) -> None:
        """Removes it: the run is complete, or starts over."""
        clear(self.folder)


def is_own(path: Path) -> bool:
    """Whether a file of a checkpoint's folder is the checkpoint's."""
    return path.name in {FILE, f".{FILE}.new"}


def clear(folder: Path) -> None:
    """Removes a checkpoint, and its folder unless others have put something there."""
    if not folder.is_dir():
        return
    for path in filter(is_own, list(folder.iterdir())):
        path.unlink()
    if not any(folder.iterdir()):
        folder.rmdir()


def _read(path: Path) -> tuple[dict[str, Any], State]:
    """Header and state; InputError for what no run has written."""
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            header = json.loads(str(file["arr_0"]))
            arrays = {name: file[f"arr_{position}"] for position, name in enumerate(header["arrays"], start=1)}
        if header["format"] != FORMAT:
            raise ValueError(f"format {header['format']}, this version reads {FORMAT}")
        return header, {**header["values"], **arrays}
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
        what = str(error).strip().split("\n")[0]
        raise InputError(f"--resume: {path} is damaged ({what}); run without --resume to start over") from None


def _plain(value: Any) -> Any:
    """As JSON gives it back: tuples are lists."""
    return json.loads(json.dumps(value))


def _differences(there: Mapping[str, Any], here: Mapping[str, Any], path: str = "") -> list[str]:
    """Which keys differ, by their dotted path."""
    found: list[str] = []
    for key in dict.fromkeys((*there, *here)):
        old, new = there.get(key), here.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            found += _differences(old, new, f"{path}{key}.")
        elif old != new:
            found.append(f"{path}{key} was {_shown(old)}, is {_shown(new)}")
    return found


def _shown(value: object) -> str:
    if value is None:
        return "not given"
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def identity_of(
    tables: Mapping[str, Any], files: Mapping[str, Path], method: str, versions: Mapping[str, str]
) -> dict[str, Any]:
    """What decides a run's result: not how long it may take, nor how many workers it has."""
    study = {key: value for key, value in tables.items() if key != "compute"}
    if "search" in study:
        study["search"] = {
            key: value for key, value in study["search"].items() if key not in {"time_limit_s", "method"}
        }
    return {
        "method": method,
        "study": study,
        "files": {name: hashlib.sha256(path.read_bytes()).hexdigest()[:16] for name, path in sorted(files.items())},
        "versions": dict(versions),
        "program": _program(),
    }


@cache
def _program() -> str:
    """A hash of this program's text and catalogue: a number mended between two sittings must not be mixed in."""
    root = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for package in CODE:
        for path in sorted((root / package).rglob("*")):
            if path.suffix in {".py", ".csv"}:
                digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]
