"""Interleaved 1F1B: several chunks a rank, so that the pipeline fills in steps of one chunk.

Narayanan et al. 2021, arXiv:2104.04473, section 2.2; the order is that of Megatron-LM's
``forward_backward_pipelining_with_interleaving`` and PyTorch's ScheduleInterleaved1F1B. Bubble (p -
1)/v (F + B) with F and B the times of a rank's whole share of the model; rank r keeps 2 (p - r - 1)
+ (v - 1) g + 1 chunks.

Parameter `group` (g): microbatches that go through a chunk before the next chunk has its turn
(Megatron's ``microbatch_group_size_per_vp_stage``), at least p, default p. Microbatches must be a
multiple of it.
"""

from __future__ import annotations

import numpy as np

from shardwright.arrays import IntArray
from shardwright.schedules.action_order_arrays import ActionTable
from shardwright.schedules.chunk_placement import ChunkPlacement
from shardwright.schedules.looped_1f1b_and_gpipe_tables import looped_table
from shardwright.schedules.schedule_protocol import ScheduleRule, Sizes


def _group(sizes: Sizes) -> int:
    """Microbatches that run through a chunk before the next chunk's turn: option, else p."""
    return sizes.option("group", sizes.ranks)


def _legal(sizes: Sizes) -> None:
    """Raise StrategyError for a group below p or microbatches that are no multiple of the group."""
    group, microbatches = _group(sizes), sizes.microbatches
    if group < sizes.ranks:
        raise sizes.refuse(
            f"needs a group of at least {sizes.ranks} microbatches (the ranks), not {group}",
            rule="group",
        )
    if microbatches % group:
        below, above = microbatches // group * group, (microbatches // group + 1) * group
        raise sizes.refuse(
            f"on {sizes.ranks} ranks needs a multiple of {group} microbatches, not {microbatches}",
            hint=f"try {f'{below} or ' if below else ''}{above} microbatches, or 1f1b",
            rule="microbatches",
        )


def _warm_up(sizes: Sizes) -> IntArray:
    """Warm-up forwards of rank r: 2 (p - r - 1) + (v - 1) g."""
    return 2 * (sizes.ranks - 1 - sizes.rank) + (sizes.chunks - 1) * _group(sizes)


def _peak(sizes: Sizes) -> IntArray:
    """Peak chunks in flight, interleaved 1F1B, rank r: min(2 (p - r - 1) + (v - 1) g + 1, m v)."""
    return np.minimum(_warm_up(sizes) + 1, sizes.microbatches * sizes.chunks)


def _table(sizes: Sizes) -> ActionTable:
    """Action table of interleaved 1F1B: looped chunks, in groups of microbatches."""
    return looped_table(
        sizes, warm_up=np.minimum(_warm_up(sizes), _peak(sizes)), group=_group(sizes)
    )


INTERLEAVED = ScheduleRule(
    name="interleaved-1f1b",
    placement=ChunkPlacement.LOOPED,
    kinds="FB",
    make=_table,
    peak=_peak,
    legal=_legal,
    options=("group",),
    chunks_per_rank=0,
)
