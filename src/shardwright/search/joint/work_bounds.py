"""Lower bounds on all pipelines of a joint space at once, from their work alone."""

from __future__ import annotations

import numpy as np

from shardwright.arrays import BoolArray, FloatArray
from shardwright.cost.bounds.compiled_bound_array_records import ProblemNumbers
from shardwright.program.training_problem import Problem
from shardwright.search.joint.joint_space import ShapedSpace
from shardwright.search.joint.label_dynamic_program_inputs import border_tier, least_sends
from shardwright.search.joint.model_as_chain_of_one_layer_positions import Chain


def pipeline_work_bounds(
    problem: Problem, shaped: ShapedSpace, chain: Chain, facts: ProblemNumbers
) -> FloatArray:
    """(pipelines,) lower bound in step seconds of each, before jitter; inf if states cannot fit.

    Inf where the states of no member fit in memory.

    The busiest of p ranks computes for m W / p, W = one microbatch through all blocks. One chunk a
    rank: the cut that makes P + m w the same on all ranks (P the ranks before, w the rank's own
    time) ends after W / (1 - (1 - 1/m)^p); and from its first backward on a rank has all others
    left: W + ((m - 1) B + max(m - p, 0) F) / p. With different splits each block takes the fastest.
    Several chunks: the mean over ranks of the time before each, m of its work and its sends.

    Under any order only forwards come before a rank: with f the least share of forwards in a
    block's time, W f / (1 - (1 - f/m)^p), and with several chunks a rank no time that is the same
    for all spreads.
    """
    counts = chain.counts.sum(axis=0).astype(np.float64)
    row, mesh, costs = shaped.prepared.layer_row, shaped.prepared.mesh_row, shaped.costs
    forward, backward = costs.forward[:, row], costs.backward[:, row]
    whole, back = counts @ (forward + backward), counts @ backward
    least = (chain.inner.astype(np.float64) @ (forward + backward)).min(axis=0)
    tiers = np.array([border_tier(problem, int(s)) for s in shaped.columns["s_pp"]], dtype=np.int64)
    border = least_sends(problem, shaped)[row, tiers]
    share = _forward_share(counts, forward, backward)
    dense, experts, frozen = (
        counts @ table[:, mesh] for table in (costs.dense, costs.experts, costs.frozen)
    )
    static = []
    for zero in (0, 1):
        local = (
            dense / costs.shard[mesh] + experts / costs.expert_shard[mesh]
            if zero
            else dense + experts
        )
        elements = (dense + experts) * (
            facts.parameter_bytes + facts.gradient_bytes + facts.own_gradient_bytes
        ) + frozen * facts.parameter_bytes
        static.append(elements + local * facts.state_bytes)
    result = np.empty(len(shaped.pipelines))
    lone = np.array([len(f.outers) == 1 for f in shaped.pipelines])
    for place in np.flatnonzero(~lone):
        pipeline = shaped.pipelines[place]
        rows = list(pipeline.outers)
        w = counts @ (forward[:, rows] + backward[:, rows]).min(axis=1)
        b = counts @ backward[:, rows].min(axis=1)
        fits = min(static[pipeline.zero][rows]) / pipeline.ranks <= facts.capacity
        p, m = np.array(pipeline.ranks), np.array(pipeline.microbatches)
        if not fits:
            result[place] = np.inf
        elif pipeline.any_order:
            result[place] = _any_order_bound(w, share[rows].min(), p, m)
        else:
            result[place] = _one_chunk_bound(w, b, p, m)
    some = np.flatnonzero(lone)
    outers = np.array([shaped.pipelines[i].outers[0] for i in some], dtype=np.int64)
    shape = np.array(
        [(f.ranks, f.microbatches, f.chunks, f.zero) for f in shaped.pipelines], dtype=np.float64
    ).reshape(-1, 4)[some]
    p, m, v = shape[:, 0], shape[:, 1], shape[:, 2]
    number = p * v
    # The first and last chunk have at most twice the mean, the others are equal up to one.
    small = np.maximum(
        np.floor((len(chain) - 4 * np.ceil(len(chain) / number)) / np.maximum(number - 2, 1)), 1.0
    )
    head = small * least[outers] * (p - 1) * (p - 2) / 2 / p + border[outers] * (p - 1)
    sends = (m * (2 * number - 2) - p) / p * border[outers] if facts.blocks_several else 0.0
    ordered = np.array([shaped.pipelines[i].any_order for i in some], dtype=np.bool_)
    head = np.where(ordered, 0.0, head)
    sends = np.where(ordered, 0.0, sends)
    several = m * whole[outers] / p + np.where(_has_inner_chunks(p), head, 0.0) + sends
    single = np.where(
        ordered,
        _any_order_bound(whole[outers], share[outers], p, m),
        _one_chunk_bound(whole[outers], back[outers], p, m),
    )
    time = np.where(v == 1, single, several)
    held = np.where(shape[:, 3] == 1, static[1][outers], static[0][outers]) / p
    result[some] = np.where(held <= facts.capacity, time, np.inf)
    return result * (1 - 1e-9)


def _has_inner_chunks(ranks: FloatArray) -> BoolArray:
    """True if some chunk with layers must be before the last rank.

    Of two ranks only the first chunk is before it, and that chunk may have no layer.
    """
    return ranks > 2


def _one_chunk_bound(
    work_s: FloatArray, backward_s: FloatArray, p: FloatArray, m: FloatArray
) -> FloatArray:
    """Lower bound in seconds on a 1F1B step; one microbatch takes `work_s` over all p ranks."""
    with np.errstate(divide="ignore"):
        even = work_s / -np.expm1(p * np.log1p(-1.0 / m))
    drain = work_s + ((m - 1) * backward_s + np.maximum(m - p, 0) * (work_s - backward_s)) / p
    result: FloatArray = np.maximum(even, drain)
    return result


def _any_order_bound(
    work_s: FloatArray, forward_share: FloatArray, p: FloatArray, m: FloatArray
) -> FloatArray:
    """Lower bound in seconds on a step in any order; a microbatch takes `work_s` over p ranks."""
    result: FloatArray = work_s * forward_share / -np.expm1(p * np.log1p(-forward_share / m))
    return result


def _forward_share(counts: FloatArray, forward: FloatArray, backward: FloatArray) -> FloatArray:
    """(outers,) least share of the forward in the seconds of any block of the model."""
    both = forward + backward
    with np.errstate(invalid="ignore", divide="ignore"):
        each = np.where((counts[:, None] > 0) & (both > 0), forward / both, 1.0)
    result: FloatArray = np.clip(each.min(axis=0), 1e-9, 1.0 - 1e-9)
    return result
