"""SGLang's admission with known answer lengths: free tokens must last until each request ends.

`add_one_req_ignore_eos`. Requests are in the order of their ends: until the i-th ends, all from the
i-th on take a token an iteration; each request that ended before gave back the tokens that it held
when it was counted.
"""

from __future__ import annotations

from shardwright.kernel_compilation import inner
from shardwright.serving.policy.batch_entries_and_preemption import answer_tokens, answered_tokens
from shardwright.serving.policy.scheduler_state import (
    INPUTS,
    KEPT,
    NUM_RUNNING,
    SchedulerState,
)

_LEFT, _HELD = range(2)


@inner
def sort_ends(state: SchedulerState, rank: int) -> None:
    """Fill `state.ends` with (answer tokens left, tokens held) of each running request, sorted.

    The request that ends first comes first; their number is in the last row.
    """
    ends = state.ends
    count = 0
    for at in range(state.ranks[rank, NUM_RUNNING]):
        count = insert_end(state, rank, state.running[rank, at], count)
    ends[rank, ends.shape[1] - 1, _LEFT] = count


@inner
def insert_end(state: SchedulerState, rank: int, request: int, count: int) -> int:
    """Insert a request that has not ended into `count` sorted ends; return the new count."""
    ends = state.ends
    answered = answered_tokens(state, request)
    tokens_left = answer_tokens(state, request) - answered
    if tokens_left <= 0:
        return count
    index = count
    while index > 0 and ends[rank, index - 1, _LEFT] > tokens_left:
        ends[rank, index, _LEFT] = ends[rank, index - 1, _LEFT]
        ends[rank, index, _HELD] = ends[rank, index - 1, _HELD]
        index -= 1
    ends[rank, index, _LEFT] = tokens_left
    ends[rank, index, _HELD] = state.requests[request, INPUTS] + answered
    return count + 1


@inner
def ends_allow(state: SchedulerState, rank: int, request: int, free: float) -> bool:
    """Count a request as admitted; True if `free` tokens, less a reserve, last until all end."""
    ends = state.ends
    count_row = ends.shape[1] - 1
    count = insert_end(state, rank, request, ends[rank, count_row, _LEFT])
    ends[rank, count_row, _LEFT] = count
    returned = 0.0
    for index in range(count):
        still_running = count - index
        if (
            free + returned - float(ends[rank, index, _LEFT] * still_running)
            <= state.shares[KEPT] * still_running
        ):
            return False
        returned += ends[rank, index, _HELD]
    return True
