"""Prompts that wait for company, though they could run: whether the next iteration of a worker goes
without them.

Two rules of TensorRT-LLM's executor, asked before each iteration is filled
(`PyExecutor._balance_adp_requests`, `_waiting_requests`; read in a copy of 1.2). With attention of
their own ranks run in lockstep, so that a prompt of one holds up all: prompts wait until every rank
has one, and a seat for it, or until the count of iterations in which that was not so, with prompts
or without, has come to a limit. Elsewhere they wait until they and the tokens of answers fill a
share of the budget, or so many iterations. In both nobody waits where somebody has nothing else to
do.

Source:
https://github.com/NVIDIA/TensorRT-LLM/blob/v1.2.0rc6/tensorrt_llm/_torch/pyexecutor/py_executor.py
"""

from __future__ import annotations

from shardwright.compiled import allocation_free, inner
from shardwright.serving.policy.batch_entries import known_tokens, lacking
from shardwright.serving.policy.cache_blocks import (
    blocks_of,
    cached_tokens,
    done_tokens,
    revived_blocks,
)
from shardwright.serving.policy.request_queue import first_waiting, look
from shardwright.serving.policy.scheduler_state import (
    ADMISSION,
    BALANCE_ITERATIONS,
    COMPUTED,
    FREE,
    GUESSES,
    HELD_BACK,
    INPUTS,
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
    State,
)
from shardwright.serving.policy.tensorrt_batches import cut, whole_blocks


@inner
def waits(state: State) -> bool:
    """Whether prompts ever wait for company."""
    return bool(state.settings[WAIT_ITERATIONS] > 0 or state.settings[BALANCE_ITERATIONS] > 0)


@inner
def decoding(state: State, rank: int) -> int:
    """Running requests that get a token in the next iteration."""
    count = 0
    for at in range(state.ranks[rank, NUM_RUNNING]):
        if _decodes(state, state.running[rank, at]):
            count += 1
    return count


@inner
def going_on(state: State, rank: int) -> int:
    """The first running request whose prompt is not computed yet; NONE = there is none."""
    for at in range(state.ranks[rank, NUM_RUNNING]):
        request = state.running[rank, at]
        if lacking(state, request) > 0 and not _decodes(state, request):
            return int(request)
    return NONE


@inner
def _decodes(state: State, request: int) -> bool:
    new = lacking(state, request)
    return bool(
        new > 0
        and new == 1 + state.settings[GUESSES]
        and state.requests[request, COMPUTED] >= state.requests[request, INPUTS]
    )


@inner
def prompt_tokens(state: State, rank: int, answers: int, partial: int) -> int:
    """Whole prompts that the next iteration of a rank would have, in tokens, beside `answers`
    requests that decode; 0 = none.

    Args:
        partial: a running request whose prompt goes on; NONE = there is none.
    """
    budget, tokens = state.settings[TOKEN_BUDGET] - answers * (1 + state.settings[GUESSES]), 0
    if partial != NONE:
        tokens += known_tokens(state, partial)
        budget -= min(budget, lacking(state, partial))
    spare = state.ranks[rank, FREE]
    if state.settings[ADMISSION] == OF_WHOLE:
        spare -= state.ranks[rank, PROMISED]
    request, seats = (
        first_waiting(state, rank),
        state.settings[MAX_SEQUENCES] - state.ranks[rank, NUM_RUNNING],
    )
    for _ in range(min(seats, state.ranks[rank, VISIBLE])):
        if request == NONE or budget <= 0:
            break
        cached = cached_tokens(state, rank, request)
        done = done_tokens(state, request, cached)
        new = cut(state, known_tokens(state, request) - done, budget)
        whole = (
            whole_blocks(state, request)
            if state.settings[ADMISSION] == OF_WHOLE
            else blocks_of(state, done + new)
        )
        spare -= whole - blocks_of(state, cached) + revived_blocks(state, rank, request)
        if new == 0 or spare < 0:
            break
        tokens += known_tokens(state, request)
        budget -= new
        request = state.requests[request, NEXT]
    return int(tokens)


@inner
def note_rank(state: State, rank: int, answers: int, partial: int) -> None:
    """What `settle` asks of a rank: HELD_BACK is 0 without prompts, 1 with some, 2 with enough of
    them or none to wait for.

    A rank without a seat for a prompt counts as one without prompts.
    """
    look(state, rank)
    tokens = prompt_tokens(state, rank, answers, partial)
    if state.settings[WAIT_ITERATIONS] > 0:
        enough = (
            answers == 0
            or tokens + answers * (1 + state.settings[GUESSES]) >= state.settings[WAIT_TOKENS]
        )
        state.ranks[rank, HELD_BACK] = 0 if tokens == 0 else 2 if enough else 1
        return
    seat = answers < state.settings[MAX_SEQUENCES]
    state.ranks[rank, HELD_BACK] = 2 if answers == 0 else 1 if tokens > 0 and seat else 0


@inner
def settle(state: State, first: int, count: int) -> None:
    """Decide for `count` ranks of a worker from `first` on, which `note_rank` was asked of:
    HELD_BACK says then whether prompts wait.
    """
    fewest, most = 2, 0
    for rank in range(first, first + count):
        fewest, most = (
            min(fewest, state.ranks[rank, HELD_BACK]),
            max(most, state.ranks[rank, HELD_BACK]),
        )
    wait = False
    if state.settings[WAIT_ITERATIONS] > 0:
        if most == 1 and state.ranks[first, WAITED] < state.settings[WAIT_ITERATIONS]:
            state.ranks[first, WAITED] += 1
            wait = True
        elif most > 0:
            state.ranks[first, WAITED] = 0
    else:
        state.ranks[first, WAITED] += 1
        if (
            fewest > 0
            or most == 2
            or state.ranks[first, WAITED] >= state.settings[BALANCE_ITERATIONS]
        ):
            state.ranks[first, WAITED] = 0
        else:
            wait = True
    for rank in range(first, first + count):
        state.ranks[rank, HELD_BACK] = 1 if wait else 0


@allocation_free
def wait_for_company(state: State, first: int, count: int) -> None:
    """Ask all ranks of a worker, whose requests are looked at one by one, and decide."""
    if not waits(state):
        return
    for rank in range(first, first + count):
        note_rank(state, rank, decoding(state, rank), going_on(state, rank))
    settle(state, first, count)
