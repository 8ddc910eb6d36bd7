"""Blocks of a rank's paged KV cache: reserved, shared by prefix, and freed."""

from __future__ import annotations

from shardwright.kernel_compilation import inner
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
    SchedulerState,
)


@inner
def blocks_of(state: SchedulerState, tokens: int) -> int:
    """Number of cache blocks that hold `tokens` tokens."""
    size = state.settings[BLOCK_TOKENS]
    return int((tokens + size - 1) // size)


@inner
def use_free_blocks(state: SchedulerState, rank: int, count: int) -> None:
    """Take `count` free blocks of a rank's cache into use; at least `count` must be free."""
    if state.settings[PREFIX_CACHE]:
        take_oldest(state, rank, count)
    count_used(state, rank, count)


@inner
def missing_blocks(state: SchedulerState, request: int, tokens: int) -> int:
    """Number of blocks that a request needs beyond its own to hold `tokens` tokens."""
    return int(max(0, blocks_of(state, tokens) - state.requests[request, HELD]))


@inner
def hold_blocks(state: SchedulerState, rank: int, request: int, tokens: int) -> bool:
    """Reserve cache blocks for `tokens` tokens of a request; False = too few are free.

    With False nothing is changed.
    """
    need = missing_blocks(state, request, tokens)
    if need == 0:
        return True
    if need > state.ranks[rank, FREE]:
        return False
    use_free_blocks(state, rank, need)
    state.requests[request, HELD] += need
    return True


@inner
def cached_keys(state: SchedulerState, rank: int, request: int) -> int:
    """Number of leading keys (KEY_TOKENS tokens each) cached; one token is left to compute."""
    if not state.settings[PREFIX_CACHE]:
        return 0
    first_key = state.key_offsets[request]
    num_keys = state.key_offsets[request + 1] - first_key
    num_tokens = state.requests[request, INPUTS] + state.requests[request, GENERATED]
    if num_keys == 0:
        return 0
    max_keys = min(num_keys, (num_tokens - 1) // state.settings[KEY_TOKENS])
    keys = 0
    while keys < max_keys and find_node(state, rank, state.keys[first_key + keys]) != NONE:
        keys += 1
    return keys


@inner
def reclaimable_blocks(state: SchedulerState, rank: int, request: int, keys: int) -> int:
    """Number of blocks right after `keys` cached keys that a preempted request can take back."""
    node = state.requests[request, OWN_RUN]
    if node == NONE:
        return 0
    size = state.settings[BLOCK_TOKENS]
    first_block = state.nodes[rank, node, FIRST]
    if first_block * size != keys * state.settings[KEY_TOKENS]:
        return 0
    num_tokens = state.requests[request, INPUTS] + state.requests[request, GENERATED]
    return int(max(0, min(state.nodes[rank, node, COUNT], (num_tokens - 1) // size - first_block)))


@inner
def cached_tokens(state: SchedulerState, rank: int, request: int) -> int:
    """Tokens of a waiting request in the cache: prefix keys, and its own blocks to reclaim."""
    keys = cached_keys(state, rank, request)
    return int(
        keys * state.settings[KEY_TOKENS]
        + reclaimable_blocks(state, rank, request, keys) * state.settings[BLOCK_TOKENS]
    )


@inner
def skipped_tokens(state: SchedulerState, request: int, cached: int) -> int:
    """Number of prompt tokens that need no computing: cached, or computed by a prefill worker."""
    if state.settings[ONLY_ANSWERS] and state.requests[request, PREEMPTED] == 0:
        computed_here = 1 if state.settings[ONLY_ANSWERS] == COMPUTES_FIRST else 0
        return int(state.requests[request, INPUTS] - computed_here)
    return cached


@inner
def revived_blocks(state: SchedulerState, rank: int, request: int) -> int:
    """Number of a request's cached blocks that no running request uses; they count as free."""
    if not state.settings[PREFIX_CACHE]:
        return 0
    keys = cached_keys(state, rank, request)
    num_revived = reclaimable_blocks(state, rank, request, keys)
    first_key = state.key_offsets[request]
    for i in range(keys):
        node = find_node(state, rank, state.keys[first_key + i])
        if state.nodes[rank, node, USERS] == 0:
            num_revived += state.nodes[rank, node, COUNT]
    return num_revived


@inner
def adopt_cached(state: SchedulerState, rank: int, request: int) -> int:
    """Give the request the cached blocks of its text; return their number of tokens."""
    if not state.settings[PREFIX_CACHE]:
        return 0
    keys = cached_keys(state, rank, request)
    reclaimed = reclaimable_blocks(state, rank, request, keys)
    first_key = state.key_offsets[request]
    for i in range(keys):
        node = find_node(state, rank, state.keys[first_key + i])
        if state.nodes[rank, node, USERS] == 0:
            unlink_node(state, rank, node)
            count_used(state, rank, state.nodes[rank, node, COUNT])
        state.nodes[rank, node, USERS] += 1
    node = state.requests[request, OWN_RUN]
    if node != NONE:
        count_used(state, rank, reclaimed)
        state.requests[request, OWN_RUN] = NONE
        state.nodes[rank, node, COUNT] -= reclaimed
        state.nodes[rank, node, KEY] = NOBODY
        if state.nodes[rank, node, COUNT] == 0:
            unlink_node(state, rank, node)
            drop_node(state, rank, node)
    per_key = state.settings[KEY_TOKENS] // state.settings[BLOCK_TOKENS]
    state.requests[request, SHARED] = keys
    state.requests[request, PRIVATE] = 1 if reclaimed > 0 else 0
    state.requests[request, HELD] = keys * per_key + reclaimed
    return int(keys * state.settings[KEY_TOKENS] + reclaimed * state.settings[BLOCK_TOKENS])


@inner
def count_used(state: SchedulerState, rank: int, count: int) -> None:
    """Count `count` blocks that left the free list as used, and update the peak of used blocks."""
    state.ranks[rank, FREE] -= count
    used = state.settings[BLOCKS] - state.ranks[rank, FREE]
    if used > state.ranks[rank, MOST_BLOCKS]:
        state.ranks[rank, MOST_BLOCKS] = used


@inner
def publish_blocks(state: SchedulerState, rank: int, request: int, tokens: int) -> None:
    """Enter newly full prompt blocks of the first `tokens` tokens in the prefix cache, if new.

    Where another request computed the same text first, its blocks stay in the cache, and this
    request's blocks are private.
    """
    if not state.settings[PREFIX_CACHE] or state.requests[request, PRIVATE]:
        return
    first_key = state.key_offsets[request]
    num_keys = state.key_offsets[request + 1] - first_key
    if num_keys == 0:
        return
    size = state.settings[KEY_TOKENS]
    per_key = size // state.settings[BLOCK_TOKENS]
    full_keys = min(num_keys, tokens // size)
    while state.requests[request, SHARED] < full_keys:
        key = state.keys[first_key + state.requests[request, SHARED]]
        if find_node(state, rank, key) != NONE:
            state.requests[request, PRIVATE] = 1
            return
        node = new_node(state, rank, key, per_key)
        state.nodes[rank, node, USERS] = 1
        enter_node(state, rank, node)
        state.requests[request, SHARED] += 1


@inner
def release_blocks(state: SchedulerState, rank: int, request: int, wanted: int) -> None:
    """Free the request's blocks; those of its first `wanted` tokens stay reclaimable until used."""
    num_held = state.requests[request, HELD]
    state.requests[request, HELD] = 0
    if not state.settings[PREFIX_CACHE]:
        state.ranks[rank, FREE] += num_held
        return
    per_key = (
        state.settings[KEY_TOKENS] // state.settings[BLOCK_TOKENS]
        if state.settings[KEY_TOKENS]
        else 0
    )
    keys = state.requests[request, SHARED]
    shared = keys * per_key
    reclaimable = max(0, min(num_held, wanted // state.settings[BLOCK_TOKENS]) - shared)
    append_run(state, rank, num_held - shared - reclaimable)
    append_own(state, rank, request, shared, reclaimable)
    state.ranks[rank, FREE] += num_held - shared
    first_key = state.key_offsets[request]
    for i in range(keys - 1, -1, -1):
        node = find_node(state, rank, state.keys[first_key + i])
        state.nodes[rank, node, USERS] -= 1
        if state.nodes[rank, node, USERS] == 0:
            append_node(state, rank, node)
            state.ranks[rank, FREE] += per_key
    state.requests[request, SHARED] = 0
    state.requests[request, PRIVATE] = 0
