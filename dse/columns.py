"""The one schema of every result frame: name, unit, sense, meaning."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Sense = Literal["max", "min"] | None


@dataclass(frozen=True, slots=True)
class Column:
    """One column; `<pool>` in the name stands for each pool's name."""

    name: str
    unit: str
    sense: Sense
    meaning: str


WHOLE_UNITS = ("devices", "prompts", "sequences", "stage", "stages", "copies", "pieces", "layers", "micro-batches")
"""Units in which things are counted."""

COLUMNS: tuple[Column, ...] = (
    Column("design_id", "", None, "stable name of the design inside its study"),
    Column("paradigm", "", None, "pd_serving, robust_serving, dp_training or pp_training"),
    Column("n_<pool>", "devices", "min", "devices of this pool"),
    Column("gpu_wse_ratio", "GPU per WSE", None, "GPUs bought per wafer bought; infinite without wafers"),
    Column(
        "instance_size_<pool>",
        "devices",
        None,
        "devices that hold one copy of the model, or of a pipeline stage; 0 where divided anew in every scenario",
    ),
    Column("role_<pool>", "", None, "prefill, decode, both; any under work stealing; none if absent"),
    Column("prefill_batch_<pool>", "prompts", None, "prompts in one prefill pass"),
    Column("max_decode_batch_<pool>", "sequences", None, "largest decode batch the axis allows"),
    Column("decode_batch_<pool>", "sequences", None, "decode batch in use, averaged over requests"),
    Column("prefill_frac_<pool>", "1", None, "share of all requests that the pool prefills"),
    Column("decode_frac_<pool>", "1", None, "share of all requests that the pool decodes"),
    Column("micro_batch_<pool>", "sequences", None, "sequences of one replica in one micro-step"),
    Column("zero_stage_<pool>", "stage", None, "ZeRO stage: what the replicas share of the training states"),
    Column("replicas_<pool>", "copies", None, "copies of what the pool holds of the model"),
    Column("stages_<pool>", "stages", None, "pipeline stages that the pool's instances form"),
    Column("batch_<pool>", "sequences", None, "share of the global batch that the pool trains"),
    Column("weight_dtype", "", None, "data type of the weights"),
    Column("kv_dtype", "", None, "data type of the KV cache"),
    Column("compute_dtype", "", None, "data type of the arithmetic"),
    Column("routing", "", None, "split or work_stealing"),
    Column("adaptation", "", None, "what changes with the scenario: fixed_split, work_stealing or adaptive"),
    Column("recompute", "", None, "activations made again in the backward pass: none, selective, full"),
    Column("schedule", "", None, "order of a pipeline's micro-batches: gpipe, 1f1b, interleaved"),
    Column("chunks", "pieces", None, "pieces that an interleaved stage's layers are dealt out in"),
    Column("offload_layers", "layers", None, "layers that every stage hands to the wafers"),
    Column("collect", "micro-batches", None, "micro-batches that a wafer takes at once"),
    Column("layers", "", None, "layers of each pipeline stage, first to last"),
    Column("layout", "", None, "balanced: layers laid out for the fastest slowest stage; placed: as given"),
    Column("pool_order", "", None, "pools that hold stages, in the order in which a pipeline runs through them"),
    Column("stage_recompute", "", None, "recompute mode of each stage, first to last, where they differ"),
    Column("global_batch", "sequences", None, "sequences of one optimizer step"),
    Column(
        "link",
        "",
        None,
        "link between pools: tier and count, raw bandwidth, or none where nothing crosses; by pair where they differ",
    ),
    Column(
        "link_gb_s",
        "GB/s",
        None,
        "bandwidth S of each ordered pair of pools, the narrowest that is bought; 1 GB = 1e9 byte",
    ),
    Column(
        "throughput_tok_s",
        "tok/s",
        "max",
        "output tokens per second at capacity, under the service limits; training: tokens per second",
    ),
    Column(
        "throughput_worst_tok_s", "tok/s", "max", "output tokens per second at capacity in the scenario with the least"
    ),
    Column("headroom", "times the demand", "max", "capacity over demand in the scenario where it is least"),
    Column("binding_scenario", "", None, "the scenario that is worst off: least headroom, or least throughput"),
    Column(
        "throughput_low_tok_s",
        "tok/s",
        None,
        "lower end of the 80 % interval of throughput_tok_s, from measured errors of the pools' times",
    ),
    Column("throughput_high_tok_s", "tok/s", None, "upper end of it"),
    Column("throughput_samples_s", "sequences/s", "max", "sequences trained per second"),
    Column("step_time_s", "s", "min", "time of one optimizer step"),
    Column("sync_s", "s", "min", "all-reduce of gradients that a step waits for: between pools, or between pipelines"),
    Column("bubble_frac", "1", "min", "share of a step that a pipeline's stages stand idle, on average"),
    Column(
        "goodput_frac",
        "1",
        "max",
        "serving: share of the demand's requests that keep both limits of goodput; training: share of time that is"
        " useful, less checkpoints, lost work and restarts",
    ),
    Column("goodput_requests_s", "requests/s", "max", "requests per second of the demand that keep both limits"),
    Column("train_time_s", "s", "min", "time of the whole run, failures included"),
    Column("train_energy_j", "J", "min", "energy of the whole run, PUE included"),
    Column("train_cost_usd", "USD", "min", "cost of the whole run"),
    Column("requests_s", "requests/s", "max", "requests per second at capacity, under the service limits"),
    Column("input_tok_s", "tok/s", "max", "input tokens per second at capacity"),
    Column("ttft_mean_s", "s", "min", "mean time to first token, at the demand if one is given, else at capacity"),
    Column("ttft_p99_s", "s", "min", "99th percentile of the time to first token, slowest pool and class"),
    Column("tpot_s", "s", "min", "time per output token, averaged over requests"),
    Column(
        "load_requests_s",
        "requests/s",
        None,
        "load of the latencies under load: the demand, else load_frac of capacity",
    ),
    Column(
        "ttft_load_mean_s", "s", "min", "mean time to first token at that load, waits for prefill and link included"
    ),
    Column("ttft_load_p50_s", "s", "min", "median of it over all requests"),
    Column("ttft_load_p99_s", "s", "min", "99th percentile of it over all requests"),
    Column("tpot_load_mean_s", "s", "min", "time per output token at that load, at the decode batch that settles"),
    Column("tpot_load_p99_s", "s", "min", "99th percentile of it, slowest pool"),
    Column(
        "decode_stall_s",
        "s",
        "min",
        "longest pause between two tokens at that load: a step and what prefill puts between",
    ),
    Column("tok_s_per_user", "tok/s", "max", "output tokens per second that one user sees: 1/tpot"),
    Column("cost_usd_per_h", "USD/h", "min", "cost of everything bought"),
    Column(
        "cost_low_usd_per_h", "USD/h", None, "cost with the pools' prices at the low ends of their ranges, combined"
    ),
    Column("cost_high_usd_per_h", "USD/h", None, "the same at the high ends"),
    Column("usd_per_mtok", "USD/Mtok", "min", "cost of a million tokens of throughput_tok_s"),
    Column("usd_per_mtok_low", "USD/Mtok", None, "lower end of its interval, from times and prices"),
    Column("usd_per_mtok_high", "USD/Mtok", None, "upper end of it"),
    Column("power_w", "W", "min", "provisioned power: what the site must supply, PUE included"),
    Column("power_mean_w", "W", "min", "mean power at capacity, PUE included"),
    Column("energy_j_per_tok", "J/tok", "min", "mean power per token of throughput_tok_s"),
    Column(
        "co2_g_per_mtok",
        "g/Mtok",
        "min",
        "carbon of a million such tokens at the site's carbon intensity",
    ),
    Column("link_cost_usd_per_h", "USD/h", "min", "the links' part of the cost; 0 for a raw bandwidth"),
    Column("link_use_frac", "1", None, "share of the busiest direction of a link in use at capacity"),
    Column("kv_transfer_byte_s", "byte/s", None, "KV cache that crosses between pools at capacity"),
    Column("kv_out_byte_s_<pool>", "byte/s", None, "KV cache that the pool's prefill produces at capacity"),
    Column(
        "io_use_<pool>",
        "1",
        "min",
        "KV cache through the pool's devices at capacity over their own scale-out bandwidth; above 1 the devices'"
        " ports would be the bound, which the link's bandwidth does not say: limit it to 1 to hold to them",
    ),
    Column("mem_margin_byte", "byte", None, "memory left on the tightest device; negative: missing"),
    Column("u_<pool>", "1", None, "utilisation u of the pool's binding resource, eq. (4): u_HO / (1 + eta)"),
    Column("eta_<pool>", "1", None, "degradation eta, eq. (4): idle share over busy share; infinite if idle"),
    Column("busy_<pool>", "1", None, "share of the pool's time in use: at capacity, or of a training step"),
    Column("mfu_<pool>", "1", "max", "model flop utilisation: arithmetic without recomputation over the dense peak"),
    Column("bottleneck", "", None, "what binds the system's rate"),
    Column(
        "optimal_gpu_wse_ratio",
        "GPU per WSE",
        None,
        "requests/s decoded per wafer over requests/s prefilled per GPU",
    ),
    Column("aggregate_tok_s", "tok/s", "max", "sum of the pools' stand-alone throughputs"),
    Column("best_single_tok_s", "tok/s", "max", "largest stand-alone throughput of the design's pools"),
    Column(
        "complementarity",
        "1",
        "max",
        "throughput over aggregate: above 1 exploited, about 1 absorbed, below obstructed",
    ),
    Column("gain", "1", "max", "throughput over the best single pool of the design"),
    Column("gain_equal_cost", "1", "max", "throughput over the best single-device design scaled to the same cost"),
    Column(
        "gain_equal_power",
        "1",
        "max",
        "throughput over the best single-device design scaled to the same power",
    ),
    Column(
        "gain_apart_equal_cost",
        "1",
        "max",
        "as gain_equal_cost, but against one device with the phases on separate instances and free KV transfer",
    ),
    Column(
        "gain_apart_equal_power",
        "1",
        "max",
        "as gain_equal_power, but against one device with the phases on separate instances and free KV transfer",
    ),
    Column("feasible", "", None, "legal, fits in memory, meets service limits, demand and limits"),
    Column("infeasible_reason", "", None, "why not, with the missing amount"),
    Column("on_front", "", None, "not dominated by any feasible candidate"),
)

SPLIT: tuple[str, ...] = ("pd_serving",)
ROBUST: tuple[str, ...] = ("robust_serving",)
SERVING: tuple[str, ...] = SPLIT + ROBUST
TRAINING: tuple[str, ...] = ("dp_training", "pp_training")
PIPELINE: tuple[str, ...] = ("pp_training",)
_ONLY_IN: dict[str, tuple[str, ...]] = (
    dict.fromkeys(
        (
            "role_<pool>", "prefill_batch_<pool>", "max_decode_batch_<pool>", "weight_dtype", "kv_dtype", "requests_s",
            "input_tok_s", "kv_transfer_byte_s", "prefill_frac_<pool>", "decode_frac_<pool>",
        ),
        SERVING,
    )
    | dict.fromkeys(
        (
            "decode_batch_<pool>", "routing", "ttft_mean_s", "ttft_p99_s",
            "tpot_s", "tok_s_per_user", "kv_out_byte_s_<pool>", "io_use_<pool>", "optimal_gpu_wse_ratio",
            "gain_apart_equal_cost", "gain_apart_equal_power", "load_requests_s", "ttft_load_mean_s", "ttft_load_p50_s",
            "ttft_load_p99_s", "tpot_load_mean_s", "tpot_load_p99_s", "decode_stall_s", "goodput_requests_s",
        ),
        SPLIT,
    )
    | dict.fromkeys(("adaptation", "throughput_worst_tok_s", "headroom", "binding_scenario"), ROBUST)
    | dict.fromkeys(
        (
            "micro_batch_<pool>", "zero_stage_<pool>", "replicas_<pool>", "recompute", "global_batch",
            "throughput_samples_s", "step_time_s", "sync_s", "train_time_s", "train_energy_j",
            "train_cost_usd", "mfu_<pool>",
        ),
        TRAINING,
    )
    | dict.fromkeys(
        (
            "stages_<pool>", "schedule", "chunks", "offload_layers", "collect", "layers", "layout", "pool_order",
            "stage_recompute", "bubble_frac",
        ),
        PIPELINE,
    )
    | {"batch_<pool>": ("dp_training",), "goodput_frac": SPLIT + TRAINING}
)  # fmt: skip
"""Columns that only some paradigms define."""

_PATTERNS = tuple(re.compile(re.escape(c.name).replace("<pool>", ".+") + "$") for c in COLUMNS)
_TEXT = {
    "design_id", "paradigm", "routing", "link", "bottleneck", "feasible", "infeasible_reason", "on_front",
    "weight_dtype", "kv_dtype", "compute_dtype", "role_<pool>", "recompute", "schedule", "layers",
    "layout", "pool_order", "stage_recompute", "adaptation", "binding_scenario",
}  # fmt: skip

_AFTERWARDS = (
    "gain_equal", "gain_apart", "throughput_low", "throughput_high", "cost_low", "cost_high", "usd_per_mtok_",
)  # fmt: skip
"""Known only once a study's single-device designs are, or designs were scored again with other times."""

OBJECTIVE_SENSE: dict[str, Sense] = {
    c.name: c.sense
    for c in COLUMNS
    if c.sense is not None and "<pool>" not in c.name and not c.name.startswith(_AFTERWARDS)
}
"""Columns that may be an objective; gains at equal cost and power, and intervals, are known only after."""


def column(name: str) -> Column | None:
    """The schema of a column, pool columns included.

    >>> column("n_a100-40gb-sxm").unit, column("power_w").sense
    ('devices', 'min')
    """
    for c, pattern in zip(COLUMNS, _PATTERNS, strict=True):
        if c.name == name or ("<pool>" in c.name and pattern.match(name)):
            return c
    return None


def pool_of(name: str) -> str | None:
    """The pool that a pool column is about; None for other columns.

    >>> pool_of("instance_size_wse-3"), pool_of("power_w")
    ('wse-3', None)
    """
    found = column(name)
    if found is None or "<pool>" not in found.name:
        return None
    return name.removeprefix(found.name.removesuffix("<pool>"))


def limit_sense(name: str) -> Sense:
    """Which side of a column is better; None where neither is, or where the column takes no limit."""
    found = column(name)
    return found.sense if found else None


def takes_limit(name: str) -> bool:
    """Whether a limit may name this column: numeric, and known while designs are scored."""
    found = column(name)
    return found is not None and found.name not in _TEXT and not found.name.startswith(_AFTERWARDS)


NUMERIC_COLUMNS: tuple[str, ...] = tuple(c.name for c in COLUMNS if takes_limit(c.name))
"""What limits may name; `<pool>` stands for a pool's name."""


def defined_in(name: str, paradigm: str) -> bool:
    """Whether a paradigm's results have a column.

    >>> defined_in("tpot_s", "pd_serving"), defined_in("tpot_s", "dp_training"), defined_in("power_w", "dp_training")
    (True, False, True)
    """
    found = column(name)
    return found is not None and paradigm in _ONLY_IN.get(found.name, (paradigm,))
