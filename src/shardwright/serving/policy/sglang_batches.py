"""Prompts first, as SGLang's scheduler fills batches.

As long as any waiting request can be admitted an iteration is of prompts alone, up to
`TOKEN_BUDGET` tokens (chunked_prefill_size): whole prompts, and the last one cut where chunks are
allowed, which goes on first in the next iteration. Otherwise all running requests decode a token.
With `MIXES_DECODE` they do so beside prompts too.

Admission: the free tokens, less the share of their answers that running requests are expected to
need, hold the prompt and its longest answer. The share falls with each iteration of decode; where
decode finds no block those with the fewest tokens (of them the longest prompts) are sent back
behind all that wait, and the share is set anew. Once nobody could be admitted, nobody is looked at
until a running request has left and a decode iteration was planned since. Where ends are known
(`KNOWS_ENDS`: answers ignore the end and the cache of prefixes is off) the free tokens at each
coming end are followed instead.

A worker for answers alone lets in whoever brings the cache of his prompt while there are sequences
and blocks: chunks are of prompts that it computes, which are those of requests that were sent back
(left out: that their cache comes back from the host's memory instead).

Source: SGLang, python/sglang/srt/disaggregation/decode.py (`get_new_prebuilt_batch`),
python/sglang/srt/managers/schedule_policy.py (`PrefillAdder`), scheduler.py
(`get_next_batch_to_run`, `get_new_batch_prefill`, `update_running_batch`), schedule_batch.py
(`check_decode_mem`, `retract_decode`). Left out: orders other than first come, priorities, the
prefill delayer, sliding windows' own budget, a batch's finished members that run once more with the
overlapped scheduler.
"""

from __future__ import annotations

from shardwright.compiled import inner
from shardwright.serving.policy.batch_entries import (
    known_tokens,
    lacking,
    lose,
    run,
    schedule,
    start,
    wanted_tokens,
)
from shardwright.serving.policy.cache_blocks import (
    blocks_of,
    cached_tokens,
    done_tokens,
    hold,
    revived_blocks,
)
from shardwright.serving.policy.known_ends import ends_allow, sort_ends
from shardwright.serving.policy.request_queue import append, first_waiting
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
    HELD,
    INPUTS,
    KNOWS_ENDS,
    LEFT,
    MAX_SEQUENCES,
    MIXES_DECODE,
    NONE,
    NUM_RUNNING,
    ONLY_ANSWERS,
    PLACED,
    PREEMPTED,
    PROMPT_TOKENS,
    SHARE_FALL,
    SHARE_FIRST,
    SHARE_LEAST,
    TOKEN_BUDGET,
    State,
)

_CONTINUE, _NO_TOKEN, _OTHER = range(3)


@inner
def expected_tokens(state: State, request: int) -> float:
    """Tokens that its answer may still have, none beyond the clip counted."""
    left = (
        wanted_tokens(state, request)
        - state.requests[request, GENERATED]
        - state.requests[request, PLACED]
    )
    return float(max(0.0, min(float(left), state.shares[CLIP])))


@inner
def paged(state: State, tokens: int) -> int:
    """Tokens of as many whole blocks as hold `tokens`."""
    return int(blocks_of(state, tokens) * state.settings[BLOCK_TOKENS])


@inner
def go_on(state: State, rank: int, chunk: int, total: float) -> int:
    """The prompt that was cut last goes on, by up to `chunk` tokens; how many they are."""
    request = state.ranks[rank, CHUNKED]
    left = known_tokens(state, request) - state.requests[request, COMPUTED]
    room = min(chunk, int(total))
    if room <= 0:
        room = chunk
    new = min(left, room)
    if not hold(state, rank, request, state.requests[request, COMPUTED] + new):
        return 0
    schedule(state, rank, request, new)
    if new == left:
        state.ranks[rank, CHUNKED] = NONE
        run(state, rank, request)
    return int(new)


@inner
def expected_of_all(state: State, rank: int) -> float:
    """Tokens that all answers may still have."""
    expected = 0.0
    for at in range(state.ranks[rank, NUM_RUNNING]):
        expected += expected_tokens(state, state.running[rank, at])
    return expected


@inner
def wants_prompts(state: State, rank: int) -> bool:
    """Somebody may be let in, or a prompt goes on."""
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
def add_prompts(state: State, rank: int, expected: float) -> int:
    """Prompts of the next iteration; how many requests have a part in it. `expected`: see
    `expected_of_all`.
    """
    block = state.settings[BLOCK_TOKENS]
    running = state.ranks[rank, NUM_RUNNING]
    aside = running if state.settings[MIXES_DECODE] else 0
    now = float(state.ranks[rank, FREE] * block - aside)
    total = now - expected * state.share[rank]
    inputs = state.settings[PROMPT_TOKENS] - aside
    chunk = state.settings[TOKEN_BUDGET] - aside
    chunked = state.ranks[rank, CHUNKED] != NONE
    count = 0
    if chunked:
        request = state.ranks[rank, CHUNKED]
        new = go_on(state, rank, chunk, total)
        count += 1 if new > 0 else 0
        ended = state.ranks[rank, CHUNKED] == NONE
        total -= (
            paged(state, new)
            + block
            + (min(float(wanted_tokens(state, request)), state.shares[CLIP]) if ended else 0.0)
        )
        now -= paged(state, new) + block
        inputs, chunk = inputs - paged(state, new), chunk - paged(state, new)
    while True:
        request = first_waiting(state, rank)
        if request == NONE or state.ranks[rank, CHUNKED] != NONE:
            break
        if count >= state.settings[MAX_SEQUENCES] - running:
            state.ranks[rank, FULL] = 1
            break
        cached = cached_tokens(state, rank, request)
        done = done_tokens(state, request, cached)
        left = known_tokens(state, request) - done
        # What came from elsewhere takes blocks, though no time.
        room = left + done - cached
        verdict = fits(state, rank, request, room, total, now)
        # Who brings the cache of his prompt has no part in a chunk.
        brings = state.settings[ONLY_ANSWERS] and state.requests[request, PREEMPTED] == 0
        if (
            not brings
            and verdict == _CONTINUE
            and state.settings[PROMPT_TOKENS] > 0
            and count > 0
            and paged(state, left) >= inputs
        ):
            verdict = _OTHER
        new = left
        if not brings and state.settings[CHUNKED_PREFILL] and paged(state, left) > chunk:
            new = chunk // block * block
            if new <= 0 and verdict == _CONTINUE:
                verdict = _OTHER
        if verdict != _CONTINUE:
            state.ranks[rank, FULL] = 1 if verdict == _NO_TOKEN else state.ranks[rank, FULL]
            break
        # Cached blocks that only the cache held are not free any more.
        revived = revived_blocks(state, rank, request) * block
        start(state, rank, request)
        hold(state, rank, request, done + new)
        schedule(state, rank, request, new)
        count += 1
        if new < left:
            state.ranks[rank, CHUNKED] = request
        else:
            run(state, rank, request)
        answer = (
            min(float(wanted_tokens(state, request)), state.shares[CLIP]) if new == left else 0.0
        )
        taken = paged(state, new + done - cached) + block + revived
        total -= taken + answer
        now -= taken
        if total <= 0 or now <= 0:
            state.ranks[rank, FULL] = 1
            break
        if brings:
            continue
        inputs, chunk = inputs - paged(state, new), chunk - paged(state, new)
        if (state.settings[PROMPT_TOKENS] > 0 and inputs <= 0) or (
            state.settings[CHUNKED_PREFILL] and chunk <= 0
        ):
            break
    return count


@inner
def fits(state: State, rank: int, request: int, left: int, total: float, now: float) -> int:
    """Whether the free tokens hold the first one that waits: by the ends of all, or with what is
    expected of them.
    """
    block = state.settings[BLOCK_TOKENS]
    need = paged(state, left) + block
    if state.settings[KNOWS_ENDS]:
        return (
            _CONTINUE if need <= now and ends_allow(state, rank, request, now - need) else _NO_TOKEN
        )
    revived = revived_blocks(state, rank, request) * block
    return (
        _NO_TOKEN
        if left + expected_tokens(state, request) + block + revived >= total
        else _CONTINUE
    )


@inner
def decode_blocks(state: State, rank: int) -> int:
    """Blocks that all running requests need for their next token."""
    need = 0
    for at in range(state.ranks[rank, NUM_RUNNING]):
        request = state.running[rank, at]
        new = lacking(state, request)
        if new > 0:
            need += max(
                0,
                blocks_of(state, state.requests[request, COMPUTED] + new)
                - state.requests[request, HELD],
            )
    return need


@inner
def send_back(state: State, rank: int) -> None:
    """The running request with the fewest tokens, of several the one with the longest prompt, the
    last of them, waits behind all others.
    """
    worst = 0
    for at in range(1, state.ranks[rank, NUM_RUNNING]):
        request, least = state.running[rank, at], state.running[rank, worst]
        fewer = state.requests[request, GENERATED] - state.requests[least, GENERATED]
        if fewer < 0 or (
            fewer == 0 and state.requests[request, INPUTS] >= state.requests[least, INPUTS]
        ):
            worst = at
    request = state.running[rank, worst]
    for at in range(worst + 1, state.ranks[rank, NUM_RUNNING]):
        state.running[rank, at - 1] = state.running[rank, at]
    state.ranks[rank, NUM_RUNNING] -= 1
    lose(
        state,
        rank,
        request,
        min(state.requests[request, COMPUTED], state.requests[request, INPUTS]),
    )
    append(state, rank, request)


@inner
def expect_anew(state: State, rank: int) -> None:
    """The share of their answers that those who stay are expected to give: what they gave and some
    steps more, over all they may give.
    """
    given, most = 0.0, 0.0
    running = state.ranks[rank, NUM_RUNNING]
    for at in range(running):
        given += state.requests[state.running[rank, at], GENERATED]
        most += wanted_tokens(state, state.running[rank, at])
    state.share[rank] = min(1.0, (given + state.shares[GRANTED] * running) / (most + 1.0))


@inner
def decode_all(state: State, rank: int) -> None:
    """A token of each running request, at the cost of the shortest answers where blocks are
    missing.
    """
    if state.ranks[rank, LEFT]:
        state.ranks[rank, FULL], state.ranks[rank, LEFT] = 0, 0
    if state.ranks[rank, NUM_RUNNING] == 0:
        state.ranks[rank, FULL] = 0
        state.share[rank] = state.shares[SHARE_FIRST]
        return
    if decode_blocks(state, rank) > state.ranks[rank, FREE]:
        while (
            state.ranks[rank, NUM_RUNNING] > 1
            and decode_blocks(state, rank) > state.ranks[rank, FREE]
        ):
            send_back(state, rank)
        expect_anew(state, rank)
        state.ranks[rank, FULL] = 0
    else:
        state.share[rank] = max(
            state.shares[SHARE_LEAST], state.share[rank] - state.shares[SHARE_FALL]
        )
    decode_running(state, rank, state.ranks[rank, NUM_RUNNING])


@inner
def decode_running(state: State, rank: int, count: int) -> None:
    """The first `count` running requests that lack a token get one, if there are blocks for it."""
    for at in range(count):
        request = state.running[rank, at]
        new = lacking(state, request)
        if new > 0 and hold(state, rank, request, state.requests[request, COMPUTED] + new):
            schedule(state, rank, request, new)


@inner
def plan_prefill_first(state: State, rank: int) -> None:
    """Fill the next iteration of a rank."""
    running = state.ranks[rank, NUM_RUNNING]
    if wants_prompts(state, rank):
        if state.settings[KNOWS_ENDS]:
            sort_ends(state, rank)
        if add_prompts(state, rank, expected_of_all(state, rank)) > 0:
            if state.settings[MIXES_DECODE] or state.settings[ONLY_ANSWERS]:
                decode_running(state, rank, running)
            return
    decode_all(state, rank)
