"""V-shaped schedules that repeat one microbatch's block of actions every six slots.

Qi et al. 2024, arXiv:2405.15362, sections 2 and 3: a block says in which slot each forward and
input gradient of one microbatch falls; microbatch i is the same block 6 i slots later, where 6 is a
rank's work on one microbatch (two chunks of F, I and W). A block is good if no two of a rank's
actions meet modulo 6; weight gradients take the slots that are left. How long a block lives on a
rank, over 6, is what the rank keeps. Only the order counts: ranks run it without the block's waits
(the paper's squeezing).
"""

from __future__ import annotations

import numpy as np

from shardwright.arrays import IntArray
from shardwright.schedules.action_order_arrays import ActionTable, F, I, W
from shardwright.schedules.action_row_builders import slotted_table
from shardwright.schedules.schedule_protocol import Sizes

PERIOD = 6


def block_slots(
    ranks: int, *, steps: tuple[int, int, int, int], turns: tuple[int, int, int]
) -> IntArray:
    """(6, ranks) slots of a microbatch's F, F, I, I, W, W on a V: `steps` a hop, `turns` between.

    F of the chunk going down, F going up, I going down, I going up, W of the upper chunk, W of the
    lower chunk.

    Args:
        steps: slots from one rank to the next of the four legs F down, F up, I down, I up.
        turns: slots from the end of each leg to the start of the next.
    """
    hops_down, hops_up = np.arange(ranks), np.arange(ranks)[::-1]
    starts = np.cumsum(
        [0, *(step * (ranks - 1) + turn for step, turn in zip(steps, turns, strict=False))]
    )
    rows = [
        start + step * hops
        for start, step, hops in zip(
            starts, steps, (hops_down, hops_up, hops_down, hops_up), strict=True
        )
    ]
    for input_gradient_slots in (rows[2], rows[3]):
        slot = input_gradient_slots + 1
        occupied = np.stack(rows) % PERIOD
        while (busy := (occupied == slot % PERIOD).any(axis=0)).any():
            slot = np.where(busy, slot + 1, slot)
        rows.append(slot)
    return np.stack(rows)


def repeated_table(sizes: Sizes, slots: IntArray) -> ActionTable:
    """Action table of one microbatch's time slots, repeated each PERIOD slots for the next.

    Each rank's actions are ordered by slot.
    """
    down, up = sizes.rank, 2 * sizes.ranks - 1 - sizes.rank
    shape = (6, sizes.ranks, sizes.microbatches)
    microbatch = np.broadcast_to(np.arange(sizes.microbatches), shape)
    return slotted_table(
        slot=slots[:, :, None] + PERIOD * microbatch,
        kind=np.broadcast_to(np.array([F, F, I, I, W, W])[:, None, None], shape),
        chunk=np.broadcast_to(np.stack([down, up, up, down, up, down])[:, :, None], shape),
        microbatch=microbatch,
        lane=np.zeros(shape, np.int64),
        rank=np.broadcast_to(sizes.rank[:, None], shape),
        num_ranks=sizes.ranks,
    )
