"""Values of a JSON document by their JSON pointers (RFC 6901)."""

from __future__ import annotations

from typing import Any


def value_at(document: Any, pointer: str) -> Any:
    """Value at a pointer such as ``/answer/step_s`` or ``/time/parts/0/name``.

    The names of a report's fields contain neither ``/`` nor ``~``, so nothing is escaped.

    Raises:
        KeyError: the document has no such value.
    """
    value = document
    for name in pointer.split("/")[1:]:
        try:
            value = value[int(name)] if isinstance(value, list) else value[name]
        except (IndexError, TypeError, ValueError) as error:
            raise KeyError(pointer) from error
    return value
