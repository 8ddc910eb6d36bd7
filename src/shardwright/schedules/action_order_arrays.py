"""Action tables: a pipeline schedule as arrays, one row for each rank."""

from __future__ import annotations

from shardwright.arrays import Int8Array, Int32Array
from shardwright.lazily_compiled_dataclass import dataclass

KINDS = ("F", "I", "W", "B", "R")
F, I, W, B, R = range(5)  # noqa: E741 - PyTorch's letters


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ActionTable:
    """The total order of every pipeline rank's actions, in CSR form (read-only arrays).

    Args:
        num_ranks: rows.
        num_chunks: chunks of each lane; the row that names a chunk is the rank that runs it
            (`chunk_ranks`).
        num_microbatches: of each lane.
        row_start: shape (num_ranks + 1,): rank r's actions are [row_start[r], row_start[r + 1]).
        kind: index into KINDS.
        chunk, microbatch: what is done, both counted inside their lane.
        lane, slice: zero in plain schedules.
        overlapped: 1 where an action runs overlapped with the next one of its row; None where none
            does.

    Two tables are equal only if they are the same object, so a table can be a key of a cache.
    """

    num_ranks: int
    num_chunks: int
    num_microbatches: int
    row_start: Int32Array
    kind: Int8Array
    chunk: Int32Array
    microbatch: Int32Array
    lane: Int8Array
    slice: Int32Array
    overlapped: Int8Array | None = None

    def __post_init__(self) -> None:
        for name in ("row_start", "kind", "chunk", "microbatch", "lane", "slice", "overlapped"):
            array = getattr(self, name)
            if array is not None:
                array = array.view()
                array.flags.writeable = False
                object.__setattr__(self, name, array)
