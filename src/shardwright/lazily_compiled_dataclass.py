"""Dataclass decorator that compiles the methods of frozen slot classes on their first call.

The standard decorator writes and compiles six methods of each class as its module is imported: for
all classes of a plan that is two thirds of the time that importing this package takes. Here
`__init__`, `__repr__`, `__eq__` and `__hash__` are compiled on their first call, and one
`__setattr__` and one `__delattr__` serve all classes. Fields are collected here too, in half the
time: the standard decorator also looks for what these classes do not have. What the classes do is
the same. Other settings, and classes that inherit from a dataclass, go to the standard decorator.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any


def _refuse_change(self: Any, name: str, *value: Any) -> None:
    """Set (with a value) or delete attribute `name`; FrozenInstanceError if it is a field.

    Attributes that a subclass without fields of its own adds may change.
    """
    cls = type(self)
    if "__dataclass_fields__" in vars(cls) or name in cls.__dataclass_fields__:
        raise dataclasses.FrozenInstanceError(
            f"cannot {'assign to' if value else 'delete'} field {name!r}"
        )
    if value:
        object.__setattr__(self, name, *value)
    else:
        object.__delattr__(self, name)


def _set(self: Any, name: str, value: Any) -> None:
    """`__setattr__` of lazy classes: FrozenInstanceError save for attributes of a subclass."""
    _refuse_change(self, name, value)


def _delete(self: Any, name: str) -> None:
    """`__delattr__` of lazy classes: FrozenInstanceError save for attributes of a subclass."""
    _refuse_change(self, name)


def _field_values(self: Any) -> list[Any]:
    """`__getstate__` of lazy classes: the values of all fields in order, for pickle and copy."""
    return [getattr(self, field.name) for field in dataclasses.fields(self)]


def _set_field_values(self: Any, state: Iterable[Any]) -> None:
    """`__setstate__` of lazy classes: set all fields from the values in `state`, in order."""
    for field, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, field.name, value)


def _tuple_text(fields: Iterable[dataclasses.Field[Any]], owner: str) -> str:
    """Source text of the tuple of fields of variable `owner`: ``(self.a, self.b, )``."""
    return "(" + "".join(f"{owner}.{field.name}, " for field in fields) + ")"


def _init_text(cls: Any, names: dict[str, Any]) -> str:
    """Source text of `__init__` for a class; its default values are added to `names`."""
    by_place, by_name, lines = list[str](), list[str](), list[str]()
    for field in dataclasses.fields(cls):
        name, default, value = field.name, "", field.name
        if field.default_factory is not dataclasses.MISSING:
            names[f"_factory_{name}"], default = field.default_factory, "=_missing"
            value = (
                f"_factory_{name}() if {name} is _missing else {name}"
                if field.init
                else f"_factory_{name}()"
            )
        elif field.default is not dataclasses.MISSING:
            names[f"_default_{name}"], default = field.default, f"=_default_{name}"
            value = name if field.init else f"_default_{name}"
        elif not field.init:
            continue
        lines.append(f"    _set(self, {name!r}, {value})\n")
        if field.init:
            (by_name if field.kw_only else by_place).append(f"{name}{default}")
    if hasattr(cls, "__post_init__"):
        lines.append("    self.__post_init__()\n")
    words = ", ".join(["self", *by_place, *(["*", *by_name] if by_name else [])])
    return f"def __init__({words}):\n{''.join(lines) or '    pass'}"


def _eq_text(cls: Any, _: dict[str, Any]) -> str:
    """Source text of `__eq__`, which compares the tuples of all fields of one class."""
    fields = [field for field in dataclasses.fields(cls) if field.compare]
    same = f"{_tuple_text(fields, 'self')} == {_tuple_text(fields, 'other')}"
    return (
        f"def __eq__(self, other):\n    return {same} if other.__class__ is self.__class__ else"
        " NotImplemented"
    )


def _hash_text(cls: Any, _: dict[str, Any]) -> str:
    """Source text of `__hash__`, the hash of the tuple of the compared fields."""
    fields = [
        field
        for field in dataclasses.fields(cls)
        if (field.compare if field.hash is None else field.hash)
    ]
    return f"def __hash__(self):\n    return hash({_tuple_text(fields, 'self')})"


def _repr_text(cls: Any, names: dict[str, Any]) -> str:
    """Source text of `__repr__`, in the form of standard dataclasses."""
    names["recursive_repr"] = recursive_repr
    shown = ", ".join(
        f"{field.name}={{self.{field.name}!r}}" for field in dataclasses.fields(cls) if field.repr
    )
    return (
        "@recursive_repr()\ndef __repr__(self):\n    return self.__class__.__qualname__ +"
        f" f'({shown})'"
    )


_TEXTS: dict[str, Callable[[Any, dict[str, Any]], str]] = {
    "__init__": _init_text,
    "__eq__": _eq_text,
    "__hash__": _hash_text,
    "__repr__": _repr_text,
}


def _compile_method(cls: Any, method: str) -> Any:
    """Compile one method for a class's fields, and set it in place of its stub."""
    names: dict[str, Any] = {"_set": object.__setattr__, "_missing": dataclasses.MISSING}
    exec(_TEXTS[method](cls, names), names)
    function = names[method]
    function.__qualname__, function.__module__ = f"{cls.__qualname__}.{method}", cls.__module__
    setattr(cls, method, function)
    return function


def _compiled_on_first_call(cls: Any, method: str) -> Any:
    """Method that compiles the class's own method on its first call, and calls it."""

    def stub(self: Any, *values: Any, **named: Any) -> Any:
        """Compile the method, which replaces this stub, and call it."""
        return _compile_method(cls, method)(self, *values, **named)

    stub.__name__, stub.__module__ = method, __name__
    return stub


class _Signature:
    """Descriptor for `__signature__` that compiles `__init__` before `inspect` looks at it."""

    def __get__(self, instance: object, owner: Any) -> None:
        if instance is None and owner.__init__.__module__ == __name__:
            _compile_method(owner, "__init__")


@lru_cache
def _dataclass_params(*, eq: bool, kw_only: bool) -> Any:
    """The standard decorator's `__dataclass_params__` for these settings."""

    class Empty:
        pass

    made: Any = dataclasses.dataclass(frozen=True, slots=True, eq=eq, kw_only=kw_only)(Empty)
    return made.__dataclass_params__


def _lazy_class(cls: Any, *, eq: bool = True, kw_only: bool = False) -> Any:
    """Make a frozen slotted dataclass; its methods compile on first call where the class allows."""
    own = vars(cls)
    hints: dict[str, Any] = own.get("__annotations__", {})
    fields = _fields_of(own, hints, kw_only=kw_only)
    inherits = any(
        hasattr(base, "__dataclass_fields__") or "__slots__" in vars(base)
        for base in cls.__mro__[1:-1]
    )
    is_special = any(
        word in str(one) for one in hints.values() for word in ("InitVar", "ClassVar", "KW_ONLY")
    )
    if (
        fields is None
        or inherits
        or is_special
        or type(cls) is not type
        or "__setattr__" in own
        or "__delattr__" in own
    ):
        return dataclasses.dataclass(frozen=True, slots=True, eq=eq, kw_only=kw_only)(cls)
    # Python sets __hash__ to None where a class has __eq__: that is not the class's own wish.
    has_hash = own.get("__hash__") is not None or ("__hash__" in own and "__eq__" not in own)
    left = {name for name in ("__init__", "__repr__", "__eq__") if name in own}
    left |= {"__hash__"} if has_hash else set()
    left |= set() if eq else {"__eq__", "__hash__"}
    body = {
        name: value
        for name, value in own.items()
        if name not in fields and name not in ("__dict__", "__weakref__")
    }
    body.setdefault(
        "__match_args__",
        tuple([one.name for one in fields.values() if one.init and not one.kw_only]),
    )
    body["__slots__"], body["__dataclass_fields__"], body["__dataclass_params__"] = (
        tuple(fields),
        fields,
        _dataclass_params(eq=eq, kw_only=kw_only),
    )
    body["__setattr__"], body["__delattr__"], body["__signature__"] = _set, _delete, _Signature()
    if "__getstate__" not in own:
        body["__getstate__"], body["__setstate__"] = _field_values, _set_field_values
    made: Any = type(cls.__name__, cls.__bases__, body)
    made.__qualname__ = cls.__qualname__
    for method in _TEXTS:
        if method not in left:
            setattr(made, method, _compiled_on_first_call(made, method))
    return made


def _fields_of(
    own: Mapping[str, Any], hints: dict[str, Any], *, kw_only: bool
) -> dict[str, dataclasses.Field[Any]] | None:
    """Name -> field of a class body; None if only the standard decorator can handle a field."""
    found: dict[str, dataclasses.Field[Any]] = {}
    for name, hint in hints.items():
        default = own.get(name, dataclasses.MISSING)
        one: Any = (
            default
            if isinstance(default, dataclasses.Field)
            else dataclasses.field(default=default)
        )
        if one.default.__class__.__hash__ is None:
            return None
        one.name, one.type, one._field_type = name, hint, dataclasses._FIELD  # type: ignore[attr-defined]  # what every field has
        if one.kw_only is dataclasses.MISSING:
            one.kw_only = kw_only
        found[name] = one
    return (
        None
        if any(
            isinstance(value, dataclasses.Field) and name not in hints
            for name, value in own.items()
        )
        else found
    )


if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls: Any = None, /, **settings: Any) -> Any:
        """`dataclasses.dataclass`; frozen slotted classes compile methods on first call."""
        others = {
            name: value for name, value in settings.items() if name not in ("frozen", "slots")
        }
        if (
            cls is not None
            or not (settings.get("frozen") and settings.get("slots"))
            or others.keys() - {"eq", "kw_only"}
        ):
            return dataclasses.dataclass(cls, **settings)
        return lambda one: _lazy_class(one, **others)
