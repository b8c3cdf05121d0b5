"""The only door to Ray: identified units of work, here or on a cluster, results as they land."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Sequence
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

Shared = TypeVar("Shared")
Work = TypeVar("Work")
Result = TypeVar("Result")

WORTH_RAY_S = 10.0
"""Below this much work Ray's start (4-5 s) does not pay."""


class Workers(Generic[Shared, Work, Result]):
    """Processes that run `function(shared, unit)`; `with` closes them.

    With one worker, or less work than Ray's start costs, units run here one after the other. Ray starts once,
    when the first map is worth it. Units are idempotent: a unit whose worker dies is run again. `shared`
    travels to each worker once.
    """

    def __init__(
        self, function: Callable[[Shared, Work], Result], shared: Shared, *, workers: int = 1, address: str = "local"
    ) -> None:
        self._function, self._shared = function, shared
        self.workers, self._address = workers, address
        self._task: Any = None
        self._reference: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self._task is not None:
            import ray

            self._task = self._reference = None
            ray.shutdown()

    def worth_ray(self, estimated_s: float) -> bool:
        """Whether Ray's start pays: more than one worker, and more work than the start costs."""
        return self.workers != 1 and estimated_s >= WORTH_RAY_S

    def map(self, units: Sequence[Work], *, estimated_s: float = 0.0) -> Generator[tuple[int, Result], None, None]:
        """Yields (position, result) for every unit, in the order they finish; the work takes about so long."""
        if self._task is None and self.worth_ray(estimated_s):
            self._start()
        if self._task is None:
            for position, unit in enumerate(units):
                yield position, self._function(self._shared, unit)
            return
        yield from self._map_on_ray(units)

    def _start(self) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        import ray

        if self._address == "local":
            ray.init(
                num_cpus=self.workers,
                include_dashboard=False,
                log_to_driver=False,
                logging_level="ERROR",
                object_store_memory=256 * 2**20,
            )
        else:
            ray.init(address=self._address, log_to_driver=False, logging_level="ERROR")
        self._reference = ray.put(self._shared)
        self._task = ray.remote(max_retries=3)(self._function)

    def _map_on_ray(self, units: Sequence[Work]) -> Generator[tuple[int, Result], None, None]:
        import ray

        waiting: dict[Any, int] = {}
        ahead = iter(enumerate(units))
        try:
            for position, unit in ahead:
                waiting[self._task.remote(self._reference, unit)] = position
                if len(waiting) >= 2 * self.workers:
                    break
            while waiting:
                done, _ = ray.wait(list(waiting), num_returns=1)
                position = waiting.pop(done[0])
                result = ray.get(done[0])
                for next_position, unit in ahead:
                    waiting[self._task.remote(self._reference, unit)] = next_position
                    break
                yield position, result
        finally:
            if self._task is not None:  # else Ray is gone already, and its tasks with it
                for reference in waiting:
                    ray.cancel(reference, force=True)
