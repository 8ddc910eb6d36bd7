"""Expansion of shell parameters in braces: ``${A:-b}``, ``${A[@]}``, ``${#A}``, ``${A%.*}``."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable
from typing import Final, TypeVar

from shardwright.frameworks.shell.arithmetic import arithmetic
from shardwright.frameworks.shell.variables_and_positional_parameters import (
    Value,
    Variables,
    assign,
    is_number,
    scalar_of,
    unknown_name,
    value_of,
)

_BODY: Final = re.compile(
    r"([#!]?)([A-Za-z_][A-Za-z0-9_]*|[0-9]{1,3}|[@*#])(?:\[([^\[\]]*)\])?(.*)", re.DOTALL
)
_INSTEAD: Final = re.compile(r"(:?)([-=+?])(.*)", re.DOTALL)
_REMOVED: Final = re.compile(r"(##?|%%?)(.*)", re.DOTALL)
_REPLACED: Final = re.compile(r"(//?)((?:[^/\\]|\\.)*)(?:/(.*))?", re.DOTALL)
_PART: Final = re.compile(r":([^:]+)(?::([^:]+))?")
_CASES: Final = {",,": str.lower, "^^": str.upper}
_MAX_MATCHED: Final = 500
"""Characters of a value that patterns are matched with."""

_Sliced = TypeVar("_Sliced", str, tuple[str, ...])
ExpandWord = Callable[[str], str]
"""Function that expands the variables in a word."""


def parameter_of(body: str, variables: Variables, filled: ExpandWord) -> Value | None:
    """Value of ``${body}``; an unset ``${NAME}`` gives ``$NAME``, other unknown expansions None.

    ``:=`` assigns the value to the variable. An unset variable is empty where the script asks
    whether it is set.
    """
    match = _BODY.fullmatch(body)
    if match is None:
        return None
    mark, name, index, rest = match.groups()
    if body == "#":
        return value_of(variables, "#")
    if mark == "!":
        target = value_of(variables, name)
        return (
            value_of(variables, target)
            if isinstance(target, str) and not rest and index is None
            else None
        )
    value = _value_at_index(name, index, variables, filled)
    if mark == "#":
        return _length(value, index) if not rest else None
    instead = _INSTEAD.fullmatch(rest) if rest else None
    if instead is not None:
        return _with_default(name, value, instead, variables, filled)
    if value is None:
        # A name in braces is the same as without; what is cut from it is not known either.
        return unknown_name(variables, name) if not rest and index is None else None
    if isinstance(value, tuple) and (part := _PART.fullmatch(rest)) is not None:
        # ``${@:1}`` is the first positional parameter, ``${A[@]:0}`` the first item.
        return _cut(value, part, variables, filled, first=1 if name in "@*" else 0)
    return value if not rest else _substring_or_replaced(value, rest, variables, filled)


def _value_at_index(
    name: str, index: str | None, variables: Variables, filled: ExpandWord
) -> Value | None:
    """Value of a variable or its array's item at `index` (``@``: all, past: ""); None = unknown."""
    if index is None:
        return scalar_of(variables, name)
    if index in ("@", "*"):
        value = value_of(variables, name)
        return (value,) if isinstance(value, str) and value else value
    place = filled(index).strip("'\"")
    single = variables.values.get(f"{name}[{place}]")
    if single is not None:
        return single
    number, value = arithmetic(place, variables), value_of(variables, name)
    if number is None or value is None:
        return None
    items = (value,) if isinstance(value, str) else value
    return items[number] if -len(items) <= number < len(items) else ""


def _length(value: Value | None, index: str | None) -> str | None:
    """Number of characters of a text, or items of an array at ``@``, as text; None if not known."""
    if value is None:
        return None
    return (
        str(len(value))
        if isinstance(value, str) or index in ("@", "*")
        else str(len(value[0]) if value else 0)
    )


def _with_default(
    name: str, value: Value | None, match: re.Match[str], variables: Variables, filled: ExpandWord
) -> Value | None:
    """Expansion with ``-``, ``=``, ``+`` (default, assignment, alternative) or ``?`` (``$NAME``).

    With a colon, an empty value counts as unset.
    """
    colon, mark, word = match.groups()
    is_set = value is not None and not (colon and not value)
    if mark == "+":
        return filled(word) if is_set else ""
    if is_set:
        return value
    if mark == "?":
        return unknown_name(variables, name)
    default = filled(word)
    if mark == "=" and not is_number(name):
        assign(variables, name, default)
    return default


def _substring_or_replaced(
    value: Value, rest: str, variables: Variables, filled: ExpandWord
) -> Value | None:
    """A text cut by ``:begin:length``, or it or each item by ``#``, ``%``, ``/``, case; or None."""
    if isinstance(value, tuple):
        made = [_substring_or_replaced(item, rest, variables, filled) for item in value[:1000]]
        texts = tuple(text for text in made if isinstance(text, str))
        return texts if len(texts) == len(made) else None
    if len(value) > _MAX_MATCHED:
        return None
    if rest in _CASES:
        return _CASES[rest](value)
    part = _PART.fullmatch(rest)
    if part is not None:
        return _cut(value, part, variables, filled)
    removed = _REMOVED.fullmatch(rest)
    if removed is not None:
        return _without_pattern(value, removed[1], filled(removed[2]))
    replaced = _REPLACED.fullmatch(rest)
    if replaced is not None and not set("*?[") & set(replaced[2]):
        return value.replace(
            filled(replaced[2]), filled(replaced[3] or ""), -1 if replaced[1] == "//" else 1
        )
    return None


def _cut(
    value: _Sliced,
    part: re.Match[str],
    variables: Variables,
    filled: ExpandWord,
    *,
    first: int = 0,
) -> _Sliced | None:
    """Characters or items of ``:begin:length``, counted from `first`; None = not known.

    A negative begin counts from the end, a negative length is what is left out at the end.
    ``${@:0}`` is not known: it begins with the script's name.
    """
    begin, length = (
        arithmetic(filled(text).strip("() "), variables) if text else None for text in part.groups()
    )
    if begin is None or (part[2] and length is None) or (first and begin == 0):
        return None
    start = begin + len(value) if begin < 0 else begin - first
    if start < 0:
        return value[:0]
    end = len(value) if length is None else length + (start if length >= 0 else len(value))
    return value[start : max(end, start)]


def _without_pattern(value: str, mark: str, pattern: str) -> str:
    """Value without the shortest (``#``, ``%``) or longest (``##``, ``%%``) matching start or end.

    A single mark cuts the shortest match, a double mark the longest.
    """
    places = range(len(value) + 1)
    if mark[0] == "#":
        place = next(
            (
                n
                for n in (places if len(mark) == 1 else reversed(places))
                if fnmatch.fnmatchcase(value[:n], pattern)
            ),
            0,
        )
        return value[place:]
    place = next(
        (
            n
            for n in (reversed(places) if len(mark) == 1 else places)
            if fnmatch.fnmatchcase(value[n:], pattern)
        ),
        len(value),
    )
    return value[:place]
