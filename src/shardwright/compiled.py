"""One door to numba: `compiled` compiles a function to machine code when numba is there, else leaves it as it is.

The package gives the same numbers without numba (integer clocks make the sums exact), only slower.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any, TypeVar

_F = TypeVar("_F", bound=Callable[..., Any])
_C = TypeVar("_C", bound=type)

kept = True
"""Machine code is kept for the next process. False where no folder for it can be written, so that every process compiles its own."""
_SETTINGS = {"nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True}
_numba: Any = import_module("numba") if find_spec("numba") is not None else None
KNOWN = ("0.68",)
"""Releases of numba whose way of putting code together `compiled_parts` and `compiled_references` change. With another one functions are
compiled as numba does by itself: the same results, three times as slowly compiled and run.
"""
_is_known = _numba is not None and _numba.__version__.rpartition(".")[0] in KNOWN
_parts: Any = import_module("shardwright.compiled_parts") if _is_known else None
_references: Any = import_module("shardwright.compiled_references") if _is_known else None


def load() -> None:
    """Load what numba calls kernels with, without the linear algebra that none of ours has.

    numba imports scipy.linalg there only to know whether it is present, which takes as long as all kernels of a search do. It asks again
    where a function calls BLAS, and finds it then; only its correlate and convolve do without.
    """
    wanted = "scipy.linalg"
    if _numba is None or wanted in sys.modules or "numba.np.arraymath" in sys.modules:
        return
    sys.modules[wanted] = None  # type: ignore[assignment]  # an import of it fails
    try:
        import_module("numba.np.arraymath")
    finally:
        del sys.modules[wanted]


@contextmanager
def compiling() -> Iterator[None]:
    """Compile what is called inside in half the time, for the kernels that a first run waits for.

    At LLVM's first level they run as fast as at its third, or faster: their loops are a few turns long, and vectorized ones pay for
    many. Nothing that numba makes meanwhile is a cycle worth looking for. A level that the user set (NUMBA_OPT) stands.
    """
    if _numba is None:
        yield
        return
    config, collecting = _numba.config, gc.isenabled()
    level = config.OPT
    if "NUMBA_OPT" not in os.environ:
        config.OPT = type(level)(1)
    gc.disable()
    try:
        yield
    finally:
        config.OPT = level
        if collecting:
            gc.enable()


@contextmanager
def helped(module: str, function: str) -> Iterator[None]:
    """Where something inside has no machine code yet, another process calls `module.function` meanwhile, and is waited for at the end.

    numba compiles one function at a time in a process. The other one leaves its machine code in the folder that both keep it in; where it
    fails, nothing is missed but time. There is none where it could leave nothing, on a single core, and in a program that is its own
    interpreter.
    """
    if _numba is None or not kept or cores() < 2 or not sys.executable or getattr(sys, "frozen", False):
        yield
        return
    event = import_module("numba.core.event")
    started: list[subprocess.Popen[bytes]] = []

    def start(*_: Any) -> None:
        if not started:
            started.append(_call_elsewhere(module, function))

    listener = type("Starting", (event.Listener,), {"on_start": start, "on_end": lambda *_: None})
    try:
        with event.install_listener("numba:compile", listener()):
            yield
    except BaseException:
        for process in started:
            process.kill()
        raise
    finally:
        for process in started:
            process.wait()


@contextmanager
def when_compiling(call: Callable[[], None]) -> Iterator[None]:
    """Call `call` once, where something inside has no machine code yet and is about to be compiled."""
    if _numba is None:
        yield
        return
    event = import_module("numba.core.event")
    called: list[bool] = []

    def start(*_: Any) -> None:
        if not called:
            called.append(True)
            call()

    listener = type("Announcing", (event.Listener,), {"on_start": start, "on_end": lambda *_: None})
    with event.install_listener("numba:compile", listener()):
        yield


def _call_elsewhere(module: str, function: str) -> subprocess.Popen[bytes]:
    nowhere, path = subprocess.DEVNULL, os.pathsep.join(filter(None, sys.path))
    code = f"from {module} import {function}; {function}()"
    return subprocess.Popen(
        [sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": path}, stdin=nowhere, stdout=nowhere, stderr=nowhere
    )


def cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def side_by_side(calls: Iterable[Callable[[], None]]) -> None:
    """Make calls of kernels at once, each but the first on a thread of its own: machine code holds no lock of Python's."""
    first, *others = calls
    if not others:
        first()
        return
    with import_module("concurrent.futures").ThreadPoolExecutor(len(others)) as threads:
        waiting = [threads.submit(call) for call in others]
        first()
    for one in waiting:
        one.result()


def compiled(function: _F) -> _F:
    """`function` compiled in nopython mode and cached on disk; itself when numba is missing."""
    return _jitted(function)


def allocation_free(function: _F) -> _F:
    """`compiled`, for what makes no arrays and returns none, else it is refused: a fifth less to compile without counts of references."""
    return _jitted(function, _nrt=False)


def by_reference(named_tuple: _C) -> _C:
    """A NamedTuple of arrays that compiled functions pass on as one number instead of hundreds (`compiled_references`)."""
    if _references is not None:
        _references.by_reference(named_tuple)
    return named_tuple


def inner(function: _F) -> _F:
    """`allocation_free`, but called by compiled ones alone, else it crashes: the door from Python is most of what a small one takes.

    Its machine code is made and kept within theirs (`compiled_parts`).
    """
    if _numba is None:
        return function
    settings = {**_SETTINGS, "no_cpython_wrapper": True, "_nrt": False}
    if _parts is None:
        return _numba.njit(**settings)(function)  # type: ignore[no-any-return]
    result: _F = _parts.of_any_number(_numba.njit(**settings, pipeline_class=_parts.PartCompiler)(function))
    return result


def inlined(function: _F) -> _F:
    """`inner`, and written out where it is called: for what runs once an event, and for the body of a kernel's outermost loop."""
    return function if _numba is None else _numba.njit(**_SETTINGS, inline="always")(function)


def plain(function: _F) -> _F:
    """A compiled function as it was written, for a few numbers at a time: the same result, and no machine code to load for it."""
    result: _F = getattr(function, "py_func", function)
    return result


def _jitted(function: _F, **options: Any) -> _F:
    if _numba is None:
        return function
    global kept
    if _parts is not None:
        options["pipeline_class"] = _parts.WholeCompiler
    try:
        result: _F = _numba.njit(cache=True, **_SETTINGS, **options)(function)
    except RuntimeError:
        # No folder that numba keeps machine code in can be written: a container's, whose package and home are read-only.
        kept = False
        result = _numba.njit(**_SETTINGS, **options)(function)
    return result
