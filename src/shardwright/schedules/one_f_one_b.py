"""1F1B: as few forwards as keep the pipeline busy, then one forward and one backward in turn.

PipeDream-Flush, Narayanan et al. 2021, arXiv:2006.09503; the order is that of Megatron-LM's
``forward_backward_pipelining_without_interleaving`` and PyTorch's Schedule1F1B. Bubble (p - 1)(F + B), rank r keeps p - r microbatches.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shardwright.schedules.looped import Int64, check_counts, check_no_parameters, check_one_chunk, looped_table
from shardwright.schedules.table import ActionTable


@dataclass(frozen=True, slots=True, kw_only=True)
class OneFOneB:
    """One forward, one backward; one chunk a rank."""

    name: str = "1f1b"

    def table(self, *, num_ranks: int, chunks_per_rank: int, num_microbatches: int, **parameters: int) -> ActionTable:
        """Every rank's actions in order; see `Schedule.table`. Rank r warms up with min(p - r - 1, m) forwards."""
        peak = self.peak_in_flight(num_ranks=num_ranks, chunks_per_rank=chunks_per_rank, num_microbatches=num_microbatches, **parameters)
        warm_up = np.minimum(num_ranks - 1 - np.arange(num_ranks), peak)
        return looped_table(
            num_ranks=num_ranks, chunks_per_rank=1, num_microbatches=num_microbatches, group=num_microbatches, warm_up=warm_up
        )

    def peak_in_flight(self, *, num_ranks: int, chunks_per_rank: int, num_microbatches: int, **parameters: int) -> Int64:
        """min(p - r, m) microbatches on rank r."""
        check_counts(self.name, num_ranks=num_ranks, chunks_per_rank=chunks_per_rank, num_microbatches=num_microbatches)
        check_one_chunk(self.name, chunks_per_rank)
        check_no_parameters(self.name, parameters)
        return np.minimum(num_ranks - np.arange(num_ranks), num_microbatches).astype(np.int64)


ONE_F_ONE_B = OneFOneB()
