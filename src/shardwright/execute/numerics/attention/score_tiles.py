"""Blocks of queries and keys whose scores are held at a time."""

from __future__ import annotations

from collections.abc import Iterator
from math import isqrt
from typing import Final

from shardwright.execute.numerics.attention.position_masks import meet
from shardwright.lazy_dataclass import dataclass
from shardwright.model.ir.operator import AttentionShape
from shardwright.program.layout.tensor_layout import Indices, count

SCORES: Final = 2**22
"""Scores of a tile at most: of all samples, heads, queries and keys. A few tensors of so many
elements are held at a time."""
ACCELERATED: Final = 16
"""Times as many are a tile of an accelerator, whose time would go into launches of small kernels:
256 MiB of 32 bits."""
NARROWEST: Final = 128
"""Queries and keys of a tile that a window makes no smaller."""


@dataclass(frozen=True, slots=True)
class TileRows:
    """Rows one behind the other and their positions."""

    taken: slice
    positions: Indices


def tiles(
    shape: AttentionShape,
    queries: Indices,
    keys: Indices,
    *,
    each: int,
    images: bool,
    accelerated: bool = False,
) -> Iterator[tuple[TileRows, tuple[TileRows, ...]]]:
    """Rows of queries, all of them in turn, each with those rows of keys that a query among them
    may see.

    Tiles are near to squares, so that a causal mask or a window leaves out as many as can be; those
    of a window are no wider than it.

    Worked: 4,096 queries and keys of 32 heads, causal, are tiles of 362 rows: 12 x 13 / 2 of them.

    Args:
        each: samples x heads.
        images: see `meet`.
        accelerated: an accelerator computes them.
    """
    most = SCORES * (ACCELERATED if accelerated else 1) // max(each, 1)
    rows, columns = _sides(count(queries), count(keys), most=max(most, 1), window=shape.window)
    others = tuple(cut(keys, columns))
    for some in cut(queries, rows):
        yield (
            some,
            tuple(
                one for one in others if meet(shape, some.positions, one.positions, images=images)
            ),
        )


def _sides(queries: int, keys: int, *, most: int, window: int) -> tuple[int, int]:
    """(queries, keys) of a tile of `most` scores."""
    side = isqrt(most)
    if window and max(window, NARROWEST) < side:
        return (max(window, NARROWEST),) * 2
    rows = max(min(queries, side), 1)
    columns = max(min(keys, most // rows), 1)
    return most // columns, columns


def cut(positions: Indices, size: int) -> Iterator[TileRows]:
    """Rows in parts of so many; the last one is what is left."""
    first, room, held = 0, size, list[tuple[int, int]]()
    for low, high in positions:
        while low < high:
            taken = min(high - low, room)
            held.append((low, low + taken))
            low, room = low + taken, room - taken
            if not room:
                yield TileRows(slice(first, first + size), tuple(held))
                first, room, held = first + size, size, []
    if held:
        yield TileRows(slice(first, first + size - room), tuple(held))
