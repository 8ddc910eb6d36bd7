"""Declarations of arguments and options with the names and settings of typer's, and a reader of
ordinary command lines.

Importing typer, and what it brings, takes as long as all modules of a plan. A verb that declares
its parameters with this module is read here where every word is plainly one of its arguments,
options or values; help, errors and everything unusual go to typer (`typer_command`), which gets the
same declarations. So a command line means the same whichever of the two reads it.
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

from shardwright.lazy_dataclass import dataclass

Verb = Callable[..., int | None]
"""A function that runs one verb and returns its exit code; None is 0."""
T = TypeVar("T")
_PANELS: dict[Any, str] = {}
"""Each group of options, and the title above them in the help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """An option with its names, or an argument with none; `settings` are those of typer's function
    of that name.
    """

    names: tuple[str, ...]
    settings: dict[str, Any]
    is_option: bool


def Option(*names: str, **settings: Any) -> Any:  # typer's name
    """Declare an option, as `typer.Option` does."""
    return Declared(names=names, settings=settings, is_option=True)


def Argument(**settings: Any) -> Any:  # typer's name
    """Declare an argument, as `typer.Argument` does."""
    return Declared(names=(), settings=settings, is_option=False)


@dataclass_transform(kw_only_default=True, frozen_default=True)
def group(panel: str) -> Callable[[type[T]], type[T]]:
    """Decorate a class of options that verbs share, which becomes a frozen dataclass. A verb takes
    them together as one parameter of that class; its help shows them under the title `panel`.
    """

    def decorate(cls: type[T]) -> type[T]:
        made: type[T] = dataclass(frozen=True, slots=True, kw_only=True)(cls)
        _PANELS[made] = panel
        return made

    return decorate


def _is_group(hint: Any) -> bool:
    return isinstance(hint, type) and hint in _PANELS


def signature_of(function: Verb) -> Iterator[inspect.Parameter]:
    """The parameters of a verb with their types and declarations, each group as its options."""
    hints = get_type_hints(function, include_extras=True)
    for parameter in inspect.signature(function).parameters.values():
        hint = hints[parameter.name]
        if _is_group(hint):
            yield from _options_of(hint)
        else:
            yield parameter.replace(annotation=hint)


def _options_of(group_class: Any) -> Iterator[inspect.Parameter]:
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


def by_flag(options: Any) -> dict[str, Any]:
    """The value of each option of a group, by its name on the command line without dashes."""
    names = {one.name: get_args(one.annotation)[1].names[0] for one in _options_of(type(options))}
    return {flag.removeprefix("--"): getattr(options, name) for name, flag in names.items()}


def call(function: Verb, values: Mapping[str, Any]) -> int:
    """Run a verb with the value of each option and argument; returns its exit code."""
    hints, arguments = get_type_hints(function), dict(values)
    for name in inspect.signature(function).parameters:
        if _is_group(hints[name]):
            options = {one.name: arguments.pop(one.name) for one in fields(hints[name])}
            arguments[name] = hints[name](**options)
    return function(**arguments) or 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A parameter of a verb's function. `read`: its value from a word, None where typer is to judge
    the word.
    """

    name: str
    declared: Declared
    is_flag: bool
    is_list: bool
    default: Any
    read: Callable[[str], Any]


_WHOLE, _DECIMAL = (
    re.compile(r"-?[0-9]{1,15}"),
    re.compile(r"-?[0-9]{1,15}(\.[0-9]{1,15})?(e-?[0-9]{1,2})?"),
)
_PATTERNS = {int: _WHOLE, float: _DECIMAL}


class _Unusual(Exception):  # noqa: N818  # no error: typer reads the command line
    pass


def read_words(function: Verb, words: Sequence[str]) -> dict[str, Any] | None:
    """The value of each option and argument of the verb; None where `words` need typer."""
    try:
        return _read(list(parameters_of(function)), words)
    except _Unusual:
        return None


def parameters_of(function: Verb) -> Iterator[Parameter]:
    """The parameters of a verb's function, in order. Raises _Unusual where one is not declared with
    this module.
    """
    for parameter in signature_of(function):
        hint = parameter.annotation
        declared = get_args(hint)[1] if get_origin(hint) is Annotated else None
        if not isinstance(declared, Declared):
            raise _Unusual
        kind, is_list = _kind(get_args(hint)[0])
        if any("/" in one for one in declared.names) or (kind is bool and is_list):
            raise _Unusual
        yield Parameter(
            name=parameter.name,
            declared=declared,
            is_flag=kind is bool,
            is_list=is_list,
            default=parameter.default,
            read=_reader(kind, declared.settings),
        )


def _kind(hint: Any) -> tuple[Any, bool]:
    """The type of one value, and whether there are several."""
    if get_origin(hint) in (Union, UnionType):
        left = [one for one in get_args(hint) if one is not NoneType]
        if len(left) != 1:
            raise _Unusual
        return _kind(left[0])
    if get_origin(hint) is list:
        return _kind(get_args(hint)[0])[0], True
    if hint not in (str, int, float, bool, Path):
        raise _Unusual
    return hint, False


def _reader(kind: Any, settings: dict[str, Any]) -> Callable[[str], Any]:
    if settings.keys() - {"help", "metavar", "show_default", "min", "max", "rich_help_panel"}:
        raise _Unusual
    least, most = settings.get("min"), settings.get("max")

    def read(word: str) -> Any:
        if kind in _PATTERNS and not _PATTERNS[kind].fullmatch(word):
            raise _Unusual
        value = kind(word)
        if (least is not None and value < least) or (most is not None and value > most):
            raise _Unusual
        return value

    return read


def _read(parameters: Sequence[Parameter], words: Sequence[str]) -> dict[str, Any]:
    options = {name: one for one in parameters for name in one.declared.names}
    arguments = [one for one in parameters if not one.declared.is_option]
    values, places = dict[str, Any](), list[str]()
    left = iter(words)
    for word in left:
        name, equals, value = word.partition("=") if word.startswith("--") else (word, "", "")
        if not word.startswith("-") or word == "-":
            places.append(word)
        elif (option := options.get(name)) is None or (option.is_flag and equals):
            raise _Unusual
        elif option.is_flag:
            values[option.name] = True
        else:
            _set(values, option, value if equals else next(left, None))
    for argument in arguments:
        several = argument.is_list and argument is arguments[-1]
        if argument.is_list and not several:
            raise _Unusual
        taken, places = (places, []) if several else (places[:1], places[1:])
        for word in taken:
            _set(values, argument, word)
    if places:
        raise _Unusual
    for one in parameters:
        if one.name not in values:
            if one.default is inspect.Parameter.empty:
                raise _Unusual
            values[one.name] = one.default
    return values


def _set(values: dict[str, Any], parameter: Parameter, word: str | None) -> None:
    if word is None:
        raise _Unusual
    value = parameter.read(word)
    if parameter.is_list:
        values.setdefault(parameter.name, []).append(value)
    else:
        values[parameter.name] = value
