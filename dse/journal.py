"""Every point that a sweep has asked for, so that a sweep that was stopped is replayed instead of solved again.

A sweep asks for points in generations, and what it asks next depends on what it was told, on nothing else. So the
points, by generation and place, are its whole state: told the same, it finds the same boxes, rows and counts.
Points that the end of the time cut short are left out; the next sitting solves them whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from dse.checkpoint import Checkpoint
from dse.errors import SelfCheckError
from dse.points import Point, Unit
from dse.solve import Outcome, Status
from formulations.plan import Plan

Record = dict[str, Any]


class Journal:
    """Points as they land, by generation and place; kept in a checkpoint where there is one."""

    def __init__(self, checkpoint: Checkpoint | None) -> None:
        self._checkpoint = checkpoint
        state = checkpoint.load() if checkpoint else None
        self._points: dict[tuple[int, int], Record] = {}
        for record in state["points"] if state else []:
            self._points[record["generation"], record["place"]] = record
        self._generation = -1

    def next(self, units: Sequence[Unit]) -> dict[int, Point]:
        """Opens a generation: what is known of it, by place."""
        self._generation += 1
        found = {}
        for place, unit in enumerate(units):
            record = self._points.get((self._generation, place))
            if record is None:
                continue
            if record["asked"] != _asked(unit):
                raise SelfCheckError("a resumed sweep asks for other points than it did; nothing is reported")
            found[place] = _point(record)
        return found

    def add(self, place: int, unit: Unit, point: Point) -> None:
        """Keeps one point of the generation, unless time cut it short."""
        if self._checkpoint is None:
            return
        if point.outcome.status in (Status.OPTIMAL, Status.INFEASIBLE):
            record = {"generation": self._generation, "place": place, "asked": _asked(unit), **_record(point)}
            self._points[self._generation, place] = record
        if self._checkpoint.due():
            self.save()

    def save(self) -> None:
        """Writes what is known."""
        if self._checkpoint is not None:
            self._checkpoint.save({"points": list(self._points.values())})


def _asked(unit: Unit) -> list[Any]:
    """What was asked, short: the program, the box, how many rows were known."""
    return [unit.program, list(unit.upper), len(unit.rows)]


def _record(point: Point) -> Record:
    """A point in JSON values."""
    return {
        "outcome": {**asdict(point.outcome), "status": point.outcome.status.value},
        "plan": None if point.plan is None else {"index": point.plan.index, "settings": dict(point.plan.settings)},
        "columns": None if point.columns is None else point.columns.tolist(),
        "solves": point.solves,
        "rows": [[v.item() if isinstance(v, np.generic) else v for v in row] for row in point.rows],
    }


def _point(record: Record) -> Point:
    """The point of a record, bit for bit."""
    outcome, plan, columns = record["outcome"], record["plan"], record["columns"]
    return Point(
        outcome=Outcome(**{**outcome, "status": Status(outcome["status"])}),
        plan=None if plan is None else Plan(**plan),
        columns=None if columns is None else np.array(columns),
        solves=record["solves"],
        rows=tuple(tuple(row) for row in record["rows"]),
    )
