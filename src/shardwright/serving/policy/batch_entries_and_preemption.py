"""Batch entries of the iteration that is planned, and admission and preemption of requests."""

from __future__ import annotations

from shardwright.kernel_compilation import inner
from shardwright.serving.policy.kv_cache_blocks import (
    adopt_cached,
    hold_blocks,
    release_blocks,
    skipped_tokens,
)
from shardwright.serving.policy.linked_lists_of_waiting_requests import pop_first, prepend
from shardwright.serving.policy.scheduler_state import (
    AHEAD,
    BEFORE,
    CACHED,
    COMPUTED,
    DECODES,
    DRAFT_TOKENS,
    ENTRY,
    GENERATED,
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
    SchedulerState,
)


@inner
def known_tokens(state: SchedulerState, request: int) -> int:
    """Tokens of a request's prompt and answer so far; planning ahead, also those under way.

    Where iterations are planned ahead, the tokens of iterations under way count.
    """
    under_way = state.requests[request, PLACED] if state.settings[AHEAD] else 0
    return int(state.requests[request, INPUTS] + state.requests[request, GENERATED] + under_way)


@inner
def answer_tokens(state: SchedulerState, request: int) -> int:
    """Number of tokens of a request's whole answer, given or not; 1 on a prefill worker."""
    return 1 if state.settings[ONLY_PROMPTS] else int(state.requests[request, OUTPUTS])


@inner
def answered_tokens(state: SchedulerState, request: int) -> int:
    """Number of answer tokens that a request has so far, with those of iterations under way."""
    return int(state.requests[request, GENERATED] + state.requests[request, PLACED])


@inner
def decodes(state: SchedulerState, request: int, new: int) -> bool:
    """True if a running request's next `new` tokens are one decode token with its draft tokens."""
    return bool(
        new > 0
        and new == 1 + state.settings[DRAFT_TOKENS]
        and state.requests[request, COMPUTED] >= state.requests[request, INPUTS]
    )


@inner
def tokens_to_compute(state: SchedulerState, request: int) -> int:
    """Tokens of a running request that the next iteration computes, with drafts; 0 = none now."""
    new = known_tokens(state, request) - state.requests[request, COMPUTED]
    answered = answered_tokens(state, request)
    if new <= 0 or answered >= answer_tokens(state, request):
        return 0
    return int(new + state.settings[DRAFT_TOKENS]) if new == 1 and answered > 0 else int(new)


@inner
def add_entry(state: SchedulerState, rank: int, request: int, tokens: int) -> None:
    """Add a request's next `tokens` tokens to the planned iteration; count them as computed."""
    slot = state.ranks[rank, SLOT]
    entry = state.batch_size[rank, slot]
    state.batch_size[rank, slot] += 1
    computed = state.requests[request, COMPUTED]
    known = known_tokens(state, request)
    answered = answered_tokens(state, request)
    sampled = computed + tokens >= known
    state.batch[rank, slot, entry, ENTRY] = request
    state.batch[rank, slot, entry, TOKENS] = tokens
    state.batch[rank, slot, entry, BEFORE] = computed
    state.batch[rank, slot, entry, SAMPLED] = 1 if sampled else 0
    from_prefill_worker = state.settings[ONLY_ANSWERS] > 0 and computed > 0
    state.batch[rank, slot, entry, DECODES] = (
        1 if (answered > 0 or from_prefill_worker) and known - computed == 1 else 0
    )
    state.batch[rank, slot, entry, LIFE] = state.requests[request, PREEMPTED]
    state.requests[request, COMPUTED] = min(computed + tokens, known)
    if sampled:
        state.requests[request, PLACED] += 1


@inner
def start_first(state: SchedulerState, rank: int, request: int) -> None:
    """Take the first request off the queue, mark it running and adopt its cached blocks."""
    pop_first(state, rank)
    cached = adopt_cached(state, rank, request)
    state.requests[request, COMPUTED] = skipped_tokens(state, request, cached)
    state.requests[request, STATUS] = RUNNING
    if state.requests[request, PREEMPTED] == 0:
        state.requests[request, CACHED] = cached


@inner
def append_running(state: SchedulerState, rank: int, request: int) -> None:
    """Append the request to the rank's running requests."""
    state.running[rank, state.ranks[rank, NUM_RUNNING]] = request
    state.requests[request, PLACE] = state.ranks[rank, NUM_RUNNING]
    state.requests[request, ORDER] = state.ranks[rank, NUM_STARTED]
    state.ranks[rank, NUM_STARTED] += 1
    state.ranks[rank, NUM_RUNNING] += 1


@inner
def admit_first(state: SchedulerState, rank: int, request: int, tokens: int, new: int) -> None:
    """Admit the first request of the queue: blocks for `tokens` tokens, `new` in the iteration."""
    start_first(state, rank, request)
    hold_blocks(state, rank, request, tokens)
    append_running(state, rank, request)
    add_entry(state, rank, request, new)


@inner
def drop_cache(state: SchedulerState, rank: int, request: int, wanted: int) -> None:
    """Free a running request's cache blocks, and set its computed tokens to 0 (preemption).

    The blocks of its first `wanted` tokens can be reclaimed until others use them.
    """
    release_blocks(state, rank, request, wanted)
    state.requests[request, COMPUTED] = 0
    state.requests[request, PLACED] = 0
    state.requests[request, PREEMPTED] += 1
    state.ranks[rank, PROMISED] -= state.requests[request, PROMISE]
    state.requests[request, PROMISE] = 0


@inner
def preempt_last(state: SchedulerState, rank: int) -> int:
    """Preempt the last running request and put it in front of the queue; return the request."""
    state.ranks[rank, NUM_RUNNING] -= 1
    request = state.running[rank, state.ranks[rank, NUM_RUNNING]]
    drop_cache(state, rank, request, state.requests[request, COMPUTED])
    prepend(state, rank, request)
    return int(request)


@inner
def hold_blocks_or_preempt(state: SchedulerState, rank: int, request: int, tokens: int) -> int:
    """Reserve a request's blocks for `tokens` tokens; return the number preempted, -1 = itself too.

    Returns the number of preempted requests; -1 = the request itself was preempted.
    """
    preempted = 0
    while not hold_blocks(state, rank, request, tokens):
        preempted += 1
        if preempt_last(state, rank) == request:
            return -1
    return preempted
