"""Text from users' files without control characters, safe to print."""

from __future__ import annotations

MAX_NAME = 40
MAX_STRATEGY = 1000


def printable(text: str, *, length: int = MAX_NAME) -> str:
    """Replace unprintable characters by U+FFFD; cut a text to `length` characters with an ellipsis.

    The result is safe on a terminal and in XML.
    """
    clean = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
    return clean if len(clean) <= length else clean[: length - 1] + "…"
