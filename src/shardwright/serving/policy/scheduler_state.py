"""State of schedulers, queues and caches as arrays, for policies and the executed server."""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

import numpy as np

from shardwright.arrays import FloatArray, IntArray
from shardwright.kernel_compilation import by_reference
from shardwright.serving.deployments.scheduler_settings import SchedulerSettings
from shardwright.serving.traffic.requests_and_outcomes import Requests

# Columns of a request. COMPUTED: tokens in the cache after the iterations under way; PLACED: number
# of those that give it a token. HELD: its blocks, of which the first SHARED keys are nodes of the
# prefix cache. NEXT: the next request in a queue. ORDER: its number among all that were admitted on
# its rank; PLACE: its index among the running ones. JOINED, ENDS: first and last step as a member
# of `SteadyDecode`, NONE = no member.
(
    INPUTS,
    OUTPUTS,
    COMPUTED,
    GENERATED,
    STATUS,
    HELD,
    NEXT,
    PREEMPTED,
    CACHED,
    SHARED,
    PRIVATE,
    OWN_RUN,
    PLACED,
    PROMISE,
    ITERATIONS,
    ORDER,
    PLACE,
    JOINED,
    ENDS,
    NUM_REQUEST_COLUMNS,
) = range(20)

# Columns of a rank. VISIBLE: waiting requests that the scheduler has polled. SLOT: the slot that is
# planned. MOST_BLOCKS: peak number of blocks in use. LRU_*, NODE_FREE: lists of its prefix cache.
# CHUNKED: a request with a partly computed prompt; FULL: no request can be admitted until one has
# LEFT (SGLang). SINCE_LOOK: iterations since the last poll. PROMISED: blocks that running requests
# may still need (TensorRT-LLM). HELD_BACK: prompts are delayed, WAITED: for so many iterations
# (`prompt_delay`).
(
    FREE,
    NUM_RUNNING,
    WAITING_HEAD,
    WAITING_TAIL,
    NUM_WAITING,
    VISIBLE,
    SLOT,
    MOST_BLOCKS,
    LRU_HEAD,
    LRU_TAIL,
    NODE_FREE,
    CHUNKED,
    FULL,
    LEFT,
    SINCE_LOOK,
    PROMISED,
    NUM_STARTED,
    HELD_BACK,
    WAITED,
    NUM_RANK_COLUMNS,
) = range(20)

# Settings, from `SchedulerSettings`.
(
    BATCHING,
    TOKEN_BUDGET,
    MAX_SEQUENCES,
    BLOCK_TOKENS,
    BLOCKS,
    CHUNKED_PREFILL,
    MIXES_DECODE,
    ADMISSION,
    PREFIX_CACHE,
    KEY_TOKENS,
    DRAFT_TOKENS,
    LOOKAHEAD,
    POLLING,
    WATERMARK,
    ONLY_PROMPTS,
    PROMPT_TOKENS,
    AHEAD,
    SEED,
    KNOWS_ENDS,
    ONLY_ANSWERS,
    WAIT_ITERATIONS,
    WAIT_TOKENS,
    BALANCE_ITERATIONS,
    NUM_SETTINGS,
) = range(24)
MIXED, PREFILL_FIRST, IN_FLIGHT = range(3)
NEVER, BRINGS_FIRST, COMPUTES_FIRST = range(3)
OF_CHUNK, OF_PROMPT, OF_WHOLE, OF_ESTIMATE = range(4)

# Columns of `shares`, from `Scheduler.shares`.
SHARE_FIRST, SHARE_LEAST, SHARE_FALL, GRANTED, CLIP, KEPT = range(6)

# Columns of an entry of a batch: TOKENS of the request after BEFORE cached ones; SAMPLED: the
# request gets an answer token; DECODES: a decode token alone; LIFE: number of preemptions so far.
ENTRY, TOKENS, BEFORE, SAMPLED, DECODES, LIFE, NUM_ENTRY_COLUMNS = range(7)

# Columns of a node of a prefix cache: KEY, a hash or one of the two below; COUNT of blocks; USERS;
# links of the list of free blocks and of the chain of its bucket.
KEY, COUNT, USERS, BEFORE_NODE, AFTER_NODE, CHAIN, FIRST, NUM_NODE_COLUMNS = range(8)
NOBODY: Final = -1
"""Key of blocks with text that cannot be reused."""
OWN: Final = -2
"""Key of blocks that only the request that lost them can reclaim."""

NONE: Final = -1


class Status(IntEnum):
    """Progress of a request: not arrived, waiting, running, done or refused."""

    AWAY = 0
    WAITING = 1
    RUNNING = 2
    DONE = 3
    REFUSED = 4


AWAY, WAITING, RUNNING, DONE, REFUSED = (int(status) for status in Status)


@by_reference
class SchedulerState(NamedTuple):
    """All state that a scheduling policy reads and writes, as arrays.

    Args:
        settings: (NUM_SETTINGS,) settings of the scheduler.
        requests: (n, NUM_REQUEST_COLUMNS) columns of each request.
        ranks: (r, NUM_RANK_COLUMNS) columns of each rank.
        running: (r, sequences) running requests in their order.
        batch: (r, slots, sequences, NUM_ENTRY_COLUMNS) entries of iterations; there is a slot for
            each iteration that is under way.
        batch_size: (r, slots) number of entries of each slot.
        key_offsets, keys: hashes of prompts, see `Requests`.
        nodes: (r, m, NUM_NODE_COLUMNS) nodes of the prefix caches.
        buckets: (r, b) hash tables of the prefix caches.
        shares: see `SchedulerSettings`.
        share: (r,) share of their longest answers that requests are expected to give.
        ends: (r, 2 sequences + 1, 2) workspace to sort ends.
    """

    settings: IntArray
    requests: IntArray
    ranks: IntArray
    running: IntArray
    batch: IntArray
    batch_size: IntArray
    key_offsets: IntArray
    keys: IntArray
    nodes: IntArray
    buckets: IntArray
    shares: FloatArray
    share: FloatArray
    ends: IntArray


def new_state(
    requests: Requests,
    scheduler: SchedulerSettings,
    *,
    ranks: int = 1,
    slots: int = 1,
    seed: int = 0,
) -> SchedulerState:
    """Create a state of `ranks` empty schedulers, each with up to `slots` iterations under way.

    Args:
        requests: lengths and blocks are read; arrival times are not.
        ranks: number of equal ranks, each with a queue and a cache.
        slots: most iterations under way at once.
        seed: random seed of accepted draft tokens.
    """
    n = len(requests.inputs)
    columns = np.zeros((n, NUM_REQUEST_COLUMNS), dtype=np.int64)
    columns[:, INPUTS], columns[:, OUTPUTS] = requests.inputs, requests.outputs
    columns[:, (NEXT, OWN_RUN, ENDS)] = NONE
    settings = scheduler.settings(key_tokens=requests.block_tokens, seed=seed)
    if settings[ONLY_ANSWERS] == BRINGS_FIRST:
        columns[:, GENERATED] = 1
    rank_columns = np.zeros((ranks, NUM_RANK_COLUMNS), dtype=np.int64)
    rank_columns[:, (WAITING_HEAD, WAITING_TAIL, LRU_HEAD, LRU_TAIL, NODE_FREE, CHUNKED)] = NONE
    rank_columns[:, SINCE_LOOK] = scheduler.polling
    rank_columns[:, FREE] = scheduler.blocks
    sequences = scheduler.max_sequences
    num_nodes = scheduler.blocks + 2 if scheduler.prefix_cache else 0
    nodes = np.zeros((ranks, num_nodes, NUM_NODE_COLUMNS), dtype=np.int64)
    buckets = np.full(
        (ranks, 2 * scheduler.blocks + 1 if scheduler.prefix_cache else 0), NONE, dtype=np.int64
    )
    if scheduler.prefix_cache:
        # One run of all blocks; the other nodes are in a list of unused ones.
        nodes[:, :, AFTER_NODE] = np.arange(1, num_nodes + 1)
        nodes[:, -1, AFTER_NODE] = NONE
        nodes[:, 0, (KEY, BEFORE_NODE, AFTER_NODE, CHAIN)] = NOBODY, NONE, NONE, NONE
        nodes[:, 0, COUNT] = scheduler.blocks
        rank_columns[:, (LRU_HEAD, LRU_TAIL)] = 0
        rank_columns[:, NODE_FREE] = 1
    has_prefixes = scheduler.prefix_cache and len(requests.blocks) > 0
    return SchedulerState(
        settings=settings,
        requests=columns,
        ranks=rank_columns,
        running=np.zeros((ranks, sequences), dtype=np.int64),
        batch=np.zeros((ranks, slots, sequences, NUM_ENTRY_COLUMNS), dtype=np.int64),
        batch_size=np.zeros((ranks, slots), dtype=np.int64),
        key_offsets=requests.block_offsets if has_prefixes else np.zeros(n + 1, dtype=np.int64),
        keys=requests.blocks if has_prefixes else np.zeros(0, dtype=np.int64),
        nodes=nodes,
        buckets=buckets,
        shares=scheduler.shares(),
        share=np.full(ranks, scheduler.shares()[SHARE_FIRST]),
        ends=np.zeros((ranks if scheduler.knows_ends else 0, 2 * sequences + 1, 2), dtype=np.int64),
    )
