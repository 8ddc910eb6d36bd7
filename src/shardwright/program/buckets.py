"""What a piece of a gradient reduction waits for: the same layers' last backwards on every device
that holds them.

A last backward runs from a stage's last block to its first one, in equal pieces; the reduction's
pieces follow them. Another lane may cut the layers elsewhere: its piece is the one that ends behind
the lowest block that both share.
"""

from __future__ import annotations

from math import ceil

from shardwright.lazy_dataclass import dataclass
from shardwright.program.stages.parts import StageParts

NEARLY = 1e-9
"""Of a piece: where a stage's piece ends exactly at a block, it is no later one that matters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRange:
    """Blocks `first` to `first + count` of a run of the model, which stand from position `at` on in
    a stage.
    """

    run: int
    first: int
    count: int
    at: int


def block_ranges(stage: StageParts) -> tuple[BlockRange, ...]:
    """The blocks of a stage in their order; several segments of one block, each an operator of it,
    are one.
    """
    found: list[BlockRange] = []
    at = 0
    for segment in stage.segments:
        if found and (found[-1].run, found[-1].first, found[-1].count) == (
            segment.run,
            segment.first,
            segment.count,
        ):
            continue
        found.append(BlockRange(run=segment.run, first=segment.first, count=segment.count, at=at))
        at += segment.count
    return tuple(found)


def last_piece(
    mine: tuple[BlockRange, ...],
    theirs: tuple[BlockRange, ...],
    *,
    piece: int,
    pieces: int,
    of: int,
) -> int | None:
    """The latest of another stage's `of` pieces that runs blocks of one's own piece `piece` of
    `pieces`; None: they share none of these.

    A stage of blocks 0 to 3 in two pieces beside one of blocks 0 to 7 in four: its piece 0 (blocks
    2 and 3) waits for piece 2 (blocks 2 and 3), its piece 1 for piece 3.
    """
    size, there = (some[-1].at + some[-1].count for some in (mine, theirs))
    low, high = size * (pieces - piece - 1) / pieces, size * (pieces - piece) / pieces
    lowest: float | None = None
    for one in mine:
        for other in theirs:
            if one.run != other.run:
                continue
            begin = max(one.first + max(low - one.at, 0.0), other.first)
            end = min(one.first + min(high - one.at, one.count), other.first + other.count)
            if begin < end - NEARLY:
                place = begin - other.first + other.at
                lowest = place if lowest is None else min(lowest, place)
    if lowest is None:
        return None
    return max(ceil((there - lowest) / there * of - NEARLY) - 1, 0)


def pieces_before(
    mine: StageParts, theirs: StageParts, *, pieces: int, of: int
) -> tuple[int | None, ...]:
    """For each of the `pieces` of a stage's reduction the last of the `of` pieces of another
    stage's last backward that it waits for; None: it waits for none.

    It is the other's last one for all where the other stands in the same lane, or shares no layer:
    then what both hold are weights that several layers use, whose gradient is there once the last
    of them is done.
    """
    if (mine.lane, mine.chunk) == (theirs.lane, theirs.chunk):
        return tuple(range(pieces))
    ranges = block_ranges(mine), block_ranges(theirs)
    found = tuple(last_piece(*ranges, piece=piece, pieces=pieces, of=of) for piece in range(pieces))
    if mine.lane == theirs.lane or all(one is None for one in found):
        return (of - 1,) * pieces
    return found
