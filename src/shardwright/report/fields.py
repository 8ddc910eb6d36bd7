"""Reading the fields of a JSON object, strictly: every error names the field, what it holds and what it should."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from shardwright.errors import DataError, nearest
from shardwright.search.request import Choices

HINT: Final = "write the file again with `shardwright plan ... -o FILE`"
LARGEST: Final = 1e30


def shown(value: object) -> str:
    """A value as a message quotes it."""
    return repr(value)[:40]


class Fields:
    """The fields of a JSON object; each reading says what is wrong and where."""

    def __init__(self, document: Mapping[str, Any], *, path: str, hint: str = HINT) -> None:
        self._document = document
        self._path = path
        self._hint = hint

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the fields, in the file's order."""
        return tuple(self._document)

    def value(self, name: str) -> Any:
        """Whatever the field holds."""
        if name not in self._document:
            raise DataError(f"{self._path}: {name} is missing", hint=nearest(name, self._document) or self._hint)
        return self._document[name]

    def section(self, name: str) -> Fields:
        """An object."""
        value = self.value(name)
        if not isinstance(value, dict):
            raise self.wrong(name, "an object", value)
        return Fields(value, path=f"{self._path}: {name}", hint=self._hint)

    def text(self, name: str) -> str:
        """A string."""
        value = self.value(name)
        if not isinstance(value, str):
            raise self.wrong(name, "a string", value)
        return value

    def truth(self, name: str) -> bool:
        """A truth value."""
        value = self.value(name)
        if not isinstance(value, bool):
            raise self.wrong(name, "true or false", value)
        return value

    def integer(self, name: str, *, smallest: int = 0) -> int:
        """A whole number."""
        value = self.value(name)
        if isinstance(value, bool) or not isinstance(value, int) or not smallest <= value < 2**63:
            raise self.wrong(name, f"a whole number of at least {smallest}", value)
        return value

    def number(self, name: str, *, signed: bool = False) -> float:
        """A finite number, not negative unless `signed`."""
        value = self.value(name)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not (-LARGEST if signed else 0) <= value <= LARGEST:
            raise self.wrong(name, "a number" if signed else "a number of at least 0", value)
        return float(value)

    def numbers(self, *, signed: bool = False) -> tuple[tuple[str, float], ...]:
        """All fields as numbers, largest first."""
        found = [(name, self.number(name, signed=signed)) for name in self.names]
        return tuple(sorted(found, key=lambda pair: (-pair[1], pair[0])))

    def integers(self) -> tuple[tuple[str, int], ...]:
        """All fields as whole numbers, in the file's order."""
        return tuple((name, self.integer(name)) for name in self.names)

    def sections(self, name: str) -> tuple[Fields, ...]:
        """A list of objects."""
        value = self.value(name)
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise self.wrong(name, "a list of objects", value)
        return tuple(Fields(item, path=f"{self._path}: {name} {place}", hint=self._hint) for place, item in enumerate(value))

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of strings."""
        value = self.value(name)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.wrong(name, "a list of strings", value)
        return tuple(value)

    def choices(self, name: str) -> Choices:
        """An object of lists of strings."""
        section = self.section(name)
        return tuple((axis, section.texts(axis)) for axis in section.names)

    def wrong(self, name: str, expected: str, value: object) -> DataError:
        """The error that says what the field holds and what it should."""
        return DataError(f"{self._path}: {name} is {shown(value)}, not {expected}", hint=self._hint)
