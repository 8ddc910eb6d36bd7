"""Chunks of each rank under a placement."""

from __future__ import annotations

import numpy as np

from shardwright.arrays import Int32Array
from shardwright.schedules.chunk_placement import ChunkPlacement, chunk_ranks


def rank_chunks(placement: ChunkPlacement, *, num_ranks: int, chunks_per_rank: int) -> Int32Array:
    """(lanes, num_ranks, chunks_per_rank) chunks of each rank, first to last."""
    ranks = chunk_ranks(placement, num_ranks=num_ranks, chunks_per_rank=chunks_per_rank)
    order = np.argsort(ranks, axis=1, kind="stable").astype(np.int32)
    return order.reshape(placement.lanes, num_ranks, chunks_per_rank)
