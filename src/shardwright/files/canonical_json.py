"""Canonical JSON text of documents: sorted keys, nine significant digits, equal bytes."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from shardwright.errors import DataError

DIGITS: Final = 9
MAX_FILE_BYTES: Final = 64 * 1024**2
SCALARS: Final = frozenset({float, int, str, bool, type(None)})
"""Types whose values JSON has as they are, apart from infinite numbers."""
_UNCHANGED: Final = SCALARS - {float}


def to_text(document: Mapping[str, Any]) -> str:
    """Canonical JSON text: sorted keys, floats to `DIGITS` significant digits, final newline."""
    return (
        json.dumps(
            canonical_value(document), sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False
        )
        + "\n"
    )


def to_compact_text(document: Mapping[str, Any]) -> str:
    """Text of the values of `to_text` without spaces and line ends, which takes half the time."""
    return json.dumps(
        canonical_value(document),
        sort_keys=True,
        separators=(",", ":"),
        ensure_ascii=False,
        allow_nan=False,
    )


def canonical_value(value: Any) -> Any:
    """Round floats of nested values to `DIGITS` significant digits; infinite and NaN become None.

    An infinite or undefined number is null.
    """
    if type(value) in _UNCHANGED:
        return value
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): canonical_value(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [canonical_value(item) for item in value]
    return value


def document_digest(document: Mapping[str, Any]) -> str:
    """SHA-256, in hexadecimal, of a document's canonical text."""
    return sha256(to_text(document).encode()).hexdigest()


def read_text(path: Path, *, what: str, hint: str, most: int = MAX_FILE_BYTES) -> str:
    """Read a UTF-8 text file of at most `most` bytes; DataError if too large or unreadable.

    Args:
        what: kind of file, for messages.
        most: most bytes of the file.

    Raises:
        DataError: the file cannot be read, is too large or no text.
    """
    try:
        size = path.stat().st_size
        text = path.read_text(encoding="utf-8") if size <= most else ""
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise DataError(f"cannot read {what} {path}: {reason}", hint=hint) from error
    if size > most:
        raise DataError(f"{what} {path} is larger than {most} bytes", hint=hint)
    return text


def parse_json(text: str, *, name: str, hint: str) -> object:
    """Parse JSON text; DataError if it is none, or has half of a surrogate pair."""
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError) as error:
        where = f" (line {error.lineno})" if isinstance(error, json.JSONDecodeError) else ""
        raise DataError(f"{name} is not JSON{where}", hint=hint) from None
    try:
        text.encode()
        if "\\ud" in text.lower():
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise DataError(f"{name} is not text: it holds half of a character", hint=hint) from None
    return value
