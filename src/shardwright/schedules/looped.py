"""What GPipe, 1F1B and interleaved 1F1B share: forwards to warm up, then one forward and one backward in turn, then backwards.

They differ in the number of warm-up forwards and in nothing else. Chunk c of a looped placement runs on rank c % num_ranks. A rank
takes its chunks round by round: in each round a group of microbatches goes through the first chunk, then through the second, and so on;
backwards take the chunks from the last to the first.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from shardwright.errors import StrategyError
from shardwright.schedules.table import ActionTable, B, F

Int64 = npt.NDArray[np.int64]

LIMIT = 2**24
"""Most actions of a table: beyond that a wrong number is likelier than a pipeline."""


def check_counts(schedule: str, **counts: int) -> None:
    """Raise StrategyError unless all counts are at least 1 and the table stays within LIMIT."""
    total = 2
    for name, count in counts.items():
        if count < 1:
            raise StrategyError(f"{schedule} needs {name} of at least 1, not {count}", rule="order.count")
        total *= count
    if total > LIMIT:
        raise StrategyError(f"{schedule} would have {total} actions; the limit is {LIMIT}", rule="order.count")


def check_one_chunk(schedule: str, chunks_per_rank: int) -> None:
    """Raise StrategyError if a schedule of one chunk a rank is asked for more."""
    if chunks_per_rank != 1:
        raise StrategyError(
            f"{schedule} runs one chunk on each rank, not {chunks_per_rank}",
            hint="use interleaved-1f1b for several chunks a rank",
            rule="order.chunks",
        )


def check_no_parameters(schedule: str, parameters: dict[str, int]) -> None:
    """Raise StrategyError for parameters of a schedule that has none."""
    if parameters:
        raise StrategyError(f"{schedule} has no parameter {', '.join(sorted(parameters))}", rule="order.parameter")


def looped_table(*, num_ranks: int, chunks_per_rank: int, num_microbatches: int, group: int, warm_up: Int64) -> ActionTable:
    """The table with `warm_up` forwards before each rank's first backward.

    The k-th forward of a rank is, with g microbatches a group, v chunks and j = k mod (g v): local chunk j // g, microbatch
    (k // (g v)) g + j mod g; the k-th backward the same with local chunk v - 1 - j // g. Forward k stands at place k of its row while
    warming up, then at w + 2 (k - w); backward k at w + 2 k + 1, then at m v + k.

    Args:
        group: microbatches a round, divides num_microbatches. warm_up: forwards by rank, at most m v, shape (num_ranks,).
    """
    per_rank = num_microbatches * chunks_per_rank
    step = np.arange(per_rank)
    within = step % (group * chunks_per_rank)
    microbatch = (step // (group * chunks_per_rank) * group + within % group).astype(np.int32)
    local = within // group
    rank = np.arange(num_ranks)[:, None]
    warm = warm_up[:, None]
    forward_place = np.where(step < warm, step, 2 * step - warm)
    backward_place = np.where(step < per_rank - warm, warm + 2 * step + 1, per_rank + step)

    shape = (num_ranks, 2 * per_rank)
    kind, chunk, order = np.empty(shape, np.int8), np.empty(shape, np.int32), np.empty(shape, np.int32)
    kind[rank, forward_place], kind[rank, backward_place] = F, B
    chunk[rank, forward_place] = local * num_ranks + rank
    chunk[rank, backward_place] = (chunks_per_rank - 1 - local) * num_ranks + rank
    order[rank, forward_place] = microbatch
    order[rank, backward_place] = microbatch
    return ActionTable(
        num_ranks=num_ranks,
        num_chunks=num_ranks * chunks_per_rank,
        num_microbatches=num_microbatches,
        row_start=np.arange(num_ranks + 1, dtype=np.int32) * np.int32(2 * per_rank),
        kind=kind.reshape(-1),
        chunk=chunk.reshape(-1),
        microbatch=order.reshape(-1),
        lane=np.zeros(kind.size, np.int8),
        slice=np.zeros(kind.size, np.int32),
    )
