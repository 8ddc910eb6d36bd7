"""Text from users' files, made safe to print."""

from __future__ import annotations

MAX_NAME = 40
MAX_STRATEGY = 1000


def printable(text: str, *, length: int = MAX_NAME) -> str:
    """`text` without control characters, cut at `length` characters: safe on a terminal and in
    XML.
    """
    clean = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
    return clean if len(clean) <= length else clean[: length - 1] + "…"
