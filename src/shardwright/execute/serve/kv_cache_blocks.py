"""Paged KV cache blocks: a block table for each request and a list of free blocks, by key reach."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from shardwright.errors import StrategyError
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.operator import AttentionShape


class KeyReach(NamedTuple):
    """The earlier keys that an attention operator reads: a window, a chunk or all.

    The last `window` keys, or the keys from the start of the query's chunk of `window` positions
    (`chunked`); `window` 0 = all.
    """

    window: int = 0
    chunked: bool = False

    def first(self, position: int) -> int:
        """First key position that queries at `position` or later read, by window or chunk."""
        if not self.window:
            return 0
        if self.chunked:
            return position // self.window * self.window
        return max(0, position - self.window + 1)


def key_reach(shape: AttentionShape) -> KeyReach:
    """Window and chunking of an attention shape, which decide the keys that stay cached."""
    return KeyReach(window=shape.window, chunked=shape.chunked and bool(shape.window))


def key_reaches(model: Model) -> tuple[KeyReach, ...]:
    """Distinct key reaches (window, chunked) of a model's attention operators."""
    shapes = (
        o.attention for block in model.blocks for o in block.operators if o.attention is not None
    )
    return tuple(dict.fromkeys(map(key_reach, shapes)))


@dataclass(slots=True)
class CacheBlockTable:
    """Block numbers of one request in order, and the number of its first block.

    The first block holds positions from `first` x block size on.
    """

    first: int
    blocks: list[int]


@dataclass(slots=True)
class CacheBlockTables:
    """The cache blocks of each request in one cache.

    Devices that share the requests of a cache hold parts of the same blocks.

    Args:
        reaches: key reaches of the model's attention operators.
        blocks: number of blocks for each reach.
        block_tokens: positions of a block.
        cached: number of cached positions of each request.
    """

    reaches: tuple[KeyReach, ...]
    blocks: int
    block_tokens: int
    free: dict[KeyReach, list[int]] = field(default_factory=dict)
    held: dict[tuple[KeyReach, int], CacheBlockTable] = field(default_factory=dict)
    cached: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.free = {reach: list(range(self.blocks))[::-1] for reach in self.reaches}

    def extend(self, request: int, *, past: int, end: int) -> dict[KeyReach, list[int]]:
        """Reserve cache blocks for a request's positions to `end`; return freed ones by reach.

        Blocks that no later query reads are freed and returned, by reach.

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

    def receive(self, request: int, *, first: int, end: int) -> dict[KeyReach, list[int]]:
        """Reserve cache blocks to `end`; free and return, by reach, those not read from `first` on.

        Blocks that no later query reads are freed and returned, by reach.
        """
        freed: dict[KeyReach, list[int]] = {}
        for reach in self.reaches:
            start = reach.first(first) // self.block_tokens
            table = self.held.setdefault((reach, request), CacheBlockTable(first=start, blocks=[]))
            passed_blocks = min(max(start - table.first, 0), len(table.blocks))
            freed[reach], table.blocks = table.blocks[:passed_blocks], table.blocks[passed_blocks:]
            table.first = (
                max(table.first, start) if not table.blocks else table.first + passed_blocks
            )
            self.free[reach] += freed[reach][::-1]
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
        return freed

    def release(self, request: int) -> dict[KeyReach, list[int]]:
        """Free all cache blocks of a request; return their numbers by reach."""
        self.cached.pop(request, None)
        freed: dict[KeyReach, list[int]] = {}
        for reach in self.reaches:
            table = self.held.pop((reach, request), CacheBlockTable(first=0, blocks=[]))
            freed[reach] = table.blocks
            self.free[reach] += table.blocks[::-1]
        return freed
