"""What adapting and planning for all scenarios are worth, in words: for the terminal and the page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from dse.report.numbers import number, shown

NAMES: Final = {
    "fixed_split": "a fixed split",
    "work_stealing": "work stealing",
    "adaptive": "devices divided anew",
}
EQUAL: Final = 1e-6
"""A difference below this share is none."""


@dataclass(frozen=True, kw_only=True)
class Compared:
    """The section of the page."""

    asked: str
    metric: str
    adaptations: list[tuple[str, str, str, str, str]]
    """Way to adapt, fleet, cost, metric, what it is worth against the one before."""
    budget: str
    robust: tuple[str, str] | None
    """Fleet and metric in the worst scenario."""
    single: list[tuple[str, str, str, str, str]]
    """Scenario, fleet, metric there, in the worst scenario (and which), less than the robust plan."""
    missing: str


def parts_text(parts: Mapping[str, int]) -> str:
    """What is bought.

    >>> parts_text({"gpu": 8, "wse": 1})
    '8 × gpu + 1 × wse'
    """
    return " + ".join(f"{n:,} × {pool}" for pool, n in parts.items()) or "nothing"


def compared(info: Mapping[str, Any]) -> Compared | None:
    """The comparison of a run; None where it has none."""
    found = info.get("robust")
    if not found:
        return None
    metric = str(found["metric"])

    def fleet(one: Mapping[str, Any]) -> str:
        return parts_text(one["parts"]) + ("" if one["proven"] else " (not proven)")

    robust = found["robust"]
    return Compared(
        asked=str(found["asked"]),
        metric=_metric(metric),
        adaptations=[
            (
                NAMES[a["adaptation"]],
                fleet(a),
                shown("cost_usd_per_h", a["cost_usd_per_h"]),
                number(a[metric]),
                _worth(a),
            )
            for a in found["adaptations"]
        ],
        budget=shown("cost_usd_per_h", found["budget_usd_per_h"]),
        robust=None if robust is None else (fleet(robust), number(robust[metric])),
        single=[
            (s["scenario"], fleet(s), number(s["own"]), f"{number(s['worst'])} in {s['worst_scenario']}", _short(s))
            for s in found["single"]
        ],
        missing=str(found["missing"]),
    )


def _metric(name: str) -> str:
    return "capacity over demand" if name == "headroom" else "tok/s in the worst scenario"


def _worth(one: Mapping[str, Any]) -> str:
    worth = one.get("worth")
    if not worth:
        return "–"
    frac = float(worth["frac"])
    if abs(frac) < EQUAL:
        return "nothing"
    what = "cost" if worth["column"] == "cost_usd_per_h" else "in the worst scenario"
    return f"{frac * 100:+.1f} % {what}"


def _short(one: Mapping[str, Any]) -> str:
    frac = float(one["short_frac"])
    return "as good" if frac < EQUAL else f"{frac * 100:.1f} % less"


def printed_lines(info: Mapping[str, Any]) -> list[str]:
    """The comparison in a few lines."""
    found = compared(info)
    if found is None:
        return []
    lines = [f"Adapting: {found.asked}"]
    lines += [
        f"  {name}: {fleet}, {cost}, {found.metric} {value}" + (f" ({worth})" if worth != "–" else "")
        for name, fleet, cost, value, worth in found.adaptations
    ]
    if found.robust is not None:
        lines.append(
            f"Planned for all scenarios within {found.budget}: {found.robust[0]}, {found.robust[1]} in the worst"
        )
        lines += [
            f"  planned for {name} alone: {fleet}, {own} there, {worst}: {short}"
            for name, fleet, own, worst, short in found.single[:MOST_LINES]
        ]
        more = len(found.single) - MOST_LINES
        lines += [f"  and {more} more scenarios: run.json"] if more > 0 else []
    return lines + ([f"  {found.missing}"] if found.missing else [])


MOST_LINES: Final = 4
