"""Plan iterations of a rank whose decoding requests are counts, as `plan_iteration` would."""

from __future__ import annotations

from shardwright.kernel_compilation import inner
from shardwright.serving.policy.batch_entries_and_preemption import (
    add_entry,
    answer_tokens,
    answered_tokens,
    known_tokens,
)
from shardwright.serving.policy.decoding_requests_kept_as_counts import (
    COUNTED,
    MEMBERS,
    PARTIAL,
    SLOT_MEMBERS,
    SLOT_STEP,
    SteadyDecode,
    clear_step,
    enter_steady,
    join_steady,
    leave_steady,
    next_step_blocks,
    order_ends,
    plan_step,
    remaining_tokens,
    remove_running,
)
from shardwright.serving.policy.kv_cache_blocks import (
    blocks_of,
    hold_blocks,
    missing_blocks,
    publish_blocks,
    release_blocks,
    use_free_blocks,
)
from shardwright.serving.policy.linked_lists_of_waiting_requests import (
    first_waiting,
    refresh_visible,
)
from shardwright.serving.policy.policy_interface import begin_plan, end_plan, plan_iteration
from shardwright.serving.policy.scheduler_state import (
    ADMISSION,
    BATCHING,
    CHUNKED,
    CLIP,
    COMPUTED,
    DONE,
    ENDS,
    ENTRY,
    FREE,
    GENERATED,
    HELD,
    HELD_BACK,
    IN_FLIGHT,
    INPUTS,
    KNOWS_ENDS,
    LEFT,
    MIXED,
    MIXES_DECODE,
    NEXT,
    NONE,
    OF_WHOLE,
    ONLY_ANSWERS,
    ORDER,
    PLACED,
    PREFILL_FIRST,
    PROMISE,
    PROMISED,
    SAMPLED,
    STATUS,
    TOKEN_BUDGET,
    SchedulerState,
)
from shardwright.serving.policy.sglang_scheduler import (
    add_prompts,
    may_add_prompts,
    update_decode_share,
)
from shardwright.serving.policy.tensorrt_llm_prompt_delay import (
    note_prompts,
    num_decoding,
    partial_prompt,
)
from shardwright.serving.policy.tensorrt_llm_scheduler import (
    admit_in_flight,
    longest_blocks,
    prompt_chunk,
    reserve_promised,
)
from shardwright.serving.policy.vllm_scheduler import admit_mixed


@inner
def plan_folded(
    state: SchedulerState, steady: SteadyDecode, rank: int, slot: int, under_way: int, counted: bool
) -> int:
    """Plan a rank's next iteration, from decode counts if possible; return its requests' number.

    Args:
        under_way: a slot whose iteration has not ended; NONE = no such slot.
        counted: decoding requests may be counts: each gets one token an iteration, and is in one
            iteration at a time, or in the next one too.
    """
    if steady.ranks[rank, COUNTED]:
        refresh_visible(state, rank)
        if can_plan_counted(state, steady, rank):
            begin_plan(state, rank, slot)
            plan_counted(state, steady, rank, slot)
            size = state.batch_size[rank, slot] + steady.slots[rank, slot, SLOT_MEMBERS]
            end_plan(state, rank, steady.slots[rank, slot, SLOT_MEMBERS] > 0)
            return int(size)
        leave_steady(state, steady, rank, under_way)
    clear_step(steady, rank, slot)
    size = plan_iteration(state, rank, slot)
    if counted:
        enter_steady(state, steady, rank)
    return int(size)


@inner
def note_prompts_of_rank(state: SchedulerState, steady: SteadyDecode, rank: int) -> None:
    """Write to HELD_BACK how a rank's prompts wait (0 none, 1 some, 2 enough), from its counts."""
    if steady.ranks[rank, COUNTED]:
        note_prompts(state, rank, steady.ranks[rank, MEMBERS], steady.ranks[rank, PARTIAL])
    else:
        note_prompts(state, rank, num_decoding(state, rank), partial_prompt(state, rank))


@inner
def can_plan_counted(state: SchedulerState, steady: SteadyDecode, rank: int) -> bool:
    """True if decode counts and one prompt part make the next iteration, without preemption.

    All members get a token, and a partly computed prompt its next part, without a preemption, and
    no rule has to read requests one by one.
    """
    new_blocks = next_step_blocks(state, steady, rank) if steady.ranks[rank, MEMBERS] > 0 else 0
    if new_blocks > state.ranks[rank, FREE]:
        return False
    if state.settings[BATCHING] == PREFILL_FIRST:
        decodes_with_prompts = state.settings[MIXES_DECODE] or state.settings[ONLY_ANSWERS]
        clipped = state.shares[CLIP] < steady.ends.shape[1]
        prompts_wait = state.ranks[rank, CHUNKED] != NONE or first_waiting(state, rank) != NONE
        return not (prompts_wait and (decodes_with_prompts or clipped))
    budget = state.settings[TOKEN_BUDGET] - steady.ranks[rank, MEMBERS]
    if budget < 0:
        return False
    request = steady.ranks[rank, PARTIAL]
    if request == NONE:
        return True
    new = next_prompt_part(state, request, budget)
    blocks = missing_blocks(state, request, state.requests[request, COMPUTED] + new)
    return bool(new_blocks + blocks <= state.ranks[rank, FREE])


@inner
def next_prompt_part(state: SchedulerState, request: int, budget: int) -> int:
    """Number of tokens of a partly computed prompt in the next iteration, at most `budget`."""
    uncomputed = known_tokens(state, request) - state.requests[request, COMPUTED]
    return (
        prompt_chunk(state, uncomputed, budget)
        if state.settings[BATCHING] == IN_FLIGHT
        else int(min(uncomputed, budget))
    )


@inner
def plan_counted(state: SchedulerState, steady: SteadyDecode, rank: int, slot: int) -> None:
    """Plan the iteration that `can_plan_counted` allows, from the counts."""
    if state.settings[BATCHING] == PREFILL_FIRST:
        if plan_counted_prompts(state, steady, rank):
            clear_step(steady, rank, slot)
            join_finished_prompts(state, steady, rank, slot)
            return
        update_decode_share(state, rank)
    budget = state.settings[TOKEN_BUDGET] - steady.ranks[rank, MEMBERS]
    if steady.ranks[rank, MEMBERS] > 0:
        blocks = next_step_blocks(state, steady, rank)
        use_free_blocks(state, rank, blocks)
        if state.settings[ADMISSION] == OF_WHOLE:
            state.ranks[rank, PROMISED] -= blocks
        plan_step(state, steady, rank, slot)
    else:
        clear_step(steady, rank, slot)
    if state.settings[BATCHING] == PREFILL_FIRST or state.ranks[rank, HELD_BACK]:
        return
    request = steady.ranks[rank, PARTIAL]
    if request != NONE:
        new = next_prompt_part(state, request, budget)
        if new == 0:
            return
        hold_blocks(state, rank, request, state.requests[request, COMPUTED] + new)
        if state.settings[BATCHING] == MIXED:
            publish_blocks(state, rank, request, state.requests[request, COMPUTED] + new)
        add_entry(state, rank, request, new)
        reserve_promised(state, rank, request)
        budget -= new
    steady.ranks[rank, PARTIAL] = NONE
    if budget > 0:
        if state.settings[BATCHING] == MIXED:
            admit_mixed(state, rank, budget)
        else:
            admit_in_flight(state, rank, budget)
    join_finished_prompts(state, steady, rank, slot)


@inner
def plan_counted_prompts(state: SchedulerState, steady: SteadyDecode, rank: int) -> bool:
    """Fill the iteration with prompts alone; True if any were added."""
    if not may_add_prompts(state, rank):
        return False
    if state.settings[KNOWS_ENDS]:
        order_ends(state, steady, rank)
    return bool(add_prompts(state, rank, float(remaining_tokens(steady, rank))) > 0)


@inner
def join_finished_prompts(
    state: SchedulerState, steady: SteadyDecode, rank: int, slot: int
) -> None:
    """Count requests whose prompt a slot's iteration ends as decode members; note a partial one."""
    for entry in range(state.batch_size[rank, slot]):
        request = state.batch[rank, slot, entry, ENTRY]
        if not state.batch[rank, slot, entry, SAMPLED]:
            if state.settings[BATCHING] != PREFILL_FIRST:
                steady.ranks[rank, PARTIAL] = request
        elif answered_tokens(state, request) < answer_tokens(state, request):
            join_steady(state, steady, rank, request)


@inner
def pop_ended_members(state: SchedulerState, steady: SteadyDecode, rank: int, slot: int) -> int:
    """Unlink members whose last token a slot's iteration gave; return the first one, or NONE.

    They are in order, linked by NEXT.
    """
    step = steady.slots[rank, slot, SLOT_STEP]
    if step == NONE:
        return NONE
    end_index = step % steady.ends.shape[1]
    request = steady.ends[rank, end_index]
    steady.ends[rank, end_index] = NONE
    ordered = NONE
    while request != NONE:
        next_request = state.requests[request, NEXT]
        ordered = insert_ordered(state, ordered, request)
        request = next_request
    return int(ordered)


@inner
def insert_ordered(state: SchedulerState, head: int, request: int) -> int:
    """Insert a request into a linked list sorted by ORDER; return the list's first request."""
    order = state.requests[request, ORDER]
    if head == NONE or state.requests[head, ORDER] > order:
        state.requests[request, NEXT] = head
        return request
    previous = head
    while (
        state.requests[previous, NEXT] != NONE
        and state.requests[state.requests[previous, NEXT], ORDER] < order
    ):
        previous = state.requests[previous, NEXT]
    state.requests[request, NEXT] = state.requests[previous, NEXT]
    state.requests[previous, NEXT] = request
    return head


@inner
def end_member(state: SchedulerState, rank: int, request: int) -> None:
    """Mark a member as done, free its cache blocks, and remove it from the running requests."""
    answer = answer_tokens(state, request)
    state.requests[request, GENERATED] = answer
    state.requests[request, PLACED] = 0
    state.requests[request, ENDS] = NONE
    tokens = state.requests[request, INPUTS] + answer - 1
    state.requests[request, HELD] = max(state.requests[request, HELD], blocks_of(state, tokens))
    if state.settings[ADMISSION] == OF_WHOLE:
        state.ranks[rank, PROMISED] -= max(
            0, longest_blocks(state, request) - state.requests[request, HELD]
        )
        state.requests[request, PROMISE] = 0
    state.requests[request, STATUS] = DONE
    release_blocks(state, rank, request, 0)
    remove_running(state, rank, request)
    state.ranks[rank, LEFT] = 1
