"""SGLang's scheduling policy: iterations of prompts alone come before decode iterations.

As long as any waiting request can be admitted an iteration is of prompts alone, up to
`TOKEN_BUDGET` tokens (chunked_prefill_size): whole prompts, and the last one cut where chunks are
allowed, which continues first in the next iteration. Otherwise all running requests decode a token.
With `MIXES_DECODE` they do so beside prompts too.

Admission: the free tokens, less the share of their answers that running requests are expected to
need, hold the prompt and its longest answer. The share falls with each iteration of decode; where
decode finds no block, the requests with the fewest tokens (of them the longest prompts) are
retracted to the back of the queue, and the share is set anew. Once no request could be admitted,
the queue is not polled until a running request has ended and a decode iteration was planned since.
Where ends are known (`KNOWS_ENDS`: answers ignore the end and the cache of prefixes is off) the
free tokens at each coming end are followed instead.

A decode worker admits each request whose prompt cache it receives while there are sequences and
blocks: chunks are of prompts that it computes, which are those of retracted requests (left out:
that their cache comes back from the host's memory instead).

Source: SGLang, python/sglang/srt/disaggregation/decode.py (`get_new_prebuilt_batch`),
python/sglang/srt/managers/schedule_policy.py (`PrefillAdder`), scheduler.py
(`get_next_batch_to_run`, `get_new_batch_prefill`, `update_running_batch`), schedule_batch.py
(`check_decode_mem`, `retract_decode`). Left out: orders other than first come, priorities, the
prefill delayer, sliding windows' own budget, a batch's finished members that run once more with the
overlapped scheduler.
"""

from __future__ import annotations

from shardwright.kernel_compilation import inner
from shardwright.serving.policy.batch_entries_and_preemption import (
    add_entry,
    answer_tokens,
    answered_tokens,
    append_running,
    drop_cache,
    known_tokens,
    start_first,
    tokens_to_compute,
)
from shardwright.serving.policy.kv_cache_blocks import (
    blocks_of,
    cached_tokens,
    hold_blocks,
    missing_blocks,
    revived_blocks,
    skipped_tokens,
)
from shardwright.serving.policy.linked_lists_of_waiting_requests import append, first_waiting
from shardwright.serving.policy.scheduler_state import (
    BLOCK_TOKENS,
    CHUNKED,
    CHUNKED_PREFILL,
    CLIP,
    COMPUTED,
    FREE,
    FULL,
    GENERATED,
    GRANTED,
    INPUTS,
    KNOWS_ENDS,
    LEFT,
    MAX_SEQUENCES,
    MIXES_DECODE,
    NONE,
    NUM_RUNNING,
    ONLY_ANSWERS,
    PREEMPTED,
    PROMPT_TOKENS,
    SHARE_FALL,
    SHARE_FIRST,
    SHARE_LEAST,
    TOKEN_BUDGET,
    SchedulerState,
)
from shardwright.serving.policy.sglang_known_length_admission import ends_allow, sort_ends

_CONTINUE, _NO_TOKEN, _OTHER = range(3)


@inner
def longest_answer(state: SchedulerState, request: int) -> float:
    """Tokens of a request's whole answer, at most `shares[CLIP]`."""
    return float(min(float(answer_tokens(state, request)), state.shares[CLIP]))


@inner
def expected_tokens(state: SchedulerState, request: int) -> float:
    """Tokens of a request's answer still to come, from 0 to `shares[CLIP]`."""
    tokens_left = answer_tokens(state, request) - answered_tokens(state, request)
    return float(max(0.0, min(float(tokens_left), state.shares[CLIP])))


@inner
def whole_block_tokens(state: SchedulerState, tokens: int) -> int:
    """Round `tokens` up to whole cache blocks; return the number of tokens."""
    return int(blocks_of(state, tokens) * state.settings[BLOCK_TOKENS])


@inner
def continue_prompt(state: SchedulerState, rank: int, chunk: int, total: float) -> int:
    """Add the cut prompt's next tokens, at most `chunk` and `total` (if >= 1); return the count."""
    request = state.ranks[rank, CHUNKED]
    uncomputed = known_tokens(state, request) - state.requests[request, COMPUTED]
    room = min(chunk, int(total))
    if room <= 0:
        room = chunk
    new = min(uncomputed, room)
    if not hold_blocks(state, rank, request, state.requests[request, COMPUTED] + new):
        return 0
    add_entry(state, rank, request, new)
    if new == uncomputed:
        state.ranks[rank, CHUNKED] = NONE
        append_running(state, rank, request)
    return int(new)


@inner
def all_expected_tokens(state: SchedulerState, rank: int) -> float:
    """Sum of `expected_tokens` over a rank's running requests."""
    expected = 0.0
    for at in range(state.ranks[rank, NUM_RUNNING]):
        expected += expected_tokens(state, state.running[rank, at])
    return expected


@inner
def may_add_prompts(state: SchedulerState, rank: int) -> bool:
    """True if a cut prompt continues, or a request waits and the rank is not marked full."""
    if state.ranks[rank, NUM_RUNNING] == 0:
        state.ranks[rank, FULL] = 0
    if state.ranks[rank, CHUNKED] != NONE:
        return True
    if first_waiting(state, rank) == NONE:
        return False
    if state.ranks[rank, NUM_RUNNING] >= state.settings[MAX_SEQUENCES]:
        state.ranks[rank, FULL] = 1
    return bool(state.ranks[rank, FULL] == 0)


@inner
def add_prompts(state: SchedulerState, rank: int, expected: float) -> int:
    """Add the cut prompt's next chunk and admit waiting prompts; return the number of prompts.

    Args:
        expected: see `all_expected_tokens`.
    """
    block = state.settings[BLOCK_TOKENS]
    running = state.ranks[rank, NUM_RUNNING]
    decode_tokens = running if state.settings[MIXES_DECODE] else 0
    free_tokens = float(state.ranks[rank, FREE] * block - decode_tokens)
    total = free_tokens - expected * state.share[rank]
    prompt_room = state.settings[PROMPT_TOKENS] - decode_tokens
    chunk = state.settings[TOKEN_BUDGET] - decode_tokens
    continues = state.ranks[rank, CHUNKED] != NONE
    count = 0
    if continues:
        request = state.ranks[rank, CHUNKED]
        new_tokens = continue_prompt(state, rank, chunk, total)
        count += 1 if new_tokens > 0 else 0
        is_complete = state.ranks[rank, CHUNKED] == NONE
        total -= (
            whole_block_tokens(state, new_tokens)
            + block
            + (longest_answer(state, request) if is_complete else 0.0)
        )
        free_tokens -= whole_block_tokens(state, new_tokens) + block
        prompt_room, chunk = (
            prompt_room - whole_block_tokens(state, new_tokens),
            chunk - whole_block_tokens(state, new_tokens),
        )
    while True:
        request = first_waiting(state, rank)
        if request == NONE or state.ranks[rank, CHUNKED] != NONE:
            break
        if count >= state.settings[MAX_SEQUENCES] - running:
            state.ranks[rank, FULL] = 1
            break
        cached = cached_tokens(state, rank, request)
        skipped = skipped_tokens(state, request, cached)
        uncomputed = known_tokens(state, request) - skipped
        # A cache from a prefill worker takes blocks but no time.
        room = uncomputed + skipped - cached
        verdict = admission_verdict(state, rank, request, room, total, free_tokens)
        # A request whose prompt cache was transferred has no part in a chunk.
        has_cache = state.settings[ONLY_ANSWERS] and state.requests[request, PREEMPTED] == 0
        if (
            not has_cache
            and verdict == _CONTINUE
            and state.settings[PROMPT_TOKENS] > 0
            and count > 0
            and whole_block_tokens(state, uncomputed) >= prompt_room
        ):
            verdict = _OTHER
        new_tokens = uncomputed
        if (
            not has_cache
            and state.settings[CHUNKED_PREFILL]
            and whole_block_tokens(state, uncomputed) > chunk
        ):
            new_tokens = chunk // block * block
            if new_tokens <= 0 and verdict == _CONTINUE:
                verdict = _OTHER
        if verdict != _CONTINUE:
            state.ranks[rank, FULL] = 1 if verdict == _NO_TOKEN else state.ranks[rank, FULL]
            break
        # Cached blocks that only the cache held are not free any more.
        revived = revived_blocks(state, rank, request) * block
        start_first(state, rank, request)
        hold_blocks(state, rank, request, skipped + new_tokens)
        add_entry(state, rank, request, new_tokens)
        count += 1
        if new_tokens < uncomputed:
            state.ranks[rank, CHUNKED] = request
        else:
            append_running(state, rank, request)
        expected_answer = longest_answer(state, request) if new_tokens == uncomputed else 0.0
        block_tokens = whole_block_tokens(state, new_tokens + skipped - cached) + block + revived
        total -= block_tokens + expected_answer
        free_tokens -= block_tokens
        if total <= 0 or free_tokens <= 0:
            state.ranks[rank, FULL] = 1
            break
        if has_cache:
            continue
        prompt_room, chunk = (
            prompt_room - whole_block_tokens(state, new_tokens),
            chunk - whole_block_tokens(state, new_tokens),
        )
        if (state.settings[PROMPT_TOKENS] > 0 and prompt_room <= 0) or (
            state.settings[CHUNKED_PREFILL] and chunk <= 0
        ):
            break
    return count


@inner
def admission_verdict(
    state: SchedulerState,
    rank: int,
    request: int,
    uncomputed: int,
    total: float,
    free_tokens: float,
) -> int:
    """_CONTINUE if a request fits `free_tokens` (ends known) or `total` tokens; else _NO_TOKEN."""
    block = state.settings[BLOCK_TOKENS]
    need = whole_block_tokens(state, uncomputed) + block
    if state.settings[KNOWS_ENDS]:
        return (
            _CONTINUE
            if need <= free_tokens and ends_allow(state, rank, request, free_tokens - need)
            else _NO_TOKEN
        )
    revived = revived_blocks(state, rank, request) * block
    return (
        _NO_TOKEN
        if uncomputed + expected_tokens(state, request) + block + revived >= total
        else _CONTINUE
    )


@inner
def decode_blocks(state: SchedulerState, rank: int) -> int:
    """Number of new cache blocks that all running requests need for their next token."""
    need = 0
    for at in range(state.ranks[rank, NUM_RUNNING]):
        request = state.running[rank, at]
        new = tokens_to_compute(state, request)
        if new > 0:
            need += missing_blocks(state, request, state.requests[request, COMPUTED] + new)
    return need


@inner
def retract_one(state: SchedulerState, rank: int) -> None:
    """Retract the running request with fewest answer tokens (tie: longest prompt) to queue's end.

    Of several, the one with the longest prompt, the last of them.
    """
    worst = 0
    for at in range(1, state.ranks[rank, NUM_RUNNING]):
        request, candidate = state.running[rank, at], state.running[rank, worst]
        difference = state.requests[request, GENERATED] - state.requests[candidate, GENERATED]
        if difference < 0 or (
            difference == 0 and state.requests[request, INPUTS] >= state.requests[candidate, INPUTS]
        ):
            worst = at
    request = state.running[rank, worst]
    for at in range(worst + 1, state.ranks[rank, NUM_RUNNING]):
        state.running[rank, at - 1] = state.running[rank, at]
    state.ranks[rank, NUM_RUNNING] -= 1
    drop_cache(
        state,
        rank,
        request,
        min(state.requests[request, COMPUTED], state.requests[request, INPUTS]),
    )
    append(state, rank, request)


@inner
def reset_expected_share(state: SchedulerState, rank: int) -> None:
    """After a retraction, set the expected answer share: (tokens given + GRANTED each) / answers.

    (tokens given + GRANTED steps of each) / (longest answers), over the running requests.
    """
    tokens_given, longest_answers = 0.0, 0.0
    running = state.ranks[rank, NUM_RUNNING]
    for at in range(running):
        tokens_given += state.requests[state.running[rank, at], GENERATED]
        longest_answers += answer_tokens(state, state.running[rank, at])
    state.share[rank] = min(
        1.0, (tokens_given + state.shares[GRANTED] * running) / (longest_answers + 1.0)
    )


@inner
def update_decode_share(state: SchedulerState, rank: int) -> None:
    """Before a decode, lower a rank's expected share of answers one step; reset it if none runs."""
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
def decode_all(state: SchedulerState, rank: int) -> None:
    """Add a decode token of each running request, retracting requests if blocks lack."""
    if decode_blocks(state, rank) > state.ranks[rank, FREE]:
        while (
            state.ranks[rank, NUM_RUNNING] > 1
            and decode_blocks(state, rank) > state.ranks[rank, FREE]
        ):
            retract_one(state, rank)
        reset_expected_share(state, rank)
        state.ranks[rank, FULL], state.ranks[rank, LEFT] = 0, 0
    else:
        update_decode_share(state, rank)
    decode_running(state, rank, state.ranks[rank, NUM_RUNNING])


@inner
def decode_running(state: SchedulerState, rank: int, count: int) -> None:
    """Add a token of each of the first `count` running requests that need one and have blocks."""
    for at in range(count):
        request = state.running[rank, at]
        new = tokens_to_compute(state, request)
        if new > 0 and hold_blocks(state, rank, request, state.requests[request, COMPUTED] + new):
            add_entry(state, rank, request, new)


@inner
def plan_prefill_first(state: SchedulerState, rank: int) -> None:
    """Fill a rank's next iteration in SGLang's order: prompts (mixed: plus decodes), or decodes."""
    running = state.ranks[rank, NUM_RUNNING]
    if may_add_prompts(state, rank):
        if state.settings[KNOWS_ENDS]:
            sort_ends(state, rank)
        if add_prompts(state, rank, all_expected_tokens(state, rank)) > 0:
            if state.settings[MIXES_DECODE] or state.settings[ONLY_ANSWERS]:
                decode_running(state, rank, running)
            return
    decode_all(state, rank)
