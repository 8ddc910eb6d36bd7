"""Variables of a shell script and its positional parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from typing import Final

from shardwright.errors import DataError
from shardwright.lazy_dataclass import dataclass

Value = str | tuple[str, ...]
"""Of a variable; of an array its members."""
MAX_VALUE: Final = 1_000_000
"""Characters of a variable, or of a word with its variables in their places."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Positional:
    """The positional parameters of a script or a function.

    Args:
        values: number, from 1 -> word.
        shifted: words that `shift` has taken.
        count: how many there are; None = not known.
    """

    values: Mapping[int, str] = field(default_factory=dict)
    shifted: int = 0
    count: int | None = None


@dataclass(slots=True)
class Variables:
    """Variables by name; an item of an array that is set on its own has its index in its name.

    Args:
        fixed: names whose values stand whatever the script says of them.
        positional: of the script, or of the function that runs.
    """

    values: dict[str, Value]
    fixed: frozenset[str] = frozenset()
    positional: Positional = field(default_factory=Positional)


def is_number(text: str) -> bool:
    """True if a text is a number in the digits 0 to 9."""
    return text.isascii() and text.isdigit()


def variables_of(given: Mapping[str, str]) -> Variables:
    """Variables before a script runs; a name that is a number is a positional parameter."""
    numbers = {
        int(name): value for name, value in given.items() if is_number(name) and len(name) < 4
    }
    names = {name: value for name, value in given.items() if not is_number(name)}
    # Without a gap they are all that there are.
    whole = bool(numbers) and set(numbers) - {0} == set(range(1, len(numbers.keys() - {0}) + 1))
    count = len(numbers.keys() - {0}) if whole else None
    return Variables(
        values=dict(names),
        fixed=frozenset(names),
        positional=Positional(values=numbers, count=count),
    )


def value_of(variables: Variables, name: str) -> Value | None:
    """The value of a variable or a positional parameter; None = not known."""
    if is_number(name):
        return _positional(variables.positional, int(name)) if len(name) < 4 else None
    if name in ("@", "*"):
        return _all(variables.positional)
    if name == "#":
        count = variables.positional.count
        return None if count is None else str(max(count - variables.positional.shifted, 0))
    return variables.values.get(name)


def scalar_of(variables: Variables, name: str) -> Value | None:
    """The value of ``$NAME``: as `value_of`, or the first item of an array."""
    found = value_of(variables, name)
    if isinstance(found, tuple) and name not in ("@", "*"):
        return found[0] if found else ""
    return found


def unknown_name(variables: Variables, name: str) -> str:
    """The placeholder of a value that is not known; for a positional parameter its number when the
    script was called.
    """
    return (
        f"${int(name) + variables.positional.shifted}"
        if is_number(name) and name != "0" and len(name) < 4
        else f"${name}"
    )


def assign(variables: Variables, name: str, value: Value) -> None:
    """Give a variable a value, unless it is fixed.

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
    """Take the first positional parameters away."""
    old = variables.positional
    variables.positional = replace(old, shifted=min(old.shifted + number, 1000))


def called_with(words: tuple[str, ...]) -> Positional:
    """Positional parameters that are all known."""
    return Positional(values=dict(enumerate(words, start=1)), count=len(words))


def _positional(positional: Positional, number: int) -> str | None:
    if number == 0:
        return positional.values.get(0)
    at = number + positional.shifted
    if positional.count is not None and at > positional.count:
        return ""
    return positional.values.get(at)


def _all(positional: Positional) -> tuple[str, ...] | None:
    if positional.count is None:
        return None
    return tuple(_known(positional))


def _known(positional: Positional) -> Iterator[str]:
    for number in range(positional.shifted + 1, (positional.count or 0) + 1):
        yield positional.values.get(number, "")
