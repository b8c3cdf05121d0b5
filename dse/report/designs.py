"""A design in words: what to buy, what it gives, whether mixing pays, and what holds it back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from dse.report.numbers import label, number, shown
from dse.report.roles import Row, count_of, role_words, step_words, value_of
from dse.resolve import Study
from dse.verdict import word_of

HEADLINE_COLUMNS: Final = (
    "throughput_tok_s",
    "requests_s",
    "step_time_s",
    "train_time_s",
    "train_cost_usd",
    "train_energy_j",
    "cost_usd_per_h",
    "usd_per_mtok",
    "power_w",
    "ttft_p99_s",
    "tpot_s",
)


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One figure of the headline."""

    label: str
    value: str
    unit: str
    note: str = ""


def pools_bought(study: Study, row: Row) -> list[str]:
    """Pools that the design uses."""
    return [p for p in study.space.pool_names if count_of(row, p) > 0]


def part_list(study: Study, row: Row) -> str:
    """Counts and pools: `16 × a100-40gb-sxm + 1 × wse-3`."""
    return " + ".join(f"{count_of(row, p):,} × {p}" for p in pools_bought(study, row)) or "nothing"


def bill_of_materials(study: Study, row: Row) -> str:
    """The design in one sentence."""
    owned = {o.name: o.owned for o in study.problem.pools}
    parts = []
    for pool in pools_bought(study, row):
        n, have = count_of(row, pool), min(owned.get(pool, 0), count_of(row, pool))
        size = count_of(row, pool, "instance_size") if f"instance_size_{pool}" in row.index else 1
        text = f"{n:,} × {pool}"
        if have:
            text += f" ({have:,} already owned)"
        if size > 1:
            text += f" in {n // size:,} instance{'s' if n // size > 1 else ''} of {size}"
        parts.append(f"{text} {role_words(study, row, pool)}".strip())
    verb = "Rent" if study.envelope.site.cost_basis == "rental" else "Buy"
    link = str(row.get("link", "none"))
    joined = f", joined by {_link_words(link)}" if link != "none" else ""
    return f"{verb} {' and '.join(parts) or 'nothing'}{joined}{step_words(row)}{_dtype_words(row)}."


def _dtype_words(row: Row) -> str:
    """Data types, where they are not all the usual one."""
    names = {"weight_dtype": "weights", "kv_dtype": "KV cache", "compute_dtype": "arithmetic"}
    dtypes = {word: str(row[key]) for key, word in names.items() if key in row.index}
    if set(dtypes.values()) <= {"bf16"}:
        return ""
    return ", with " + ", ".join(f"{word} in {dtype}" for word, dtype in dtypes.items())


def _link_words(link: str) -> str:
    """A raw bandwidth reads as one; a tier has its own name."""
    return f"links of {link}" if link.endswith("GB/s") else link.replace(" x ", " × ")


def ratio_text(row: Row) -> str:
    """GPUs for each wafer, in words where there is no such number."""
    ratio = value_of(row, "gpu_wse_ratio")
    if math.isnan(ratio):
        return "–"
    if math.isinf(ratio):
        return "no wafers"
    return "no GPUs" if ratio == 0 else f"{ratio:.4g} : 1"


def headline_figures(row: Row) -> list[Figure]:
    """The figures below the headline: those the paradigm defines."""
    figures = []
    for name in (n for n in HEADLINE_COLUMNS if n in row.index):
        text = shown(name, value_of(row, name))
        value, _, unit = text.partition(" ")
        note = "no bound when run at capacity" if text == "∞" and name.startswith("ttft") else ""
        figures.append(Figure(label=label(name), value=value, unit=unit, note=note))
    if "gpu_wse_ratio" in row.index and not math.isnan(value_of(row, "gpu_wse_ratio")):
        figures.append(Figure(label="GPU : WSE", value=ratio_text(row), unit=""))
    return figures


def verdict(study: Study, row: Row) -> tuple[str, str]:
    """One word on whether the mix pays, and the sentence that says why."""
    if len(pools_bought(study, row)) < 2:
        return "single pool", "The recommended design uses one kind of device; there is nothing to combine."
    c = value_of(row, "complementarity")
    if math.isnan(c):
        return "not defined", "No pool of this design can work alone, so there is nothing to compare with."
    share = f"the mix gives {number(c)} times what its pools give side by side, each on its own"
    word = word_of(c)
    if word == "exploited":
        word = word if _beats_apart(row) else f"{word}, by separating the phases"
        return word, f"The differences of the devices are exploited: {share}. {_apart_words(row)}".strip()
    if word == "obstructed":
        return "obstructed", f"The devices obstruct each other: {share}."
    return "absorbed", f"The differences of the devices are absorbed, neither gain nor loss: {share}."


def _beats_apart(row: Row) -> bool:
    """Whether the mix beats one device with its phases apart, at equal cost or at equal power."""
    gains = [value_of(row, f"gain_apart_equal_{base}") for base in ("cost", "power")]
    return any(math.isnan(gain) or gain > 1 for gain in gains)


def _apart_words(row: Row) -> str:
    """How much of an exploited mix one device could have had by keeping its phases apart."""
    cost, power = value_of(row, "gain_apart_equal_cost"), value_of(row, "gain_apart_equal_power")
    if math.isnan(cost) or math.isnan(power):
        return ""
    if max(cost, power) > 1:
        where = " and ".join(w for w, gain in (("cost", cost), ("power", power)) if gain > 1)
        return f"At equal {where} it also beats one device that keeps prefill and decode on separate instances."
    return (
        "But one device that keeps prefill and decode on separate instances does as well at equal cost and power: "
        "the gain is in separating the phases, not in mixing devices."
    )


def gains(row: Row) -> list[tuple[str, str, str]]:
    """Label, number and meaning of each comparison of the mix."""
    meanings = (
        ("complementarity", "Complementarity", "over the sum of its pools, each working alone"),
        ("gain", "Gain", "over the best of its pools alone"),
        ("gain_equal_cost", "Gain at equal cost", "over the best single-device design of the same cost"),
        ("gain_equal_power", "Gain at equal power", "over the best single-device design of the same power"),
        (
            "gain_apart_equal_cost",
            "Phases apart, equal cost",
            "over one device with a free hand-over between its phases",
        ),
        (
            "gain_apart_equal_power",
            "Phases apart, equal power",
            "over one device with a free hand-over between its phases",
        ),
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
