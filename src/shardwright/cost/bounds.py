"""Tier B0: a closed-form lower bound of the step and of peak memory for millions of strategies.

For a few ranks s of each pipeline (first, second, one before last, last)::

    T >= gather + head_s + m work_s + max(tail_s + reduce_0, reduce_s) + update,   head and tail over the chunks before s,

and one microbatch's way through all chunks and back. Every term is a part of a path through the order that `critical_path` walks, so
B0 <= B1. Memory counts what must be alive on these ranks at their fullest.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from shardwright.compiled import compiled
from shardwright.cost.terms import backward_layer, forward_layer, optimizer_seconds

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

SCHEDULE_GPIPE, SCHEDULE_1F1B, SCHEDULE_INTERLEAVED = 0, 1, 2
MAX_RANKS = 4
"""Ranks of a pipeline that B0 looks at."""


class Costs(NamedTuple):
    """Tables as arrays; l = layer row, h = mesh row, t = block.

    forward, backward, selective, full: (t, l) seconds. saved: (t, modes, l). transient: (t, l) bytes, zero for blocks that are no layers.
    border: (l, tiers). logits: (l,). gather, reduce, all_reduce: (t, h) seconds of one layer. dense, experts, frozen: (t, h) elements.
    shard, expert_shard: (h,). norm, tied: (h,) seconds. embedding: (h,) bytes.
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
    frozen: FloatArray
    shard: FloatArray
    expert_shard: FloatArray
    norm: FloatArray
    tied: FloatArray
    embedding: FloatArray


class Patterns(NamedTuple):
    """How (pp, vpp) spreads blocks; p = pattern, s = one of MAX_RANKS looked-at ranks, t = block.

    ranks, chunks_per_rank, looked: (p,). rank: (p, s). stage, before, own, least: (p, s, t) blocks on the rank; in chunks 0..s-1; in
    chunk s; the fewest in any of its chunks. pieces: (p, s) of chunk s. first_pieces: (p,) of chunk 0. total: (p, t). layer_chunks,
    redone, redone_before, redone_own, redone_least: recomputed layers for each recompute option k: (p, s, k). has_head, has_end: (p, s)
    the rank holds the head; an embedding or head. first: (p, t) blocks of chunk 0.
    """

    ranks: IntArray
    chunks_per_rank: IntArray
    looked: IntArray
    rank: IntArray
    stage: FloatArray
    before: FloatArray
    own: FloatArray
    least: FloatArray
    pieces: FloatArray
    first: FloatArray
    first_pieces: FloatArray
    total: FloatArray
    redone: FloatArray
    redone_before: FloatArray
    redone_own: FloatArray
    redone_least: FloatArray
    redone_total: FloatArray
    has_head: IntArray
    has_end: IntArray


class Outer(NamedTuple):
    """Strategies but for their memory choices; i = row. layer, mesh, pattern: rows of the tables (mesh: that of the whole group);
    schedule; microbatches; border: tier of the fastest border; start: first member's place in the output."""

    layer: IntArray
    mesh: IntArray
    pattern: IntArray
    schedule: IntArray
    microbatches: IntArray
    border: IntArray
    zero_list: IntArray
    redo_list: IntArray
    start: IntArray


class Choices(NamedTuple):
    """Memory choices. zero options: stage, and which sharding group (offset of its mesh row). redo options: mode (0 none, 1 selective,
    2 full) and k (index of redone layers). offload: percent. zero_lists, redo_lists: rows of option numbers, -1 = end."""

    zero_stage: IntArray
    zero_shard: IntArray
    redo_mode: IntArray
    redo_layers: IntArray
    offload: IntArray
    zero_lists: IntArray
    redo_lists: IntArray


class Facts(NamedTuple):
    """Numbers of the problem: capacity and workspace in bytes, bytes an element, traffic and rates of the update, runtime switches."""

    capacity: float
    workspace: float
    parameter_bytes: float
    gradient_bytes: float
    state_bytes: float
    prefetch: float
    update_bytes: float
    bandwidth: float
    host_rate: float
    slowdown: float
    jitter: float
    every_microbatch: bool
    overlap_gather: bool
    blocking: bool
    layer_block: int
    reserve: float


@compiled
def _held(elements: float, shard: float, cut: bool) -> float:
    return np.ceil(elements / shard) if cut else elements


@compiled
def _memory(costs: Costs, patterns: Patterns, facts: Facts, i_layer: int, h: int, p: int, s: int, zero: int, mode: int, redo: int, offload: float, flying: float) -> float:
    """Lower bound of the reserved bytes on looked-at rank s."""
    dense = 0.0
    experts = 0.0
    frozen = 0.0
    largest = 0.0
    saved = 0.0
    transient = 0.0
    use = 1 if mode == 1 else 0
    for t in range(costs.dense.shape[0]):
        n = patterns.stage[p, s, t]
        if n > 0.0:
            dense += n * costs.dense[t, h]
            experts += n * costs.experts[t, h]
            frozen += n * costs.frozen[t, h]
            largest = max(largest, costs.dense[t, h] + costs.experts[t, h])
            if mode == 2 and patterns.redone[p, s, redo] > 0.0:
                transient = max(transient, costs.transient[t, i_layer])
        saved += patterns.least[p, s, t] * costs.saved[t, use, i_layer]
    t = facts.layer_block
    if mode == 2 and t >= 0:
        saved -= patterns.redone_least[p, s, redo] * (costs.saved[t, 0, i_layer] - costs.saved[t, 2, i_layer])
    elif mode == 2:
        saved = 0.0
        for t in range(costs.dense.shape[0]):
            is_layer = 2 if costs.transient[t, i_layer] > 0.0 else 0
            saved += patterns.least[p, s, t] * costs.saved[t, is_layer, i_layer]
    shard = costs.shard[h]
    expert_shard = costs.expert_shard[h]
    parameters = (_held(dense, shard, zero >= 3) + _held(experts, expert_shard, zero >= 3) + frozen) * facts.parameter_bytes
    if zero == 3:
        parameters += largest * (1.0 + facts.prefetch) * facts.parameter_bytes
    gradients = (_held(dense, shard, zero >= 2) + _held(experts, expert_shard, zero >= 2)) * facts.gradient_bytes
    states = (_held(dense, shard, zero >= 1) + _held(experts, expert_shard, zero >= 1)) * facts.state_bytes
    states = np.floor(states * (100.0 - offload) / 100.0)
    if patterns.has_end[p, s]:
        transient = max(transient, costs.embedding[h])
    logits = costs.logits[i_layer] if patterns.has_head[p, s] else 0.0
    return (parameters + gradients + states + facts.workspace + flying * saved + logits + transient) * facts.reserve


@compiled
def _in_flight(schedule: int, ranks: int, chunks: int, rank: int, microbatches: int) -> float:
    """Chunks whose activations a rank holds at its fullest."""
    if schedule == SCHEDULE_GPIPE:
        return float(microbatches * chunks)
    if schedule == SCHEDULE_1F1B:
        return float(min(microbatches, ranks - rank))
    return float(min(microbatches * chunks, 2 * (ranks - rank - 1) + (chunks - 1) * ranks + 1))


@compiled
def _seconds(costs: Costs, patterns: Patterns, facts: Facts, l: int, h: int, p: int, m: float, border: float, zero: int, mode: int, redo: int, offload: float) -> float:
    """Lower bound of the step without jitter."""
    blocks = costs.dense.shape[0]
    ranks = patterns.ranks[p]
    chunks = float(patterns.chunks_per_rank[p])
    late = 0.0
    update = 0.0
    first_reduce = 0.0
    first_gather = 0.0
    way = 0.0
    edge_f = 0.0
    edge_b = 0.0
    at_end = not (zero >= 2 and facts.every_microbatch)
    for t in range(blocks):
        reduce = costs.all_reduce[t, h] if zero == 0 else costs.reduce[t, h]
        if at_end:
            first_reduce += patterns.first[p, t] * reduce
        if zero == 1 or zero == 2:
            first_gather += patterns.first[p, t] * costs.gather[t, h]
    if not facts.overlap_gather:
        first_gather = 0.0
    for s in range(patterns.looked[p]):
        rank = patterns.rank[p, s]
        work = 0.0
        head = 0.0
        tail = 0.0
        own = 0.0
        reduce_own = 0.0
        gather_all = 0.0
        dense = 0.0
        experts = 0.0
        for t in range(blocks):
            g = costs.gather[t, h]
            r = costs.all_reduce[t, h] if zero == 0 else costs.reduce[t, h]
            f = forward_layer(costs.forward[t, l], g, zero, facts.slowdown)
            plain = costs.backward[t, l] + (costs.selective[t, l] if mode == 1 else 0.0)
            b = backward_layer(plain, g, r, zero, facts.every_microbatch, facts.slowdown)
            is_layer = costs.transient[t, l] > 0.0
            again = b
            if mode == 2 and is_layer:
                again = backward_layer(plain + costs.full[t, l], g, r, zero, facts.every_microbatch, facts.slowdown)
            if mode == 2 and is_layer and facts.layer_block < 0:
                b = again
            n = patterns.stage[p, s, t]
            before = patterns.before[p, s, t]
            mine = patterns.own[p, s, t]
            work += n * (f + b)
            head += before * f
            tail += before * b
            own += mine * b
            if mode == 2 and is_layer and facts.layer_block >= 0:
                work += patterns.redone[p, s, redo] * (again - b)
                tail += patterns.redone_before[p, s, redo] * (again - b)
                own += patterns.redone_own[p, s, redo] * (again - b)
            if at_end:
                reduce_own += mine * r
            gather_all += n * g
            dense += n * costs.dense[t, h]
            experts += n * costs.experts[t, h]
            if s == 0:
                way += patterns.total[p, t] * (f + b)
                if mode == 2 and is_layer and facts.layer_block >= 0:
                    way += patterns.redone_total[p, redo] * (again - b)
        sends = 0.0
        if facts.blocking and ranks > 1:
            forward_sends = chunks - 1.0 if rank == ranks - 1 else chunks
            backward_sends = chunks - 1.0 if rank == 0 else chunks
            # The very last send of a rank may end after its last action.
            sends = (m * (forward_sends + backward_sends) - 1.0) * border
        if ranks == 1:
            rank_border = 0.0
        else:
            rank_border = rank * border
        done = first_gather + head + rank_border + m * work + max(sends, 0.0)
        pieces = patterns.pieces[p, s]
        ready = done + max(reduce_own / pieces, reduce_own - own * (pieces - 1.0) / pieces)
        ready = max(ready, done + tail + rank_border + first_reduce / patterns.first_pieces[p])
        late = max(late, ready)
        cut = costs.shard[h] if zero >= 1 else 1.0
        cut_experts = costs.expert_shard[h] if zero >= 1 else 1.0
        share = offload / 100.0
        spent = optimizer_seconds(dense, cut, facts.update_bytes, facts.bandwidth, share, facts.host_rate)
        spent += optimizer_seconds(experts, cut_experts, facts.update_bytes, facts.bandwidth, share, facts.host_rate)
        if rank == 0 or rank == ranks - 1:
            spent += costs.tied[h]
        if not facts.overlap_gather and (zero == 1 or zero == 2):
            spent += gather_all
        update = max(update, spent)
    if ranks > 1:
        way += 2.0 * (ranks * chunks - 1.0) * border
    late = max(late, first_gather + way + edge_f + edge_b)
    return late + update + costs.norm[h]


@compiled
def bound_members(costs: Costs, patterns: Patterns, outer: Outer, choices: Choices, facts: Facts, time_out: FloatArray, memory_out: FloatArray) -> None:
    """B0 of every member.

    Members of outer row i are its zero options x its redo options x all offload options, in this order, from `outer.start[i]`.
    `time_out` gets seconds, `memory_out` the lower bound of the fullest looked-at rank in bytes.
    """
    for i in range(outer.layer.shape[0]):
        l = outer.layer[i]
        p = outer.pattern[i]
        m = float(outer.microbatches[i])
        border = costs.border[l, outer.border[i]] if patterns.ranks[p] > 1 else 0.0
        at = outer.start[i]
        for zi in range(choices.zero_lists.shape[1]):
            z = choices.zero_lists[outer.zero_list[i], zi]
            if z < 0:
                break
            zero = choices.zero_stage[z]
            h = outer.mesh[i] + choices.zero_shard[z]
            for ri in range(choices.redo_lists.shape[1]):
                r = choices.redo_lists[outer.redo_list[i], ri]
                if r < 0:
                    break
                mode = choices.redo_mode[r]
                redo = choices.redo_layers[r]
                for oi in range(choices.offload.shape[0]):
                    offload = float(choices.offload[oi])
                    fullest = 0.0
                    for s in range(patterns.looked[p]):
                        rank = patterns.rank[p, s]
                        flying = _in_flight(outer.schedule[i], patterns.ranks[p], patterns.chunks_per_rank[p], rank, outer.microbatches[i])
                        fullest = max(fullest, _memory(costs, patterns, facts, l, h, p, s, zero, mode, redo, offload, flying))
                    memory_out[at] = fullest
                    if fullest > facts.capacity:
                        time_out[at] = np.inf
                    else:
                        spent = _seconds(costs, patterns, facts, l, h, p, m, border, zero, mode, redo, offload)
                        # Clocks of B1 and S are whole picoseconds: a rounding of each task stays below this margin.
                        time_out[at] = spent * facts.jitter * (1.0 - 1e-9)
                    at += 1
