"""The problem of an order search: chunks on ranks, the times of their actions, and the memory of
each rank.
"""

from __future__ import annotations

import numpy as np

from shardwright.arrays import IntArray
from shardwright.errors import InfeasibleError, UsageError
from shardwright.lazy_dataclass import dataclass

LARGEST = 2**40
"""Most units of a time or of memory: sums over a whole table stay far inside 64 bits."""

MULTIPLIER, MODULUS = 48271, 2**31 - 1
"""Park and Miller's random numbers: they fit into 64 bits, so they are the same with and without
numba."""


def whole_numbers(name: str, given: object) -> IntArray:
    """`given` as a read-only array of whole numbers from 0 to `LARGEST`.

    Raises:
        UsageError: it is not.
    """
    array = np.asarray(given)
    if array.dtype.kind not in "iu" or array.size == 0 or array.min() < 0 or array.max() > LARGEST:
        raise UsageError(f"{name} must be whole numbers from 0 to {LARGEST}")
    result: IntArray = array.astype(np.int64)
    result.flags.writeable = False
    return result


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OrderProblem:
    """An order problem: find the order of a pipeline's actions with the least makespan (read-only
    integer arrays).

    Chunks of a lane are a chain. F waits for F of the chunk before, I for I of the chunk after (F
    of the last chunk), W for I. Forwards and backwards are apart everywhere; a table whose
    backwards are whole (B) is the special case of W right after I. Microbatches are alike, so
    orders may take those of a chunk from first to last without loss: exchanging two that overtake
    each other changes no time and no level.

    Left out: transfers are a delay (they do not queue behind one another), pairs that overlap,
    token slices, recompute as an action.

    Args:
        owner: (lanes, chunks) rank of each chunk.
        microbatches: of each lane.
        forward, input, weight: (lanes, chunks) time of F, I and W, in any one unit.
        send_forward: (lanes, chunks) from the end of a chunk's F to where F of the next one may
            start; the last is not used.
        send_backward: (lanes, chunks) from the end of a chunk's I to where I of the one before may
            start; the first is not used.
        held: (lanes, chunks) kept from F's start to I's end.
        stash: (lanes, chunks) of that, what stays until W's end; at most `held`.
        limit: (ranks,) most that a rank may keep, in the unit of `held`.

    Raises:
        UsageError: shapes or numbers make no sense. InfeasibleError: a rank cannot keep even one
        microbatch.
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
            raise UsageError("stash is what stays of held: it cannot be more")
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
        """(ranks,) time that each rank computes."""
        whole = (self.forward + self.input + self.weight).reshape(-1) * self.microbatches
        result = np.zeros(self.ranks, np.int64)
        np.add.at(result, self.owner.reshape(-1), whole)
        return result


def flat(problem: OrderProblem) -> tuple[IntArray, IntArray, IntArray]:
    """The problem as arrays for compiled kernels.

    Returns:
        table: (10, lanes * chunks) rows owner, F, I, W, send forward, send backward, held, stash, 1
        if first of its lane, 1 if last. limit: (ranks,). local: (ranks, most + 1) chunks of each
        rank from the deepest of its lane to the shallowest, -1 where there are no more.
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
