"""Tiles of queries and keys that bound the attention scores in memory at a time."""

from __future__ import annotations

from collections.abc import Iterator
from math import isqrt
from typing import Final

from shardwright.execute.numerics.attention.position_masks import may_see
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.ir.operator import AttentionShape
from shardwright.program.layout.tensor_layout import Indices, count

SCORES: Final = 2**22
"""Largest number of scores of a tile, over all samples, heads, queries and keys. A few tensors of
this many elements exist at a time.
"""
ACCELERATED: Final = 16
"""Factor of a tile's size on an accelerator, where smaller tiles would spend the time on kernel
launches: 256 MiB of 32 bits.
"""
NARROWEST: Final = 128
"""Least number of queries and keys of a tile where a window limits its size."""


@dataclass(frozen=True, slots=True)
class TileRows:
    """Consecutive rows of a tile, and their positions."""

    taken: slice
    positions: Indices


def score_tiles(
    shape: AttentionShape,
    queries: Indices,
    keys: Indices,
    *,
    scores_per_pair: int,
    images: bool,
    accelerated: bool = False,
) -> Iterator[tuple[TileRows, tuple[TileRows, ...]]]:
    """Iterate over (query rows, tiles of keys they may see): 2^22 scores, 2^26 if `accelerated`.

    Tiles are nearly square, so that a causal mask or a window leaves out as many tiles as possible.
    Tiles under a window are no wider than the window.

    Worked: 4,096 queries and keys of 32 heads, causal, are tiles of 362 rows: 12 x 13 / 2 of them.

    Args:
        scores_per_pair: samples x heads.
        images: see `may_see`.
        accelerated: an accelerator computes the scores.
    """
    tile_scores = SCORES * (ACCELERATED if accelerated else 1) // max(scores_per_pair, 1)
    rows, columns = _sides(
        count(queries), count(keys), tile_scores=max(tile_scores, 1), window=shape.window
    )
    key_tiles = tuple(split_rows(keys, columns))
    for query_rows in split_rows(queries, rows):
        yield (
            query_rows,
            tuple(
                key_rows
                for key_rows in key_tiles
                if may_see(shape, query_rows.positions, key_rows.positions, images=images)
            ),
        )


def _sides(queries: int, keys: int, *, tile_scores: int, window: int) -> tuple[int, int]:
    """(queries, keys) of a tile: nearly square in `tile_scores`; smaller `window`, 128 at least."""
    side = isqrt(tile_scores)
    if window and max(window, NARROWEST) < side:
        return (max(window, NARROWEST),) * 2
    rows = max(min(queries, side), 1)
    columns = max(min(keys, tile_scores // rows), 1)
    return tile_scores // columns, columns


def split_rows(positions: Indices, size: int) -> Iterator[TileRows]:
    """Iterate over row ranges of `size` rows and their positions; the last may be shorter."""
    first_row, room, part_positions = 0, size, list[tuple[int, int]]()
    for low, high in positions:
        while low < high:
            taken = min(high - low, room)
            part_positions.append((low, low + taken))
            low, room = low + taken, room - taken
            if not room:
                yield TileRows(slice(first_row, first_row + size), tuple(part_positions))
                first_row, room, part_positions = first_row + size, size, []
    if part_positions:
        yield TileRows(slice(first_row, first_row + size - room), tuple(part_positions))
