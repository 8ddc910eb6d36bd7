"""Prefix cache of a rank: the LRU list of free blocks and the hash table of cached text.

A node is a key's blocks (a hash of all the text up to there), or a run of blocks without a key.
Blocks are taken from the head of the list: the blocks freed first are forgotten first. Runs make
the list short; without shared prefixes it is one run.
"""

from __future__ import annotations

from shardwright.kernel_compilation import inner
from shardwright.serving.policy.scheduler_state import (
    AFTER_NODE,
    BEFORE_NODE,
    CHAIN,
    COUNT,
    FIRST,
    KEY,
    LRU_HEAD,
    LRU_TAIL,
    NOBODY,
    NODE_FREE,
    NONE,
    OWN,
    OWN_RUN,
    USERS,
    SchedulerState,
)


@inner
def new_node(state: SchedulerState, rank: int, key: int, count: int) -> int:
    """Create a keyed node of `count` blocks outside free list and hash table; return its index."""
    node = state.ranks[rank, NODE_FREE]
    state.ranks[rank, NODE_FREE] = state.nodes[rank, node, AFTER_NODE]
    state.nodes[rank, node, KEY] = key
    state.nodes[rank, node, COUNT] = count
    state.nodes[rank, node, USERS] = 0
    state.nodes[rank, node, BEFORE_NODE] = NONE
    state.nodes[rank, node, AFTER_NODE] = NONE
    state.nodes[rank, node, CHAIN] = NONE
    return int(node)


@inner
def drop_node(state: SchedulerState, rank: int, node: int) -> None:
    """Return a node to the list of unused nodes."""
    state.nodes[rank, node, AFTER_NODE] = state.ranks[rank, NODE_FREE]
    state.ranks[rank, NODE_FREE] = node


@inner
def append_node(state: SchedulerState, rank: int, node: int) -> None:
    """Append a node's blocks to the list of free blocks, to be taken last."""
    tail = state.ranks[rank, LRU_TAIL]
    state.nodes[rank, node, BEFORE_NODE] = tail
    state.nodes[rank, node, AFTER_NODE] = NONE
    if tail == NONE:
        state.ranks[rank, LRU_HEAD] = node
    else:
        state.nodes[rank, tail, AFTER_NODE] = node
    state.ranks[rank, LRU_TAIL] = node


@inner
def unlink_node(state: SchedulerState, rank: int, node: int) -> None:
    """Remove a node from the list of free blocks."""
    previous = state.nodes[rank, node, BEFORE_NODE]
    next_node = state.nodes[rank, node, AFTER_NODE]
    if previous == NONE:
        state.ranks[rank, LRU_HEAD] = next_node
    else:
        state.nodes[rank, previous, AFTER_NODE] = next_node
    if next_node == NONE:
        state.ranks[rank, LRU_TAIL] = previous
    else:
        state.nodes[rank, next_node, BEFORE_NODE] = previous


@inner
def append_run(state: SchedulerState, rank: int, count: int) -> None:
    """Append `count` blocks of no reusable text to the free list, merged with such a last node."""
    if count == 0:
        return
    tail = state.ranks[rank, LRU_TAIL]
    if tail != NONE and state.nodes[rank, tail, KEY] == NOBODY:
        state.nodes[rank, tail, COUNT] += count
        return
    append_node(state, rank, new_node(state, rank, NOBODY, count))


@inner
def find_node(state: SchedulerState, rank: int, key: int) -> int:
    """The node of a key in the hash table; NONE = the key is not cached."""
    node = state.buckets[rank, key % state.buckets.shape[1]]
    while node != NONE and state.nodes[rank, node, KEY] != key:
        node = state.nodes[rank, node, CHAIN]
    return int(node)


@inner
def enter_node(state: SchedulerState, rank: int, node: int) -> None:
    """Enter a node in the hash table under its key."""
    bucket = state.nodes[rank, node, KEY] % state.buckets.shape[1]
    state.nodes[rank, node, CHAIN] = state.buckets[rank, bucket]
    state.buckets[rank, bucket] = node


@inner
def forget_node(state: SchedulerState, rank: int, node: int) -> None:
    """Remove a node from the hash table."""
    bucket = state.nodes[rank, node, KEY] % state.buckets.shape[1]
    previous = state.buckets[rank, bucket]
    if previous == node:
        state.buckets[rank, bucket] = state.nodes[rank, node, CHAIN]
        return
    while state.nodes[rank, previous, CHAIN] != node:
        previous = state.nodes[rank, previous, CHAIN]
    state.nodes[rank, previous, CHAIN] = state.nodes[rank, node, CHAIN]


@inner
def take_oldest(state: SchedulerState, rank: int, count: int) -> None:
    """Take `count` blocks from the head of the list of free blocks and forget their text.

    At least `count` blocks must be free.
    """
    while count > 0:
        node = state.ranks[rank, LRU_HEAD]
        num_blocks = state.nodes[rank, node, COUNT]
        key = state.nodes[rank, node, KEY]
        if key >= 0:
            # A key without its last block is no prefix any more; its other blocks are taken next.
            forget_node(state, rank, node)
            state.nodes[rank, node, KEY] = NOBODY
        if num_blocks > count:
            state.nodes[rank, node, COUNT] = num_blocks - count
            return
        if key == OWN:
            state.requests[state.nodes[rank, node, USERS], OWN_RUN] = NONE
        unlink_node(state, rank, node)
        drop_node(state, rank, node)
        count -= num_blocks


@inner
def append_own(
    state: SchedulerState, rank: int, request: int, first_block: int, count: int
) -> None:
    """Append `count` blocks of one request to the free blocks; the request can reclaim them.

    Args:
        first_block: number of the first of these blocks in the request.
    """
    if count == 0:
        return
    node = new_node(state, rank, OWN, count)
    state.nodes[rank, node, USERS] = request
    state.nodes[rank, node, FIRST] = first_block
    state.requests[request, OWN_RUN] = node
    append_node(state, rank, node)
