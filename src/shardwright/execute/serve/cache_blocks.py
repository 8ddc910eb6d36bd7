"""Blocks of the cache: a table for each request, a list of free ones; for each reach of attention
cores its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from shardwright.errors import StrategyError
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.operator import AttentionShape


class Reach(NamedTuple):
    """The number of earlier keys that attention reads: `window` keys, or to the start of its run of
    `window` positions (`chunked`); 0 = all.
    """

    window: int = 0
    chunked: bool = False

    def first(self, position: int) -> int:
        """The first position that a query at `position`, or any later one, sees."""
        if not self.window:
            return 0
        if self.chunked:
            return position // self.window * self.window
        return max(0, position - self.window + 1)


def reach_of(shape: AttentionShape) -> Reach:
    """Of a core."""
    return Reach(window=shape.window, chunked=shape.chunked and bool(shape.window))


def reaches(model: Model) -> tuple[Reach, ...]:
    """All that cores of a model have, each once."""
    shapes = (
        o.attention for block in model.blocks for o in block.operators if o.attention is not None
    )
    return tuple(dict.fromkeys(map(reach_of, shapes)))


@dataclass(slots=True)
class Table:
    """Blocks of a request, in order: the first one holds positions from `first` x block size on."""

    first: int
    blocks: list[int]


@dataclass(slots=True)
class BlockTables:
    """The cache blocks of each request on one rank with a cache of its own. Devices that share its
    requests hold parts of the same blocks.

    Args:
        reaches: of the model's cores.
        blocks: of each reach.
        block_tokens: positions of a block.
        cached: positions of each request.
    """

    reaches: tuple[Reach, ...]
    blocks: int
    block_tokens: int
    free: dict[Reach, list[int]] = field(default_factory=dict)
    held: dict[tuple[Reach, int], Table] = field(default_factory=dict)
    cached: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.free = {reach: list(range(self.blocks))[::-1] for reach in self.reaches}

    def extend(self, request: int, *, past: int, end: int) -> dict[Reach, list[int]]:
        """Room for positions from `past` to `end` of a request; blocks that nobody will look at
        again are given back.

        Answer: those blocks, by reach.

        Raises:
            StrategyError: other positions than those before `past` are cached (rule
            ``serve.past``), no block is left (``serve.blocks``).
        """
        if self.cached.get(request, 0) != past:
            raise StrategyError(
                f"request {request} goes on at {past} where {self.cached.get(request, 0)} positions"
                " are cached",
                hint="begin at 0 what is new or was evicted, and go on where the last part ended",
                rule="serve.past",
            )
        return self.receive(request, first=past, end=end)

    def receive(self, request: int, *, first: int, end: int) -> dict[Reach, list[int]]:
        """Room for positions up to `end` of a request whose next query is at `first` or behind it;
        see `extend`.
        """
        left: dict[Reach, list[int]] = {}
        for reach in self.reaches:
            start = reach.first(first) // self.block_tokens
            table = self.held.setdefault((reach, request), Table(first=start, blocks=[]))
            passed = min(max(start - table.first, 0), len(table.blocks))
            left[reach], table.blocks = table.blocks[:passed], table.blocks[passed:]
            table.first = max(table.first, start) if not table.blocks else table.first + passed
            self.free[reach] += left[reach][::-1]
            needed = -(-end // self.block_tokens) - table.first - len(table.blocks)
            if needed > len(self.free[reach]):
                raise StrategyError(
                    f"request {request} needs {needed} more blocks of {self.block_tokens} tokens,"
                    f" {len(self.free[reach])} are free",
                    hint="evict a request first, or give the cache more blocks",
                    rule="serve.blocks",
                )
            table.blocks += [self.free[reach].pop() for _ in range(needed)]
        self.cached[request] = end
        return left

    def release(self, request: int) -> dict[Reach, list[int]]:
        """All blocks of a request are free again. Answer: which."""
        self.cached.pop(request, None)
        left: dict[Reach, list[int]] = {}
        for reach in self.reaches:
            table = self.held.pop((reach, request), Table(first=0, blocks=[]))
            left[reach] = table.blocks
            self.free[reach] += table.blocks[::-1]
        return left
