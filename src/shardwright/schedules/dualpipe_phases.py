"""One rank's row in DualPipe and DualPipe-V: eight phases over a near and a far chunk.

The near chunk is the one whose forwards reach the rank first. In the main phase a forward of one
chunk runs overlapped with a backward of the other, so that each hides the other's communication. A
rank's depth is its distance from where forwards enter.
"""

from __future__ import annotations

from shardwright.schedules.action_order_arrays import B, F, I, W
from shardwright.schedules.action_row_builders import Place, RowWriter


def overlapped_row(
    *, microbatches: int, ranks: int, depth: int, near_chunk: Place, far_chunk: Place
) -> RowWriter:
    """Row of DualPipe at pipeline position `depth` of `ranks`, with chunks of both directions.

    Phases: near forwards; near and far forwards in turn; far input and weight gradient and far
    forward; pairs of a near forward with a far backward, then of a far forward with a near
    backward; far backward and far forward with near backward; far and near backwards, whose second
    half puts off weight gradients; put-off weight gradients between near input gradients; the rest
    of the weight gradients.

    Args:
        microbatches: microbatches of each chunk, at least 2 ranks.
    """
    ranks_to_turn = ranks - 1 - depth
    row = RowWriter(microbatches=microbatches)
    row.forward(near_chunk, 2 * ranks_to_turn)
    for _ in range(depth + 1):
        row.add(F, near_chunk)
        row.add(F, far_chunk)
    for _ in range(ranks_to_turn):
        row.add_each((I, W, F), far_chunk)
    for step in range(microbatches - 2 * ranks + depth + 1):
        if step == 0 and ranks_to_turn == 0:
            # At the turn the far backward's loss is ready only after the near forward: a pair would
            # wait for itself.
            row.add(F, near_chunk)
            row.add(B, far_chunk)
        else:
            row.backward_pair(near_chunk, far_chunk)
        row.backward_pair(far_chunk, near_chunk)
    for _ in range(ranks_to_turn):
        row.add(B, far_chunk)
        row.backward_pair(far_chunk, near_chunk)
    put_off: list[Place] = []
    for step in range(2 * (depth + 1)):
        place = near_chunk if step % 2 else far_chunk
        if step > depth:
            row.add(I, place)
            put_off.append(place)
        else:
            row.add(B, place)
    for _ in range(ranks_to_turn):
        row.add(W, put_off.pop(0))
        row.add(I, near_chunk)
        put_off.append(near_chunk)
    for place in put_off:
        row.add(W, place)
    return row
