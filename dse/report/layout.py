"""What each pool of a design does and how it is set up, in words: roles in serving, shares and stages in training."""

from __future__ import annotations

from typing import Final

from dse.report.rows import Row, count_of, pools_bought, size_of, value_of
from dse.resolve import Study

NOTICED: Final = 0.005
"""A share of requests below this rounds to none."""

ROLE_WORDS: Final = {
    "prefill": "for prefill",
    "decode": "for decode",
    "both": "for prefill and decode",
}
DTYPE_WORDS: Final = {"weight_dtype": "weights", "kv_dtype": "KV cache", "compute_dtype": "arithmetic"}


def plural(n: int, word: str) -> str:
    """A count with its noun.

    >>> plural(1, "replica"), plural(1024, "sample")
    ('1 replica', '1,024 samples')
    """
    return f"{n:,} {word}" if n == 1 else f"{n:,} {word}s"


def phase_shares(row: Row, pool: str) -> list[str]:
    """Under work stealing, how much of each phase flows to a pool, where it is noticed."""
    shares = {phase: value_of(row, f"{phase}_frac_{pool}") for phase in ("prefill", "decode")}
    return [f"{share:.0%} of {phase}" for phase, share in shares.items() if share >= NOTICED]


def role_words(study: Study, row: Row, pool: str) -> str:
    """What a pool is for: its phases, its share of a batch, its stages."""
    if f"role_{pool}" in row.index:
        return _phase_words(row, pool)
    if f"batch_{pool}" in row.index:
        return _share_words(row, pool)
    return _stage_words(study, row, pool) if f"stages_{pool}" in row.index else ""


def _phase_words(row: Row, pool: str) -> str:
    role = str(row[f"role_{pool}"])
    if role != "any":
        return ROLE_WORDS.get(role, "")
    words = phase_shares(row, pool)
    return f"for {' and '.join(words)}" if words else "standing idle"


def _share_words(row: Row, pool: str) -> str:
    share, batch = count_of(row, pool, "batch"), int(value_of(row, "global_batch"))
    if share == batch:
        return f"for all {batch:,} samples of a step"
    return f"for {share:,} of {batch:,} samples of a step" if share else "standing idle"


def _stage_words(study: Study, row: Row, pool: str) -> str:
    if serves(study, row, pool):
        return f"for {plural(int(value_of(row, 'offload_layers')), 'layer')} of each stage"
    if "whole" in str(row.get("layers", "")):
        return "for the whole model"
    pipelines = plural(count_of(row, pool, "replicas"), "pipeline")
    return f"for {plural(count_of(row, pool, 'stages'), 'stage')} of {pipelines}"


def serves(study: Study, row: Row, pool: str) -> bool:
    """Whether a pool of a pipeline computes layers for the stages of others and has no stage itself."""
    return value_of(row, "offload_layers") > 0 and _streams(study, pool)


def _streams(study: Study, pool: str) -> bool:
    return any(o.name == pool and o.device.streams for o in study.problem.pools)


def short_layout(study: Study, row: Row) -> str:
    """What each pool does, in the order of the parts, for a cell of a table."""
    return " + ".join(_short(study, row, pool) for pool in pools_bought(study, row)) or "–"


def _short(study: Study, row: Row, pool: str) -> str:
    size, replicas = size_of(row, pool), count_of(row, pool, "replicas")
    by = f" (by {size})" if size > 1 else ""
    if f"role_{pool}" in row.index:
        return f"{row[f'role_{pool}']}{by}"
    if f"batch_{pool}" in row.index:
        return f"{count_of(row, pool, 'batch'):,}{by}"
    if f"stages_{pool}" not in row.index:
        return f"instances{by}"
    if serves(study, row, pool):
        return "serves"
    return f"{replicas} × {plural(count_of(row, pool, 'stages'), 'stage')}{by}"


def pool_setup(study: Study, row: Row, pool: str) -> list[str]:
    """How a pool that trains is set up: replicas or instances, micro-batch, sharding; nothing in serving."""
    if f"replicas_{pool}" not in row.index:
        return []
    replicas, size = count_of(row, pool, "replicas"), size_of(row, pool)
    pipelines = f"stages_{pool}" in row.index
    parts = [] if pipelines else [plural(replicas, "replica") + (f" of {size}" if size > 1 else "")]
    if pipelines and size > 1:
        parts.append(f"instances of {size}")
    if serves(study, row, pool):
        return parts
    if not _streams(study, pool):
        parts.append(f"micro-batch {count_of(row, pool, 'micro_batch'):,}")
    elif not pipelines:
        parts.append("its share as one batch")
    if replicas > 1:
        parts.append(f"ZeRO {count_of(row, pool, 'zero_stage')}")
    return parts


def fleet_setup(row: Row) -> list[str]:
    """What holds for all pools that train together; nothing in serving."""
    parts = []
    if "global_batch" in row.index:
        parts.append(f"global batch {plural(int(value_of(row, 'global_batch')), 'sample')}")
    if row.get("stage_recompute"):
        parts.append(f"recompute by stage {row['stage_recompute']}")
    elif "recompute" in row.index:
        how = str(row["recompute"])
        parts.append("no recompute" if how == "none" else f"{how} recompute")
    if row.get("schedule"):
        chunks = value_of(row, "chunks")
        parts.append(f"schedule {row['schedule']}" + (f" in {chunks:.0f} pieces" if chunks > 1 else ""))
    if row.get("layers"):
        parts.append(f"layers {row['layers']}")
    if "," in str(row.get("pool_order", "")):
        parts.append("through " + ", then ".join(str(row["pool_order"]).split(",")))
    if value_of(row, "collect") > 1:
        parts.append(f"wafers collect {value_of(row, 'collect'):.0f} micro-batches")
    return parts


def setup(study: Study, row: Row) -> list[str]:
    """How a design that trains is set up, the fleet first, then each pool; nothing in serving."""
    pools = [(pool, pool_setup(study, row, pool)) for pool in pools_bought(study, row)]
    return fleet_setup(row) + [f"{pool}: {', '.join(parts)}" for pool, parts in pools if parts]


def dtype_words(row: Row) -> str:
    """Data types, where they are not all the usual one."""
    dtypes = {word: str(row[key]) for key, word in DTYPE_WORDS.items() if key in row.index}
    if set(dtypes.values()) <= {"bf16"}:
        return ""
    return ", with " + ", ".join(f"{word} in {dtype}" for word, dtype in dtypes.items())
