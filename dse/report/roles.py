"""What each pool of a design does, in words: a phrase for a sentence, a few words for a table cell."""

from __future__ import annotations

import math
from typing import Any, Final, TypeAlias

import pandas as pd

from dse.resolve import Study

Row: TypeAlias = "pd.Series[Any]"

NOTICED: Final = 0.005
"""A share of requests below this rounds to none."""

ROLE_WORDS: Final = {
    "prefill": "for prefill",
    "decode": "for decode",
    "both": "for prefill and decode",
}
ETA_WORDS: Final = {
    "pd_serving": "what the matched flow leaves unused of a pool's time, over the time it works",
    "dp_training": "the wait at the barrier at the end of a step, over the time that the pool works",
    "pp_training": "the bubble (fill, drain, waiting for the slowest stage), over the time that the pool works",
}


def value_of(row: Row, name: str) -> float:
    """A numeric column of a row; NaN where the paradigm has none."""
    return float(str(row[name])) if name in row.index else math.nan


def count_of(row: Row, pool: str, key: str = "n") -> int:
    """Devices of a pool, or another whole number of it."""
    return int(value_of(row, f"{key}_{pool}"))


def phase_shares(row: Row, pool: str) -> list[str]:
    """Under work stealing, how much of each phase flows to a pool, where it is noticed."""
    shares = {phase: value_of(row, f"{phase}_frac_{pool}") for phase in ("prefill", "decode")}
    return [f"{share:.0%} of {phase}" for phase, share in shares.items() if share >= NOTICED]


def role_words(study: Study, row: Row, pool: str) -> str:
    """What a pool is for, as a phrase behind its name."""
    if f"stages_{pool}" in row.index:
        return _pipeline_words(study, row, pool)
    if f"batch_{pool}" in row.index:
        share = value_of(row, f"batch_{pool}") / value_of(row, "global_batch")
        return f"for {share:.0%} of each batch" if share > 0 else "standing idle"
    role = str(row.get(f"role_{pool}", ""))
    if role != "any":
        return ROLE_WORDS.get(role, "")
    words = phase_shares(row, pool)
    return f"for {' and '.join(words)}" if words else "standing idle"


def _pipeline_words(study: Study, row: Row, pool: str) -> str:
    if str(row["layers"]) == "whole model":
        return "each training the whole model"
    if serves_stages(study, row, pool):
        k = int(value_of(row, "offload_layers"))
        return f"for {k} layer{'s' if k > 1 else ''} of every stage"
    stages, pipelines = count_of(row, pool, "stages"), count_of(row, pool, "replicas")
    return f"as {_counted(stages, 'stage')} of {_counted(pipelines, 'pipeline')}"


def serves_stages(study: Study, row: Row, pool: str) -> bool:
    """Whether a pool holds no stages but computes layers of all of them."""
    streams = {o.name: bool(getattr(o, "streams", False)) for o in study.problem.pools}
    return value_of(row, "offload_layers") > 0 and streams[pool]


def role_short(study: Study, row: Row, pool: str) -> str:
    """What a pool does, in a table cell."""
    if f"stages_{pool}" in row.index:
        if str(row["layers"]) == "whole model":
            return "whole model"
        if serves_stages(study, row, pool):
            return f"{int(value_of(row, 'offload_layers'))} layers a stage"
        return f"{count_of(row, pool, 'stages')} stages x {count_of(row, pool, 'replicas')}"
    if f"batch_{pool}" in row.index:
        return f"{value_of(row, f'batch_{pool}') / value_of(row, 'global_batch'):.0%} of batch"
    return str(row.get(f"role_{pool}", ""))


def step_words(row: Row) -> str:
    """The shape of a training step, behind the bill of materials; empty for serving."""
    if "global_batch" not in row.index:
        return ""
    words = f", in steps of {value_of(row, 'global_batch'):,.0f} sequences"
    recompute = str(row["recompute"])
    words += " without recomputation" if recompute == "none" else f" with {recompute} recomputation"
    if "schedule" in row.index and str(row["layers"]) != "whole model":
        words += f", {row['schedule']} schedule"
    return words


def _counted(n: int, what: str) -> str:
    return f"{n:,} {what}{'' if n == 1 else 's'}"
