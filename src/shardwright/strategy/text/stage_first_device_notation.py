"""Text notation for the first devices of stages, such as ``0..12/4`` for 0 4 8 12.

``3..0`` counts down, and ``(0..3)*8`` repeats.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from shardwright.strategy.text.split_tree_notation import Cursor

MAX_STAGES: Final = 65536
_MAX_DEPTH: Final = 8


def print_bases(bases: Sequence[int]) -> str:
    """Print first device numbers of stages as ranges; a repeated pattern as ``(pattern)*count``."""
    length = len(bases)
    for period in range(1, length // 2 + 1):
        if (
            length > 2
            and length % period == 0
            and bases[0] == bases[period]
            and list(bases) == list(bases[:period]) * (length // period)
        ):
            return f"({_ranges(bases[:period])})*{length // period}"
    return _ranges(bases)


def _ranges(bases: Sequence[int]) -> str:
    """Print numbers: arithmetic sequences of three or more as ranges, the others singly."""
    parts: list[str] = []
    start = 0
    while start < len(bases):
        end = start + 1
        step = bases[end] - bases[start] if end < len(bases) else 0
        while end < len(bases) and step and bases[end] - bases[end - 1] == step:
            end += 1
        if end - start >= 3:
            stride = f"/{abs(step)}" if abs(step) != 1 else ""
            parts.append(f"{bases[start]}..{bases[end - 1]}{stride}")
            start = end
        else:
            parts.append(str(bases[start]))
            start += 1
    return ", ".join(parts)


def read_bases(cursor: Cursor, *, depth: int = 0) -> list[int]:
    """Parse first device numbers ``0..16/8, (0, 8)*2`` at the cursor, as long as commas follow."""
    if depth > _MAX_DEPTH:
        raise cursor.error(f"repetitions nested deeper than {_MAX_DEPTH}")
    bases: list[int] = []
    while True:
        if cursor.take("("):
            repeated = read_bases(cursor, depth=depth + 1)
            cursor.expect(")")
            cursor.expect("*", hint="a repetition is written (0..3)*8")
            count = cursor.number(smallest=1, largest=MAX_STAGES)
            if len(repeated) * count + len(bases) > MAX_STAGES:
                raise cursor.error(f"more than {MAX_STAGES} stages")
            bases += repeated * count
        else:
            bases += _read_range(cursor)
        if len(bases) > MAX_STAGES:
            raise cursor.error(f"more than {MAX_STAGES} stages")
        if not cursor.take(","):
            return bases


def _read_range(cursor: Cursor) -> Sequence[int]:
    """Parse one number, or an inclusive range ``0..24/8`` (either direction), at the cursor."""
    start = cursor.number()
    if cursor.peek() != "." or cursor.after() != ".":
        return (start,)
    cursor.place += 2
    end = cursor.number()
    stride = cursor.number(smallest=1) if cursor.take("/") else 1
    if abs(end - start) % stride:
        raise cursor.error(f"{start}..{end} does not divide by {stride}")
    if abs(end - start) // stride >= MAX_STAGES:
        raise cursor.error(f"more than {MAX_STAGES} stages")
    return range(start, end + 1, stride) if end >= start else range(start, end - 1, -stride)
