"""Decoding requests of a rank kept as counts, so that a step of all costs as much as one request.

While no request is preempted each of them gets a token in each iteration that decodes, a step. So
the loop needs only the number of requests, the sum of their contexts, the number that begin a block
in each step, and the requests that end in each step. `leave_steady` writes the progress of each
request to the state, for a policy that has to read requests one by one; `enter_steady` counts the
decoding requests again.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from shardwright.arrays import IntArray
from shardwright.kernel_compilation import by_reference, inner
from shardwright.serving.policy.batch_entries_and_preemption import (
    answer_tokens,
    answered_tokens,
    tokens_to_compute,
)
from shardwright.serving.policy.kv_cache_blocks import blocks_of
from shardwright.serving.policy.scheduler_state import (
    ADMISSION,
    BEFORE,
    BLOCK_TOKENS,
    COMPUTED,
    DECODES,
    ENDS,
    ENTRY,
    GENERATED,
    HELD,
    INPUTS,
    JOINED,
    LIFE,
    NEXT,
    NONE,
    NUM_ENTRY_COLUMNS,
    NUM_RUNNING,
    OF_WHOLE,
    ORDER,
    PLACE,
    PLACED,
    PREEMPTED,
    PROMISE,
    SAMPLED,
    TOKENS,
    SchedulerState,
)
from shardwright.serving.policy.tensorrt_llm_scheduler import longest_blocks

# Columns of a rank: 1 if its requests are counts, the last planned step, requests in the next step,
# the sums of their contexts and of their last steps, and a request with a partly computed prompt.
COUNTED, STEP, MEMBERS, CONTEXT, LAST_STEPS, PARTIAL, NUM_STEADY_COLUMNS = range(7)
# Columns of a slot: its step (NONE = none), members, contexts.
SLOT_STEP, SLOT_MEMBERS, SLOT_CONTEXT, NUM_SLOT_COLUMNS = range(4)


@by_reference
class SteadyDecode(NamedTuple):
    """Counts of each rank's decoding requests ("members").

    Args:
        ranks: (r, NUM_STEADY_COLUMNS) columns above.
        begins: (r, block tokens) members that begin a block in steps of that remainder.
        ends: (r, c) first of the members that end in a step, by its remainder, linked by NEXT.
        slots: (r, slots, NUM_SLOT_COLUMNS) columns above.
        windows: (w,) tokens of each attention window.
        inside: (r, w) members whose whole context lies in the window.
        seen: (r, w) sum over members of the context tokens in the window.
        fills: (r, w, c) members whose context fills the window in a step.
        slot_seen: (r, slots, w) `seen` when the slot's iteration was planned.
    """

    ranks: IntArray
    begins: IntArray
    ends: IntArray
    slots: IntArray
    windows: IntArray
    inside: IntArray
    seen: IntArray
    fills: IntArray
    slot_seen: IntArray


def new_steady_decode(
    state: SchedulerState, windows: IntArray, *, longest_answer: int
) -> SteadyDecode:
    """Create the decode counts of all ranks, with no request counted.

    Args:
        longest_answer: tokens of the longest answer.
    """
    ranks, slots = state.batch_size.shape
    num_steps = longest_answer + 2
    rank_columns = np.zeros((ranks, NUM_STEADY_COLUMNS), dtype=np.int64)
    rank_columns[:, PARTIAL] = NONE
    slot_columns = np.zeros((ranks, slots, NUM_SLOT_COLUMNS), dtype=np.int64)
    slot_columns[:, :, SLOT_STEP] = NONE
    return SteadyDecode(
        ranks=rank_columns,
        begins=np.zeros((ranks, int(state.settings[BLOCK_TOKENS])), dtype=np.int64),
        ends=np.full((ranks, num_steps), NONE, dtype=np.int64),
        slots=slot_columns,
        windows=windows,
        inside=np.zeros((ranks, len(windows)), dtype=np.int64),
        seen=np.zeros((ranks, len(windows)), dtype=np.int64),
        fills=np.zeros((ranks, len(windows), num_steps), dtype=np.int64),
        slot_seen=np.zeros((ranks, slots, len(windows)), dtype=np.int64),
    )


@inner
def join_steady(state: SchedulerState, steady: SteadyDecode, rank: int, request: int) -> None:
    """Count a request as a decoding member from the next step to its last token."""
    answered = answered_tokens(state, request)
    first_step = steady.ranks[rank, STEP] + 1
    last_step = first_step + answer_tokens(state, request) - answered - 1
    context = state.requests[request, INPUTS] + answered - 1
    state.requests[request, JOINED] = first_step
    state.requests[request, ENDS] = last_step
    num_steps = steady.ends.shape[1]
    state.requests[request, NEXT] = steady.ends[rank, last_step % num_steps]
    steady.ends[rank, last_step % num_steps] = request
    steady.ranks[rank, MEMBERS] += 1
    steady.ranks[rank, CONTEXT] += context
    steady.ranks[rank, LAST_STEPS] += last_step
    steady.begins[rank, (first_step - context) % steady.begins.shape[1]] += 1
    for w in range(len(steady.windows)):
        steady.seen[rank, w] += min(context, steady.windows[w])
        if context < steady.windows[w]:
            steady.inside[rank, w] += 1
            # The last step whose token still lengthens the visible context is the one before the
            # window is full.
            filling_step = first_step + steady.windows[w] - context
            if filling_step <= last_step:
                steady.fills[rank, w, filling_step % num_steps] += 1


@inner
def next_step_blocks(state: SchedulerState, steady: SteadyDecode, rank: int) -> int:
    """Number of cache blocks that the members' next decode step takes into use."""
    return int(steady.begins[rank, (steady.ranks[rank, STEP] + 1) % steady.begins.shape[1]])


@inner
def remaining_tokens(steady: SteadyDecode, rank: int) -> int:
    """Number of answer tokens that all members still need, beyond those under way."""
    return int(
        steady.ranks[rank, LAST_STEPS] - steady.ranks[rank, MEMBERS] * steady.ranks[rank, STEP]
    )


@inner
def order_ends(state: SchedulerState, steady: SteadyDecode, rank: int) -> None:
    """Fill `state.ends` with (steps left, tokens held at the end) of the members, soonest first."""
    num_steps, count = steady.ends.shape[1], 0
    step, members = steady.ranks[rank, STEP], steady.ranks[rank, MEMBERS]
    steps_left = 0
    while count < members:
        steps_left += 1
        request = steady.ends[rank, (step + steps_left) % num_steps]
        while request != NONE:
            state.ends[rank, count, 0] = steps_left
            state.ends[rank, count, 1] = (
                state.requests[request, INPUTS] + answer_tokens(state, request) - steps_left
            )
            count += 1
            request = state.requests[request, NEXT]
    state.ends[rank, state.ends.shape[1] - 1, 0] = count


@inner
def plan_step(state: SchedulerState, steady: SteadyDecode, rank: int, slot: int) -> None:
    """Plan a decode step of all members in a slot, and remove members at their last token."""
    step = steady.ranks[rank, STEP] + 1
    num_steps = steady.ends.shape[1]
    for w in range(len(steady.windows)):
        steady.inside[rank, w] -= steady.fills[rank, w, step % num_steps]
        steady.fills[rank, w, step % num_steps] = 0
        steady.slot_seen[rank, slot, w] = steady.seen[rank, w]
        steady.seen[rank, w] += steady.inside[rank, w]
    steady.ranks[rank, STEP] = step
    steady.slots[rank, slot, SLOT_STEP] = step
    steady.slots[rank, slot, SLOT_MEMBERS] = steady.ranks[rank, MEMBERS]
    steady.slots[rank, slot, SLOT_CONTEXT] = steady.ranks[rank, CONTEXT]
    steady.ranks[rank, CONTEXT] += steady.ranks[rank, MEMBERS]
    request = steady.ends[rank, step % num_steps]
    while request != NONE:
        context = state.requests[request, INPUTS] + answer_tokens(state, request) - 1
        steady.ranks[rank, MEMBERS] -= 1
        steady.ranks[rank, CONTEXT] -= context
        steady.ranks[rank, LAST_STEPS] -= step
        steady.begins[rank, (step + 1 - context) % steady.begins.shape[1]] -= 1
        for w in range(len(steady.windows)):
            steady.seen[rank, w] -= min(context, steady.windows[w])
            if context <= steady.windows[w]:
                steady.inside[rank, w] -= 1
        request = state.requests[request, NEXT]


@inner
def clear_step(steady: SteadyDecode, rank: int, slot: int) -> None:
    """Mark a slot's iteration as one without counted decode members."""
    steady.slots[rank, slot, SLOT_STEP] = NONE
    steady.slots[rank, slot, SLOT_MEMBERS] = 0
    steady.slots[rank, slot, SLOT_CONTEXT] = 0
    for w in range(len(steady.windows)):
        steady.slot_seen[rank, slot, w] = 0


@inner
def enter_steady(state: SchedulerState, steady: SteadyDecode, rank: int) -> None:
    """Count the running requests that decode as members from the next step on.

    Nothing is counted while several prompts are partly computed.
    """
    partial = NONE
    for at in range(state.ranks[rank, NUM_RUNNING]):
        request = state.running[rank, at]
        state.requests[request, PLACE] = at
        if tokens_to_compute(state, request) > 0 and not decodes_next(state, request):
            if partial != NONE:
                return
            partial = request
    steady.ranks[rank, COUNTED] = 1
    steady.ranks[rank, PARTIAL] = partial
    for at in range(state.ranks[rank, NUM_RUNNING]):
        request = state.running[rank, at]
        if request != partial and decodes_next(state, request):
            join_steady(state, steady, rank, request)


@inner
def decodes_next(state: SchedulerState, request: int) -> bool:
    """True if a request's first answer token is given or under way, and it needs further tokens."""
    answered = answered_tokens(state, request)
    prompt = state.requests[request, INPUTS] + answered - 1
    return bool(
        0 < answered < answer_tokens(state, request) and state.requests[request, COMPUTED] >= prompt
    )


@inner
def leave_steady(state: SchedulerState, steady: SteadyDecode, rank: int, under_way: int) -> None:
    """Write each counted member's progress and batch entry to the state; stop counting on a rank.

    Args:
        under_way: slot whose iteration has not ended; members of its step get an entry there; NONE
            = no such slot.
    """
    steady.ranks[rank, COUNTED] = 0
    step = steady.slots[rank, under_way, SLOT_STEP] if under_way != NONE else NONE
    restore_order(state, rank)
    count = 0
    for at in range(state.ranks[rank, NUM_RUNNING]):
        request = state.running[rank, at]
        state.requests[request, PLACE] = at
        last_step, first_step = state.requests[request, ENDS], state.requests[request, JOINED]
        if last_step == NONE:
            continue
        planned = min(steady.ranks[rank, STEP], last_step) - first_step + 1
        in_slot = 1 if step != NONE and first_step <= step <= last_step else 0
        state.requests[request, GENERATED] += planned - in_slot
        state.requests[request, PLACED] += in_slot
        tokens = int(state.requests[request, INPUTS] + answered_tokens(state, request) - 1)
        state.requests[request, COMPUTED] = tokens
        state.requests[request, HELD] = max(state.requests[request, HELD], blocks_of(state, tokens))
        if state.settings[ADMISSION] == OF_WHOLE:
            state.requests[request, PROMISE] = max(
                0, longest_blocks(state, request) - state.requests[request, HELD]
            )
        state.requests[request, ENDS] = NONE
        steady.ends[rank, last_step % steady.ends.shape[1]] = NONE
        if in_slot:
            insert_entry(state, rank, under_way, count, request, tokens - 1)
            count += 1
    clear_members(steady, rank)
    if under_way != NONE:
        clear_step(steady, rank, under_way)


@inner
def clear_members(steady: SteadyDecode, rank: int) -> None:
    """Set all counts of a rank's counted decode members to zero."""
    steady.ranks[rank, MEMBERS] = 0
    steady.ranks[rank, CONTEXT] = 0
    steady.ranks[rank, LAST_STEPS] = 0
    steady.ranks[rank, PARTIAL] = NONE
    steady.begins[rank, :] = 0
    for w in range(len(steady.windows)):
        steady.inside[rank, w] = 0
        steady.seen[rank, w] = 0
        steady.fills[rank, w, :] = 0


@inner
def insert_entry(
    state: SchedulerState, rank: int, slot: int, at: int, request: int, before: int
) -> None:
    """Insert a decode entry of one token at index `at` of a slot; `before` = tokens before it."""
    for entry in range(state.batch_size[rank, slot], at, -1):
        for column in range(NUM_ENTRY_COLUMNS):
            state.batch[rank, slot, entry, column] = state.batch[rank, slot, entry - 1, column]
    state.batch_size[rank, slot] += 1
    state.batch[rank, slot, at, ENTRY] = request
    state.batch[rank, slot, at, TOKENS] = 1
    state.batch[rank, slot, at, BEFORE] = before
    state.batch[rank, slot, at, SAMPLED] = 1
    state.batch[rank, slot, at, DECODES] = 1
    state.batch[rank, slot, at, LIFE] = state.requests[request, PREEMPTED]


@inner
def restore_order(state: SchedulerState, rank: int) -> None:
    """Sort a rank's running requests by admission, which counting does not keep (Shell's sort)."""
    count = state.ranks[rank, NUM_RUNNING]
    gap = count // 2
    while gap > 0:
        for at in range(gap, count):
            request = state.running[rank, at]
            order = state.requests[request, ORDER]
            to = at
            while to >= gap and state.requests[state.running[rank, to - gap], ORDER] > order:
                state.running[rank, to] = state.running[rank, to - gap]
                to -= gap
            state.running[rank, to] = request
        gap //= 2


@inner
def remove_running(state: SchedulerState, rank: int, request: int) -> None:
    """Remove a request from the running requests; the last one takes its place."""
    state.ranks[rank, NUM_RUNNING] -= 1
    last_request = state.running[rank, state.ranks[rank, NUM_RUNNING]]
    place = state.requests[request, PLACE]
    state.running[rank, place] = last_request
    state.requests[last_request, PLACE] = place
