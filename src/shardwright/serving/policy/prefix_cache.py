"""Nodes of a prefix cache: the list of free blocks, oldest first, and the table of those whose text
is known.

A node is a key's blocks (a hash of all the text up to there), or a run of blocks without one.
Blocks that are taken come from the head of the list: what was let go first is forgotten first. Runs
make it short, and without shared prefixes it is one run.
"""

from __future__ import annotations

from shardwright.compiled import inner
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
    State,
)


@inner
def new_node(state: State, rank: int, key: int, count: int) -> int:
    """A node that is in neither the list nor the table yet."""
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
def drop_node(state: State, rank: int, node: int) -> None:
    """It may be used for something else."""
    state.nodes[rank, node, AFTER_NODE] = state.ranks[rank, NODE_FREE]
    state.ranks[rank, NODE_FREE] = node


@inner
def append_node(state: State, rank: int, node: int) -> None:
    """Its blocks are free: the last to be taken."""
    tail = state.ranks[rank, LRU_TAIL]
    state.nodes[rank, node, BEFORE_NODE] = tail
    state.nodes[rank, node, AFTER_NODE] = NONE
    if tail == NONE:
        state.ranks[rank, LRU_HEAD] = node
    else:
        state.nodes[rank, tail, AFTER_NODE] = node
    state.ranks[rank, LRU_TAIL] = node


@inner
def unlink_node(state: State, rank: int, node: int) -> None:
    """It leaves the list of free ones."""
    before = state.nodes[rank, node, BEFORE_NODE]
    after = state.nodes[rank, node, AFTER_NODE]
    if before == NONE:
        state.ranks[rank, LRU_HEAD] = after
    else:
        state.nodes[rank, before, AFTER_NODE] = after
    if after == NONE:
        state.ranks[rank, LRU_TAIL] = before
    else:
        state.nodes[rank, after, BEFORE_NODE] = before


@inner
def append_run(state: State, rank: int, count: int) -> None:
    """`count` blocks are free that nobody will ask for."""
    if count == 0:
        return
    tail = state.ranks[rank, LRU_TAIL]
    if tail != NONE and state.nodes[rank, tail, KEY] == NOBODY:
        state.nodes[rank, tail, COUNT] += count
        return
    append_node(state, rank, new_node(state, rank, NOBODY, count))


@inner
def find_node(state: State, rank: int, key: int) -> int:
    """The node of a key; NONE = it is not cached."""
    node = state.buckets[rank, key % state.buckets.shape[1]]
    while node != NONE and state.nodes[rank, node, KEY] != key:
        node = state.nodes[rank, node, CHAIN]
    return int(node)


@inner
def enter_node(state: State, rank: int, node: int) -> None:
    """The table finds it by its key."""
    bucket = state.nodes[rank, node, KEY] % state.buckets.shape[1]
    state.nodes[rank, node, CHAIN] = state.buckets[rank, bucket]
    state.buckets[rank, bucket] = node


@inner
def forget_node(state: State, rank: int, node: int) -> None:
    """The table finds it no more."""
    bucket = state.nodes[rank, node, KEY] % state.buckets.shape[1]
    at = state.buckets[rank, bucket]
    if at == node:
        state.buckets[rank, bucket] = state.nodes[rank, node, CHAIN]
        return
    while state.nodes[rank, at, CHAIN] != node:
        at = state.nodes[rank, at, CHAIN]
    state.nodes[rank, at, CHAIN] = state.nodes[rank, node, CHAIN]


@inner
def take_oldest(state: State, rank: int, count: int) -> None:
    """`count` blocks leave the list, the oldest first; what they held is forgotten. There are as
    many.
    """
    while count > 0:
        node = state.ranks[rank, LRU_HEAD]
        there = state.nodes[rank, node, COUNT]
        key = state.nodes[rank, node, KEY]
        if key >= 0:
            # A key whose last block goes is no prefix any more; its other blocks are the next to
            # go.
            forget_node(state, rank, node)
            state.nodes[rank, node, KEY] = NOBODY
        if there > count:
            state.nodes[rank, node, COUNT] = there - count
            return
        if key == OWN:
            state.requests[state.nodes[rank, node, USERS], OWN_RUN] = NONE
        unlink_node(state, rank, node)
        drop_node(state, rank, node)
        count -= there


@inner
def append_own(state: State, rank: int, request: int, first: int, count: int) -> None:
    """`count` blocks of one request from its `first` on are free: it may want them back."""
    if count == 0:
        return
    node = new_node(state, rank, OWN, count)
    state.nodes[rank, node, USERS] = request
    state.nodes[rank, node, FIRST] = first
    state.requests[request, OWN_RUN] = node
    append_node(state, rank, node)
