"""Mixed batches, as vLLM's V1 scheduler fills them.

Every running request gets the tokens it lacks, in the order in which they were admitted: one (and the guesses to check) if it decodes, the
next part of its prompt otherwise, up to the token budget. Where blocks are missing the request that was admitted last loses its own and
waits in front of all others. If nobody was preempted, waiting requests are admitted in their order, while there are tokens of the budget,
sequences and blocks for what they compute now.

Source: vLLM, vllm/v1/core/sched/scheduler.py (`Scheduler.schedule`), vllm/v1/core/kv_cache_manager.py (`allocate_slots`,
`get_computed_blocks`). Left out: priorities, encoders, LoRA, structured outputs, long_prefill_token_threshold.
"""

from __future__ import annotations

from shardwright.compiled import inner
from shardwright.serving.policy.blocks import adopt, blocks_of, cached_tokens, hold, remember, revived_blocks
from shardwright.serving.policy.entries import lacking, preempt, schedule
from shardwright.serving.policy.queue import pop_first
from shardwright.serving.policy.state import (
    ADMISSION,
    CACHED,
    CHUNKED_PREFILL,
    COMPUTED,
    FREE,
    GENERATED,
    INPUTS,
    LOOKAHEAD,
    MAX_SEQUENCES,
    NONE,
    NUM_RUNNING,
    PREEMPTED,
    RUNNING,
    STATUS,
    TOKEN_BUDGET,
    WAITING_HEAD,
    State,
)


@inner
def run_mixed(state: State, rank: int) -> int:
    """The running requests' part of the next iteration. Returns what is left of the budget, -1 where somebody was preempted."""
    budget = state.settings[TOKEN_BUDGET]
    anybody = False
    at = 0
    while at < state.ranks[rank, NUM_RUNNING] and budget > 0:
        request = state.running[rank, at]
        new = min(lacking(state, request), budget)
        if new == 0:
            at += 1
            continue
        there = hold(state, rank, request, state.requests[request, COMPUTED] + new + state.settings[LOOKAHEAD])
        while not there:
            last = state.running[rank, state.ranks[rank, NUM_RUNNING] - 1]
            state.ranks[rank, NUM_RUNNING] -= 1
            preempt(state, rank, last)
            anybody = True
            if last == request:
                break
            there = hold(state, rank, request, state.requests[request, COMPUTED] + new + state.settings[LOOKAHEAD])
        if not there:
            break
        remember(state, rank, request, state.requests[request, COMPUTED] + new)
        schedule(state, rank, request, new)
        budget -= new
        at += 1
    return -1 if anybody else int(budget)


@inner
def admit_mixed(state: State, rank: int, budget: int) -> int:
    """Waiting requests join the next iteration while its budget lasts; how many."""
    admitted = 0
    while budget > 0 and state.ranks[rank, NUM_RUNNING] < state.settings[MAX_SEQUENCES]:
        request = state.ranks[rank, WAITING_HEAD]
        if request == NONE:
            break
        cached = cached_tokens(state, rank, request)
        known = state.requests[request, INPUTS] + state.requests[request, GENERATED]
        new = known - cached
        if new > budget:
            if not state.settings[CHUNKED_PREFILL]:
                break
            new = budget
        # Cached blocks that nobody uses are among the free ones until they are adopted.
        last = known if state.settings[ADMISSION] else cached + new
        if blocks_of(state, last) - blocks_of(state, cached) + revived_blocks(state, rank, request) > state.ranks[rank, FREE]:
            break
        pop_first(state, rank)
        state.requests[request, COMPUTED] = adopt(state, rank, request)
        if state.requests[request, PREEMPTED] == 0:
            state.requests[request, CACHED] = cached
        hold(state, rank, request, cached + new)
        remember(state, rank, request, cached + new)
        state.running[rank, state.ranks[rank, NUM_RUNNING]] = request
        state.ranks[rank, NUM_RUNNING] += 1
        state.requests[request, STATUS] = RUNNING
        schedule(state, rank, request, new)
        budget -= new
        admitted += 1
    return admitted


@inner
def plan_mixed(state: State, rank: int) -> None:
    """Fill the next iteration of a rank."""
    budget = run_mixed(state, rank)
    if budget > 0:
        admit_mixed(state, rank, budget)
