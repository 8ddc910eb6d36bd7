"""Declarations of arguments and options as in typer, and a fast parser of plain command lines.

Importing typer, and what it brings, takes as long as all modules of a plan. A verb that declares
its parameters with this module is read here where every word is plainly one of its arguments,
options or values; help, errors and everything unusual go to typer (`parse_with_typer`), which gets
the same declarations. So a command line means the same whichever of the two reads it.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, replace
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

from shardwright.lazily_compiled_dataclass import dataclass

Verb = Callable[..., int | None]
"""A function that runs one verb and returns its exit code; None means 0."""
T = TypeVar("T")
_PANELS: dict[Any, str] = {}
"""Title in the help of each class of options."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """Declaration of an option (with names) or an argument (without), with typer's settings."""

    names: tuple[str, ...]
    settings: dict[str, Any]
    is_option: bool


def Option(*names: str, **settings: Any) -> Any:  # typer's name
    """Declare an option, with the parameters of `typer.Option`."""
    return Declaration(names=names, settings=settings, is_option=True)


def Argument(**settings: Any) -> Any:  # typer's name
    """Declare an argument, with the parameters of `typer.Argument`."""
    return Declaration(names=(), settings=settings, is_option=False)


@dataclass_transform(kw_only_default=True, frozen_default=True)
def group(panel: str) -> Callable[[type[T]], type[T]]:
    """Decorator: a class of options that verbs share becomes a frozen dataclass with a help title.

    A verb takes all options of the group as one parameter of that class; its help shows them under
    the title `panel`.
    """

    def decorate(cls: type[T]) -> type[T]:
        """Make the class a frozen dataclass and store its help title."""
        made: type[T] = dataclass(frozen=True, slots=True, kw_only=True)(cls)
        _PANELS[made] = panel
        return made

    return decorate


def _is_group(hint: Any) -> bool:
    """True if a type is a class of options made by `group`."""
    return isinstance(hint, type) and hint in _PANELS


def declared_parameters(function: Verb) -> Iterator[inspect.Parameter]:
    """Yield the parameters of a verb with types and declarations, each group as its options."""
    hints = get_type_hints(function, include_extras=True)
    for parameter in inspect.signature(function).parameters.values():
        hint = hints[parameter.name]
        if _is_group(hint):
            yield from _options_of(hint)
        else:
            yield parameter.replace(annotation=hint)


def _options_of(group_class: Any) -> Iterator[inspect.Parameter]:
    """Yield the options of a group as keyword parameters under the group's help title."""
    hints = get_type_hints(group_class, include_extras=True)
    for field in fields(group_class):
        kind, declared = get_args(hints[field.name])
        settings = {"rich_help_panel": _PANELS[group_class], **declared.settings}
        yield inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
            annotation=Annotated[kind, replace(declared, settings=settings)],
        )


def values_by_flag(options: Any) -> dict[str, Any]:
    """Flag without dashes -> value, for each option of a filled group of options."""
    names = {
        parameter.name: get_args(parameter.annotation)[1].names[0]
        for parameter in _options_of(type(options))
    }
    return {flag.removeprefix("--"): getattr(options, name) for name, flag in names.items()}


def call_verb(function: Verb, values: Mapping[str, Any]) -> int:
    """Build option groups from `values` and call a verb; returns its exit code, 0 for None."""
    hints, arguments = get_type_hints(function), dict(values)
    for name in inspect.signature(function).parameters:
        if _is_group(hints[name]):
            options = {field.name: arguments.pop(field.name) for field in fields(hints[name])}
            arguments[name] = hints[name](**options)
    return function(**arguments) or 0


@dataclass(frozen=True, slots=True, kw_only=True)
class VerbParameter:
    """A parameter of a verb's function and the parser of its value.

    `read` parses a word and raises `_Unusual` where typer must judge the word.
    """

    name: str
    declared: Declaration
    is_flag: bool
    is_list: bool
    default: Any
    read: Callable[[str], Any]


_INTEGER, _DECIMAL = (
    re.compile(r"-?[0-9]{1,15}"),
    re.compile(r"-?[0-9]{1,15}(\.[0-9]{1,15})?(e-?[0-9]{1,2})?"),
)
_PATTERNS = {int: _INTEGER, float: _DECIMAL}


class _Unusual(Exception):  # noqa: N818  # no error: typer reads the command line
    """Raised where a command line or a declaration needs typer."""


def parse_words(function: Verb, words: Sequence[str]) -> dict[str, Any] | None:
    """Parse the words of a verb into the value of each parameter; None if they need typer."""
    try:
        return _parse_plain(list(verb_parameters(function)), words)
    except _Unusual:
        return None


def verb_parameters(function: Verb) -> Iterator[VerbParameter]:
    """Yield the parameters of a verb's function with names, types, limits and defaults.

    Raises _Unusual where a parameter is not declared with this module.
    """
    for parameter in declared_parameters(function):
        hint = parameter.annotation
        declared = get_args(hint)[1] if get_origin(hint) is Annotated else None
        if not isinstance(declared, Declaration):
            raise _Unusual
        kind, is_list = _value_type_and_is_list(get_args(hint)[0])
        if any("/" in one for one in declared.names) or (kind is bool and is_list):
            raise _Unusual
        yield VerbParameter(
            name=parameter.name,
            declared=declared,
            is_flag=kind is bool,
            is_list=is_list,
            default=parameter.default,
            read=_value_parser(kind, declared.settings),
        )


def _value_type_and_is_list(hint: Any) -> tuple[Any, bool]:
    """(type of one value, True for a list) of a declared parameter; `_Unusual` for other types."""
    if get_origin(hint) in (Union, UnionType):
        types = [one for one in get_args(hint) if one is not NoneType]
        if len(types) != 1:
            raise _Unusual
        return _value_type_and_is_list(types[0])
    if get_origin(hint) is list:
        return _value_type_and_is_list(get_args(hint)[0])[0], True
    if hint not in (str, int, float, bool, Path):
        raise _Unusual
    return hint, False


def _value_parser(kind: Any, settings: dict[str, Any]) -> Callable[[str], Any]:
    """A function that parses one word to a type within the limits `min` and `max`."""
    if settings.keys() - {"help", "metavar", "show_default", "min", "max", "rich_help_panel"}:
        raise _Unusual
    least, most = settings.get("min"), settings.get("max")

    def read(word: str) -> Any:
        """Parse one word; raises `_Unusual` if it is not of the type or out of range."""
        if kind in _PATTERNS and not _PATTERNS[kind].fullmatch(word):
            raise _Unusual
        value = kind(word)
        if (least is not None and value < least) or (most is not None and value > most):
            raise _Unusual
        return value

    return read


def _parse_plain(parameters: Sequence[VerbParameter], words: Sequence[str]) -> dict[str, Any]:
    """Parse words into the value of each parameter; raises `_Unusual` if they need typer."""
    options = {name: parameter for parameter in parameters for name in parameter.declared.names}
    arguments = [parameter for parameter in parameters if not parameter.declared.is_option]
    values, positionals = dict[str, Any](), list[str]()
    remaining = iter(words)
    for word in remaining:
        name, equals, value = word.partition("=") if word.startswith("--") else (word, "", "")
        if not word.startswith("-") or word == "-":
            positionals.append(word)
        elif (option := options.get(name)) is None or (option.is_flag and equals):
            raise _Unusual
        elif option.is_flag:
            values[option.name] = True
        else:
            _store_value(values, option, value if equals else next(remaining, None))
    for argument in arguments:
        several = argument.is_list and argument is arguments[-1]
        if argument.is_list and not several:
            raise _Unusual
        taken, positionals = (positionals, []) if several else (positionals[:1], positionals[1:])
        for word in taken:
            _store_value(values, argument, word)
    if positionals:
        raise _Unusual
    for parameter in parameters:
        if parameter.name not in values:
            if parameter.default is inspect.Parameter.empty:
                raise _Unusual
            values[parameter.name] = parameter.default
    return values


def _store_value(values: dict[str, Any], parameter: VerbParameter, word: str | None) -> None:
    """Parse a word and store the value of a parameter, appended if the parameter is a list."""
    if word is None:
        raise _Unusual
    value = parameter.read(word)
    if parameter.is_list:
        values.setdefault(parameter.name, []).append(value)
    else:
        values[parameter.name] = value
