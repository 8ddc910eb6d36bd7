"""Workers that Ray runs, on this machine or on the cluster that RAY_ADDRESS names."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from shardwright.search.parallel.process_workers import worker_died


class RayWorkers:
    """Ray workers, with the shared input in Ray's object store; implements `Workers`.

    A running task does not learn of a Ctrl-C: the first Ctrl-C ends the search after its round.
    """

    def __init__(self, shared: object, workers: int) -> None:
        """Start Ray unless it is running, and store `shared` for all tasks."""
        self._ray: Any = import_module("ray")
        self._is_ours = not self._ray.is_initialized()
        if self._is_ours:
            self._ray.init(log_to_driver=False, configure_logging=False, **_init_arguments(workers))
        self._shared, self._work = self._ray.put(shared), self._ray.remote(_run_tasks)

    def begin(self, function: Callable[[Any, Any], Any], tasks: Sequence[Any]) -> Any:
        """Start some tasks as one Ray task; return its reference."""
        return self._work.remote(self._shared, function, list(tasks))

    def taken(self, begun: Any) -> list[Any]:
        """Wait for the results of a Ray task; close Ray on an error."""
        try:
            results: list[Any] = self._ray.get(begun)
        except BaseException as error:
            self.close()
            if isinstance(error, self._ray.exceptions.RayTaskError):
                raise error.cause from error
            if isinstance(error, self._ray.exceptions.RayError):
                raise worker_died() from error
            raise
        return results

    def kill(self) -> None:
        """Close Ray; running Ray tasks are not interrupted."""
        self.close()

    def close(self) -> None:
        """Shut down Ray if this object started it."""
        if self._is_ours:
            self._is_ours = False
            self._ray.shutdown()


def _init_arguments(workers: int) -> dict[str, Any]:
    """Arguments of `ray.init`: the number of CPUs, unless Ray joins a running cluster."""
    return (
        {} if os.environ.get("RAY_ADDRESS") else {"num_cpus": workers, "include_dashboard": False}
    )


def _run_tasks(shared: Any, function: Callable[[Any, Any], Any], tasks: Sequence[Any]) -> list[Any]:
    """Results of the tasks; runs inside a Ray worker."""
    return [function(shared, task) for task in tasks]
