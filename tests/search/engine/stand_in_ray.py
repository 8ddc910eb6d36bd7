"""Stand-in for the part of Ray that `search.parallel.ray_workers` uses, over worker processes of
this machine: tests hold its protocol where Ray is not installed.

An object is pickled once when it is put, and made anew in the worker; a task's error comes back
wrapped; a worker that dies is an error of Ray's own.
"""

from __future__ import annotations

import multiprocessing
import pickle
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from shardwright.search.parallel.process_workers import start_method


class RayError(Exception):
    """As `ray.exceptions.RayError`."""


class RayTaskError(RayError):
    """As `ray.exceptions.RayTaskError`: the error of a task is its cause."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__(str(cause))
        self.cause = cause


@dataclass(frozen=True, slots=True)
class Reference:
    """An object in the store."""

    pickled: bytes


def run(function: Callable[..., Any], pickled: bytes) -> Any:
    """What a worker does: read the arguments, those in the store too."""
    arguments = pickle.loads(pickled)
    return function(
        *(pickle.loads(one.pickled) if isinstance(one, Reference) else one for one in arguments)
    )


@dataclass(frozen=True, slots=True)
class Remote:
    """A function that workers run."""

    function: Callable[..., Any]
    pool: ProcessPoolExecutor

    def remote(self, *arguments: Any) -> Future[Any]:
        """Run it; what it gives is asked for by `get`."""
        return self.pool.submit(run, self.function, pickle.dumps(arguments))


class StandIn(ModuleType):
    """The module. Calls that it does not know are errors, as is what it is not asked in the order
    that Ray wants."""

    def __init__(self) -> None:
        super().__init__("ray")
        self.exceptions = ModuleType("ray.exceptions")
        self.exceptions.RayError, self.exceptions.RayTaskError = RayError, RayTaskError  # type: ignore[attr-defined]
        self._pool: ProcessPoolExecutor | None = None
        self.begun_with: list[int] = []
        self.puts = 0

    def is_initialized(self) -> bool:
        """Whether there are workers."""
        return self._pool is not None

    def init(
        self,
        *,
        log_to_driver: bool,
        configure_logging: bool,
        num_cpus: int,
        include_dashboard: bool,
    ) -> None:
        """Start workers."""
        assert self._pool is None
        assert not any((log_to_driver, configure_logging, include_dashboard))
        self.begun_with.append(num_cpus)
        self._pool = ProcessPoolExecutor(
            num_cpus, mp_context=multiprocessing.get_context(start_method())
        )

    def put(self, shared: object) -> Reference:
        """Keep an object for workers."""
        assert self._pool is not None
        self.puts += 1
        return Reference(pickle.dumps(shared))

    def remote(self, function: Callable[..., Any]) -> Remote:
        """The function as workers run it."""
        assert self._pool is not None
        return Remote(function, self._pool)

    def get(self, future: Future[Any]) -> Any:
        """What a task gives; its error wrapped."""
        try:
            return future.result(timeout=120.0)
        except BrokenProcessPool as error:
            raise RayError("a worker died") from error
        except Exception as error:
            raise RayTaskError(error) from error

    def shutdown(self) -> None:
        """End the workers."""
        assert self._pool is not None
        self._pool.shutdown(cancel_futures=True)
        self._pool = None
