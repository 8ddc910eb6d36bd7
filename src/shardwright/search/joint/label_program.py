"""Options of each pipeline rank for the dynamic program over (rank, position) labels: seconds and
bytes of every run of positions, split and recompute (`reach` is the program).

Compiled, over plain arrays: it knows no model. One microbatch passes the ranks 0..p-1 and comes
back; rank k holds some run of positions under one of several options.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from shardwright.arrays import FloatArray, IntArray
from shardwright.compiled import compiled, inner
from shardwright.cost.step.scalar_terms import temporary_bytes

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
OPTIONS = 8
"""Options kept of one rank and run; further ones are merged into a bound of them."""
PIECES = 4.0


class Splits(NamedTuple):
    """Seconds and bytes of the splits that a rank may have; s = split, j = position.

    sums: (s, rows, positions + 1) prefix sums over positions, seconds, bytes. HOST_SELECTIVE and
        HOST_FULL are bytes that one microbatch keeps in host memory under that recompute; without
        recompute nothing is there.
    again: (s, 2, positions) bytes that a position's backward makes again under selective and full
        recompute.
    fixed: (s, columns) of a rank whatever it holds.
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
    """Options of rank k for the run that starts at i and has w + 1 positions, axes (k, i, w,
    option); inf = none.

    way: seconds of one microbatch, out and back, borders included.
    work: of all microbatches, with the update.
    drain: what a rank has left from its first backward on, with the update.
    alone: its work with the slowdown by its collectives.
    begin: (i = 0 only, k = 0) seconds before and after everything: gather, reduction.
    code: split and positions of a chunk recomputed selectively and in full, as one number
        (`code_of`).
    chain: the update alone. Under any order `way` is one microbatch's way out alone, and chain:
        work without weight gradients, behind which the ranks before have their input gradients
        left;
    back: (1,) the least time back for a second out.
    host: bytes in host memory of one device of the rank, at its fullest.
    """

    way: FloatArray
    work: FloatArray
    drain: FloatArray
    alone: FloatArray
    begin: FloatArray
    code: IntArray
    chain: FloatArray
    back: FloatArray
    host: FloatArray


@compiled
def code_of(split: int, selective: int, redone: int) -> int:
    """An option as one number: split, positions recomputed selectively and in full, below 2**12
    each (`solve.choice_of` reads it).
    """
    return (split * 4096 + selective) * 4096 + redone


@compiled
def in_flight(ranks: int, chunks: int, rank: int, microbatches: int) -> float:
    """Lower bound of the chunk microbatches that a rank holds at its peak under 1F1B, or
    interleaved 1F1B for several chunks.
    """
    if chunks == 1:
        return float(min(microbatches, ranks - rank))
    return float(min(microbatches * chunks, 2 * (ranks - rank - 1) + (chunks - 1) * ranks + 1))


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
    """Upper bound of the microbatches of a rank's chunks that rank k has device memory for; exact
    up to whole elements for one chunk a rank, negative if not even the states fit.

    The largest number whose `cost.terms.reserved_bytes` are within the capacity; negative if not
    even the rest fits.
    """
    sums, fixed = splits.sums, splits.fixed
    n, v = j - i, pipe.chunks
    if v == 1:
        a, b = i + redone, i + redone + selective
        saved = (
            sums[s, SAVED_FULL, a]
            - sums[s, SAVED_FULL, i]
            + sums[s, SAVED_SELECTIVE, b]
            - sums[s, SAVED_SELECTIVE, a]
        )
        saved += sums[s, SAVED, j] - sums[s, SAVED, b]
    else:
        # Inner positions are alike then; a chunk at an end may hold no layer.
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
        sums[s, STATIC, j]
        - sums[s, STATIC, i]
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
    """Bytes in host memory of one microbatch of a rank's chunk on one device; with several chunks a
    rank a lower bound.
    """
    full, some = splits.sums[s, HOST_FULL], splits.sums[s, HOST_SELECTIVE]
    if pipe.chunks == 1:
        a = i + redone
        result: float = full[a] - full[i] + some[a + selective] - some[a]
        return result
    # Inner positions are alike then, and a chunk at an end may hold no layer.
    least = (j - i) // pipe.chunks if 0 < k < pipe.ranks - 1 else 0
    few = min(redone, least)
    each: float = few * (full[2] - full[1])
    if selective > 0:
        each += (least - few) * (some[2] - some[1])
    return each


@inner
def _insert(
    cells: Cells,
    k: int,
    i: int,
    w: int,
    numbers: tuple[float, float, float, float, float, float],
    begin: float,
    code: int,
) -> None:
    """Keep an option unless another is no worse in time and in host memory; beyond OPTIONS the last
    one becomes a bound of both. `numbers`: way, work, drain, alone, chain, host.
    """
    way, work, drain, alone, chain, host = numbers
    place = -1
    for o in range(OPTIONS):
        if cells.code[k, i, w, o] < 0:
            if place < 0:
                place = o
            continue
        here = cells.begin[i, w, o] if k == 0 else 0.0
        there = cells.alone[k, i, w, o]
        behind = cells.chain[k, i, w, o]
        if (
            cells.way[k, i, w, o] <= way
            and cells.work[k, i, w, o] <= work
            and cells.drain[k, i, w, o] <= drain
            and cells.host[k, i, w, o] <= host
            and here <= begin
        ):
            if there <= alone and behind <= chain:
                return
        elif (
            way <= cells.way[k, i, w, o]
            and work <= cells.work[k, i, w, o]
            and drain <= cells.drain[k, i, w, o]
            and host <= cells.host[k, i, w, o]
            and begin <= here
        ):
            if alone > there or chain > behind:
                continue
            cells.code[k, i, w, o] = -1
            cells.way[k, i, w, o] = np.inf
            if place < 0:
                place = o
    if place < 0:
        o = OPTIONS - 1
        cells.way[k, i, w, o] = min(way, cells.way[k, i, w, o])
        cells.work[k, i, w, o] = min(work, cells.work[k, i, w, o])
        cells.drain[k, i, w, o] = min(drain, cells.drain[k, i, w, o])
        cells.alone[k, i, w, o] = min(alone, cells.alone[k, i, w, o])
        cells.chain[k, i, w, o] = min(chain, cells.chain[k, i, w, o])
        cells.host[k, i, w, o] = min(host, cells.host[k, i, w, o])
        if k == 0:
            cells.begin[i, w, o] = min(begin, cells.begin[i, w, o])
        return
    cells.way[k, i, w, place] = way
    cells.work[k, i, w, place] = work
    cells.drain[k, i, w, place] = drain
    cells.alone[k, i, w, place] = alone
    cells.chain[k, i, w, place] = chain
    cells.host[k, i, w, place] = host
    cells.code[k, i, w, place] = code
    if k == 0:
        cells.begin[i, w, place] = begin


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
    """Price one option under any static order and keep it; False if its bound is above `limit`.

    A rank that recomputes runs whole backwards: what its weight gradients read is made again for
    them. Before the first backward there are at most `room` forwards; weight gradients may wait
    until the ranks before have theirs, but those of the first rank stand before its end.
    """
    sums, fixed = splits.sums, splits.fixed
    p, m = pipe.ranks, float(pipe.microbatches)
    border = fixed[s, BORDER]
    forward = sums[s, FORWARD, j] - sums[s, FORWARD, i] + fixed[s, SCALES]
    backward = (
        sums[s, BACKWARD, j]
        - sums[s, BACKWARD, i]
        + fixed[s, SCALES]
        + sums[s, FULL, i + redone]
        - sums[s, FULL, i]
    )
    backward += sums[s, SELECTIVE, i + redone + selective] - sums[s, SELECTIVE, i + redone]
    weight = sums[s, WEIGHT, j] - sums[s, WEIGHT, i] if selective == 0 and redone == 0 else 0.0
    back = backward - weight
    sends = max(m * ((k < p - 1) + (k > 0)) - 1.0, 0.0) * border if pipe.blocking and p > 1 else 0.0
    update = (
        sums[s, UPDATE, j] - sums[s, UPDATE, i] + (fixed[s, TIED] if k == 0 or k == p - 1 else 0.0)
    )
    gather, reduce = (
        sums[s, GATHER, j] - sums[s, GATHER, i],
        sums[s, REDUCE, j] - sums[s, REDUCE, i],
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
        (out, work, drain, alone, chain, host),
        begin if k == 0 else 0.0,
        code_of(s, selective, redone),
    )
    return True


@inner
def held_by_sends(pipe: Pipeline, k: int, border: float) -> tuple[float, float]:
    """Seconds for which the sends of a microbatch block rank k, forward and backward, with one
    chunk a rank.
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
    """Price one option under the named order, and keep it if its bound is at most `limit`."""
    sums, fixed = splits.sums, splits.fixed
    p, v, m, n = pipe.ranks, pipe.chunks, float(pipe.microbatches), j - i
    forward = sums[s, FORWARD, j] - sums[s, FORWARD, i]
    backward = sums[s, BACKWARD, j] - sums[s, BACKWARD, i]
    ends_forward, ends_backward = (
        sums[s, ENDS_FORWARD, j] - sums[s, ENDS_FORWARD, i],
        sums[s, ENDS_BACKWARD, j] - sums[s, ENDS_BACKWARD, i],
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
        redo = sums[s, FULL, i + redone] - sums[s, FULL, i]
        chosen = sums[s, SELECTIVE, i + redone + selective] - sums[s, SELECTIVE, i + redone]
        first = forward + backward + redo + chosen
    backward += redo + chosen + v * fixed[s, SCALES]
    forward += v * fixed[s, SCALES]
    border = fixed[s, BORDER]
    way = first + 2.0 * fixed[s, SCALES] + (2.0 * border if k < p - 1 else 0.0)
    sends = 0.0
    if pipe.blocking and p > 1:
        sends = max(m * ((v if k < p - 1 else v - 1) + (v if k > 0 else v - 1)) - 1.0, 0.0) * border
    update = (
        sums[s, UPDATE, j] - sums[s, UPDATE, i] + (fixed[s, TIED] if k == 0 or k == p - 1 else 0.0)
    )
    gather = sums[s, GATHER, j] - sums[s, GATHER, i]
    begin = 0.0
    if pipe.gathers_first:
        begin = gather if v == 1 else 0.0
    else:
        update += gather
    reduce = sums[s, REDUCE, j] - sums[s, REDUCE, i]
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
        (way, work, drain, alone, update, host),
        begin if k == 0 else 0.0,
        code_of(s, selective, redone),
    )


@compiled
def fill(splits: Splits, pipe: Pipeline, cells: Cells, limit: float, alike: bool) -> None:
    """Fill `cells` with the options of every rank and run that fit in memory and may end before
    `limit`: for each split the least recompute that fits; under any order every recompute from one
    microbatch in flight up to all (`_fill_run`).

    `alike`: all positions but the ends are the same.
    """
    length = splits.sums.shape[2] - 1
    p, v = pipe.ranks, pipe.chunks
    cells.back[0] = np.inf
    for k in range(p):
        begin, end = (0, 1) if k == 0 else (k, length)
        for i in range(begin, end):
            for w in range(cells.way.shape[2]):
                j = i + w + 1
                if j > length - (p - 1 - k) or (w + 1 < v and i > 0 and j < length) or w + 2 < v:
                    continue
                if k == p - 1 and j < length:
                    continue
                if alike and i > max(begin, 1) and j < length:
                    # Inner runs of as many positions are the same wherever they start.
                    for o in range(OPTIONS):
                        cells.way[k, i, w, o] = cells.way[k, i - 1, w, o]
                        cells.work[k, i, w, o] = cells.work[k, i - 1, w, o]
                        cells.drain[k, i, w, o] = cells.drain[k, i - 1, w, o]
                        cells.alone[k, i, w, o] = cells.alone[k, i - 1, w, o]
                        cells.chain[k, i, w, o] = cells.chain[k, i - 1, w, o]
                        cells.host[k, i, w, o] = cells.host[k, i - 1, w, o]
                        cells.code[k, i, w, o] = cells.code[k, i - 1, w, o]
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
    """Fill in the options of rank k with positions i to j under split s, the first `redone`
    recomputed in full and the next `selective` selectively.

    More recompute takes longer and leaves no more room in host memory, so for each `redone` one
    stops at the fewest selective ones that leave room for all that the order holds. With several
    chunks a rank all the others are recomputed selectively, or none. Of host memory an option may
    take all that its node has: `reach` adds up the ranks of a node.
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
