"""Queues of waiting requests: linked lists with constant-time appends at both ends."""

from __future__ import annotations

from shardwright.kernel_compilation import inner
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
    SchedulerState,
)


@inner
def refresh_visible(state: SchedulerState, rank: int) -> None:
    """If a poll of the queue is due, make all waiting requests visible to the scheduler.

    It is due every `POLLING` iterations, and after an iteration of prompts or of no request.
    """
    if (
        state.ranks[rank, SINCE_LOOK] >= state.settings[POLLING]
        or state.ranks[rank, NUM_RUNNING] == 0
    ):
        state.ranks[rank, VISIBLE] = state.ranks[rank, NUM_WAITING]
        state.ranks[rank, SINCE_LOOK] = 0


@inner
def first_waiting(state: SchedulerState, rank: int) -> int:
    """The next visible request of the rank's queue; NONE = no such request."""
    return int(state.ranks[rank, WAITING_HEAD]) if state.ranks[rank, VISIBLE] > 0 else NONE


@inner
def append(state: SchedulerState, rank: int, request: int) -> None:
    """Add the request at the back of the rank's queue."""
    state.requests[request, NEXT] = NONE
    state.requests[request, STATUS] = WAITING
    tail = state.ranks[rank, WAITING_TAIL]
    if tail == NONE:
        state.ranks[rank, WAITING_HEAD] = request
    else:
        state.requests[tail, NEXT] = request
    state.ranks[rank, WAITING_TAIL] = request
    state.ranks[rank, NUM_WAITING] += 1


@inner
def prepend(state: SchedulerState, rank: int, request: int) -> None:
    """Put the request at the front of the rank's queue."""
    head = state.ranks[rank, WAITING_HEAD]
    state.requests[request, NEXT] = head
    state.requests[request, STATUS] = WAITING
    if head == NONE:
        state.ranks[rank, WAITING_TAIL] = request
    state.ranks[rank, WAITING_HEAD] = request
    state.ranks[rank, NUM_WAITING] += 1
    state.ranks[rank, VISIBLE] += 1


@inner
def pop_first(state: SchedulerState, rank: int) -> None:
    """Remove the first request from the rank's queue."""
    head = state.ranks[rank, WAITING_HEAD]
    new_head = state.requests[head, NEXT]
    state.ranks[rank, WAITING_HEAD] = new_head
    if new_head == NONE:
        state.ranks[rank, WAITING_TAIL] = NONE
    state.requests[head, NEXT] = NONE
    state.ranks[rank, NUM_WAITING] -= 1
    state.ranks[rank, VISIBLE] -= 1
