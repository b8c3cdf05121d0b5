"""The only door to Ray: identified units of work, here or on a cluster, results as they land."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from dse.errors import ClusterError, InputError

Shared = TypeVar("Shared")
Work = TypeVar("Work")
Result = TypeVar("Result")

WORTH_RAY_S = 10.0
"""Below this much work Ray's start (4-5 s) does not pay."""


RETRIES = 10
"""How often a unit whose worker died is run again: a unit that ends every worker must not run for ever."""
OBJECT_STORE_BYTE = 256 * 2**20
"""A study's tables and fronts are some megabytes."""
CONNECT_S = 10.0
"""How long a cluster may take to answer."""
ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_memory_monitor_refresh_ms": "0",  # it ends workers by the machine's memory where a container has less or more
}


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
        self._owned = False
        """Whether Ray is ours to end; a caller's own Ray is used and left running."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self._task is not None:
            self._task = self._reference = None
            if self._owned and not _KEPT:
                _shut_down()

    def worth_ray(self, estimated_s: float) -> bool:
        """Whether Ray's start pays: more than one worker, and more work than the start costs."""
        return self.workers != 1 and estimated_s >= WORTH_RAY_S

    def map(self, units: Sequence[Work], *, estimated_s: float = 0.0) -> Generator[tuple[int, Result], None, None]:
        """Yields (position, result) for every unit, in the order they finish; the work takes about so long."""
        if units and self._task is None and self.worth_ray(estimated_s):
            self._start()
        if self._task is None:
            for position, unit in enumerate(units):
                yield position, self._function(self._shared, unit)
            return
        yield from self._map_on_ray(units)

    def _start(self) -> None:
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        import ray

        asked = (self._address, self.workers)
        self._owned = bool(_KEPT) or not ray.is_initialized()
        if self._owned and not (ray.is_initialized() and [asked] == _KEPT):
            _shut_down()
            # Ray makes SIGTERM end the process at once, and what was found with it
            with _sigterm_held(), _own_signals():
                self._join() if self._address != "local" or os.environ.get("RAY_ADDRESS") else self._begin()
            if _KEPT:
                _KEPT[:] = [asked]
        self._reference = ray.put(self._shared)
        self._task = ray.remote(max_retries=RETRIES)(self._function)

    def _begin(self) -> None:
        """Starts a Ray of our own on this machine: no dashboard, no network."""
        import ray

        ray.init(
            "local",
            num_cpus=self.workers,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="ERROR",
            object_store_memory=OBJECT_STORE_BYTE,
            _node_ip_address="127.0.0.1",
        )
        _end_at_once()

    def _join(self) -> None:
        """Becomes a driver of a running cluster: the study's, or the one that RAY_ADDRESS names (a submitted job)."""
        import ray

        address = os.environ["RAY_ADDRESS"] if self._address == "local" else self._address
        try:
            _knock(address)
            ray.init(address=address, log_to_driver=False, logging_level="ERROR")
        except (OSError, ValueError, RuntimeError) as error:
            what = str(error).strip().split("\n")[0]
            raise InputError(
                f"[compute.ray]: no Ray cluster answers at {address!r} ({what}); `ray start --head` starts one"
            ) from None

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
                result = _result(done[0])
                for next_position, unit in ahead:
                    waiting[self._task.remote(self._reference, unit)] = next_position
                    break
                yield position, result
        finally:
            if self._task is not None:  # else Ray is gone already, and its tasks with it
                for reference in waiting:
                    ray.cancel(reference, force=True)


_KEPT: list[tuple[str, int]] = []
"""Inside `one_ray`: the address and workers that Ray was last started with."""


@contextlib.contextmanager
def one_ray() -> Iterator[None]:
    """Inside, Ray is started once for all `Workers` of the same address and number, and shut down at the end."""
    if _running():  # a caller's own Ray, which every `Workers` uses and leaves running
        yield
        return
    _KEPT.append(("", 0))
    try:
        yield
    finally:
        _KEPT.clear()
        _shut_down()


def _running() -> bool:
    """Whether this process has a Ray already."""
    ray = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())


def _shut_down() -> None:
    """Ends the Ray that this process started, or leaves the cluster that it joined."""
    if _running():
        import ray

        ray.shutdown()


@contextlib.contextmanager
def _sigterm_held() -> Iterator[None]:
    """Inside, SIGTERM waits; and what is started inside is deaf to it.

    A job runner sends SIGTERM to every process of a job. Ray's would end at it, and take this process with them before
    it has written what was found.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def _end_at_once() -> None:
    """Makes the end of our own Ray end its processes at once, since they are deaf to a request.

    Reaches for a part of Ray that is not public (2.60); where it is not there, the end takes some seconds more.
    """
    import ray

    node = getattr(getattr(getattr(ray, "_private", None), "worker", None), "_global_node", None)
    kill = getattr(node, "kill_all_processes", None)
    if node is None or kill is None:
        return

    def at_once(check_alive: bool = True, allow_graceful: bool = False, wait: bool = False) -> None:
        del allow_graceful
        started = [info.process.pid for infos in node.all_processes.values() for info in infos]
        below = _below(started)
        kill(check_alive=check_alive, allow_graceful=False, wait=wait)
        for child in below:  # agents and workers, which would look for their parent only now and then
            with contextlib.suppress(OSError):
                os.kill(child, signal.SIGKILL)

    node.kill_all_processes = at_once


def _below(processes: Sequence[int]) -> list[int]:
    """Processes that these have started, and those that they have; none where /proc does not tell."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    found: list[int] = []
    above = set(processes)
    while above:
        above = {child for child, parent in parents.items() if parent in above}
        found += above
    return found


def _knock(address: str) -> None:
    """OSError where nothing listens at host:port: Ray itself asks again for minutes."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), timeout=CONNECT_S).close()


def _result(reference: Any) -> Any:
    """A finished unit's result; its own error as it was raised, and a clear one where its workers died."""
    import ray

    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None
    except ray.exceptions.WorkerCrashedError:
        raise ClusterError(
            f"a unit of work ended its worker {RETRIES + 1} times; the machine may lack memory: try fewer workers, "
            "and --resume goes on from what was found"
        ) from None


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """Keeps this process's handlers of Ctrl-C and SIGTERM whatever the library inside sets."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
