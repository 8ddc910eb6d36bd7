"""vLLM's V1 scheduling policy: batches that mix prompts and decode tokens.

Every running request gets the tokens it needs, in the order in which they were admitted: one (and
the draft tokens to check) if it decodes, the next part of its prompt otherwise, up to the token
budget. Where blocks are missing the request that was admitted last loses its blocks and waits in
front of all others. If no request was preempted, waiting requests are admitted in their order,
while there are tokens of the budget, sequences, and blocks for their tokens of this iteration, or
for all their known tokens (`Admission.PROMPT`: scheduler_reserve_full_isl).

Source: vLLM, vllm/v1/core/sched/scheduler.py (`Scheduler.schedule`),
vllm/v1/core/kv_cache_manager.py (`allocate_slots`, `get_computed_blocks`). Left out: priorities,
encoders, LoRA, structured outputs, long_prefill_token_threshold.
"""

from __future__ import annotations

from shardwright.kernel_compilation import inner
from shardwright.serving.policy.batch_entries_and_preemption import (
    add_entry,
    admit_first,
    hold_blocks_or_preempt,
    known_tokens,
    tokens_to_compute,
)
from shardwright.serving.policy.kv_cache_blocks import (
    blocks_of,
    cached_tokens,
    publish_blocks,
    revived_blocks,
    skipped_tokens,
)
from shardwright.serving.policy.linked_lists_of_waiting_requests import first_waiting
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
    SchedulerState,
)


@inner
def run_mixed(state: SchedulerState, rank: int) -> int:
    """Add the running requests' tokens to the next iteration; return budget left, -1 if preempted.

    -1 after a preemption.
    """
    budget = state.settings[TOKEN_BUDGET]
    any_preempted = False
    index = 0
    while index < state.ranks[rank, NUM_RUNNING] and budget > 0:
        request = state.running[rank, index]
        index += 1
        new = min(tokens_to_compute(state, request), budget)
        if new == 0:
            continue
        tokens = state.requests[request, COMPUTED] + new
        preempted = hold_blocks_or_preempt(state, rank, request, tokens + state.settings[LOOKAHEAD])
        any_preempted = any_preempted or preempted != 0
        if preempted < 0:
            break
        publish_blocks(state, rank, request, min(tokens, known_tokens(state, request)))
        add_entry(state, rank, request, new)
        budget -= new
    return -1 if any_preempted else int(budget)


@inner
def admit_mixed(state: SchedulerState, rank: int, budget: int) -> int:
    """Admit waiting requests to the next iteration while its budget lasts; return their number."""
    admitted = 0
    while budget > 0 and state.ranks[rank, NUM_RUNNING] < state.settings[MAX_SEQUENCES]:
        request = first_waiting(state, rank)
        if request == NONE:
            break
        cached = cached_tokens(state, rank, request)
        num_tokens = known_tokens(state, request)
        skipped = skipped_tokens(state, request, cached)
        new = num_tokens - skipped
        if new > budget:
            if state.settings[CHUNKED_PREFILL]:
                new = budget
            elif budget < state.settings[TOKEN_BUDGET]:
                break
        # Cached blocks without users count as free until they are adopted.
        last_token = skipped + new if state.settings[ADMISSION] == OF_CHUNK else num_tokens
        need = (
            blocks_of(state, last_token)
            - blocks_of(state, cached)
            + revived_blocks(state, rank, request)
        )
        spare = state.settings[WATERMARK] if state.ranks[rank, NUM_RUNNING] > 0 else 0
        if need + spare > state.ranks[rank, FREE]:
            break
        admit_first(state, rank, request, skipped + new, new)
        publish_blocks(state, rank, request, skipped + new)
        budget -= new
        admitted += 1
    return admitted


@inner
def plan_mixed(state: SchedulerState, rank: int) -> None:
    """Fill a rank's next iteration in vLLM's order: running requests, then waiting ones."""
    budget = run_mixed(state, rank)
    if budget > 0:
        admit_mixed(state, rank, budget)
