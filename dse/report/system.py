"""The figures of a whole design as its explanation gives them: those that are there, in words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from dse.report.numbers import keyed
from dse.report.words import label

FIGURES: Final[Mapping[str, tuple[str, str]]] = {
    "requests_s": ("Requests", "served at capacity"),
    "step_s": ("Step", "from one update of the weights to the next"),
    "compute_s": ("Pools at work", "from the start of a step until the slowest pool is done"),
    "exposed_s": ("Exchange the step waits for", "gradients on their way, which no arithmetic hides"),
    "path_s": ("Path", "of one micro-batch through all stages, there and back"),
    "micro_batches": ("Micro-batches", "that each pipeline takes in a step"),
    "bubble_frac": ("Bubble", "share of the step in which the stages stand idle, on average"),
    "layers": ("Layers", "of each stage, first to last"),
    "verdict": ("Layers on stages", "whether their structure is sound and everything fits"),
    "offload_threshold_s": ("Offload threshold", "time of a layer on the wafers below which handing one over pays"),
    "wafer_layer_s": ("Layer on the wafers", "time of one micro-batch through it"),
    "threshold_1_batch": ("Threshold 1", "smallest global batch at which the mix is faster than each pool alone"),
    "threshold_2_batch": (
        "Threshold 2",
        "smallest global batch from which on the mix keeps 95 % of its pools side by side",
    ),
    "least_link_byte_s": ("Least link", "bandwidth at which the mix is as fast as its best pool alone, at this batch"),
    "aggregate_tok_s": ("Pools side by side", "sum of the pools, each alone"),
    "best_single_tok_s": ("Best pool alone", "the larger of them"),
}
"""Key of an explanation -> what it is called, and what it is. Keys that are not here are printed under their name."""
NEVER: Final[Mapping[str, str]] = {
    "threshold_1_batch": "at no batch tried",
    "threshold_2_batch": "at no batch tried",
    "least_link_byte_s": "none is wide enough",
}
"""What it means that a figure is infinite."""
APART: Final = (
    "sum_g_flop_s", "f_overlap_flop_s", "link_bound_flop_s", "f_flop_s",
    "link_byte_s", "link_need_byte_s", "links_bought", "link_cost_usd_per_h", "link_power_w",
)  # fmt: skip
"""Keys that are printed together: the bounds of eq. (2), the links."""


def unhindered_flop_s(s: Mapping[str, Any]) -> float:
    """Sum of g if no pool waited for the exchange, where that differs from sum g and is told."""
    return float(s.get("f_overlap_flop_s", s["sum_g_flop_s"]))


def overlap_flop_s(s: Mapping[str, Any]) -> float:
    """Rate at full overlap, eq. (2): min(sum g, v S), with g as it is if no pool waits for the exchange."""
    bound = s["link_bound_flop_s"]
    return unhindered_flop_s(s) if bound is None else min(unhindered_flop_s(s), float(bound))


def figure_lines(s: Mapping[str, Any], paradigm: str) -> list[tuple[str, str, str]]:
    """Name, value and meaning of every figure besides eq. (2) and the links; what is absent is left out."""
    lines = []
    for key in sorted(s, key=_place):
        if key in APART or s[key] is None or isinstance(s[key], Mapping):
            continue
        name, meaning = FIGURES.get(key, (label(key, paradigm), ""))
        never = isinstance(s[key], float) and math.isinf(s[key])
        lines.append((name, NEVER.get(key, "∞") if never else keyed(key, s[key]), meaning))
    return lines


def _place(key: str) -> int:
    """Known figures in the order above, unknown ones after them."""
    return list(FIGURES).index(key) if key in FIGURES else len(FIGURES)
