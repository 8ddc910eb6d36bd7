"""Notation of split trees such as ``b8@16 s2z t4`` or ``b[2:1]{t2, .+2}``: parser and printer.

``.`` is one device.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from shardwright.errors import StrategyError
from shardwright.model.ir.tensor_dims import Dim
from shardwright.strategy.grid.parallelism_grid import MAX_DEGREE
from shardwright.strategy.plan.operator_split_tree import Split, num_leaves

MAX_DEPTH: Final = 32
MAX_PARTS: Final = 4096
_DIMS: Final = {dim.value: dim for dim in Dim}
_AFTER_DIM: Final = frozenset("0123456789[")


def compact_step(child: Split | None) -> int:
    """Device stride of parts without gaps: parts x step of an equal cut below, else leaves below.

    It is parts x stride of a child with equal parts, and the number of leaves of any other.
    """
    if child is not None and isinstance(child.parts, int) and isinstance(child.step, int):
        return child.parts * child.step
    return num_leaves(child)


def print_split(split: Split | None) -> str:
    """Print a split tree, from the outermost to the innermost cut.

    Strides and offsets are printed only where they are not compact.
    """
    if split is None:
        return "."
    terms: list[str] = []
    node: Split | None = split
    while node is not None:
        zigzag = "z" if node.zigzag else ""
        if isinstance(node.parts, int):
            child = node.children[0]
            stride = f"@{node.step}" if node.step != compact_step(child) else ""
            terms.append(f"{node.dim.value}{node.parts}{zigzag}{stride}")
            node = child
            continue
        offsets = node.step if isinstance(node.step, tuple) else ()
        children = ", ".join(
            print_split(child) + (f"+{offset}" if offset else "")
            for child, offset in zip(node.children, offsets, strict=True)
        )
        terms.append(f"{node.dim.value}[{':'.join(map(str, node.parts))}]{zigzag}{{{children}}}")
        break
    return " ".join(terms)


@dataclass(slots=True)
class Cursor:
    """Reading position in one line of text.

    Args:
        text: the line.
        where: name of the line in errors, such as ``line 4``.
        place: number of characters read.
    """

    text: str
    where: str = ""
    place: int = field(default=0)

    def peek(self) -> str:
        """Skip spaces and return the next character without passing it; empty at the end."""
        while self.place < len(self.text) and self.text[self.place] == " ":
            self.place += 1
        return self.text[self.place] if self.place < len(self.text) else ""

    def after(self) -> str:
        """Character after the next one, without reading either; empty at the end."""
        self.peek()
        return self.text[self.place + 1 : self.place + 2]

    def take(self, character: str) -> bool:
        """Move past `character` if it is next; returns True if it was."""
        if character and self.peek() == character:
            self.place += 1
            return True
        return False

    def expect(self, character: str, *, hint: str = "") -> None:
        """Move past `character`; StrategyError if another character is next."""
        if not self.take(character):
            raise self.error(f"expected {character!r}", hint=hint)

    def number(self, *, smallest: int = 0, largest: int = MAX_DEGREE) -> int:
        """Read a whole number from `smallest` to `largest`; StrategyError without one."""
        self.peek()
        start = self.place
        while self.place < len(self.text) and self.text[self.place] in "0123456789":
            self.place += 1
        digits = self.text[start : self.place]
        if not digits or len(digits) > 12 or not smallest <= int(digits) <= largest:
            self.place = start
            raise self.error(f"expected a whole number from {smallest} to {largest}")
        return int(digits)

    def error(self, message: str, *, hint: str = "") -> StrategyError:
        """Make a StrategyError whose message shows the text at the cursor."""
        unread = self.text[self.place : self.place + 20].strip()
        return StrategyError(
            f"{message}, found {unread!r}" if unread else f"{message} at the end of the line",
            path=self.where,
            hint=hint,
        )


def read_split(cursor: Cursor, *, depth: int = 0) -> Split | None:
    """Parse a split tree at the cursor; None for ``.``, a single device without cuts."""
    if depth > MAX_DEPTH:
        raise cursor.error(f"a tree deeper than {MAX_DEPTH}")
    if cursor.take("."):
        return None
    terms: list[tuple[Dim, int, bool, int | None]] = []
    innermost: Split | None = None
    while (letter := cursor.peek()) in _DIMS and cursor.after() in _AFTER_DIM:
        cursor.place += 1
        dim = _DIMS[letter]
        if cursor.take("["):
            innermost = _read_weighted(cursor, dim, depth=depth + len(terms) + 1)
            break
        parts = cursor.number(smallest=1)
        zigzag = cursor.take("z")
        terms.append((dim, parts, zigzag, cursor.number() if cursor.take("@") else None))
        if depth + len(terms) > MAX_DEPTH:
            raise cursor.error(f"a tree deeper than {MAX_DEPTH}")
    if not terms and innermost is None:
        raise cursor.error(
            "expected a split such as 'b2 t8', or '.' for one device",
            hint=f"a term is a dim ({' '.join(_DIMS)}) and a count",
        )
    tree = innermost
    for dim, parts, zigzag, step in reversed(terms):
        stride = compact_step(tree) if step is None else step
        tree = Split(dim=dim, parts=parts, step=stride, children=(tree,), zigzag=zigzag)
        if stride > MAX_DEGREE or num_leaves(tree) > MAX_DEGREE:
            raise cursor.error(f"a tree of more than {MAX_DEGREE} devices")
    return tree


def _read_weighted(cursor: Cursor, dim: Dim, *, depth: int) -> Split:
    """Parse a cut with weighted parts, ``2:1]z{child, child}``, behind ``b[``."""
    weights = [cursor.number(smallest=1)]
    while cursor.take(":"):
        weights.append(cursor.number(smallest=1))
        if len(weights) > MAX_PARTS:
            raise cursor.error(f"more than {MAX_PARTS} weights")
    cursor.expect("]")
    zigzag = cursor.take("z")
    cursor.expect("{", hint="weights need one child each: b[2:1]{t2, .+2}")
    children: list[Split | None] = []
    offsets: list[int] = []
    while True:
        children.append(read_split(cursor, depth=depth))
        offsets.append(cursor.number() if cursor.take("+") else 0)
        if not cursor.take(","):
            break
    cursor.expect("}")
    if len(children) != len(weights):
        raise cursor.error(f"{len(weights)} weights but {len(children)} children")
    return Split(
        dim=dim, parts=tuple(weights), step=tuple(offsets), children=tuple(children), zigzag=zigzag
    )
