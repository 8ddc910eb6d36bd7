"""Admission where the ends of all answers are known: at each of them the free tokens have to last
(SGLang, `add_one_req_ignore_eos`).

Requests in the order of their ends: until the i-th ends, all from the i-th on take a token an
iteration, and what ended before gave back its prompt and what it had generated when it was counted.
"""

from __future__ import annotations

from shardwright.compiled import inner
from shardwright.serving.policy.batch_entries import wanted_tokens
from shardwright.serving.policy.scheduler_state import (
    GENERATED,
    INPUTS,
    KEPT,
    NUM_RUNNING,
    PLACED,
    State,
)

_LEFT, _HELD = range(2)


@inner
def sort_ends(state: State, rank: int) -> None:
    """Tokens that running requests lack, and those they hold, the next to end first; how many is in
    the last row.
    """
    ends = state.ends
    count = 0
    for at in range(state.ranks[rank, NUM_RUNNING]):
        count = insert_end(state, rank, state.running[rank, at], count)
    ends[rank, ends.shape[1] - 1, _LEFT] = count


@inner
def insert_end(state: State, rank: int, request: int, count: int) -> int:
    """One more of `count`; how many they are then."""
    ends = state.ends
    answered = state.requests[request, GENERATED] + state.requests[request, PLACED]
    left = wanted_tokens(state, request) - answered
    if left <= 0:
        return count
    at = count
    while at > 0 and ends[rank, at - 1, _LEFT] > left:
        ends[rank, at, _LEFT] = ends[rank, at - 1, _LEFT]
        ends[rank, at, _HELD] = ends[rank, at - 1, _HELD]
        at -= 1
    ends[rank, at, _LEFT] = left
    ends[rank, at, _HELD] = state.requests[request, INPUTS] + answered
    return count + 1


@inner
def ends_allow(state: State, rank: int, request: int, free: float) -> bool:
    """Whether `free` tokens, behind the request's prompt, last until every end; it is counted from
    now on.
    """
    ends = state.ends
    last = ends.shape[1] - 1
    count = insert_end(state, rank, request, ends[rank, last, _LEFT])
    ends[rank, last, _LEFT] = count
    given = 0.0
    for at in range(count):
        together = count - at
        if free + given - float(ends[rank, at, _LEFT] * together) <= state.shares[KEPT] * together:
            return False
        given += ends[rank, at, _HELD]
    return True
