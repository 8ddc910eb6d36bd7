"""Tier B0: a closed-form lower bound of the step and of peak memory for millions of strategies.

For a few ranks s of each pipeline (first, second, the fullest inside, one before last, last)::

    T >= gather + head_s + m work_s + max(tail_s + reduce_0, reduce_s) + update
    T >= gather + way_c + p chunk_c + (m - p) work_s + reduce_0 + update

and one microbatch's way through all chunks and back. Head and tail are over the chunks before s; c
is the last chunk of s, and way is over the chunks before c.

The second is the way of the first microbatch to c, all work of the rank from there to the last
microbatch's backward of c, and that microbatch's way back; before and after it the rank has p
microbatches of each of its other chunks. With 2 chunks a rank, 4 ranks, 8 microbatches and s = 3: 7
chunks there and back, 8 microbatches of c, 4 of the rank's other chunk. Every term is a part of a
path through the order that `longest_path` walks, so B0 <= B1. Memory counts the tensors that must
be alive at the fullest.
"""

from __future__ import annotations

from functools import partial
from typing import Final

import numpy as np

from shardwright.arrays import FloatArray, RecordArray
from shardwright.cost.bounds.closed_form_memory_bound import (
    fill_elements,
    fill_held,
    fill_live,
    fill_whole,
)
from shardwright.cost.bounds.compiled_bound_array_records import (
    ChoiceArrays,
    CostRecords,
    Costs,
    Outer,
    PatternRecords,
    Patterns,
    ProblemNumbers,
    Scratch,
    cost_records,
    number_records,
    outer_records,
    pattern_records,
    scratch_of,
)
from shardwright.cost.step.shared_scalar_cost_formulas import (
    backward_layer,
    forward_layer,
    gathers_again,
    optimizer_seconds,
    reserved_bytes,
)
from shardwright.kernel_compilation import (
    allocation_free,
    available_cores,
    call_in_threads,
    inlined,
    inner,
)

MEMBERS_OF_A_CORE: Final = 20_000
"""Fewest members for a thread of their own: their bounds take 2 ms, starting a thread 0.1 ms."""


@inner
def _reduction(sync: np.void, zero: int) -> float:
    """Seconds to reduce one layer's gradients: all-reduce (ZeRO 0), reduce (1-2) or scatter (3)."""
    seconds: float = (
        sync["all_reduce"] if zero == 0 else sync["scatter"] if zero == 3 else sync["reduce"]
    )
    return seconds


@inner
def _fill_work(
    scratch: Scratch,
    costs: CostRecords,
    patterns: PatternRecords,
    facts: np.void,
    p: int,
    layer: int,
    h: int,
    r: int,
    zero: int,
    mode: int,
    redo: int,
    left: float,
) -> None:
    """Fill in ranks' seconds a microbatch; `p`, `layer`, `h`: rows; `left`: share sent to host.

    Args:
        left: share of the gradients that go to the host.
    """
    single = facts["layer_block"] >= 0
    pipeline, slowdown = patterns.pipelines[p], costs.groups[h]["slowdown"]
    scales, chunks = costs.groups[h]["scales"], float(pipeline["chunks_per_rank"])
    for s in range(pipeline["looked"]):
        sums, before = scratch.redos[r, s], patterns.ranks[p, s]["rank"] * scales
        sums["work"] = 2.0 * chunks * scales
        sums["head"] = before
        sums["tail"] = before
        sums["around"] = 2.0 * before
        sums["own"] = scales
    way = 2.0 * pipeline["ranks"] * chunks * scales
    for t in range(costs.meshes.shape[1]):
        times, sync = costs.layers[layer, t], costs.meshes[h, t]
        gather, apart, copy, back = (
            sync["refetch"],
            sync["apart"],
            sync["regather_copy"],
            sync["reduce_copy"],
        )
        reduce = _reduction(sync, zero) + left * sync["host_gradient"]
        f = forward_layer(times["forward"], sync["fetch"], sync["gather_copy"], zero, slowdown)
        plain = times["backward"] + (times["selective"] if mode == 1 else 0.0)
        b = backward_layer(
            plain, gather, reduce, apart, copy, back, zero, facts["every_microbatch"], slowdown
        )
        redone = mode == 2 and times["transient"] > 0.0
        more = 0.0
        if redone:
            once_more = gathers_again(sync["regathered"], facts["reuse"])
            longer, fetch, put = plain + times["full"], once_more * gather, once_more * copy
            again = backward_layer(
                longer, fetch, reduce, apart, put, back, zero, facts["every_microbatch"], slowdown
            )
            if single:
                more = again - b
            else:
                b = again
        for s in range(pipeline["looked"]):
            sums, block = scratch.redos[r, s], patterns.blocks[p, s, t]
            sums["work"] += block["stage"] * (f + b)
            sums["head"] += block["before"] * f
            sums["tail"] += block["before"] * b
            sums["around"] += block["around"] * (f + b)
            sums["own"] += block["own"] * b
            if more > 0.0:
                layers = patterns.redone[p, s, redo, t // facts["blocks"]]
                sums["work"] += layers["stage"] * more
                sums["tail"] += layers["before"] * more
                sums["around"] += layers["around"] * more
                sums["own"] += layers["own"] * more
        way += patterns.blocks[p, 0, t]["total"] * (f + b)
        if more > 0.0:
            way += patterns.redone[p, 0, redo, t // facts["blocks"]]["total"] * more
    scratch.way[r] = way


@inner
def _fill_sync(
    scratch: Scratch,
    costs: CostRecords,
    patterns: PatternRecords,
    facts: np.void,
    p: int,
    h: int,
    zero: int,
) -> tuple[float, float]:
    """Fill in each rank's seconds of reductions and gathers; return chunk 0's (reduction, gather).

    Returns the reduction and the gather of chunk 0, in seconds.
    """
    at_end = not (zero >= 2 and facts["every_microbatch"])
    gathers = zero == 1 or zero == 2
    first_reduce = 0.0
    first_gather = 0.0
    looked = patterns.pipelines[p]["looked"]
    for s in range(looked):
        scratch.ranks[s]["reduce_own"] = 0.0
        scratch.ranks[s]["gather_all"] = 0.0
    for t in range(costs.meshes.shape[1]):
        sync, first = costs.meshes[h, t], patterns.blocks[p, 0, t]["first"]
        reduce = _reduction(sync, zero) if at_end else 0.0
        gather = sync["gather"] if gathers else 0.0
        first_reduce += first * reduce
        first_gather += first * gather
        for s in range(looked):
            sums, block = scratch.ranks[s], patterns.blocks[p, s, t]
            sums["reduce_own"] += block["own"] * reduce
            sums["gather_all"] += block["stage"] * gather
    return first_reduce, first_gather


@inner
def _update(
    scratch: Scratch,
    costs: CostRecords,
    patterns: PatternRecords,
    facts: np.void,
    p: int,
    h: int,
    zero: int,
    offload: float,
) -> float:
    """Slowest examined rank's optimizer update and unoverlapped gathers in seconds, no clipping."""
    group = costs.groups[h]
    cut = group["shard"] if zero >= 1 else 1.0
    cut_experts = group["expert_shard"] if zero >= 1 else 1.0
    share = offload / 100.0
    rate = facts["left_rate"] if zero >= 2 else facts["host_rate"]
    slowest = 0.0
    for s in range(patterns.pipelines[p]["looked"]):
        of = scratch.ranks[s]
        spent = optimizer_seconds(
            of["dense"], cut, facts["update_bytes"], facts["bandwidth"], share, rate
        )
        spent += optimizer_seconds(
            of["experts"], cut_experts, facts["update_bytes"], facts["bandwidth"], share, rate
        )
        spent += (of["dense"] + of["experts"]) * group["passes"] / facts["bandwidth"]
        if not facts["overlap_gather"]:
            spent += of["gather_all"]
        slowest = max(slowest, spent)
    return slowest


@inner
def _border_seconds(
    scratch: Scratch,
    costs: CostRecords,
    patterns: PatternRecords,
    facts: np.void,
    p: int,
    layer: int,
    tier: int,
    m: float,
) -> float:
    """Fill in ranks' send seconds; return a microbatch's way there and back; `p`, `layer`: rows.

    The round trip is the way of one microbatch through all chunks and back.
    """
    pipeline = patterns.pipelines[p]
    blocks = facts["blocks_plain"] if pipeline["chunks_per_rank"] == 1 else facts["blocks_several"]
    way = 0.0
    for k in range(patterns.borders.shape[2]):
        way += 2.0 * patterns.borders[p, 0, k]["total"] * costs.border[layer, tier + k]
    for s in range(pipeline["looked"]):
        of = scratch.ranks[s]
        reached, beyond, sends, last = 0.0, 0.0, 0.0, 0.0
        for k in range(patterns.borders.shape[2]):
            crossed, border = patterns.borders[p, s, k], costs.border[layer, tier + k]
            reached += crossed["before"] * border
            beyond += (2.0 * crossed["around"] - crossed["before"]) * border
            sends += m * crossed["sends"] * border
            if crossed["sends"] > 0.0:
                last = max(last, border)
        of["reached"] = reached
        of["beyond"] = beyond
        # The very last send of a rank may end after its last action.
        of["sends"] = max(sends - last, 0.0) if blocks else 0.0
    return way


@inner
def _ready(
    scratch: Scratch,
    patterns: PatternRecords,
    p: int,
    r: int,
    m: float,
    sent: float,
    first_reduce: float,
    first_gather: float,
    tied: float,
) -> float:
    """Lower bound of the instant, in seconds, at which every gradient is reduced.

    Gradients of `tied` weights come last on both ends.
    """
    pipeline = patterns.pipelines[p]
    ranks = pipeline["ranks"]
    late: float = first_gather + scratch.way[r] + sent
    for s in range(pipeline["looked"]):
        sums, of, rank, pieces = (
            scratch.redos[r, s],
            scratch.ranks[s],
            patterns.ranks[p, s]["rank"],
            patterns.ranks[p, s]["pieces"],
        )
        done = first_gather + sums["head"] + of["reached"] + m * sums["work"] + of["sends"]
        reduce = of["reduce_own"]
        own = max(reduce / pieces, reduce - sums["own"] * (pieces - 1.0) / pieces)
        late = max(late, done + own + (tied if rank == 0 or rank == ranks - 1 else 0.0))
        around = sums["around"] - sums["head"] + of["beyond"] - of["sends"]
        late = max(
            late,
            done
            + max(sums["tail"] + of["reached"], around)
            + first_reduce / pipeline["first_pieces"]
            + tied,
        )
    return late


@inlined
def _bound_outer(
    scratch: Scratch,
    costs: CostRecords,
    patterns: PatternRecords,
    row: np.void,
    choices: ChoiceArrays,
    facts: np.void,
    time_out: FloatArray,
    memory_out: FloatArray,
) -> None:
    """Fill in B0 step seconds and peak bytes of an outer row: each ZeRO, recompute and offload."""
    layer, p, mesh, at = row["layer"], row["pattern"], row["mesh"], row["start"]
    zero_list, redo_list = row["zero_list"], row["redo_list"]
    m = float(row["microbatches"])
    looked = patterns.pipelines[p]["looked"]
    sent = _border_seconds(scratch, costs, patterns, facts, p, layer, row["border"], m)
    fill_elements(scratch, costs, patterns, p, mesh, row["schedule"], row["microbatches"])
    for ri in range(choices.redo_lists.shape[1]):
        r = choices.redo_lists[redo_list, ri]
        if r < 0:
            break
        under = layer + choices.redo_modules[r] * facts["layer_rows"]
        fill_live(
            scratch,
            costs,
            patterns,
            facts,
            p,
            under,
            mesh,
            r,
            choices.redo_mode[r],
            choices.redo_layers[r],
        )
        scratch.way[r] = -1.0
    plain = True
    for zi in range(choices.zero_lists.shape[1]):
        z = choices.zero_lists[zero_list, zi]
        if z < 0:
            break
        zero = choices.zero_stage[z]
        h = mesh + choices.zero_shard[z]
        group, priced = costs.groups[h], False
        first_reduce, first_gather = 0.0, 0.0
        if zero == 3:
            fill_whole(scratch, costs, patterns, p, h)
        fill_held(scratch, costs, patterns, facts, p, h, zero, choices.offload)
        # Only ZeRO-2 and 3 put communication beside a microbatch's compute.
        beside = zero == 3 or (zero == 2 and facts["every_microbatch"])
        plain = plain and not beside
        leave = beside and zero >= 2 and facts["gradients_leave"]
        for ri in range(choices.redo_lists.shape[1]):
            r = choices.redo_lists[redo_list, ri]
            if r < 0:
                break
            ready, of_share = -1.0, -1.0
            for oi in range(choices.offload.shape[0]):
                fullest = 0.0
                for s in range(looked):
                    allocated = scratch.held[oi, s] + scratch.redos[r, s]["live"]
                    fullest = max(
                        fullest,
                        reserved_bytes(
                            allocated, 0.0, 0.0, scratch.redos[r, s]["blocks"], facts["reserve"]
                        ),
                    )
                fullest = (
                    fullest * (1.0 - 1e-9)
                    + group["communicators"]
                    + costs.rows[layer]["overlap_buffers"]
                    + facts["context"]
                )
                memory_out[at] = fullest
                time_out[at] = np.inf
                if fullest <= facts["capacity"]:
                    if not priced:
                        # Seconds are computed only for members that fit in memory.
                        priced = True
                        first_reduce, first_gather = _fill_sync(
                            scratch, costs, patterns, facts, p, h, zero
                        )
                        if not facts["overlap_gather"]:
                            first_gather = 0.0
                        for of in range(choices.offload.shape[0]):
                            scratch.update[of] = _update(
                                scratch,
                                costs,
                                patterns,
                                facts,
                                p,
                                h,
                                zero,
                                float(choices.offload[of]),
                            )
                    left = float(choices.offload[oi]) / 100.0 if leave else 0.0
                    if left != of_share:
                        of_share = left
                        if not plain or scratch.way[r] < 0.0:
                            under = layer + choices.redo_modules[r] * facts["layer_rows"]
                            mode, redo = choices.redo_mode[r], choices.redo_layers[r]
                            _fill_work(
                                scratch,
                                costs,
                                patterns,
                                facts,
                                p,
                                under,
                                h,
                                r,
                                zero,
                                mode,
                                redo,
                                left,
                            )
                        tied = group["tied_reduce"] if zero > 0 else group["tied_all_reduce"]
                        ready = _ready(
                            scratch, patterns, p, r, m, sent, first_reduce, first_gather, tied
                        )
                    spent = ready + scratch.update[oi] + group["norm"]
                    # Clocks of B1 and S are whole picoseconds: a rounding of each task stays below
                    # this margin.
                    time_out[at] = spent * row["jitter"] * (1.0 - 1e-9)
                at += 1


@allocation_free
def _bound_all(
    scratch: Scratch,
    costs: CostRecords,
    patterns: PatternRecords,
    outer: RecordArray,
    choices: ChoiceArrays,
    facts: RecordArray,
    time_out: FloatArray,
    memory_out: FloatArray,
) -> None:
    """Fill in the B0 bounds of step seconds and peak bytes of the members of all outer rows."""
    for i in range(outer.shape[0]):
        _bound_outer(scratch, costs, patterns, outer[i], choices, facts[0], time_out, memory_out)


def bound_members(
    costs: Costs, patterns: Patterns, outer: Outer, choices: ChoiceArrays, facts: ProblemNumbers
) -> tuple[FloatArray, FloatArray]:
    """Lower bounds (B0) of strategies: step seconds (inf: memory cannot fit), fullest rank's bytes.

    Seconds are inf where memory cannot fit.

    Members of outer row i are its zero options x its redo options x all offload options, in this
    order, from `outer.start[i]`.
    """
    time_out, memory_out = np.empty(int(outer.start[-1])), np.empty(int(outer.start[-1]))
    tables, numbers, records = (
        (cost_records(costs), pattern_records(patterns)),
        number_records(facts),
        outer_records(outer),
    )

    def fill_bounds_of(rows: RecordArray) -> None:
        scratch = scratch_of(
            len(choices.redo_mode), len(choices.offload), ranks=patterns.rank.shape[1]
        )
        _bound_all(scratch, *tables, rows, choices, numbers, time_out, memory_out)

    # A row's bounds need no other row: each core takes rows with equal numbers of members.
    parts = max(min(available_cores(), len(time_out) // MEMBERS_OF_A_CORE), 1)
    ends = np.searchsorted(outer.start, np.linspace(0, len(time_out), parts + 1)[1:-1])
    call_in_threads(partial(fill_bounds_of, rows) for rows in np.split(records, ends))
    return time_out, memory_out
