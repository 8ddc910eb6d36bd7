"""The instant at which every gradient of a grid is reduced, at least: the part of tier B0 that knows the order (`cost.bounds`)."""

from __future__ import annotations

import numpy as np

from shardwright.compiled import inner
from shardwright.cost.bound_arrays import SCHEDULE_1F1B, PatternRecords, Scratch
from shardwright.cost.round_trips import round_trips


@inner
def _rounds(sums: np.void, rank: int, ranks: int, microbatches: int, way: float, border: float, blocking: bool) -> float:
    """Seconds from the first forward of 1F1B with one chunk a rank to its last backward at least, by one rank.

    Between the way out to it and the way home: what it has left from its first backward on, or round trips one after another.

    Args:
        sums: of the rank. way: of one microbatch through all ranks and back, without borders. blocking: sends hold their rank up.
    """
    outside = sums["head"] + sums["tail"] + 2.0 * rank * border
    trip = way + 2.0 * (ranks - 1.0) * border - outside
    held_forward = border if blocking and rank < ranks - 1 else 0.0
    held_backward = border if blocking and rank > 0 else 0.0
    forward, backward = sums["work"] - sums["own"] + held_forward, sums["own"] + held_backward
    flying = min(ranks - rank, microbatches)
    left = trip + (microbatches - 1) * backward + (microbatches - flying) * forward
    seconds: float = outside + max(left, round_trips(trip, held_backward, forward + backward, microbatches, flying))
    return seconds


@inner
def ready_seconds(
    scratch: Scratch,
    patterns: PatternRecords,
    facts: np.void,
    p: int,
    r: int,
    m: float,
    border: float,
    first_reduce: float,
    first_gather: float,
    tied: float,
    schedule: int,
) -> float:
    """Lower bound of the instant at which every gradient is reduced; those of `tied` weights come last on both ends."""
    pipeline = patterns.pipelines[p]
    ranks = pipeline["ranks"]
    chunks = float(pipeline["chunks_per_rank"])
    late: float = first_gather + scratch.way[r] + 2.0 * (ranks * chunks - 1.0) * border
    for s in range(pipeline["looked"]):
        sums, rank, pieces = scratch.redos[r, s], patterns.ranks[p, s]["rank"], patterns.ranks[p, s]["pieces"]
        sends = 0.0
        if (facts["blocks_plain"] if chunks == 1.0 else facts["blocks_several"]) and ranks > 1:
            forward_sends = chunks - 1.0 if rank == ranks - 1 else chunks
            backward_sends = chunks - 1.0 if rank == 0 else chunks
            # The very last send of a rank may end after its last action.
            sends = max((m * (forward_sends + backward_sends) - 1.0) * border, 0.0)
        done = first_gather + sums["head"] + rank * border + m * sums["work"] + sends
        reduce = scratch.ranks[s]["reduce_own"]
        own = max(reduce / pieces, reduce - sums["own"] * (pieces - 1.0) / pieces)
        late = max(late, done + own + (tied if rank == 0 or rank == ranks - 1 else 0.0))
        back = sums["tail"] + rank * border
        around = sums["around"] - sums["head"] + (2.0 * (chunks - 1.0) * ranks + rank) * border - sends
        home = done + max(back, around)
        # Of the last rank both are its work.
        if schedule == SCHEDULE_1F1B and chunks == 1.0 and rank < ranks - 1:
            home = max(home, first_gather + _rounds(sums, rank, ranks, int(m), scratch.way[r], border, facts["blocks_plain"]))
        late = max(late, home + first_reduce / pipeline["first_pieces"] + tied)
    return late
