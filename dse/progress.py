"""How a long job says where it is, and how it is told to stop."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from dse.units import json_safe


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """One report of a running job."""

    method: str
    done: float
    total: float
    """Units of work; total may be an estimate that grows."""
    candidates: int
    front: int
    elapsed_s: float
    note: str = ""

    @property
    def rate_per_s(self) -> float:
        """Candidates scored per second so far."""
        return self.candidates / self.elapsed_s if self.elapsed_s > 0 else 0.0

    @property
    def eta_s(self) -> float:
        """Seconds left at the pace so far."""
        return self.elapsed_s * (self.total - self.done) / self.done if self.done > 0 else float("inf")


Report = Callable[[Progress], None]


def silent(_: Progress) -> None:
    """Reports nothing."""


def throttled(report: Report, every_s: float) -> Report:
    """Passes on at most one report in `every_s` seconds, and every last one."""
    last = -every_s

    def pass_on(progress: Progress) -> None:
        nonlocal last
        if progress.elapsed_s < last:  # the next job's clock
            last = -every_s
        if progress.elapsed_s - last >= every_s or progress.done >= progress.total:
            last = progress.elapsed_s
            report(progress)

    return pass_on


@dataclass(slots=True)
class Stop:
    """Asked between units of work: whether to go on. Set by a signal, or by the time limit."""

    time_limit_s: float = float("inf")
    reason: str = ""
    started_s: float = field(default_factory=time.monotonic)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the job began."""
        return time.monotonic() - self.started_s

    @property
    def left_s(self) -> float:
        """Seconds until the time limit."""
        return self.time_limit_s - self.elapsed_s

    def ask(self, reason: str) -> None:
        """Asks the job to stop at the next chance."""
        self.reason = self.reason or reason

    def asked(self) -> bool:
        """Whether the job must stop now."""
        if not self.reason and self.left_s <= 0:
            self.reason = f"time limit of {self.time_limit_s:g} s"
        return bool(self.reason)


@dataclass(slots=True)
class PartStop(Stop):
    """Stops a part of a job at a time limit of its own, and with the whole."""

    whole: Stop = field(default_factory=Stop)

    def asked(self) -> bool:
        """Whether the part must stop now."""
        if self.whole.reason:
            self.ask(self.whole.reason)
        return Stop.asked(self)


def progress_json(p: Progress) -> str:
    """One progress report as a JSON line."""
    line = {
        "method": p.method,
        "done": p.done,
        "total": p.total,
        "candidates": p.candidates,
        "front": p.front,
        "elapsed_s": round(p.elapsed_s, 3),
        "rate_per_s": round(p.rate_per_s, 1),
        "eta_s": p.eta_s,
        "note": p.note,
    }
    return json.dumps(json_safe(line))
