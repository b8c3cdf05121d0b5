"""A design in words: what to buy, what it gives, how it compares, and what to beware of."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from dse.report.layout import dtype_words, plural, role_words
from dse.report.numbers import number, shown, shown_unit
from dse.report.rows import Row, count_of, pools_bought, ratio_text, size_of, value_of
from dse.report.words import label
from dse.resolve import Study
from dse.uncertainty import INTERVALS
from dse.verdict import Verdict

HEADLINE_COLUMNS: Final = (
    "throughput_tok_s",
    "throughput_samples_s",
    "step_time_s",
    "throughput_worst_tok_s",
    "headroom",
    "requests_s",
    "cost_usd_per_h",
    "usd_per_mtok",
    "power_w",
    "ttft_p99_s",
    "tpot_s",
    "train_time_s",
    "train_cost_usd",
    "train_energy_j",
    "goodput_frac",
    "bubble_frac",
)


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One figure of the headline."""

    label: str
    value: str
    unit: str
    note: str = ""


def bill_of_materials(study: Study, row: Row) -> str:
    """The design in one sentence."""
    owned = {o.name: o.owned for o in study.problem.pools}
    parts = []
    for pool in pools_bought(study, row):
        n, have = count_of(row, pool), min(owned.get(pool, 0), count_of(row, pool))
        size = size_of(row, pool)
        text = f"{n:,} × {pool}"
        if have:
            text += f" ({have:,} already owned)"
        if size > 1:
            text += f" in {plural(n // size, 'instance')} of {size}"
        parts.append(f"{text} {role_words(study, row, pool)}".strip())
    verb = "Rent" if study.envelope.site.cost_basis == "rental" else "Buy"
    link = str(row.get("link", "none"))
    joined = f", joined by {_link_words(link)}" if link != "none" else ""
    return f"{verb} {' and '.join(parts) or 'nothing'}{joined}{dtype_words(row)}."


def _link_words(link: str) -> str:
    """A raw bandwidth reads as one; a tier has its own name."""
    return f"links of {link}" if link.endswith("GB/s") else link.replace(" x ", " × ")


def headline_figures(study: Study, row: Row) -> list[Figure]:
    """The figures below the headline: those the paradigm defines, of the pools that are bought."""
    figures = []
    for name in (n for n in HEADLINE_COLUMNS if n in row.index):
        if name == "goodput_frac" and value_of(row, name) == 1:
            continue  # nothing fails in this study
        text = shown(name, value_of(row, name))
        value, _, unit = text.partition(" ")
        note = "no bound when run at capacity" if text == "∞" and name.startswith("ttft") else _span(row, name)
        figures.append(Figure(label=label(name, study.envelope.paradigm), value=value, unit=unit, note=note))
    used = [pool for pool in pools_bought(study, row) if f"mfu_{pool}" in row.index]
    if used:
        mfu = " / ".join(number(value_of(row, f"mfu_{pool}") * 100) for pool in used)
        figures.append(Figure(label=f"MFU of {' / '.join(used)}", value=mfu, unit="%"))
    ratio = value_of(row, "gpu_wse_ratio")
    if math.isfinite(ratio) and ratio > 0:
        figures.append(Figure(label="GPU : WSE", value=ratio_text(row), unit=""))
    return figures


def _span(row: Row, name: str) -> str:
    """The interval of a figure, where it has one; of a cost the range of prices."""
    if name not in INTERVALS or INTERVALS[name][0] not in row.index:
        return ""
    low, high = (number(value_of(row, end) * shown_unit(name)[0]) for end in INTERVALS[name])
    return f"{SPANS[name]}: {low} to {high}" if low != high else ""


SPANS: Final = {
    "throughput_tok_s": "80 %",
    "cost_usd_per_h": "over the prices",
    "usd_per_mtok": "over times and prices",
}
"""What the ends of a figure are of."""


def columns_of(figures: list[Figure]) -> int:
    """Figures side by side on a wide page: as few gaps in the last line as can be."""
    return min((4, 5), key=lambda n: (-len(figures) % n, n))


def verdict_tag(verdict: Verdict) -> tuple[str, str]:
    """The word as it stands on the page, and the colour it has: none where a caveat takes from it."""
    word = verdict["word"]
    if verdict["caveat"]:
        return f"{word}, {verdict['caveat']}", "plain"
    equal = [gain for gain in (verdict["gain_equal_cost"], verdict["gain_equal_power"]) if gain is not None]
    wins = any(gain > 1 for gain in equal) or not equal
    return word, word.replace(" ", "-") if wins or word != "exploited" else "plain"


def gains(row: Row) -> list[tuple[str, str, str]]:
    """Label, number and meaning of each comparison of the mix."""
    apart = "over one device with a free hand-over between its phases"
    meanings = (
        ("complementarity", "Complementarity", "over the sum of its pools, each on its own"),
        ("gain", "Gain", "over the best of its pools alone"),
        ("gain_equal_cost", "Gain at equal cost", "over the best single-device design of the same cost"),
        ("gain_equal_power", "Gain at equal power", "over the best single-device design of the same power"),
        ("gain_apart_equal_cost", "Phases apart, equal cost", apart),
        ("gain_apart_equal_power", "Phases apart, equal power", apart),
    )
    return [
        (name, f"{number(value_of(row, key))} ×", meaning)
        for key, name, meaning in meanings
        if key in row.index and not math.isnan(value_of(row, key))
    ]


def port_warnings(row: Row, pools: Sequence[str]) -> list[str]:
    """Pools whose own ports would not carry what the link does."""
    return [
        f"the KV cache through {pool} is {value_of(row, f'io_use_{pool}'):.2f} times what its own ports carry; "
        f'hold designs to them with [limits] "io_use_{pool}" = 1'
        for pool in pools
        if f"io_use_{pool}" in row.index and value_of(row, f"io_use_{pool}") > 1.0 + 1e-9
    ]
