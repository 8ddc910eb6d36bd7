"""Buckets of a gradient reduction, and the pieces of last backwards that each waits for.

On every device that holds the same layers.

A last backward runs from a stage's last block to its first one, in equal pieces; the pieces of the
reduction follow them. Another lane may cut the layers elsewhere: its piece is the one that ends
behind the lowest block that both share.
"""

from __future__ import annotations

from math import ceil

from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.program.stages.stage_segments import StageParts

PIECE_TOLERANCE = 1e-9
"""Part of a piece by which rounding may miss a block's border: a piece that ends exactly there
does not wait for the next one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRange:
    """Blocks `first` to `first + count` of a run of the model, at position `at` of a stage."""

    run: int
    first: int
    count: int
    at: int


def block_ranges(stage: StageParts) -> tuple[BlockRange, ...]:
    """Runs of equal blocks in one stage, in order, each with the number of its blocks before it.

    Several segments of one block, each with one of its operators, are one range.
    """
    ranges: list[BlockRange] = []
    at = 0
    for segment in stage.segments:
        if ranges and (ranges[-1].run, ranges[-1].first, ranges[-1].count) == (
            segment.run,
            segment.first,
            segment.count,
        ):
            continue
        ranges.append(BlockRange(run=segment.run, first=segment.first, count=segment.count, at=at))
        at += segment.count
    return tuple(ranges)


def last_piece(
    mine: tuple[BlockRange, ...],
    theirs: tuple[BlockRange, ...],
    *,
    piece: int,
    pieces: int,
    of: int,
) -> int | None:
    """Index of the last of the other's `of` pieces that shares blocks with `piece`; else None.

    A stage of blocks 0 to 3 in two pieces beside one of blocks 0 to 7 in four: its piece 0 (blocks
    2 and 3) waits for piece 2 (blocks 2 and 3), its piece 1 for piece 3.

    Args:
        mine, theirs: blocks of the two stages.
        pieces: number of pieces of this stage.
        of: number of pieces of the other stage.
    """
    size, their_size = (ranges[-1].at + ranges[-1].count for ranges in (mine, theirs))
    low, high = size * (pieces - piece - 1) / pieces, size * (pieces - piece) / pieces
    lowest: float | None = None
    for mine_range in mine:
        for their_range in theirs:
            if mine_range.run != their_range.run:
                continue
            begin = max(mine_range.first + max(low - mine_range.at, 0.0), their_range.first)
            end = min(
                mine_range.first + min(high - mine_range.at, mine_range.count),
                their_range.first + their_range.count,
            )
            if begin < end - PIECE_TOLERANCE:
                block = begin - their_range.first + their_range.at
                lowest = block if lowest is None else min(lowest, block)
    if lowest is None:
        return None
    return max(ceil((their_size - lowest) / their_size * of - PIECE_TOLERANCE) - 1, 0)


def pieces_before(
    mine: StageParts, theirs: StageParts, *, pieces: int, of: int
) -> tuple[int | None, ...]:
    """Index of the other stage's backward piece that each of `pieces` has to await, or None.

    Every piece waits for the other stage's last piece where both stages are in the same lane, or
    share no layer: then both hold weights that several layers use, whose gradient is complete once
    the last of them is done.

    Args:
        pieces: number of pieces of this stage's reduction.
        of: number of pieces of the other stage's last backward.
    """
    if (mine.lane, mine.chunk) == (theirs.lane, theirs.chunk):
        return tuple(range(pieces))
    ranges = block_ranges(mine), block_ranges(theirs)
    last_pieces = tuple(
        last_piece(*ranges, piece=piece, pieces=pieces, of=of) for piece in range(pieces)
    )
    if mine.lane == theirs.lane or all(last is None for last in last_pieces):
        return (of - 1,) * pieces
    return last_pieces
