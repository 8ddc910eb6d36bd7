"""Synchronisation costs of one device family: its ZeRO stage and its row of mesh costs."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import field
from functools import lru_cache
from itertools import chain
from math import prod

import numpy as np

from shardwright.arrays import FloatArray
from shardwright.collectives.algorithm_costs.algorithm_protocol import Collective
from shardwright.cost.buffers.nccl_and_overlap_buffers_and_device_context import communicator_bytes
from shardwright.cost.gradients.plan_sharded_elements import effective_zero_stage
from shardwright.cost.gradients.plan_synchronisation import device_sync_table, group_shares
from shardwright.cost.network.fp8_scale_reductions import scale_seconds
from shardwright.cost.network.grid_groups_and_collective_seconds import move_seconds
from shardwright.cost.network.networks_of_plan_devices import (
    group_span,
    kind_problem,
    network_of_devices,
)
from shardwright.cost.tables.block_layer_mesh_table_classes import MeshTable
from shardwright.cost.tables.bytes_per_parameter_and_update_traffic import gradient_pass_bytes
from shardwright.cost.tables.set_costs_of_chosen_parts_to_zero import without_free_parts
from shardwright.cost.tables.sharding_copies_and_overlap_slowdown import (
    copy_seconds,
    host_gradient_seconds,
    overlap_slowdown,
)
from shardwright.hardware.strided_device_list import EMPTY, DeviceList
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.ir.operator import OperatorClass
from shardwright.model.ir.tensor_dims import TABLES, Dim, ParameterClass
from shardwright.program.block.operator_cuts_on_one_device_of_plan import CellStructure, on_replica
from shardwright.program.identity_cache_keys import Same
from shardwright.program.layout.device_cuts_in_placement_tree import (
    WIDTHS,
    StageCells,
    parts_along,
    product_class,
)
from shardwright.program.layout.stage_devices_that_share_samples import replica
from shardwright.program.stages.held_parameters import HeldParameters
from shardwright.program.stages.stage_segments import Segment, StageParts
from shardwright.program.training_problem import Problem
from shardwright.program.zero_sharding import ShardRules
from shardwright.runtime.kernel_overlap_recompute_scaling_kinds import ScaleGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Facts of the whole plan that a device's costs depend on: its devices and device sets.

    Args:
        devices: devices in some stage, by number.
        sets: number of different sets of devices that are stages.
    """

    devices: DeviceList
    sets: int


def held_groups(held: list[tuple[HeldParameters, ...]]) -> tuple[DeviceList, ...]:
    """Reduction groups of several devices, by falling elements: dense, then experts', then tied.

    Trained or not; those of experts alone, then of tied weights alone, come last.
    """
    elements: dict[DeviceList, list[int]] = {}
    for items in held:
        for h in items:
            if len(h.group) > 1:
                sums = elements.setdefault(h.group, [0, 0, 0])
                sums[2 if h.near != h.group else h.klass is ParameterClass.EXPERTS] -= (
                    h.elements * h.layers
                )
    return tuple(sorted(elements, key=lambda g: (*elements[g], g)))


def main_contributions(held: list[tuple[HeldParameters, ...]]) -> int:
    """Effective data-parallel degree: devices that hold most of the dense elements in common.

    Trained or not.
    """
    elements: dict[DeviceList, int] = {}
    for h in (h for items in held for h in items):
        if h.near == h.group and h.klass is not ParameterClass.EXPERTS:
            elements[h.group] = elements.get(h.group, 0) + h.elements * h.layers
    return len(max(elements, key=lambda g: (elements[g], g))) if elements else 1


@dataclass(frozen=True, slots=True)
class HeldSegment:
    """A segment, and the parameters that the device holds of one of its layers."""

    segment: Segment
    held: tuple[HeldParameters, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SynchronisedDevice:
    """A device of a stage whose synchronisation is to be priced; equal where `alike` is equal."""

    alike: Hashable
    problem: Problem = field(compare=False)
    stage: StageParts = field(compare=False)
    device: int = field(compare=False)
    here: list[HeldSegment] = field(compare=False)
    rules: ShardRules = field(compare=False)
    shape: Shape = field(compare=False)


def _communicators(
    problem_of_kind: Problem, cells: StageCells, device: int, *, contributions: int, shape: Shape
) -> int:
    """Number of process groups of more than one device that a device belongs to.

    As `num_communicators` counts them.
    """
    length, island = (
        problem_of_kind.job.sequence_length,
        problem_of_kind.cluster.tiers()[0].num_devices,
    )
    main, expert = (
        cells.cells.get(product_class(cells), {}).get(device),
        cells.cells.get(OperatorClass.EXPERTS, {}).get(device),
    )
    routed = (
        expert is not None and on_replica(cells, device, length=length, island=island)[0].routed
    )
    groups = (
        parts_along(main, *WIDTHS),
        parts_along(main, Dim.SEQUENCE),
        contributions,
        parts_along(expert, Dim.EXPERTS),
        parts_along(expert, *WIDTHS) if routed else 1,
        shape.sets,
        len(shape.devices),
    )
    return sum(size > 1 for size in groups)


def _scale_group(group: ScaleGroup, stage: StageParts, device: int) -> DeviceList:
    """Devices of a stage that reduce FP8 amax values with `device`: those with its samples, or all.

    Those with its samples, or the whole stage.
    """
    cells = stage.segments[0].cells if stage.segments else None
    if group is ScaleGroup.STAGE or cells is None:
        return stage.devices
    replica_here = replica(cells, device - stage.base)
    base, tree = (
        stage.base + replica_here.first,
        replica_here.cells.cells.get(product_class(cells), {}),
    )
    own_cell = tree.get(device - base)
    if own_cell is None:
        return stage.devices
    return DeviceList.of(
        [d + base for d, cell in tree.items() if cell.way(Dim.BATCH) == own_cell.way(Dim.BATCH)]
    )


@lru_cache(maxsize=1024)
def synchronisation_of_device(summed: SynchronisedDevice) -> tuple[int, MeshTable]:
    """Effective ZeRO stage of a device, and its row of synchronisation costs (cached).

    The stage that its states amount to.
    """
    problem, stage, device, held_segments = summed.problem, summed.stage, summed.device, summed.here
    problem_of_kind, rules, shape = kind_problem(problem, device), summed.rules, summed.shape
    zero = effective_zero_stage(
        chain.from_iterable(p.held for p in held_segments),
        device=device,
        rules=rules,
        zero=rules.lanes[stage.lane].zero,
    )
    sync = device_sync_table(
        problem,
        [part.held for part in held_segments],
        device=device,
        segments=tuple(part.segment for part in held_segments),
        rules=rules,
        zero=zero,
    )
    groups = held_groups([part.held for part in held_segments])
    group = groups[0] if groups else EMPTY
    party = rules.sharing(ParameterClass.DENSE, group or DeviceList.run(device, 1)).party(device)
    network = network_of_devices(problem, party.devices)
    contributions = main_contributions([part.held for part in held_segments])
    local = device - stage.base
    groups_of = max(
        (
            _communicators(
                problem_of_kind, p.segment.cells, local, contributions=contributions, shape=shape
            )
            for p in held_segments
        ),
        default=0,
    )
    copies = copy_seconds(problem_of_kind, sync)
    runtime = problem_of_kind.runtime
    tables = np.array(
        [
            _table_elements(part.segment, local, problem_of_kind.job.sequence_length)
            for part in held_segments
        ],
        dtype=np.int64,
    )
    table = MeshTable(
        sync=sync,
        norm_s=_norm_seconds(Same(problem), shape.devices),
        communicator_bytes=communicator_bytes(
            problem_of_kind, np.array([groups_of], dtype=np.int64)
        ),
        slowdown=overlap_slowdown(problem_of_kind, group_span(party.devices, network), network),
        shares=np.stack(2 * [group_shares(problem, party.devices, shard=party.reduced)]),
        gather_copy_s=copies[0],
        regather_copy_s=copies[1],
        reduce_copy_s=copies[2],
        host_gradient_s=host_gradient_seconds(problem_of_kind, sync),
        scales_s=scale_seconds(
            problem_of_kind,
            lambda scales: (group_span(_scale_group(scales, stage, device), network),),
            network,
        ),
        gradient_bytes=gradient_pass_bytes(problem_of_kind, np.array([len(group)])),
        table_bytes=tables[:, None] * runtime.embedding_gradient_bytes,
    )
    return zero, without_free_parts(problem, table)


def _table_elements(segment: Segment, local: int, length: int) -> int:
    """Elements of the largest trained embedding or head on a stage's device `local`; 0 if none.

    Whichever of its stages holds the (tied) weight.
    """
    structure = CellStructure(stage=segment.cells, device=local, length=length)
    tables = [
        (o, p)
        for o in segment.block.operators
        for p in o.parameters
        if p.klass in TABLES and p.trainable
    ]
    return max(
        (
            prod(structure.part(e, o).times for e in p.extents)
            for o, p in tables
            if structure.runs(o)
        ),
        default=0,
    )


@lru_cache(maxsize=256)
def _norm_seconds(problem: Same[Problem], devices: DeviceList) -> FloatArray:
    """Seconds of the all-reduce of the gradient norm over all devices of the plan."""
    network = network_of_devices(problem.value, devices)
    return move_seconds(
        Collective.ALL_REDUCE,
        volume=np.full(1, 4.0),
        span=group_span(devices, network),
        network=network,
    )
