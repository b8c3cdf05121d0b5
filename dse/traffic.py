"""Traffic: what a trace of requests asks for, as a handful of request classes, overall and window by window.

A trace is read twice, block by block: once into a tally of the lengths that occur, from which the classes are cut, and
once to count requests of each class in each window of time. Memory does not grow with the trace.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dse.errors import InputError
from dse.trace_file import trace_blocks
from dse.workload import RequestClass

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

N_CLASSES: Final = 12
"""Request classes of a trace unless the study says otherwise."""
INPUT_BINS, OUTPUT_BINS = 4, 3
"""How these are divided."""
MOST_SHAPES: Final = 200_000
"""Different lengths that a tally keeps apart; more are gathered on a grid."""
GRID_RATIO: Final = 1.01
"""Neighbouring lengths of that grid."""
MOST_WINDOWS: Final = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """Lengths that occur in a trace (N different ones), how often, and the sums over all requests of each."""

    count: Floats
    input_tokens: Floats
    output_tokens: Floats
    """Mean of the requests that are counted together; all have the same lengths unless there are too many."""
    work: Floats
    """(4,): exact sums over the trace of input, input^2, output - 1, (output - 1) (input + output/2)."""
    n_requests: int
    first_s: float
    last_s: float
    gap_cv2: float
    """Squared coefficient of variation of the gaps between arrivals: 1 for a Poisson stream."""

    @property
    def requests_s(self) -> float:
        """Mean arrival rate [requests/s]; infinite where all arrive at once."""
        span_s = self.last_s - self.first_s
        return (self.n_requests - 1) / span_s if span_s > 0 else float("inf")


WORK: Final = ("prefill_tokens", "prefill_attention", "decode_steps", "decode_context")
"""What `work_of` sums: input, input^2, output - 1, and the context that all decode steps together read."""


def work_of(count: Floats, input_tokens: Floats, output_tokens: Floats) -> Floats:
    """Work of so many requests of each length (4,): sums of `WORK`.

    >>> work_of(np.array([2.0]), np.array([10.0]), np.array([5.0])).tolist()
    [20.0, 200.0, 8.0, 100.0]
    """
    steps = np.maximum(output_tokens - 1.0, 0.0)
    parts = (input_tokens, input_tokens**2, steps, steps * (input_tokens + output_tokens / 2.0))
    return np.array([float((count * part).sum()) for part in parts])


def trace_tally(path: Path) -> Tally:
    """The tally of a trace, read once while it stays the same; InputError with every fault."""
    try:
        found = path.stat()
    except (OSError, ValueError):
        raise InputError(f"{path}: no such trace") from None
    return _trace_tally(path, found.st_mtime_ns, found.st_size)


@lru_cache(maxsize=4)
def _trace_tally(path: Path, _modified_ns: int, _size: int) -> Tally:
    count, shape = np.zeros(0), np.zeros(0, dtype=np.complex128)
    work, gaps, first_s, last_s = np.zeros(len(WORK)), np.zeros(3), 0.0, 0.0
    for block in trace_blocks(path):
        arrival_s, n_input, n_output = block.T
        start = last_s if gaps[0] else float(arrival_s[0])
        between = np.diff(arrival_s, prepend=start)[0 if gaps[0] else 1 :]
        first_s, last_s = (first_s if gaps[0] else start), float(arrival_s[-1])
        gaps += (len(block), between.sum(), (between**2).sum())
        work += work_of(np.ones(len(block)), n_input, n_output)
        count, shape = _merged(count, shape, np.ones(len(block)), n_input + 1j * n_output)
    mean = gaps[1] / max(gaps[0] - 1, 1)
    return Tally(
        count=count, input_tokens=shape.real, output_tokens=shape.imag, work=work, n_requests=int(gaps[0]),
        first_s=first_s, last_s=last_s,
        gap_cv2=float(gaps[2] / max(gaps[0] - 1, 1) / mean**2 - 1.0) if mean > 0 else 1.0,
    )  # fmt: skip


def _merged(
    count: Floats, shape: NDArray[np.complex128], more: Floats, those: NDArray[np.complex128]
) -> tuple[Floats, NDArray[np.complex128]]:
    """Two tallies of lengths (input + i output) as one."""
    both, weight = np.concatenate([shape, those]), np.concatenate([count, more])
    known, at = np.unique(both, return_inverse=True)
    total: Floats = np.bincount(at.reshape(-1), weights=weight).astype(np.float64)
    return (total, known) if len(known) <= MOST_SHAPES else _gathered(total, known)


def _gathered(count: Floats, shape: NDArray[np.complex128]) -> tuple[Floats, NDArray[np.complex128]]:
    """The same on a grid of lengths one per cent apart; each cell holds the mean of its requests."""
    level = [np.round(np.log(part) / np.log(GRID_RATIO)) for part in (shape.real, shape.imag)]
    _, at = np.unique(level[0] + 1j * level[1], return_inverse=True)
    at = at.reshape(-1)
    total: Floats = np.bincount(at, weights=count).astype(np.float64)
    mean = [np.bincount(at, weights=count * part) / total for part in (shape.real, shape.imag)]
    return total, np.asarray(mean[0] + 1j * mean[1], dtype=np.complex128)


@dataclass(frozen=True, slots=True, kw_only=True)
class Classes:
    """A trace cut into request classes (C of them)."""

    classes: tuple[RequestClass, ...]
    label: Callable[[Floats, Floats], Ints]
    """Class of requests, by input and output tokens."""
    loss: dict[str, float]
    """For each of `WORK`, the classes' total over the trace's, less 1."""


def trace_classes(tally: Tally, n_classes: int = N_CLASSES) -> Classes:
    """Cuts a trace into at most `n_classes` classes.

    Inputs are cut at equal shares of all input tokens, and inside each cut outputs at equal shares of its output
    tokens, so that every class carries a like amount of work. A class takes the mean input and output of its requests,
    so the totals of prefilled tokens and of decode steps are kept exactly; what is quadratic in lengths (attention in
    prefill, context read in decode) is off by `loss`. Of the ways to divide n_classes between inputs and outputs the
    one is taken whose largest loss is least; 12 are 4 x 3. Up to n_classes different lengths stay as they are.
    """
    if len(tally.count) <= n_classes:
        known = tally.input_tokens + 1j * tally.output_tokens

        def place(n_input: Floats, n_output: Floats) -> Ints:
            return np.searchsorted(known, n_input + 1j * n_output).astype(np.int64)

        return _classes_of(tally, place)
    if n_classes == N_CLASSES:
        return _classes_of(tally, _cut(tally, INPUT_BINS, OUTPUT_BINS))
    tried = [_classes_of(tally, _cut(tally, bins, n_classes // bins)) for bins in range(1, n_classes + 1)]
    return min(tried, key=lambda c: max(abs(part) for part in c.loss.values()))


def _classes_of(tally: Tally, label: Callable[[Floats, Floats], Ints]) -> Classes:
    """Classes of a tally under one rule, numbered without gaps."""
    raw = label(tally.input_tokens, tally.output_tokens)
    used, at = np.unique(raw, return_inverse=True)
    at = at.reshape(-1)
    count: Floats = np.bincount(at, weights=tally.count).astype(np.float64)
    mean_in, mean_out = (
        np.bincount(at, weights=tally.count * part) / count for part in (tally.input_tokens, tally.output_tokens)
    )
    kept = work_of(count, mean_in, mean_out)
    loss = np.divide(kept, tally.work, out=np.ones_like(kept), where=tally.work > 0) - 1.0
    names = [f"in{i:.0f}-out{o:.0f}" for i, o in zip(mean_in, mean_out, strict=True)]
    return Classes(
        classes=tuple(
            RequestClass(
                name=name if names.count(name) == 1 else f"{name}-{k}",
                share=float(count[k] / tally.n_requests),
                input_tokens=float(mean_in[k]),
                output_tokens=float(mean_out[k]),
            )
            for k, name in enumerate(names)
        ),
        label=lambda n_input, n_output: np.searchsorted(used, label(n_input, n_output)).astype(np.int64),
        loss={name: float(part) for name, part in zip(WORK, loss, strict=True)},
    )


def _cut(tally: Tally, n_input_bins: int, n_output_bins: int) -> Callable[[Floats, Floats], Ints]:
    """The rule that labels requests by equal shares of input tokens, and inside these of output tokens."""
    input_cuts = _equal_work_cuts(tally.input_tokens, tally.count, n_input_bins)
    where = np.searchsorted(input_cuts, tally.input_tokens, side="left")
    output_cuts = [
        _equal_work_cuts(tally.output_tokens[where == i], tally.count[where == i], n_output_bins)
        for i in range(len(input_cuts) + 1)
    ]

    def label(n_input: Floats, n_output: Floats) -> Ints:
        outer = np.searchsorted(input_cuts, n_input, side="left")
        result: Ints = outer.astype(np.int64) * n_output_bins
        for i, cuts in enumerate(output_cuts):
            inside = outer == i
            result[inside] += np.searchsorted(cuts, n_output[inside], side="left")
        return result

    return label


def _equal_work_cuts(sizes: Floats, count: Floats, n_bins: int) -> Floats:
    """Sizes at which to cut such that parts hold about equal shares of the total; equal sizes share a part."""
    if not len(sizes):
        return np.zeros(0)
    order = np.argsort(sizes, kind="stable")
    work = np.cumsum((sizes * count)[order])
    at = np.searchsorted(work, work[-1] * np.arange(1, n_bins) / n_bins)
    return np.unique(sizes[order][at])


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """A trace window by window (W of them): how many requests of each class arrive (W, C)."""

    start_s: Floats
    window_s: float
    requests: Floats
    end_s: float
    """Of the trace: its last window may be shorter than the others."""

    @property
    def lasted_s(self) -> Floats:
        """Time that each window covers of the trace (W,); a last one of a few requests at one moment counts whole."""
        covered = np.minimum(self.end_s - self.start_s, self.window_s)
        return np.where(covered > 0.5 * self.window_s, covered, self.window_s)

    @property
    def requests_s(self) -> Floats:
        """Arrival rate of each window [requests/s] (W,)."""
        return np.asarray(self.requests.sum(axis=1) / self.lasted_s)

    @property
    def share(self) -> Floats:
        """Mix of each window (W, C); the overall mix where nothing arrives."""
        total = self.requests.sum(axis=1, keepdims=True)
        overall = self.requests.sum(axis=0) / self.requests.sum()
        return np.where(total > 0, self.requests / np.maximum(total, 1.0), overall)


def trace_windows(path: Path, classes: Classes, window_s: float) -> Windows:
    """Counts a trace's requests of each class in windows of equal length from its first arrival on.

    The last window ends with the trace or after it. InputError for more than 2,000 windows.
    """
    tally = trace_tally(path)
    n_windows = int((tally.last_s - tally.first_s) // window_s) + 1
    if n_windows > MOST_WINDOWS:
        least_s = (tally.last_s - tally.first_s) / (MOST_WINDOWS - 1)
        raise InputError(
            f"window_s: {window_s:g} s cuts {path} into {n_windows} windows, at most {MOST_WINDOWS} are allowed; "
            f"take {least_s:.3g} s or more"
        )
    n_classes = len(classes.classes)
    counted = np.zeros(n_windows * n_classes)
    for block in trace_blocks(path):
        window = ((block[:, 0] - tally.first_s) // window_s).astype(np.int64)
        cell = np.minimum(window, n_windows - 1) * n_classes + classes.label(block[:, 1], block[:, 2])
        counted += np.bincount(cell, minlength=len(counted))
    return Windows(
        start_s=tally.first_s + window_s * np.arange(n_windows, dtype=np.float64),
        window_s=window_s,
        end_s=tally.last_s,
        requests=counted.reshape(n_windows, n_classes),
    )


def read_trace(path: Path) -> Floats:
    """All requests of a trace (N, 3): arrival_s, input_tokens, output_tokens; InputError with every fault."""
    return np.concatenate(list(trace_blocks(path)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """What a study's requests were made from: facts of its trace, and what cutting it into classes lost."""

    trace: str
    """The file, from the root on."""
    n_requests: int
    requests_s: float
    gap_cv2: float
    loss: dict[str, float]


def traffic_of(path: Path, n_classes: int) -> tuple[tuple[RequestClass, ...], Traffic]:
    """Classes of a trace, and its facts."""
    tally = trace_tally(path)
    cut = trace_classes(tally, n_classes)
    facts = Traffic(
        trace=str(path.resolve()),
        n_requests=tally.n_requests,
        requests_s=tally.requests_s,
        gap_cv2=tally.gap_cv2,
        loss=cut.loss,
    )
    return cut.classes, facts
