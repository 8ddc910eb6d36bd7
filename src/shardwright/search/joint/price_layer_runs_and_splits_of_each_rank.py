"""Options of each pipeline rank for the dynamic program over (rank, position) labels.

Seconds and bytes of every run of positions, split and recomputation (`reach` is the program).
Compiled, over plain arrays, without the model. One microbatch passes the ranks 0..p-1 and comes
back; rank k holds some run of positions under one of several options.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from shardwright.arrays import FloatArray, IntArray
from shardwright.cost.step.shared_scalar_cost_formulas import temporary_bytes
from shardwright.kernel_compilation import compiled, inner

(
    FORWARD,
    BACKWARD,
    SELECTIVE,
    FULL,
    SAVED,
    SAVED_SELECTIVE,
    SAVED_FULL,
    STATIC,
    UPDATE,
    GATHER,
    REDUCE,
) = range(11)
(ENDS_FORWARD, ENDS_BACKWARD, ENDS_STATIC, ENDS_SAVED, WEIGHT) = range(11, 16)
(HOST_SELECTIVE, HOST_FULL) = range(16, 18)
"""Rows of `Splits.sums`."""
(BORDER, SCALES, LOGITS, LOGITS_BLOCKS, END_BYTES, OUTSIDE, TIED, COPIED, SLOWER) = range(9)
"""Columns of `Splits.fixed`. The border is one for all splits."""
(WAY, WORK, DRAIN, HOST, BEGIN, ALONE, CHAIN) = range(7)
"""Columns of `Cells.numbers`, of one option of a rank.

WAY: seconds of one microbatch, out and back, sends included; under any order out alone.
WORK: seconds of all microbatches, with the update.
DRAIN: seconds of the rank's work from its first backward on, with the update.
HOST: peak bytes in host memory of one of its devices.
BEGIN: seconds before and after everything (gather, reduction), of the first rank; 0 of others.
ALONE: seconds of its work with the slowdown by its collectives.
CHAIN: seconds of the update; under any order seconds of the work without weight gradients, after
    which the ranks before have their input gradients left.
"""
OPTIONS = 8
"""Options kept of one rank and run; further options are merged into a lower bound of them."""
PIECES = 4.0


class Splits(NamedTuple):
    """Seconds and bytes of the splits that a rank may have; s = split, j = position.

    sums: (s, rows, positions + 1) prefix sums over positions, in seconds and bytes. HOST_SELECTIVE
        and HOST_FULL are bytes that one microbatch keeps in host memory under that recomputation;
        without recomputation there are none.
    again: (s, 2, positions) bytes that a position's backward recomputes under selective and full
        recomputation.
    fixed: (s, columns) quantities of a rank that do not depend on its positions.
    """

    sums: FloatArray
    again: FloatArray
    fixed: FloatArray


class Pipeline(NamedTuple):
    """Numbers of a pipeline that all its splits share.

    Args:
        ranks, chunks: of the pipeline, and of each rank.
        microbatches: of a step.
        capacity: bytes of a device.
        reserve: least ratio of reserved to allocated bytes.
        workspace: bytes of a device for workspaces.
        blocking: sends block kernels.
        gathers_first: parameters are gathered before the first forward.
        reduces_last: reductions of gradients wait for the last backward.
        any_order: the order is any static one, not 1F1B.
        host_room: bytes of a node's host memory for each of the devices that one rank has in it.
        sharing: consecutive ranks whose devices lie in the same node, so that their host bytes add
            up.
    """

    ranks: int
    chunks: int
    microbatches: int
    capacity: float
    reserve: float
    workspace: float
    blocking: bool
    gathers_first: bool
    reduces_last: bool
    any_order: bool = False
    host_room: float = np.inf
    sharing: int = 1


class Cells(NamedTuple):
    """Options of rank k for the run that starts at i and has w + 1 positions.

    numbers: (k, i, w, option, column), see the columns; inf = no option.
    code: (k, i, w, option) the split and the positions of a chunk recomputed selectively and in
        full, as one number (`code_of`); -1 = no option.
    back: (1,) least seconds back for a second out.
    """

    numbers: FloatArray
    code: IntArray
    back: FloatArray


@compiled
def code_of(split: int, selective: int, redone: int) -> int:
    """Encode an option as one number: split, selectively and fully recomputed positions.

    Positions are below 2**12 each; `pipeline_bound_by_dynamic_programming` decodes the number.
    """
    return (split * 4096 + selective) * 4096 + redone


@compiled
def in_flight(ranks: int, chunks: int, rank: int, microbatches: int) -> float:
    """Lower bound on the chunk microbatches that a rank holds at its peak under 1F1B.

    Under interleaved 1F1B for several chunks a rank.
    """
    if chunks == 1:
        return float(min(microbatches, ranks - rank))
    return float(min(microbatches * chunks, 2 * (ranks - rank - 1) + (chunks - 1) * ranks + 1))


@inner
def _of(sums: FloatArray, s: int, row: int, i: int, j: int) -> float:
    """Seconds or bytes (by `row`) of the positions i .. j - 1 under split s."""
    result: float = sums[s, row, j] - sums[s, row, i]
    return result


@inner
def _room(
    splits: Splits,
    pipe: Pipeline,
    k: int,
    s: int,
    i: int,
    j: int,
    selective: int,
    redone: int,
    again: float,
) -> float:
    """Upper bound on chunk microbatches in rank k's device memory; 1e9 = any, -1 = states overflow.

    Exact up to whole elements for one chunk a rank; the largest number whose `reserved_bytes` are
    within the capacity; negative if not even the states fit.
    """
    sums, fixed = splits.sums, splits.fixed
    n, v = j - i, pipe.chunks
    if v == 1:
        a, b = i + redone, i + redone + selective
        saved = _of(sums, s, SAVED_FULL, i, a) + _of(sums, s, SAVED_SELECTIVE, a, b)
        saved += _of(sums, s, SAVED, b, j)
    else:
        # Inner positions are equal then; a chunk at an end may hold no layer.
        least = n // v if 0 < k < pipe.ranks - 1 else 0
        few = min(redone, least)
        rest = sums[s, SAVED_SELECTIVE if selective else SAVED]
        saved = (least - few) * (rest[2] - rest[1]) + few * (
            sums[s, SAVED_FULL, 2] - sums[s, SAVED_FULL, 1]
        )
    logits = fixed[s, LOGITS] if j == sums.shape[2] - 1 else 0.0
    blocks = fixed[s, LOGITS_BLOCKS] if j == sums.shape[2] - 1 else 0.0
    end = fixed[s, END_BYTES] if i == 0 or j == sums.shape[2] - 1 else 0.0
    temporary = temporary_bytes(again, end, logits)
    allocated = (
        _of(sums, s, STATIC, i, j)
        + pipe.workspace
        + (fixed[s, COPIED] if k > 0 and j == sums.shape[2] - 1 else 0.0)
    )
    most = (pipe.capacity - fixed[s, OUTSIDE]) / (1.0 - 1e-9)
    left = (
        min(most / pipe.reserve, most + temporary + logits - (blocks + again + end))
        - allocated
        - logits
        - temporary
    )
    if left < 0.0:
        return -1.0
    return left / saved if saved > 0.0 else 1e9


@inner
def _host_bytes(
    splits: Splits, pipe: Pipeline, k: int, s: int, i: int, j: int, selective: int, redone: int
) -> float:
    """Bytes in host memory of one microbatch of a rank's chunk on one device.

    A lower bound with several chunks a rank.
    """
    sums = splits.sums
    if pipe.chunks == 1:
        a = i + redone
        return _of(sums, s, HOST_FULL, i, a) + _of(sums, s, HOST_SELECTIVE, a, a + selective)
    # Inner positions are alike then, and a chunk at an end may hold no layer.
    least = (j - i) // pipe.chunks if 0 < k < pipe.ranks - 1 else 0
    few = min(redone, least)
    rest = least - few if selective > 0 else 0
    return few * _of(sums, s, HOST_FULL, 1, 2) + rest * _of(sums, s, HOST_SELECTIVE, 1, 2)


@inner
def _insert(
    cells: Cells,
    k: int,
    i: int,
    w: int,
    numbers: tuple[float, float, float, float, float, float, float],
    code: int,
) -> None:
    """Keep an option of a rank unless another is at least as good in every column.

    Beyond OPTIONS options, the last one becomes a lower bound of both.
    """
    place = -1
    for o in range(OPTIONS):
        if cells.code[k, i, w, o] < 0:
            if place < 0:
                place = o
            continue
        kept = cells.numbers[k, i, w, o]
        is_no_worse, is_no_better = True, True
        for c in range(ALONE):
            is_no_worse = is_no_worse and kept[c] <= numbers[c]
            is_no_better = is_no_better and numbers[c] <= kept[c]
        if is_no_worse:
            if kept[ALONE] <= numbers[ALONE] and kept[CHAIN] <= numbers[CHAIN]:
                return
        elif is_no_better and numbers[ALONE] <= kept[ALONE] and numbers[CHAIN] <= kept[CHAIN]:
            cells.code[k, i, w, o] = -1
            kept[WAY] = np.inf
            if place < 0:
                place = o
    is_full = place < 0
    if is_full:
        place = OPTIONS - 1
    else:
        cells.code[k, i, w, place] = code
    for c in range(CHAIN + 1):
        least = cells.numbers[k, i, w, place, c] if is_full else np.inf
        cells.numbers[k, i, w, place, c] = min(numbers[c], least)


@inner
def _price_any(
    splits: Splits,
    pipe: Pipeline,
    cells: Cells,
    k: int,
    s: int,
    i: int,
    j: int,
    selective: int,
    redone: int,
    room: float,
    host: float,
    limit: float,
) -> bool:
    """Price one option under any static order and keep it; False if its bound is over `limit` s.

    A rank that recomputes runs whole backwards: the inputs of its weight gradients are recomputed
    for them. Before the first backward there are at most `room` forwards; weight gradients may wait
    until the ranks before have theirs, but those of the first rank come before its end.
    """
    sums, fixed = splits.sums, splits.fixed
    p, m = pipe.ranks, float(pipe.microbatches)
    border = fixed[s, BORDER]
    forward = _of(sums, s, FORWARD, i, j) + fixed[s, SCALES]
    backward = (
        _of(sums, s, BACKWARD, i, j)
        + fixed[s, SCALES]
        + sums[s, FULL, i + redone]
        - sums[s, FULL, i]
    )
    backward += _of(sums, s, SELECTIVE, i + redone, i + redone + selective)
    weight = _of(sums, s, WEIGHT, i, j) if selective == 0 and redone == 0 else 0.0
    back = backward - weight
    sends = max(m * ((k < p - 1) + (k > 0)) - 1.0, 0.0) * border if pipe.blocking and p > 1 else 0.0
    update = _of(sums, s, UPDATE, i, j) + (fixed[s, TIED] if k == 0 or k == p - 1 else 0.0)
    gather, reduce = (
        _of(sums, s, GATHER, i, j),
        _of(sums, s, REDUCE, i, j),
    )
    begin = gather if pipe.gathers_first else 0.0
    update += 0.0 if pipe.gathers_first else gather
    alone = (
        m * (forward + backward)
        + sends
        + update
        + (reduce if pipe.reduces_last else reduce * fixed[s, SLOWER])
    )
    if pipe.gathers_first:
        alone += gather * fixed[s, SLOWER]
    work = m * (forward + backward) + sends + update + reduce / PIECES
    if max(alone, work + begin if k == 0 else work) > limit:
        return False
    chain = m * (forward + back) + sends + update
    drain = (
        (m - 1.0) * back
        + max(m - np.floor(room + 1e-6), 0.0) * forward
        + update
        + (m * weight if k == 0 else 0.0)
    )
    out, home = forward + (border if k < p - 1 else 0.0), back + (border if k < p - 1 else 0.0)
    if out > 0.0:
        cells.back[0] = min(cells.back[0], home / out)
    _insert(
        cells,
        k,
        i,
        j - i - 1,
        (out, work, drain, host, begin if k == 0 else 0.0, alone, chain),
        code_of(s, selective, redone),
    )
    return True


@inner
def held_by_sends(pipe: Pipeline, k: int, border: float) -> tuple[float, float]:
    """Seconds for which the sends of a microbatch block rank k, forward and backward.

    With one chunk a rank.
    """
    if not pipe.blocking:
        return 0.0, 0.0
    return (border if k < pipe.ranks - 1 else 0.0), (border if k > 0 else 0.0)


@inner
def _price(
    splits: Splits,
    pipe: Pipeline,
    cells: Cells,
    k: int,
    s: int,
    i: int,
    j: int,
    selective: int,
    redone: int,
    host: float,
    limit: float,
) -> None:
    """Price one option under the named order, and keep it if its bound is at most `limit` s."""
    sums, fixed = splits.sums, splits.fixed
    p, v, m, n = pipe.ranks, pipe.chunks, float(pipe.microbatches), j - i
    forward = _of(sums, s, FORWARD, i, j)
    backward = _of(sums, s, BACKWARD, i, j)
    ends_forward, ends_backward = (
        _of(sums, s, ENDS_FORWARD, i, j),
        _of(sums, s, ENDS_BACKWARD, i, j),
    )
    if v > 1:
        # `redone` positions of each chunk; a chunk has n // v positions or one more.
        least = n // v if k > 0 else 0
        few = min(redone, n // v)
        count = v * few if 0 < k < p - 1 else 0
        few = min(few, least)
        each, again = (
            sums[s, SELECTIVE, 2] - sums[s, SELECTIVE, 1],
            sums[s, FULL, 2] - sums[s, FULL, 1],
        )
        redo = again * count
        chosen = each * (n - count) if selective else 0.0
        # The part of the embedding and the head is in the ends, so it does not shrink with the
        # chunk.
        first = ends_forward + ends_backward if k == 0 else 0.0
        first += (forward + backward - ends_forward - ends_backward) / n * least + again * few
        if selective:
            first += each * (least - few)
    else:
        redo = _of(sums, s, FULL, i, i + redone)
        chosen = _of(sums, s, SELECTIVE, i + redone, i + redone + selective)
        first = forward + backward + redo + chosen
    backward += redo + chosen + v * fixed[s, SCALES]
    forward += v * fixed[s, SCALES]
    border = fixed[s, BORDER]
    way = first + 2.0 * fixed[s, SCALES] + (2.0 * border if k < p - 1 else 0.0)
    sends = 0.0
    if pipe.blocking and p > 1:
        sends = max(m * ((v if k < p - 1 else v - 1) + (v if k > 0 else v - 1)) - 1.0, 0.0) * border
    update = _of(sums, s, UPDATE, i, j) + (fixed[s, TIED] if k == 0 or k == p - 1 else 0.0)
    gather = _of(sums, s, GATHER, i, j)
    begin = 0.0
    if pipe.gathers_first:
        begin = gather if v == 1 else 0.0
    else:
        update += gather
    reduce = _of(sums, s, REDUCE, i, j)
    begin += reduce / PIECES if v == 1 else 0.0
    # A collective runs beside kernels, which it slows down, or alone.
    alone = reduce if pipe.reduces_last else reduce * fixed[s, SLOWER]
    if pipe.gathers_first:
        alone += gather * fixed[s, SLOWER]
    alone += m * (forward + backward) + sends + update
    work = m * (forward + backward) + sends + update
    if max(alone, work + begin if k == 0 else work) > limit:
        return
    drain = update
    if v == 1:
        held_forward, held_backward = held_by_sends(pipe, k, border)
        drain += (m - 1.0) * (backward + held_backward) + max(m - p + k, 0.0) * (
            forward + held_forward
        )
    _insert(
        cells,
        k,
        i,
        j - i - 1,
        (way, work, drain, host, begin if k == 0 else 0.0, alone, update),
        code_of(s, selective, redone),
    )


@compiled
def fill(splits: Splits, pipe: Pipeline, cells: Cells, limit: float, alike: bool) -> None:
    """Fill `cells` with the options of each rank and run that fit and may end before `limit` s.

    For each split the least recomputation that fits; under any order every recomputation from one
    microbatch in flight up to all (`_fill_run`).

    Args:
        alike: all positions but the ends are equal.
    """
    length = splits.sums.shape[2] - 1
    p, v = pipe.ranks, pipe.chunks
    cells.back[0] = np.inf
    for k in range(p):
        begin, end = (0, 1) if k == 0 else (k, length)
        for i in range(begin, end):
            for w in range(cells.code.shape[2]):
                j = i + w + 1
                if j > length - (p - 1 - k) or (w + 1 < v and i > 0 and j < length) or w + 2 < v:
                    continue
                if k == p - 1 and j < length:
                    continue
                if alike and i > max(begin, 1) and j < length:
                    # Inner runs of as many positions are the same wherever they start.
                    for o in range(OPTIONS):
                        cells.code[k, i, w, o] = cells.code[k, i - 1, w, o]
                        for c in range(CHAIN + 1):
                            cells.numbers[k, i, w, o, c] = cells.numbers[k, i - 1, w, o, c]
                    continue
                for s in range(splits.sums.shape[0]):
                    time = (
                        splits.sums[s, FORWARD, j]
                        - splits.sums[s, FORWARD, i]
                        + splits.sums[s, BACKWARD, j]
                        - splits.sums[s, BACKWARD, i]
                    )
                    if pipe.microbatches * time > limit:
                        continue
                    _fill_run(splits, pipe, cells, k, s, i, j, limit)


@inner
def _fill_run(
    splits: Splits, pipe: Pipeline, cells: Cells, k: int, s: int, i: int, j: int, limit: float
) -> None:
    """Price the least recompute options that fit of rank k, positions i .. j - 1, under split s.

    The first `redone` positions are recomputed in full and the next `selective` selectively. More
    recomputation takes longer and leaves no more room in host memory, so for each `redone` the loop
    stops at the fewest selective ones that leave room for all microbatches of the order. With
    several chunks a rank all the others are recomputed selectively, or none. Of host memory an
    option may take all that its node has: `reach` adds up the ranks of a node.
    """
    v, m = pipe.chunks, pipe.microbatches
    top = j - i if v == 1 else -(-(j - i) // v)
    full = 0.0
    if v > 1:
        for x in range(i, j):
            full = max(full, splits.again[s, 1, x])
    for redone in range(top + 1):
        if v == 1 and redone > 0:
            full = max(full, splits.again[s, 1, i + redone - 1])
        again = full if redone > 0 else 0.0
        for selective in range(top - redone + 1):
            if v > 1 and selective > 0:
                if selective < top - redone:
                    continue
                for x in range(i, j):
                    again = max(again, splits.again[s, 0, x])
            elif selective > 0:
                again = max(again, splits.again[s, 0, i + redone + selective - 1])
            room = _room(splits, pipe, k, s, i, j, selective, redone, again)
            host = _host_bytes(splits, pipe, k, s, i, j, selective, redone)
            if host > 0.0:
                room = min(room, pipe.host_room / host)
            enough = False
            if pipe.any_order:
                # An order may hold as few as one microbatch.
                if room >= 1.0 - 1e-9:
                    enough = (
                        not _price_any(
                            splits, pipe, cells, k, s, i, j, selective, redone, room, host, limit
                        )
                        or room >= m
                    )
            elif room >= in_flight(pipe.ranks, v, k, m) * (1.0 - 1e-12):
                held = in_flight(pipe.ranks, v, k, m) * host
                _price(splits, pipe, cells, k, s, i, j, selective, redone, held, limit)
                enough = True
            if enough:
                if selective == 0:
                    return
                break
