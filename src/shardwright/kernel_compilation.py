"""Decorators for kernels, and the choice of their form: built machine code, numba's, or Python.

All forms give the same numbers, bit for bit. A kernel is one Python function with a decorator of
this module. Its forms are

- "built": machine code of the extension, compiled when the package was built (`built_kernels`,
  `build_kernels`): numba is not imported;
- "numba": compiled on this machine when it is first called, and kept in a cache on disk: a checkout
  without a C compiler;
- "python": the function as it is written, where numba is missing as well.

SHARDWRIGHT_KERNELS names a form to use; otherwise it is the first of these that is present.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from threading import Thread
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from shardwright.built_kernels import BuiltKernel, KernelPart, load_extension, use_extension

if TYPE_CHECKING:
    import subprocess

_F = TypeVar("_F", bound=Callable[..., Any])
_C = TypeVar("_C", bound=type)

kept = True
"""True if numba's machine code is cached on disk. False where no folder for it can be written, so
that every process compiles its own.
"""
_SETTINGS = {"nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True}
NUMBA_RELEASES = ("0.68",)
"""Releases of numba with the private classes that `numba_link_time_optimization` and
`numba_tuples_by_reference` use. The extra `dev` pins the same release, because the extension of
built kernels is made with them. Any other release gives the same results, and takes 12 % more CPU
time to compile the kernels of a first plan (9.6 against 8.6 s) and 6 % more in each later plan
(1.66 against 1.56 s).
"""
_numba: Any = None
_parts: Any = None
_references: Any = None
_passed_by_reference: list[type] = []
COMPILES: Final = "numba:compile"
"""Event of numba when it compiles a function."""
_listening: list[Callable[..., None]] = []
_listeners: dict[Callable[..., None], Any] = {}


def choose_form(wanted: str) -> str:
    """Form of kernels (built, numba, parts, python): `wanted` (empty = built) or the next found.

    "parts" is the form that `build_kernels` compiles.
    """
    extension = load_extension() if wanted in ("", "built") else None
    if extension is not None:
        use_extension(extension)
        return "built"
    return (
        "python"
        if wanted == "python" or find_spec("numba") is None
        else wanted
        if wanted == "parts"
        else "numba"
    )


def _import_numba() -> None:
    """Import numba and this package's changes to its compiler, once per process.

    Where the form is "built", only when a kernel needs another form.
    """
    global _numba, _parts, _references
    if _numba is not None or form == "python" or find_spec("numba") is None:
        return
    _numba = import_module("numba")
    if _numba.__version__.rpartition(".")[0] in NUMBA_RELEASES:
        _parts, _references = (
            import_module("shardwright.numba_link_time_optimization"),
            import_module("shardwright.numba_tuples_by_reference"),
        )
        for one in _passed_by_reference:
            _references.by_reference(one)
    for start in _listening:
        _register_listener(start)


form = choose_form(os.environ.get("SHARDWRIGHT_KERNELS", ""))
"""The form that kernels of this process have."""
if form in ("numba", "parts"):
    _import_numba()


def load_numba_runtime() -> None:
    """Load numba's runtime without importing scipy.linalg, which no kernel uses.

    numba imports scipy.linalg there only to know if it is present, which takes as long as all
    kernels of a search do. It asks again where a function calls BLAS, and finds it then; only its
    correlate and convolve do without.
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
    """Context in which numba compiles in half the time, at LLVM's first level.

    For the kernels that a first run waits for. They run as fast as at LLVM's third level, or
    faster: their loops are a few turns long, and vectorized ones pay for many. Garbage collection
    is off, as numba makes no cycle worth collecting. A level that the user set (NUMBA_OPT) stands.
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
def compile_in_other_process(module: str, function: str) -> Iterator[None]:
    """Context: if numba compiles, another process calls `module.function` to compile in parallel.

    The context waits for that process at its end. numba compiles one function at a time in a
    process. The other process leaves its machine code in the cache folder of both; where it fails,
    only time is lost. None is started where it could leave nothing, on a single core, and in a
    program that is its own interpreter.
    """
    if (
        _numba is None
        or not kept
        or available_cores() < 2
        or not sys.executable
        or getattr(sys, "frozen", False)
    ):
        yield
        return
    event = import_module("numba.core.event")
    started: list[subprocess.Popen[bytes]] = []

    def start(*_: Any) -> None:
        """Start the other process at numba's first compilation."""
        if not started:
            started.append(_start_silent_process(module, function))

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
    """Context in which `call` runs once, before numba's first compilation.

    Where kernels are built, numba is imported only for a kernel without a built form, and its
    events are heard from then on.
    """
    called: list[bool] = []

    def start(*_: Any) -> None:
        """Run `call` at numba's first compilation."""
        if not called:
            called.append(True)
            call()

    _listening.append(start)
    if _numba is not None:
        _register_listener(start)
    try:
        yield
    finally:
        _listening.remove(start)
        if start in _listeners:
            import_module("numba.core.event").unregister(COMPILES, _listeners.pop(start))


def _register_listener(start: Callable[..., None]) -> None:
    """Let numba call `start` at the beginning of each compilation."""
    event = import_module("numba.core.event")
    listener = type(
        "Announcing",
        (event.Listener,),
        {"on_start": lambda _, *of: start(*of), "on_end": lambda *_: None},
    )()
    event.register(COMPILES, listener)
    _listeners[start] = listener


def _start_silent_process(module: str, function: str) -> subprocess.Popen[bytes]:
    """Start a Python process that calls `module.function`, without input and output."""
    processes = import_module("subprocess")
    nowhere, path = processes.DEVNULL, os.pathsep.join(filter(None, sys.path))
    code = f"from {module} import {function}; {function}()"
    started: subprocess.Popen[bytes] = processes.Popen(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": path},
        stdin=nowhere,
        stdout=nowhere,
        stderr=nowhere,
    )
    return started


def available_cores() -> int:
    """Number of cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def call_in_threads(calls: Iterable[Callable[[], None]]) -> None:
    """Run several calls at once, each but the first on its own thread; raise the first error.

    Kernels run in parallel because machine code does not hold Python's lock.
    """
    first, *others = calls
    failed: list[BaseException] = []

    def run(call: Callable[[], None]) -> None:
        """Run a call and keep its error for the caller."""
        try:
            call()
        except BaseException as error:  # it is raised where the caller waits
            failed.append(error)

    threads = [Thread(target=run, args=(call,)) for call in others]
    for thread in threads:
        thread.start()
    try:
        first()
    finally:
        for thread in threads:
            thread.join()
    if failed:
        raise failed[0]


def compiled(function: _F) -> _F:
    """Decorator: make `function` a kernel that may make and return arrays."""
    return _kernel(function)


def allocation_free(function: _F) -> _F:
    """Decorator: make `function` a kernel that makes and returns no arrays.

    One that does is refused. Without reference counts it takes a fifth less time to compile.
    """
    return _kernel(function, _nrt=False)


def by_reference(named_tuple: _C) -> _C:
    """Class decorator: compiled functions pass this NamedTuple of arrays by reference.

    By value it would be hundreds of numbers (`numba_tuples_by_reference`).
    """
    if _references is not None:
        _references.by_reference(named_tuple)
    elif form == "built":
        _passed_by_reference.append(named_tuple)
    return named_tuple


def inner(function: _F) -> _F:
    """Decorator: make `function` a part of kernels; only compiled functions may call it.

    It makes no arrays, and a call from Python crashes: the entry point for Python is most of a
    small function's compile time. Its machine code is made and kept within its callers'
    (`numba_link_time_optimization`).
    """
    if form == "built":
        return cast(
            _F, KernelPart(cast(FunctionType, function), partial(_translate_part, _nrt=False))
        )
    return _translate_part(function, _nrt=False)


def inlined(function: _F) -> _F:
    """Decorator: make `function` a part of kernels whose body replaces each call.

    For functions that run once an event, and for the body of a kernel's outermost loop. Otherwise
    as `inner`.
    """
    if form == "built":
        return cast(_F, KernelPart(cast(FunctionType, function), _translate_inlined))
    return _translate_inlined(function)


def python_form(function: _F) -> _F:
    """Uncompiled Python function of a kernel, for calls on a few numbers.

    The result is the same, and no machine code is loaded.
    """
    result: _F = getattr(function, "py_func", function)
    return result


def _kernel(function: _F, **options: Any) -> _F:
    """Make a kernel of a function in this process's form: built, numba, parts or Python."""
    if form == "built":
        return cast(_F, BuiltKernel(cast(FunctionType, function), partial(_translate, **options)))
    return (
        _translate_part(function, **options) if form == "parts" else _translate(function, **options)
    )


def _translate(function: _F, **options: Any) -> _F:
    """numba dispatcher of a kernel, with cached machine code; the function itself without numba."""
    _import_numba()
    if _numba is None:
        return function
    global kept
    if _parts is not None:
        options["pipeline_class"] = _parts.WholeCompiler
    try:
        result: _F = _numba.njit(cache=True, **_SETTINGS, **options)(function)
    except RuntimeError:
        # No folder that numba keeps machine code in can be written: a container's, whose package
        # and home are read-only.
        kept = False
        result = _numba.njit(**_SETTINGS, **options)(function)
    return result


def _translate_part(function: _F, **options: Any) -> _F:
    """numba dispatcher of a function that only kernels call; the function itself without numba."""
    _import_numba()
    if _numba is None:
        return function
    settings = {**_SETTINGS, "no_cpython_wrapper": True, **options}
    if _parts is None:
        return _numba.njit(**settings)(function)  # type: ignore[no-any-return]
    result: _F = _parts.compiled_once_for_integers(
        _numba.njit(**settings, pipeline_class=_parts.PartCompiler)(function)
    )
    return result


def _translate_inlined(function: _F) -> _F:
    """numba dispatcher that replaces calls by the function's body; the function without numba."""
    _import_numba()
    return function if _numba is None else _numba.njit(**_SETTINGS, inline="always")(function)
