"""What a paradigm's columns, pools and terms are called: a page speaks of serving or of training, never of both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from dse.columns import column, pool_of
from dse.report.numbers import shown_unit

LABELS: Final[Mapping[str, str]] = {
    "throughput_tok_s": "Throughput",
    "throughput_samples_s": "Samples",
    "step_time_s": "Step time",
    "sync_s": "Exposed exchange",
    "global_batch": "Global batch",
    "bubble_frac": "Pipeline bubble",
    "goodput_frac": "Goodput",
    "train_time_s": "Time to train",
    "train_energy_j": "Energy of the run",
    "train_cost_usd": "Cost of the run",
    "mfu_<pool>": "MFU of <pool>",
    "requests_s": "Requests",
    "throughput_worst_tok_s": "Throughput in the worst scenario",
    "headroom": "Headroom",
    "input_tok_s": "Input throughput",
    "ttft_mean_s": "TTFT mean",
    "ttft_p99_s": "TTFT p99",
    "tpot_s": "TPOT",
    "tok_s_per_user": "Speed of one user",
    "cost_usd_per_h": "Cost",
    "usd_per_mtok": "Cost of a million tokens",
    "power_w": "Provisioned power",
    "power_mean_w": "Mean power",
    "energy_j_per_tok": "Energy of a token",
    "co2_g_per_mtok": "Carbon of a million tokens",
    "mem_margin_byte": "Memory margin",
    "recompute": "Recompute",
    "schedule": "Schedule",
    "layers": "Layers",
    "gpu_wse_ratio": "GPUs per wafer",
    "gain": "Gain over best pool alone",
    "gain_equal_cost": "Gain at equal cost",
    "gain_equal_power": "Gain at equal power",
}

Terms = tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class Words:
    """What one paradigm calls things."""

    throughput: str = "Throughput"
    layout: str = "Layout"
    """Head of the table's column that says what each pool does."""
    eta: str = "idle over busy"
    """What eta is here."""
    pools: str = "What each pool does."
    """Above the table of pools: over which time, and what eta is there."""
    terms: Terms = ()
    """Glossary, besides what every paradigm has."""


SERVING_TERMS: Final[Terms] = (
    ("TTFT", "time to first token: from a request's arrival to its first output token; p99 is what 99 of 100 "
     "requests stay below. At capacity a queue can grow without bound, printed as ∞."),
    ("TPOT", "time per output token after the first."),
    ("η (eta)", "what the mix costs a pool: its idle time over its busy time, so that u = u_HO / (1 + η). In "
     "serving it is what the matched flow of requests leaves unused."),
)  # fmt: skip

ROBUST_TERMS: Final[Terms] = (
    ("Scenario", "one situation that the fleet must serve: a mix of requests, a demand, and what is up of each pool."),
    ("Headroom", "capacity over demand in the scenario where it is least: at 1 every demand is just met."),
    ("Fixed split", "roles and set-up of every pool stay as they are in all scenarios."),
    ("Work stealing", "requests go wherever they serve best in each scenario; roles are ignored."),
    ("Adaptive", "as work stealing, and each pool's devices are divided anew among instances."),
    ("TPOT", "time per output token after the first."),
    ("η (eta)", "what the mix costs a pool: its idle time over its busy time, so that u = u_HO / (1 + η). Here it is "
     "what the scenarios leave unused on average."),
)  # fmt: skip

TRAINING_TERMS: Final[Terms] = (
    ("Step", "one update of the weights, from all samples of a global batch; a sample is one sequence of tokens."),
    ("Replica", "one copy of the model, on one instance or on the instances of one pipeline."),
    ("Micro-batch", "samples that a replica works on at once; a streaming device takes its whole share at once."),
    ("ZeRO stage", "what the replicas of a pool share of the training states: 1 the optimizer's, 2 the gradients "
     "too, 3 the weights too."),
    ("Recompute", "activations that are made again in the backward pass to save memory: none, selective, full."),
    ("MFU", "model flop utilisation: the arithmetic that the model asks for, without recomputation, over the dense "
     "peak of all devices of a pool."),
    ("Goodput", "share of the time in which the run gets on: without checkpoints, restarts and what failures undo."),
)  # fmt: skip

BARRIER_TERMS: Final[Terms] = (
    ("η (eta)", "what the mix costs a pool: its idle time over its busy time, so that u = u_HO / (1 + η). In data "
     "parallel training it is the waiting at the barrier, for the slowest pool and for the exchange of gradients."),
    ("Thresholds", "1: the smallest global batch at which the mix is faster than each pool alone; 2: the smallest "
     "from which on it keeps 95 % of what its pools give side by side."),
)  # fmt: skip

PIPELINE_TERMS: Final[Terms] = (
    ("Stage", "consecutive layers of the model on one instance; micro-batches pass from stage to stage."),
    ("η (eta)", "what the mix costs a pool: its idle time over its busy time, so that u = u_HO / (1 + η). In a "
     "pipeline it is the bubble: fill, drain, and waiting for the slowest stage."),
    ("Offload", "layers of every stage that wafers compute, a number of micro-batches at once (collect)."),
)  # fmt: skip

COMMON_TERMS: Final[Terms] = (
    ("u_HO", "share of the binding resource's peak that a pool reaches while it is never idle."),
    ("Complementarity", "throughput of the mix over the sum of its pools, each on its own: above 1 the "
     "differences of the devices are exploited, about 1 absorbed, below 1 they obstruct."),
    ("Gain", "throughput of the mix over the best of its pools alone; at equal cost or power, over the "
     "study's best single-device design scaled to the same cost or power."),
    ("PUE", "power usage effectiveness: power of the site over that of its machines; in all "
     "power and energy here."),
    ("Provisioned power", "what the site must be able to supply: every device at its full power."),
    ("Frontier", "the designs that no other feasible one beats in an objective without losing in another."),
)  # fmt: skip

WORDS: Final[Mapping[str, Words]] = {
    "pd_serving": Words(
        throughput="Output throughput",
        layout="Roles",
        eta="unused over used",
        pools="What each pool does at capacity. η is what the matched flow of requests leaves unused of a pool. "
        "Arithmetic and memory traffic overlap, so their shares of the busy time can add up to more than all of it.",
        terms=SERVING_TERMS,
    ),
    "robust_serving": Words(
        throughput="Expected output throughput",
        layout="Roles",
        eta="unused over used",
        pools="What each pool does at capacity, averaged over the scenarios. η is what they leave unused of a pool, "
        "spares and devices that are down included.",
        terms=ROBUST_TERMS,
    ),
    "dp_training": Words(
        throughput="Training throughput",
        layout="Samples of a step",
        eta="waiting over working",
        pools="What each pool does in a step. η is its waiting at the barrier, for the slowest pool and for the "
        "exchange of gradients, over its working time.",
        terms=TRAINING_TERMS + BARRIER_TERMS,
    ),
    "pp_training": Words(
        throughput="Training throughput",
        layout="Pipelines × stages",
        eta="bubble over working",
        pools="What each pool does in a step. η is the bubble of its stages over their working time: fill, drain, "
        "and waiting for the slowest.",
        terms=TRAINING_TERMS + PIPELINE_TERMS,
    ),
}
PLAIN: Final = Words()
"""Of a paradigm that has no words of its own yet."""


def words_of(paradigm: str) -> Words:
    """What a paradigm calls things."""
    return WORDS.get(paradigm, PLAIN)


def label(name: str, paradigm: str) -> str:
    """A result column's name in the words of a paradigm.

    >>> label("throughput_tok_s", "dp_training"), label("mfu_wse-3", "dp_training"), label("power_w", "pd_serving")
    ('Training throughput', 'MFU of wse-3', 'Provisioned power')
    """
    if name == "throughput_tok_s":
        return words_of(paradigm).throughput
    known, pool = column(name), pool_of(name)
    if known is not None and pool is not None and known.name in LABELS:
        return LABELS[known.name].replace("<pool>", pool)
    return LABELS.get(name, name.replace("_", " "))


def inside(name: str, paradigm: str) -> str:
    """The label in the middle of a sentence: a word starts small, an abbreviation stays.

    >>> inside("power_w", "pd_serving"), inside("ttft_p99_s", "pd_serving")
    ('provisioned power', 'TTFT p99')
    """
    text = label(name, paradigm)
    return text[:1].lower() + text[1:] if text[1:2].islower() else text


def axis_title(name: str, paradigm: str) -> str:
    """Label with unit, as an axis or a table head prints it.

    >>> axis_title("power_w", "pd_serving"), axis_title("train_time_s", "dp_training")
    ('Provisioned power [kW]', 'Time to train [days]')
    """
    unit = shown_unit(name)[1]
    return f"{label(name, paradigm)} [{unit}]" if unit else label(name, paradigm)


def glossary(paradigm: str) -> Terms:
    """Terms that a paradigm's page uses."""
    return words_of(paradigm).terms + COMMON_TERMS
