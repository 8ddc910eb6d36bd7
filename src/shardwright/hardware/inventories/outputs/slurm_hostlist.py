"""Expansion of Slurm's hostlists: ``gpu[01-16,20],login1``, ``rack[1-4]node[1-8]``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product
from math import prod
from typing import Final

from shardwright.errors import ClusterError
from shardwright.hardware.inventories.documents.size_limited_text import MAX_WORD

MAX_NAMES: Final = 65_536
"""Most names of one list, as many as Slurm itself accepts."""
_HINT: Final = "such as gpu[01-16,20],gpu32"
_ENTRY: Final = re.compile(r"(?:[^\[\],]|\[[^\[\]]*\])+")
_PART: Final = re.compile(r"\[([^\[\]]*)\]|([^\[\]]+)")
_RANGE: Final = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")


def expand_hostlist(text: str, *, where: str) -> tuple[str, ...]:
    """Expand a Slurm hostlist into node names, in order; leading zeros are kept.

    Raises:
        ClusterError: the text is no hostlist, or stands for more than 65,536 names. They are
            counted before any is made.
    """
    found: list[str] = []
    for entry in _entries_outside_brackets(text, where=where):
        parts = [_part_pieces(match, where=where) for match in _PART.finditer(entry)]
        if len(found) + prod(map(_count_names, parts)) > MAX_NAMES:
            raise ClusterError(
                f"{where}: {text[:60]!r} stands for more than {MAX_NAMES:,} names",
                hint="write a smaller list",
            )
        found += [
            "".join(words) for words in product(*(list(_names_of_pieces(part)) for part in parts))
        ]
    if not found or max(map(len, found)) > MAX_WORD:
        raise ClusterError(f"{where}: {text[:60]!r} is no list of names", hint=_HINT)
    return tuple(found)


_Pieces = list[tuple[str, int | None]]
"""(first number, number after the last) of each range, or (word, None)."""


def _entries_outside_brackets(text: str, *, where: str) -> list[str]:
    """Split a hostlist at the commas outside brackets."""
    entries = _ENTRY.findall(text)
    if ",".join(entries) != text:
        raise ClusterError(f"{where}: {text[:60]!r} is no list of names", hint=_HINT)
    return entries


def _part_pieces(match: re.Match[str], *, where: str) -> _Pieces:
    """Pieces of a hostlist's part: number ranges (first text, end) of a bracket, or its word."""
    return [(match[2], None)] if match[1] is None else _parse_ranges(match[1], where=where)


def _parse_ranges(text: str, *, where: str) -> _Pieces:
    """Parse ``01-16,20`` into (first as text, end exclusive) pairs; ClusterError if it is none."""
    found: _Pieces = []
    for piece in text.split(","):
        match = _RANGE.fullmatch(piece)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise ClusterError(f"{where}: [{text[:60]}] is no range", hint=_HINT)
        found.append((match[1], int(match[2] or match[1]) + 1))
    return found


def _count_names(pieces: _Pieces) -> int:
    """Number of names that the pieces stand for."""
    return sum(1 if end is None else end - int(first) for first, end in pieces)


def _names_of_pieces(pieces: _Pieces) -> Iterator[str]:
    """Yield the texts that pieces stand for: words, and numbers padded as the range's start."""
    for first, end in pieces:
        if end is None:
            yield first
        else:
            yield from (str(number).zfill(len(first)) for number in range(int(first), end))
