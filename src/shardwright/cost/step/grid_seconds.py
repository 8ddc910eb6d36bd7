"""Seconds of one strategy's tasks, composed from rows of the tables, beside the bytes that they
keep.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Final

import numpy as np

from shardwright.arrays import FloatArray, IntArray
from shardwright.compiled import plain
from shardwright.cost.buffers.activation_offload import waited_for_layers
from shardwright.cost.step.grid_bytes import Cuts, StepBytes, bytes_of, cuts_of
from shardwright.cost.step.scalar_terms import (
    backward_layer,
    forward_layer,
    gathers_again,
    optimizer_seconds,
)
from shardwright.cost.tables.bytes_per_parameter import (
    gradients_leave,
    host_update_rate,
    update_bytes,
)
from shardwright.cost.tables.grid_rows import Choices, Priced, grid_choices
from shardwright.cost.tables.layers_by_chunk import ChunkLayout
from shardwright.cost.time_parts import PARTS
from shardwright.lazy_dataclass import dataclass
from shardwright.program.problem import Problem
from shardwright.program.stages.chunks import Content
from shardwright.strategy.grid.axes import Grid

_KEPT: Final = tuple([field.name for field in fields(StepBytes)])
MAX_PIECES = 4
"""Gradient buckets that a chunk's last backward is cut into at most: enough for the overlap, few
enough for the clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCosts(StepBytes):
    """One strategy's step, before it is put in order. c = chunk, r = pipeline rank.

    Args:
        forward_s, backward_s: (c,) seconds of F and of B (recompute included).
        weight_s: (c,) what W takes of B where they are apart.
        parts: (2, c, parts + 4): F and B by part, then recompute, exposed sharding traffic, the
            reduction of scales and exposed copies to and from host memory.
        border_s: (c, tiers) seconds of a send from each chunk to the next, or back, across each
            tier.
        gather_s, reduce_s: (c,) parameters gathered at the start of the step, gradients reduced at
            its end.
        pieces: (c,).
        tied_s: (c,) gradients of weights that other chunks use too, reduced after all others.
        optimizer_s: (r,) update and clipping;
        update_s: of it the update alone;
        after_s: (r,) parameters gathered at the end of the step.
        restored_bytes: (c,) of a microbatch's saved bytes what an early recompute makes again.
        slowdown: of kernels beside a collective.
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


def step_costs(problem: Problem, grid: Grid, priced: Priced) -> StepCosts:
    """Compose the step of `grid` from its rows."""
    return compose(problem, grid_choices(grid, priced.layout), priced)


def compose(problem: Problem, choices: Choices, priced: Priced) -> StepCosts:
    """Compose a step from rows of the tables: of a grid, or of one device's chunks of a general
    plan.
    """
    layout, layers, row = priced.layout, priced.layers, priced.layer_row
    gather, again, reduce = _layer_sync(priced, choices.zero)
    parts = _parts(problem, choices, priced, gather, again, reduce)
    each = choices.zero >= 2 and problem.runtime.reduce_every_microbatch
    filled = layout.counts.sum(axis=1) > 0
    if choices.zero == 3:
        parts[0, :, SHARDING_PART] += np.where(filled, gather[layout.first], 0.0)
        parts[1, :, SHARDING_PART] += np.where(filled, again[layout.turned], 0.0)
    if each:
        parts[1, :, SHARDING_PART] += np.where(filled, reduce[layout.reduced], 0.0)
        parts[1, :, HOST_PART] += np.where(
            filled, _host_gradients(problem, choices, priced)[layout.reduced], 0.0
        )
    sync, row_of_sync = priced.meshes.sync, priced.mesh_row
    start = layout.counts @ (
        sync.from_owners[:, row_of_sync] + (gather if choices.zero in (1, 2) else 0.0)
    )
    end = layout.counts @ (sync.to_owners[:, row_of_sync] + (0.0 if each else reduce))
    cuts = cuts_of(choices, priced)
    optimizer, update, after, start = _step_end(problem, choices, priced, cuts, start)
    kept = bytes_of(problem, choices, priced, cuts)
    return StepCosts(
        **{name: getattr(kept, name) for name in _KEPT},
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


def _layer_sync(priced: Priced, zero: int) -> tuple[FloatArray, FloatArray, FloatArray]:
    """(b,) seconds to gather one layer's parameters, to do so again before its backward, and to
    reduce its gradients.
    """
    sync, row = priced.meshes.sync, priced.mesh_row
    if zero == 3:
        return sync.fetch[:, row], sync.refetch[:, row], sync.scatter[:, row]
    none = np.zeros(sync.gather.shape[0])
    return (
        (sync.gather[:, row], none, sync.reduce[:, row])
        if zero
        else (none, none, sync.all_reduce[:, row])
    )


def _host_gradients(problem: Problem, choices: Choices, priced: Priced) -> FloatArray:
    """(b,) seconds that one layer's reduced gradients take to host memory and back in each
    microbatch.
    """
    share = choices.offload / 100.0 if gradients_leave(problem.runtime, zero=choices.zero) else 0.0
    return share * priced.meshes.host_gradient_s[:, priced.mesh_row]


def _tied_seconds(choices: Choices, priced: Priced) -> FloatArray:
    """(c,) seconds to sum the gradients of weights that the first and the last chunk share (or, of
    one chunk, that others share).
    """
    sync, row = priced.meshes.sync, priced.mesh_row
    tied = np.zeros(len(priced.layout.contents))
    tied[[0, -1]] = (sync.tied_reduce if choices.zero else sync.tied_all_reduce)[row]
    return tied


def _parts(
    problem: Problem,
    choices: Choices,
    priced: Priced,
    gather: FloatArray,
    regather: FloatArray,
    reduce: FloatArray,
) -> FloatArray:
    """(2, c, parts) seconds of F and B of each chunk by part, recompute, exposed sharding and
    copies to the host included.
    """
    seconds = priced.layers.seconds[:, :, :, priced.layer_row]
    slowdown, every = (
        float(priced.meshes.slowdown[priced.mesh_row]),
        problem.runtime.reduce_every_microbatch,
    )
    blocks, zero, sync = seconds.shape[0], choices.zero, priced.meshes.sync
    kept = np.zeros((2, blocks, len(PART_NAMES)))
    # What selective and full recompute add.
    more = np.zeros((2, blocks, len(PART_NAMES)))
    kept[0, :, : len(PARTS)] = seconds[:, 0]
    kept[1, :, : len(PARTS)] = seconds[:, 1] + seconds[:, 2]
    more[0, :, RECOMPUTE_PART] = seconds[:, 3].sum(axis=1)
    more[1, :, RECOMPUTE_PART] = seconds[:, 4].sum(axis=1)
    if zero >= 2:
        moved = _host_gradients(problem, choices, priced).tolist()
        for b in range(blocks):
            g, r, apart = (
                float(regather[b]),
                float(reduce[b]),
                float(sync.apart[b, priced.mesh_row]),
            )
            first, copy, back = (
                float(seconds[b, priced.mesh_row])
                for seconds in (
                    priced.meshes.gather_copy_s,
                    priced.meshes.regather_copy_s,
                    priced.meshes.reduce_copy_s,
                )
            )
            forward, backward = float(kept[0, b].sum()), float(kept[1, b].sum())
            kept[0, b, SHARDING_PART] = (
                forward_layer(forward, float(gather[b]), first, zero, slowdown) - forward
            )
            once = backward_layer(backward, g, r, apart, copy, back, zero, every, slowdown)
            kept[1, b, SHARDING_PART] = once - backward
            if moved[b]:
                kept[1, b, HOST_PART] = (
                    backward_layer(
                        backward, g, r + moved[b], apart, copy, back, zero, every, slowdown
                    )
                    - once
                )
            elements = float(sync.regathered[b, priced.mesh_row])
            again = float(plain(gathers_again)(elements, float(problem.runtime.reuse_elements)))
            for mode, times in enumerate((1.0, again)):
                longer = backward + float(more[mode, b, RECOMPUTE_PART])
                slower = backward_layer(
                    longer, times * g, r, apart, times * copy, back, zero, every, slowdown
                )
                more[mode, b, SHARDING_PART] = slower - longer - kept[1, b, SHARDING_PART]
                if moved[b]:
                    with_host = backward_layer(
                        longer,
                        times * g,
                        r + moved[b],
                        apart,
                        times * copy,
                        back,
                        zero,
                        every,
                        slowdown,
                    )
                    more[mode, b, HOST_PART] = with_host - slower - kept[1, b, HOST_PART]
    parts: FloatArray = np.einsum("cb,kbp->kcp", priced.layout.counts, kept)
    parts[1] += np.einsum("cbm,mbp->cp", choices.modes[:, :, 1:3], more)
    saved = choices.modes[:, :, 3] @ priced.layers.saved_bytes[:, 0, priced.layer_row]
    if saved.any():
        beside = kept.sum(axis=2) @ (priced.layout.counts * priced.layout.layer).T
        parts[:, :, HOST_PART] += waited_for_layers(
            saved, rate=problem.cluster.node.host.pcie.achieved, beside=beside
        )
    parts[:, :, SCALES_PART] = priced.meshes.scales_s[priced.mesh_row]
    return parts


def pieces_of(layout: ChunkLayout, *, overlapped: bool) -> IntArray:
    """(c,) buckets of each chunk: one if nothing hides them (`Runtime.overlap_grad_reduce`); else
    one a layer up to MAX_PIECES.
    """
    if not overlapped:
        return np.ones(len(layout.contents), dtype=np.int64)
    result: IntArray = np.clip(layout.counts.sum(axis=1), 1, MAX_PIECES)
    return result


def _step_end(
    problem: Problem, choices: Choices, priced: Priced, cuts: Cuts, start: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Seconds of each rank's end of the step, of its update alone, and end gathers; and the gathers
    left at the start of the step.
    """
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
            e: plain(optimizer_seconds)(float(e), float(shard), traffic, bandwidth, share, rate)
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
        return optimizer, update, np.zeros(pp), start
    return optimizer, update, start.reshape(vpp, pp).sum(axis=0), np.zeros_like(start)
