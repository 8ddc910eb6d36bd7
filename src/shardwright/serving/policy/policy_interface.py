"""Interface of all scheduling policies: plan a rank's next iteration, and give its tokens.

`arrive` adds a request, `plan_iteration` fills ``state.batch[rank, slot]``, and when that iteration
has run, `give_tokens` gives a token (or more) to the request of each entry, and `remove_done`
removes finished requests from the running ones.
"""

from __future__ import annotations

from shardwright.arrays import BoolArray
from shardwright.kernel_compilation import allocation_free, inner
from shardwright.serving.policy.batch_entries_and_preemption import answer_tokens
from shardwright.serving.policy.kv_cache_blocks import blocks_of, publish_blocks, release_blocks
from shardwright.serving.policy.linked_lists_of_waiting_requests import append, refresh_visible
from shardwright.serving.policy.scheduler_state import (
    ADMISSION,
    BATCHING,
    BEFORE,
    BLOCK_TOKENS,
    BLOCKS,
    CHUNKED_PREFILL,
    CLIP,
    COMPUTED,
    DECODES,
    DONE,
    DRAFT_TOKENS,
    ENTRY,
    GENERATED,
    INPUTS,
    KNOWS_ENDS,
    LEFT,
    LIFE,
    LOOKAHEAD,
    MIXED,
    NUM_RUNNING,
    OF_ESTIMATE,
    OF_WHOLE,
    ONLY_ANSWERS,
    PLACED,
    POLLING,
    PREEMPTED,
    PREFILL_FIRST,
    PROMISE,
    PROMISED,
    RUNNING,
    SAMPLED,
    SINCE_LOOK,
    SLOT,
    STATUS,
    TOKEN_BUDGET,
    TOKENS,
    SchedulerState,
)
from shardwright.serving.policy.sglang_scheduler import plan_prefill_first
from shardwright.serving.policy.tensorrt_llm_scheduler import longest_blocks, plan_in_flight
from shardwright.serving.policy.vllm_scheduler import plan_mixed


@allocation_free
def arrive(state: SchedulerState, rank: int, request: int) -> None:
    """Append an arriving request to the rank's queue."""
    append(state, rank, request)


@allocation_free
def never_fits(state: SchedulerState, request: int) -> bool:
    """True if a request alone exceeds a rank's cache blocks, or its prompt the token budget."""
    inputs, answer = state.requests[request, INPUTS], answer_tokens(state, request)
    extra_tokens = state.settings[LOOKAHEAD] + state.settings[DRAFT_TOKENS] if answer > 1 else 0
    single_chunk = not state.settings[CHUNKED_PREFILL] and state.settings[BATCHING] != PREFILL_FIRST
    # A prompt whose cache comes from a prefill worker takes none of the budget.
    if single_chunk and not state.settings[ONLY_ANSWERS] and inputs > state.settings[TOKEN_BUDGET]:
        return True
    if state.settings[ADMISSION] == OF_WHOLE:
        return bool(longest_blocks(state, request) > state.settings[BLOCKS])
    if state.settings[ADMISSION] == OF_ESTIMATE and not state.settings[KNOWS_ENDS]:
        spare = (state.settings[BLOCKS] - 1) * state.settings[BLOCK_TOKENS]
        if inputs + min(float(answer), state.shares[CLIP]) >= spare:
            return True
    return bool(blocks_of(state, inputs + answer - 1 + extra_tokens) > state.settings[BLOCKS])


@allocation_free
def find_refusals(state: SchedulerState, refused: BoolArray) -> None:
    """Write to `refused` (n,) True for each request that never fits."""
    for request in range(len(refused)):
        refused[request] = never_fits(state, request)


@allocation_free
def plan_iteration(state: SchedulerState, rank: int, slot: int) -> int:
    """Fill the rank's next iteration as the engine would; return the number of its requests.

    0 = nothing to do.
    """
    begin_plan(state, rank, slot)
    if state.settings[BATCHING] == MIXED:
        plan_mixed(state, rank)
    elif state.settings[BATCHING] == PREFILL_FIRST:
        plan_prefill_first(state, rank)
    else:
        plan_in_flight(state, rank)
    size = state.batch_size[rank, slot]
    end_plan(state, rank, size > 0 and state.batch[rank, slot, 0, DECODES] > 0)
    return int(size)


@inner
def begin_plan(state: SchedulerState, rank: int, slot: int) -> None:
    """Empty the slot and refresh the visible part of the queue."""
    state.batch_size[rank, slot] = 0
    state.ranks[rank, SLOT] = slot
    refresh_visible(state, rank)


@inner
def end_plan(state: SchedulerState, rank: int, decodes: bool) -> None:
    """Count a planned iteration towards the queue's next poll; without decodes the poll is due."""
    state.ranks[rank, SINCE_LOOK] += 1 if decodes else state.settings[POLLING]


@allocation_free
def give_tokens(state: SchedulerState, rank: int, slot: int, entry: int, tokens: int) -> int:
    """Give a finished entry's request at most `tokens` answer tokens; return the number given.

    The tokens are 1 plus accepted draft tokens. With its last token the request's blocks are freed.
    """
    request = state.batch[rank, slot, entry, ENTRY]
    if state.batch[rank, slot, entry, LIFE] != state.requests[request, PREEMPTED]:
        return 0
    if state.settings[BATCHING] != MIXED:
        # Other engines cache a prompt when it has been computed, vLLM when it is planned.
        publish_blocks(
            state,
            rank,
            request,
            state.batch[rank, slot, entry, BEFORE] + state.batch[rank, slot, entry, TOKENS],
        )
    if not state.batch[rank, slot, entry, SAMPLED]:
        return 0
    answer = answer_tokens(state, request)
    given = min(tokens, answer - state.requests[request, GENERATED])
    state.requests[request, PLACED] -= 1
    state.requests[request, GENERATED] += given
    if state.requests[request, GENERATED] < answer:
        num_tokens = state.requests[request, INPUTS] + state.requests[request, GENERATED]
        state.requests[request, COMPUTED] = num_tokens + state.requests[request, PLACED] - 1
    else:
        state.requests[request, STATUS] = DONE
        release_blocks(state, rank, request, 0)
        state.ranks[rank, PROMISED] -= state.requests[request, PROMISE]
        state.requests[request, PROMISE] = 0
    return int(given)


@allocation_free
def remove_done(state: SchedulerState, rank: int) -> None:
    """Remove finished requests from the running ones; the others keep their order."""
    num_kept = 0
    for index in range(state.ranks[rank, NUM_RUNNING]):
        request = state.running[rank, index]
        if state.requests[request, STATUS] == RUNNING:
            state.running[rank, num_kept] = request
            num_kept += 1
    state.ranks[rank, LEFT] = 1
    state.ranks[rank, NUM_RUNNING] = num_kept
