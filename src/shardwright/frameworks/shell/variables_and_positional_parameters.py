"""Variables and positional parameters of a shell script."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from typing import Final

from shardwright.errors import DataError
from shardwright.lazily_compiled_dataclass import dataclass

Value = str | tuple[str, ...]
"""Value of a variable; a tuple for an array."""
MAX_VALUE: Final = 1_000_000
"""Most characters of a variable, or of a word with expanded variables."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Positional:
    """Positional parameters of a script or a function.

    Args:
        values: number, from 1 -> word.
        shifted: words that `shift` has taken.
        count: number of parameters; None = not known.
    """

    values: Mapping[int, str] = field(default_factory=dict)
    shifted: int = 0
    count: int | None = None


@dataclass(slots=True)
class Variables:
    """Variables of a shell script by name; an array item set on its own has a name with index.

    Args:
        fixed: names whose values the script cannot change.
        positional: positional parameters of the script, or of the function that runs.
    """

    values: dict[str, Value]
    fixed: frozenset[str] = frozenset()
    positional: Positional = field(default_factory=Positional)


def is_number(text: str) -> bool:
    """True if a text is a number in the digits 0 to 9."""
    return text.isascii() and text.isdigit()


def variables_of(given: Mapping[str, str]) -> Variables:
    """Variables that the user gives, fixed for the script; numbers are positional parameters."""
    numbers = {
        int(name): value for name, value in given.items() if is_number(name) and len(name) < 4
    }
    names = {name: value for name, value in given.items() if not is_number(name)}
    # Numbers without a gap are all positional parameters of the script.
    is_complete = bool(numbers) and set(numbers) - {0} == set(
        range(1, len(numbers.keys() - {0}) + 1)
    )
    count = len(numbers.keys() - {0}) if is_complete else None
    return Variables(
        values=dict(names),
        fixed=frozenset(names),
        positional=Positional(values=numbers, count=count),
    )


def value_of(variables: Variables, name: str) -> Value | None:
    """Value of a variable or a positional parameter; None = not known."""
    if is_number(name):
        return _positional(variables.positional, int(name)) if len(name) < 4 else None
    if name in ("@", "*"):
        return _remaining_positionals(variables.positional)
    if name == "#":
        count = variables.positional.count
        return None if count is None else str(max(count - variables.positional.shifted, 0))
    return variables.values.get(name)


def scalar_of(variables: Variables, name: str) -> Value | None:
    """Value of ``$NAME``: the variable, or the first item of an array; None = not known."""
    value = value_of(variables, name)
    if isinstance(value, tuple) and name not in ("@", "*"):
        return value[0] if value else ""
    return value


def unknown_name(variables: Variables, name: str) -> str:
    """Placeholder ``$NAME`` of an unknown value; a positional one has its number before shifts.

    For a positional parameter it has the number that the parameter had when the script was called.
    """
    return (
        f"${int(name) + variables.positional.shifted}"
        if is_number(name) and name != "0" and len(name) < 4
        else f"${name}"
    )


def assign(variables: Variables, name: str, value: Value) -> None:
    """Set a variable, unless the user has fixed its value.

    Raises:
        DataError: the value is too long.
    """
    if sum(map(len, value)) > MAX_VALUE:
        raise DataError(
            f"variable {name[:40]} of the script holds more than {MAX_VALUE:,} characters",
            hint="a script that starts one run",
        )
    if name not in variables.fixed:
        variables.values[name] = value


def shift(variables: Variables, number: int) -> None:
    """Remove the first `number` positional parameters, as ``shift`` does; more empties them."""
    old = variables.positional
    variables.positional = replace(old, shifted=min(old.shifted + number, 1000))


def positionals_of_call(words: tuple[str, ...]) -> Positional:
    """Positional parameters of a call with these words."""
    return Positional(values=dict(enumerate(words, start=1)), count=len(words))


def _positional(positional: Positional, number: int) -> str | None:
    """Value of a positional parameter after shifts; empty beyond the last, None = not known."""
    if number == 0:
        return positional.values.get(0)
    at = number + positional.shifted
    if positional.count is not None and at > positional.count:
        return ""
    return positional.values.get(at)


def _remaining_positionals(positional: Positional) -> tuple[str, ...] | None:
    """All positional parameters after shifts; None where their number is not known."""
    if positional.count is None:
        return None
    return tuple(_known_positionals(positional))


def _known_positionals(positional: Positional) -> Iterator[str]:
    """Yield the positional parameters that remain after shifts; unknown ones as empty."""
    for number in range(positional.shifted + 1, (positional.count or 0) + 1):
        yield positional.values.get(number, "")
