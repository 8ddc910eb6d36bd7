"""Edits of a document: every leaf changed or emptied, every key and item deleted, every item twice,
every list empty."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Edit:
    """One edit: what is done, and where."""

    what: str
    path: Path

    def of(self, document: Any) -> Any:
        """A copy of the document with this edit."""
        document = copy.deepcopy(document)
        place: Any = document
        for key in self.path[:-1]:
            place = place[key]
        last: Any = self.path[-1]
        if self.what == "delete":
            del place[last]
        elif self.what == "twice":
            place.insert(last, copy.deepcopy(place[last]))
        elif self.what == "empty":
            place[last] = type(place[last])()
        elif self.what == "null":
            place[last] = None
        else:
            place[last] = changed(place[last])
        return document

    def __str__(self) -> str:
        """``twice prediction.stages.0``."""
        return f"{self.what} {'.'.join(map(str, self.path))}"


def changed(value: Any) -> Any:
    """Another value of the same type; a number or a word in the place of null."""
    if value is None:
        return 1
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + max(round(abs(value) * 0.01), 1)
    return (
        value * 1.01
        if isinstance(value, float) and value
        else value + 0.01
        if isinstance(value, float)
        else value + "x"
    )


def edits(value: Any, path: Path = ()) -> Iterator[Edit]:
    """All edits of a document."""
    if not isinstance(value, dict | list):
        yield Edit("change", path)
        if value is not None:
            yield Edit("null", path)
        return
    if path:
        yield Edit("null", path)
        if value:
            yield Edit("empty", path)
    for key, item in value.items() if isinstance(value, dict) else enumerate(value):
        yield Edit("delete", (*path, key))
        if isinstance(value, list):
            yield Edit("twice", (*path, key))
        yield from edits(item, (*path, key))
