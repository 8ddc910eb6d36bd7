"""Mesh table: seconds and bytes of gradient synchronisation and buffers, over mesh rows.

Also gradient clipping, copies and scales.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from shardwright.arrays import BoolArray, FloatArray, IntArray
from shardwright.collectives.algorithm_costs.algorithm_protocol import Collective
from shardwright.collectives.groups.span_members_by_network_tier import span_of
from shardwright.cost.buffers.nccl_and_overlap_buffers_and_device_context import communicator_bytes
from shardwright.cost.gradients.layer_reduce_gather_seconds_and_link_shares import SumSpans
from shardwright.cost.gradients.layer_synchronisation_table_classes import SYNCS, SyncTable
from shardwright.cost.gradients.price_layer_synchronisation_on_grids import link_shares, sync_table
from shardwright.cost.lower_model_blocks_under_structure import programs_of
from shardwright.cost.network.fp8_scale_reductions import scale_seconds
from shardwright.cost.network.grid_groups_and_collective_seconds import (
    Network,
    axes_of,
    least_seconds,
    network_of,
    spans_along,
    tokens_copied,
)
from shardwright.cost.parallel_degree_columns import DegreeRows
from shardwright.cost.tables.block_layer_mesh_table_classes import MeshTable
from shardwright.cost.tables.bytes_per_parameter_and_update_traffic import gradient_pass_bytes
from shardwright.cost.tables.set_costs_of_chosen_parts_to_zero import without_free_parts
from shardwright.cost.tables.sharding_copies_and_overlap_slowdown import (
    copy_seconds,
    host_gradient_seconds,
    overlap_slowdown,
)
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.tensor_dims import TABLES
from shardwright.program.block.grid_operator_cuts import Structure
from shardwright.program.block.symbolic_sizes import evaluate
from shardwright.program.training_problem import Problem
from shardwright.runtime.kernel_overlap_recompute_scaling_kinds import ScaleGroup


def shared_parameters(model: Model) -> frozenset[str]:
    """Parameters of the first block that the last one uses too (tied), as ``block.parameter``.

    As ``block.parameter``, of the model's own blocks.
    """
    student_blocks = [
        block
        for block in (model.blocks[run.block] for run in model.runs)
        if not block.is_of_teacher
    ]
    first_block, last_block = student_blocks[0], student_blocks[-1]
    owned = {f"{first_block.name}.{p.name}" for o in first_block.operators for p in o.parameters}
    return frozenset(
        owned & {p.tied_to for o in last_block.operators for p in o.parameters if p.tied_to}
    )


def parameters_elsewhere(model: Model) -> frozenset[str]:
    """Parameters that layers share, or that two chains of layers use, as ``block.parameter``.

    Relative position biases, and the word embeddings of an encoder and a decoder.

    The devices that sum them depend on where a pipeline cuts, and a sum over more devices may take
    less time.
    """
    student_blocks = [
        block
        for block in (model.blocks[run.block] for run in model.runs)
        if not block.is_of_teacher
    ]
    used = {
        p.tied_to
        for block in student_blocks
        for o in block.operators
        for p in o.parameters
        if p.tied_to
    }
    ends = {student_blocks[0].name, student_blocks[-1].name}
    return frozenset(
        name
        for block in student_blocks
        for operator in block.operators
        for p in operator.parameters
        if (name := f"{block.name}.{p.name}") in used
        and (block.name not in ends or p.klass not in TABLES)
    )


def mesh_table(
    problem: Problem,
    rows: DegreeRows,
    shard: IntArray,
    *,
    lying: tuple[SumSpans, SumSpans] | None = None,
) -> MeshTable:
    """Seconds and bytes of synchronisation for every mesh row and sharding group.

    Args:
        lying: how the groups of one device of each row lie that sum dense parameters and experts';
            None = only rows whose groups all lie alike have sums that take time.
    """
    network = network_of(problem.cluster, library=problem.runtime.collective_library)
    n, sync = len(rows), _synchronisation(problem, rows, shard, network, lying=lying)
    norm = least_seconds(
        Collective.ALL_REDUCE,
        volume=np.full(n, 4.0),
        spans=spans_along("world", rows, network),
        network=network,
    )
    gather_copy, regather_copy, reduce_copy = copy_seconds(problem, sync)
    # Of groups that lie unlike each other in the units of the network each is priced by itself;
    # those of tied weights by the plan alone.
    alike = lies_in_units(rows, tuple(t.num_devices for t in network.tiers)) & (lying is None)
    unknown = (
        ("tied_all_reduce", "tied_reduce") if lying else (*SYNCS, "tied_all_reduce", "tied_reduce")
    )
    sync = replace(sync, **{name: getattr(sync, name) * alike for name in unknown})
    table = MeshTable(
        sync=sync,
        norm_s=norm,
        communicator_bytes=communicator_bytes(problem, num_communicators(rows)),
        slowdown=np.where(
            alike,
            overlap_slowdown(problem, span_of(network.tiers, axes_of("dp-cp", rows)), network),
            1.0,
        ),
        shares=alike
        * link_shares(rows, shard, network=network, bucket=problem.runtime.bucket_bytes),
        gather_copy_s=gather_copy,
        regather_copy_s=regather_copy,
        reduce_copy_s=reduce_copy,
        host_gradient_s=host_gradient_seconds(problem, sync),
        scales_s=scale_waits(problem, rows),
        gradient_bytes=gradient_pass_bytes(problem, rows["dp"] * rows["cp"]),
        table_bytes=_table_elements(problem, rows) * problem.runtime.embedding_gradient_bytes,
    )
    return without_free_parts(problem, table)


def _table_elements(problem: Problem, rows: DegreeRows) -> IntArray:
    """(blocks, n) elements a device has of each block's largest trained word or position table."""
    programs, degrees = (
        programs_of(problem, Structure(sequence_parallel=True, routed=True)),
        rows.degrees(),
    )
    elements = np.zeros((len(programs), len(rows)), dtype=np.int64)
    for largest, program in zip(elements, programs, strict=True):
        for stored in program.stored:
            if stored.klass in TABLES and stored.trainable:
                np.maximum(largest, evaluate(stored.elements, degrees), out=largest)
    return elements


def untimed_table(problem: Problem, rows: DegreeRows, shard: IntArray) -> MeshTable:
    """Mesh table with every row's elements; seconds are 0, except the waits for FP8 scales."""
    n, network = len(rows), network_of(problem.cluster, library=problem.runtime.collective_library)
    sync = _synchronisation(problem, rows, shard, network, timed=False)
    no_seconds, no_bytes = np.zeros(n), np.zeros(n, dtype=np.int64)
    return MeshTable(
        sync=replace(sync, tied=np.zeros_like(sync.tied)),
        norm_s=no_seconds,
        communicator_bytes=no_bytes,
        slowdown=np.ones(n),
        shares=np.zeros((2, len(network.tiers), n)),
        gather_copy_s=np.zeros(sync.gather.shape),
        regather_copy_s=np.zeros(sync.gather.shape),
        reduce_copy_s=np.zeros(sync.gather.shape),
        host_gradient_s=np.zeros(sync.gather.shape),
        scales_s=scale_waits(problem, rows),
        gradient_bytes=no_bytes,
        table_bytes=np.zeros(sync.gather.shape, dtype=np.int64),
    )


def scale_waits(problem: Problem, rows: DegreeRows) -> FloatArray:
    """(n,) seconds that each pass of a chunk waits for the reduction of FP8 scales."""
    network = network_of(problem.cluster, library=problem.runtime.collective_library)
    waits = scale_seconds(
        problem,
        lambda group: spans_along(
            "tp-cp" if group is ScaleGroup.TENSOR else "stage", rows, network
        ),
        network,
    )
    return np.zeros(len(rows)) + waits


def _synchronisation(
    problem: Problem,
    rows: DegreeRows,
    shard: IntArray,
    network: Network,
    *,
    timed: bool = True,
    lying: tuple[SumSpans, SumSpans] | None = None,
) -> SyncTable:
    """Synchronisation table of all blocks of the model for every mesh row and sharding group."""
    # Rows do not tell whether the stream is cut by position: elements that more devices sum there
    # are not priced at all.
    programs = programs_of(problem, Structure(sequence_parallel=True, routed=True))
    copied = tokens_copied(rows)
    moe = any(o.experts is not None for b in problem.model.blocks for o in b.operators)
    repeats = [0] * len(programs)
    for run in problem.model.runs:
        repeats[run.block] += run.count
    return sync_table(
        programs,
        unrouted=programs_of(problem, Structure(sequence_parallel=True, routed=False))
        if moe and bool(copied.any())
        else (),
        repeats=tuple(repeats),
        rows=rows,
        shard=shard,
        network=network,
        job=problem.job,
        runtime=problem.runtime,
        shared=shared_parameters(problem.model),
        elsewhere=parameters_elsewhere(problem.model),
        timed=timed,
        lying=lying,
    )


def lies_in_units(rows: DegreeRows, units: tuple[int, ...]) -> BoolArray:
    """(n,) True where every run of axes fits into, or fills, the units of each network tier."""
    alike = np.ones(len(rows), dtype=np.bool_)
    for axis in ("tp", "cp", "dp", "pp"):
        end = rows[axis] * rows[f"s_{axis}"]
        for unit in units[:-1]:
            alike &= (rows[axis] == 1) | (end % unit == 0) | (unit % np.maximum(end, 1) == 0)
    return alike


_GROUPS: Final = ("tp", "dp-cp", "ep", "etp", "pp", "world")


def num_communicators(rows: DegreeRows) -> IntArray:
    """(n,) number of process groups of more than one device that a device belongs to.

    tp, cp, holders of its gradients, ep, etp, its pipeline, all devices.
    """
    groups = (rows["cp"] > 1).astype(np.int64)
    for axis in _GROUPS:
        size = np.ones(len(rows), dtype=np.int64)
        for degree, _ in axes_of(axis, rows):
            size = size * degree
        groups += size > 1
    return groups
