"""Entries of the iteration that is being planned: what every policy fills it with."""

from __future__ import annotations

from shardwright.compiled import inner
from shardwright.serving.policy.cache_blocks import adopt, done_tokens, hold, release
from shardwright.serving.policy.request_queue import pop_first, prepend
from shardwright.serving.policy.scheduler_state import (
    AHEAD,
    BEFORE,
    CACHED,
    COMPUTED,
    DECODES,
    ENTRY,
    GENERATED,
    GUESSES,
    INPUTS,
    LIFE,
    NUM_RUNNING,
    NUM_STARTED,
    ONLY_ANSWERS,
    ONLY_PROMPTS,
    ORDER,
    OUTPUTS,
    PLACE,
    PLACED,
    PREEMPTED,
    PROMISE,
    PROMISED,
    RUNNING,
    SAMPLED,
    SLOT,
    STATUS,
    TOKENS,
    State,
)


@inner
def known_tokens(state: State, request: int) -> int:
    """Tokens of its prompt and its answer; where iterations are planned ahead, those that are under
    way count.
    """
    placed = state.requests[request, PLACED] if state.settings[AHEAD] else 0
    return int(state.requests[request, INPUTS] + state.requests[request, GENERATED] + placed)


@inner
def wanted_tokens(state: State, request: int) -> int:
    """Tokens of its answer; a worker that only prefills gives one."""
    return 1 if state.settings[ONLY_PROMPTS] else int(state.requests[request, OUTPUTS])


@inner
def lacking(state: State, request: int) -> int:
    """Tokens of a running request that are to be computed, the guesses behind its answer among
    them. 0 = its last is under way.
    """
    new = known_tokens(state, request) - state.requests[request, COMPUTED]
    answered = state.requests[request, GENERATED] + state.requests[request, PLACED]
    if new <= 0 or answered >= wanted_tokens(state, request):
        return 0
    return int(new + state.settings[GUESSES]) if new == 1 and answered > 0 else int(new)


@inner
def schedule(state: State, rank: int, request: int, tokens: int) -> None:
    """An entry of the next iteration: `tokens` of the request behind those that are computed, which
    they then are too.
    """
    slot = state.ranks[rank, SLOT]
    entry = state.batch_size[rank, slot]
    state.batch_size[rank, slot] += 1
    before = state.requests[request, COMPUTED]
    known = known_tokens(state, request)
    answered = state.requests[request, GENERATED] + state.requests[request, PLACED]
    sampled = before + tokens >= known
    state.batch[rank, slot, entry, ENTRY] = request
    state.batch[rank, slot, entry, TOKENS] = tokens
    state.batch[rank, slot, entry, BEFORE] = before
    state.batch[rank, slot, entry, SAMPLED] = 1 if sampled else 0
    came = state.settings[ONLY_ANSWERS] > 0 and before > 0
    state.batch[rank, slot, entry, DECODES] = (
        1 if (answered > 0 or came) and known - before == 1 else 0
    )
    state.batch[rank, slot, entry, LIFE] = state.requests[request, PREEMPTED]
    state.requests[request, COMPUTED] = min(before + tokens, known)
    if sampled:
        state.requests[request, PLACED] += 1


@inner
def start(state: State, rank: int, request: int) -> None:
    """The first one in the queue runs, with what of it is cached."""
    pop_first(state, rank)
    cached = adopt(state, rank, request)
    state.requests[request, COMPUTED] = done_tokens(state, request, cached)
    state.requests[request, STATUS] = RUNNING
    if state.requests[request, PREEMPTED] == 0:
        state.requests[request, CACHED] = cached


@inner
def run(state: State, rank: int, request: int) -> None:
    """It is the last of the running ones."""
    state.running[rank, state.ranks[rank, NUM_RUNNING]] = request
    state.requests[request, PLACE] = state.ranks[rank, NUM_RUNNING]
    state.requests[request, ORDER] = state.ranks[rank, NUM_STARTED]
    state.ranks[rank, NUM_STARTED] += 1
    state.ranks[rank, NUM_RUNNING] += 1


@inner
def lose(state: State, rank: int, request: int, wanted: int) -> None:
    """A running request loses its blocks, and a token that is under way; it may come back for those
    of its first `wanted` tokens.
    """
    release(state, rank, request, wanted)
    state.requests[request, COMPUTED] = 0
    state.requests[request, PLACED] = 0
    state.requests[request, PREEMPTED] += 1
    state.ranks[rank, PROMISED] -= state.requests[request, PROMISE]
    state.requests[request, PROMISE] = 0


@inner
def preempt_last(state: State, rank: int) -> int:
    """The running request that came last waits in front of all others; which one it is."""
    state.ranks[rank, NUM_RUNNING] -= 1
    last = state.running[rank, state.ranks[rank, NUM_RUNNING]]
    lose(state, rank, last, state.requests[last, COMPUTED])
    prepend(state, rank, last)
    return int(last)


@inner
def hold_or_preempt(state: State, rank: int, request: int, tokens: int) -> int:
    """Blocks for `tokens` tokens of a running request, at the cost of those that came last. How
    many were preempted; -1 = it was itself.
    """
    preempted = 0
    while not hold(state, rank, request, tokens):
        preempted += 1
        if preempt_last(state, rank) == request:
            return -1
    return preempted
