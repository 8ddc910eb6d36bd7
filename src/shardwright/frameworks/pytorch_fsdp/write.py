"""PyTorch's FSDP2 under a mesh of replicas, shards and context parallelism: what torchtitan and
Accelerate share.
"""

from __future__ import annotations

from collections.abc import Iterator

from shardwright.frameworks.export.common_shortfalls import of_one_replica
from shardwright.frameworks.export.exporter import Shortfall
from shardwright.strategy.grid.grid import Grid


def fsdp2_shortfalls(grid: Grid) -> Iterator[Shortfall]:
    """The parts of a grid's ZeRO settings that FSDP2 cannot express."""
    if grid.zero == 1 and grid.dp * grid.cp > 1:
        yield Shortfall(
            what="zero1",
            instead="FSDP2 that reduces gradients every microbatch, and shards them, too (zero2)",
        )
    yield from of_one_replica(grid)
    if grid.zero and grid.shard and grid.shard % grid.cp:
        yield Shortfall(what=f"{grid.shard} shards over cp {grid.cp}", hint="a multiple of cp")
    if not grid.zero and grid.cp > 1:
        yield Shortfall(what="zero0 with cp", instead="parameters that are sharded over cp")


def sharded(grid: Grid) -> int:
    """Ranks that share one copy of a stage's parameters, those of cp among them."""
    return (grid.shard or grid.dp * grid.cp) if grid.zero else grid.cp


def fsdp2_degrees(grid: Grid) -> tuple[int, int]:
    """Replicas, and shards of each beside those of cp."""
    shard = max(sharded(grid) // grid.cp, 1)
    return grid.dp // shard, shard
