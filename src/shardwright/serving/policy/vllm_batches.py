"""Mixed batches, as vLLM's V1 scheduler fills them.

Every running request gets the tokens it lacks, in the order in which they were admitted: one (and
the guesses to check) if it decodes, the next part of its prompt otherwise, up to the token budget.
Where blocks are missing the request that was admitted last loses its own and waits in front of all
others. If nobody was preempted, waiting requests are admitted in their order, while there are
tokens of the budget, sequences, and blocks for what they compute now, or for all that is known of
them (`Admission.PROMPT`: scheduler_reserve_full_isl).

Source: vLLM, vllm/v1/core/sched/scheduler.py (`Scheduler.schedule`),
vllm/v1/core/kv_cache_manager.py (`allocate_slots`, `get_computed_blocks`). Left out: priorities,
encoders, LoRA, structured outputs, long_prefill_token_threshold.
"""

from __future__ import annotations

from shardwright.compiled import inner
from shardwright.serving.policy.batch_entries import (
    hold_or_preempt,
    known_tokens,
    lacking,
    run,
    schedule,
    start,
)
from shardwright.serving.policy.cache_blocks import (
    blocks_of,
    cached_tokens,
    done_tokens,
    hold,
    remember,
    revived_blocks,
)
from shardwright.serving.policy.request_queue import first_waiting
from shardwright.serving.policy.scheduler_state import (
    ADMISSION,
    CHUNKED_PREFILL,
    COMPUTED,
    FREE,
    LOOKAHEAD,
    MAX_SEQUENCES,
    NONE,
    NUM_RUNNING,
    OF_CHUNK,
    TOKEN_BUDGET,
    WATERMARK,
    State,
)


@inner
def run_mixed(state: State, rank: int) -> int:
    """The running requests' part of the next iteration. Returns what is left of the budget, -1
    where somebody was preempted.
    """
    budget = state.settings[TOKEN_BUDGET]
    anybody = False
    at = 0
    while at < state.ranks[rank, NUM_RUNNING] and budget > 0:
        request = state.running[rank, at]
        at += 1
        new = min(lacking(state, request), budget)
        if new == 0:
            continue
        tokens = state.requests[request, COMPUTED] + new
        preempted = hold_or_preempt(state, rank, request, tokens + state.settings[LOOKAHEAD])
        anybody = anybody or preempted != 0
        if preempted < 0:
            break
        remember(state, rank, request, min(tokens, known_tokens(state, request)))
        schedule(state, rank, request, new)
        budget -= new
    return -1 if anybody else int(budget)


@inner
def admit_mixed(state: State, rank: int, budget: int) -> int:
    """Waiting requests join the next iteration while its budget lasts; how many."""
    admitted = 0
    while budget > 0 and state.ranks[rank, NUM_RUNNING] < state.settings[MAX_SEQUENCES]:
        request = first_waiting(state, rank)
        if request == NONE:
            break
        cached = cached_tokens(state, rank, request)
        known = known_tokens(state, request)
        done = done_tokens(state, request, cached)
        new = known - done
        if new > budget:
            if state.settings[CHUNKED_PREFILL]:
                new = budget
            elif budget < state.settings[TOKEN_BUDGET]:
                break
        # Cached blocks that nobody uses are among the free ones until they are adopted.
        last = done + new if state.settings[ADMISSION] == OF_CHUNK else known
        need = (
            blocks_of(state, last) - blocks_of(state, cached) + revived_blocks(state, rank, request)
        )
        spare = state.settings[WATERMARK] if state.ranks[rank, NUM_RUNNING] > 0 else 0
        if need + spare > state.ranks[rank, FREE]:
            break
        start(state, rank, request)
        hold(state, rank, request, done + new)
        remember(state, rank, request, done + new)
        run(state, rank, request)
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
