"""The next iteration of a rank and what it leaves behind: the calls of every user of a policy.

`arrive` brings a request, `plan` fills ``state.batch[rank, slot]``, and when that iteration has run, `give` hands a token (or more) to the
requests of its entries, one by one, and `leave` takes those that are done off the running ones.
"""

from __future__ import annotations

from shardwright.compiled import allocation_free
from shardwright.serving.policy.blocks import blocks_of, release
from shardwright.serving.policy.entries import wanted_tokens
from shardwright.serving.policy.mixed import plan_mixed
from shardwright.serving.policy.queue import append
from shardwright.serving.policy.state import (
    BLOCKS,
    COMPUTED,
    DONE,
    ENTRY,
    GENERATED,
    GUESSES,
    INPUTS,
    LIFE,
    LOOKAHEAD,
    NUM_RUNNING,
    PLACED,
    PREEMPTED,
    RUNNING,
    SAMPLED,
    SLOT,
    STATUS,
    State,
)


@allocation_free
def arrive(state: State, rank: int, request: int) -> None:
    """The request waits at the rank."""
    append(state, rank, request)


@allocation_free
def never_fits(state: State, request: int) -> bool:
    """Its last token but one would need more blocks than there are, even alone."""
    tokens = state.requests[request, INPUTS] + wanted_tokens(state, request) - 1
    ahead = state.settings[LOOKAHEAD] + state.settings[GUESSES] if wanted_tokens(state, request) > 1 else 0
    return bool(blocks_of(state, tokens + ahead) > state.settings[BLOCKS])


@allocation_free
def plan(state: State, rank: int, slot: int) -> int:
    """Fill the rank's next iteration as the engine would; how many requests are in it. 0 = it has nothing to do."""
    state.batch_size[rank, slot] = 0
    state.ranks[rank, SLOT] = slot
    plan_mixed(state, rank)
    return int(state.batch_size[rank, slot])


@allocation_free
def give(state: State, rank: int, slot: int, entry: int, tokens: int) -> int:
    """The request of an entry whose iteration has run gets `tokens` tokens (1, and guesses that were right), or as many as it lacks.

    Returns how many it got. Its blocks are free if those were the last.
    """
    request = state.batch[rank, slot, entry, ENTRY]
    if not state.batch[rank, slot, entry, SAMPLED] or state.batch[rank, slot, entry, LIFE] != state.requests[request, PREEMPTED]:
        return 0
    wanted = wanted_tokens(state, request)
    got = min(tokens, wanted - state.requests[request, GENERATED])
    state.requests[request, PLACED] -= 1
    state.requests[request, GENERATED] += got
    if state.requests[request, GENERATED] < wanted:
        known = state.requests[request, INPUTS] + state.requests[request, GENERATED]
        state.requests[request, COMPUTED] = known + state.requests[request, PLACED] - 1
    else:
        state.requests[request, STATUS] = DONE
        release(state, rank, request, False)
    return int(got)


@allocation_free
def leave(state: State, rank: int) -> None:
    """Those that are done run no more; the others keep their order."""
    kept = 0
    for at in range(state.ranks[rank, NUM_RUNNING]):
        request = state.running[rank, at]
        if state.requests[request, STATUS] == RUNNING:
            state.running[rank, kept] = request
            kept += 1
    state.ranks[rank, NUM_RUNNING] = kept
