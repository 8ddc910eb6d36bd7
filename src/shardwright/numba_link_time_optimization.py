"""numba compiler that translates inner functions once and optimizes each kernel as a whole.

numba optimizes each function with all that it calls written into it, and makes machine code of
that; so an innermost function is optimized once for every level above it. Here a part is only
translated. A kernel that Python calls links each of its parts once and is optimized as a whole.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from numba.core.codegen import JITCodeLibrary, ll
from numba.core.compiler import Compiler
from numba.core.types.misc import unliteral


class _Library(JITCodeLibrary):  # type: ignore[misc]  # numba has no types
    """numba code library of a function that links the parts of its parts too."""

    def add_linking_library(self, library: Any) -> None:
        """Link a library, and the libraries that a part links, each once."""
        own = library._linking_libraries if isinstance(library, _Part) else ()
        for one in (library, *own):
            if one not in self._linking_libraries:
                super().add_linking_library(one)


class _Part(_Library):
    """Code library of a function that only kernels call: translated, not optimized."""

    def _optimize_functions(self, module: Any) -> None:
        """Set the module's data layout and skip numba's optimization of single functions."""
        module.data_layout = self._codegen._data_layout

    def finalize(self) -> None:
        """Mark the part as complete, without optimizing or emitting machine code."""
        self._finalize_dynamic_globals()
        self._finalized = True

    def _get_module_for_linking(self) -> Any:
        """LLVM module of the part, for the kernel that links it."""
        return self._final_module

    def get_pointer_to_function(self, name: str) -> int:
        """Address 0: a part has no machine code of its own."""
        self._ensure_finalized()
        return 0

    @property
    def codegen(self) -> Any:
        """Object with `set_env` that does nothing, in place of numba's code generator."""
        return SimpleNamespace(set_env=lambda name, environment: None)


class Whole(_Library):
    """Code library of a kernel, optimized with all its parts."""

    def _optimize_final_module(self) -> None:
        """Optimize the kernel with its parts, whose functions may be dropped once inlined."""
        for library in self._linking_libraries:
            if isinstance(library, _Part):
                for function in library._final_module.functions:
                    if not function.is_declaration and function.linkage == ll.Linkage.external:
                        # It is dropped where each call of it is written out.
                        self._final_module.get_function(function.name).linkage = "linkonce_odr"
        super()._optimize_final_module()

    def linked(self) -> Any:
        """LLVM module of the kernel linked with all its parts and optimized; no machine code."""
        for library in self._linking_libraries:
            self._final_module.link_in(library._get_module_for_linking(), preserve=True)
        self._optimize_final_module()
        self._final_module.verify()
        return self._final_module


class PartCompiler(Compiler):  # type: ignore[misc]
    """numba compiler for a function that only kernels call."""

    def __init__(self, typing: Any, target: Any, library: Any, *rest: Any, **options: Any) -> None:
        super().__init__(
            typing, target, library or _Part(target.codegen(), "part"), *rest, **options
        )


class WholeCompiler(Compiler):  # type: ignore[misc]
    """numba compiler for a function that Python calls."""

    def __init__(self, typing: Any, target: Any, library: Any, *rest: Any, **options: Any) -> None:
        whole = library or Whole(target.codegen(), "whole")
        if library is None:
            whole.enable_object_caching()
        super().__init__(typing, target, whole, *rest, **options)


def compiled_once_for_integers(function: Any) -> Any:
    """Make a numba dispatcher, in place, compile once for all integer literals, not each value."""
    template = function.get_call_template
    function.get_call_template = lambda args, named: template(
        tuple(unliteral(arg) for arg in args), {name: unliteral(arg) for name, arg in named.items()}
    )
    return function
