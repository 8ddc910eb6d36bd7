"""Dynamic program over (rank, position) labels: the least step time that stage bounds allow.

A label has the seconds of the ranks before k, out and back, and the bytes in host memory of those
that share a node with rank k; the least seconds of one microbatch from there on are known from the
other end. Of two labels at one place, one that is worse in both is dropped.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from shardwright.arrays import FloatArray, IntArray
from shardwright.cost.step.stage_span_bound_by_microbatches_in_flight import round_trips
from shardwright.kernel_compilation import compiled, inner
from shardwright.search.joint.price_layer_runs_and_splits_of_each_rank import (
    ALONE,
    BEGIN,
    CHAIN,
    DRAIN,
    HOST,
    OPTIONS,
    WAY,
    WORK,
    Cells,
    Pipeline,
    held_by_sends,
)

LABELS = 8
"""Labels kept at one place; further labels are merged into a lower bound of them."""


class _Rank(NamedTuple):
    """Numbers of rank k that are the same for all its options.

    Args:
        flying: microbatches between its first forward and its first backward.
        apart: seconds for which a gradient send blocks it.
        less: seconds of one microbatch's path that are not the rank's work or blocking sends.
        base: least seconds of a microbatch through any pipeline of the space.
        steep: seconds out and back for each second of the path, if that is the path out alone.
        first: most seconds of the first rank's gathers, which come once before the path out.
    """

    k: int
    flying: int
    apart: float
    less: float
    base: float
    steep: float
    first: float


@compiled
def ways_on(cells: Cells, rest: FloatArray) -> float:
    """Least seconds of a microbatch through all ranks and back, inf = none; fills `rest` also.

    Fills `rest` (ranks + 1, positions + 1) with the same from rank k on, for the positions from i
    on.
    """
    p, length = rest.shape[0] - 1, rest.shape[1] - 1
    rest[:] = np.inf
    rest[p, length] = 0.0
    for k in range(p - 1, -1, -1):
        for i in range(length if k > 0 else 1):
            least = np.inf
            for w in range(min(cells.code.shape[2], length - i)):
                behind = rest[k + 1, i + w + 1]
                if behind < np.inf:
                    for o in range(OPTIONS):
                        if cells.code[k, i, w, o] >= 0:
                            least = min(least, cells.numbers[k, i, w, o, WAY] + behind)
            rest[k, i] = least
    result: float = rest[0, 0]
    return result


@inner
def _rank_of(cells: Cells, pipe: Pipeline, k: int, border: float, way: float) -> _Rank:
    """Values of rank k for stage bounds; `border` = seconds of a send, `way` = of a round trip."""
    held_forward, held_backward = held_by_sends(pipe, k, border)
    less = (2.0 * border if k < pipe.ranks - 1 else 0.0) - held_forward - held_backward
    flying = min(pipe.ranks - k, pipe.microbatches)
    steep, first = 1.0, 0.0
    if pipe.any_order:
        steep += cells.back[0]
        for w in range(cells.code.shape[2]):
            for o in range(OPTIONS):
                first = max(first, cells.numbers[0, 0, w, o, BEGIN])
    return _Rank(k, flying, held_backward, less, way * steep, steep, first)


@inner
def _ends(
    cells: Cells,
    pipe: Pipeline,
    rank: _Rank,
    i: int,
    w: int,
    o: int,
    at: float,
    behind: float,
    limit: float,
) -> bool:
    """True if no stage bound of an option (w + 1 positions from i on) is above `limit` seconds.

    All stage bounds of the option must be at most the limit.

    Args:
        at: least seconds before the rank.
        behind: least seconds of a microbatch through the later ranks.
    """
    numbers = cells.numbers[rank.k, i, w, o]
    way, chain = numbers[WAY], numbers[CHAIN]
    if at + numbers[WORK] > limit or numbers[ALONE] > limit:
        return False
    before = max(at - rank.first, 0.0)
    if max(rank.base, (before + way + behind) * rank.steep) + numbers[DRAIN] > limit:
        return False
    if pipe.any_order:
        return bool(at + before * (rank.steep - 1.0) + chain <= limit)
    if pipe.chunks > 1:
        return True
    return bool(
        at
        + round_trips(way + behind, rank.apart, way - rank.less, pipe.microbatches, rank.flying)
        + chain
        <= limit
    )


@inner
def _keep(
    label: FloatArray, back: IntArray, k: int, j: int, through: float, host: float, code: int
) -> None:
    """Keep a label of k ranks and j positions unless one is as good in seconds and host bytes.

    Beyond LABELS labels, the last one becomes a lower bound of both.
    """
    place = -1
    for n in range(LABELS):
        if label[k, j, n, 0] == np.inf:
            if place < 0:
                place = n
        elif label[k, j, n, 0] <= through and label[k, j, n, 1] <= host:
            return
        elif through <= label[k, j, n, 0] and host <= label[k, j, n, 1]:
            label[k, j, n, 0] = np.inf
            if place < 0:
                place = n
    if place < 0:
        place = LABELS - 1
        host = min(host, label[k, j, place, 1])
        if label[k, j, place, 0] <= through:
            label[k, j, place, 1] = host
            return
    label[k, j, place, 0] = through
    label[k, j, place, 1] = host
    back[k, j, place] = code


@compiled
def reach(
    cells: Cells,
    pipe: Pipeline,
    border: float,
    rest: FloatArray,
    limit: float,
    label: FloatArray,
    back: IntArray,
) -> float:
    """Least seconds of a microbatch through all ranks, step <= `limit` s, else inf; fills `label`.

    No node lacks host memory. The limit at which it becomes inf is a lower bound on every member of
    the pipeline: times and host bytes of an option are no more than its members', and a label
    stands for all labels that are no better in both.

    Args:
        border: seconds of a send.
        rest: see `ways_on`.
        label: (ranks + 1, positions + 1, labels, 2) filled: seconds, host bytes.
        back: (ranks + 1, positions + 1, labels) filled: the option and label from which each label
            was reached (`pipeline_bound_by_dynamic_programming._cut_of` reads it).
    """
    p, length = label.shape[0] - 1, label.shape[1] - 1
    label[:] = np.inf
    label[0, 0, 0] = 0.0
    room = pipe.host_room * (1.0 + 1e-12)
    for k in range(p):
        rank = _rank_of(cells, pipe, k, border, rest[0, 0])
        # Behind the last rank of a node another one begins.
        carried = 1.0 if (k + 1) % pipe.sharing else 0.0
        for i in range(length):
            for n in range(LABELS):
                at, before = label[k, i, n]
                if at == np.inf:
                    continue
                for w in range(min(cells.code.shape[2], length - i)):
                    for o in range(OPTIONS):
                        if cells.code[k, i, w, o] < 0:
                            continue
                        host = before + cells.numbers[k, i, w, o, HOST]
                        if host > room:
                            continue
                        if k == 0:
                            at = cells.numbers[0, i, w, o, BEGIN]
                        if not _ends(cells, pipe, rank, i, w, o, at, rest[k + 1, i + w + 1], limit):
                            continue
                        _keep(
                            label,
                            back,
                            k + 1,
                            i + w + 1,
                            at + cells.numbers[k, i, w, o, WAY],
                            host * carried,
                            (w * OPTIONS + o) * LABELS + n,
                        )
    result: float = label[p, length, :, 0].min()
    return result
