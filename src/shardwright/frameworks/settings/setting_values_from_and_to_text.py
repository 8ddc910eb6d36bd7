"""Forms of a setting's value: conversion from a launch file's text to a value and back."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from shardwright.errors import DataError
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.runtime.parse_launch_arguments import Arguments


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueForm:
    """Two inverse functions between the text of a setting and its value.

    Args:
        read: (name of a setting, text) -> value.
        write: value -> object in the written file; for a text file, the text.
        values: all values, where they are few; empty = many.
    """

    read: Callable[[str, str], Any]
    write: Callable[[Any], object]
    values: tuple[Any, ...] = ()


def require_value(name: str, value: str) -> str:
    """Return a value; DataError if it depends on a script's variable without a value.

    Raises:
        DataError: a variable of the script has no value.
    """
    if "$" in value or "`" in value:
        variable = re.search(r"\$\{?([A-Za-z_][A-Za-z0-9_]*|[0-9]{1,3})", value)
        number = variable is not None and variable[1].isdigit()
        what = "an argument that the script is called with" if number else "a variable of a script"
        raise DataError(
            f"--{name} {value[:60]}: the script does not say what that is",
            hint=f"--set {variable[1][:40] if variable else 'NAME'}=VALUE gives {what} a value",
        )
    return value


def whole_number(name: str, value: str) -> int:
    """Parse up to 15 digits, also with ``_`` or ``,``, as a whole number; DataError for others.

    Raises:
        DataError: it is none, or depends on a variable without a value.
    """
    text = require_value(name, value).replace("_", "").replace(",", "")
    if not (text.isascii() and text.isdigit() and len(text) <= 15):
        raise DataError(
            f"{name} {value[:40]!r} is not a whole number", hint="a positive whole number"
        )
    return int(text)


def count(arguments: Arguments, name: str, otherwise: int = 0) -> int:
    """Whole number of a setting, or `otherwise` where the setting is absent.

    Raises:
        DataError: it is none, or depends on a variable without a value.
    """
    return whole_number(name, arguments[name]) if name in arguments else otherwise


def _percent(name: str, value: str) -> int:
    """Parse a share from 0 to 1 as a whole number of percent."""
    text = require_value(name, value)
    if not re.fullmatch(r"0?\.[0-9]{1,9}|[01](\.0{0,9})?", text):
        raise DataError(f"{name} {text[:40]!r} is not a share", hint="0 to 1")
    return round(100 * float(text))


def choice(values: Mapping[str, Any], *, otherwise: Any = None) -> ValueForm:
    """Form that reads the last dotted word of a text by `values`, else as `otherwise`; writes back.

    A word may have a class and a point before it.

    Args:
        values: word, as it is written -> value. Of several words for one value the first is
            written.
    """
    read = {word.lower(): value for word, value in values.items()}
    words = {value: word for word, value in reversed(list(values.items()))}
    return ValueForm(
        read=lambda _, text: read.get(text.strip().lower().rpartition(".")[2], otherwise),
        write=words.__getitem__,
        values=tuple(words),
    )


def switch(off: Any = False, on: Any = True) -> ValueForm:
    """Form of a switch: ``true`` is read as `on`, other texts as `off`; written as a bool."""
    return ValueForm(
        read=lambda _, text: on if text.strip().lower() == "true" else off,
        write=lambda value: bool(value == on),
        values=(off, on),
    )


TEXT: Final = ValueForm(read=require_value, write=str)
WHOLE: Final = ValueForm(read=whole_number, write=int)
SWITCH: Final = switch()
PERCENT: Final = ValueForm(read=_percent, write=lambda value: value / 100)
"""A share from 0 to 1 in files, a whole number of percent as a value."""
