"""How far to trust a study's numbers: what measurements say of its profiles, and what moves the pick most."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dse.catalog import ProfileError, load_catalog
from dse.hardware import Phase
from dse.report.numbers import number, shown
from dse.resolve import Study
from dse.uncertainty import phases_of, time_sources

QUANTITIES: Final[Mapping[str, str]] = {
    "e2e_s": "whole requests",
    "ttft_s": "time to first token under load",
    "tpot_s": "time per token under load",
    "prefill_s": "prefill passes",
    "decode_step_s": "decode steps",
    "step_s": "training steps",
}
EFFECT_OF: Final = {"throughput_tok_s": "Throughput", "cost_usd_per_h": "Cost"}


@dataclass(frozen=True, kw_only=True)
class TrustRow:
    """One phase of one pool: what its times were compared with."""

    pool: str
    profile: str
    phase: str
    measured: str
    error: str
    """Median and p90 of |predicted/measured - 1|."""
    held_out: str
    interval: str
    source: str


@dataclass(frozen=True, kw_only=True)
class EffectRow:
    """One source of doubt about the pick, with a bar from low to high around the value."""

    column: str
    source: str
    ends: str
    basis: str
    left: float
    """Where the bar starts, in percent of the widest."""
    width: float
    at: float
    """Where the value is."""


@dataclass(frozen=True, kw_only=True)
class Trust:
    """What the page says of its own error."""

    rows: list[TrustRow]
    effects: list[EffectRow]
    summary: str


def trust(study: Study, info: Mapping[str, Any], row: Mapping[str, Any] | None) -> Trust:
    """Rows for every pool and phase of the study; effects of the recommended design where there is one."""
    found = info.get("trust") or {}
    effects = _effects(found.get("effects", ()), row) if row is not None else []
    rows = _rows(study)
    return Trust(rows=rows, effects=effects, summary=_summary(rows, found, row))


def _rows(study: Study) -> list[TrustRow]:
    known = load_catalog()
    phases = phases_of(study)
    dtype = study.problem.compute_dtypes[0]
    asked = study.envelope.model_dump()["pool"]
    rows = []
    for offer, pool in zip(study.problem.pools, asked, strict=True):
        in_catalogue = pool["device"] in known.devices and (offer.device.efficiency[phases[0]].times is None)
        for phase in phases:
            profile = _profile(pool, phase) if in_catalogue else pool["profile"]
            errors = known.errors_of(pool["device"], profile, phase, dtype) if in_catalogue else ()
            rows.append(_row(study, offer.name, profile, phase, errors[0] if errors else None))
    return rows


def _profile(pool: Mapping[str, Any], phase: str) -> str:
    """The profile that a phase's numbers are of: one that lacks the phase leaves it to the default."""
    known = load_catalog()
    return str(pool["profile"]) if known.has_phase(pool["device"], pool["profile"], phase) else "default"


def _row(study: Study, pool: str, profile: str, phase: Phase, e: ProfileError | None) -> TrustRow:
    source = next(s for s in time_sources(study) if s.holds(pool, phase))
    interval = f"{source.low:.2f} to {source.high:.2f}"
    if e is None:
        words = f"{source.measured} times, by the device file" if source.measured else "carried over"
        if source.assumed:
            words = "nothing"
        note = "" if source.assumed else "the device file; dse calibrate printed its errors"
        return TrustRow(pool=pool, profile=profile, phase=phase, measured=words, error="–", held_out="–",
                        interval=interval, source=note)  # fmt: skip
    what = QUANTITIES.get(e.quantity, e.quantity)
    return TrustRow(
        pool=pool,
        profile=profile,
        phase=phase,
        measured=f"{e.n:,} {what}" if e.n else "carried over",
        error=_pair(e.median_pct, e.p90_pct) + (f", bias {e.bias_pct:+.0f} %" if e.n else ""),
        held_out=_pair(e.held_out_median_pct, e.held_out_p90_pct),
        interval=interval,
        source=load_catalog().citations[e.source],
    )


def _pair(median: float, p90: float) -> str:
    return f"{median:.1f} / {p90:.1f} %" if math.isfinite(median) else "–"


def _effects(effects: Sequence[Mapping[str, Any]], row: Mapping[str, Any]) -> list[EffectRow]:
    """Bars on one scale: shares of the value that each source moves."""
    shares = [(float(e["low"]) / float(row[e["column"]]), float(e["high"]) / float(row[e["column"]])) for e in effects
              if float(row[e["column"]]) > 0]  # fmt: skip
    if not shares:
        return []
    low, high = min(a for a, _ in shares), min(max(b for _, b in shares), MOST_SHARE)
    span = max(high - low, 1e-9)
    rows = []
    for e, (a, b) in zip(effects, shares, strict=True):
        column = str(e["column"])
        right = min(b, high)
        rows.append(
            EffectRow(
                column=EFFECT_OF[column],
                source=str(e["source"]),
                ends=f"{shown(column, float(e['low']))} to {shown(column, float(e['high']))}",
                basis=str(e["basis"]),
                left=round(100 * (a - low) / span, 2),
                width=round(100 * (right - a) / span, 2),
                at=round(100 * (1 - low) / span, 2),
            )
        )
    return rows


UNMEASURED: Final = {"nothing": "assumed", "carried over": "carried over from a relative"}
MOST_SHARE: Final = 3.0
"""A bar ends here: a price range may reach many times the value."""


def _summary(rows: Sequence[TrustRow], found: Mapping[str, Any], row: Mapping[str, Any] | None) -> str:
    bought = [r for r in rows if row is None or float(row.get(f"n_{r.pool}", 1)) > 0]
    unknown = [f"{r.phase} of {r.pool} ({UNMEASURED[r.measured]})" for r in bought if r.measured in UNMEASURED]
    words = "Times of every pool that it buys were compared with measurements of its device."
    if unknown:
        words = f"Not measured on the device itself: {', '.join(unknown)}."
    if row is None or not found:
        return words
    ends = {key: number(float(found[key])) for key in found if key.endswith(("_tok_s", "_usd_per_h"))}
    return (
        f"{words} With 80 % of measured times within the factors of the measurements, the recommended design gives "
        f"{ends['throughput_low_tok_s']} to {ends['throughput_high_tok_s']} tok/s. Over the range of the pools' "
        f"prices it costs {ends['cost_low_usd_per_h']} to {ends['cost_high_usd_per_h']} USD/h."
    )
