"""Degrees and limits of PyTorch's FSDP2, which the torchtitan and Accelerate exporters share."""

from __future__ import annotations

from collections.abc import Iterator

from shardwright.frameworks.export.exporter import Shortfall
from shardwright.frameworks.export.unsupported_plan_features import single_replica_shortfalls
from shardwright.strategy.grid.parallelism_grid import Grid


def fsdp2_shortfalls(grid: Grid) -> Iterator[Shortfall]:
    """Parts of a grid's ZeRO settings that FSDP2 cannot express."""
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
    """Number of ranks that share one copy of a stage's parameters, cp included; cp without ZeRO."""
    return (grid.shard or grid.dp * grid.cp) if grid.zero else grid.cp


def fsdp2_degrees(grid: Grid) -> tuple[int, int]:
    """(replicas, ranks of a sharding group without those of cp) of FSDP2's device mesh."""
    shard = max(sharding_ranks(grid) // grid.cp, 1)
    return grid.dp // shard, shard
