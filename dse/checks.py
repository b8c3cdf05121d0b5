"""What is checked before anything is reported: plans score the same twice, and nothing seen beats a proven frontier."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dse.errors import SelfCheckError
from dse.pareto import minimised, nondominated
from dse.resolve import Study
from dse.scoring import score_plans
from formulations.plan import Plan

AGREE = 1e-9


def verified(study: Study, plans: Sequence[Plan], points: np.ndarray) -> pd.DataFrame:
    """The frontier's rows, scored afresh; a difference to what the explorer saw is a bug."""
    frame = score_plans(study, plans)
    objectives = study.envelope.objectives.names
    if len(frame):
        again = minimised({o: frame[o].to_numpy(dtype=np.float64) for o in objectives}, objectives)
        if not np.allclose(again, points, rtol=AGREE, atol=0.0):
            raise SelfCheckError("a frontier design scores differently the second time; nothing is reported")
        kept = nondominated(again)
        if not frame["feasible"].all() or any(_beaten(point, again[kept]) for point in again[~kept]):
            raise SelfCheckError("a frontier design is dominated or infeasible when scored again; nothing is reported")
        frame = frame[kept].reset_index(drop=True)  # what the rounding of a sum kept on the front
        frame["on_front"] = True
        keys = [frame[o].to_numpy() for o in reversed(objectives)]
        frame = frame.iloc[np.lexsort((np.arange(len(frame)), *keys))].reset_index(drop=True)
    return frame


def _beaten(point: NDArray[np.float64], front: NDArray[np.float64]) -> bool:
    """Whether some point of the front is better in every objective by more than rounding."""
    return bool((front < point - AGREE * np.abs(point)).all(axis=1).any())


def check_cover(study: Study, proof: Mapping[str, Any], frontier: pd.DataFrame, candidates: pd.DataFrame) -> None:
    """No scored candidate beats every point of a proven frontier by more than its resolution; else a bug."""
    if proof["kind"] != "milp" or not len(frontier):
        return
    objectives = study.envelope.objectives.names
    good = candidates[candidates["feasible"]]
    front, others = (
        minimised({o: f[o].to_numpy(dtype=np.float64) for o in objectives}, objectives) for f in (frontier, good)
    )
    slack = proof["resolution_frac"] * np.array([proof["ranges"][o] for o in objectives]) + AGREE * np.abs(front)
    covered = np.zeros(len(others), dtype=np.bool_)
    for point, own in zip(front, slack, strict=True):
        covered |= (point - own <= others).all(axis=1)
    if not covered.all():
        missed = good["design_id"].iloc[int(np.flatnonzero(~covered)[0])]
        raise SelfCheckError(f"design {missed} beats a frontier that was proven; nothing is reported")
