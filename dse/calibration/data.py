"""Measurement files as tidy rows: recognised by header, names resolved, what cannot be used counted."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pandas as pd

from dse.catalog import load_catalog, load_device_file, load_model_file
from dse.errors import InputError, unknown_name
from dse.hardware import Accelerator
from dse.units import DTYPE_BYTE
from dse.workload import Transformer

from . import (
    collectives,
    kernels,
    loaded_serving,
    phase_serving,
    sharded_training,
    static_serving,
    wafer_serving,
    wafer_training,
)
from .layout import Layout
from .names import device_name, model_name

AICONFIGURATOR = "aiconfigurator"
"""Profile that takes pass times from that package's tables."""
LAYOUTS: tuple[Layout, ...] = (
    static_serving.LAYOUT,
    loaded_serving.LAYOUT,
    phase_serving.LAYOUT,
    wafer_serving.LAYOUT,
    sharded_training.LAYOUT,
    wafer_training.LAYOUT,
    kernels.GEMM,
    kernels.ATTENTION_PREFILL,
    kernels.ATTENTION_DECODE,
    collectives.NCCL,
    collectives.TENSORRT_LLM,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """Devices and models of the user's own, by the name that a table uses."""

    devices: Mapping[str, Path] = field(default_factory=dict)
    models: Mapping[str, Path] = field(default_factory=dict)

    def device(self, name: str, profile: str) -> Accelerator:
        """A device, with the numbers of a profile where it has one."""
        if name.endswith(".toml"):
            return load_device_file(Path(name))
        known = load_catalog()
        return known.device(name, profile if profile in known.profiles[name] else "default")

    def shown_profile(self, device: str, profile: str, phases: Sequence[str]) -> str:
        """The profile that phases' numbers are of: a profile that has none of them leaves them to the default."""
        known = load_catalog()
        if device not in known.devices or profile == AICONFIGURATOR or not phases or "link" in phases:
            return profile
        return profile if any(known.has_phase(device, profile, p) for p in phases) else "default"

    def bare_profile(self, name: str) -> str:
        """The profile of a device at work, without what a software stack loses: where a fit starts."""
        return "hardware" if "hardware" in load_catalog().profiles.get(name, ()) else "default"

    def model(self, name: str) -> Transformer:
        """A model."""
        return load_model_file(Path(name)) if name.endswith(".json") else load_catalog().model(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurements:
    """One table of measurements, tidy."""

    file: str
    layout: Layout
    rows: pd.DataFrame
    """Usable rows: the layout's columns with `device`, `model` and `profile` resolved and `line` in the file."""
    skipped: Mapping[str, int]
    """Why rows are not used, and how many."""

    def where(self, keep: pd.Series[bool]) -> Measurements:
        """Some of the rows."""
        return replace(self, rows=self.rows[keep])


def read_measurements(path: Path, names: Names = Names(), profile: str = "") -> Measurements:
    """One table; InputError where the file cannot be read, its header is unknown, or a number is none.

    `profile` overrides the one that a row's software stack names.
    """
    frame = _frame(path)
    layout = _recognised(path.name, frame)
    tidy = layout.read(_checked(path.name, frame, layout))
    tidy["line"] = np.arange(2, len(tidy) + 2)
    known = load_catalog()
    devices = {n: str(f) for n, f in names.devices.items()}
    models = {n: str(f) for n, f in names.models.items()}
    tidy["device"] = [devices.get(str(t)) or device_name(str(t), known.devices) for t in tidy["raw_device"]]
    tidy["model"] = [models.get(str(t)) or model_name(str(t), known.models) for t in tidy["raw_model"]]
    wanted = profile or None
    tidy["profile"] = [_profile_of(d, wanted or s) for d, s in zip(tidy["device"], tidy["stack"], strict=True)]
    why = pd.Series(tidy["unused"].astype(str), index=tidy.index)
    if layout.has_model:
        why = why.mask(tidy["model"] == "", "model not in the catalogue: " + tidy["raw_model"].astype(str))
    why = why.mask(tidy["device"] == "", "device not in the catalogue: " + tidy["raw_device"].astype(str))
    for quantity in layout.quantities:
        times = pd.to_numeric(tidy[quantity.name]).astype(float)
        tidy[quantity.name] = times.where(np.isfinite(times) & (times > SHORTEST_S))
    measured = tidy[[q.name for q in layout.quantities]].notna().any(axis=1)
    why = why.mask((why == "") & ~measured, "no time given")
    for setting in (s for s in SETTINGS if s in tidy):
        value = tidy[setting].astype(float)
        why = why.mask((why == "") & ~(value > 0), f"{setting} is blank or 0")
        why = why.mask((why == "") & (value > LARGEST), f"{setting} is above {LARGEST:g}")
    why = why.mask((why == "") & (tidy["stack"] == ""), "software stack not given")
    tidy["dtype"] = tidy["dtype"].replace({"fp16": "bf16"})
    unknown = ~tidy["dtype"].isin(list(DTYPE_BYTE))
    why = why.mask((why == "") & unknown, "data type not known: " + tidy["dtype"].astype(str))
    lacks = [d in known.devices and known.devices[d].peak(str(t)) is None for d, t in _pairs(tidy)]
    why = why.mask((why == "") & np.array(lacks), "arithmetic that the device lacks: " + tidy["dtype"].astype(str))
    skipped = {str(k): int(v) for k, v in why[why != ""].value_counts().items()}
    return Measurements(file=path.stem, layout=layout, rows=tidy[why == ""].reset_index(drop=True), skipped=skipped)


LARGEST = 1e27
"""No setting, flop or byte count is larger."""
SHORTEST_S = 1e-12
"""No pass is shorter: such a time is none."""


def _pairs(tidy: pd.DataFrame) -> Iterator[tuple[str, object]]:
    return zip(tidy["device"].astype(str), tidy["dtype"], strict=True)


SETTINGS = ("g", "n", "batch", "users", "micro_batch", "global_batch", "input_tokens", "output_tokens",
            "sequence_tokens", "message_byte", "flop", "moved_byte")  # fmt: skip
"""Columns of a tidy frame without which nothing can be predicted."""


def _profile_of(device: str, stack: str) -> str:
    """A stack's profile where the device has it; single kernels and files have none of their own."""
    if not device or stack == "kernel" or device.endswith(".toml"):
        return "default"
    if stack == AICONFIGURATOR:
        return stack
    return stack if stack in load_catalog().profiles[device] else "default"


NO_TABLE = (UnicodeDecodeError, pd.errors.ParserError, pd.errors.EmptyDataError)
"""What pandas raises for a file that is no table."""
MOST_SHOWN = 3
"""Faults of one kind that are printed; the rest is counted."""


def _frame(path: Path) -> pd.DataFrame:
    """A table whose rows have as many fields as its header, and every column its own name."""
    if not path.is_file():
        raise InputError(f"{path}: there is no such file")
    try:
        faults = _field_faults(path)
        if faults:
            raise InputError(faults)
        frame = pd.read_csv(path, index_col=False)
    except (*NO_TABLE, csv.Error) as error:
        raise InputError(f"{path.name}: is not a CSV table ({str(error).splitlines()[0]})") from None
    if frame.empty:
        raise InputError(f"{path.name}: has a header but no rows; add measurements")
    return frame.rename(columns=lambda name: str(name).strip())


def _field_faults(path: Path) -> list[str]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = csv.reader(file)
        header = [name.strip() for name in next(rows, [])]
        other = next((c for c in (";", "\t") if len(header) == 1 and c in header[0]), "")
        if other:
            return [f"{path.name}: fields are separated by {other!r}; separate them by commas"]
        twice = sorted({name for name in header if name and header.count(name) > 1})
        faults = [f"{path.name} [{name}]: the column is there twice; keep one" for name in twice]
        wrong = [(rows.line_num, len(row)) for row in rows if row and len(row) != len(header)]
    for line, n in wrong[:MOST_SHOWN]:
        faults.append(f"{path.name}:{line}: has {n} fields, the header has {len(header)}; a decimal or trailing comma?")
    if len(wrong) > MOST_SHOWN:
        faults.append(f"{path.name}: {len(wrong) - MOST_SHOWN} more rows like these")
    return faults


def _recognised(file: str, frame: pd.DataFrame) -> Layout:
    header = set(map(str, frame.columns))
    for layout in LAYOUTS:
        if layout.columns <= header:
            return layout
    nearest = max(LAYOUTS, key=lambda one: len(one.columns & header) / len(one.columns))
    missing = ", ".join(sorted(nearest.columns - header))
    raise InputError(
        f"{file}: the header is of no known layout; nearest is {nearest.name!r}, which also needs {missing} "
        "(docs/calibration.md lists the layouts)"
    )


_TEXT = {
    "device", "framework", "model", "metric", "software", "core_grid", "dtype", "system", "backend", "model_path",
    "precision", "sharding", "act_ckpt", "gemm_dtype", "attn_dtype", "kv_cache_dtype", "op_name", "nccl_dtype",
    "allreduce_dtype",
}  # fmt: skip


def _checked(file: str, frame: pd.DataFrame, layout: Layout) -> pd.DataFrame:
    """The frame with its numbers as numbers; every cell that is none is named."""
    faults = []
    checked = frame.copy()
    for column in sorted(layout.columns - _TEXT):
        values = pd.to_numeric(frame[column], errors="coerce")
        given = frame[column].notna()
        bad = given & (~np.isfinite(values.fillna(0.0)) | values.isna() | (values < 0))
        for line in frame.index[bad][:MOST_SHOWN]:
            faults.append(
                f"{file}:{line + 2} [{column}]: got {str(frame[column][line])[:40]!r}, must be a number of at least 0"
            )
        if int(bad.sum()) > MOST_SHOWN:
            faults.append(f"{file} [{column}]: {int(bad.sum()) - MOST_SHOWN} more cells like these")
        checked[column] = values
    for column in frame.columns.intersection(list(_TEXT)):
        checked[column] = frame[column].astype(object).fillna("").astype(str)
    if faults:
        raise InputError(faults)
    return checked


def load_all(paths: list[Path], names: Names, profile: str) -> list[Measurements]:
    """Every table of files and folders; a folder gives all its tables of a known layout.

    InputError with the faults of all of them, or where no device has the profile that was asked for.
    """
    found, faults = [], _unknown_profile(profile)
    for path in paths:
        files = sorted(path.glob("*.csv")) if path.is_dir() else [path]
        known = [f for f in files if not path.is_dir() or _is_known(f)]
        if path.is_dir() and not known:
            faults.append(f"{path}: holds no CSV file of a known layout")
        for file in known:
            try:
                found.append(read_measurements(file, names, profile))
            except InputError as error:
                faults += error.faults
    if faults:
        raise InputError(faults)
    return found


def _is_known(path: Path) -> bool:
    try:
        header = set(map(str, pd.read_csv(path, nrows=0).columns))
    except NO_TABLE:
        return False
    return any(layout.columns <= header for layout in LAYOUTS)


def _unknown_profile(profile: str) -> list[str]:
    known = sorted({p for names in load_catalog().profiles.values() for p in names} | {AICONFIGURATOR})
    return [unknown_name("--profile", "profile", profile, known)] if profile and profile not in known else []


def names_in(path: Path, *columns: str) -> set[str]:
    """What the first of these columns that a table has holds; nothing for a file that is none."""
    try:
        frame = pd.read_csv(path, dtype=str)
    except (*NO_TABLE, OSError):
        return set()
    present = [c for c in columns if c in frame]
    return set(frame[present[0]].dropna()) if present else set()


def named_files(given: list[str], option: str, ending: str) -> dict[str, Path]:
    """`NAME=FILE` options as a table; InputError with every fault."""
    found, faults = {}, []
    for text in given:
        name, _, file = text.partition("=")
        if not name or not file.endswith(ending):
            faults.append(f"{option} {text!r}: give NAME=FILE{ending}, where NAME is what the table calls it")
        elif not Path(file).is_file():
            faults.append(f"{option} {name}: there is no file {file}")
        else:
            found[name] = Path(file)
    if faults:
        raise InputError(faults)
    return found
