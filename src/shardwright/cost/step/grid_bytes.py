"""Bytes that one strategy's step keeps, composed from rows of the tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np

from shardwright.arrays import BoolArray, FloatArray, IntArray
from shardwright.compiled import plain
from shardwright.cost.buffers.communication_buffers import context_bytes
from shardwright.cost.step.scalar_terms import (
    gathered_elements,
    parameter_bytes,
    reserved_bytes,
    temporary_bytes,
)
from shardwright.cost.tables.bytes_per_parameter import (
    frozen_shard_bytes,
    gradients_leave,
    narrow_copies,
    own_gradient_bytes,
    shard_bytes,
)
from shardwright.cost.tables.grid_rows import Choices, Priced, grid_choices
from shardwright.cost.time_parts import EP
from shardwright.lazy_dataclass import dataclass
from shardwright.program.problem import Problem
from shardwright.strategy.grid.axes import Grid

Items = tuple[tuple[str, IntArray], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBytes:
    """What one strategy's step keeps, before it is put in order. c = chunk, r = pipeline rank.

    Args:
        static_bytes: items (name, (r,) bytes) that live through the step.
        saved_bytes: (c,) of one microbatch;
        paired_bytes: what a pair keeps beside (`rank_memory.paired_activations`).
        logits_bytes, transient_bytes: (r,) at the peak.
        blocks_bytes: (r,) the allocator's blocks of logits and of each kind of temporary;
        again_bytes: of them what a layer's backward makes again.
        outside_bytes: items (name, (r,) bytes) outside the allocator.
        host_bytes: items (name, (r,) bytes) that live in host memory through the step;
        host_saved_bytes: (c,) of one microbatch that it keeps there from F to backward. See
            `host_memory`.
    """

    static_bytes: Items
    saved_bytes: IntArray
    paired_bytes: IntArray
    transient_bytes: IntArray
    logits_bytes: IntArray
    blocks_bytes: IntArray
    again_bytes: IntArray
    outside_bytes: Items
    host_bytes: Items
    host_saved_bytes: IntArray


def step_bytes(problem: Problem, grid: Grid, priced: Priced) -> StepBytes:
    """What the step of `grid` keeps, from its rows."""
    choices = grid_choices(grid, priced.layout)
    return bytes_of(problem, choices, priced, cuts_of(choices, priced))


def bytes_of(problem: Problem, choices: Choices, priced: Priced, cuts: Cuts) -> StepBytes:
    """What a step with these choices keeps."""
    states, away = (
        state_bytes(problem, choices, priced, cuts),
        host_state_bytes(problem, choices, cuts),
    )
    beside = bytes_beside_states(problem, choices, priced)
    return replace(beside, static_bytes=(*states, *beside.static_bytes), host_bytes=away)


def bytes_beside_states(problem: Problem, choices: Choices, priced: Priced) -> StepBytes:
    """What a step keeps but for parameters, gradients and optimizer states: recompute alone tells
    choices apart here.
    """
    layout, layers, row = priced.layout, priced.layers, priced.layer_row
    held = layout.by_rank > 0
    heads = held[:, layout.head].any(axis=1)
    logits = np.where(heads, layers.logits_bytes[row], 0)
    again, table = _temporaries(choices, priced)
    dispatched = np.where(held, layers.buffer_bytes[:, 1, row], 0).max(axis=1)
    return StepBytes(
        static_bytes=(("workspace", problem.runtime.workspace_bytes + dispatched),),
        saved_bytes=np.einsum("cbm,bm->c", choices.modes, layers.saved_bytes[:, :, row]),
        paired_bytes=_paired_bytes(problem, choices, priced),
        transient_bytes=_whole_bytes(plain(temporary_bytes), again, table, logits),
        logits_bytes=logits,
        blocks_bytes=np.where(heads, layers.logits_blocks[row], 0) + again + table,
        again_bytes=again,
        outside_bytes=_outside_bytes(problem, priced),
        host_bytes=(),
        host_saved_bytes=np.add.reduce(choices.modes * layers.host_bytes[:, :, row], axis=(1, 2)),
    )


def _paired_bytes(problem: Problem, choices: Choices, priced: Priced) -> IntArray:
    """(c,) the most that a layer of each chunk keeps whose experts' traffic runs beside another
    microbatch; 0 without any.
    """
    layers, row = priced.layers, priced.layer_row
    if not problem.runtime.expert_overlap:
        return np.zeros(len(choices.modes), dtype=np.int64)
    routed = layers.seconds[:, :, EP, row].sum(axis=1) > 0.0
    kept = np.where((choices.modes > 0) & routed[:, None], layers.saved_bytes[:, :, row], 0)
    result: IntArray = kept.max(axis=(1, 2)).astype(np.int64)
    return result


class Cuts(NamedTuple):
    """Elements of each rank by how their states are cut.

    Args:
        elements: (r, k) trainable ones of each way.
        degrees: (3, k) devices that share one copy of optimizer states, gradients and parameters.
        apart: (k,) see `ShardedElements`.
        frozen: (r, j) those without a gradient.
        frozen_degrees: (j,) devices that share one copy of them.
    """

    elements: IntArray
    degrees: IntArray
    apart: BoolArray
    frozen: IntArray
    frozen_degrees: IntArray

    def held(self, level: int) -> IntArray:
        """(r,) elements of the state that ZeRO stage `level` begins to shard; see
        `ShardedElements.held`.
        """
        result: IntArray = (-(-self.elements // self.degrees[level - 1])).sum(axis=1)
        return result

    def shards(self, *, width: float, alone: float, beside: float, master: bool) -> FloatArray:
        """(r,) bytes of the parameters' shards on the device.

        A master copy stands for the shard where it is of the same elements. Where optimizer states
        are of elements outside the shard, and have no master copy, their values are kept too.

        Args:
            width: bytes of an element.
            alone: of one of a shard;
            beside: of one that optimizer states of the device's own go with.
            master: they have a master copy.
        """
        parameters, states = (
            -(-self.elements // self.degrees[2]),
            -(-self.elements // self.degrees[0]),
        )
        each = np.where(self.apart | (self.degrees[0] != self.degrees[2]), alone, beside)
        values = self.apart * (0.0 if master else width)
        return np.asarray((parameters * each + states * values).sum(axis=1), dtype=np.float64)

    @property
    def frozen_held(self) -> IntArray:
        """(r,) elements without a gradient that a rank holds."""
        result: IntArray = (-(-self.frozen // self.frozen_degrees)).sum(axis=1)
        return result


def cuts_of(choices: Choices, priced: Priced) -> Cuts:
    """Those of a step.

    A rank with a tied weight but without its owner holds a copy of its own, with gradient and
    states (Megatron-LM's and DeepSpeed's tied embeddings under pipeline parallelism).
    """
    sync, row, by_rank = priced.meshes.sync, priced.mesh_row, priced.layout.by_rank
    if sync.cuts:
        every = np.array(sync.cuts, dtype=np.int64)
        still = np.array(sync.frozen_cuts, dtype=np.int64).reshape(-1, every.shape[1])
        cut = every[None, :, 0], every[:, 1:4].T, every[:, 4] > 0
        return Cuts(*cut, frozen=still[None, :, 0], frozen_degrees=still[:, 3])
    dense, experts = by_rank @ sync.dense[:, row], by_rank @ sync.experts[:, row]
    if sync.tied[:, row].any():
        dense[1:] += np.where(by_rank > 0, sync.tied[:, row][None, :], 0).max(axis=1)[1:]
    shards = np.array([sync.shard[row], sync.expert_shard[row]])
    degrees = np.where(choices.zero >= _LEVELS, shards, 1)
    elements = np.array([dense, experts]).T
    if not sync.frozen[:, row].any():
        return Cuts(
            elements, degrees, _TOGETHER, frozen=_no_frozen(len(by_rank)), frozen_degrees=_NO_WAYS
        )
    frozen = [by_rank @ columns[:, row] for columns in (sync.frozen_dense, sync.frozen_experts)]
    # What more devices hold than the rest may be cut further: of ZeRO-3's bound nothing is left of
    # it.
    wide = (by_rank @ sync.frozen[:, row] - frozen[0] - frozen[1]) * (choices.zero < _LEVELS[-1])
    return Cuts(
        elements,
        degrees,
        _TOGETHER,
        frozen=np.array([*frozen, wide]).T,
        frozen_degrees=np.array([*degrees[-1], 1]),
    )


_NO_WAYS: Final = np.zeros(0, dtype=np.int64)
_TOGETHER: Final = np.zeros(2, dtype=np.bool_)


@lru_cache(maxsize=1024)
def _no_frozen(ranks: int) -> IntArray:
    return np.zeros((ranks, 0), dtype=np.int64)


_LEVELS = np.array([[1], [2], [3]])
"""ZeRO stages that begin to shard optimizer states, gradients and parameters."""


def state_bytes(problem: Problem, choices: Choices, priced: Priced, cuts: Cuts) -> Items:
    """Parameters, gradients and optimizer states of each rank (ceil of equal shards): recompute
    does not tell choices apart here.
    """
    sync, row, by_rank = priced.meshes.sync, priced.mesh_row, priced.layout.by_rank
    frozen = cuts.frozen_held
    if choices.zero < 3:
        # Summed by more devices than the rest, so sharded further: only what is never sharded is
        # counted.
        frozen = frozen + by_rank @ sync.spread[:, row]

    block, unit = sync.gathered[:, row], priced.layout.unit
    largest = np.where((by_rank > 0) & unit, block[None, :], 0).max(axis=1)
    ends = (by_rank * ~unit) @ block
    prefetch, width = float(problem.runtime.gather_prefetch), problem.job.parameter.bits / 8
    gathered = plain(gathered_elements)(
        ends.astype(np.float64), largest.astype(np.float64), prefetch
    )
    whole = cuts.elements.sum(axis=1)
    cut_width, alone = shard_bytes(problem), frozen_shard_bytes(problem)
    shards = cuts.shards(
        width=width, alone=alone, beside=cut_width, master=problem.optimizer.master is not None
    )
    held = whole.astype(np.float64), shards, frozen.astype(np.float64)
    cut_frozen = alone if choices.zero == 3 else width
    parameters = plain(parameter_bytes)(
        choices.zero, *held, gathered, width, 1.0, cut_frozen
    ).astype(np.int64)
    if choices.zero < 3 and sync.narrow[:, row].any():
        few: IntArray = by_rank @ sync.narrow[:, row]
        parameters = parameters + (few * narrow_copies(problem)).astype(np.int64)
    gradients = cuts.held(2) * (problem.runtime.gradient_dtype.bits // 8)
    if gradients_leave(problem.runtime, zero=choices.zero):
        gradients = gradients * (100 - choices.offload) // 100
    if choices.zero < 2:
        gradients = gradients + whole * own_gradient_bytes(problem)
    return (
        ("parameters", parameters),
        ("gradients", gradients),
        (
            "optimizer",
            cuts.held(1) * problem.optimizer.state_bytes * (100 - choices.offload) // 100,
        ),
    )


def host_state_bytes(problem: Problem, choices: Choices, cuts: Cuts) -> Items:
    """Model states of each rank that lie in host memory, and the buffers beside them: what
    `state_bytes` leaves out there.

    optimizer: the states' share that is offloaded. gradients: a copy of the gradients that the host
    updates with (`Runtime.host_gradient_bytes`). parameters: ZeRO-3's shards of the working copy
    (`Runtime.parameters_on_host`). buffers: `Runtime.host_buffer_percent` of all these.
    """
    runtime = problem.runtime
    if not choices.offload and not (runtime.parameters_on_host and choices.zero == 3):
        return ()
    held, width = cuts.held(1), problem.job.parameter.bits // 8
    states = held * problem.optimizer.state_bytes
    items = [
        ("optimizer", states - states * (100 - choices.offload) // 100),
        ("gradients", held * runtime.host_gradient_bytes * choices.offload // 100),
    ]
    if runtime.parameters_on_host and choices.zero == 3:
        items.append(("parameters", (cuts.held(3) + cuts.frozen_held) * width))
    offloaded = np.add.reduce([values for _, values in items])
    items.append(("buffers", offloaded * runtime.host_buffer_percent // 100))
    return tuple([(name, values) for name, values in items if values.any()])


def _temporaries(choices: Choices, priced: Priced) -> tuple[IntArray, IntArray]:
    """(r,) bytes of the largest temporary of each kind: what a layer's backward makes again, and an
    embedding's or head's gradient.
    """
    layout, row, held = priced.layout, priced.layer_row, priced.layout.by_rank > 0
    end = np.where(held, priced.meshes.table_bytes[:, priced.mesh_row], 0).max(axis=1)
    again = again_bytes(priced.layers.saved_bytes[:, :, row], choices.mode)
    return np.where(held & layout.layer, again, 0).max(axis=1), end


def again_bytes(saved: IntArray, mode: int) -> IntArray:
    """(b,) or (b, n) bytes that a layer's backward makes again under recompute option `mode` of
    `saved`, (b, modes) or (b, modes, n).
    """
    result: IntArray = np.maximum(saved[:, 0] - saved[:, mode], 0)
    return result


def _outside_bytes(problem: Problem, priced: Priced) -> Items:
    """Communication buffers and context of each rank."""
    buffers = int(
        priced.meshes.communicator_bytes[priced.mesh_row]
        + priced.layers.overlap_buffers[priced.layer_row]
    )
    held = priced.layout.by_rank > 0
    return (
        (
            "communication",
            buffers
            + np.where(held, priced.layers.buffer_bytes[:, 0, priced.layer_row], 0).max(axis=1),
        ),
        ("context", np.full(priced.layout.pp, context_bytes(problem), dtype=np.int64)),
    )


def held_bytes(
    problem: Problem, costs: StepBytes, allocated: IntArray
) -> tuple[IntArray, IntArray]:
    """(r,) bytes that the allocator holds for `allocated`, and that the device holds in all."""
    factor = reserve_factor(problem)
    reserved = _whole_bytes(
        plain(reserved_bytes),
        allocated,
        costs.transient_bytes,
        costs.logits_bytes,
        costs.blocks_bytes,
        more=(factor,),
    )
    outside = np.zeros_like(reserved)
    for _, values in costs.outside_bytes:
        outside = outside + values
    return reserved, reserved + outside


def _whole_bytes(
    formula: Callable[..., FloatArray], *columns: IntArray, more: tuple[float, ...] = ()
) -> IntArray:
    """(r,) whole bytes of a formula of each rank's numbers."""
    whole: FloatArray = formula(*[column.astype(np.float64) for column in columns], *more)
    return whole.astype(np.int64)


def reserve_factor(problem: Problem) -> float:
    """Least ratio of what the allocator holds to what is allocated."""
    return (100 + problem.runtime.allocator_reserve_percent) / 100
