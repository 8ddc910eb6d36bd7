"""GPipe: all forwards, then all backwards.

Huang et al. 2019, arXiv:1811.06965, section 2.3: bubble (p - 1) of m + p - 1 slots; every rank keeps all m microbatches.
Backwards run in the order of microbatches, as in PyTorch's ScheduleGPipe (the paper draws
the opposite order; time and memory are the same).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shardwright.schedules.looped import Int64, check_counts, check_no_parameters, check_one_chunk, looped_table
from shardwright.schedules.table import ActionTable


@dataclass(frozen=True, slots=True, kw_only=True)
class GPipe:
    """All forwards, then all backwards; one chunk a rank."""

    name: str = "gpipe"

    def table(self, *, num_ranks: int, chunks_per_rank: int, num_microbatches: int, **parameters: int) -> ActionTable:
        """Every rank's actions in order; see `Schedule.table`."""
        warm_up = self.peak_in_flight(num_ranks=num_ranks, chunks_per_rank=chunks_per_rank, num_microbatches=num_microbatches, **parameters)
        return looped_table(
            num_ranks=num_ranks, chunks_per_rank=1, num_microbatches=num_microbatches, group=num_microbatches, warm_up=warm_up
        )

    def peak_in_flight(self, *, num_ranks: int, chunks_per_rank: int, num_microbatches: int, **parameters: int) -> Int64:
        """All m microbatches, on every rank."""
        check_counts(self.name, num_ranks=num_ranks, chunks_per_rank=chunks_per_rank, num_microbatches=num_microbatches)
        check_one_chunk(self.name, chunks_per_rank)
        check_no_parameters(self.name, parameters)
        return np.full(num_ranks, num_microbatches, np.int64)


GPIPE = GPipe()
