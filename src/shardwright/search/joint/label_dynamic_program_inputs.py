"""Input arrays of the label program: seconds and bytes of each layer under each split."""

from __future__ import annotations

import numpy as np

from shardwright.arrays import FloatArray, IntArray
from shardwright.cost.bounds.compiled_bound_array_records import Costs, ProblemNumbers
from shardwright.program.training_problem import Problem
from shardwright.search.joint.host_memory_share import host_share
from shardwright.search.joint.joint_space import PipelineShape, ShapedSpace
from shardwright.search.joint.model_as_chain_of_one_layer_positions import Chain, chain_of
from shardwright.search.joint.price_layer_runs_and_splits_of_each_rank import (
    BACKWARD,
    BORDER,
    COPIED,
    END_BYTES,
    ENDS_BACKWARD,
    ENDS_FORWARD,
    ENDS_SAVED,
    ENDS_STATIC,
    FORWARD,
    FULL,
    GATHER,
    HOST_FULL,
    HOST_SELECTIVE,
    LOGITS,
    LOGITS_BLOCKS,
    OUTSIDE,
    REDUCE,
    SAVED,
    SAVED_FULL,
    SAVED_SELECTIVE,
    SCALES,
    SELECTIVE,
    SLOWER,
    STATIC,
    TIED,
    UPDATE,
    WEIGHT,
    Pipeline,
    Splits,
)

ROWS = HOST_FULL + 1
COLUMNS = SLOWER + 1


def has_equal_layers(chain: Chain) -> bool:
    """True if all positions of the chain hold the same blocks, apart from the two ends."""
    return bool((chain.inner == chain.inner[0]).all())


def border_tier(problem: Problem, stride: int) -> int:
    """Index of the innermost network tier that a send over `stride` devices can cross."""
    tiers = problem.cluster.tiers()
    return next(
        (index for index, tier in enumerate(tiers) if stride < tier.num_devices), len(tiers) - 1
    )


def label_pipeline_of(
    problem: Problem, shaped: ShapedSpace, pipeline: PipelineShape, facts: ProblemNumbers
) -> Pipeline:
    """Sizes, memory limits and send and collective rules of a pipeline for the label program."""
    share = host_share(
        problem.cluster,
        devices=shaped.members.space.devices,
        ranks=pipeline.ranks,
        stride=int(shaped.columns["s_pp"][pipeline.outers[0]]),
    )
    return Pipeline(
        ranks=pipeline.ranks,
        chunks=pipeline.chunks,
        microbatches=pipeline.microbatches,
        capacity=facts.capacity,
        reserve=facts.reserve,
        workspace=facts.workspace,
        blocking=facts.blocks_plain if pipeline.chunks == 1 else facts.blocks_several,
        gathers_first=facts.overlap_gather,
        reduces_last=not problem.runtime.overlap_grad_reduce,
        any_order=pipeline.any_order,
        host_room=share.room,
        sharing=share.sharing,
    )


def splits_of(
    problem: Problem,
    shaped: ShapedSpace,
    chain: Chain,
    pipeline: PipelineShape,
    facts: ProblemNumbers,
) -> Splits:
    """Prefix sums of seconds and bytes over the layer positions, for each split of a pipeline.

    With several chunks a rank holds positions from all over the chain: every position is then
    priced as the cheapest one, in each quantity.
    """
    rows = np.array(pipeline.outers, dtype=np.int64)
    layer, mesh = shaped.prepared.layer_row[rows], shaped.prepared.mesh_row[rows]
    blocks = _per_block(problem, shaped, layer, mesh, pipeline.zero, facts)
    if pipeline.is_general and shaped.costs.tied[:, mesh].any():
        # A general plan shares the states of tied weights among all their holders, whose number is
        # not known here.
        held = np.array([not b.is_layer for b in problem.model.blocks])
        blocks[STATIC][held] = _tied_bytes(shaped, mesh, facts)[held]
        blocks[UPDATE][held] = 0.0
    inner = np.einsum("jb,qbs->sqj", chain.inner.astype(np.float64), blocks)
    ends = np.einsum("jb,qbs->sqj", (chain.counts - chain.inner).astype(np.float64), blocks)
    if pipeline.chunks > 1:
        inner = np.broadcast_to(inner.min(axis=2, keepdims=True), inner.shape).copy()
    ends[:, ENDS_FORWARD], ends[:, ENDS_BACKWARD] = (
        ends[:, FORWARD],
        ends[:, BACKWARD],
    )
    ends[:, ENDS_STATIC], ends[:, ENDS_SAVED] = (
        ends[:, STATIC],
        ends[:, SAVED],
    )
    sums = np.zeros((len(rows), ROWS, len(chain) + 1))
    np.cumsum(inner + ends, axis=2, out=sums[:, :, 1:])
    saved = shaped.costs.saved[:, :, layer]
    held = chain.redone > 0
    again = np.zeros((len(rows), 2, len(chain)))
    for mode in (1, 2):
        more = np.maximum(saved[:, 0] - saved[:, mode], 0.0)
        each = np.where(held[:, :, None], more[None], 0.0).max(axis=1)
        again[:, mode - 1] = each.T if pipeline.chunks == 1 else each.min(axis=0)[:, None]
    return Splits(
        sums=sums, again=again, fixed=_fixed_columns(problem, shaped, layer, mesh, pipeline, facts)
    )


def _per_block(
    problem: Problem,
    shaped: ShapedSpace,
    layer_rows: IntArray,
    mesh_rows: IntArray,
    zero: int,
    facts: ProblemNumbers,
) -> FloatArray:
    """(rows, blocks, splits) seconds or bytes of one block, by row of `Splits.sums`."""
    costs = shaped.costs
    is_inner = np.array([b.is_layer for b in problem.model.blocks])[:, None]
    result = np.zeros((ROWS, costs.forward.shape[0], len(layer_rows)))
    result[FORWARD], result[BACKWARD] = (
        costs.forward[:, layer_rows],
        costs.backward[:, layer_rows],
    )
    result[SELECTIVE] = costs.selective[:, layer_rows]
    result[FULL] = np.where(is_inner, costs.full[:, layer_rows], 0.0)
    result[WEIGHT] = shaped.prepared.layers.seconds[:, 2].sum(axis=1)[:, layer_rows]
    saved = costs.saved[:, :, layer_rows]
    result[SAVED], result[SAVED_SELECTIVE] = saved[:, 0], saved[:, 1]
    result[SAVED_FULL] = np.where(is_inner, saved[:, 2], np.minimum(saved[:, 0], saved[:, 1]))
    is_redone: IntArray = chain_of(problem.model).redone.max(axis=0)
    host = np.where(
        is_redone[:, None, None] > 0, shaped.prepared.layers.host_bytes[:, :, layer_rows], 0
    )
    result[HOST_SELECTIVE], result[HOST_FULL] = host[:, 1], host[:, 2]
    dense, experts = costs.dense[:, mesh_rows], costs.experts[:, mesh_rows]
    frozen = costs.frozen[:, mesh_rows] + costs.spread[:, mesh_rows]
    cut, cut_experts = (
        (costs.shard[mesh_rows], costs.expert_shard[mesh_rows])
        if zero
        else (np.ones(len(mesh_rows)), np.ones(len(mesh_rows)))
    )
    local = dense / cut + experts / cut_experts
    whole = dense + experts
    result[STATIC] = (
        (whole + frozen) * facts.parameter_bytes
        + whole * (facts.gradient_bytes + facts.own_gradient_bytes)
        + local * facts.state_bytes
    )
    result[UPDATE] = (
        local * facts.update_bytes + whole * costs.passes[mesh_rows]
    ) / facts.bandwidth
    result[GATHER] = costs.gather[:, mesh_rows] if zero else 0.0
    result[REDUCE] = costs.reduce[:, mesh_rows] if zero else costs.all_reduce[:, mesh_rows]
    return result


def _tied_bytes(shaped: ShapedSpace, mesh_rows: IntArray, facts: ProblemNumbers) -> FloatArray:
    """(blocks, splits) bytes of a block's parameters and gradients on a device, without states."""
    costs = shaped.costs
    dense, experts = costs.dense[:, mesh_rows], costs.experts[:, mesh_rows]
    frozen = costs.frozen[:, mesh_rows] + costs.spread[:, mesh_rows]
    result: FloatArray = (dense + experts + frozen) * facts.parameter_bytes + (dense + experts) * (
        facts.gradient_bytes + facts.own_gradient_bytes
    )
    return result


def least_sends(problem: Problem, shaped: ShapedSpace) -> FloatArray:
    """(layer rows, tiers) lower bound in seconds on a send of the narrowest stream, by tier.

    Across the tier or a farther one.
    """
    border = shaped.costs.border
    least: FloatArray = border.reshape(len(border), 2, -1, len(problem.cluster.tiers()))[:, 0].min(
        axis=1
    )
    return least


def least_border(problem: Problem, shaped: ShapedSpace, outers: tuple[int, ...]) -> float:
    """Lower bound in seconds on a send between any two of these splits.

    The send has all activations once, over all devices of a rank. A split without sequence
    parallelism may send each of tp copies, which a receiver with another split may not need.
    """
    seconds = []
    for row in outers:
        columns, devices = shaped.columns, shaped.columns["s_pp"][row]
        tier = (
            0 if devices % problem.cluster.node.num_devices else border_tier(problem, int(devices))
        )
        copies = int(columns["tp"][row]) if not columns["sp"][row] else 1
        seconds.append(
            float(least_sends(problem, shaped)[shaped.prepared.layer_row[row], tier]) / copies
        )
    return min(seconds)


def _end_bytes(problem: Problem, costs: Costs) -> FloatArray:
    """(meshes,) smaller of the gradient bytes of the first and the last rank's vocabulary table.

    An embedding or output table.
    """
    chain = chain_of(problem.model)
    first, last = (
        costs.table[list(blocks)].max(axis=0, initial=0.0) for blocks in (chain.before, chain.after)
    )
    least: FloatArray = np.minimum(first, last)
    return least


def _fixed_columns(
    problem: Problem,
    shaped: ShapedSpace,
    layer_rows: IntArray,
    mesh_rows: IntArray,
    pipeline: PipelineShape,
    facts: ProblemNumbers,
) -> FloatArray:
    """(splits, columns) quantities of a rank that do not depend on its positions."""
    costs = shaped.costs
    fixed = np.zeros((len(layer_rows), COLUMNS))
    tiers = np.array(
        [border_tier(problem, int(shaped.columns["s_pp"][row])) for row in pipeline.outers],
        dtype=np.int64,
    )
    fixed[:, BORDER] = least_sends(problem, shaped)[layer_rows, tiers]
    fixed[:, SCALES] = costs.scales[mesh_rows]
    fixed[:, LOGITS], fixed[:, LOGITS_BLOCKS] = (
        costs.logits[layer_rows],
        costs.logits_blocks[layer_rows],
    )
    fixed[:, END_BYTES] = _end_bytes(problem, costs)[mesh_rows]
    fixed[:, OUTSIDE] = (
        costs.communicators[mesh_rows] + costs.overlap_buffers[layer_rows] + facts.context
    )
    fixed[:, TIED] = costs.tied[1 if pipeline.zero else 0, mesh_rows]
    fixed[:, SLOWER] = np.clip(costs.slowdown[mesh_rows] - 1.0 - 1e-6, 0.0, 1.0)
    if len(pipeline.outers) > 1:
        fixed[:, BORDER] = least_border(problem, shaped, pipeline.outers)
    if pipeline.is_general:
        fixed[:, TIED] = 0.0
    cut = costs.shard[mesh_rows] if pipeline.zero else 1.0
    each = (
        facts.parameter_bytes
        + facts.gradient_bytes
        + facts.own_gradient_bytes
        + facts.state_bytes / cut
    )
    fixed[:, COPIED] = costs.copied[:, mesh_rows].max(axis=0) * each
    return fixed
