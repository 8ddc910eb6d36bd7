"""Seconds of one strategy's tasks, composed from rows of the tables.

Beside the bytes that the tasks keep.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Final

import numpy as np

from shardwright.arrays import FloatArray, IntArray
from shardwright.cost.buffers.activation_offload_bytes_and_waits import waited_for_layers
from shardwright.cost.part_phase_recompute_keys import PARTS
from shardwright.cost.step.shared_scalar_cost_formulas import (
    backward_layer,
    forward_layer,
    gathers_again,
    optimizer_seconds,
)
from shardwright.cost.step.strategy_rank_bytes import Cuts, StepBytes, bytes_of, rank_cuts
from shardwright.cost.tables.bytes_per_parameter_and_update_traffic import (
    gradients_leave,
    host_update_rate,
    update_bytes,
)
from shardwright.cost.tables.grid_rows_and_memory_settings import (
    MemoryChoices,
    TableRows,
    grid_choices,
)
from shardwright.cost.tables.pipeline_chunk_layout import ChunkLayout
from shardwright.kernel_compilation import python_form
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.program.stages.blocks_of_pipeline_chunks import Content
from shardwright.program.training_problem import Problem
from shardwright.strategy.grid.parallelism_grid import Grid

_BYTES_FIELDS: Final = tuple([field.name for field in fields(StepBytes)])
MAX_PIECES = 4
"""Gradient buckets that a chunk's last backward is cut into at most: enough for the overlap, few
enough for the clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCosts(StepBytes):
    """Seconds and bytes of one strategy's step, before its actions are ordered.

    c = chunk, r = pipeline rank.

    Args:
        forward_s, backward_s: (c,) seconds of F and of B (recompute included).
        weight_s: (c,) seconds of W, a part of B, where the two gradients are separate actions.
        parts: (2, c, parts + 4): F and B by part, then recompute, exposed sharding traffic, the
            reduction of scales and exposed copies to and from host memory.
        border_s: (c, tiers) seconds of a send from each chunk to the next, or back, across each
            tier.
        gather_s, reduce_s: (c,) seconds of parameters gathered at the start of the step, gradients
            reduced at its end.
        pieces: (c,) buckets of the reduction.
        tied_s: (c,) seconds of gradients of weights that other chunks use too, reduced after all
            others.
        optimizer_s: (r,) seconds of update and clipping.
        update_s: (r,) of it the update alone.
        after_s: (r,) seconds of parameters gathered at the end of the step.
        restored_bytes: (c,) of a microbatch's saved bytes, those that an early recompute makes
            again.
        slowdown: factor on kernels beside a collective.
        shares: (tiers,) share of a device's link that gathers and reductions fill while they run.
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


def step_costs(problem: Problem, grid: Grid, priced: TableRows) -> StepCosts:
    """Seconds and bytes of a grid's step by chunk and rank, from table rows, before ordering."""
    return compose_step(problem, grid_choices(grid, priced.layout), priced)


def compose_step(problem: Problem, choices: MemoryChoices, priced: TableRows) -> StepCosts:
    """Seconds and bytes of a step by chunk and rank, before ordering, from choices and table rows.

    Of a grid, or of one device's chunks of a general plan.
    """
    layout, layers, row = priced.layout, priced.layers, priced.layer_row
    gather, regather, reduce = _layer_sync(priced, choices.zero)
    parts = _chunk_seconds_by_part(problem, choices, priced, gather, regather, reduce)
    reduces_each_microbatch = choices.zero >= 2 and problem.runtime.reduce_every_microbatch
    has_blocks = layout.counts.sum(axis=1) > 0
    if choices.zero == 3:
        parts[0, :, SHARDING_PART] += np.where(has_blocks, gather[layout.first], 0.0)
        parts[1, :, SHARDING_PART] += np.where(has_blocks, regather[layout.turned], 0.0)
    if reduces_each_microbatch:
        parts[1, :, SHARDING_PART] += np.where(has_blocks, reduce[layout.reduced], 0.0)
        parts[1, :, HOST_PART] += np.where(
            has_blocks, _host_gradients(problem, choices, priced)[layout.reduced], 0.0
        )
    sync, row_of_sync = priced.meshes.sync, priced.mesh_row
    start = layout.counts @ (
        sync.from_owners[:, row_of_sync] + (gather if choices.zero in (1, 2) else 0.0)
    )
    end = layout.counts @ (
        sync.to_owners[:, row_of_sync] + (0.0 if reduces_each_microbatch else reduce)
    )
    cuts = rank_cuts(choices, priced)
    optimizer, update, after, start = _optimizer_and_gathers(problem, choices, priced, cuts, start)
    step_memory = bytes_of(problem, choices, priced, cuts)
    return StepCosts(
        **{name: getattr(step_memory, name) for name in _BYTES_FIELDS},
        contents=layout.contents,
        forward_s=parts[0].sum(axis=1),
        backward_s=parts[1].sum(axis=1),
        weight_s=layout.counts @ layers.seconds[:, 2, :, row].sum(axis=1),
        parts=parts,
        border_s=layers.border[layout.sent, :, row],
        gather_s=start,
        reduce_s=end,
        tied_s=_tied_seconds(choices, priced),
        pieces=pieces_of(layout, overlapped=problem.runtime.overlap_grad_reduce),
        optimizer_s=optimizer,
        update_s=update,
        after_s=after,
        restored_bytes=np.einsum(
            "cbm,bm->c",
            choices.modes[:, :, :3],
            layers.saved_bytes[:, :1, row] - layers.saved_bytes[:, :3, row],
        ),
        flops=float(layout.counts.sum(axis=0) @ layers.flops[:, row]),
        slowdown=float(priced.meshes.slowdown[priced.mesh_row]),
        shares=priced.meshes.shares[min(choices.zero, 1), :, priced.mesh_row],
    )


def _layer_sync(priced: TableRows, zero: int) -> tuple[FloatArray, FloatArray, FloatArray]:
    """(b,) seconds of one layer's all-gather, ZeRO-3's gather before backward, and its reduction.

    Of parameters and gradients, at a ZeRO stage.
    """
    sync, row = priced.meshes.sync, priced.mesh_row
    if zero == 3:
        return sync.fetch[:, row], sync.refetch[:, row], sync.scatter[:, row]
    no_seconds = np.zeros(sync.gather.shape[0])
    return (
        (sync.gather[:, row], no_seconds, sync.reduce[:, row])
        if zero
        else (no_seconds, no_seconds, sync.all_reduce[:, row])
    )


def _host_gradients(problem: Problem, choices: MemoryChoices, priced: TableRows) -> FloatArray:
    """(b,) seconds in which one layer's offloaded gradients go to the host and back; else 0.

    In each microbatch.
    """
    share = choices.offload / 100.0 if gradients_leave(problem.runtime, zero=choices.zero) else 0.0
    return share * priced.meshes.host_gradient_s[:, priced.mesh_row]


def _tied_seconds(choices: MemoryChoices, priced: TableRows) -> FloatArray:
    """(c,) seconds to sum tied weights' gradients, at the first and the last chunk; 0 elsewhere.

    Or, of one chunk, those that others share.
    """
    sync, row = priced.meshes.sync, priced.mesh_row
    tied = np.zeros(len(priced.layout.contents))
    tied[[0, -1]] = (sync.tied_reduce if choices.zero else sync.tied_all_reduce)[row]
    return tied


def _chunk_seconds_by_part(
    problem: Problem,
    choices: MemoryChoices,
    priced: TableRows,
    layer_gather_s: FloatArray,
    layer_regather_s: FloatArray,
    layer_reduce_s: FloatArray,
) -> FloatArray:
    """(2, c, parts) forward and backward seconds of each chunk; of sharding only exposed ones.

    Recompute, exposed sharding and copies to the host are parts too.
    """
    seconds = priced.layers.seconds[:, :, :, priced.layer_row]
    slowdown, every_microbatch = (
        float(priced.meshes.slowdown[priced.mesh_row]),
        problem.runtime.reduce_every_microbatch,
    )
    blocks, zero, sync = seconds.shape[0], choices.zero, priced.meshes.sync
    without_recompute = np.zeros((2, blocks, len(PART_NAMES)))
    # Seconds that selective and full recompute add.
    of_recompute = np.zeros((2, blocks, len(PART_NAMES)))
    without_recompute[0, :, : len(PARTS)] = seconds[:, 0]
    without_recompute[1, :, : len(PARTS)] = seconds[:, 1] + seconds[:, 2]
    of_recompute[0, :, RECOMPUTE_PART] = seconds[:, 3].sum(axis=1)
    of_recompute[1, :, RECOMPUTE_PART] = seconds[:, 4].sum(axis=1)
    if zero >= 2:
        host_copy_s = _host_gradients(problem, choices, priced).tolist()
        for b in range(blocks):
            g, r, apart = (
                float(layer_regather_s[b]),
                float(layer_reduce_s[b]),
                float(sync.apart[b, priced.mesh_row]),
            )
            gather_copy, regather_copy, reduce_copy = (
                float(seconds[b, priced.mesh_row])
                for seconds in (
                    priced.meshes.gather_copy_s,
                    priced.meshes.regather_copy_s,
                    priced.meshes.reduce_copy_s,
                )
            )
            forward, backward = (
                float(without_recompute[0, b].sum()),
                float(without_recompute[1, b].sum()),
            )
            without_recompute[0, b, SHARDING_PART] = (
                forward_layer(forward, float(layer_gather_s[b]), gather_copy, zero, slowdown)
                - forward
            )
            with_sync = backward_layer(
                backward, g, r, apart, regather_copy, reduce_copy, zero, every_microbatch, slowdown
            )
            without_recompute[1, b, SHARDING_PART] = with_sync - backward
            if host_copy_s[b]:
                without_recompute[1, b, HOST_PART] = (
                    backward_layer(
                        backward,
                        g,
                        r + host_copy_s[b],
                        apart,
                        regather_copy,
                        reduce_copy,
                        zero,
                        every_microbatch,
                        slowdown,
                    )
                    - with_sync
                )
            elements = float(sync.regathered[b, priced.mesh_row])
            times_gathered = float(
                python_form(gathers_again)(elements, float(problem.runtime.reuse_elements))
            )
            for mode, times in enumerate((1.0, times_gathered)):
                longer = backward + float(of_recompute[mode, b, RECOMPUTE_PART])
                slower = backward_layer(
                    longer,
                    times * g,
                    r,
                    apart,
                    times * regather_copy,
                    reduce_copy,
                    zero,
                    every_microbatch,
                    slowdown,
                )
                of_recompute[mode, b, SHARDING_PART] = (
                    slower - longer - without_recompute[1, b, SHARDING_PART]
                )
                if host_copy_s[b]:
                    with_host = backward_layer(
                        longer,
                        times * g,
                        r + host_copy_s[b],
                        apart,
                        times * regather_copy,
                        reduce_copy,
                        zero,
                        every_microbatch,
                        slowdown,
                    )
                    of_recompute[mode, b, HOST_PART] = (
                        with_host - slower - without_recompute[1, b, HOST_PART]
                    )
    parts: FloatArray = np.einsum("cb,kbp->kcp", priced.layout.counts, without_recompute)
    parts[1] += np.einsum("cbm,mbp->cp", choices.modes[:, :, 1:3], of_recompute)
    saved = choices.modes[:, :, 3] @ priced.layers.saved_bytes[:, 0, priced.layer_row]
    if saved.any():
        beside = without_recompute.sum(axis=2) @ (priced.layout.counts * priced.layout.layer).T
        parts[:, :, HOST_PART] += waited_for_layers(
            saved, rate=problem.cluster.node.host.pcie.achieved, beside=beside
        )
    parts[:, :, SCALES_PART] = priced.meshes.scales_s[priced.mesh_row]
    return parts


def pieces_of(layout: ChunkLayout, *, overlapped: bool) -> IntArray:
    """(c,) buckets of each chunk's gradient reduction: 1, or a layer each (at most MAX_PIECES).

    One if nothing hides them (`Runtime.overlap_grad_reduce`); else one a layer up to MAX_PIECES.
    """
    if not overlapped:
        return np.ones(len(layout.contents), dtype=np.int64)
    pieces: IntArray = np.clip(layout.counts.sum(axis=1), 1, MAX_PIECES)
    return pieces


def _optimizer_and_gathers(
    problem: Problem, choices: MemoryChoices, priced: TableRows, cuts: Cuts, gather_s: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """(r,) seconds of update and norm, of update, of end gathers; (c,) seconds of start gathers."""
    row = priced.mesh_row
    device = problem.cluster.node.accelerator
    bandwidth = device.memory_bandwidth * device.element_efficiency
    traffic, rate, share = (
        update_bytes(problem),
        host_update_rate(problem, zero=choices.zero),
        choices.offload / 100.0,
    )
    pp, vpp = priced.layout.pp, priced.layout.vpp
    update = np.zeros(len(cuts.elements))
    for elements, shard in zip(cuts.elements.T.tolist(), cuts.degrees[0].tolist(), strict=True):
        spent = {
            e: python_form(optimizer_seconds)(
                float(e), float(shard), traffic, bandwidth, share, rate
            )
            for e in set(elements)
        }
        update += [spent[e] for e in elements]
    update += (
        cuts.elements.sum(axis=1).astype(np.float64)
        * float(priced.meshes.gradient_bytes[row])
        / bandwidth
    )
    optimizer = update + priced.meshes.norm_s[row]
    if problem.runtime.overlap_param_gather:
        return optimizer, update, np.zeros(pp), gather_s
    return optimizer, update, gather_s.reshape(vpp, pp).sum(axis=0), np.zeros_like(gather_s)
