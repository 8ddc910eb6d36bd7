"""Kernels that run as machine code of the extension `_kernels`, compiled ahead of time.

A process that has the extension never imports numba. A kernel runs in another form, with the same
results, where

- its source, or that of anything it calls or reads, is not what the extension was built from:
  `source_digest` shows it on the first call;
- it is called with argument types that `kernel_signatures.json` does not list.
"""

from __future__ import annotations

import marshal
from collections.abc import Callable, Iterator
from hashlib import blake2b
from importlib import import_module
from importlib.util import find_spec
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np
from numpy.lib.format import descr_to_dtype

Variant = tuple[int, int, bytes, bytes, tuple[Any, ...], tuple[str, ...]]
"""One list of argument types: number of the machine code, number of arguments, codes of arguments
and results (kernels.c), dtypes as `numpy.lib.format` describes them, and the NamedTuple classes of
results as "module:class".
"""

fallbacks: dict[str, str] = {}
"""Kernels that this process ran in another form although it has the extension -> reason: "changed"
or "arguments".
"""


def kernel_name(function: Callable[..., Any]) -> str:
    """Name of a kernel in the extension: "module:function"."""
    return f"{function.__module__}:{function.__qualname__}"


def load_extension() -> ModuleType | None:
    """Import the extension; None if it was not built, or for another machine."""
    if find_spec("shardwright._kernels") is None:
        return None
    try:
        return import_module("shardwright._kernels")
    except ImportError:
        return None


def source_digest(function: Callable[..., Any]) -> str:
    """Digest of the byte code and constants from which a kernel's machine code is made.

    It covers the kernel's byte code, that of all functions that it calls, and the constants,
    enumerations and NamedTuples that any of them names. Docstrings, comments and line numbers do
    not count.
    """
    seen, waiting, read = set[str](), [function], blake2b(digest_size=16)
    while waiting:
        one = _python_function(waiting.pop())
        if (name := kernel_name(one)) in seen:
            continue
        seen.add(name)
        read.update(f"{name} {one.__defaults__!r}".encode())
        for value in _fingerprints(one.__code__, one.__globals__, one.__doc__):
            if isinstance(value, str):
                read.update(value.encode())
            elif isinstance(value, bytes):
                read.update(value)
            else:
                waiting.append(value)
    return read.hexdigest()


def _python_function(function: Any) -> FunctionType:
    """Python function of a kernel, whether numba, the extension or nothing compiled it."""
    result: FunctionType = getattr(function, "py_func", function)
    return result


def _fingerprints(
    code: CodeType, names: dict[str, Any], doc: str | None
) -> Iterator[bytes | str | FunctionType]:
    """Yield what a function's machine code depends on: byte code, constants, globals, functions."""
    yield code.co_code
    yield repr((code.co_names, code.co_varnames, code.co_argcount))
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _fingerprints(constant, names, None)
        elif constant != doc:
            yield repr(constant)
    for name in code.co_names:
        if name in names:
            yield from _value_fingerprints(name, names[name], code.co_names)


def _value_fingerprints(
    name: str, value: Any, attributes: tuple[str, ...]
) -> Iterator[bytes | str | FunctionType]:
    """Yield the name and value of a global that a kernel reads; a function is yielded itself."""
    if isinstance(_python_function(value), FunctionType):
        yield name
        yield _python_function(value)
    elif isinstance(value, np.ndarray):
        yield name
        yield value.tobytes()
    elif isinstance(value, type):
        # Members of an enumeration are constants of machine code; the order of a NamedTuple's
        # fields is its layout.
        members = {key: member.value for key, member in getattr(value, "__members__", {}).items()}
        yield f"{name} {value.__qualname__} {members} {getattr(value, '_fields', ())}"
    elif isinstance(value, ModuleType):
        yield f"{name} {value.__name__}"
        if value.__name__.startswith("shardwright"):
            for key in attributes:
                if key in vars(value):
                    yield from _value_fingerprints(key, vars(value)[key], ())
    elif isinstance(value, (int, float, str, bytes, tuple, np.generic, np.dtype, type(None))):
        yield f"{name} {value!r}"
    else:
        yield f"{name} {type(value).__qualname__}"


class KernelPart:
    """Function that kernels call: Python runs its source, numba compiles it within its callers."""

    def __init__(self, function: FunctionType, translate: Callable[[FunctionType], Any]) -> None:
        self.py_func, self._translate = function, translate
        self.__name__, self.__qualname__, self.__module__, self.__doc__ = (
            *(function.__name__, function.__qualname__, function.__module__),
            function.__doc__,
        )

    def __call__(self, *values: Any) -> Any:
        """Call the Python function."""
        return self.py_func(*values)

    @property
    def _dispatcher(self) -> Any:
        """numba dispatcher of the function, compiled by numba on first use only."""
        found = self.__dict__.get("dispatcher")
        if found is None:
            found = self.__dict__["dispatcher"] = self._translate(self.py_func)
        return found

    @property
    def _numba_type_(self) -> Any:
        """Type that numba asks for where a function that it compiles names this one."""
        return self._dispatcher._numba_type_

    @property
    def targetoptions(self) -> Any:
        """Options that numba asks for, to know if calls of this function are inlined."""
        return self._dispatcher.targetoptions


class BuiltKernel(KernelPart):
    """Function that runs as the extension's machine code."""

    def __init__(self, function: FunctionType, translate: Callable[[FunctionType], Any]) -> None:
        super().__init__(function, translate)
        self._built: tuple[Any, ...] | None = None

    def __call__(self, *values: Any, **named: Any) -> Any:
        """Call the machine code, or numba's or Python's form where no argument types match."""
        if named:
            values = self._positional_arguments(values, named)
        if self._built is None:
            self._built = _machine_code_variants(self)
        for variant in self._built:
            result = variant(*values)
            if result is not NotImplemented:
                return result
        if len(values) != self.py_func.__code__.co_argcount:
            return self(*self._positional_arguments(values, {}))
        fallbacks.setdefault(kernel_name(self), "arguments")
        return self._dispatcher(*values)

    def _positional_arguments(
        self, values: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[Any, ...]:
        """Positional arguments of a call, from its positional, named and default values."""
        code = self.py_func.__code__
        names = code.co_varnames[: code.co_argcount]
        defaults = self.py_func.__defaults__ or ()
        given = (
            dict(zip(names[len(names) - len(defaults) :], defaults, strict=True))
            | dict(zip(names, values, strict=False))
            | named
        )
        if len(values) > len(names) or set(given) != set(names):
            raise TypeError(f"{self.__qualname__}() takes {', '.join(names)}")
        return tuple(given[name] for name in names)


_table: dict[str, tuple[str, list[Variant]]] = {}
_extension: list[Any] = []


def use_extension(extension: ModuleType) -> None:
    """Make calls of kernels from now on run this extension's machine code."""
    _extension[:] = [extension.Kernel]
    _table.clear()
    _table.update(marshal.loads(extension.table))


def _machine_code_variants(kernel: BuiltKernel) -> tuple[Any, ...]:
    """Callables of a kernel, one for each list of argument types; empty if its source changed."""
    name = kernel_name(kernel)
    built, variants = _table.get(name, ("", []))
    if not variants:
        return ()
    if built != source_digest(kernel):
        fallbacks[name] = "changed"
        return ()
    return tuple(
        _extension[0](
            number,
            given,
            arguments,
            results,
            tuple(map(descr_to_dtype, dtypes)),
            tuple(_class_of(one) for one in classes),
        )
        for number, given, arguments, results, dtypes, classes in variants
    )


def _class_of(name: str) -> Any:
    """Import the class that "module:class" names."""
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)
