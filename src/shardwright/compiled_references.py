"""NamedTuples of arrays that compiled functions hand on by reference.

numba passes a tuple by value: an array of two dimensions is nine numbers, a tuple of thirteen some
hundred, which every call of a function copies and every function names. A reference is one; what is
read of it is loaded where it is read. It holds while the call from Python lasts, and nothing of it
can be set.
"""

from __future__ import annotations

from typing import Any

from numba.core import cgutils, types
from numba.core.datamodel import models
from numba.core.imputils import impl_ret_borrowed
from numba.core.typing.templates import AttributeTemplate
from numba.core.typing.typeof import _typeof_tuple
from numba.extending import (
    NativeValue,
    infer_getattr,
    lower_getattr_generic,
    register_model,
    typeof_impl,
    unbox,
)


class Reference(types.Type):  # numba has no types
    """To a NamedTuple."""

    def __init__(self, held: Any) -> None:
        self.held = held
        super().__init__(name=f"reference({held.name})")

    @property
    def mangling_args(self) -> tuple[str, tuple[()]]:
        """In the names of functions, which numba tells apart by numbers as well: its class alone,
        not the types of all arrays.
        """
        return self.held.instance_class.__name__, ()


@register_model(Reference)
class _Model(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, reference: Any) -> None:
        super().__init__(
            manager, reference, manager.lookup(reference.held).get_value_type().as_pointer()
        )


@infer_getattr
class _Fields(AttributeTemplate):  # type: ignore[misc]
    key = Reference

    def generic_resolve(self, reference: Any, name: str) -> Any:
        held = reference.held
        return held[held.fields.index(name)] if name in held.fields else None


@lower_getattr_generic(Reference)  # type: ignore[untyped-decorator]
def _load(context: Any, builder: Any, reference: Any, pointer: Any, name: str) -> Any:
    place = reference.held.fields.index(name)
    value = builder.load(cgutils.gep_inbounds(builder, pointer, 0, place))
    return impl_ret_borrowed(context, builder, reference.held[place], value)


@unbox(Reference)  # type: ignore[untyped-decorator]
def _unbox(reference: Any, value: Any, c: Any) -> Any:
    native = c.unbox(reference.held, value)
    return NativeValue(
        cgutils.alloca_once_value(c.builder, native.value),
        cleanup=native.cleanup,
        is_error=native.is_error,
    )


def _refer(value: Any, c: Any) -> Any:
    held = _typeof_tuple(value, c)
    return None if held is None else Reference(held)


passed: set[type] = set()
"""Classes that compiled functions take by reference."""


def by_reference(named_tuple: type) -> None:
    """Compiled functions take values of the class by reference from now on."""
    typeof_impl.register(named_tuple)(_refer)
    passed.add(named_tuple)
