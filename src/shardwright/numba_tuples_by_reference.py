"""numba type that passes a NamedTuple of arrays to compiled functions by reference.

numba passes a tuple by value: an array of two dimensions is nine numbers, a tuple of thirteen some
hundred, which every call of a function copies. A reference is one number; a field is loaded where
it is read. A reference is valid while the call from Python lasts, and its fields cannot be set.
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
    """numba type of a reference to a NamedTuple."""

    def __init__(self, held: Any) -> None:
        self.held = held
        super().__init__(name=f"reference({held.name})")

    @property
    def mangling_args(self) -> tuple[str, tuple[()]]:
        """(class name, ()) for mangled function names, without the types of the tuple's arrays.

        numba distinguishes functions by numbers as well.
        """
        return self.held.instance_class.__name__, ()


@register_model(Reference)
class _Model(models.PrimitiveModel):  # type: ignore[misc]
    """Data model: a pointer to the tuple's values."""

    def __init__(self, manager: Any, reference: Any) -> None:
        super().__init__(
            manager, reference, manager.lookup(reference.held).get_value_type().as_pointer()
        )


@infer_getattr
class _Fields(AttributeTemplate):  # type: ignore[misc]
    """Types of the tuple's fields, as attributes of the reference."""

    key = Reference

    def generic_resolve(self, reference: Any, name: str) -> Any:
        """numba type of the tuple's field `name`; None if the tuple has no such field."""
        held = reference.held
        return held[held.fields.index(name)] if name in held.fields else None


@lower_getattr_generic(Reference)  # type: ignore[untyped-decorator]
def _emit_field_load(context: Any, builder: Any, reference: Any, pointer: Any, name: str) -> Any:
    """Emit the load of field `name` of the tuple to which `pointer` points."""
    place = reference.held.fields.index(name)
    value = builder.load(cgutils.gep_inbounds(builder, pointer, 0, place))
    return impl_ret_borrowed(context, builder, reference.held[place], value)


@unbox(Reference)  # type: ignore[untyped-decorator]
def _unbox(reference: Any, value: Any, c: Any) -> Any:
    """Convert a Python tuple to numba's native tuple on the stack, and refer to it."""
    native = c.unbox(reference.held, value)
    return NativeValue(
        cgutils.alloca_once_value(c.builder, native.value),
        cleanup=native.cleanup,
        is_error=native.is_error,
    )


def _type_of_reference(value: Any, c: Any) -> Any:
    """numba type of a value of a registered NamedTuple: a reference to it; None for others."""
    held = _typeof_tuple(value, c)
    return None if held is None else Reference(held)


passed: set[type] = set()
"""Classes that compiled functions take by reference."""


def by_reference(named_tuple: type) -> None:
    """Register a NamedTuple class, so that compiled functions take its values by reference."""
    typeof_impl.register(named_tuple)(_type_of_reference)
    passed.add(named_tuple)
