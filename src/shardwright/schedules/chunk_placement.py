"""Placement of pipeline chunks on ranks."""

from __future__ import annotations

from enum import StrEnum

import numpy as np

from shardwright.arrays import Int32Array


class ChunkPlacement(StrEnum):
    """Map of pipeline chunks to ranks: looped, in waves, or two opposite lanes.

    LOOPED: chunk c on rank c mod p. WAVE: down the ranks, up again, and so on; with two chunks a
    rank it is a V. OPPOSITE: two lanes, the first down the ranks, the second up.
    """

    LOOPED = "looped"
    WAVE = "wave"
    OPPOSITE = "opposite"

    @property
    def lanes(self) -> int:
        """Number of lanes that share the ranks: 2 for bidirectional schedules, else 1."""
        return 2 if self is ChunkPlacement.OPPOSITE else 1


def chunk_ranks(placement: ChunkPlacement, *, num_ranks: int, chunks_per_rank: int) -> Int32Array:
    """(lanes, num_ranks * chunks_per_rank) rank of each chunk of each lane."""
    chunk = np.arange(num_ranks * chunks_per_rank)
    down = chunk % num_ranks
    up = num_ranks - 1 - down
    match placement:
        case ChunkPlacement.LOOPED:
            rows = [down]
        case ChunkPlacement.WAVE:
            rows = [np.where(chunk // num_ranks % 2 == 0, down, up)]
        case ChunkPlacement.OPPOSITE:
            rows = [down, up]
    return np.array(rows, np.int32)
