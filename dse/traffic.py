"""A request trace (arrival, input, output) becomes a handful of request classes."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dse.errors import InputError
from dse.workload import RequestClass

HEADER = ("arrival_s", "input_tokens", "output_tokens")
MAX_FAULTS_SHOWN = 5
MAX_TOKENS = 1e9


def read_trace(path: Path) -> NDArray[np.float64]:
    """Requests of a trace (N, 3): arrival_s, input_tokens, output_tokens; InputError with every fault."""
    try:
        found = path.stat()
    except (OSError, ValueError):
        raise InputError(f"{path}: no such trace") from None
    return _read_trace(path, found.st_mtime_ns, found.st_size)


@lru_cache(maxsize=4)
def _read_trace(path: Path, _modified_ns: int, _size: int) -> NDArray[np.float64]:
    """The trace as it stands; read once for validating and once for resolving would be twice."""
    faults: list[str] = []
    rows: list[tuple[float, float, float]] = []
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            header = tuple(h.strip() for h in next(reader, ()))
            if header != HEADER:
                raise InputError(f"{path}: header is {','.join(header)!r}, must be {','.join(HEADER)!r}")
            for line, row in enumerate(reader, start=2):
                if not any(cell.strip() for cell in row):
                    continue
                fault, values = _request(row)
                if fault:
                    faults.append(f"{path}:{line}: {fault}")
                else:
                    rows.append(values)
    except FileNotFoundError:
        raise InputError(f"{path}: no such trace") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: cannot be read as CSV: {error}") from None
    if len(faults) > MAX_FAULTS_SHOWN:
        more = len(faults) - MAX_FAULTS_SHOWN
        faults = [*faults[:MAX_FAULTS_SHOWN], f"{path}: {more} more rows have faults"]
    if faults:
        raise InputError(faults)
    if not rows:
        raise InputError(f"{path}: the trace has no requests")
    return np.array(rows, dtype=np.float64)


def _request(row: Sequence[str]) -> tuple[str, tuple[float, float, float]]:
    nothing = (0.0, 0.0, 0.0)
    if len(row) != len(HEADER):
        return f"got {len(row)} fields, must be {len(HEADER)}", nothing
    try:
        arrival, n_input, n_output = (float(v) for v in row)
        if any("_" in v for v in row):
            raise ValueError
    except ValueError:
        return f"got {','.join(row)!r}, must be three numbers", nothing
    if not all(math.isfinite(v) for v in (arrival, n_input, n_output)) or arrival < 0:
        return f"got {','.join(row)!r}, must be finite and not negative", nothing
    if n_input < 1 or n_output < 1:
        return f"got {n_input:g} input and {n_output:g} output tokens, each must be at least 1", nothing
    if max(n_input, n_output) > MAX_TOKENS:
        return f"got {max(n_input, n_output):g} tokens, at most {MAX_TOKENS:g} are allowed", nothing
    return "", (arrival, n_input, n_output)


def request_classes(
    trace: NDArray[np.float64], n_input_bins: int = 4, n_output_bins: int = 3
) -> tuple[RequestClass, ...]:
    """Bins a trace into at most n_input_bins x n_output_bins classes.

    Inputs are cut at equal shares of all input tokens, and inside each cut outputs at equal shares of
    its output tokens, so that every class carries a like amount of work; a class takes the mean input
    and output of its requests, so the trace's total input and output tokens are kept exactly.

    >>> t = np.array([[0, 100, 10], [1, 100, 10], [2, 1000, 10], [3, 1000, 300]], dtype=float)
    >>> [(c.share, c.input_tokens, c.output_tokens) for c in request_classes(t, 2, 2)]
    [(0.5, 100.0, 10.0), (0.25, 1000.0, 10.0), (0.25, 1000.0, 300.0)]
    """
    n_input, n_output = trace[:, 1], trace[:, 2]
    shapes, label = np.unique(trace[:, 1:], axis=0, return_inverse=True)
    if len(shapes) > n_input_bins * n_output_bins:
        input_bin = _equal_work_bins(n_input, n_input_bins)
        output_bin = np.zeros_like(input_bin)
        for i in range(n_input_bins):
            inside = np.flatnonzero(input_bin == i)
            if len(inside):
                output_bin[inside] = _equal_work_bins(n_output[inside], n_output_bins)
        label = input_bin * n_output_bins + output_bin
    classes = []
    for value in np.unique(label):
        members = np.flatnonzero(label.reshape(-1) == value)
        mean_in, mean_out = float(n_input[members].mean()), float(n_output[members].mean())
        classes.append(
            RequestClass(
                name=f"in{mean_in:.0f}-out{mean_out:.0f}",
                share=len(members) / len(trace),
                input_tokens=mean_in,
                output_tokens=mean_out,
            )
        )
    return tuple(classes)


def _equal_work_bins(sizes: NDArray[np.float64], n_bins: int) -> NDArray[np.int64]:
    """Bin of each size such that bins hold about equal shares of the total; equal sizes share a bin."""
    order = np.sort(sizes)
    work = np.cumsum(order)
    cuts = order[np.searchsorted(work, work[-1] * np.arange(1, n_bins) / n_bins)]
    bins: NDArray[np.int64] = np.searchsorted(np.unique(cuts), sizes, side="left").astype(np.int64)
    return bins
