"""Workers that Ray runs, on this machine or on the cluster that RAY_ADDRESS names."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from shardwright.search.parallel.process_workers import worker_died


class RayWorkers:
    """Ray's workers with what the tasks share in its object store; see
    `search.parallel.engine_protocol.Workers`.

    A task that runs is not told of a Ctrl-C: the first one ends the search after its round.
    """

    def __init__(self, shared: object, workers: int) -> None:
        self._ray: Any = import_module("ray")
        self._is_ours = not self._ray.is_initialized()
        if self._is_ours:
            self._ray.init(log_to_driver=False, configure_logging=False, **_begun_with(workers))
        self._shared, self._work = self._ray.put(shared), self._ray.remote(_work)

    def begin(self, function: Callable[[Any, Any], Any], tasks: Sequence[Any]) -> Any:
        """Implements `Workers.begin`."""
        return self._work.remote(self._shared, function, list(tasks))

    def taken(self, begun: Any) -> list[Any]:
        """Implements `Workers.taken`."""
        try:
            found: list[Any] = self._ray.get(begun)
        except BaseException as error:
            self.close()
            if isinstance(error, self._ray.exceptions.RayTaskError):
                raise error.cause from error
            if isinstance(error, self._ray.exceptions.RayError):
                raise worker_died() from error
            raise
        return found

    def kill(self) -> None:
        """Implements `Workers.kill`; tasks that Ray runs are not told."""
        self.close()

    def close(self) -> None:
        """End Ray, if it was begun here."""
        if self._is_ours:
            self._is_ours = False
            self._ray.shutdown()


def _begun_with(workers: int) -> dict[str, Any]:
    """Arguments with which Ray is started; a cluster that it joins has its own number of
    workers.
    """
    return (
        {} if os.environ.get("RAY_ADDRESS") else {"num_cpus": workers, "include_dashboard": False}
    )


def _work(shared: Any, function: Callable[[Any, Any], Any], tasks: Sequence[Any]) -> list[Any]:
    return [function(shared, task) for task in tasks]
