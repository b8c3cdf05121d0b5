"""The referee: designs of a run replayed on a trace, and what the model predicted beside what happened.

A design is replayed twice. At its load (the demand, or a share of its capacity) for latencies; and with more requests
than it can serve, evenly spaced, for its throughput. The same seed gives the same stream, and the same result on any
number of workers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dse.cluster import Workers
from dse.errors import InputError, unknown_name
from dse.explore import Result
from dse.model.serving_load import latencies_of_stream
from dse.progress import Progress, Report, Stop, silent
from dse.replay import Replayed, replay
from dse.replay_crew import Requests
from dse.resolve import Study
from dse.streams import Arrivals, Stream, flood_of, lasting, stream_of
from search_spaces.pd_serving import LaidOut, ServingSpace

Floats = NDArray[np.float64]

PARADIGM: Final = "pd_serving"
OVERLOAD: Final = 1.3
"""Requests offered over the predicted capacity, where the throughput is measured."""
SETTLED_FRAC: Final = 0.4
"""Of an overloaded replay passes before tokens are counted."""
WARM_UP_FRAC: Final = 0.05
"""Of the requests come before latencies are counted."""
PROFILE_WINDOWS: Final = 48
"""Parts of a recorded stream, at most, whose rates the prediction takes one by one."""
WINDOW_REQUESTS: Final = 250
"""Requests of such a part, at least: fewer say little of a rate."""
REPLAY_S: Final = 3.0
"""About as long one design takes, on 20,000 requests."""
QUANTITIES: Final = (
    "throughput_tok_s", "ttft_mean_s", "ttft_p50_s", "ttft_p99_s", "tpot_mean_s", "tpot_p99_s",
)  # fmt: skip
"""What is predicted and measured: `<name>_predicted`, `<name>_simulated`, `<name>_gap` = predicted/simulated - 1."""


@dataclass(frozen=True, kw_only=True)
class Simulation:
    """Replayed designs, one row each, and how far predictions were off."""

    frame: pd.DataFrame
    summary: dict[str, dict[str, float]]
    """Quantity -> median and p90 of |gap|, and the median of the gap."""
    info: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class _Shared:
    space: ServingSpace
    stream: Stream


def simulate(
    result: Result,
    *,
    top: int = 10,
    designs: Sequence[str] = (),
    trace: Path | None = None,
    arrivals: Arrivals = "poisson",
    load_requests_s: float | None = None,
    load_frac: float | None = None,
    n_requests: int = 20_000,
    seed: int = 0,
    workers: int = 1,
    report: Report = silent,
    stop: Stop | None = None,
) -> Simulation:
    """Replays designs of a run: those named, or `top` of its frontier, evenly spread, the recommended one among them.

    Lengths are those of `trace`, by default of the study's own, else drawn from its classes. Arrivals are a Poisson
    stream at each design's load, or the trace's own, stretched to that load. The load is `load_requests_s`, or
    `load_frac` of the design's capacity, or else that of the run. InputError for a run without a feasible
    design, of another paradigm, for unknown designs and malformed traces.
    """
    rows = _chosen(result, top, designs)
    if not isinstance(result.study.space, ServingSpace):
        raise InputError(
            f"{result.study.name}: dse simulate replays requests on designs of pd_serving; this is a "
            f"{result.study.envelope.paradigm} study"
        )
    stream = stream_of(result, trace, arrivals, n_requests, seed)
    stop = stop or Stop()
    found: dict[int, dict[str, Any]] = {}
    units = [_unit(result.study, row, load_requests_s, load_frac) for row in rows]
    shared = _Shared(space=result.study.space, stream=stream)
    with Workers(_replayed, shared, workers=workers) as pool:
        for position, record in pool.map(units, estimated_s=len(units) * REPLAY_S):
            found[position] = record
            report(
                Progress(
                    method="simulate", done=len(found), total=len(units), candidates=len(found), front=0,
                    elapsed_s=stop.elapsed_s,
                )
            )  # fmt: skip
            if stop.asked():
                break
    frame = pd.DataFrame([found[k] for k in sorted(found)])
    return Simulation(
        frame=frame,
        summary=summary_of(frame),
        info={
            "source": stream.source,
            "arrivals": arrivals,
            "requests": len(stream.requests),
            "seed": seed,
            "stopped": stop.reason,
            "asked": len(units),
        },
    )


def summary_of(frame: pd.DataFrame) -> dict[str, dict[str, float]]:
    """How far predictions were off, over all designs: median and p90 of |gap|, and its median with its sign."""
    summary = {}
    for name in QUANTITIES:
        gap = frame[f"{name}_gap"].to_numpy(dtype=np.float64)
        gap = gap[np.isfinite(gap)]
        if len(gap):
            off = np.abs(gap)
            summary[name] = {
                "median": float(np.median(off)),
                "p90": float(np.quantile(off, 0.9)),
                "bias": float(np.median(gap)),
                "n": float(len(gap)),
            }
    return summary


def _chosen(result: Result, top: int, designs: Sequence[str]) -> list[pd.Series]:
    """Rows to replay."""
    frontier = result.frontier
    if result.recommended is None:
        raise InputError("the run has no feasible design; there is nothing to replay")
    if "load_requests_s" not in frontier and isinstance(result.study.space, ServingSpace):
        raise InputError("the run is of an older version, which knew no loads; run the study again")
    if designs:
        return _named(pd.concat([frontier, result.candidates]), list(frontier["design_id"]), designs)
    distinct = frontier.drop_duplicates(list(result.study.envelope.objectives.names)).reset_index(drop=True)
    at = np.unique(np.linspace(0, len(distinct) - 1, min(top, len(distinct))).round().astype(int))
    picked = distinct[distinct["design_id"] == result.recommended["design_id"]].index
    if len(picked) and picked[0] not in at and len(at):
        at[np.abs(at - picked[0]).argmin()] = picked[0]
    return [distinct.iloc[k] for k in np.unique(at)]


def _named(frame: pd.DataFrame, suggested: list[str], designs: Sequence[str]) -> list[pd.Series]:
    """The rows of these designs; InputError for those that the run lacks or that serve nothing."""
    rows, faults = [], []
    for design in designs:
        found = frame[frame["design_id"] == design]
        if not len(found):
            faults.append(unknown_name("--design", "design of the run", design, suggested))
        elif not float(found["requests_s"].iloc[0]) > 0:
            faults.append(f"--design {design}: serves nothing: {found['infeasible_reason'].iloc[0]}")
        else:
            rows.append(found.iloc[0])
    if faults:
        raise InputError(faults)
    return rows


def _unit(study: Study, row: pd.Series, load_requests_s: float | None, load_frac: float | None) -> dict[str, Any]:
    """What a worker needs of a design."""
    load = float(row["load_requests_s"]) if load_frac is None else load_frac * float(row["requests_s"])
    return {
        "design_id": str(row["design_id"]),
        "settings": study.space.settings_of({str(k): v for k, v in row.items()}),
        "throughput_tok_s": float(row["throughput_tok_s"]),
        "requests_s": float(row["requests_s"]),
        "load_requests_s": load if load_requests_s is None else load_requests_s,
    }


def _replayed(shared: _Shared, unit: Mapping[str, Any]) -> dict[str, Any]:
    """One design, replayed at its load and beyond its capacity."""
    space = shared.space
    design = space.laid_out(unit["settings"])
    load = float(unit["load_requests_s"])
    requests = lasting(shared.stream, design, load).at_rate(load)
    stable = load < float(unit["requests_s"]) * (1 - 1e-9)
    seen = replay(design.system, design.rows, design.link, design.flow, requests)
    flood = flood_of(shared.stream, design, float(unit["requests_s"]) * OVERLOAD)
    span_s = float(flood.arrival_s[-1])
    most = replay(design.system, design.rows, design.link, design.flow, flood, (SETTLED_FRAC * span_s, span_s))
    predicted = {
        "throughput_tok_s": float(unit["throughput_tok_s"]),
        **(_predicted(design, shared.stream, requests, load) if stable else {}),
    }
    simulated = {"throughput_tok_s": most.output_tok_s, **_measured(requests, seen)}
    record: dict[str, Any] = {"design_id": unit["design_id"], "load_requests_s": load, "requests": len(requests)}
    for name in QUANTITIES:
        guess, fact = predicted.get(name, np.inf), simulated[name]
        record |= {f"{name}_predicted": guess, f"{name}_simulated": fact}
        record[f"{name}_gap"] = guess / fact - 1.0 if np.isfinite(guess) and fact > 0 else np.nan
    for k, name in enumerate(space.pool_names):
        record |= {f"busy_prefill_{name}": seen.busy_prefill[k], f"busy_decode_{name}": seen.busy_decode[k]}
    record["stolen_frac"] = seen.stolen / len(requests)
    record["goodput_frac"] = _good(space, requests, seen)
    return record


def _predicted(design: LaidOut, stream: Stream, requests: Requests, load: float) -> dict[str, float]:
    """The model's latencies for this stream: at its rate, or at those of its parts, each as if it lasted."""
    system = replace(design.system, load=replace(design.system.load, arrival_cv2=1.0))
    rate, weight = np.array([load]), np.array([1.0])
    if stream.arrivals == "recorded":
        span_s = float(requests.arrival_s[-1])
        n_windows = min(max(len(requests) // WINDOW_REQUESTS, 1), PROFILE_WINDOWS)
        count = np.histogram(requests.arrival_s, np.linspace(0.0, span_s, n_windows + 1))[0].astype(np.float64)
        rate, weight = count[count > 0] / (span_s / n_windows), count[count > 0] / count.sum()
    return asdict(latencies_of_stream(system, design.rows, design.link, design.flow, rate, weight))


def _measured(requests: Requests, seen: Replayed) -> dict[str, float]:
    """Latencies of the replay, without the first requests."""
    after = slice(int(WARM_UP_FRAC * len(requests)), None)
    ttft = (seen.first_s - requests.arrival_s)[after]
    steps = np.maximum(requests.output_tokens - 1.0, 0.0)[after]
    decodes = steps > 0
    tpot = (seen.finish_s - seen.first_s)[after][decodes] / steps[decodes]
    return {
        "ttft_mean_s": float(ttft.mean()),
        "ttft_p50_s": float(np.median(ttft)),
        "ttft_p99_s": float(np.quantile(ttft, 0.99)),
        "tpot_mean_s": float(tpot.mean()) if len(tpot) else float("nan"),
        "tpot_p99_s": float(np.quantile(tpot, 0.99)) if len(tpot) else float("nan"),
    }


def _good(space: ServingSpace, requests: Requests, seen: Replayed) -> float:
    """Share of requests that kept both limits of the study's goodput; NaN where it has none."""
    limits = space.problem.load.limits
    if limits is None:
        return float("nan")
    steps = np.maximum(requests.output_tokens - 1.0, 0.0)
    tpot = (seen.finish_s - seen.first_s) / np.maximum(steps, 1.0)
    good = (seen.first_s - requests.arrival_s <= limits[0]) & ((tpot <= limits[1]) | (steps == 0))
    return float(good[int(WARM_UP_FRAC * len(requests)) :].mean())
