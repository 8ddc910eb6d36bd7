"""Iterations of a rank whose decoding requests are counts: planned and finished as `iteration` does
one by one.
"""

from __future__ import annotations

from shardwright.compiled import inner
from shardwright.serving.policy.batch_entries import known_tokens, schedule, wanted_tokens
from shardwright.serving.policy.cache_blocks import blocks_of, hold, release, remember, take
from shardwright.serving.policy.decode_only_iterations import (
    MEMBERS,
    ON,
    PARTIAL,
    SLOT_MEMBERS,
    SLOT_STEP,
    Steady,
    enter_steady,
    growth,
    join,
    lacking_tokens,
    leave_steady,
    no_step,
    order_ends,
    plan_step,
    take_off,
)
from shardwright.serving.policy.next_iteration import begin_plan, end_plan, plan
from shardwright.serving.policy.prompt_delay import decoding, going_on, note_rank
from shardwright.serving.policy.request_queue import first_waiting, look
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
    FULL,
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
    NUM_RUNNING,
    OF_WHOLE,
    ONLY_ANSWERS,
    ORDER,
    PLACED,
    PREFILL_FIRST,
    PROMISE,
    PROMISED,
    SAMPLED,
    SHARE_FALL,
    SHARE_FIRST,
    SHARE_LEAST,
    STATUS,
    TOKEN_BUDGET,
    State,
)
from shardwright.serving.policy.sglang_batches import add_prompts, wants_prompts
from shardwright.serving.policy.tensorrt_batches import admit_in_flight, cut, promise, whole_blocks
from shardwright.serving.policy.vllm_batches import admit_mixed


@inner
def plan_folded(
    state: State, steady: Steady, rank: int, slot: int, under_way: int, counted: bool
) -> int:
    """Fill the rank's next iteration; how many requests are in it.

    Args:
        under_way: a slot whose iteration has not ended; NONE = none.
        counted: requests that decode may be counted: they get one token each time, and are in one
            iteration at a time, or in the next one too.
    """
    if steady.ranks[rank, ON]:
        look(state, rank)
        if can_fold(state, steady, rank):
            begin_plan(state, rank, slot)
            fold(state, steady, rank, slot)
            size = state.batch_size[rank, slot] + steady.slots[rank, slot, SLOT_MEMBERS]
            end_plan(state, rank, steady.slots[rank, slot, SLOT_MEMBERS] > 0)
            return int(size)
        leave_steady(state, steady, rank, under_way)
    no_step(steady, rank, slot)
    size = plan(state, rank, slot)
    if counted:
        enter_steady(state, steady, rank)
    return int(size)


@inner
def note_folded(state: State, steady: Steady, rank: int) -> None:
    """`waits.note_rank` of a rank, whether its requests are counts or not."""
    if steady.ranks[rank, ON]:
        note_rank(state, rank, steady.ranks[rank, MEMBERS], steady.ranks[rank, PARTIAL])
    else:
        note_rank(state, rank, decoding(state, rank), going_on(state, rank))


@inner
def can_fold(state: State, steady: Steady, rank: int) -> bool:
    """All members get a token, and a prompt that goes on its part, without anybody's loss; and
    nothing has to look at them one by one.
    """
    need = growth(state, steady, rank) if steady.ranks[rank, MEMBERS] > 0 else 0
    if need > state.ranks[rank, FREE]:
        return False
    if state.settings[BATCHING] == PREFILL_FIRST:
        beside = state.settings[MIXES_DECODE] or state.settings[ONLY_ANSWERS]
        clipped = state.shares[CLIP] < steady.ends.shape[1]
        waits = state.ranks[rank, CHUNKED] != NONE or first_waiting(state, rank) != NONE
        return not (waits and (beside or clipped))
    budget = state.settings[TOKEN_BUDGET] - steady.ranks[rank, MEMBERS]
    if budget < 0:
        return False
    request = steady.ranks[rank, PARTIAL]
    if request == NONE:
        return True
    new = part_of(state, request, budget)
    blocks = (
        blocks_of(state, state.requests[request, COMPUTED] + new) - state.requests[request, HELD]
    )
    return bool(need + max(0, blocks) <= state.ranks[rank, FREE])


@inner
def part_of(state: State, request: int, budget: int) -> int:
    """Tokens of the prompt that goes on."""
    left = known_tokens(state, request) - state.requests[request, COMPUTED]
    return (
        cut(state, left, budget)
        if state.settings[BATCHING] == IN_FLIGHT
        else int(min(left, budget))
    )


@inner
def fold(state: State, steady: Steady, rank: int, slot: int) -> None:
    """Plan what `can_fold` says can be."""
    if state.settings[BATCHING] == PREFILL_FIRST:
        if fold_prompts(state, steady, rank):
            no_step(steady, rank, slot)
            take_in(state, steady, rank, slot)
            return
        settle_decode(state, rank)
    budget = state.settings[TOKEN_BUDGET] - steady.ranks[rank, MEMBERS]
    if steady.ranks[rank, MEMBERS] > 0:
        blocks = growth(state, steady, rank)
        take(state, rank, blocks)
        if state.settings[ADMISSION] == OF_WHOLE:
            state.ranks[rank, PROMISED] -= blocks
        plan_step(state, steady, rank, slot)
    else:
        no_step(steady, rank, slot)
    if state.settings[BATCHING] == PREFILL_FIRST or state.ranks[rank, HELD_BACK]:
        return
    request = steady.ranks[rank, PARTIAL]
    if request != NONE:
        new = part_of(state, request, budget)
        if new == 0:
            return
        hold(state, rank, request, state.requests[request, COMPUTED] + new)
        if state.settings[BATCHING] == MIXED:
            remember(state, rank, request, state.requests[request, COMPUTED] + new)
        schedule(state, rank, request, new)
        promise(state, rank, request)
        budget -= new
    steady.ranks[rank, PARTIAL] = NONE
    if budget > 0:
        if state.settings[BATCHING] == MIXED:
            admit_mixed(state, rank, budget)
        else:
            admit_in_flight(state, rank, budget)
    take_in(state, steady, rank, slot)


@inner
def fold_prompts(state: State, steady: Steady, rank: int) -> bool:
    """Prompts alone fill the iteration, if any are let in."""
    if not wants_prompts(state, rank):
        return False
    if state.settings[KNOWS_ENDS]:
        order_ends(state, steady, rank)
    return bool(add_prompts(state, rank, float(lacking_tokens(steady, rank))) > 0)


@inner
def take_in(state: State, steady: Steady, rank: int, slot: int) -> None:
    """Requests whose prompt ends in the slot's iteration are members from the next step on."""
    for entry in range(state.batch_size[rank, slot]):
        request = state.batch[rank, slot, entry, ENTRY]
        if not state.batch[rank, slot, entry, SAMPLED]:
            if state.settings[BATCHING] != PREFILL_FIRST:
                steady.ranks[rank, PARTIAL] = request
        elif state.requests[request, GENERATED] + state.requests[request, PLACED] < wanted_tokens(
            state, request
        ):
            join(state, steady, rank, request)


@inner
def settle_decode(state: State, rank: int) -> None:
    """What `prefill_first` keeps in mind from one iteration of decode to the next."""
    if state.ranks[rank, LEFT]:
        state.ranks[rank, FULL], state.ranks[rank, LEFT] = 0, 0
    if state.ranks[rank, NUM_RUNNING] == 0:
        state.ranks[rank, FULL] = 0
        state.share[rank] = state.shares[SHARE_FIRST]
    else:
        state.share[rank] = max(
            state.shares[SHARE_LEAST], state.share[rank] - state.shares[SHARE_FALL]
        )


@inner
def ending(state: State, steady: Steady, rank: int, slot: int) -> int:
    """First of the members whose last token the slot's iteration was, in their order, linked by
    NEXT; they are members of no list then.
    """
    step = steady.slots[rank, slot, SLOT_STEP]
    if step == NONE:
        return NONE
    place = step % steady.ends.shape[1]
    request = steady.ends[rank, place]
    steady.ends[rank, place] = NONE
    ordered = NONE
    while request != NONE:
        after = state.requests[request, NEXT]
        ordered = insert_ordered(state, ordered, request)
        request = after
    return int(ordered)


@inner
def insert_ordered(state: State, first: int, request: int) -> int:
    """A list by ORDER with one more; its first."""
    order = state.requests[request, ORDER]
    if first == NONE or state.requests[first, ORDER] > order:
        state.requests[request, NEXT] = first
        return request
    at = first
    while (
        state.requests[at, NEXT] != NONE and state.requests[state.requests[at, NEXT], ORDER] < order
    ):
        at = state.requests[at, NEXT]
    state.requests[request, NEXT] = state.requests[at, NEXT]
    state.requests[at, NEXT] = request
    return first


@inner
def end_member(state: State, rank: int, request: int) -> None:
    """A member has its last token: its blocks are free."""
    wanted = wanted_tokens(state, request)
    state.requests[request, GENERATED] = wanted
    state.requests[request, PLACED] = 0
    state.requests[request, ENDS] = NONE
    tokens = state.requests[request, INPUTS] + wanted - 1
    state.requests[request, HELD] = max(state.requests[request, HELD], blocks_of(state, tokens))
    if state.settings[ADMISSION] == OF_WHOLE:
        state.ranks[rank, PROMISED] -= max(
            0, whole_blocks(state, request) - state.requests[request, HELD]
        )
        state.requests[request, PROMISE] = 0
    state.requests[request, STATUS] = DONE
    release(state, rank, request, 0)
    take_off(state, rank, request)
    state.ranks[rank, LEFT] = 1
