"""TensorRT-LLM's two rules that delay prompts although they could run.

Both are applied before each iteration is filled (`PyExecutor._balance_adp_requests`,
`_waiting_requests`; read in a copy of 1.2). With data parallel attention the ranks run in lockstep,
so that a prompt of one delays all: prompts wait until every rank has a prompt and room for it, or
until the count of iterations without that, with prompts or not, reaches a limit. Otherwise they
wait until prompts and decode tokens fill a share of the budget, or for a number of iterations. In
both rules no prompt waits while a rank has nothing else to do.

Source:
https://github.com/NVIDIA/TensorRT-LLM/blob/v1.2.0rc6/tensorrt_llm/_torch/pyexecutor/py_executor.py
"""

from __future__ import annotations

from shardwright.kernel_compilation import allocation_free, inner
from shardwright.serving.policy.batch_entries_and_preemption import (
    decodes,
    known_tokens,
    tokens_to_compute,
)
from shardwright.serving.policy.kv_cache_blocks import (
    blocks_of,
    cached_tokens,
    revived_blocks,
    skipped_tokens,
)
from shardwright.serving.policy.linked_lists_of_waiting_requests import (
    first_waiting,
    refresh_visible,
)
from shardwright.serving.policy.scheduler_state import (
    ADMISSION,
    BALANCE_ITERATIONS,
    DRAFT_TOKENS,
    FREE,
    HELD_BACK,
    MAX_SEQUENCES,
    NEXT,
    NONE,
    NUM_RUNNING,
    OF_WHOLE,
    PROMISED,
    TOKEN_BUDGET,
    VISIBLE,
    WAIT_ITERATIONS,
    WAIT_TOKENS,
    WAITED,
    SchedulerState,
)
from shardwright.serving.policy.tensorrt_llm_scheduler import longest_blocks, prompt_chunk


@inner
def delays_prompts(state: SchedulerState) -> bool:
    """True if the settings let prompts wait to balance the ranks or to fill a batch."""
    return bool(state.settings[WAIT_ITERATIONS] > 0 or state.settings[BALANCE_ITERATIONS] > 0)


@inner
def num_decoding(state: SchedulerState, rank: int) -> int:
    """Number of running requests that decode in the next iteration."""
    count = 0
    for at in range(state.ranks[rank, NUM_RUNNING]):
        request = state.running[rank, at]
        if decodes(state, request, tokens_to_compute(state, request)):
            count += 1
    return count


@inner
def partial_prompt(state: SchedulerState, rank: int) -> int:
    """Index in `state.requests` of a rank's first running partial prompt; NONE = none."""
    for at in range(state.ranks[rank, NUM_RUNNING]):
        request = state.running[rank, at]
        new = tokens_to_compute(state, request)
        if new > 0 and not decodes(state, request, new):
            return int(request)
    return NONE


@inner
def prompt_tokens(state: SchedulerState, rank: int, answers: int, partial: int) -> int:
    """Full length in tokens of all prompts that a rank's next iteration can hold beside decodes.

    Args:
        answers: requests that decode in the iteration.
        partial: a running request whose prompt is partly computed; NONE = there is none.
    """
    budget, tokens = state.settings[TOKEN_BUDGET] - answers * (1 + state.settings[DRAFT_TOKENS]), 0
    if partial != NONE:
        tokens += known_tokens(state, partial)
        budget -= min(budget, tokens_to_compute(state, partial))
    spare = state.ranks[rank, FREE]
    if state.settings[ADMISSION] == OF_WHOLE:
        spare -= state.ranks[rank, PROMISED]
    request, free_seats = (
        first_waiting(state, rank),
        state.settings[MAX_SEQUENCES] - state.ranks[rank, NUM_RUNNING],
    )
    for _ in range(min(free_seats, state.ranks[rank, VISIBLE])):
        if request == NONE or budget <= 0:
            break
        cached = cached_tokens(state, rank, request)
        skipped = skipped_tokens(state, request, cached)
        new = prompt_chunk(state, known_tokens(state, request) - skipped, budget)
        needed_blocks = (
            longest_blocks(state, request)
            if state.settings[ADMISSION] == OF_WHOLE
            else blocks_of(state, skipped + new)
        )
        spare -= needed_blocks - blocks_of(state, cached) + revived_blocks(state, rank, request)
        if new == 0 or spare < 0:
            break
        tokens += known_tokens(state, request)
        budget -= new
        request = state.requests[request, NEXT]
    return int(tokens)


@inner
def note_prompts(state: SchedulerState, rank: int, answers: int, partial: int) -> None:
    """Write a rank's prompts to HELD_BACK: 0 = none or no room, 1 = some, 2 = enough or no decodes.

    2 also where the rank has nothing else to do. A rank without room for another request counts as
    one without prompts.
    """
    refresh_visible(state, rank)
    tokens = prompt_tokens(state, rank, answers, partial)
    if state.settings[WAIT_ITERATIONS] > 0:
        is_enough = (
            answers == 0
            or tokens + answers * (1 + state.settings[DRAFT_TOKENS]) >= state.settings[WAIT_TOKENS]
        )
        state.ranks[rank, HELD_BACK] = 0 if tokens == 0 else 2 if is_enough else 1
        return
    has_seat = answers < state.settings[MAX_SEQUENCES]
    state.ranks[rank, HELD_BACK] = 2 if answers == 0 else 1 if tokens > 0 and has_seat else 0


@inner
def decide_delay(state: SchedulerState, first_rank: int, count: int) -> None:
    """Decide for the ranks together if prompts wait; write 1 (wait) or 0 to each HELD_BACK."""
    fewest, highest = 2, 0
    for rank in range(first_rank, first_rank + count):
        fewest, highest = (
            min(fewest, state.ranks[rank, HELD_BACK]),
            max(highest, state.ranks[rank, HELD_BACK]),
        )
    wait = False
    if state.settings[WAIT_ITERATIONS] > 0:
        if highest == 1 and state.ranks[first_rank, WAITED] < state.settings[WAIT_ITERATIONS]:
            state.ranks[first_rank, WAITED] += 1
            wait = True
        elif highest > 0:
            state.ranks[first_rank, WAITED] = 0
    else:
        state.ranks[first_rank, WAITED] += 1
        if (
            fewest > 0
            or highest == 2
            or state.ranks[first_rank, WAITED] >= state.settings[BALANCE_ITERATIONS]
        ):
            state.ranks[first_rank, WAITED] = 0
        else:
            wait = True
    for rank in range(first_rank, first_rank + count):
        state.ranks[rank, HELD_BACK] = 1 if wait else 0


@allocation_free
def update_prompt_delay(state: SchedulerState, first_rank: int, count: int) -> None:
    """Decide if the prompts of a worker's ranks wait in the next iteration (HELD_BACK).

    The requests are read one by one.
    """
    if not delays_prompts(state):
        return
    for rank in range(first_rank, first_rank + count):
        note_prompts(state, rank, num_decoding(state, rank), partial_prompt(state, rank))
    decide_delay(state, first_rank, count)
