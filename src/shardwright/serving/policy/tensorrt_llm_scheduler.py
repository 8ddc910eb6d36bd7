"""TensorRT-LLM's scheduling policy: a capacity scheduler, then a micro-batch scheduler.

Capacity: with GUARANTEED_NO_EVICT (`Admission.WHOLE`) a request is admitted if the blocks of its
prompt and of its longest answer are free beside those that running requests may still need, so no
request is ever evicted. With MAX_UTILIZATION a request needs the blocks of its next step; where
running requests need more than there are, those that started last are paused, one after the other,
before the micro batch is chosen: they wait in front and compute their tokens anew.

Micro batch: a token (and the draft tokens) of each running request, then prompts in their order up
to the token budget: whole ones, or with chunks as much of each as the budget leaves, down to a
multiple of a block where it is cut.

Source: TensorRT-LLM, tensorrt_llm/_torch/pyexecutor/scheduler/scheduler.py
(`GuaranteedNoEvictPolicy`, `MaxUtilizationPolicy`, `PyMicroBatchScheduler`, `_chunk_fcfs`). Left
out: skipping of requests whose prefix another one is computing, two-step lookahead, equal progress
of chunks; after a pause no request is admitted in the same step.
"""

from __future__ import annotations

from shardwright.kernel_compilation import inner
from shardwright.serving.policy.batch_entries_and_preemption import (
    add_entry,
    admit_first,
    answer_tokens,
    decodes,
    known_tokens,
    preempt_last,
    tokens_to_compute,
)
from shardwright.serving.policy.kv_cache_blocks import (
    blocks_of,
    cached_tokens,
    hold_blocks,
    missing_blocks,
    revived_blocks,
    skipped_tokens,
)
from shardwright.serving.policy.linked_lists_of_waiting_requests import first_waiting
from shardwright.serving.policy.scheduler_state import (
    ADMISSION,
    BLOCK_TOKENS,
    CHUNKED_PREFILL,
    COMPUTED,
    DRAFT_TOKENS,
    FREE,
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
    SchedulerState,
)


@inner
def longest_blocks(state: SchedulerState, request: int) -> int:
    """Number of cache blocks of a request's prompt, longest answer and draft tokens."""
    answer = answer_tokens(state, request)
    return blocks_of(
        state,
        state.requests[request, INPUTS]
        + answer
        + (state.settings[DRAFT_TOKENS] if answer > 1 else 0),
    )


@inner
def reserve_promised(state: SchedulerState, rank: int, request: int) -> None:
    """With whole-request admission, promise a request the blocks that its longest answer lacks."""
    if state.settings[ADMISSION] != OF_WHOLE:
        return
    still_needed = max(0, longest_blocks(state, request) - state.requests[request, HELD])
    state.ranks[rank, PROMISED] += still_needed - state.requests[request, PROMISE]
    state.requests[request, PROMISE] = still_needed


@inner
def prompt_chunk(state: SchedulerState, new: int, budget: int) -> int:
    """Prompt tokens to run: `new` if in `budget`, else whole blocks; unchunked 0 (all if alone)."""
    if new <= budget:
        return new
    if not state.settings[CHUNKED_PREFILL]:
        # A prompt that is recomputed with its answer is longer than the prompt that fits; it runs
        # alone.
        return new if budget == state.settings[TOKEN_BUDGET] else 0
    return int(budget // state.settings[BLOCK_TOKENS] * state.settings[BLOCK_TOKENS])


@inner
def next_request_part(state: SchedulerState, request: int, prompts: bool, budget: int) -> int:
    """Tokens to run of a running request; 0 = not in this pass (`prompts`), NONE = budget is used.

    0 = not in this pass; NONE = the budget is used up for it and all later requests.

    Args:
        prompts: True in the pass of prompts.
    """
    new = tokens_to_compute(state, request)
    if new == 0 or decodes(state, request, new) == prompts:
        return 0
    if prompts:
        new = prompt_chunk(state, new, budget)
        return new if new > 0 else NONE
    return new if new <= budget else NONE


@inner
def next_blocks(state: SchedulerState, rank: int) -> int:
    """Cache blocks that the running requests need, beyond their own, for the next iteration."""
    budget, need = state.settings[TOKEN_BUDGET], 0
    for pass_number in range(2):
        for at in range(state.ranks[rank, NUM_RUNNING]):
            request = state.running[rank, at]
            new = next_request_part(state, request, pass_number == 1, budget)
            if new == NONE:
                return need
            if new > 0:
                need += missing_blocks(state, request, state.requests[request, COMPUTED] + new)
                budget -= new
    return need


@inner
def run_in_flight(state: SchedulerState, rank: int) -> int:
    """Add running requests to the batch, decodes first; return budget left, -1 after preemption."""
    paused = False
    while next_blocks(state, rank) > state.ranks[rank, FREE]:
        preempt_last(state, rank)
        paused = True
    budget = state.settings[TOKEN_BUDGET]
    for pass_number in range(1 if state.ranks[rank, HELD_BACK] else 2):
        for at in range(state.ranks[rank, NUM_RUNNING]):
            request = state.running[rank, at]
            new = next_request_part(state, request, pass_number == 1, budget)
            if new == NONE:
                return -1 if paused else 0
            if new > 0:
                hold_blocks(state, rank, request, state.requests[request, COMPUTED] + new)
                add_entry(state, rank, request, new)
                reserve_promised(state, rank, request)
                budget -= new
    return -1 if paused else int(budget)


@inner
def admit_in_flight(state: SchedulerState, rank: int, budget: int) -> int:
    """Admit waiting requests to the next iteration while its budget lasts; return their number."""
    admitted = 0
    while budget > 0 and state.ranks[rank, NUM_RUNNING] < state.settings[MAX_SEQUENCES]:
        request = first_waiting(state, rank)
        if request == NONE:
            break
        cached = cached_tokens(state, rank, request)
        skipped = skipped_tokens(state, request, cached)
        new = prompt_chunk(state, known_tokens(state, request) - skipped, budget)
        if new == 0:
            break
        revived = revived_blocks(state, rank, request)
        if state.settings[ADMISSION] == OF_WHOLE:
            need = longest_blocks(state, request) - blocks_of(state, cached) + revived
            spare = state.ranks[rank, FREE] - state.ranks[rank, PROMISED]
        else:
            need = blocks_of(state, skipped + new) - blocks_of(state, cached) + revived
            spare = state.ranks[rank, FREE]
        if need > spare:
            break
        admit_first(state, rank, request, skipped + new, new)
        reserve_promised(state, rank, request)
        budget -= new
        admitted += 1
    return admitted


@inner
def plan_in_flight(state: SchedulerState, rank: int) -> None:
    """Fill a rank's next iteration in TensorRT-LLM's order: decodes, started prompts, waiting."""
    budget = run_in_flight(state, rank)
    if budget > 0 and not state.ranks[rank, HELD_BACK]:
        admit_in_flight(state, rank, budget)
