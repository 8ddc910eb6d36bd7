"""Blocks of a rank's cache: taken, kept for others with the same prefix, and let go."""

from __future__ import annotations

from shardwright.compiled import inner
from shardwright.serving.policy.prefix_cache import (
    append_node,
    append_own,
    append_run,
    drop_node,
    enter_node,
    find_node,
    new_node,
    take_oldest,
    unlink_node,
)
from shardwright.serving.policy.scheduler_state import (
    BLOCK_TOKENS,
    BLOCKS,
    COMPUTES_FIRST,
    COUNT,
    FIRST,
    FREE,
    GENERATED,
    HELD,
    INPUTS,
    KEY,
    KEY_TOKENS,
    MOST_BLOCKS,
    NOBODY,
    NONE,
    ONLY_ANSWERS,
    OWN_RUN,
    PREEMPTED,
    PREFIX_CACHE,
    PRIVATE,
    SHARED,
    USERS,
    State,
)


@inner
def blocks_of(state: State, tokens: int) -> int:
    """Blocks that hold as many tokens."""
    size = state.settings[BLOCK_TOKENS]
    return int((tokens + size - 1) // size)


@inner
def take(state: State, rank: int, count: int) -> None:
    """`count` free blocks are in use; there are as many."""
    if state.settings[PREFIX_CACHE]:
        take_oldest(state, rank, count)
    state.ranks[rank, FREE] -= count
    used = state.settings[BLOCKS] - state.ranks[rank, FREE]
    if used > state.ranks[rank, MOST_BLOCKS]:
        state.ranks[rank, MOST_BLOCKS] = used


@inner
def hold(state: State, rank: int, request: int, tokens: int) -> bool:
    """The request has blocks for `tokens` tokens; False = there are not enough, and nothing
    changed.
    """
    need = blocks_of(state, tokens) - state.requests[request, HELD]
    if need <= 0:
        return True
    if need > state.ranks[rank, FREE]:
        return False
    take(state, rank, need)
    state.requests[request, HELD] += need
    return True


@inner
def cached_keys(state: State, rank: int, request: int) -> int:
    """How many of the request's first keys are cached.
    One token at least is left to be computed.
    """
    if not state.settings[PREFIX_CACHE]:
        return 0
    first = state.key_offsets[request]
    num_keys = state.key_offsets[request + 1] - first
    known = state.requests[request, INPUTS] + state.requests[request, GENERATED]
    if num_keys == 0:
        return 0
    most = min(num_keys, (known - 1) // state.settings[KEY_TOKENS])
    keys = 0
    while keys < most and find_node(state, rank, state.keys[first + keys]) != NONE:
        keys += 1
    return keys


@inner
def own_blocks(state: State, rank: int, request: int, keys: int) -> int:
    """How many blocks behind its first `keys` keys the request can take back, that it lost when it
    was preempted.
    """
    node = state.requests[request, OWN_RUN]
    if node == NONE:
        return 0
    size = state.settings[BLOCK_TOKENS]
    first = state.nodes[rank, node, FIRST]
    if first * size != keys * state.settings[KEY_TOKENS]:
        return 0
    known = state.requests[request, INPUTS] + state.requests[request, GENERATED]
    return int(max(0, min(state.nodes[rank, node, COUNT], (known - 1) // size - first)))


@inner
def cached_tokens(state: State, rank: int, request: int) -> int:
    """Tokens of a waiting request that need not be computed."""
    keys = cached_keys(state, rank, request)
    return int(
        keys * state.settings[KEY_TOKENS]
        + own_blocks(state, rank, request, keys) * state.settings[BLOCK_TOKENS]
    )


@inner
def done_tokens(state: State, request: int, cached: int) -> int:
    """Tokens that need not be computed: those that are `cached`, or that came with a request whose
    prompt was computed elsewhere.
    """
    if state.settings[ONLY_ANSWERS] and state.requests[request, PREEMPTED] == 0:
        own = 1 if state.settings[ONLY_ANSWERS] == COMPUTES_FIRST else 0
        return int(state.requests[request, INPUTS] - own)
    return cached


@inner
def revived_blocks(state: State, rank: int, request: int) -> int:
    """Of those, the blocks that are free (nobody uses them): they are taken from the free ones,
    though they are not computed.
    """
    if not state.settings[PREFIX_CACHE]:
        return 0
    keys = cached_keys(state, rank, request)
    result = own_blocks(state, rank, request, keys)
    first = state.key_offsets[request]
    for i in range(keys):
        node = find_node(state, rank, state.keys[first + i])
        if state.nodes[rank, node, USERS] == 0:
            result += state.nodes[rank, node, COUNT]
    return result


@inner
def adopt(state: State, rank: int, request: int) -> int:
    """The request holds what of its text is cached; its tokens."""
    if not state.settings[PREFIX_CACHE]:
        return 0
    keys = cached_keys(state, rank, request)
    own = own_blocks(state, rank, request, keys)
    first = state.key_offsets[request]
    for i in range(keys):
        node = find_node(state, rank, state.keys[first + i])
        if state.nodes[rank, node, USERS] == 0:
            unlink_node(state, rank, node)
            take_known(state, rank, state.nodes[rank, node, COUNT])
        state.nodes[rank, node, USERS] += 1
    node = state.requests[request, OWN_RUN]
    if node != NONE:
        take_known(state, rank, own)
        state.requests[request, OWN_RUN] = NONE
        state.nodes[rank, node, COUNT] -= own
        state.nodes[rank, node, KEY] = NOBODY
        if state.nodes[rank, node, COUNT] == 0:
            unlink_node(state, rank, node)
            drop_node(state, rank, node)
    per_key = state.settings[KEY_TOKENS] // state.settings[BLOCK_TOKENS]
    state.requests[request, SHARED] = keys
    state.requests[request, PRIVATE] = 1 if own > 0 else 0
    state.requests[request, HELD] = keys * per_key + own
    return int(keys * state.settings[KEY_TOKENS] + own * state.settings[BLOCK_TOKENS])


@inner
def take_known(state: State, rank: int, count: int) -> None:
    """Blocks that have left the list of free ones are in use."""
    state.ranks[rank, FREE] -= count
    used = state.settings[BLOCKS] - state.ranks[rank, FREE]
    if used > state.ranks[rank, MOST_BLOCKS]:
        state.ranks[rank, MOST_BLOCKS] = used


@inner
def remember(state: State, rank: int, request: int, tokens: int) -> None:
    """Full blocks of the request's first `tokens` tokens are found by others with the same text.

    Where somebody else computes the same text at the same time, his are found, and this request's
    are its own.
    """
    if not state.settings[PREFIX_CACHE] or state.requests[request, PRIVATE]:
        return
    first = state.key_offsets[request]
    num_keys = state.key_offsets[request + 1] - first
    if num_keys == 0:
        return
    size = state.settings[KEY_TOKENS]
    per_key = size // state.settings[BLOCK_TOKENS]
    full = min(num_keys, tokens // size)
    while state.requests[request, SHARED] < full:
        key = state.keys[first + state.requests[request, SHARED]]
        if find_node(state, rank, key) != NONE:
            state.requests[request, PRIVATE] = 1
            return
        node = new_node(state, rank, key, per_key)
        state.nodes[rank, node, USERS] = 1
        enter_node(state, rank, node)
        state.requests[request, SHARED] += 1


@inner
def release(state: State, rank: int, request: int, wanted: int) -> None:
    """The request's blocks are free, its last ones first; it may come back for those of its first
    `wanted` tokens.
    """
    held = state.requests[request, HELD]
    state.requests[request, HELD] = 0
    if not state.settings[PREFIX_CACHE]:
        state.ranks[rank, FREE] += held
        return
    per_key = (
        state.settings[KEY_TOKENS] // state.settings[BLOCK_TOKENS]
        if state.settings[KEY_TOKENS]
        else 0
    )
    keys = state.requests[request, SHARED]
    kept = keys * per_key
    own = max(0, min(held, wanted // state.settings[BLOCK_TOKENS]) - kept)
    append_run(state, rank, held - kept - own)
    append_own(state, rank, request, kept, own)
    state.ranks[rank, FREE] += held - kept
    first = state.key_offsets[request]
    for i in range(keys - 1, -1, -1):
        node = find_node(state, rank, state.keys[first + i])
        state.nodes[rank, node, USERS] -= 1
        if state.nodes[rank, node, USERS] == 0:
            append_node(state, rank, node)
            state.ranks[rank, FREE] += per_key
    state.requests[request, SHARED] = 0
    state.requests[request, PRIVATE] = 0
