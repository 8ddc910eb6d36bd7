"""Seconds and bytes of one strategy's tasks, composed from rows of the tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np

from shardwright.arrays import FloatArray, IntArray
from shardwright.compiled import plain
from shardwright.cost.bytes_per_parameter import host_update_rate, narrow_copies, own_gradient_bytes, shard_bytes, update_bytes
from shardwright.cost.chunk_layout import ChunkLayout, first_layers
from shardwright.cost.columns import LayerTable
from shardwright.cost.device_buffers import context_bytes
from shardwright.cost.host_copies import waited_for_layers
from shardwright.cost.mesh_table import MeshTable
from shardwright.cost.parts import EP, MODES, PARTS
from shardwright.cost.terms import (
    backward_layer,
    forward_layer,
    gathered_elements,
    gathers_again,
    optimizer_seconds,
    parameter_bytes,
    reserved_bytes,
    temporary_bytes,
)
from shardwright.program.problem import Problem
from shardwright.program.stages.chunks import Content
from shardwright.strategy.grid.axes import Grid, Recompute

MAX_PIECES = 4
"""Gradient buckets that a chunk's last backward is cut into at most: enough for the overlap, few enough for the clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBytes:
    """What one strategy's step keeps, before it is put in order. c = chunk, r = pipeline rank.

    Args:
        static_bytes: items (name, (r,) bytes) that live through the step. saved_bytes: (c,) of one microbatch;
            paired_bytes: what a pair keeps beside (`rank_memory.paired_activations`).
        logits_bytes, transient_bytes: (r,) at the peak. blocks_bytes: (r,) the allocator's blocks of logits and of each kind of temporary;
            again_bytes: of them what a layer's backward makes again.
        outside_bytes: items (name, (r,) bytes) outside the allocator.
    """

    static_bytes: tuple[tuple[str, IntArray], ...]
    saved_bytes: IntArray
    paired_bytes: IntArray
    transient_bytes: IntArray
    logits_bytes: IntArray
    blocks_bytes: IntArray
    again_bytes: IntArray
    outside_bytes: tuple[tuple[str, IntArray], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCosts(StepBytes):
    """One strategy's step, before it is put in order. c = chunk, r = pipeline rank.

    Args:
        forward_s, backward_s: (c,) seconds of F and of B (recompute included). weight_s: (c,) what W takes of B where they are apart.
        parts: (2, c, parts + 4): F and B by part, then recompute, exposed sharding traffic, the reduction of scales and exposed copies to
            and from host memory.
        border_s: (tiers,) seconds of a send across each tier.
        gather_s, reduce_s: (c,) parameters gathered at the start of the step, gradients reduced at its end. pieces: (c,).
        tied_s: (c,) gradients of weights that other chunks use too, reduced after all others.
        optimizer_s: (r,) update and clipping; update_s: of it the update alone;
            after_s: (r,) parameters gathered at the end of the step.
        restored_bytes: (c,) of a microbatch's saved bytes what an early recompute makes again. slowdown: of kernels beside a collective.
        shares: (tiers,) of a device's link that gathers and reductions fill while they run.
    """

    contents: tuple[Content, ...]
    forward_s: FloatArray
    backward_s: FloatArray
    weight_s: FloatArray
    parts: FloatArray
    border_s: FloatArray
    gather_s: FloatArray
    reduce_s: FloatArray
    tied_s: FloatArray
    pieces: IntArray
    optimizer_s: FloatArray
    update_s: FloatArray
    after_s: FloatArray
    restored_bytes: IntArray
    flops: float
    slowdown: float
    shares: FloatArray


RECOMPUTE_PART = len(PARTS)
SHARDING_PART = len(PARTS) + 1
SCALES_PART = len(PARTS) + 2
HOST_PART = len(PARTS) + 3
PART_NAMES = (*PARTS, "recompute", "sharding", "scales", "host")


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced:
    """Where a grid's numbers stand in the tables, and how its pipeline spreads the blocks."""

    layers: LayerTable
    layer_row: int
    meshes: MeshTable
    mesh_row: int
    layout: ChunkLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """Memory choices of some pipeline ranks.

    Args:
        zero: ZeRO stage. offload: percent of the optimizer's states on the host.
        modes: (c, b, modes) blocks of each chunk under each recompute option (MODES). mode: the strongest one that is used.
    """

    zero: int
    offload: int
    modes: IntArray
    mode: int


def grid_choices(grid: Grid, layout: ChunkLayout) -> Choices:
    """The memory choices of a grid."""
    modes = np.zeros((*layout.counts.shape, len(MODES)), dtype=np.int64)
    if grid.recompute is Recompute.FULL:
        modes[:, :, 2] = first_layers(layout, grid.recompute_layers)
    elif grid.recompute is Recompute.SELECTIVE:
        modes[:, :, 1] = layout.counts * layout.layer
    elif grid.host:
        modes[:, :, 3] = first_layers(layout, grid.host)
    modes[:, :, 0] = layout.counts - modes.sum(axis=2)
    return Choices(zero=grid.zero, offload=grid.offload, modes=modes, mode=MODES.index("host" if grid.host else grid.recompute.value))


def step_costs(problem: Problem, grid: Grid, priced: Priced) -> StepCosts:
    """Compose the step of `grid` from its rows."""
    return compose(problem, grid_choices(grid, priced.layout), priced)


def compose(problem: Problem, choices: Choices, priced: Priced) -> StepCosts:
    """Compose a step from rows of the tables: of a grid, or of one device's chunks of a general plan."""
    layout, layers, row = priced.layout, priced.layers, priced.layer_row
    gather, reduce = _layer_sync(priced, choices.zero)
    parts = _parts(problem, choices, priced, gather, reduce)
    each = choices.zero >= 2 and problem.runtime.reduce_every_microbatch
    filled = layout.counts.sum(axis=1) > 0
    if choices.zero == 3:
        parts[0, :, SHARDING_PART] += np.where(filled, gather[layout.first], 0.0)
        parts[1, :, SHARDING_PART] += np.where(filled, gather[layout.last], 0.0)
    if each:
        parts[1, :, SHARDING_PART] += np.where(filled, reduce[layout.first], 0.0)
    start = layout.counts @ gather if choices.zero in (1, 2) else np.zeros(len(filled))
    end = np.zeros(len(filled)) if each else layout.counts @ reduce
    cuts = _cuts(choices, priced)
    optimizer, update, after, start = _step_end(problem, choices, priced, cuts, start)
    kept = _bytes(problem, choices, priced, cuts)
    return StepCosts(
        **{field.name: getattr(kept, field.name) for field in fields(kept)},
        contents=layout.contents,
        forward_s=parts[0].sum(axis=1),
        backward_s=parts[1].sum(axis=1),
        weight_s=layout.counts @ layers.seconds[:, 2, :, row].sum(axis=1),
        parts=parts,
        border_s=layers.border[:, row],
        gather_s=start,
        reduce_s=end,
        tied_s=_tied_seconds(choices, priced),
        pieces=pieces_of(problem, layout),
        optimizer_s=optimizer,
        update_s=update,
        after_s=after,
        restored_bytes=np.einsum("cbm,bm->c", choices.modes[:, :, :3], layers.saved_bytes[:, :1, row] - layers.saved_bytes[:, :3, row]),
        flops=float(layout.counts.sum(axis=0) @ layers.flops[:, row]),
        slowdown=float(priced.meshes.slowdown[priced.mesh_row]),
        shares=priced.meshes.shares[min(choices.zero, 1), :, priced.mesh_row],
    )


def step_bytes(problem: Problem, grid: Grid, priced: Priced) -> StepBytes:
    """What the step of `grid` keeps, from its rows."""
    choices = grid_choices(grid, priced.layout)
    return _bytes(problem, choices, priced, _cuts(choices, priced))


def _bytes(problem: Problem, choices: Choices, priced: Priced, cuts: Cuts) -> StepBytes:
    layout, layers, row = priced.layout, priced.layers, priced.layer_row
    heads = (layout.by_rank[:, layout.head] > 0).any(axis=1)
    logits = np.where(heads, layers.logits_bytes[row], 0)
    again, table = _temporaries(choices, priced)
    return StepBytes(
        static_bytes=_static_bytes(problem, choices, priced, cuts),
        saved_bytes=np.einsum("cbm,bm->c", choices.modes, layers.saved_bytes[:, :, row]),
        paired_bytes=_paired_bytes(problem, choices, priced),
        transient_bytes=_whole_bytes(plain(temporary_bytes), again, table, logits),
        logits_bytes=logits,
        blocks_bytes=np.where(heads, layers.logits_blocks[row], 0) + again + table,
        again_bytes=again,
        outside_bytes=_outside_bytes(problem, priced),
    )


def _paired_bytes(problem: Problem, choices: Choices, priced: Priced) -> IntArray:
    """(c,) the most that a layer of each chunk keeps whose experts' traffic runs beside another microbatch; 0 without any."""
    layers, row = priced.layers, priced.layer_row
    if not problem.runtime.expert_overlap:
        return np.zeros(len(choices.modes), dtype=np.int64)
    routed = layers.seconds[:, :, EP, row].sum(axis=1) > 0.0
    kept = np.where((choices.modes > 0) & routed[:, None], layers.saved_bytes[:, :, row], 0)
    result: IntArray = kept.max(axis=(1, 2)).astype(np.int64)
    return result


def _layer_sync(priced: Priced, zero: int) -> tuple[FloatArray, FloatArray]:
    """(b,) seconds to gather one layer's parameters, and to reduce its gradients."""
    sync, row = priced.meshes.sync, priced.mesh_row
    if zero == 0:
        return np.zeros(sync.gather.shape[0]), sync.all_reduce[:, row]
    return (sync.fetch[:, row], sync.scatter[:, row]) if zero == 3 else (sync.gather[:, row], sync.reduce[:, row])


def _tied_seconds(choices: Choices, priced: Priced) -> FloatArray:
    """(c,) seconds to sum the gradients of weights that the first and the last chunk share (or, of one chunk, that others share)."""
    sync, row = priced.meshes.sync, priced.mesh_row
    tied = np.zeros(len(priced.layout.contents))
    tied[[0, -1]] = (sync.tied_reduce if choices.zero else sync.tied_all_reduce)[row]
    return tied


def _parts(problem: Problem, choices: Choices, priced: Priced, gather: FloatArray, reduce: FloatArray) -> FloatArray:
    """(2, c, parts) seconds of F and B of each chunk by part, recompute and exposed sharding included."""
    seconds = priced.layers.seconds[:, :, :, priced.layer_row]
    slowdown, every = float(priced.meshes.slowdown[priced.mesh_row]), problem.runtime.reduce_every_microbatch
    blocks, zero, sync = seconds.shape[0], choices.zero, priced.meshes.sync
    kept = np.zeros((2, blocks, len(PART_NAMES)))
    # What selective and full recompute add.
    more = np.zeros((2, blocks, len(PART_NAMES)))
    kept[0, :, : len(PARTS)] = seconds[:, 0]
    kept[1, :, : len(PARTS)] = seconds[:, 1] + seconds[:, 2]
    more[0, :, RECOMPUTE_PART] = seconds[:, 3].sum(axis=1)
    more[1, :, RECOMPUTE_PART] = seconds[:, 4].sum(axis=1)
    if zero >= 2:
        for b in range(blocks):
            g, r, apart = float(gather[b]), float(reduce[b]), float(sync.apart[b, priced.mesh_row])
            copy, back = float(priced.meshes.gather_copy_s[b, priced.mesh_row]), float(priced.meshes.reduce_copy_s[b, priced.mesh_row])
            forward, backward = float(kept[0, b].sum()), float(kept[1, b].sum())
            kept[0, b, SHARDING_PART] = forward_layer(forward, g, copy, zero, slowdown) - forward
            kept[1, b, SHARDING_PART] = backward_layer(backward, g, r, apart, copy, back, zero, every, slowdown) - backward
            elements = float(sync.dense[b, priced.mesh_row] + sync.experts[b, priced.mesh_row])
            again = float(plain(gathers_again)(elements, float(problem.runtime.reuse_elements)))
            for mode, times in enumerate((1.0, again)):
                longer = backward + float(more[mode, b, RECOMPUTE_PART])
                slower = backward_layer(longer, times * g, r, apart, times * copy, back, zero, every, slowdown) - longer
                more[mode, b, SHARDING_PART] = slower - kept[1, b, SHARDING_PART]
    parts: FloatArray = np.einsum("cb,kbp->kcp", priced.layout.counts, kept)
    parts[1] += np.einsum("cbm,mbp->cp", choices.modes[:, :, 1:3], more)
    moved = choices.modes[:, :, 3] @ priced.layers.saved_bytes[:, 0, priced.layer_row]
    if moved.any():
        beside = kept.sum(axis=2) @ (priced.layout.counts * priced.layout.layer).T
        parts[:, :, HOST_PART] = waited_for_layers(moved, rate=problem.cluster.node.host.pcie.achieved, beside=beside)
    parts[:, :, SCALES_PART] = priced.meshes.scales_s[priced.mesh_row]
    return parts


def pieces_of(problem: Problem, layout: ChunkLayout) -> IntArray:
    """(c,) buckets of each chunk: one if nothing hides them; else one a layer up to MAX_PIECES."""
    if not problem.runtime.overlap_grad_reduce:
        return np.ones(len(layout.contents), dtype=np.int64)
    result: IntArray = np.clip(layout.counts.sum(axis=1), 1, MAX_PIECES)
    return result


def _step_end(
    problem: Problem, choices: Choices, priced: Priced, cuts: Cuts, start: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Seconds of each rank's end of the step, of its update alone, and end gathers; and the gathers left at the start of the step."""
    row = priced.mesh_row
    device = problem.cluster.node.accelerator
    bandwidth = device.memory_bandwidth * device.element_efficiency
    traffic, rate, share = update_bytes(problem), host_update_rate(problem), choices.offload / 100.0
    pp, vpp = priced.layout.pp, priced.layout.vpp
    update = np.zeros(len(cuts.elements))
    for elements, shard in zip(cuts.elements.T.tolist(), cuts.degrees[0].tolist(), strict=True):
        spent = {e: plain(optimizer_seconds)(float(e), float(shard), traffic, bandwidth, share, rate) for e in set(elements)}
        update += [spent[e] for e in elements]
    update += cuts.elements.sum(axis=1).astype(np.float64) * float(priced.meshes.gradient_bytes[row]) / bandwidth
    optimizer = update + priced.meshes.norm_s[row]
    if problem.runtime.overlap_param_gather:
        return optimizer, update, np.zeros(pp), start
    return optimizer, update, start.reshape(vpp, pp).sum(axis=0), np.zeros_like(start)


class Cuts(NamedTuple):
    """Trainable elements of each rank by how their states are cut.

    Args:
        elements: (r, k) of each way. degrees: (3, k) devices that share one copy of optimizer states, gradients and parameters.
    """

    elements: IntArray
    degrees: IntArray

    def held(self, level: int) -> IntArray:
        """(r,) elements of the state that ZeRO stage `level` begins to shard; see `ShardedElements.held`."""
        result: IntArray = (-(-self.elements // self.degrees[level - 1])).sum(axis=1)
        return result


def _cuts(choices: Choices, priced: Priced) -> Cuts:
    """Those of a step.

    A rank with a tied weight but without its owner holds a copy of its own, with gradient and states (Megatron-LM's and DeepSpeed's
    tied embeddings under pipeline parallelism).
    """
    sync, row, by_rank = priced.meshes.sync, priced.mesh_row, priced.layout.by_rank
    if sync.cuts:
        every = np.array(sync.cuts, dtype=np.int64)
        return Cuts(elements=every[None, :, 0], degrees=every[:, 1:].T)
    dense, experts = by_rank @ sync.dense[:, row], by_rank @ sync.experts[:, row]
    if sync.tied[:, row].any():
        dense[1:] += np.where(by_rank > 0, sync.tied[:, row][None, :], 0).max(axis=1)[1:]
    shards = np.array([sync.shard[row], sync.expert_shard[row]])
    return Cuts(elements=np.stack([dense, experts], axis=1), degrees=np.where(choices.zero >= _LEVELS, shards, 1))


_LEVELS = np.array([[1], [2], [3]])
"""ZeRO stages that begin to shard optimizer states, gradients and parameters."""


def _static_bytes(problem: Problem, choices: Choices, priced: Priced, cuts: Cuts) -> tuple[tuple[str, IntArray], ...]:
    """Parameters, gradients, optimizer states and workspace of each rank (ceil of equal shards)."""
    sync, row, by_rank, layer = priced.meshes.sync, priced.mesh_row, priced.layout.by_rank, priced.layout.layer
    frozen = by_rank @ sync.frozen[:, row]
    if choices.zero < 3:
        # Summed by more devices than the rest, so sharded further: only what is never sharded is counted.
        frozen = frozen + by_rank @ sync.spread[:, row]

    block = sync.dense[:, row] + sync.experts[:, row]
    largest = np.where((by_rank > 0) & layer, block[None, :], 0).max(axis=1)
    ends = (by_rank * ~layer) @ block
    prefetch, width, cut_width = float(problem.runtime.gather_prefetch), problem.job.parameter.bits / 8, shard_bytes(problem)
    gathered = plain(gathered_elements)(ends.astype(np.float64), largest.astype(np.float64), prefetch)
    whole = cuts.elements.sum(axis=1)
    trained = whole.astype(np.float64), cuts.held(3).astype(np.float64), frozen.astype(np.float64)
    parameters = plain(parameter_bytes)(choices.zero, *trained, gathered, width, cut_width).astype(np.int64)
    if choices.zero < 3 and sync.narrow[:, row].any():
        few: IntArray = by_rank @ sync.narrow[:, row]
        parameters = parameters + (few * narrow_copies(problem)).astype(np.int64)
    gradients = cuts.held(2) * (problem.runtime.gradient_dtype.bits // 8)
    if choices.zero < 2:
        gradients = gradients + whole * own_gradient_bytes(problem)
    return (
        ("parameters", parameters),
        ("gradients", gradients),
        ("optimizer", cuts.held(1) * problem.optimizer.state_bytes * (100 - choices.offload) // 100),
        (
            "workspace",
            problem.runtime.workspace_bytes + np.where(by_rank > 0, priced.layers.buffer_bytes[:, 1, priced.layer_row], 0).max(axis=1),
        ),
    )


def _temporaries(choices: Choices, priced: Priced) -> tuple[IntArray, IntArray]:
    """(r,) bytes of the largest temporary of each kind: what a layer's backward makes again, and an embedding's or head's gradient."""
    layout, row, held = priced.layout, priced.layer_row, priced.layout.by_rank > 0
    end = np.where((held & ~layout.layer).any(axis=1), priced.meshes.embedding_bytes[priced.mesh_row], 0)
    again = again_bytes(priced.layers.saved_bytes[:, :, row], choices.mode)
    return np.where(held & layout.layer, again, 0).max(axis=1), end


def again_bytes(saved: IntArray, mode: int) -> IntArray:
    """(b,) or (b, n) bytes that a layer's backward makes again under recompute option `mode` of `saved`, (b, modes) or (b, modes, n)."""
    result: IntArray = np.maximum(saved[:, 0] - saved[:, mode], 0)
    return result


def _outside_bytes(problem: Problem, priced: Priced) -> tuple[tuple[str, IntArray], ...]:
    """Communication buffers and context of each rank."""
    buffers = int(priced.meshes.communicator_bytes[priced.mesh_row] + priced.layers.overlap_buffers[priced.layer_row])
    held = priced.layout.by_rank > 0
    return (
        ("communication", buffers + np.where(held, priced.layers.buffer_bytes[:, 0, priced.layer_row], 0).max(axis=1)),
        ("context", np.full(priced.layout.pp, context_bytes(problem), dtype=np.int64)),
    )


def held_bytes(problem: Problem, costs: StepBytes, allocated: IntArray) -> tuple[IntArray, IntArray]:
    """(r,) bytes that the allocator holds for `allocated`, and that the device holds in all."""
    factor = reserve_factor(problem)
    reserved = _whole_bytes(plain(reserved_bytes), allocated, costs.transient_bytes, costs.logits_bytes, costs.blocks_bytes, more=(factor,))
    outside = np.zeros_like(reserved)
    for _, values in costs.outside_bytes:
        outside = outside + values
    return reserved, reserved + outside


def _whole_bytes(formula: Callable[..., FloatArray], *columns: IntArray, more: tuple[float, ...] = ()) -> IntArray:
    """(r,) whole bytes of a formula of each rank's numbers."""
    whole: FloatArray = formula(*[column.astype(np.float64) for column in columns], *more)
    return whole.astype(np.int64)


def reserve_factor(problem: Problem) -> float:
    """Least ratio of what the allocator holds to what is allocated."""
    return (100 + problem.runtime.allocator_reserve_percent) / 100
