"""Requests of a job, and the outcome of their simulation, as columns."""

from __future__ import annotations

from shardwright.arrays import FloatArray, IntArray
from shardwright.lazily_compiled_dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Requests:
    """n requests in the order of arrival: times, lengths and shared prefix blocks.

    Args:
        arrival_s: (n,) seconds; in a closed loop only those of the first `concurrency` count, later
            requests arrive as earlier ones end.
        inputs, outputs: (n,) tokens of prompt and answer, at least 1 each.
        concurrency: requests in flight of a closed loop; 0 = arrivals are as given.
        block_offsets, blocks: hashes of request i's prompt blocks of `block_tokens` tokens are
            blocks[block_offsets[i]:block_offsets[i + 1]]; equal hashes are the same text from the
            beginning. Empty = nothing is shared.
    """

    arrival_s: FloatArray
    inputs: IntArray
    outputs: IntArray
    concurrency: int
    block_offsets: IntArray
    blocks: IntArray
    block_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ServedRequests:
    """Outcome of n simulated requests: times of first and last tokens, preemptions and cache hits.

    Times are seconds on the run's clock, which begins with the first arrival.

    Args:
        arrival_s, first_s, last_s: (n,) times of the arrival, the first and the last token; nan =
            refused.
        worker: (n,) worker that answered (the decode worker).
        preempted: (n,) times that the request lost its cache.
        cached: (n,) tokens of the prompt found in a prefix cache.
        iterations, busy_s: iterations of all workers, and their seconds.
        peak_blocks: most of the cache's blocks in use at once, of any worker.
        by_part: seconds of the iterations by part: base, head, decode attention, prompt attention,
            host.
        waiting_s: mean time from arrival to admission.
        queue: mean number of waiting requests.
    """

    arrival_s: FloatArray
    first_s: FloatArray
    last_s: FloatArray
    worker: IntArray
    preempted: IntArray
    cached: IntArray
    iterations: int
    busy_s: float
    peak_blocks: int
    by_part: FloatArray
    waiting_s: float
    queue: float
