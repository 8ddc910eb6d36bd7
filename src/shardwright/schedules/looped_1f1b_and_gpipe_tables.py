"""Table builder of GPipe, 1F1B and other looped schedules, given the warm-up forwards.

Warm-up forwards, then one forward and one backward in turn, then backwards.

The schedules differ in the number of warm-up forwards and in nothing else. Chunk c of a looped
placement runs on rank c % num_ranks. A rank takes its chunks round by round: in each round a group
of microbatches goes through the first chunk, then through the second, and so on; backwards take the
chunks from the last to the first. Where microbatches are cut into token slices, a slice stands
where a microbatch would, and the backwards of a microbatch take its slices from the last to the
first.
"""

from __future__ import annotations

import numpy as np

from shardwright.arrays import IntArray
from shardwright.schedules.action_order_arrays import ActionTable, B, F
from shardwright.schedules.schedule_protocol import Sizes


def all_forwards(sizes: Sizes) -> IntArray:
    """(num_ranks,) number of forwards of each rank in a step: microbatches x slices x chunks.

    m microbatches of v chunks of s slices each.

    It is also the peak of chunks (slices of chunks) in flight of a schedule that does all forwards
    before its first backward.
    """
    units = sizes.microbatches * sizes.option("slices", 1)
    return np.full(sizes.ranks, units * sizes.chunks, np.int64)


def forwards_first_table(sizes: Sizes) -> ActionTable:
    """Action table in which every rank runs all its forwards before its first backward."""
    return looped_table(sizes, warm_up=all_forwards(sizes), slices=sizes.option("slices", 1))


def looped_table(
    sizes: Sizes, *, warm_up: IntArray, group: int = 0, slices: int = 1
) -> ActionTable:
    """Action table of 1F1B over looped chunks, each rank starting with `warm_up` forwards.

    The k-th forward of a rank is, with g microbatches a group, v chunks and j = k mod (g v): local
    chunk j // g, microbatch (k // (g v)) g + j mod g; the k-th backward the same with local chunk v
    - 1 - j // g. Forward k stands at place k of its row while warming up, then at w + 2 (k - w);
    backward k at w + 2 k + 1, then at m v + k.

    Args:
        warm_up: forwards by rank, at most m v, shape (num_ranks,).
        group: microbatches a round, divides m; 0 for all.
        slices: parts of every microbatch; m above counts slices then.
    """
    units = sizes.microbatches * slices
    group, per_rank = group or units, units * sizes.chunks
    step = np.arange(per_rank)
    within = step % (group * sizes.chunks)
    unit = (step // (group * sizes.chunks) * group + within % group).astype(np.int32)
    local = within // group
    rank = sizes.rank[:, None]
    warm = warm_up[:, None]
    forward_place = np.where(step < warm, step, 2 * step - warm)
    backward_place = np.where(step < per_rank - warm, warm + 2 * step + 1, per_rank + step)

    shape = (sizes.ranks, 2 * per_rank)
    kind, part = np.empty(shape, np.int8), np.zeros(shape, np.int32)
    chunk, order = np.empty(shape, np.int32), np.empty(shape, np.int32)
    kind[rank, forward_place], kind[rank, backward_place] = F, B
    chunk[rank, forward_place] = local * sizes.ranks + rank
    chunk[rank, backward_place] = (sizes.chunks - 1 - local) * sizes.ranks + rank
    order[rank, forward_place] = order[rank, backward_place] = unit // slices
    part[rank, forward_place] = unit % slices
    part[rank, backward_place] = slices - 1 - unit % slices
    return ActionTable(
        num_ranks=sizes.ranks,
        num_chunks=sizes.ranks * sizes.chunks,
        num_microbatches=sizes.microbatches,
        row_start=np.arange(sizes.ranks + 1, dtype=np.int32) * np.int32(2 * per_rank),
        kind=kind.reshape(-1),
        chunk=chunk.reshape(-1),
        microbatch=order.reshape(-1),
        lane=np.zeros(kind.size, np.int8),
        slice=part.reshape(-1),
    )
