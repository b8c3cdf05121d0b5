"""The designs that the page explains: the recommended one, its rivals, the ends of the frontier, and some between."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from dse.explore import Result
from dse.recommend import ranking
from dse.report.charts import script_safe
from dse.report.designs import bill_of_materials
from dse.report.frontier_rows import Distinct
from dse.report.numbers import number, shown
from dse.report.rows import Row, part_list, value_of
from dse.report.why import Why, why
from dse.report.why_charts import bill_steps, finite, roof_points, specification, summary
from dse.report.words import inside
from dse.resolve import Study

MOST_PANELS: Final = 16
"""Designs explained on a page; each costs some tenths of a second to score with its neighbours."""
SAME: Final = 1e-9
"""Relative difference below which two designs do not differ in a figure."""


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One explained design."""

    row: int
    """Position among the distinct points of the frontier."""
    name: str
    """What it is chosen for, and what it is made of."""
    sentence: str
    figures: str
    why: Why
    command: str
    """Scores and explains the design again."""


@dataclass(frozen=True, kw_only=True)
class Panels:
    """All explained designs, the recommended one first, and their figure."""

    panels: list[Panel]
    spec: str
    description: str
    runner_up: str
    """Why the second of the rule lost; empty where the frontier has one point."""


def explained(result: Result, distinct: Distinct) -> Panels | None:
    """Explains up to 16 designs; None where there is none to explain."""
    if distinct.pick < 0:
        return None
    chosen = chosen_rows(result.study, distinct)
    panels = [p for row, words in chosen.items() if (p := _panel(result, distinct, row, words)) is not None]
    if not panels or panels[0].row != distinct.pick:
        return None
    classes = [c.name for c in getattr(result.study.problem, "classes", ())] or [""]
    points = [d for p in panels for d in finite(roof_points(p.row, p.why.detail, classes))]
    steps = [d for p in panels for d in finite(bill_steps(p.row, p.why.detail))]
    spec = specification(points, steps, result.study.space.pool_names, distinct.pick)
    return Panels(
        panels=panels,
        spec=script_safe(spec),
        description=summary([d for d in points if d["design"] == distinct.pick]),
        runner_up=runner_up(result.study, distinct),
    )


def chosen_rows(study: Study, distinct: Distinct) -> dict[int, str]:
    """Rows to explain and what each is chosen for: the pick, the runner-up, the ends, then evenly spread ones."""
    frame, objectives = distinct.frame, study.envelope.objectives
    order = _order(study, distinct)
    chosen = {distinct.pick: "recommended"}
    if len(order) > 1:
        chosen.setdefault(order[1], "runner-up")
    for name in objectives.maximise:
        chosen.setdefault(int(np.nanargmax(frame[name].to_numpy(dtype=np.float64))), f"most {_plain(name, study)}")
    for name in objectives.minimise:
        chosen.setdefault(int(np.nanargmin(frame[name].to_numpy(dtype=np.float64))), f"least {_plain(name, study)}")
    left = [i for i in range(len(frame)) if i not in chosen]
    room = max(MOST_PANELS - len(chosen), 0)
    spread = left if len(left) <= room else [left[k] for k in np.linspace(0, len(left) - 1, room).round().astype(int)]
    return chosen | dict.fromkeys(spread, "")


def _plain(name: str, study: Study) -> str:
    return inside(name, study.envelope.paradigm)


def _order(study: Study, distinct: Distinct) -> list[int]:
    """Rows by the study's rule, the recommended one first whatever ties there are."""
    order = [int(i) for i in ranking(study, distinct.frame)[0]]
    return [distinct.pick, *(i for i in order if i != distinct.pick)]


def _panel(result: Result, distinct: Distinct, row: int, words: str) -> Panel | None:
    study, series = result.study, distinct.frame.iloc[row]
    found = why(result, series, recommended=row == distinct.pick)
    if found is None:
        return None
    parts = part_list(study, series)
    first = study.envelope.objectives.names[0]
    return Panel(
        row=row,
        name=f"{words}: {parts}" if words else f"{shown(first, value_of(series, first))}: {parts}",
        sentence=bill_of_materials(study, series),
        figures="; ".join(
            f"{_plain(o, study)} {shown(o, value_of(series, o))}" for o in study.envelope.objectives.names
        ),
        why=found,
        command=_command(study, series),
    )


def _command(study: Study, row: Row) -> str:
    settings = study.space.settings_of({str(k): v for k, v in row.items()})
    keys = " ".join(f"--set {shlex.quote(f'{k}={v}')}" for k, v in settings.items())
    return f"dse score study.toml {keys} --explain"


def runner_up(study: Study, distinct: Distinct) -> str:
    """The second of the rule, and what it gives up against the recommended design."""
    order = _order(study, distinct)
    if len(order) < 2:
        return ""
    pick, second = distinct.frame.iloc[order[0]], distinct.frame.iloc[order[1]]
    better: list[str] = []
    worse: list[str] = []
    for name in study.envelope.objectives.names:
        ours, theirs = value_of(pick, name), value_of(second, name)
        if not np.isfinite([ours, theirs]).all() or abs(theirs - ours) <= SAME * max(abs(ours), abs(theirs)):
            continue
        gain = theirs > ours if name in study.envelope.objectives.maximise else theirs < ours
        (better if gain else worse).append(_difference(name, ours, theirs, study))
    lost = f"it has {' and '.join(worse)}" if worse else "it is no worse in any objective"
    won = f", though {' and '.join(better)}" if better else ""
    parts, link = part_list(study, second), str(second.get("link", "none"))
    same = parts == part_list(study, pick) and link != str(pick.get("link", "none"))
    return f"{parts}{f' over {link}' if same else ''}: {lost}{won}."


def _difference(name: str, ours: float, theirs: float, study: Study) -> str:
    change: Any = theirs / ours - 1 if ours else float("nan")
    word = "more" if theirs > ours else "less"
    share = f" ({number(abs(change) * 100)} %)" if np.isfinite(change) else ""
    return f"{shown(name, abs(theirs - ours))}{share} {word} {_plain(name, study)}"
