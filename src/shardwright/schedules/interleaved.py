"""Interleaved 1F1B: several chunks a rank, so that the pipeline fills in steps of one chunk.

Narayanan et al. 2021, arXiv:2104.04473, section 2.2; the order is that of Megatron-LM's ``forward_backward_pipelining_with_interleaving``
and PyTorch's ScheduleInterleaved1F1B. Bubble (p - 1)/v (F + B) with F and B the times of a rank's whole share of the model; rank r keeps
2 (p - r - 1) + (v - 1) g + 1 chunks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shardwright.errors import StrategyError
from shardwright.schedules.looped import Int64, check_counts, check_no_parameters, looped_table
from shardwright.schedules.table import ActionTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Interleaved:
    """One forward, one backward over several chunks a rank.

    Parameter `group`: microbatches that go through a chunk before the next chunk has its turn (Megatron's
    ``microbatch_group_size_per_vp_stage``), at least p, default p. Microbatches must be a multiple of it.
    """

    name: str = "interleaved-1f1b"

    def table(self, *, num_ranks: int, chunks_per_rank: int, num_microbatches: int, **parameters: int) -> ActionTable:
        """Every rank's actions in order; see `Schedule.table`. Rank r warms up with 2 (p - r - 1) + (v - 1) g forwards, at most m v."""
        peak = self.peak_in_flight(num_ranks=num_ranks, chunks_per_rank=chunks_per_rank, num_microbatches=num_microbatches, **parameters)
        group = parameters.get("group", num_ranks)
        warm_up = 2 * (num_ranks - 1 - np.arange(num_ranks)) + (chunks_per_rank - 1) * group
        return looped_table(
            num_ranks=num_ranks,
            chunks_per_rank=chunks_per_rank,
            num_microbatches=num_microbatches,
            group=group,
            warm_up=np.minimum(warm_up, peak),
        )

    def peak_in_flight(self, *, num_ranks: int, chunks_per_rank: int, num_microbatches: int, **parameters: int) -> Int64:
        """min(2 (p - r - 1) + (v - 1) g + 1, m v) chunks on rank r."""
        check_counts(self.name, num_ranks=num_ranks, chunks_per_rank=chunks_per_rank, num_microbatches=num_microbatches)
        group = parameters.pop("group", num_ranks)
        check_no_parameters(self.name, parameters)
        if group < num_ranks:
            raise StrategyError(
                f"{self.name} needs a group of at least {num_ranks} microbatches (the ranks), not {group}", rule="order.group"
            )
        if num_microbatches % group:
            below, above = num_microbatches // group * group, (num_microbatches // group + 1) * group
            raise StrategyError(
                f"{self.name} on {num_ranks} ranks needs a multiple of {group} microbatches, not {num_microbatches}",
                hint=f"try {f'{below} or ' if below else ''}{above} microbatches, or 1f1b",
                rule="order.microbatches",
            )
        peak = 2 * (num_ranks - 1 - np.arange(num_ranks)) + (chunks_per_rank - 1) * group + 1
        return np.minimum(peak, num_microbatches * chunks_per_rank).astype(np.int64)


INTERLEAVED = Interleaved()
