"""Tier B0: a closed-form lower bound of the step and of peak memory for millions of strategies.

For a few ranks s of each pipeline (first, second, one before last, last)::

    T >= gather + head_s + m work_s + max(tail_s + reduce_0, reduce_s) + update,   head and tail over the chunks before s,
    T >= gather + way_c + p chunk_c + (m - p) work_s + reduce_0 + update,          c the last chunk of s, way over those before it,

and one microbatch's way through all chunks and back. The second is the way of the first microbatch to c, all that the rank does from
there to the last one's backward of c, and that one's way back; before and after it has p microbatches of each of its other chunks. With
2 chunks a rank, 4 ranks, 8 microbatches and s = 3: 7 chunks there and back, 8 microbatches of c, 4 of the rank's other chunk. Every
term is a part of a path through the order that `critical_path` walks, so B0 <= B1. Memory counts what must be alive at their fullest.
"""

from __future__ import annotations

import numpy as np

from shardwright.arrays import FloatArray
from shardwright.compiled import compiled, inlined, inner
from shardwright.cost.bound_arrays import MAX_RANKS, SCHEDULE_1F1B, SCHEDULE_GPIPE, ChoiceArrays, Costs, Facts, Outer, Patterns, Scratch
from shardwright.cost.terms import (
    backward_layer,
    forward_layer,
    gathered_elements,
    optimizer_seconds,
    parameter_bytes,
    reserved_bytes,
    temporary_bytes,
)


def _scratch(redo_options: int, offloads: int) -> Scratch:
    sizes: dict[str, int | tuple[int, int]] = dict.fromkeys(Scratch._fields, MAX_RANKS)
    sizes |= dict.fromkeys(("live", "blocks", "work", "head", "tail", "around", "own"), (redo_options, MAX_RANKS))
    sizes |= {"way": redo_options, "held": (offloads, MAX_RANKS), "update": offloads}
    return Scratch(**{name: np.zeros(size) for name, size in sizes.items()})


@inner
def _in_flight(schedule: int, ranks: int, chunks: int, rank: int, microbatches: int) -> float:
    """Chunks whose activations a rank holds at its fullest."""
    if schedule == SCHEDULE_GPIPE:
        return float(microbatches * chunks)
    if schedule == SCHEDULE_1F1B:
        return float(min(microbatches, ranks - rank))
    return float(min(microbatches * chunks, 2 * (ranks - rank - 1) + (chunks - 1) * ranks + 1))


@inner
def _fill_elements(
    scratch: Scratch, costs: Costs, patterns: Patterns, p: int, layer: int, h: int, schedule: int, microbatches: int
) -> None:
    """Local elements and chunks in flight of each looked-at rank."""
    for s in range(patterns.looked[p]):
        dense = 0.0
        experts = 0.0
        spread = 0.0
        frozen = 0.0
        largest = 0.0
        ends = 0.0
        copied = 0.0
        for t in range(costs.dense.shape[0]):
            n = patterns.stage[p, s, t]
            if n > 0.0:
                if patterns.rank[p, s] > 0:
                    copied = max(copied, costs.copied[t, h])
                dense += n * costs.dense[t, h]
                experts += n * costs.experts[t, h]
                spread += n * costs.spread[t, h]
                frozen += n * costs.frozen[t, h]
                if costs.transient[t, layer] > 0.0:
                    largest = max(largest, costs.dense[t, h] + costs.experts[t, h])
                else:
                    ends += n * (costs.dense[t, h] + costs.experts[t, h])
        scratch.dense[s] = dense
        scratch.experts[s] = experts
        scratch.spread[s] = spread
        scratch.frozen[s] = frozen
        scratch.largest[s] = largest
        scratch.ends[s] = ends
        scratch.held_dense[s] = dense + copied
        scratch.flying[s] = _in_flight(schedule, patterns.ranks[p], patterns.chunks_per_rank[p], patterns.rank[p, s], microbatches)


@inner
def _fill_live(
    scratch: Scratch, costs: Costs, patterns: Patterns, facts: Facts, p: int, layer: int, h: int, r: int, mode: int, redo: int
) -> None:
    """Activations, logits and temporaries at the fullest under one recompute option."""
    use = 1 if mode == 1 else 0
    for s in range(patterns.looked[p]):
        saved = 0.0
        transient = 0.0
        for t in range(costs.dense.shape[0]):
            is_layer = costs.transient[t, layer] > 0.0
            kept = 2 if mode == 2 and is_layer and facts.layer_block < 0 else use
            saved += patterns.least[p, s, t] * costs.saved[t, kept, layer]
            if is_layer and patterns.stage[p, s, t] > 0.0:
                transient = max(transient, costs.saved[t, 0, layer] - costs.saved[t, mode, layer])
        if mode == 2 and facts.layer_block >= 0:
            t = facts.layer_block
            saved -= patterns.redone_least[p, s, redo] * (costs.saved[t, 0, layer] - costs.saved[t, 2, layer])
        end = costs.embedding[h] if patterns.has_end[p, s] else 0.0
        logits = costs.logits[layer] if patterns.has_head[p, s] else 0.0
        blocks = costs.logits_blocks[layer] if patterns.has_head[p, s] else 0.0
        scratch.live[r, s] = scratch.flying[s] * saved + logits + temporary_bytes(transient, end, logits)
        scratch.blocks[r, s] = blocks + transient + end - logits - temporary_bytes(transient, end, logits)


@inner
def _fill_work(
    scratch: Scratch, costs: Costs, patterns: Patterns, facts: Facts, p: int, layer: int, h: int, r: int, zero: int, mode: int, redo: int
) -> None:
    """Seconds of a microbatch under one recompute option and ZeRO stage."""
    single = facts.layer_block >= 0
    scales, chunks = costs.scales[h], float(patterns.chunks_per_rank[p])
    for s in range(patterns.looked[p]):
        scratch.work[r, s] = 2.0 * chunks * scales
        scratch.head[r, s] = patterns.rank[p, s] * scales
        scratch.tail[r, s] = patterns.rank[p, s] * scales
        scratch.around[r, s] = 2.0 * patterns.rank[p, s] * scales
        scratch.own[r, s] = scales
    way = 2.0 * patterns.ranks[p] * chunks * scales
    for t in range(costs.dense.shape[0]):
        gather = costs.gather[t, h]
        reduce = costs.all_reduce[t, h] if zero == 0 else costs.reduce[t, h]
        copy, back, slowdown = costs.gather_copy[t, h], costs.reduce_copy[t, h], costs.slowdown[h]
        f = forward_layer(costs.forward[t, layer], gather, copy, zero, slowdown)
        plain = costs.backward[t, layer] + (costs.selective[t, layer] if mode == 1 else 0.0)
        b = backward_layer(plain, gather, reduce, copy, back, zero, facts.every_microbatch, slowdown)
        redone = mode == 2 and costs.transient[t, layer] > 0.0
        more = 0.0
        if redone:
            whole = plain + costs.full[t, layer]
            again = backward_layer(whole, gather, reduce, copy, back, zero, facts.every_microbatch, slowdown)
            if single:
                more = again - b
            else:
                b = again
        for s in range(patterns.looked[p]):
            scratch.work[r, s] += patterns.stage[p, s, t] * (f + b)
            scratch.head[r, s] += patterns.before[p, s, t] * f
            scratch.tail[r, s] += patterns.before[p, s, t] * b
            scratch.around[r, s] += patterns.around[p, s, t] * (f + b)
            scratch.own[r, s] += patterns.own[p, s, t] * b
            if more > 0.0:
                scratch.work[r, s] += patterns.redone[p, s, redo] * more
                scratch.tail[r, s] += patterns.redone_before[p, s, redo] * more
                scratch.around[r, s] += patterns.redone_around[p, s, redo] * more
                scratch.own[r, s] += patterns.redone_own[p, s, redo] * more
        way += patterns.total[p, t] * (f + b) + patterns.redone_total[p, redo] * more
    scratch.way[r] = way


@inner
def _fill_sync(scratch: Scratch, costs: Costs, patterns: Patterns, facts: Facts, p: int, h: int, zero: int) -> tuple[float, float]:
    """Reductions of chunk s and gathers of the rank; returns the reduction and the gather of chunk 0."""
    at_end = not (zero >= 2 and facts.every_microbatch)
    gathers = zero == 1 or zero == 2
    first_reduce = 0.0
    first_gather = 0.0
    for s in range(patterns.looked[p]):
        scratch.reduce_own[s] = 0.0
        scratch.gather_all[s] = 0.0
    for t in range(costs.dense.shape[0]):
        reduce = (costs.all_reduce[t, h] if zero == 0 else costs.reduce[t, h]) if at_end else 0.0
        gather = costs.gather[t, h] if gathers else 0.0
        first_reduce += patterns.first[p, t] * reduce
        first_gather += patterns.first[p, t] * gather
        for s in range(patterns.looked[p]):
            scratch.reduce_own[s] += patterns.own[p, s, t] * reduce
            scratch.gather_all[s] += patterns.stage[p, s, t] * gather
    return first_reduce, first_gather


@inner
def _held(elements: float, shard: float, cut: bool) -> float:
    return np.ceil(elements / shard) if cut else elements


@inner
def _fill_held(scratch: Scratch, costs: Costs, patterns: Patterns, facts: Facts, p: int, h: int, zero: int, o: int, offload: float) -> None:
    """Bytes that live through the step on each looked-at rank."""
    shard, expert_shard = costs.shard[h], costs.expert_shard[h]
    for s in range(patterns.looked[p]):
        dense, experts = scratch.held_dense[s], scratch.experts[s]
        sharded = _held(dense, shard, True) + _held(experts, expert_shard, True)
        parameters = parameter_bytes(
            zero,
            dense + experts,
            sharded,
            # Summed by more devices than the rest, so sharded further: ZeRO-3 may leave nothing of it.
            scratch.frozen[s] + (scratch.spread[s] if zero < 3 else 0.0),
            gathered_elements(scratch.ends[s], scratch.largest[s], facts.prefetch),
            facts.parameter_bytes,
            facts.shard_bytes,
        )
        gradients = (_held(dense, shard, zero >= 2) + _held(experts, expert_shard, zero >= 2)) * facts.gradient_bytes
        states = (_held(dense, shard, zero >= 1) + _held(experts, expert_shard, zero >= 1)) * facts.state_bytes
        scratch.held[o, s] = parameters + gradients + np.floor(states * (100.0 - offload) / 100.0) + facts.workspace


@inner
def _update(scratch: Scratch, costs: Costs, patterns: Patterns, facts: Facts, p: int, h: int, zero: int, offload: float) -> float:
    """Seconds of the slowest looked-at rank's update, without clipping."""
    cut = costs.shard[h] if zero >= 1 else 1.0
    cut_experts = costs.expert_shard[h] if zero >= 1 else 1.0
    share = offload / 100.0
    slowest = 0.0
    for s in range(patterns.looked[p]):
        spent = optimizer_seconds(scratch.dense[s], cut, facts.update_bytes, facts.bandwidth, share, facts.host_rate)
        spent += optimizer_seconds(scratch.experts[s], cut_experts, facts.update_bytes, facts.bandwidth, share, facts.host_rate)
        spent += (scratch.dense[s] + scratch.experts[s]) * costs.passes[h] / facts.bandwidth
        if not facts.overlap_gather:
            spent += scratch.gather_all[s]
        slowest = max(slowest, spent)
    return slowest


@inner
def _ready(
    scratch: Scratch,
    patterns: Patterns,
    facts: Facts,
    p: int,
    r: int,
    m: float,
    border: float,
    first_reduce: float,
    first_gather: float,
    tied: float,
) -> float:
    """Lower bound of the instant at which every gradient is reduced; those of `tied` weights come last on both ends."""
    ranks = patterns.ranks[p]
    chunks = float(patterns.chunks_per_rank[p])
    late: float = first_gather + scratch.way[r] + 2.0 * (ranks * chunks - 1.0) * border
    for s in range(patterns.looked[p]):
        rank = patterns.rank[p, s]
        sends = 0.0
        if facts.blocking and ranks > 1:
            forward_sends = chunks - 1.0 if rank == ranks - 1 else chunks
            backward_sends = chunks - 1.0 if rank == 0 else chunks
            # The very last send of a rank may end after its last action.
            sends = max((m * (forward_sends + backward_sends) - 1.0) * border, 0.0)
        done = first_gather + scratch.head[r, s] + rank * border + m * scratch.work[r, s] + sends
        pieces = patterns.pieces[p, s]
        reduce = scratch.reduce_own[s]
        own = max(reduce / pieces, reduce - scratch.own[r, s] * (pieces - 1.0) / pieces)
        late = max(late, done + own + (tied if rank == 0 or rank == ranks - 1 else 0.0))
        back = scratch.tail[r, s] + rank * border
        around = scratch.around[r, s] - scratch.head[r, s] + (2.0 * (chunks - 1.0) * ranks + rank) * border - sends
        late = max(late, done + max(back, around) + first_reduce / patterns.first_pieces[p] + tied)
    return late


@inlined
def _bound_outer(
    scratch: Scratch,
    costs: Costs,
    patterns: Patterns,
    outer: Outer,
    choices: ChoiceArrays,
    facts: Facts,
    i: int,
    time_out: FloatArray,
    memory_out: FloatArray,
) -> None:
    """B0 of the members of one outer row."""
    layer, p = outer.layer[i], outer.pattern[i]
    m = float(outer.microbatches[i])
    border = costs.border[layer, outer.border[i]] if patterns.ranks[p] > 1 else 0.0
    at = outer.start[i]
    redos = choices.redo_lists[outer.redo_list[i]]
    zeros = choices.zero_lists[outer.zero_list[i]]
    _fill_elements(scratch, costs, patterns, p, layer, outer.mesh[i], outer.schedule[i], outer.microbatches[i])
    for ri in range(redos.shape[0]):
        r = redos[ri]
        if r < 0:
            break
        _fill_live(scratch, costs, patterns, facts, p, layer, outer.mesh[i], r, choices.redo_mode[r], choices.redo_layers[r])
        scratch.way[r] = -1.0
    plain = True
    for zi in range(zeros.shape[0]):
        z = zeros[zi]
        if z < 0:
            break
        zero = choices.zero_stage[z]
        h = outer.mesh[i] + choices.zero_shard[z]
        first_reduce, first_gather = _fill_sync(scratch, costs, patterns, facts, p, h, zero)
        if not facts.overlap_gather:
            first_gather = 0.0
        for oi in range(choices.offload.shape[0]):
            offload = float(choices.offload[oi])
            _fill_held(scratch, costs, patterns, facts, p, h, zero, oi, offload)
            scratch.update[oi] = _update(scratch, costs, patterns, facts, p, h, zero, offload)
        # Only ZeRO-2 and 3 put communication beside a microbatch's compute.
        beside = zero == 3 or (zero == 2 and facts.every_microbatch)
        plain = plain and not beside
        for ri in range(redos.shape[0]):
            r = redos[ri]
            if r < 0:
                break
            ready = -1.0
            for oi in range(choices.offload.shape[0]):
                fullest = 0.0
                for s in range(patterns.looked[p]):
                    allocated = scratch.held[oi, s] + scratch.live[r, s]
                    fullest = max(fullest, reserved_bytes(allocated, 0.0, 0.0, scratch.blocks[r, s], facts.reserve))
                fullest = fullest * (1.0 - 1e-9) + costs.communicators[h] + costs.overlap_buffers[layer] + facts.context
                memory_out[at] = fullest
                time_out[at] = np.inf
                if fullest <= facts.capacity:
                    if ready < 0.0:
                        if not plain or scratch.way[r] < 0.0:
                            _fill_work(scratch, costs, patterns, facts, p, layer, h, r, zero, choices.redo_mode[r], choices.redo_layers[r])
                        tied = costs.tied[1 if zero > 0 else 0, h]
                        ready = _ready(scratch, patterns, facts, p, r, m, border, first_reduce, first_gather, tied)
                    spent = ready + scratch.update[oi] + costs.norm[h]
                    # Clocks of B1 and S are whole picoseconds: a rounding of each task stays below this margin.
                    time_out[at] = spent * facts.jitter * (1.0 - 1e-9)
                at += 1


@compiled
def _bound_all(
    scratch: Scratch,
    costs: Costs,
    patterns: Patterns,
    outer: Outer,
    choices: ChoiceArrays,
    facts: Facts,
    time_out: FloatArray,
    memory_out: FloatArray,
) -> None:
    for i in range(outer.layer.shape[0]):
        _bound_outer(scratch, costs, patterns, outer, choices, facts, i, time_out, memory_out)


def bound_members(costs: Costs, patterns: Patterns, outer: Outer, choices: ChoiceArrays, facts: Facts) -> tuple[FloatArray, FloatArray]:
    """B0 of every member: seconds (inf where memory cannot fit), and a lower bound of the fullest rank in bytes.

    Members of outer row i are its zero options x its redo options x all offload options, in this order, from `outer.start[i]`.
    """
    time_out, memory_out = np.empty(int(outer.start[-1])), np.empty(int(outer.start[-1]))
    _bound_all(_scratch(len(choices.redo_mode), len(choices.offload)), costs, patterns, outer, choices, facts, time_out, memory_out)
    return time_out, memory_out
