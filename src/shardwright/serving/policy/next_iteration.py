"""The next iteration of a rank and what it leaves behind: the calls of every user of a policy.

`arrive` brings a request, `plan` fills ``state.batch[rank, slot]``, and when that iteration has
run, `give` hands a token (or more) to the requests of its entries, one by one, and `leave` takes
those that are done off the running ones.
"""

from __future__ import annotations

from shardwright.arrays import BoolArray
from shardwright.compiled import allocation_free, inner
from shardwright.serving.policy.batch_entries import wanted_tokens
from shardwright.serving.policy.cache_blocks import blocks_of, release, remember
from shardwright.serving.policy.request_queue import append, look
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
    ENTRY,
    GENERATED,
    GUESSES,
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
    State,
)
from shardwright.serving.policy.sglang_batches import plan_prefill_first
from shardwright.serving.policy.tensorrt_batches import plan_in_flight, whole_blocks
from shardwright.serving.policy.vllm_batches import plan_mixed


@allocation_free
def arrive(state: State, rank: int, request: int) -> None:
    """The request waits at the rank."""
    append(state, rank, request)


@allocation_free
def never_fits(state: State, request: int) -> bool:
    """Its last token but one would need more blocks than there are, even alone."""
    inputs, answer = state.requests[request, INPUTS], wanted_tokens(state, request)
    ahead = state.settings[LOOKAHEAD] + state.settings[GUESSES] if answer > 1 else 0
    whole = not state.settings[CHUNKED_PREFILL] and state.settings[BATCHING] != PREFILL_FIRST
    # A prompt whose cache comes from elsewhere takes none of the budget.
    if whole and not state.settings[ONLY_ANSWERS] and inputs > state.settings[TOKEN_BUDGET]:
        return True
    if state.settings[ADMISSION] == OF_WHOLE:
        return bool(whole_blocks(state, request) > state.settings[BLOCKS])
    if state.settings[ADMISSION] == OF_ESTIMATE and not state.settings[KNOWS_ENDS]:
        spare = (state.settings[BLOCKS] - 1) * state.settings[BLOCK_TOKENS]
        if inputs + min(float(answer), state.shares[CLIP]) >= spare:
            return True
    return bool(blocks_of(state, inputs + answer - 1 + ahead) > state.settings[BLOCKS])


@allocation_free
def refusals(state: State, found: BoolArray) -> None:
    """(n,) of all requests, which never fit."""
    for request in range(len(found)):
        found[request] = never_fits(state, request)


@allocation_free
def plan(state: State, rank: int, slot: int) -> int:
    """Fill the rank's next iteration as the engine would; how many requests are in it. 0 = it has
    nothing to do.
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
def begin_plan(state: State, rank: int, slot: int) -> None:
    """Nothing is in the slot yet, and who came is looked at, if it is time to."""
    state.batch_size[rank, slot] = 0
    state.ranks[rank, SLOT] = slot
    look(state, rank)


@inner
def end_plan(state: State, rank: int, decodes: bool) -> None:
    """An iteration of prompts alone, or none, is followed by a look at who came."""
    state.ranks[rank, SINCE_LOOK] += 1 if decodes else state.settings[POLLING]


@allocation_free
def give(state: State, rank: int, slot: int, entry: int, tokens: int) -> int:
    """The request of an entry whose iteration has run gets `tokens` tokens (1, and guesses that
    were right), or as many as it lacks.

    Returns how many it got. Its blocks are free if those were the last.
    """
    request = state.batch[rank, slot, entry, ENTRY]
    if state.batch[rank, slot, entry, LIFE] != state.requests[request, PREEMPTED]:
        return 0
    if state.settings[BATCHING] != MIXED:
        # Other engines' caches know a prompt when it has been computed, vLLM's when it is planned.
        remember(
            state,
            rank,
            request,
            state.batch[rank, slot, entry, BEFORE] + state.batch[rank, slot, entry, TOKENS],
        )
    if not state.batch[rank, slot, entry, SAMPLED]:
        return 0
    wanted = wanted_tokens(state, request)
    got = min(tokens, wanted - state.requests[request, GENERATED])
    state.requests[request, PLACED] -= 1
    state.requests[request, GENERATED] += got
    if state.requests[request, GENERATED] < wanted:
        known = state.requests[request, INPUTS] + state.requests[request, GENERATED]
        state.requests[request, COMPUTED] = known + state.requests[request, PLACED] - 1
    else:
        state.requests[request, STATUS] = DONE
        release(state, rank, request, 0)
        state.ranks[rank, PROMISED] -= state.requests[request, PROMISE]
        state.requests[request, PROMISE] = 0
    return int(got)


@allocation_free
def leave(state: State, rank: int) -> None:
    """Those that are done run no more; the others keep their order."""
    kept = 0
    for at in range(state.ranks[rank, NUM_RUNNING]):
        request = state.running[rank, at]
        if state.requests[request, STATUS] == RUNNING:
            state.running[rank, kept] = request
            kept += 1
    state.ranks[rank, LEFT] = 1
    state.ranks[rank, NUM_RUNNING] = kept
