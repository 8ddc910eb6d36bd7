"""Table builder of ZB-H1 and ZB-H2: 1F1B's order with postponed weight gradients.

Qi et al. 2023, arXiv:2401.10241, section 2. Rank r warms up with w forwards, then takes a forward
and an input gradient in turn and, from its (l + 1)-th input gradient on, a weight gradient after
each: the l weight gradients that it puts off fill the tail.
"""

from __future__ import annotations

from shardwright.arrays import IntArray
from shardwright.schedules.action_order_arrays import ActionTable, F, I, W
from shardwright.schedules.action_row_builders import RowWriter, written_table
from shardwright.schedules.schedule_protocol import Sizes


def put_off_table(sizes: Sizes, *, warm_up: IntArray, lag: IntArray) -> ActionTable:
    """Action table of 1F1B with `lag` weight gradients of each rank postponed.

    `warm_up` forwards come before each rank's first input gradient; both (ranks,).
    """
    rows = []
    for rank in range(sizes.ranks):
        row, place = RowWriter(microbatches=sizes.microbatches), (0, rank)
        row.forward(place, int(warm_up[rank]))
        for step in range(sizes.microbatches):
            row.add(F, place)
            row.add(I, place)
            if step >= lag[rank]:
                row.add(W, place)
        while row.count(W, place) < sizes.microbatches:
            row.add(W, place)
        rows.append(row)
    return written_table(rows, num_chunks=sizes.ranks)
