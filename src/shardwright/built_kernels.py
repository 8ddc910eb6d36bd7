"""Kernels as machine code of the extension `_kernels`, which is compiled when the package is built
or installed.

A process that has the extension never imports numba. A kernel runs in another form, with the same
results, where

- its source, or that of anything it calls or reads, is not what the extension was built from:
  `digest` tells, on the first call;
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
"""Kernels that this process ran in another form although it has the extension, and why: "changed"
or "arguments"."""


def name_of(function: Callable[..., Any]) -> str:
    """The kernel's name in the extension: "module:function"."""
    return f"{function.__module__}:{function.__qualname__}"


def load_extension() -> ModuleType | None:
    """The extension; None where the package was installed without a C compiler, or for another
    machine.
    """
    if find_spec("shardwright._kernels") is None:
        return None
    try:
        return import_module("shardwright._kernels")
    except ImportError:
        return None


def digest(function: Callable[..., Any]) -> str:
    """A digest of all that a kernel's machine code is made from: its byte code, that of all
    functions that it calls, and the constants, enumerations and NamedTuples that any of them names.
    Docstrings, comments and line numbers do not count.
    """
    seen, waiting, read = set[str](), [function], blake2b(digest_size=16)
    while waiting:
        one = _written(waiting.pop())
        if (name := name_of(one)) in seen:
            continue
        seen.add(name)
        read.update(f"{name} {one.__defaults__!r}".encode())
        for value in _parts_of(one.__code__, one.__globals__, one.__doc__):
            if isinstance(value, str):
                read.update(value.encode())
            elif isinstance(value, bytes):
                read.update(value)
            else:
                waiting.append(value)
    return read.hexdigest()


def _written(function: Any) -> FunctionType:
    """The Python function of a kernel in any form."""
    result: FunctionType = getattr(function, "py_func", function)
    return result


def _parts_of(
    code: CodeType, names: dict[str, Any], doc: str | None
) -> Iterator[bytes | str | FunctionType]:
    """What a function's machine code depends on: its byte code, its constants, values that it
    names, and functions that it calls.
    """
    yield code.co_code
    yield repr((code.co_names, code.co_varnames, code.co_argcount))
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _parts_of(constant, names, None)
        elif constant != doc:
            yield repr(constant)
    for name in code.co_names:
        if name in names:
            yield from _value(name, names[name], code.co_names)


def _value(
    name: str, value: Any, attributes: tuple[str, ...]
) -> Iterator[bytes | str | FunctionType]:
    if isinstance(_written(value), FunctionType):
        yield name
        yield _written(value)
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
                    yield from _value(key, vars(value)[key], ())
    elif isinstance(value, (int, float, str, bytes, tuple, np.generic, np.dtype, type(None))):
        yield f"{name} {value!r}"
    else:
        yield f"{name} {type(value).__qualname__}"


class Part:
    """A function that other kernels call, as it was written: Python calls it so, and numba compiles
    it where it meets it.
    """

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
        found = self.__dict__.get("dispatcher")
        if found is None:
            found = self.__dict__["dispatcher"] = self._translate(self.py_func)
        return found

    @property
    def _numba_type_(self) -> Any:
        """Asked by numba where a function that it compiles names this one."""
        return self._dispatcher._numba_type_

    @property
    def targetoptions(self) -> Any:
        """Asked by numba to know whether calls of this function are replaced by its body."""
        return self._dispatcher.targetoptions


class Kernel(Part):
    """A function that runs as the extension's machine code."""

    def __init__(self, function: FunctionType, translate: Callable[[FunctionType], Any]) -> None:
        super().__init__(function, translate)
        self._built: tuple[Any, ...] | None = None

    def __call__(self, *values: Any, **named: Any) -> Any:
        """Call the machine code, or where there is none for these arguments what numba or Python
        makes of the function.
        """
        if named:
            values = self._in_order(values, named)
        if self._built is None:
            self._built = _variants(self)
        for variant in self._built:
            result = variant(*values)
            if result is not NotImplemented:
                return result
        if len(values) != self.py_func.__code__.co_argcount:
            return self(*self._in_order(values, {}))
        fallbacks.setdefault(name_of(self), "arguments")
        return self._dispatcher(*values)

    def _in_order(self, values: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
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


def use(extension: ModuleType) -> None:
    """Run kernels as this extension's machine code from now on."""
    _extension[:] = [extension.Kernel]
    _table.clear()
    _table.update(marshal.loads(extension.table))


def _variants(kernel: Kernel) -> tuple[Any, ...]:
    """The machine code of a kernel, one for each list of argument types; none where the source has
    changed since.
    """
    name = name_of(kernel)
    built, variants = _table.get(name, ("", []))
    if not variants:
        return ()
    if built != digest(kernel):
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
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)
