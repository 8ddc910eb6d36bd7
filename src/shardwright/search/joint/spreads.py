"""How several chunks a rank spread a chain's layers: the shapes that the joint space has, and a bound of each."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from shardwright.search.joint.labels import (
    BACKWARD,
    BORDER,
    ENDS_BACKWARD,
    ENDS_FORWARD,
    FORWARD,
    SCALES,
    UPDATE,
    Pipeline,
    Splits,
)

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


@lru_cache(maxsize=1024)
def spreads(layers: int, ranks: int, chunks: int) -> IntArray:
    """(shapes, ranks x chunks) layers of each chunk.

    The first and the last chunk have any number up to twice the mean, the others are equal up to one, the larger ones before the smaller
    ones or behind them. Or each rank spreads its layers equally, where the first and the last rank have any number and the others are equal
    (Megatron's first and last pipeline stage).
    """
    number = ranks * chunks
    most = 2 * -(-layers // number)
    found: dict[tuple[int, ...], None] = {}
    for first in range(most + 1):
        for last in range(most + 1):
            rest = layers - first - last
            if rest >= number - 2:
                size, more = divmod(rest, number - 2)
                large, small = (size + 1,) * more, (size,) * (number - 2 - more)
                found[(first, *large, *small, last)] = None
                found[(first, *small, *large, last)] = None
            rest = layers - chunks * (first + last)
            if first and last and ranks > 2 and rest > 0 and rest % (chunks * (ranks - 2)) == 0:
                found[(first, *(rest // (chunks * (ranks - 2)),) * (ranks - 2), last) * chunks] = None
    return np.array(list(found), dtype=np.int64).reshape(-1, number)


def spread_bounds(splits: Splits, pipe: Pipeline, shapes: IntArray) -> FloatArray:
    """(shapes,) a lower bound of the seconds of each shape without recompute: every rank's head, work and tail, then its update.

    Args:
        splits: of one split, with every position as it is (not the cheapest of all).
    """
    p, v, m = pipe.ranks, pipe.chunks, float(pipe.microbatches)
    stops = np.cumsum(shapes, axis=1)
    starts = stops - shapes
    sums, fixed = splits.sums[0], splits.fixed[0]
    ends = sums[ENDS_FORWARD] + sums[ENDS_BACKWARD]
    layers = sums[FORWARD] + sums[BACKWARD] - ends
    time = layers[stops] - layers[starts] + 2.0 * fixed[SCALES]
    # The embedding and the head are in the first and last chunk also when those have no layer.
    time[:, 0] += ends[1]
    time[:, -1] += ends[-1] - ends[-2]
    rank_time = time.reshape(len(shapes), v, p).sum(axis=1)
    rank_update = np.diff(sums[UPDATE]).min() * shapes.reshape(len(shapes), v, p).sum(axis=1)
    head = np.concatenate([np.zeros((len(shapes), 1)), np.cumsum(time[:, : p - 1], axis=1)], axis=1)
    rank = np.arange(p)
    sends = np.zeros(p)
    if pipe.blocking:
        passes = np.where(rank < p - 1, v, v - 1) + np.where(rank > 0, v, v - 1)
        sends = np.maximum(m * passes - 1.0, 0.0) * fixed[BORDER]
    result: FloatArray = (head + 2.0 * rank * fixed[BORDER] + m * rank_time + sends + rank_update).max(axis=1)
    return result
