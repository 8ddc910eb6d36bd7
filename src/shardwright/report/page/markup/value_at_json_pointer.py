"""Values of a JSON document by their JSON pointers (RFC 6901)."""

from __future__ import annotations

from typing import Any


def value_at(json_document: Any, pointer: str) -> Any:
    """Value of a JSON document at a pointer such as ``/answer/step_s``; KeyError without it.

    The names of a report's fields contain neither ``/`` nor ``~``, so nothing is escaped.

    Raises:
        KeyError: the document has no such value.
    """
    value = json_document
    for name in pointer.split("/")[1:]:
        try:
            value = value[int(name)] if isinstance(value, list) else value[name]
        except (IndexError, TypeError, ValueError) as error:
            raise KeyError(pointer) from error
    return value
