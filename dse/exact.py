"""The exact frontier of a study by whichever method proves one: enumeration, or exact programs where it is refused."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from dse import exhaustive
from dse import frontier as milp
from dse.bisection import SpentError
from dse.checks import verified
from dse.choice import choose_method
from dse.errors import MethodError
from dse.progress import Stop, silent
from dse.resolve import Study
from dse.scoring import on_grid


@dataclass(kw_only=True)
class Explorer:
    """Explores studies until it is stopped, and keeps what was proven of them."""

    stop: Stop
    used: int = 0
    designs: int = 0
    """Of all grids that were enumerated."""
    solves: int = 0
    largest_gap: float = 0.0

    kinds: set[str] = field(default_factory=set)

    def frontier(self, study: Study) -> pd.DataFrame:
        """The frontier's rows, none where nothing is feasible.

        SpentError at the end of the time, MethodError where no method is exact.
        """
        if self.stop.asked():
            raise SpentError
        self.used += 1
        method, why = choose_method(study)
        if method == "optuna":
            raise MethodError(f"no exact method answers it: {why}")
        frame = self._enumerated(study) if method == "exhaustive" else self._solved(study)
        self.kinds.add(method)
        return frame

    def proof(self) -> dict[str, Any]:
        """What all its frontiers rest on together."""
        proven = {"kind": " and ".join(sorted(self.kinds)) or "none"}
        enumerated = {"designs": self.designs} if "exhaustive" in self.kinds else {}
        solved = {"solves": self.solves, "largest_gap": self.largest_gap} if "milp" in self.kinds else {}
        return {**proven, **enumerated, **solved}

    def _enumerated(self, study: Study) -> pd.DataFrame:
        found = exhaustive.explore(study, workers=1, address="local", report=silent, stop=self.stop)
        if self.stop.reason:
            raise SpentError
        self.designs += study.space.n_designs
        return verified(study, on_grid(found.index), found.points) if len(found.index) else pd.DataFrame()

    def _solved(self, study: Study) -> pd.DataFrame:
        found = milp.explore(study, report=silent, stop=self.stop)
        if self.stop.reason:
            raise SpentError
        if found.unproven:
            raise MethodError("milp: a part of its frontier could not be proven")
        self.solves += found.solves
        self.largest_gap = max([self.largest_gap, *(c.gap for c in found.certificates)])
        return verified(study, found.plans, found.points) if found.plans else pd.DataFrame()
