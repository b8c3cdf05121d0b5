"""The only door to Ray: identified units of work, here or on a cluster, results as they land."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeVar

Work = TypeVar("Work")
Result = TypeVar("Result")

WORTH_RAY_S = 10.0
"""Below this much work Ray's start (4-5 s) does not pay."""


def worth_ray(workers: int, estimated_s: float) -> bool:
    """Whether Ray's start pays: more than one worker, and more work than the start costs."""
    return workers != 1 and estimated_s >= WORTH_RAY_S


def map_units(
    function: Callable[[Any, Work], Result],
    shared: object,
    units: Sequence[Work],
    *,
    workers: int = 1,
    address: str = "local",
    estimated_s: float = 0.0,
) -> Generator[tuple[int, Result], None, None]:
    """Yields (position, function(shared, unit)) for every unit, in the order they finish.

    With one worker, or less work than Ray's start costs, units run here one after the other. Units are
    idempotent: a unit whose worker dies is run again. `shared` travels to each worker once.
    """
    if not worth_ray(workers, estimated_s):
        for position, unit in enumerate(units):
            yield position, function(shared, unit)
        return
    yield from _map_on_ray(function, shared, units, workers, address)


def _map_on_ray(
    function: Callable[[Any, Work], Result], shared: object, units: Sequence[Work], workers: int, address: str
) -> Generator[tuple[int, Result], None, None]:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    import ray

    if address == "local":
        ray.init(
            num_cpus=workers,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="ERROR",
            object_store_memory=256 * 2**20,
        )
    else:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    try:
        task = ray.remote(max_retries=3)(function)
        shared_ref = ray.put(shared)
        waiting = {}
        ahead = iter(enumerate(units))
        for position, unit in ahead:
            waiting[task.remote(shared_ref, unit)] = position
            if len(waiting) >= 2 * workers:
                break
        while waiting:
            done, _ = ray.wait(list(waiting), num_returns=1)
            position = waiting.pop(done[0])
            result = ray.get(done[0])
            for next_position, unit in ahead:
                waiting[task.remote(shared_ref, unit)] = next_position
                break
            yield position, result
    finally:
        ray.shutdown()
