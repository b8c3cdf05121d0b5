"""Writes the catalogue's fitted profiles and their errors: python benchmarks/profiles.py FOLDER_OF_MEASUREMENTS.

The tables are public measurements; docs/calibration.md says which. Rows are written to
`dse/catalog/efficiency_fitted.csv`, `dse/catalog/accuracy.csv` and `dse/catalog/sources_fitted.csv`.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
from megatron import megatron

from dse.calibration.accuracy import ENOUGH_ROWS, accuracy, interval
from dse.calibration.data import Measurements, Names, load_all
from dse.calibration.fit import log_errors
from dse.calibration.profiles import (
    ALIVE,
    HARDWARE,
    LONGEST_TRAINED,
    PLAIN,
    Profile,
    cautious,
    quantity_errors,
    stack_profiles,
)
from dse.catalog import load_catalog
from dse.catalog.accuracy import HEAD as ACCURACY_HEAD
from dse.hardware import Efficiency, Phase

CATALOG = Path(__file__).parent.parent / "dse" / "catalog"
DATA: Mapping[str, tuple[str, str]] = {
    "serving, static batches": ("LLM-Inference-Bench (Argonne, 2025-07), static batches end to end", "2025-07"),
    "serving under load": ("InferenceX points as NVIDIA aiconfigurator 0.12 ships them, under load", "2026-04"),
    "serving, phases apart": ("Splitwise lab runs (2024-04), Llama-2-70B on four GPUs", "2024-04"),
    "serving, one request": ("WaferLLM (OSDI 2025, arXiv 2502.04563), batch 1 on WSE-2", "2025"),
    "training, sharded": ("MosaicML llm-foundry MPT runs (2025-07), FSDP", "2025-07"),
    "training, wafer": ("Zhang et al., arXiv 2409.00287 (CS-2), and two ALCF logs (CS-3)", "2025-12"),
}
"""Layout -> what its rows are, and their date."""
CARRIED: Mapping[tuple[str, str], str] = {
    ("a100-80gb-sxm", "tensorrt-llm"): "a100-40gb-sxm",
    ("a100-80gb-sxm", "vllm"): "a100-40gb-sxm",
    ("wse-3", "waferllm"): "wse-2",
    ("h200-141gb-sxm", "fsdp"): "h100-80gb-sxm",
    ("a100-40gb-sxm", "fsdp"): "a100-80gb-sxm",
}
"""Profiles of a near relative, taken over."""
DEFAULTS: Mapping[str, tuple[str, ...]] = {
    "a100-40gb-sxm": ("serving, static batches",),
    "a100-80gb-sxm": ("training, sharded",),
    "h100-80gb-sxm": ("serving, static batches", "training, sharded"),
    "h200-141gb-sxm": ("serving under load",),
    "b200-180gb-sxm": ("serving under load",),
    "wse-2": ("serving, one request", "training, wafer"),
    "wse-3": ("training, wafer",),
}
"""Devices whose default profile is measured, and from which layouts."""
DEFAULT_CARRIED: tuple[tuple[str, Phase, str], ...] = (
    ("a100-40gb-sxm", "train", "a100-80gb-sxm"),
    ("a100-80gb-sxm", "prefill", "a100-40gb-sxm"),
    ("a100-80gb-sxm", "decode", "a100-40gb-sxm"),
    ("h200-141gb-sxm", "train", "h100-80gb-sxm"),
    ("wse-3", "prefill", "wse-2"),
    ("wse-3", "decode", "wse-2"),
)
PREFILL_RULE = " Prefill has the lowest shares and the longest fixed time of its stacks."
FP8_SPEED = 1.35
"""Training with fp8 matrix products against bf16."""
WIDER = 1.5
"""A carried profile's interval, in logarithms, against that of its relative."""
HEAD = ("device", "profile", "phase", "dtype", "parameter", "value", "unit", "low", "high", "source", "date", "grade")
OMITTED: Mapping[str, float | None] = {"attention": None, "sequence_s": 0.0, "exposed": 1.0}
"""Values that say nothing."""
KEY = {"fixed_layer_s": ("fixed_layer", "us", 1e6), "sequence_s": ("sequence", "us", 1e6)}


def main(folder: Path) -> None:
    """Fits, and writes the three tables."""
    tables = load_all([folder], Names(), "")
    found = list(stack_profiles(tables))
    efficiency: list[Sequence[str]] = []
    accuracies: list[Sequence[str]] = []
    sources: dict[str, str] = {}
    for p in found:
        rows, errors, source = written(p)
        efficiency += rows
        accuracies += errors
        sources |= source
    efficiency += lone_dtypes(efficiency)
    accuracies += lone_errors(accuracies)
    add_fp8_training(efficiency, accuracies, sources)
    carried(efficiency, accuracies, sources)
    defaults(tables, found, efficiency, accuracies, sources)
    add_megatron(efficiency, accuracies, sources)
    save("efficiency_fitted.csv", HEAD, efficiency)
    save("accuracy.csv", ACCURACY_HEAD, accuracies)
    save("sources_fitted.csv", ("source", "citation"), sorted(sources.items()))


def written(p: Profile) -> tuple[list[Sequence[str]], list[Sequence[str]], dict[str, str]]:
    """Catalogue rows of one profile: its numbers, its errors, its citation."""
    what, date = DATA[p.layout.name]
    source = "-".join(filter(None, ("fit", p.profile, p.device, "" if p.dtype == "bf16" else p.dtype)))
    dtype = "" if p.dtype == "bf16" else p.dtype
    errors, texts = [], []
    for q in p.layout.quantities:
        if not q.phases:
            continue
        own, out, (low, high) = quantity_errors(p, q.name)
        texts.append(
            f"{q.name.removesuffix('_s')} {own.median_pct:.1f} / {own.p90_pct:.1f} % (median / p90), "
            f"{out.median_pct:.1f} / {out.p90_pct:.1f} % on folds that the fit did not see"
        )
        for phase in [x for x in p.efficiency if x in q.phases]:
            errors.append((
                p.device, p.profile, phase, dtype, q.name, str(own.n), f"{own.median_pct:.1f}", f"{own.p90_pct:.1f}",
                f"{own.bias_pct:.1f}", f"{out.median_pct:.1f}", f"{out.p90_pct:.1f}", f"{low:.3f}", f"{high:.3f}",
                source,
            ))  # fmt: skip
    citation = (
        f"Fit of {p.fit.n} times of {what}; {p.n_models} models, {p.n_shapes} shapes, {p.dtype}. "
        f"Error {'; '.join(texts)}. Numbers that the data cannot tell stay near typical ones."
    )
    ranges = {t: (f.low, f.high) for f in p.fit.numbers for t in f.parameter.targets}
    told = {t for f in p.fit.numbers if f.identified for t in f.parameter.targets}
    rows = []
    for phase, e in p.efficiency.items():
        for key in (*PLAIN, *OMITTED):
            value = getattr(e, key)
            if key in OMITTED and value == OMITTED[key]:
                continue
            known = (phase, key) in told
            low, high = ranges.get((phase, key)) or hardware_range(p.device, phase, key)
            rows.append(
                row(p.device, p.profile, phase, dtype, key, value, low, high, source, date, "B" if known else "D")
            )
    return rows, errors, {source: citation}


def hardware_range(device: str, phase: str, key: str) -> tuple[float, float]:
    """What the catalogue knows of a number that a fit left as the hardware's, in SI."""
    name, _, factor = KEY.get(key, (key, "1", 1.0))
    for f in load_catalog().facts_of("devices", device):
        if (f.profile, f.phase, f.dtype, f.parameter) == (HARDWARE, phase, "", name):
            return float(f.low) / factor, float(f.high) / factor
    raise KeyError(f"{device}: no {phase} {name} of the profile {HARDWARE}")


def row(device: str, profile: str, phase: str, dtype: str, key: str, value: float, low: float, high: float,
        source: str, date: str, grade: str) -> Sequence[str]:  # fmt: skip
    """One number as the catalogue prints it."""
    name, unit, factor = KEY.get(key, (key, "1", 1.0))
    shown = [f"{x * factor:.4g}" for x in (value, min(low, value), max(high, value))]
    ends = shown[1:] if shown[1] != shown[2] or grade == "D" else ["", ""]
    return (device, profile, phase, dtype, name, shown[0], unit, *ends, source, date, grade)


def lone_dtypes(rows: list[Sequence[str]]) -> list[Sequence[str]]:
    """Rows without a data type for profiles measured in fp8 or fp4 only: fp8's stand for the rest."""
    have = {tuple(r[:3]) for r in rows if not r[3]}
    wanted = [r for r in rows if r[3] and tuple(r[:3]) not in have]
    first = {tuple(r[:3]): min((x[3] for x in wanted if x[:3] == r[:3]), key=("fp8", "fp4").index) for r in wanted}
    return [(*r[:3], "", *r[4:11], "C") for r in wanted if r[3] == first[tuple(r[:3])]]


def lone_errors(rows: list[Sequence[str]]) -> list[Sequence[str]]:
    """Error rows without a data type for the same profiles: carried over from fp8, with wider intervals."""
    have = {tuple(r[:3]) for r in rows if not r[3]}
    found = []
    for r in rows:
        if r[3] == "fp8" and tuple(r[:3]) not in have:
            low, high = (float(x) ** WIDER for x in r[11:13])
            found.append((*r[:3], "", r[4], "0", "", "", "", "", "", f"{low:.3f}", f"{high:.3f}", r[13]))
    return found


def carried(efficiency: list[Sequence[str]], accuracies: list[Sequence[str]], sources: dict[str, str]) -> None:
    """Profiles taken over from a near relative, with wider intervals."""
    for (device, profile), relative in CARRIED.items():
        source = f"carried-{profile}-{device}"
        sources[source] = (
            f"Carried over from {relative}, profile {profile}: no measurement of this device with this stack. The "
            f"interval is {WIDER:g} times as wide in logarithms."
        )
        taken = [r for r in efficiency if (r[0], r[1]) == (relative, profile)]
        efficiency += [(device, *r[1:9], source, r[10], max(r[11], "C")) for r in taken]
        for r in [r for r in accuracies if (r[0], r[1]) == (relative, profile)]:
            low, high = (float(x) ** WIDER for x in r[11:13])
            accuracies.append((device, *r[1:5], "0", "", "", "", "", "", f"{low:.3f}", f"{high:.3f}", source))


def add_fp8_training(efficiency: list[Sequence[str]], accuracies: list[Sequence[str]], sources: dict[str, str]) -> None:
    """Sharded training with fp8 matrix products on H100: the bf16 fit, that much faster; attention stays in bf16."""
    device, source = "h100-80gb-sxm", "estimate-fsdp-fp8"
    sources[source] = (
        f"Estimate: training with fp8 matrix products runs {FP8_SPEED:g} times as fast as in bf16 (MosaicML and "
        "CoreWeave, 2023: a 7B model in fp8 on H100 3 times as fast as in bf16 on A100, where bf16 runs about 2.2 "
        "times as fast). "
        f"The interval is {WIDER:g} times as wide in logarithms."
    )
    halved = {"compute": FP8_SPEED / 2.0, "attention": 0.5}
    for r in [r for r in efficiency if (r[0], r[1], r[3]) == (device, "fsdp", "")]:
        low, value, high = (f"{float(x or r[5]) * halved.get(r[4], 1.0):.4g}" for x in (r[7], r[5], r[8]))
        efficiency.append((*r[:3], "fp8", r[4], value, r[6], low, high, source, "2023", "D"))
    for r in [r for r in accuracies if (r[0], r[1]) == (device, "fsdp")]:
        low, high = (float(x) ** WIDER for x in r[11:13])
        accuracies.append((*r[:3], "fp8", r[4], "0", "", "", "", "", "", f"{low:.3f}", f"{high:.3f}", source))


def defaults(
    tables: Sequence[Measurements],
    stacks: Sequence[Profile],
    efficiency: list[Sequence[str]],
    accuracies: list[Sequence[str]],
    sources: dict[str, str],
) -> None:
    """Default profiles: cautious, three numbers a phase; and how cautious they turn out."""
    chosen: dict[tuple[str, Phase], tuple[Efficiency, str]] = {}
    for device, layouts in DEFAULTS.items():
        for layout in layouts:
            m = next(m for m in tables if m.layout.name == layout)
            rows = m.rows[m.rows["device"] == device]
            if "sequence_tokens" in rows and "micro_batch" in rows:
                node = Names().device(device, HARDWARE).node_size
                rows = rows[(rows["sequence_tokens"] <= LONGEST_TRAINED) & (rows["n"] <= node)]
            source = f"cautious-{device}-{layout.split(',')[0].split()[0]}"
            sources[source] = (
                f"The law's three numbers, slow rather than fast: {DATA[layout][0]}, all stacks ({len(rows)} rows of "
                "this device), slowed until three quarters of the measured points are at least as fast."
                + (PREFILL_RULE if layout in ALIVE else "")
            )
            numbers = cautious(m, rows, device, stacks)
            chosen |= {(device, phase): (e, source) for phase, e in numbers.items()}
            note_default(m, rows, device, numbers, accuracies, source)
    for device, phase, relative in DEFAULT_CARRIED:
        source = f"cautious-{device}-carried"
        sources[source] = (
            f"Carried over from the default profile of {relative}: same architecture, no measurement of its own."
        )
        chosen[device, phase] = (chosen[relative, phase][0], source)
        for r in [r for r in accuracies if r[:3] == (relative, "default", phase)]:
            low, high = (float(x) ** WIDER for x in r[11:13])
            accuracies.append((device, *r[1:5], "0", "", "", "", "", "", f"{low:.3f}", f"{high:.3f}", source))
    for device in DEFAULTS:
        for phase in ("train", "prefill", "decode"):
            if (device, phase) not in chosen:
                source = f"cautious-{device}-hardware"
                sources[source] = "As in the profile hardware: nothing was measured."
                chosen[device, phase] = (Names().device(device, HARDWARE).efficiency[phase], source)
    for (device, phase), (e, source) in chosen.items():
        grade = "D" if source.endswith("hardware") else "C" if "carried" in source else "B"
        for key in PLAIN:
            value = getattr(e, key)
            low, high = hardware_range(device, phase, key) if grade == "D" else (value, value)
            efficiency.append(row(device, "default", phase, "", key, value, low, high, source, "2026-11", grade))


def note_default(
    m: Measurements,
    rows: pd.DataFrame,
    device: str,
    numbers: Mapping[Phase, Efficiency],
    accuracies: list[Sequence[str]],
    source: str,
) -> None:
    """Error and interval of a default profile on all rows of its device."""
    names = Names()
    base = names.device(device, HARDWARE)
    cautious = replace(base, efficiency={**base.efficiency, **numbers})
    errors = log_errors(m.layout, rows, cautious, names.model)
    for q in m.layout.quantities:
        own = accuracy(errors[q.name])
        if not q.phases or not own.n:
            continue
        for phase in [x for x in numbers if x in q.phases]:
            low, high = interval(errors[q.name].replace([np.inf, -np.inf], np.nan))
            seen = [r for r in accuracies if (r[0], r[2], r[4]) == (device, phase, q.name) and r[1] != "default"]
            if own.n < ENOUGH_ROWS and seen:  # a few rows that were fitted to say too little of new ones
                low = min([low, *(float(r[11]) for r in seen)])
                high = max([high, *(float(r[12]) for r in seen)])
            accuracies.append((
                device, "default", phase, "", q.name, str(own.n), f"{own.median_pct:.1f}", f"{own.p90_pct:.1f}",
                f"{own.bias_pct:.1f}", "", "", f"{low:.3f}", f"{high:.3f}", source,
            ))  # fmt: skip


def add_megatron(efficiency: list[Sequence[str]], accuracies: list[Sequence[str]], sources: dict[str, str]) -> None:
    """Megatron-LM's tensor and pipeline parallel training on A100, fitted with the pipeline model."""
    m, device, source = megatron(), "a100-80gb-sxm", "fit-megatron-a100-80gb-sxm"
    sources[source] = (
        "Fit of the pipeline model to eight iterations of Megatron-LM, 22B to 1T (Korthikanti et al., arXiv "
        f"2205.05198, tables 3 and 5, 2022). Error {m.own.median_pct:.1f} / {m.own.p90_pct:.1f} % (median / p90); "
        f"each model predicted by a fit to the others {m.held_out.median_pct:.1f} / {m.held_out.p90_pct:.1f} %, mean "
        f"{m.mean_pct:.1f} %, worst {m.worst_pct:.1f} %. Attention there was not fused. The fixed time is the "
        "hardware's."
    )
    for key, value, grade in (
        ("compute", m.compute, "B"), ("attention", m.attention, "B"), ("memory", 0.8, "D"),
        ("fixed_layer_s", 1e-4, "D"),
    ):  # fmt: skip
        low, high = hardware_range(device, "train", key) if grade == "D" else (value, value)
        efficiency.append(row(device, "megatron", "train", "", key, value, low, high, source, "2022-05", grade))
    accuracies.append((
        device, "megatron", "train", "", "step_s", str(m.own.n), f"{m.own.median_pct:.1f}", f"{m.own.p90_pct:.1f}",
        f"{m.own.bias_pct:.1f}", f"{m.held_out.median_pct:.1f}", f"{m.held_out.p90_pct:.1f}", f"{m.low:.3f}",
        f"{m.high:.3f}", source,
    ))  # fmt: skip


def save(name: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """One table of the catalogue."""
    with (CATALOG / name).open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(head)
        writer.writerows(sorted(rows))
    print(f"{name}: {len(rows)} rows")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(str(__doc__).splitlines()[0])
    main(Path(sys.argv[1]))
