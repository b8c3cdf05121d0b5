"""The comparison of runs as a page: what changed, what became of the pick, frontiers over each other, designs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from dse.compare import KEPT, SAME, Against, Comparison, Fate
from dse.explore import Result
from dse.files import write_whole
from dse.report.charts import script_safe
from dse.report.compare_charts import overlay
from dse.report.designs import bill_of_materials
from dse.report.layout import plural, short_layout
from dse.report.numbers import percent, shown, signed
from dse.report.page import HERE, vega_bundle
from dse.report.questions import asked
from dse.report.rows import Row, part_list, value_of
from dse.report.words import label
from dse.units import json_safe

COLUMNS: Final = KEPT


@dataclass(frozen=True, kw_only=True)
class PickRow:
    """One run's recommended design, and how it differs from the first's."""

    run: str
    study: str
    sentence: str
    figures: list[tuple[str, str]]
    """Value, and difference to the first run."""


@dataclass(frozen=True, kw_only=True)
class DesignRow:
    """One design that came, went or stayed."""

    parts: str
    layout: str
    link: str
    figures: list[tuple[str, str]]
    """Value, and difference to the first run where it stayed."""
    why: str


@dataclass(frozen=True, kw_only=True)
class Part:
    """One run against the first, in words."""

    name: str
    changes: list[tuple[str, str, str, str]]
    """Key, before, after, and whether it is the study's or a number behind a name."""
    frontier: str
    went: list[DesignRow]
    came: list[DesignRow]
    moved: list[DesignRow]
    counts: str


def write_comparison(comparison: Comparison, path: Path) -> Path:
    """Writes the self-contained page and returns its path; nothing is ever half there."""
    write_whole(path, comparison_page(comparison))
    return path


def comparison_page(comparison: Comparison) -> str:
    """The whole page as text."""
    environment = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template("compare.html.j2").render(context(comparison))


def context(comparison: Comparison) -> dict[str, Any]:
    """What the template prints."""
    drawn = overlay(comparison)
    paradigm = comparison.runs[0].study.envelope.paradigm
    return {
        "name": " against ".join(comparison.names),
        "names": comparison.names,
        "paradigm": paradigm,
        "objectives": [label(o, paradigm) for o in comparison.objectives],
        "heads": [label(c, paradigm) for c in COLUMNS],
        "picks": [_pick(comparison, k) for k in range(len(comparison.runs))],
        "questions": list(_answers(comparison)),
        "parts": [_part(comparison, a, k + 1) for k, a in enumerate(comparison.against)],
        "warnings": comparison.warnings,
        "notes": drawn.notes,
        "description": drawn.description,
        "spec": Markup(script_safe(drawn.spec)) if drawn.spec else "",
        "bundle": Markup(vega_bundle()) if drawn.spec else "",
        "css": Markup((HERE / "report.css").read_text(encoding="utf-8")),
    }


def _answers(comparison: Comparison) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Each question that some run was asked, and the answer of every run that was."""
    found = [asked(result.study, result.info) for result in comparison.runs]
    for title in dict.fromkeys(one.title for answers in found for one in answers):
        told = zip(comparison.names, found, strict=True)
        yield title, [(name, one.line) for name, answers in told for one in answers if one.title == title]


def _pick(comparison: Comparison, k: int) -> PickRow:
    result, base = comparison.runs[k], comparison.runs[0].recommended
    row = result.recommended
    if row is None:
        return PickRow(run=comparison.names[k], study=result.study.name, sentence="No design is feasible.", figures=[])
    figures = [(shown(c, value_of(row, c)), _delta(c, base, row) if k and base is not None else "") for c in COLUMNS]
    return PickRow(
        run=comparison.names[k],
        study=result.study.name,
        sentence=bill_of_materials(result.study, row),
        figures=figures,
    )


def _delta(name: str, before: Row, after: Row) -> str:
    """A difference with its sign and share.

    >>> import pandas as pd
    >>> _delta("power_w", pd.Series({"power_w": 1e5}), pd.Series({"power_w": 1.1e5}))
    '+10.00 kW (+10.0 %)'
    """
    old, new = value_of(before, name), value_of(after, name)
    if math.isclose(old, new, rel_tol=SAME):
        return "no change"
    text = signed(name, new - old)
    if not old:
        return text
    share = new / old - 1
    return f"{text} ({'+' if share > 0 else '−'}{percent(abs(share))})"


def _part(comparison: Comparison, against: Against, k: int) -> Part:
    base, other = comparison.runs[0], comparison.runs[k]
    went, came, stayed = against.counts
    return Part(
        name=against.name,
        changes=[(c.key, c.before, c.after, "behind the name" if c.resolved else "study") for c in against.changes],
        frontier=frontier_words(comparison.names[0], against),
        went=[_design(base, f.row, f.why) for f in against.went],
        came=[_design(other, f.row) for f in against.came],
        moved=[_design(other, f.after, before=f.row) for f in against.stayed if f.after is not None and _moved(f)],
        counts=f"{went:,} went, {came:,} came, {stayed:,} stayed, {against.moved:,} of these with other figures",
    )


def frontier_words(base: str, against: Against) -> str:
    """What became of the frontier as a whole."""
    if math.isnan(against.hypervolume_frac):
        return f"{base} has no feasible design, so there is no frontier to compare with."
    volume = against.hypervolume_frac - 1
    size = (
        f"{percent(abs(volume))} {'more' if volume > 0 else 'less'} volume than" if abs(volume) > 5e-5 else "as much as"
    )
    return (
        f"The frontier of {against.name} dominates {size} that of {base}. It beats "
        f"{percent(against.dominated_frac)} of the points of {base}, and {percent(against.dominates_frac)} of its own "
        "are beaten by them."
    )


def _moved(fate: Fate) -> bool:
    return fate.after is not None and any(_delta(c, fate.row, fate.after) != "no change" for c in COLUMNS)


def _design(result: Result, row: Row, why: str = "", before: Row | None = None) -> DesignRow:
    figures = [(shown(c, value_of(row, c)), "" if before is None else _delta(c, before, row)) for c in COLUMNS]
    link = str(row.get("link", "none"))
    return DesignRow(
        parts=part_list(result.study, row),
        layout=short_layout(result.study, row),
        link="–" if link == "none" else link,
        figures=figures,
        why=why,
    )


def as_json(comparison: Comparison) -> dict[str, Any]:
    """The whole comparison as plain data."""

    def design(fate: Fate) -> Mapping[str, Any]:
        found: dict[str, Any] = {"settings": dict(fate.settings), **{c: float(fate.row[c]) for c in KEPT}}
        if fate.why:
            found["why"] = fate.why
        if fate.after is not None:
            found["after"] = {c: float(fate.after[c]) for c in KEPT}
        return found

    picks = []
    for name, result in zip(comparison.names, comparison.runs, strict=True):
        row = result.recommended
        figures = {} if row is None else {c: float(row[c]) for c in KEPT}
        design_id = None if row is None else str(row["design_id"])
        parts = "" if row is None else part_list(result.study, row)
        picks.append({"run": name, "design_id": design_id, "parts": parts, **figures})
    return dict(
        json_safe(
            {
                "objectives": list(comparison.objectives),
                "picks": picks,
                "warnings": comparison.warnings,
                "answers": [
                    {"run": name, "ask": answer["ask"], "line": answer["line"], "value": answer["value"]}
                    for name, result in zip(comparison.names, comparison.runs, strict=True)
                    for answer in result.info.get("answers") or ()
                ],
                "against": [
                    {
                        "run": a.name,
                        "changes": [vars_of(c) for c in a.changes],
                        "hypervolume_frac": a.hypervolume_frac,
                        "dominated_frac": a.dominated_frac,
                        "dominates_frac": a.dominates_frac,
                        "counts": dict(zip(("went", "came", "stayed"), a.counts, strict=True)) | {"moved": a.moved},
                        "went": [design(f) for f in a.went],
                        "came": [design(f) for f in a.came],
                        "stayed": [design(f) for f in a.stayed],
                    }
                    for a in comparison.against
                ],
            }
        )
    )


def vars_of(change: Any) -> dict[str, Any]:
    """A change as a table."""
    return {"key": change.key, "before": change.before, "after": change.after, "resolved": change.resolved}


def lines(comparison: Comparison) -> list[str]:
    """The comparison as the command prints it."""
    told = list(comparison.warnings)
    base = comparison.runs[0].recommended
    for a, result in zip(comparison.against, comparison.runs[1:], strict=True):
        told.append(f"{comparison.names[0]} -> {a.name}: {plural(len(a.changes), 'change')}")
        told += [f"  {c.key}: {c.before} -> {c.after}" for c in a.changes[:TOLD]]
        if len(a.changes) > TOLD:
            told.append(f"  ... and {len(a.changes) - TOLD} more")
        row = result.recommended
        if row is not None and base is not None:
            deltas = ", ".join(f"{label(c, result.study.envelope.paradigm)} {_delta(c, base, row)}" for c in COLUMNS)
            told.append(
                f"  pick: {part_list(comparison.runs[0].study, base)} -> {part_list(result.study, row)}; {deltas}"
            )
        else:
            told.append(
                "  pick: " + ("none is feasible" if row is None else f"{part_list(result.study, row)}, none before")
            )
        told.append(f"  {frontier_words(comparison.names[0], a)}")
        told.append("  designs: {:,} went, {:,} came, {:,} stayed".format(*a.counts))
    return told


TOLD: Final = 12
"""Changes that the command prints."""
