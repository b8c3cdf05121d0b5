"""A run folder back into a Result, so that a report can be rebuilt; all its faults in one error."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
import pandas as pd

from dse.columns import WHOLE_UNITS, column
from dse.errors import InputError
from dse.explore import Result
from dse.report.rows import Row
from dse.resolve import Study

FLAGS: Final = ("feasible", "on_front")
WHOLE: Final = re.compile(r"-?\d+")
"""How a column of whole numbers is written; means of counts have a point, and what is missing is empty."""
INFO_KEYS: Final = (
    "complete", "stopped", "method", "method_reason", "proof", "seed", "workers", "designs_in_grid",
    "candidates", "candidates_per_s", "wall_s", "versions",
)  # fmt: skip
AGAIN: Final = "run the study again with --out, which writes the whole folder"

T = TypeVar("T")


def load_run(folder: Path) -> Result:
    """Reads study.toml, frontier.csv, candidates.parquet and run.json; InputError with every fault."""
    if not folder.exists():
        raise InputError(f"{folder}: no such run folder; `dse run STUDY.toml --out {folder}` makes one")
    if not folder.is_dir():
        raise InputError(f"{folder}: is a file; give the folder that `dse run --out` wrote")
    faults: list[str] = []
    study = _part(folder / "study.toml", Study.load, faults)
    frontier = _part(folder / "frontier.csv", read_frontier, faults)
    candidates = _part(folder / "candidates.parquet", read_candidates, faults)
    info = _part(folder / "run.json", read_info, faults)
    if frontier is not None and info is not None:
        faults += _disagreements(folder, frontier, info)
    if faults or study is None or frontier is None or candidates is None or info is None:
        raise InputError(faults)
    if not len(frontier) and list(frontier) == list(candidates):
        frontier = candidates.head(0)  # without rows, text does not tell whole numbers from others
    return Result(study=study, frontier=frontier, candidates=candidates, info=info)


def _part(path: Path, read: Callable[[Path], T], faults: list[str]) -> T | None:
    if not path.is_file():
        faults.append(f"{path}: is missing from the run folder; {AGAIN}")
        return None
    try:
        return read(path)
    except InputError as error:
        faults += error.faults
    except OSError as error:
        faults.append(f"{path}: cannot be read: {error.strerror}; check its permissions")
    return None


def read_frontier(path: Path) -> pd.DataFrame:
    """The frontier with the types it was written with: text stays text, empty stays empty, inf survives."""
    try:
        text = pd.read_csv(path, dtype="str", keep_default_na=False)
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: is damaged: {_sentence(error)}; {AGAIN}") from None
    faults = []
    columns: dict[str, Any] = {}
    for name in text.columns:
        if column(name) is None:
            faults.append(f"{path} [{name}]: is no result column; {AGAIN}")
            continue
        try:
            columns[name] = _typed(name, text[name])
        except ValueError as error:
            faults.append(f"{path} [{name}]: is damaged: {_sentence(error)}; {AGAIN}")
    faults += [f"{path} [{name}]: is missing; {AGAIN}" for name in ("design_id", *FLAGS) if name not in text]
    if faults:
        raise InputError(faults)
    return pd.DataFrame(columns)


def _typed(name: str, values: Row) -> Any:
    known = column(name)
    if name in FLAGS:
        wrong = set(values) - {"True", "False"}
        if wrong:
            raise ValueError(f"got {min(wrong)!r}, must be True or False")
        return values == "True"
    if known is not None and not known.unit:
        return values
    if known is not None and known.unit in WHOLE_UNITS and all(map(WHOLE.fullmatch, values)):
        return np.array([int(v) for v in values], dtype=np.int64)
    return np.array([float(v) if v else math.nan for v in values], dtype=np.float64)


def read_candidates(path: Path) -> pd.DataFrame:
    """The candidates, as parquet keeps them."""
    import pyarrow as pa

    try:
        frame = pd.read_parquet(path)
    except (pa.ArrowException, ValueError, OSError) as error:
        raise InputError(f"{path}: is damaged: {_sentence(error)}; {AGAIN}") from None
    missing = [name for name in ("design_id", *FLAGS) if name not in frame]
    if missing:
        raise InputError(f"{path}: has no column {', '.join(missing)}; {AGAIN}")
    return frame


def read_info(path: Path) -> dict[str, Any]:
    """run.json with every key a report needs."""
    try:
        info = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: is damaged: {_sentence(error)}; {AGAIN}") from None
    if not isinstance(info, dict):
        raise InputError(f"{path}: is damaged: got a {type(info).__name__}, must be an object; {AGAIN}")
    missing = [key for key in INFO_KEYS if key not in info]
    if missing:
        raise InputError(f"{path}: has no {', '.join(missing)}; {AGAIN}")
    return info


def _disagreements(folder: Path, frontier: pd.DataFrame, info: dict[str, Any]) -> list[str]:
    """run.json points at a frontier row; both files must be of one run."""
    if not len(frontier):
        return []
    picked = info.get("recommended")
    position = picked.get("position") if isinstance(picked, dict) else None
    if not isinstance(position, int) or not 0 <= position < len(frontier):
        rows = f"row {position} of the {len(frontier)} in frontier.csv"
        return [f"{folder / 'run.json'}: recommends {rows}; {AGAIN}"]
    found = str(frontier["design_id"].iloc[position])
    if picked is not None and picked.get("design_id") != found:
        return [
            f"{folder / 'run.json'}: recommends {picked.get('design_id')}, frontier.csv has {found} there; "
            f"the files are of different runs; {AGAIN}"
        ]
    return []


def _sentence(error: Exception) -> str:
    return str(error).strip().split("\n")[0].rstrip(".")
