"""First devices of stages as text, both ways: ``0..12/4`` is 0 4 8 12, ``3..0`` runs down,
``(0..3)*8`` repeats.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from shardwright.strategy.text.split_notation import Cursor

MAX_STAGES: Final = 65536
_MAX_DEPTH: Final = 8


def print_bases(bases: Sequence[int]) -> str:
    """Numbers as ranges; a whole that repeats is written once."""
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
    """Arithmetic runs of three and more as ranges, the rest one by one."""
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
    """Read bases up to the first character that cannot be part of them."""
    if depth > _MAX_DEPTH:
        raise cursor.error(f"repetitions nested deeper than {_MAX_DEPTH}")
    result: list[int] = []
    while True:
        if cursor.take("("):
            inner = read_bases(cursor, depth=depth + 1)
            cursor.expect(")")
            cursor.expect("*", hint="a repetition is written (0..3)*8")
            count = cursor.number(smallest=1, largest=MAX_STAGES)
            if len(inner) * count + len(result) > MAX_STAGES:
                raise cursor.error(f"more than {MAX_STAGES} stages")
            result += inner * count
        else:
            result += _read_range(cursor)
        if len(result) > MAX_STAGES:
            raise cursor.error(f"more than {MAX_STAGES} stages")
        if not cursor.take(","):
            return result


def _read_range(cursor: Cursor) -> Sequence[int]:
    """Read one number, or first..last with a stride."""
    first = cursor.number()
    if cursor.peek() != "." or cursor.after() != ".":
        return (first,)
    cursor.place += 2
    last = cursor.number()
    stride = cursor.number(smallest=1) if cursor.take("/") else 1
    if abs(last - first) % stride:
        raise cursor.error(f"{first}..{last} does not divide by {stride}")
    if abs(last - first) // stride >= MAX_STAGES:
        raise cursor.error(f"more than {MAX_STAGES} stages")
    return range(first, last + 1, stride) if last >= first else range(first, last - 1, -stride)
