"""Arrays of the B0 kernel: tables, pipelines, strategies and choices as columns."""

from __future__ import annotations

from typing import NamedTuple

from shardwright.arrays import FloatArray, IntArray

SCHEDULE_GPIPE, SCHEDULE_1F1B, SCHEDULE_INTERLEAVED = 0, 1, 2
MAX_RANKS = 4
"""Ranks of a pipeline that B0 looks at."""


class Costs(NamedTuple):
    """Tables as arrays; l = layer row, h = mesh row, t = block.

    forward, backward, selective, full: (t, l) seconds. saved: (t, modes, l). transient: (t, l) bytes, zero for blocks that are no layers.
    border: (l, tiers). logits: (l,). gather, reduce, all_reduce: (t, h) seconds of one layer. dense, experts, frozen: (t, h) elements.
    logits_blocks, overlap_buffers: (l,) bytes. copied: (t, h) elements of tied weights that another block owns.
    spread: (t, h) elements that more devices sum than dp x cp. shard, expert_shard: (h,). norm: (h,) seconds. tied: (2, h) seconds to
    sum the weights that both ends share, without and with ZeRO. embedding, communicators: (h,) bytes.
    scales: (h,) seconds that each pass of a chunk waits. passes: (h,) bytes an element of passes over whole gradients.
    slowdown: (h,) of kernels beside collectives. gather_copy, reduce_copy: (t, h) seconds of copies around a layer's collectives.
    """

    forward: FloatArray
    backward: FloatArray
    selective: FloatArray
    full: FloatArray
    saved: FloatArray
    transient: FloatArray
    border: FloatArray
    logits: FloatArray
    gather: FloatArray
    reduce: FloatArray
    all_reduce: FloatArray
    dense: FloatArray
    experts: FloatArray
    spread: FloatArray
    frozen: FloatArray
    shard: FloatArray
    expert_shard: FloatArray
    norm: FloatArray
    tied: FloatArray
    passes: FloatArray
    embedding: FloatArray
    logits_blocks: FloatArray
    overlap_buffers: FloatArray
    copied: FloatArray
    communicators: FloatArray
    slowdown: FloatArray
    scales: FloatArray
    gather_copy: FloatArray
    reduce_copy: FloatArray


class Patterns(NamedTuple):
    """How (pp, vpp) spreads blocks; p = pattern, s = one of MAX_RANKS looked-at ranks, t = block.

    ranks, chunks_per_rank, looked: (p,). rank: (p, s). stage, before, own, least: (p, s, t) blocks on the rank; in chunks 0..s-1; in
    chunk s; the fewest in any of its chunks. around: (p, s, t) blocks before the rank's last chunk, and p times that chunk's less the
    rank's. pieces: (p, s) of chunk s. first_pieces: (p,) of chunk 0. total: (p, t). redone, redone_before, redone_around, redone_own,
    redone_least: recomputed layers for each recompute option k: (p, s, k). has_head, has_end: (p, s) the rank holds the head; an embedding
    or head. first: (p, t) blocks of chunk 0.
    """

    ranks: IntArray
    chunks_per_rank: IntArray
    looked: IntArray
    rank: IntArray
    stage: FloatArray
    before: FloatArray
    around: FloatArray
    own: FloatArray
    least: FloatArray
    pieces: FloatArray
    first: FloatArray
    first_pieces: FloatArray
    total: FloatArray
    redone: FloatArray
    redone_before: FloatArray
    redone_around: FloatArray
    redone_own: FloatArray
    redone_least: FloatArray
    redone_total: FloatArray
    has_head: IntArray
    has_end: IntArray


class Outer(NamedTuple):
    """Strategies but for their memory choices; i = row. layer, mesh, pattern: rows of the tables (mesh: that of the whole group);
    schedule; microbatches; border: tier of the fastest border; start: first member's place in the output.
    """

    layer: IntArray
    mesh: IntArray
    pattern: IntArray
    schedule: IntArray
    microbatches: IntArray
    border: IntArray
    zero_list: IntArray
    redo_list: IntArray
    start: IntArray


class ChoiceArrays(NamedTuple):
    """Memory choices. zero options: stage, and which sharding group (offset of its mesh row). redo options: mode (0 none, 1 selective,
    2 full) and k (index of redone layers). offload: percent. zero_lists, redo_lists: rows of option numbers, -1 = end.
    """

    zero_stage: IntArray
    zero_shard: IntArray
    redo_mode: IntArray
    redo_layers: IntArray
    offload: IntArray
    zero_lists: IntArray
    redo_lists: IntArray


class Facts(NamedTuple):
    """Numbers of the problem: capacity, workspace and context in bytes, bytes an element, traffic and rates of the update, switches."""

    capacity: float
    workspace: float
    context: float
    parameter_bytes: float
    shard_bytes: float
    gradient_bytes: float
    state_bytes: float
    prefetch: float
    update_bytes: float
    bandwidth: float
    host_rate: float
    jitter: float
    every_microbatch: bool
    overlap_gather: bool
    blocking: bool
    layer_block: int
    reserve: float


class Scratch(NamedTuple):
    """Sums of one outer row, filled once and read for each of its members. s = looked-at rank, r = redo option, z = zero option.

    dense, experts, spread, frozen, largest, ends: (s,) local elements (dense with copies of tied weights under `held_dense`). live: (r, s)
    bytes of activations, logits and temporaries at the fullest; blocks: (r, s) the same as the allocator's blocks.
    work, head, tail, around, own: (r, s) seconds of a microbatch on the rank; of the chunks before it, forward and back; of
    `Patterns.around`; of chunk s's backward.
    way: (r,) seconds of a microbatch's way through all chunks. reduce_own, gather_all: (s,) seconds. flying: (s,) chunks in flight.
    held: (o, s) bytes of parameters, gradients, states and workspace, by offload option; update: (o,) seconds of the slowest update.
    """

    dense: FloatArray
    experts: FloatArray
    spread: FloatArray
    frozen: FloatArray
    largest: FloatArray
    ends: FloatArray
    held_dense: FloatArray
    live: FloatArray
    blocks: FloatArray
    work: FloatArray
    head: FloatArray
    tail: FloatArray
    around: FloatArray
    own: FloatArray
    way: FloatArray
    reduce_own: FloatArray
    gather_all: FloatArray
    flying: FloatArray
    held: FloatArray
    update: FloatArray
