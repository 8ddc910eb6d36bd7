"""Parallel engines of searches by name: their workers, required packages and start."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Final

from shardwright.errors import UsageError, nearest
from shardwright.kernel_compilation import available_cores
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.registry import load_target
from shardwright.search.parallel.engine_protocol import LEAST_S, Engine

SERIAL: Final = "serial"
PROCESSES: Final = "processes"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkersSource:
    """Import path of an engine's workers class, and the package that the workers need.

    Args:
        workers: class as ``module:attribute``.
        package: package, which is also the name of the extra; "" = none.
    """

    workers: str
    package: str = ""


ENGINES: Final = {
    PROCESSES: WorkersSource(workers="shardwright.search.parallel.process_workers:ProcessWorkers"),
    "ray": WorkersSource(
        workers="shardwright.search.parallel.ray_workers:RayWorkers", package="ray"
    ),
}
"""Engines with workers, by name."""


@contextmanager
def engine_of(
    name: str = PROCESSES, *, workers: int = 0, least_s: float = LEAST_S
) -> Iterator[Engine]:
    """Context manager that yields the engine of a name and ends its workers on exit.

    Args:
        workers: most processes; 0 = number of cores.
        least_s: seconds of work below which one process is enough.

    Raises:
        UsageError: see `require_engine`.
    """
    require_engine(name)
    # Imported here, as a search of grids needs neither engine.
    if name == SERIAL:
        engine: Engine = import_module("shardwright.search.parallel.serial_engine").Serial()
    else:
        start = load_target(ENGINES[name].workers)
        engine = import_module(
            "shardwright.search.parallel.engine_that_distributes_tasks_over_workers"
        ).Pooled(workers=workers or available_cores(), start=start, least_s=least_s)
    try:
        yield engine
    finally:
        engine.close()


def require_engine(name: str) -> None:
    """Raise a UsageError if the engine is unknown or its package is not installed."""
    if name == SERIAL:
        return
    if name not in ENGINES:
        raise UsageError(
            f"there is no engine {name[:40]!r}", hint=nearest(name, [SERIAL, *ENGINES])
        )
    package = ENGINES[name].package
    if package and find_spec(package) is None:
        raise UsageError(
            f"the engine {name} needs the package {package}",
            hint=f"pip install 'shardwright[{package}]', or another --engine",
        )
