"""Requests that do nothing but decode, as counts: an iteration of all of them takes the time of
one.

While nobody is preempted each of them gets a token in each iteration that decodes, a step. So it is
enough to know how many there are, the sum of their contexts, how many begin a block in each step,
and who ends in which step. `leave_steady` writes what each of them has become to the state, for a
policy that has to look at them one by one, and `enter_steady` takes those that decode in again.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from shardwright.arrays import IntArray
from shardwright.compiled import by_reference, inner
from shardwright.serving.policy.batch_entries import lacking, wanted_tokens
from shardwright.serving.policy.cache_blocks import blocks_of
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
    State,
)
from shardwright.serving.policy.tensorrt_batches import whole_blocks

# Columns of a rank: whether it counts at all, the last step that was planned, requests in the next
# one, their contexts' sum and that of their last steps, and a request whose prompt goes on.
ON, STEP, MEMBERS, CONTEXT, LAST_STEPS, PARTIAL, NUM_STEADY_COLUMNS = range(7)
# Columns of a slot: its step (NONE = none), members, contexts.
SLOT_STEP, SLOT_MEMBERS, SLOT_CONTEXT, NUM_SLOT_COLUMNS = range(4)


@by_reference
class Steady(NamedTuple):
    """Counts of each rank.

    Args:
        ranks: (r, NUM_STEADY_COLUMNS).
        begins: (r, block tokens) requests that begin a block in steps of that remainder.
        ends: (r, c) first of the requests that end in a step, by its remainder, linked by NEXT.
        slots: (r, slots, NUM_SLOT_COLUMNS).
        windows: (w,) tokens.
        inside: (r, w) requests whose whole context lies in the window;
        seen: (r, w) sum of what of the contexts does;
        fills: (r, w, c) requests that fill it in a step.
        slot_seen: (r, slots, w).
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


def new_steady(state: State, windows: IntArray, *, longest_answer: int) -> Steady:
    """Nobody decodes. `longest_answer`: tokens."""
    ranks, slots = state.batch_size.shape
    num_steps = longest_answer + 2
    numbers = np.zeros((ranks, NUM_STEADY_COLUMNS), dtype=np.int64)
    numbers[:, PARTIAL] = NONE
    of_slots = np.zeros((ranks, slots, NUM_SLOT_COLUMNS), dtype=np.int64)
    of_slots[:, :, SLOT_STEP] = NONE
    return Steady(
        ranks=numbers,
        begins=np.zeros((ranks, int(state.settings[BLOCK_TOKENS])), dtype=np.int64),
        ends=np.full((ranks, num_steps), NONE, dtype=np.int64),
        slots=of_slots,
        windows=windows,
        inside=np.zeros((ranks, len(windows)), dtype=np.int64),
        seen=np.zeros((ranks, len(windows)), dtype=np.int64),
        fills=np.zeros((ranks, len(windows), num_steps), dtype=np.int64),
        slot_seen=np.zeros((ranks, slots, len(windows)), dtype=np.int64),
    )


@inner
def join(state: State, steady: Steady, rank: int, request: int) -> None:
    """From the next step on the request decodes until its last token."""
    answered = state.requests[request, GENERATED] + state.requests[request, PLACED]
    first = steady.ranks[rank, STEP] + 1
    last = first + wanted_tokens(state, request) - answered - 1
    context = state.requests[request, INPUTS] + answered - 1
    state.requests[request, JOINED] = first
    state.requests[request, ENDS] = last
    num_steps = steady.ends.shape[1]
    state.requests[request, NEXT] = steady.ends[rank, last % num_steps]
    steady.ends[rank, last % num_steps] = request
    steady.ranks[rank, MEMBERS] += 1
    steady.ranks[rank, CONTEXT] += context
    steady.ranks[rank, LAST_STEPS] += last
    steady.begins[rank, (first - context) % steady.begins.shape[1]] += 1
    for w in range(len(steady.windows)):
        steady.seen[rank, w] += min(context, steady.windows[w])
        if context < steady.windows[w]:
            steady.inside[rank, w] += 1
            # The step whose token still makes more of it seen is the last before it is full.
            full = first + steady.windows[w] - context
            if full <= last:
                steady.fills[rank, w, full % num_steps] += 1


@inner
def growth(state: State, steady: Steady, rank: int) -> int:
    """Blocks that the next step begins."""
    return int(steady.begins[rank, (steady.ranks[rank, STEP] + 1) % steady.begins.shape[1]])


@inner
def lacking_tokens(steady: Steady, rank: int) -> int:
    """Tokens that members lack, behind those under way."""
    return int(
        steady.ranks[rank, LAST_STEPS] - steady.ranks[rank, MEMBERS] * steady.ranks[rank, STEP]
    )


@inner
def order_ends(state: State, steady: Steady, rank: int) -> None:
    """`ends.sort_ends`, by the steps in which members end."""
    num_steps, count = steady.ends.shape[1], 0
    step, members = steady.ranks[rank, STEP], steady.ranks[rank, MEMBERS]
    left = 0
    while count < members:
        left += 1
        request = steady.ends[rank, (step + left) % num_steps]
        while request != NONE:
            state.ends[rank, count, 0] = left
            state.ends[rank, count, 1] = (
                state.requests[request, INPUTS] + wanted_tokens(state, request) - left
            )
            count += 1
            request = state.requests[request, NEXT]
    state.ends[rank, state.ends.shape[1] - 1, 0] = count


@inner
def plan_step(state: State, steady: Steady, rank: int, slot: int) -> None:
    """All members decode in the slot's iteration;
    those whose last token it is are members no more.
    """
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
        context = state.requests[request, INPUTS] + wanted_tokens(state, request) - 1
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
def no_step(steady: Steady, rank: int, slot: int) -> None:
    """Nobody is counted in the slot's iteration."""
    steady.slots[rank, slot, SLOT_STEP] = NONE
    steady.slots[rank, slot, SLOT_MEMBERS] = 0
    steady.slots[rank, slot, SLOT_CONTEXT] = 0
    for w in range(len(steady.windows)):
        steady.slot_seen[rank, slot, w] = 0


@inner
def enter_steady(state: State, steady: Steady, rank: int) -> None:
    """Running requests that decode are counted from the next step on, unless several prompts go on
    at once.
    """
    partial = NONE
    for at in range(state.ranks[rank, NUM_RUNNING]):
        request = state.running[rank, at]
        state.requests[request, PLACE] = at
        if lacking(state, request) > 0 and not decodes_next(state, request):
            if partial != NONE:
                return
            partial = request
    steady.ranks[rank, ON] = 1
    steady.ranks[rank, PARTIAL] = partial
    for at in range(state.ranks[rank, NUM_RUNNING]):
        request = state.running[rank, at]
        if request != partial and decodes_next(state, request):
            join(state, steady, rank, request)


@inner
def decodes_next(state: State, request: int) -> bool:
    """Its prompt is computed, or will be behind the iterations under way, and it lacks further
    tokens of its answer.
    """
    answered = state.requests[request, GENERATED] + state.requests[request, PLACED]
    prompt = state.requests[request, INPUTS] + answered - 1
    return bool(
        0 < answered < wanted_tokens(state, request) and state.requests[request, COMPUTED] >= prompt
    )


@inner
def leave_steady(state: State, steady: Steady, rank: int, under_way: int) -> None:
    """Each request is what it has become; members of the step that is `under_way` in a slot (NONE =
    none) have an entry there.
    """
    steady.ranks[rank, ON] = 0
    step = steady.slots[rank, under_way, SLOT_STEP] if under_way != NONE else NONE
    restore_order(state, rank)
    count = 0
    for at in range(state.ranks[rank, NUM_RUNNING]):
        request = state.running[rank, at]
        state.requests[request, PLACE] = at
        last, first = state.requests[request, ENDS], state.requests[request, JOINED]
        if last == NONE:
            continue
        planned = min(steady.ranks[rank, STEP], last) - first + 1
        there = 1 if step != NONE and first <= step <= last else 0
        state.requests[request, GENERATED] += planned - there
        state.requests[request, PLACED] += there
        tokens = (
            state.requests[request, INPUTS]
            + state.requests[request, GENERATED]
            + state.requests[request, PLACED]
            - 1
        )
        state.requests[request, COMPUTED] = tokens
        state.requests[request, HELD] = max(state.requests[request, HELD], blocks_of(state, tokens))
        if state.settings[ADMISSION] == OF_WHOLE:
            state.requests[request, PROMISE] = max(
                0, whole_blocks(state, request) - state.requests[request, HELD]
            )
        state.requests[request, ENDS] = NONE
        steady.ends[rank, last % steady.ends.shape[1]] = NONE
        if there:
            insert_entry(state, rank, under_way, count, request, tokens - 1)
            count += 1
    forget_members(steady, rank)
    if under_way != NONE:
        no_step(steady, rank, under_way)


@inner
def forget_members(steady: Steady, rank: int) -> None:
    """Nobody is counted."""
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
def insert_entry(state: State, rank: int, slot: int, at: int, request: int, before: int) -> None:
    """A token of the request is the `at`-th entry of the slot, before those that were there."""
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
def restore_order(state: State, rank: int) -> None:
    """Running requests in the order in which they came, which counting does not keep (Shell's
    sort).
    """
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
def take_off(state: State, rank: int, request: int) -> None:
    """A request runs no more; the last one takes its place."""
    state.ranks[rank, NUM_RUNNING] -= 1
    last = state.running[rank, state.ranks[rank, NUM_RUNNING]]
    place = state.requests[request, PLACE]
    state.running[rank, place] = last
    state.requests[last, PLACE] = place
