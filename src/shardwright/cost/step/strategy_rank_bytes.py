"""Bytes of one strategy's step, composed from rows of the tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np

from shardwright.arrays import BoolArray, FloatArray, IntArray
from shardwright.cost.buffers.nccl_and_overlap_buffers_and_device_context import context_bytes
from shardwright.cost.part_phase_recompute_keys import EP
from shardwright.cost.step.shared_scalar_cost_formulas import (
    gathered_elements,
    parameter_bytes,
    reserved_bytes,
    temporary_bytes,
)
from shardwright.cost.tables.bytes_per_parameter_and_update_traffic import (
    frozen_shard_bytes,
    gradients_leave,
    narrow_copies,
    own_gradient_bytes,
    shard_bytes,
)
from shardwright.cost.tables.grid_rows_and_memory_settings import (
    MemoryChoices,
    TableRows,
    grid_choices,
)
from shardwright.kernel_compilation import python_form
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.program.training_problem import Problem
from shardwright.strategy.grid.parallelism_grid import Grid

Items = tuple[tuple[str, IntArray], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBytes:
    """Bytes that one strategy's step keeps, before its actions are ordered.

    c = chunk, r = pipeline rank.

    Args:
        static_bytes: items (name, (r,) bytes) that live through the step.
        saved_bytes: (c,) of one microbatch.
        paired_bytes: (c,) of a pair beside (`rank_memory_bound.paired_activations`).
        logits_bytes, transient_bytes: (r,) at the peak.
        blocks_bytes: (r,) the allocator's blocks of logits and of each kind of temporary.
        again_bytes: (r,) of them the tensors that a layer's backward makes again.
        outside_bytes: items (name, (r,) bytes) outside the allocator.
        host_bytes: items (name, (r,) bytes) that live in host memory through the step.
        host_saved_bytes: (c,) of one microbatch, kept in host memory from F to backward. See
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


def step_bytes_before_ordering(problem: Problem, grid: Grid, priced: TableRows) -> StepBytes:
    """Bytes a step keeps on each rank, and saves per chunk of one microbatch; no order applied."""
    choices = grid_choices(grid, priced.layout)
    return bytes_of(problem, choices, priced, rank_cuts(choices, priced))


def bytes_of(problem: Problem, choices: MemoryChoices, priced: TableRows, cuts: Cuts) -> StepBytes:
    """Parts of a step's bytes: by rank; saved ones by chunk of one microbatch, none in flight."""
    states, host_states = (
        state_bytes(problem, choices, priced, cuts),
        host_state_bytes(problem, choices, cuts),
    )
    other_bytes = bytes_beside_states(problem, choices, priced)
    return replace(
        other_bytes, static_bytes=(*states, *other_bytes.static_bytes), host_bytes=host_states
    )


def bytes_beside_states(problem: Problem, choices: MemoryChoices, priced: TableRows) -> StepBytes:
    """Bytes of a step without model states: by rank; saved ones by chunk of one microbatch.

    They differ between choices by recompute alone.
    """
    layout, layers, row = priced.layout, priced.layers, priced.layer_row
    has_blocks = layout.by_rank > 0
    heads = has_blocks[:, layout.head].any(axis=1)
    logits = np.where(heads, layers.logits_bytes[row], 0)
    recomputed, table_gradient = _temporaries(choices, priced)
    dispatched = np.where(has_blocks, layers.buffer_bytes[:, 1, row], 0).max(axis=1)
    return StepBytes(
        static_bytes=(("workspace", problem.runtime.workspace_bytes + dispatched),),
        saved_bytes=np.einsum("cbm,bm->c", choices.modes, layers.saved_bytes[:, :, row]),
        paired_bytes=_paired_bytes(problem, choices, priced),
        transient_bytes=_whole_bytes(
            python_form(temporary_bytes), recomputed, table_gradient, logits
        ),
        logits_bytes=logits,
        blocks_bytes=np.where(heads, layers.logits_blocks[row], 0) + recomputed + table_gradient,
        again_bytes=recomputed,
        outside_bytes=_outside_bytes(problem, priced),
        host_bytes=(),
        host_saved_bytes=np.add.reduce(choices.modes * layers.host_bytes[:, :, row], axis=(1, 2)),
    )


def _paired_bytes(problem: Problem, choices: MemoryChoices, priced: TableRows) -> IntArray:
    """(c,) most saved bytes of a routed layer by chunk, if expert traffic is overlapped; else 0."""
    layers, row = priced.layers, priced.layer_row
    if not problem.runtime.expert_overlap:
        return np.zeros(len(choices.modes), dtype=np.int64)
    routed = layers.seconds[:, :, EP, row].sum(axis=1) > 0.0
    kept_bytes = np.where((choices.modes > 0) & routed[:, None], layers.saved_bytes[:, :, row], 0)
    most_kept: IntArray = kept_bytes.max(axis=(1, 2)).astype(np.int64)
    return most_kept


class Cuts(NamedTuple):
    """Elements of each rank, grouped by the degrees that shard their states.

    Args:
        elements: (r, k) trainable elements of each way.
        degrees: (3, k) devices that share one copy of optimizer states, gradients and parameters.
        apart: (k,) see `ShardedElements`.
        frozen: (r, j) elements without a gradient.
        frozen_degrees: (j,) devices that share one copy of them.
    """

    elements: IntArray
    degrees: IntArray
    apart: BoolArray
    frozen: IntArray
    frozen_degrees: IntArray

    def held(self, level: int) -> IntArray:
        """(r,) elements a rank holds of optimizer states (1), gradients (2) or parameters (3).

        See `ShardedElements.held`.
        """
        elements_held: IntArray = (-(-self.elements // self.degrees[level - 1])).sum(axis=1)
        return elements_held

    def shards(self, *, width: float, alone: float, beside: float, master: bool) -> FloatArray:
        """(r,) bytes of ZeRO-3 shards: `beside` an element if its states are cut alike, or `alone`.

        A master copy stands for the shard where it is of the same elements. Where optimizer states
        are of elements outside the shard, and have no master copy, their values are kept too.

        Args:
            width: bytes of an element.
            alone: bytes of an element of a shard.
            beside: bytes of an element whose optimizer states are the device's own.
            master: they have a master copy.
        """
        parameters, states = (
            -(-self.elements // self.degrees[2]),
            -(-self.elements // self.degrees[0]),
        )
        bytes_per_element = np.where(
            self.apart | (self.degrees[0] != self.degrees[2]), alone, beside
        )
        values = self.apart * (0.0 if master else width)
        return np.asarray(
            (parameters * bytes_per_element + states * values).sum(axis=1), dtype=np.float64
        )

    @property
    def frozen_held(self) -> IntArray:
        """(r,) elements without a gradient that a rank holds."""
        elements_held: IntArray = (-(-self.frozen // self.frozen_degrees)).sum(axis=1)
        return elements_held


def rank_cuts(choices: MemoryChoices, priced: TableRows) -> Cuts:
    """Elements of each rank, trained and frozen, grouped by the degrees that shard their states.

    A rank with a tied weight but without its owner holds a copy of its own, with gradient and
    states (Megatron-LM's and DeepSpeed's tied embeddings under pipeline parallelism).
    """
    sync, row, by_rank = priced.meshes.sync, priced.mesh_row, priced.layout.by_rank
    if sync.cuts:
        all_cuts = np.array(sync.cuts, dtype=np.int64)
        frozen_cuts = np.array(sync.frozen_cuts, dtype=np.int64).reshape(-1, all_cuts.shape[1])
        cut = all_cuts[None, :, 0], all_cuts[:, 1:4].T, all_cuts[:, 4] > 0
        return Cuts(*cut, frozen=frozen_cuts[None, :, 0], frozen_degrees=frozen_cuts[:, 3])
    dense, experts = by_rank @ sync.dense[:, row], by_rank @ sync.experts[:, row]
    if sync.tied[:, row].any():
        dense[1:] += np.where(by_rank > 0, sync.tied[:, row][None, :], 0).max(axis=1)[1:]
    shards = np.array([sync.shard[row], sync.expert_shard[row]])
    degrees = np.where(choices.zero >= _LEVELS, shards, 1)
    elements = np.array([dense, experts]).T
    if not sync.frozen[:, row].any():
        return Cuts(
            elements,
            degrees,
            _SHARDS_WITH_STATES,
            frozen=_no_frozen(len(by_rank)),
            frozen_degrees=_NO_FROZEN_DEGREES,
        )
    frozen = [by_rank @ columns[:, row] for columns in (sync.frozen_dense, sync.frozen_experts)]
    # Elements that more devices hold than the rest may be cut further: ZeRO-3's bound leaves them
    # out.
    frozen_of_more_devices = (by_rank @ sync.frozen[:, row] - frozen[0] - frozen[1]) * (
        choices.zero < _LEVELS[-1]
    )
    return Cuts(
        elements,
        degrees,
        _SHARDS_WITH_STATES,
        frozen=np.array([*frozen, frozen_of_more_devices]).T,
        frozen_degrees=np.array([*degrees[-1], 1]),
    )


_NO_FROZEN_DEGREES: Final = np.zeros(0, dtype=np.int64)
_SHARDS_WITH_STATES: Final = np.zeros(2, dtype=np.bool_)


@lru_cache(maxsize=1024)
def _no_frozen(ranks: int) -> IntArray:
    """(ranks, 0) empty array of frozen elements (cached)."""
    return np.zeros((ranks, 0), dtype=np.int64)


_LEVELS = np.array([[1], [2], [3]])
"""ZeRO stages that begin to shard optimizer states, gradients and parameters."""


def state_bytes(problem: Problem, choices: MemoryChoices, priced: TableRows, cuts: Cuts) -> Items:
    """Items (name, bytes by rank) of parameters, gradients and optimizer states on the device.

    Ceil of equal shards; recompute does not change them.
    """
    sync, row, by_rank = priced.meshes.sync, priced.mesh_row, priced.layout.by_rank
    frozen = cuts.frozen_held
    if choices.zero < 3:
        # Summed by more devices than the rest, so sharded further: only parameters, which are not
        # sharded below ZeRO-3, are counted.
        frozen = frozen + by_rank @ sync.spread[:, row]

    block, unit = sync.gathered[:, row], priced.layout.unit
    largest = np.where((by_rank > 0) & unit, block[None, :], 0).max(axis=1)
    ends = (by_rank * ~unit) @ block
    prefetch, width = float(problem.runtime.gather_prefetch), problem.job.parameter.bits / 8
    gathered = python_form(gathered_elements)(
        ends.astype(np.float64), largest.astype(np.float64), prefetch
    )
    trainable = cuts.elements.sum(axis=1)
    cut_width, alone = shard_bytes(problem), frozen_shard_bytes(problem)
    shards = cuts.shards(
        width=width, alone=alone, beside=cut_width, master=problem.optimizer.master is not None
    )
    local_elements = trainable.astype(np.float64), shards, frozen.astype(np.float64)
    cut_frozen = alone if choices.zero == 3 else width
    parameters = python_form(parameter_bytes)(
        choices.zero, *local_elements, gathered, width, 1.0, cut_frozen
    ).astype(np.int64)
    if choices.zero < 3 and sync.narrow[:, row].any():
        narrow_elements: IntArray = by_rank @ sync.narrow[:, row]
        parameters = parameters + (narrow_elements * narrow_copies(problem)).astype(np.int64)
    gradients = cuts.held(2) * (problem.runtime.gradient_dtype.bits // 8)
    if gradients_leave(problem.runtime, zero=choices.zero):
        gradients = gradients * (100 - choices.offload) // 100
    if choices.zero < 2:
        gradients = gradients + trainable * own_gradient_bytes(problem)
    return (
        ("parameters", parameters),
        ("gradients", gradients),
        (
            "optimizer",
            cuts.held(1) * problem.optimizer.state_bytes * (100 - choices.offload) // 100,
        ),
    )


def host_state_bytes(problem: Problem, choices: MemoryChoices, cuts: Cuts) -> Items:
    """Items (name, bytes by rank) of model states and buffers in host memory; may be empty.

    `state_bytes` leaves them out.

    optimizer: the states' share that is offloaded. gradients: a copy of the gradients that the host
    updates with (`Runtime.host_gradient_bytes`). parameters: ZeRO-3's shards of the working copy
    (`Runtime.parameters_on_host`). buffers: `Runtime.host_buffer_percent` of all these.
    """
    runtime = problem.runtime
    if not choices.offload and not (runtime.parameters_on_host and choices.zero == 3):
        return ()
    owned_elements, width = cuts.held(1), problem.job.parameter.bits // 8
    states = owned_elements * problem.optimizer.state_bytes
    items = [
        ("optimizer", states - states * (100 - choices.offload) // 100),
        ("gradients", owned_elements * runtime.host_gradient_bytes * choices.offload // 100),
    ]
    if runtime.parameters_on_host and choices.zero == 3:
        items.append(("parameters", (cuts.held(3) + cuts.frozen_held) * width))
    offloaded = np.add.reduce([values for _, values in items])
    items.append(("buffers", offloaded * runtime.host_buffer_percent // 100))
    return tuple([(name, values) for name, values in items if values.any()])


def _temporaries(choices: MemoryChoices, priced: TableRows) -> tuple[IntArray, IntArray]:
    """(r,) bytes of the largest layer's recomputed tensors, largest embedding or head gradient."""
    layout, row, has_blocks = priced.layout, priced.layer_row, priced.layout.by_rank > 0
    table_gradient = np.where(has_blocks, priced.meshes.table_bytes[:, priced.mesh_row], 0).max(
        axis=1
    )
    recomputed = again_bytes(priced.layers.saved_bytes[:, :, row], choices.mode)
    return np.where(has_blocks & layout.layer, recomputed, 0).max(axis=1), table_gradient


def again_bytes(saved: IntArray, mode: int) -> IntArray:
    """Saved bytes, by block, that recompute option `mode` drops and backward makes again.

    (b,) of `saved` (b, modes), or (b, n) of (b, modes, n).
    """
    recomputed: IntArray = np.maximum(saved[:, 0] - saved[:, mode], 0)
    return recomputed


def _outside_bytes(problem: Problem, priced: TableRows) -> Items:
    """Items (name, bytes by rank) outside the allocator: communication buffers and context."""
    buffers = int(
        priced.meshes.communicator_bytes[priced.mesh_row]
        + priced.layers.overlap_buffers[priced.layer_row]
    )
    has_blocks = priced.layout.by_rank > 0
    return (
        (
            "communication",
            buffers
            + np.where(has_blocks, priced.layers.buffer_bytes[:, 0, priced.layer_row], 0).max(
                axis=1
            ),
        ),
        ("context", np.full(priced.layout.pp, context_bytes(problem), dtype=np.int64)),
    )


def held_bytes(
    problem: Problem, costs: StepBytes, allocated: IntArray
) -> tuple[IntArray, IntArray]:
    """(r,) bytes that the allocator reserves for `allocated`, and these plus bytes outside it."""
    factor = reserve_factor(problem)
    reserved = _whole_bytes(
        python_form(reserved_bytes),
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
    """(r,) result of a byte formula on float copies of the ranks' columns, rounded down."""
    result_bytes: FloatArray = formula(*[column.astype(np.float64) for column in columns], *more)
    return result_bytes.astype(np.int64)


def reserve_factor(problem: Problem) -> float:
    """Minimum ratio of bytes that the allocator holds to allocated bytes."""
    return (100 + problem.runtime.allocator_reserve_percent) / 100
