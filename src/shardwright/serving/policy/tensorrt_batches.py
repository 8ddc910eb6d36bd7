"""Batches in flight, as TensorRT-LLM's PyTorch executor fills them: a capacity scheduler, then a
micro-batch scheduler.

Capacity: with GUARANTEED_NO_EVICT (`Admission.WHOLE`) a request is admitted if the blocks of its
prompt and of its longest answer are free beside those that running requests may still need, so
nobody is ever evicted. With MAX_UTILIZATION a request needs the blocks of its next step; where
those who run need more than there are, those who were started last are paused, one after the other,
before the micro batch is chosen: they wait in front and compute their tokens anew.

Micro batch: a token (and the guesses) of each running request, then prompts in their order up to
the token budget: whole ones, or with chunks as much of each as the budget leaves, down to a
multiple of a block where it is cut.

Source: TensorRT-LLM, tensorrt_llm/_torch/pyexecutor/scheduler/scheduler.py
(`GuaranteedNoEvictPolicy`, `MaxUtilizationPolicy`, `PyMicroBatchScheduler`, `_chunk_fcfs`). Left
out: skipping of requests whose prefix another one is computing, two-step lookahead, equal progress
of chunks; after a pause nobody is admitted in the same step.
"""

from __future__ import annotations

from shardwright.compiled import inner
from shardwright.serving.policy.batch_entries import (
    known_tokens,
    lacking,
    preempt_last,
    run,
    schedule,
    start,
    wanted_tokens,
)
from shardwright.serving.policy.cache_blocks import (
    blocks_of,
    cached_tokens,
    done_tokens,
    hold,
    revived_blocks,
)
from shardwright.serving.policy.request_queue import first_waiting
from shardwright.serving.policy.scheduler_state import (
    ADMISSION,
    BLOCK_TOKENS,
    CHUNKED_PREFILL,
    COMPUTED,
    FREE,
    GUESSES,
    HELD,
    HELD_BACK,
    INPUTS,
    MAX_SEQUENCES,
    NONE,
    NUM_RUNNING,
    OF_WHOLE,
    PROMISE,
    PROMISED,
    TOKEN_BUDGET,
    State,
)


@inner
def whole_blocks(state: State, request: int) -> int:
    """Blocks of a request's prompt and longest answer, guesses behind it among them."""
    answer = wanted_tokens(state, request)
    return blocks_of(
        state,
        state.requests[request, INPUTS] + answer + (state.settings[GUESSES] if answer > 1 else 0),
    )


@inner
def promise(state: State, rank: int, request: int) -> None:
    """What the request may still need is kept for it."""
    if state.settings[ADMISSION] != OF_WHOLE:
        return
    still = max(0, whole_blocks(state, request) - state.requests[request, HELD])
    state.ranks[rank, PROMISED] += still - state.requests[request, PROMISE]
    state.requests[request, PROMISE] = still


@inner
def cut(state: State, new: int, budget: int) -> int:
    """Tokens of a prompt's next part: all `new` ones, or as many whole blocks as the budget has; 0
    = it has to wait.
    """
    if new <= budget:
        return new
    if not state.settings[CHUNKED_PREFILL]:
        # One that is computed anew with its answer is longer than its prompt, which fits; it runs
        # alone.
        return new if budget == state.settings[TOKEN_BUDGET] else 0
    return int(budget // state.settings[BLOCK_TOKENS] * state.settings[BLOCK_TOKENS])


@inner
def next_part(state: State, request: int, prompts: bool, budget: int) -> int:
    """Tokens of a running request's part where those that decode have their turn, or `prompts` that
    go on; 0 = it is not its turn, NONE = the budget does not hold it, and nobody's behind it.
    """
    new = lacking(state, request)
    decodes = (
        new > 0
        and new == 1 + state.settings[GUESSES]
        and state.requests[request, COMPUTED] >= state.requests[request, INPUTS]
    )
    if new == 0 or decodes == prompts:
        return 0
    if prompts:
        new = cut(state, new, budget)
        return new if new > 0 else NONE
    return new if new <= budget else NONE


@inner
def next_blocks(state: State, rank: int) -> int:
    """Blocks that the running requests' parts need beyond those that they hold."""
    budget, need = state.settings[TOKEN_BUDGET], 0
    for turn in range(2):
        for at in range(state.ranks[rank, NUM_RUNNING]):
            request = state.running[rank, at]
            new = next_part(state, request, turn == 1, budget)
            if new == NONE:
                return need
            if new > 0:
                need += max(
                    0,
                    blocks_of(state, state.requests[request, COMPUTED] + new)
                    - state.requests[request, HELD],
                )
                budget -= new
    return need


@inner
def run_in_flight(state: State, rank: int) -> int:
    """The running requests' part: those that decode, then prompts that go on. What is left of the
    budget, -1 where somebody was paused.
    """
    paused = False
    while next_blocks(state, rank) > state.ranks[rank, FREE]:
        preempt_last(state, rank)
        paused = True
    budget = state.settings[TOKEN_BUDGET]
    for turn in range(1 if state.ranks[rank, HELD_BACK] else 2):
        for at in range(state.ranks[rank, NUM_RUNNING]):
            request = state.running[rank, at]
            new = next_part(state, request, turn == 1, budget)
            if new == NONE:
                return -1 if paused else 0
            if new > 0:
                hold(state, rank, request, state.requests[request, COMPUTED] + new)
                schedule(state, rank, request, new)
                promise(state, rank, request)
                budget -= new
    return -1 if paused else int(budget)


@inner
def admit_in_flight(state: State, rank: int, budget: int) -> int:
    """Waiting requests join the next iteration while its budget lasts; how many."""
    admitted = 0
    while budget > 0 and state.ranks[rank, NUM_RUNNING] < state.settings[MAX_SEQUENCES]:
        request = first_waiting(state, rank)
        if request == NONE:
            break
        cached = cached_tokens(state, rank, request)
        done = done_tokens(state, request, cached)
        new = cut(state, known_tokens(state, request) - done, budget)
        if new == 0:
            break
        revived = revived_blocks(state, rank, request)
        if state.settings[ADMISSION] == OF_WHOLE:
            need = whole_blocks(state, request) - blocks_of(state, cached) + revived
            spare = state.ranks[rank, FREE] - state.ranks[rank, PROMISED]
        else:
            need = blocks_of(state, done + new) - blocks_of(state, cached) + revived
            spare = state.ranks[rank, FREE]
        if need > spare:
            break
        start(state, rank, request)
        hold(state, rank, request, done + new)
        run(state, rank, request)
        schedule(state, rank, request, new)
        promise(state, rank, request)
        budget -= new
        admitted += 1
    return admitted


@inner
def plan_in_flight(state: State, rank: int) -> None:
    """Fill the next iteration of a rank."""
    budget = run_in_flight(state, rank)
    if budget > 0 and not state.ranks[rank, HELD_BACK]:
        admit_in_flight(state, rank, budget)
