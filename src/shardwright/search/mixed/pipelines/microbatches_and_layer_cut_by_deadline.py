"""Microbatches that a pipeline replica can complete by a limit, and the layer cut that does.

The stage inequalities are those of docs/decisions/0015. The functions are compiled and work on
plain arrays, without the model.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from shardwright.arrays import FloatArray, IntArray
from shardwright.cost.step.stage_span_bound_by_microbatches_in_flight import round_trips
from shardwright.kernel_compilation import compiled, inner
from shardwright.search.mixed.pipelines.pipeline_shapes import Shapes
from shardwright.search.mixed.stages.subspaces_and_stage_costs import Terms

PIECES = 4.0
"""Largest number of buckets of a gradient reduction that overlap the last backward."""


class _Place(NamedTuple):
    """Position of a stage in its pipeline, and the seconds before, after and around it.

    i, p: stage i of p. m: microbatches. hd, tl: seconds of a microbatch on its way from the first
    stage to this one, and back. way: seconds of one microbatch through all stages and back. sf, sb:
    seconds of the stage's activation and gradient sends. close: seconds of the reduction of the
    first stage's last bucket. least: seconds of the update of some stage, which all stages wait
    for.
    """

    i: int
    p: int
    m: int
    hd: float
    tl: float
    way: float
    sf: float
    sb: float
    close: float
    least: float


@inner
def _stage_holds(terms: Terms, r: int, role: int, n: int, at: _Place, limit: float) -> bool:
    """True where a stage (role: 1 first, 2 last) with n layers of row r fits, in `limit` s."""
    i, p, m, hd, tl = at.i, at.p, at.m, at.hd, at.tl
    q = p - i
    first, last = float(role & 1), float((role >> 1) & 1)
    several = terms.extra.shape[0]
    more = terms.extra[r, role, min(m, q) - 1, n] if r < several else terms.whole[r - several]
    if not np.isfinite(more):
        return False
    s = terms.seconds
    forward = n * s[r, 0, 0] + first * s[r, 1, 0] + last * s[r, 2, 0]
    backward = n * s[r, 0, 1] + first * s[r, 1, 1] + last * s[r, 2, 1] + more
    reduce = n * terms.reduce[r, 0] + first * terms.reduce[r, 1] + last * terms.reduce[r, 2]
    gather = n * terms.gather[r, 0] + first * terms.gather[r, 1] + last * terms.gather[r, 2]
    update = n * terms.update[r, 0] + first * terms.update[r, 1] + last * terms.update[r, 2]
    pieces = (
        1.0
        if terms.reduces_last
        else min(PIECES, n * terms.blocks[0] + first * terms.blocks[1] + last * terms.blocks[2])
    )
    ends = max(reduce / pieces, reduce - (pieces - 1.0) / pieces * backward)
    after = max(tl + at.close, ends) + max(update, at.least)
    held_f, held_b = (at.sf, at.sb) if terms.blocking else (0.0, 0.0)
    begin = max(hd, gather)
    work = forward + backward
    if begin + m * work + (m - 1) * (held_f + held_b) + after > limit:
        return False
    trip = at.way + more - hd - tl
    rest = max(m - q, 0)
    if begin + trip + (m - 1) * (backward + held_b) + rest * (forward + held_f) + after > limit:
        return False
    return bool(begin + round_trips(trip, held_b, work + held_f + held_b, m, q) + after <= limit)


@inner
def _cut(
    terms: Terms,
    one: int,
    other: int,
    p1: int,
    p2: int,
    n1: int,
    m: int,
    limit: float,
    sizes: IntArray,
) -> bool:
    """True where m microbatches end by `limit` s with n1 layers in the first run; fills `sizes`.

    Args:
        sizes: receives the layers of each stage.
    """
    p, layers = p1 + p2, terms.layers
    s = terms.seconds
    border_f, border_b = 0.0, 0.0
    inside = terms.send
    for run in range(2):
        row, stages = (one, p1) if run == 0 else (other, p2)
        if stages > 1:
            border_f += (stages - 1) * inside[row, row, 0]
            border_b += (stages - 1) * inside[row, row, 1]
    if p2 > 0:
        border_f += inside[one, other, 0]
        border_b += inside[one, other, 1]
    tail = other if p2 > 0 else one
    n2 = layers - n1
    way = (
        n1 * (s[one, 0, 0] + s[one, 0, 1])
        + s[one, 1, 0]
        + s[one, 1, 1]
        + s[tail, 2, 0]
        + s[tail, 2, 1]
        + border_f
        + border_b
    )
    if p2 > 0:
        way += n2 * (s[other, 0, 0] + s[other, 0, 1])
    # What must be gathered before the first forward at least: that of a first stage with one layer.
    start = terms.gather[one, 0] + terms.gather[one, 1]
    way += start
    pieces = (
        1.0
        if terms.reduces_last
        else min(PIECES, layers * terms.blocks[0] + terms.blocks[1] + terms.blocks[2])
    )
    close = (terms.reduce[one, 0] + terms.reduce[one, 1]) / pieces
    # Some stage of a run has its mean of layers or more.
    least = np.ceil(n1 / p1) * terms.update[one, 0]
    if p2 > 0:
        least = max(least, np.ceil(n2 / p2) * terms.update[other, 0])
    hd, tl = start, 0.0
    left = n1
    for i in range(p):
        row = one if i < p1 else other
        if i == p1:
            left = n2
        behind = (p1 if i < p1 else p) - i - 1
        role = (1 if i == 0 else 0) + (2 if i == p - 1 else 0)
        after = row if i != p1 - 1 or p2 == 0 else other
        sf = inside[row, after, 0] if i < p - 1 else 0.0
        before = row if i != p1 else one
        sb = inside[before, row, 1] if i > 0 else 0.0
        n = left - behind
        if behind > 0:
            # No more than fill the limit with their own work alone.
            each = s[row, 0, 0] + s[row, 0, 1]
            n = min(n, int((limit - hd - tl) / (m * each)) + 1)
        if row < len(terms.fits):
            n = min(n, terms.fits[row, role, min(m, p - i) - 1])
        at = _Place(i, p, m, hd, tl, way, sf, sb, close, least)
        while n >= 1 and not _stage_holds(terms, row, role, n, at, limit):
            n -= 1
        if n < 1 or (behind == 0 and n < left):
            return False
        sizes[i] = n
        left -= n
        hd += n * s[row, 0, 0] + (s[row, 1, 0] if i == 0 else 0.0) + sf
        tl += n * s[row, 0, 1] + (s[row, 1, 1] if i == 0 else 0.0)
        if i < p - 1:
            tl += inside[row, after, 1]
    return True


@inner
def _run_holds(
    terms: Terms, row: int, first: int, stages: int, p: int, m: int, limit: float
) -> int:
    """Most layers a run of stages (table row `row`) can hold in memory and time; 0 = a stage none.

    0 = some stage holds none.

    Args:
        first: number of the run's first stage, of p.
    """
    each = terms.seconds[row, 0, 0] + terms.seconds[row, 0, 1]
    by_work = int(limit / (m * each)) + 1
    total = 0
    for i in range(first, first + stages):
        role = (1 if i == 0 else 0) + (2 if i == p - 1 else 0)
        holds = min(terms.fits[row, role, min(m, p - i) - 1], by_work)
        if holds < 1:
            return 0
        total += holds
    return total


@inner
def _possible(
    terms: Terms, one: int, other: int, p1: int, p2: int, m: int, limit: float, sizes: IntArray
) -> int:
    """Most layers of the first run in a cut that ends by `limit` s, 0 = none; fills `sizes`."""
    layers = terms.layers
    if p2 == 0:
        if p1 > layers or (p1 > 1 and _run_holds(terms, one, 0, p1, p1, m, limit) < layers):
            return 0
        return layers if _cut(terms, one, other, p1, p2, layers, m, limit, sizes) else 0
    q = 1.0 - 1.0 / m
    s = terms.seconds
    each, other_each = s[one, 0, 0] + s[one, 0, 1], s[other, 0, 0] + s[other, 0, 1]
    # All layers of a run take at least their own work: `most` layers of the first run, and the
    # layers that the second run holds.
    most = min(int(limit * (1.0 - q**p1) / each) + 1, layers - p2)
    least = max(layers - int(limit * (1.0 - q**p2) / other_each) - 1, p1)
    first, second = (
        _run_holds(terms, one, 0, p1, p1 + p2, m, limit),
        _run_holds(terms, other, p1, p2, p1 + p2, m, limit),
    )
    if first == 0 or second == 0:
        return 0
    most, least = min(most, first), max(least, layers - second)
    for n1 in range(most, least - 1, -1):
        if _cut(terms, one, other, p1, p2, n1, m, limit, sizes):
            return n1
    return 0


@inner
def _work_allows(
    each: float, other_each: float, p1: int, p2: int, m: int, layers: int, limit: float
) -> bool:
    """True if the work of m microbatches, with pipeline bubbles, fits into `limit` seconds.

    Pipeline bubbles are counted (see `most_by_work`).
    """
    q = 1.0 - 1.0 / m
    before, after = 1.0, 1.0
    for _ in range(p1):
        before *= q
    for _ in range(p2):
        after *= q
    second = (1.0 - after) / other_each
    return bool(
        max((1.0 - before) / each + before * second, second) * limit * (1.0 + 1e-9) >= layers
    )


@compiled
def _most_by_work(
    each: FloatArray,
    rows: IntArray,
    stages: IntArray,
    least: IntArray,
    high: IntArray,
    layers: int,
    limit: float,
) -> IntArray:
    """(shapes,) most microbatches of each shape that `_work_allows`, between `least` and `high`."""
    result = np.zeros(len(rows), dtype=np.int64)
    for s in range(len(rows)):
        t1, t2, p1, p2 = each[rows[s, 0]], each[rows[s, 1]], stages[s, 0], stages[s, 1]
        low, most, step = min(least[s], high[s]), high[s], 1
        # By doubled steps as long as they hold: the result by a little less time is near.
        while low < most:
            middle = min(low + step, most)
            if _work_allows(t1, t2, p1, p2, middle, layers, limit):
                low, step = middle, 2 * step
            else:
                most, step = middle - 1, max((middle - low) // 2, 1)
        result[s] = low
    return result


@compiled
def _most_above(
    terms: Terms,
    each: FloatArray,
    rows: IntArray,
    stages: IntArray,
    upper: IntArray,
    which: IntArray,
    least: IntArray,
    limit: float,
) -> IntArray:
    """(which,) most microbatches of shapes by `limit` seconds, from `least` up to `upper`.

    `least` where a shape completes no more than that.
    """
    result = np.zeros(len(which), dtype=np.int64)
    sizes = np.zeros(64, dtype=np.int64)
    for place in range(len(which)):
        shape = which[place]
        one, other, p1, p2 = rows[shape, 0], rows[shape, 1], stages[shape, 0], stages[shape, 1]
        low, high = least[place], upper[shape]
        # Most shapes do no more than `least`: one test shows it, of the work alone or of all
        # inequalities.
        allows = low < high and _work_allows(
            each[one], each[other], p1, p2, low + 1, terms.layers, limit
        )
        if allows and _possible(terms, one, other, p1, p2, low + 1, limit, sizes):
            low += 1
            step = 1
            while low < high:
                # By doubled steps as long as they hold, as most is often near.
                middle = min(low + step, high)
                if _work_allows(
                    each[one], each[other], p1, p2, middle, terms.layers, limit
                ) and _possible(terms, one, other, p1, p2, middle, limit, sizes):
                    low, step = middle, 2 * step
                else:
                    high, step = middle - 1, max((middle - low) // 2, 1)
        result[place] = low
    return result


def most_above(
    terms: Terms,
    shapes: Shapes,
    *,
    upper: IntArray,
    shape_indices: IntArray,
    lower: IntArray,
    limit: float,
) -> IntArray:
    """(which,) most microbatches of a replica by `limit` seconds, from `lower` up to `upper`.

    `lower` where a shape completes no more than that.
    """
    each = terms.seconds[:, 0].sum(axis=1)
    return np.asarray(
        _most_above(terms, each, shapes.rows, shapes.stages, upper, shape_indices, lower, limit)
    )


def most_by_work(
    terms: Terms, shapes: Shapes, *, batch: int, limit: float, least: IntArray | None = None
) -> IntArray:
    """(shapes,) upper bound on a replica's microbatches by `limit` seconds, from its work alone.

        T (1 - q^p1) / t1 + T q^p1 (1 - q^p2) / t2 >= layers,   q = 1 - 1 / m

    with t seconds of a layer: the rest of the limit at each stage holds its m-th part of the
        layers.
    Where a slow first run only delays the second, it holds no layer.

    Args:
        least: (shapes,) microbatches by an earlier limit, a lower bound.
    """
    lowest = np.zeros(len(shapes), dtype=np.int64) if least is None else least
    each = terms.seconds[:, 0].sum(axis=1)
    return np.asarray(
        _most_by_work(
            each, shapes.rows, shapes.stages, lowest, batch // shapes.mbs, terms.layers, limit
        )
    )


def best_cut(
    terms: Terms, shape: tuple[int, int, int, int], *, microbatches: int, limit: float
) -> tuple[float, tuple[int, ...]]:
    """Least seconds (to 1e-4) of a replica up to `limit` s, and its layers by stage; or (inf, ()).

    Args:
        shape: rows and stages of both runs.
        limit: seconds by which some cut completes them.
    """
    sizes = np.zeros(64, dtype=np.int64)
    stages = shape[2] + shape[3]
    if not _cut_once(terms, *shape, microbatches, limit, sizes):
        return float("inf"), ()
    low, high, found = 0.0, limit, sizes[:stages].tolist()
    while high - low > 1e-4 * limit:
        middle = (low + high) / 2
        if _cut_once(terms, *shape, microbatches, middle, sizes):
            high, found = middle, sizes[:stages].tolist()
        else:
            low = middle
    return high, tuple(found)


@compiled
def _cut_once(
    terms: Terms, one: int, other: int, p1: int, p2: int, m: int, limit: float, sizes: IntArray
) -> int:
    """Compiled entry of `_possible`: layers of the first run of a cut in time; 0 = no cut."""
    return _possible(terms, one, other, p1, p2, m, limit, sizes)
