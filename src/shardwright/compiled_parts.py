"""How machine code is put together: functions that only compiled ones call are parts of them, and
get none of their own.

numba optimizes each function with all that it calls written into it, and makes machine code of
that; so an innermost one goes through it once for every level above it. A part is only translated.
What Python calls links each of its parts once and is optimized as a whole.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from numba.core.codegen import JITCodeLibrary, ll
from numba.core.compiler import Compiler
from numba.core.types.misc import unliteral


class _Library(JITCodeLibrary):  # type: ignore[misc]  # numba has no types
    """A function's code, and the libraries of all that it calls,
    those of parts' parts among them.
    """

    def add_linking_library(self, library: Any) -> None:
        own = library._linking_libraries if isinstance(library, _Part) else ()
        for one in (library, *own):
            if one not in self._linking_libraries:
                super().add_linking_library(one)


class _Part(_Library):
    """As it was translated."""

    def _optimize_functions(self, module: Any) -> None:
        module.data_layout = self._codegen._data_layout

    def finalize(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True

    def _get_module_for_linking(self) -> Any:
        return self._final_module

    def get_pointer_to_function(self, name: str) -> int:
        self._ensure_finalized()
        return 0

    @property
    def codegen(self) -> Any:
        """Asked where machine code keeps the address of a function's Python objects, and there is
        none.
        """
        return SimpleNamespace(set_env=lambda name, environment: None)


class Whole(_Library):
    """With all parts."""

    def _optimize_final_module(self) -> None:
        for library in self._linking_libraries:
            if isinstance(library, _Part):
                for function in library._final_module.functions:
                    if not function.is_declaration and function.linkage == ll.Linkage.external:
                        # It is dropped where each call of it is written out.
                        self._final_module.get_function(function.name).linkage = "linkonce_odr"
        super()._optimize_final_module()

    def linked(self) -> Any:
        """The optimized module with all that it calls, to be compiled elsewhere: this process makes
        no machine code of it.
        """
        for library in self._linking_libraries:
            self._final_module.link_in(library._get_module_for_linking(), preserve=True)
        self._optimize_final_module()
        self._final_module.verify()
        return self._final_module


class PartCompiler(Compiler):  # type: ignore[misc]
    """Of a function that only compiled ones call."""

    def __init__(self, typing: Any, target: Any, library: Any, *rest: Any, **options: Any) -> None:
        super().__init__(
            typing, target, library or _Part(target.codegen(), "part"), *rest, **options
        )


class WholeCompiler(Compiler):  # type: ignore[misc]
    """Of a function that Python calls."""

    def __init__(self, typing: Any, target: Any, library: Any, *rest: Any, **options: Any) -> None:
        whole = library or Whole(target.codegen(), "whole")
        if library is None:
            whole.enable_object_caching()
        super().__init__(typing, target, whole, *rest, **options)


def of_any_number(function: Any) -> Any:
    """A compiled function that is compiled once for all integers, where numba compiles it anew for
    each that a call names.
    """
    template = function.get_call_template
    function.get_call_template = lambda args, named: template(
        tuple(unliteral(arg) for arg in args), {name: unliteral(arg) for name, arg in named.items()}
    )
    return function
