"""What is replayed: the requests of a trace, or drawn from a study's classes, long enough for a fleet to settle."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from dse.errors import InputError
from dse.explore import Result
from dse.replay_crew import Requests
from dse.traffic import read_trace
from search_spaces.pd_serving import LaidOut

Floats = NDArray[np.float64]
Arrivals = Literal["poisson", "recorded"]

LIFETIMES: Final = 10.0
"""A stream lasts at least so many times as long as a mean request decodes."""
MOST_REQUESTS: Final = 200_000


@dataclass(frozen=True, kw_only=True)
class Stream:
    """What is replayed, but for its rate: lengths in an order, and how arrivals are spaced."""

    requests: Requests
    arrivals: Arrivals
    seed: int
    source: str
    """Where the lengths come from, in words."""


def stream_of(result: Result, trace: Path | None, arrivals: Arrivals, n_requests: int, seed: int) -> Stream:
    """The requests of a trace (by default the run's own, if it is still there), else drawn from the study's classes.

    InputError for a malformed trace, and for recorded arrivals without one.
    """
    traffic = result.info.get("traffic") or {}
    known = Path(traffic["trace"]) if traffic.get("trace") else None
    path = trace or (known if known is not None and known.is_file() else None)
    rng = np.random.default_rng(seed)
    mix = result.study.problem.mix
    if path is None:
        if arrivals == "recorded":
            raise InputError("--arrivals recorded: the run has no trace; name one with --trace")
        label = rng.choice(len(mix.share), size=n_requests, p=mix.share)
        lengths = np.stack([mix.input_tokens[label], mix.output_tokens[label]], axis=1)
        source = "lengths drawn from the study's classes"
    else:
        rows = read_trace(path)
        lengths = rows[:n_requests, 1:]
        if arrivals == "poisson":
            lengths = rows[rng.permutation(len(rows))[:n_requests], 1:]
        label = nearest_class(lengths, mix.input_tokens, mix.output_tokens)
        source = f"lengths of {path.name}"
    gaps = rng.exponential(1.0, len(lengths)) if arrivals == "poisson" or path is None else None
    arrival_s = np.cumsum(gaps) if gaps is not None else rows[: len(lengths), 0]
    return Stream(
        requests=Requests(
            arrival_s=arrival_s,
            input_tokens=np.ascontiguousarray(np.maximum(np.round(lengths[:, 0]), 1.0)),
            output_tokens=np.ascontiguousarray(np.maximum(np.round(lengths[:, 1]), 1.0)),
            label=label.astype(np.int64),
        ),
        arrivals=arrivals,
        seed=seed,
        source=source,
    )


def nearest_class(lengths: Floats, input_tokens: Floats, output_tokens: Floats) -> NDArray[np.int64]:
    """The class whose lengths are nearest, by ratio (N,)."""
    best, label = np.full(len(lengths), np.inf), np.zeros(len(lengths), dtype=np.int64)
    for k, (n_input, n_output) in enumerate(zip(input_tokens, output_tokens, strict=True)):
        far = np.log(lengths[:, 0] / n_input) ** 2 + np.log(lengths[:, 1] / n_output) ** 2
        label[far < best] = k
        best = np.minimum(best, far)
    return label


def lasting(stream: Stream, design: LaidOut, rate: float) -> Requests:
    """The stream, repeated until it lasts long enough at this rate for the fleet to settle."""
    requests = stream.requests
    mix = design.system.mix
    step_s = max(
        float((design.flow.decoded[0, p] * t.decode.time.occupancy_s[t.config[design.rows[p, 0]]]).sum())
        for p, t in enumerate(design.system.tables)
    )
    wanted = rate * LIFETIMES * float((mix.share * mix.steps).sum()) * step_s
    copies = int(np.ceil(min(wanted, MOST_REQUESTS) / len(requests)))
    if copies <= 1:
        return requests
    n = len(requests)
    rng = np.random.default_rng(stream.seed + 1)
    order = np.concatenate([np.arange(n), *(rng.permutation(n) for _ in range(copies - 1))])
    span = requests.arrival_s[-1] - requests.arrival_s[0]
    gap = span / max(n - 1, 1)
    later = np.concatenate([requests.arrival_s + k * (span + gap) for k in range(copies)])
    if stream.arrivals == "poisson":
        later = np.cumsum(rng.exponential(1.0, len(order)))
    return Requests(
        arrival_s=later,
        input_tokens=requests.input_tokens[order],
        output_tokens=requests.output_tokens[order],
        label=requests.label[order],
    )


def flood_of(stream: Stream, design: LaidOut, rate: float) -> Requests:
    """The stream's lengths in random order, evenly spaced at a rate: a mix that drifts would be another one."""
    requests = lasting(stream, design, rate)
    order = np.random.default_rng(stream.seed + 2).permutation(len(requests))
    return Requests(
        arrival_s=np.arange(len(requests)) / rate,
        input_tokens=requests.input_tokens[order],
        output_tokens=requests.output_tokens[order],
        label=requests.label[order],
    )
