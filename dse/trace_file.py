"""A request trace on disk, read block by block: every fault with its line, memory flat however long the file is."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from dse.errors import InputError

Floats = NDArray[np.float64]

HEADER: Final = ("arrival_s", "input_tokens", "output_tokens")
MAX_FAULTS_SHOWN: Final = 5
MAX_TOKENS: Final = 1e9
MAX_ARRIVAL_S: Final = 1e10
"""Three centuries."""
BLOCK_BYTE: Final = 4 << 20
LONGEST_LINE_BYTE: Final = 1 << 20


@dataclass(slots=True)
class _Faults:
    """The first faults in words, and how many there are."""

    path: Path
    shown: list[str] = field(default_factory=list)
    total: int = 0

    def add(self, line: int, fault: str) -> None:
        self.total += 1
        if len(self.shown) < MAX_FAULTS_SHOWN:
            self.shown.append(f"{self.path}:{line}: {fault}")

    def refuse(self) -> None:
        """InputError with what was found, if anything was."""
        if self.total > len(self.shown):
            self.shown.append(f"{self.path}: {self.total - len(self.shown)} more rows have faults")
        if self.shown:
            raise InputError(self.shown)


def trace_blocks(path: Path) -> Iterator[Floats]:
    """The requests of a trace in order, in blocks (N, 3): arrival_s, input_tokens, output_tokens.

    A block holds some 10^5 requests. InputError, after all that is sound, with every fault: another header, cells that
    are no finite numbers, tokens below 1 or above 1e9, arrivals below 0 or before the last one, no request at all.
    """
    faults = _Faults(path)
    last_s, n_requests = 0.0, 0
    try:
        with path.open("rb") as file:
            _check_header(path, file.readline(LONGEST_LINE_BYTE))
            for first_line, text in _line_blocks(path, file):
                rows = _sound(text, last_s)
                if rows is None:
                    rows = _row_by_row(text, first_line, last_s, faults)
                if len(rows):
                    last_s, n_requests = float(rows[-1, 0]), n_requests + len(rows)
                    yield rows
    except FileNotFoundError:
        raise InputError(f"{path}: no such trace") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read as CSV: {error.strerror}") from None
    faults.refuse()
    if not n_requests:
        raise InputError(f"{path}: the trace has no requests")


def _check_header(path: Path, line: bytes) -> None:
    try:
        text = line.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: cannot be read as CSV: {error.reason} at byte {error.start}") from None
    header = tuple(h.strip().strip('"') for h in text.split(","))
    if header != HEADER:
        raise InputError(f"{path}: header is {text.strip()[:80]!r}, must be {','.join(HEADER)!r}")


def _line_blocks(path: Path, file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Whole lines of a file in blocks, each with the number of its first line."""
    line = 2
    while block := file.read(BLOCK_BYTE):
        block += file.readline(LONGEST_LINE_BYTE)
        if len(block) > BLOCK_BYTE + LONGEST_LINE_BYTE - 1:
            raise InputError(f"{path}:{line}: a line after this one has no end within {LONGEST_LINE_BYTE} bytes")
        yield line, block
        line += block.count(b"\n")


def _sound(text: bytes, last_s: float) -> Floats | None:
    """The rows of a block, if nothing is wrong with any; parsed as a whole."""
    import pandas as pd

    try:
        rows = pd.read_csv(io.BytesIO(text), header=None, dtype=np.float64).to_numpy()
    except (ValueError, UnicodeDecodeError):  # pandas' parser errors are ValueErrors; a blank block is one too
        return None
    if rows.shape[1] != len(HEADER):
        return None
    arrival_s, tokens = rows[:, 0], rows[:, 1:]
    sound = np.isfinite(rows).all() and (tokens >= 1).all() and (tokens <= MAX_TOKENS).all()
    in_order = arrival_s[0] >= last_s and (np.diff(arrival_s) >= 0).all() and arrival_s[-1] <= MAX_ARRIVAL_S
    return rows if sound and in_order else None


def _row_by_row(text: bytes, first_line: int, last_s: float, faults: _Faults) -> Floats:
    """The sound rows of a block that has others; those are added to the faults."""
    rows = []
    for line, raw in enumerate(text.splitlines(), start=first_line):
        cells = _cells(raw)
        if not any(cell.strip() for cell in cells):
            continue
        fault, values = _request(cells)
        if not fault and values[0] < last_s:
            fault = f"arrival_s goes back from {last_s!r} to {values[0]!r}; sort the file by arrival_s"
        if fault:
            faults.add(line, fault)
        else:
            rows.append(values)
            last_s = values[0]
    return np.array(rows, dtype=np.float64).reshape(-1, len(HEADER))


def _cells(raw: bytes) -> Sequence[str]:
    try:
        return next(csv.reader([raw.decode("utf-8")]), [])
    except (UnicodeDecodeError, csv.Error):
        return [raw.decode("utf-8", errors="replace")]


def _request(row: Sequence[str]) -> tuple[str, tuple[float, float, float]]:
    """What is wrong with a row, empty if nothing; and its numbers."""
    nothing = (0.0, 0.0, 0.0)
    got = ",".join(row)[:60]
    if len(row) != len(HEADER):
        return f"got {len(row)} fields, must be {len(HEADER)}", nothing
    try:
        arrival, n_input, n_output = (float(v) for v in row)
        if any("_" in v for v in row):
            raise ValueError
    except ValueError:
        return f"got {got!r}, must be three numbers", nothing
    fault = ""
    if not all(math.isfinite(v) for v in (arrival, n_input, n_output)) or arrival < 0:
        fault = f"got {got!r}, must be finite and not negative"
    elif arrival > MAX_ARRIVAL_S:
        fault = f"got arrival_s {arrival:g}, at most {MAX_ARRIVAL_S:g} s is allowed; let the trace start at 0"
    elif n_input < 1 or n_output < 1:
        fault = f"got {n_input:g} input and {n_output:g} output tokens, each must be at least 1"
    elif max(n_input, n_output) > MAX_TOKENS:
        fault = f"got {max(n_input, n_output):g} tokens, at most {MAX_TOKENS:g} are allowed"
    return fault, (arrival, n_input, n_output)
