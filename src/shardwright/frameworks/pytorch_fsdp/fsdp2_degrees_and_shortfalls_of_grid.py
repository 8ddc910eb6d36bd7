"""Degrees and limits of PyTorch's FSDP2, which the torchtitan and Accelerate exporters share."""

from __future__ import annotations

from collections.abc import Iterator

from shardwright.frameworks.export.export_plan_shortfall_and_file_types import Shortfall
from shardwright.frameworks.export.unsupported_plan_features import single_replica_shortfalls
from shardwright.strategy.grid.parallelism_grid import Grid


def fsdp2_shortfalls(grid: Grid) -> Iterator[Shortfall]:
    """Shortfalls of ZeRO under FSDP2: stage 1, shards not a multiple of cp, cp without ZeRO."""
    if grid.zero == 1 and grid.dp * grid.cp > 1:
        yield Shortfall(
            what="zero1",
            instead="FSDP2 that reduces gradients every microbatch, and shards them, too (zero2)",
        )
    yield from single_replica_shortfalls(grid)
    if grid.zero and grid.shard and grid.shard % grid.cp:
        yield Shortfall(what=f"{grid.shard} shards over cp {grid.cp}", hint="a multiple of cp")
    if not grid.zero and grid.cp > 1:
        yield Shortfall(what="zero0 with cp", instead="parameters that are sharded over cp")


def sharding_ranks(grid: Grid) -> int:
    """Ranks that share one copy of a stage's parameters: shard size or dp x cp; cp without ZeRO."""
    return (grid.shard or grid.dp * grid.cp) if grid.zero else grid.cp


def fsdp2_degrees(grid: Grid) -> tuple[int, int]:
    """(dp_replicate, dp_shard) of FSDP2's device mesh; dp_shard leaves out the ranks of cp."""
    shard = max(sharding_ranks(grid) // grid.cp, 1)
    return grid.dp // shard, shard
