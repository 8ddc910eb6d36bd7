"""The order problem: chunks on ranks, times of their actions, and each rank's memory limit."""

from __future__ import annotations

import numpy as np

from shardwright.arrays import IntArray
from shardwright.errors import InfeasibleError, UsageError
from shardwright.lazily_compiled_dataclass import dataclass

LARGEST = 2**40
"""Largest time or memory size: sums over a whole table stay far inside 64 bits."""

MULTIPLIER, MODULUS = 48271, 2**31 - 1
"""Park and Miller's random numbers: they fit into 64 bits, so they are the same with and without
numba."""


def whole_numbers(name: str, value: object) -> IntArray:
    """Convert a value to a read-only array of whole numbers from 0 to `LARGEST`.

    Raises:
        UsageError: the value has other numbers.
    """
    array = np.asarray(value)
    if array.dtype.kind not in "iu" or array.size == 0 or array.min() < 0 or array.max() > LARGEST:
        raise UsageError(f"{name} must be whole numbers from 0 to {LARGEST}")
    result: IntArray = array.astype(np.int64)
    result.flags.writeable = False
    return result


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OrderProblem:
    """Find the order of a pipeline's actions with the least makespan, under memory limits.

    The arrays are read-only integers. Chunks of a lane are a chain. F waits for F of the chunk
    before, I for I of the chunk after (F of the last chunk), W for I. A table whose backwards are
    whole (B) is the special case of W directly after I. Microbatches are alike, so orders may take
    those of a chunk from first to last without loss: exchanging two that overtake each other
    changes no time and no memory.

    Left out: the queueing of transfers (they are a delay), pairs that overlap, token slices,
    recomputation as an action.

    Args:
        owner: (lanes, chunks) rank of each chunk.
        microbatches: number of microbatches of each lane.
        forward, input, weight: (lanes, chunks) time of F, I and W, in any one unit.
        send_forward: (lanes, chunks) from the end of a chunk's F to where F of the next one may
            start; the last is not used.
        send_backward: (lanes, chunks) from the end of a chunk's I to where I of the one before may
            start; the first is not used.
        held: (lanes, chunks) memory from F's start to I's end, in any one unit.
        stash: (lanes, chunks) the part of `held` that stays until W's end.
        limit: (ranks,) memory of each rank, in the unit of `held`.

    Raises:
        UsageError: invalid shapes or numbers. InfeasibleError: a rank cannot keep one microbatch.
    """

    owner: IntArray
    microbatches: int
    forward: IntArray
    input: IntArray
    weight: IntArray
    send_forward: IntArray
    send_backward: IntArray
    held: IntArray
    stash: IntArray
    limit: IntArray

    def __post_init__(self) -> None:
        shape = np.shape(self.owner)
        for name in (
            "owner",
            "forward",
            "input",
            "weight",
            "send_forward",
            "send_backward",
            "held",
            "stash",
            "limit",
        ):
            array = whole_numbers(name, getattr(self, name))
            if name != "limit" and array.shape != shape:
                raise UsageError(
                    f"{name} must have a number for each lane and chunk, shape {shape}, not"
                    f" {array.shape}"
                )
            object.__setattr__(self, name, array)
        if len(shape) != 2 or self.limit.ndim != 1:
            raise UsageError("owner has shape (lanes, chunks) and limit (ranks,)")
        if self.microbatches < 1:
            raise UsageError(f"microbatches must be at least 1, not {self.microbatches}")
        if sorted(set(self.owner.reshape(-1).tolist())) != list(range(len(self.limit))):
            raise UsageError("owner must name every rank, and limit have a number for each")
        if (self.stash > self.held).any():
            raise UsageError(
                "stash is the part of held that stays after I: it must be at most held"
            )
        self._check_room()

    def _check_room(self) -> None:
        """Raise InfeasibleError unless every rank can keep one microbatch of each lane alone."""
        for lane, owner in enumerate(self.owner):
            need = np.bincount(owner, weights=self.held[lane], minlength=len(self.limit)).astype(
                np.int64
            )
            short = int(np.argmax(need - self.limit))
            if need[short] > self.limit[short]:
                raise InfeasibleError(
                    f"rank {short} may keep {self.limit[short]} and one microbatch of lane {lane}"
                    f" takes {need[short]}",
                    hint="keep less of each chunk (recompute, offload) or raise the limit",
                )

    @property
    def lanes(self) -> int:
        """Number of lanes."""
        return int(self.owner.shape[0])

    @property
    def chunks(self) -> int:
        """Number of chunks of each lane."""
        return int(self.owner.shape[1])

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return len(self.limit)

    def work(self) -> IntArray:
        """(ranks,) time of a rank's chunks over all microbatches, without sends, problem's unit."""
        whole = (self.forward + self.input + self.weight).reshape(-1) * self.microbatches
        result = np.zeros(self.ranks, np.int64)
        np.add.at(result, self.owner.reshape(-1), whole)
        return result


def problem_arrays(problem: OrderProblem) -> tuple[IntArray, IntArray, IntArray]:
    """The problem as arrays for compiled kernels: (table, limit, local).

    Returns:
        table: (10, lanes * chunks) rows owner, F, I, W, send forward, send backward, held, stash, 1
        if first of its lane, 1 if last. limit: (ranks,). local: (ranks, most + 1) chunks of each
        rank from the deepest of its lane to the shallowest, then -1.
    """
    first = np.zeros_like(problem.owner)
    last = np.zeros_like(problem.owner)
    first[:, 0], last[:, -1] = 1, 1
    columns = (
        problem.owner,
        problem.forward,
        problem.input,
        problem.weight,
        problem.send_forward,
        problem.send_backward,
        problem.held,
        problem.stash,
        first,
        last,
    )
    table = np.stack([column.reshape(-1) for column in columns])
    mine = [np.flatnonzero(table[0] == rank) for rank in range(problem.ranks)]
    local = np.full((problem.ranks, max(map(len, mine)) + 1), -1, np.int64)
    for rank, chunks in enumerate(mine):
        local[rank, : len(chunks)] = chunks[np.argsort(-(chunks % problem.chunks), kind="stable")]
    return table, problem.limit.copy(), local
