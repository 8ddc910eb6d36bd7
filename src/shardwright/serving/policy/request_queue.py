"""Queues of requests: lists that are linked through the requests, so that both ends take and give
in one step.
"""

from __future__ import annotations

from shardwright.compiled import inner
from shardwright.serving.policy.scheduler_state import (
    NEXT,
    NONE,
    NUM_RUNNING,
    NUM_WAITING,
    POLLING,
    SINCE_LOOK,
    STATUS,
    VISIBLE,
    WAITING,
    WAITING_HEAD,
    WAITING_TAIL,
    State,
)


@inner
def look(state: State, rank: int) -> None:
    """All that wait are seen, if it is time to look: every so many iterations, and whenever prompts
    or nothing ran.
    """
    if (
        state.ranks[rank, SINCE_LOOK] >= state.settings[POLLING]
        or state.ranks[rank, NUM_RUNNING] == 0
    ):
        state.ranks[rank, VISIBLE] = state.ranks[rank, NUM_WAITING]
        state.ranks[rank, SINCE_LOOK] = 0


@inner
def first_waiting(state: State, rank: int) -> int:
    """The next one in the queue; NONE = nobody has been seen."""
    return int(state.ranks[rank, WAITING_HEAD]) if state.ranks[rank, VISIBLE] > 0 else NONE


@inner
def append(state: State, rank: int, request: int) -> None:
    """It waits behind all others."""
    state.requests[request, NEXT] = NONE
    state.requests[request, STATUS] = WAITING
    last = state.ranks[rank, WAITING_TAIL]
    if last == NONE:
        state.ranks[rank, WAITING_HEAD] = request
    else:
        state.requests[last, NEXT] = request
    state.ranks[rank, WAITING_TAIL] = request
    state.ranks[rank, NUM_WAITING] += 1


@inner
def prepend(state: State, rank: int, request: int) -> None:
    """It is the next one."""
    first = state.ranks[rank, WAITING_HEAD]
    state.requests[request, NEXT] = first
    state.requests[request, STATUS] = WAITING
    if first == NONE:
        state.ranks[rank, WAITING_TAIL] = request
    state.ranks[rank, WAITING_HEAD] = request
    state.ranks[rank, NUM_WAITING] += 1
    state.ranks[rank, VISIBLE] += 1


@inner
def pop_first(state: State, rank: int) -> None:
    """The first one leaves the queue."""
    first = state.ranks[rank, WAITING_HEAD]
    after = state.requests[first, NEXT]
    state.ranks[rank, WAITING_HEAD] = after
    if after == NONE:
        state.ranks[rank, WAITING_TAIL] = NONE
    state.requests[first, NEXT] = NONE
    state.ranks[rank, NUM_WAITING] -= 1
    state.ranks[rank, VISIBLE] -= 1
