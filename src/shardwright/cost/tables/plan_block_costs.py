"""Seconds and bytes of one block on one device of a general plan.

From the same tables and terms as a grid's.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from itertools import zip_longest

import numpy as np

from shardwright.arrays import IntArray
from shardwright.collectives.groups.span_members_by_network_tier import Span
from shardwright.cost.buffers.nccl_and_overlap_buffers_and_device_context import (
    overlap_buffer_bytes,
)
from shardwright.cost.kernels.problem_accelerator_rates import problem_machine
from shardwright.cost.lower_model_blocks_under_structure import block_context
from shardwright.cost.network.grid_groups_and_collective_seconds import Network
from shardwright.cost.network.networks_of_plan_devices import (
    group_span,
    kind_problem,
    network_of_devices,
    plan_units,
)
from shardwright.cost.reduce_problem_to_relevant_runtime_fields import block_problem
from shardwright.cost.tables.apply_recompute_and_offload_policy import kept_variant
from shardwright.cost.tables.block_layer_mesh_table_classes import BlockTable
from shardwright.cost.tables.block_table import block_table
from shardwright.hardware.cluster_network_levels import repetition_devices
from shardwright.hardware.strided_device_list import DeviceList
from shardwright.model.ir.block import Block
from shardwright.model.ir.operator import OperatorClass
from shardwright.model.ir.tensor_dims import Dim
from shardwright.program.block.block_program import BlockProgram
from shardwright.program.block.lower_block import lower_block
from shardwright.program.block.operator_cuts_on_one_device_of_plan import CellStructure, on_replica
from shardwright.program.identity_cache_keys import Same
from shardwright.program.layout.device_cuts_in_placement_tree import (
    WIDTHS,
    StageCells,
    parts_along,
    product_class,
    regular_levels,
)
from shardwright.program.layout.equal_weighted_and_zigzag_cuts import indices
from shardwright.program.layout.stage_devices_that_share_samples import replica
from shardwright.program.layout.tensor_layout import count
from shardwright.program.stages.device_equivalence_traits import Grouping
from shardwright.program.stages.stage_segments import Segment, StageParts
from shardwright.program.training_problem import Problem
from shardwright.strategy.plan.stage_splits_and_policies import Keep


def blocking_groups(problem: Problem, stage: StageParts) -> Grouping | None:
    """By device of a stage: devices it joins in blocking collectives; None if families stay apart.

    That holds where trees are regular, and where a family's devices meet only each other. Two
    copies of an input that six devices read go from the first to two of them, and from the second
    to two others: these four hold as much and wait for different devices.
    """
    if len(stage.families) == 1 or all(
        replica(s.cells, stage.devices.first - stage.base).cells is not s.cells
        for s in stage.segments
    ):
        return None

    def met(device: int) -> list[int]:
        """Devices that blocking collectives of any block join with `device`, itself included."""
        tables = (
            block_on_device(problem, stage, segment, device, None) for segment in stage.segments
        )
        return sorted({device, *(d + stage.base for *_, joined in tables for d in joined)})

    crossing = [
        family
        for family in stage.families
        if len(family) > 1 and not set(family).issuperset(met(family[0]))
    ]
    groups = [met(device) for family in crossing for device in family]
    if not groups:
        return None
    rows = np.array(list(zip_longest(*groups, fillvalue=-1)), dtype=np.int64).T
    return Grouping.by(
        np.concatenate([family.array for family in crossing]),
        rows,
        np.arange(len(rows)).reshape(-1, 1),
    )


def divided_by_work(problem: Problem, stage: StageParts) -> StageParts:
    """Stage with its families divided so that devices of one family have blocks of equal cost.

    Where one class of operators lies on fewer devices than another, devices that hold as much may
    still send or sum unlike parts: of five devices that read tensors of which six hold a third
    each, some find both copies of a part among themselves and some do not.
    """
    if len(stage.families) == stage.devices.size or True not in [
        _is_uneven(s.cells) for s in stage.segments
    ]:
        return stage
    families: list[DeviceList] = []
    for family in stage.families:
        # Equal prices of blocks are one object.
        parts: dict[tuple[int, ...], list[int]] = {}
        for device in family:
            priced = tuple(
                id(block_on_device(problem, stage, segment, device, None)[0])
                for segment in stage.segments
            )
            parts.setdefault(priced, []).append(device)
        families += map(DeviceList.of, parts.values())
    return (
        replace(stage, families=tuple(families)) if len(families) > len(stage.families) else stage
    )


@lru_cache(maxsize=4096)
def _is_uneven(cells: StageCells) -> bool:
    """True if operator classes are on unequal numbers of devices, or a split tree is irregular.

    A tree is irregular where it is not cut the same way everywhere.
    """
    sizes = {len(tree) for tree in cells.cells.values() if tree}
    return len(sizes) > 1 or any(
        regular_levels(cells.splits.get(klass)) is None
        for klass, tree in cells.cells.items()
        if tree
    )


def block_on_device(
    problem: Problem, stage: StageParts, segment: Segment, device: int, cut: tuple[int, ...] | None
) -> tuple[BlockTable, int, tuple[int, ...]]:
    """Costs of a block on a device, overlap buffer bytes, devices it waits for (from stage's base).

    Buffers of tensor-parallel overlap; devices that blocking collectives join with this one,
    counted from the stage's first.

    Args:
        cut: tokens of each slice up to this one; None where a sequence is whole.
    """
    unit = network_unit(problem)
    place = device - stage.base, stage.base % unit if unit else stage.base
    reduced_problem = block_problem(problem, segment.block)
    return _row_on_device(
        Same(reduced_problem), Same(segment.block), segment.cells, segment.keeps, place, cut
    )


def local_sizes(structure: CellStructure) -> dict[str, IntArray]:
    """Local ``mbs``, ``ring`` and ``positions`` to evaluate a block's sizes with on a device.

    All others are numbers already (see `block_table`).
    """
    core = structure.cell(OperatorClass.CORE) or structure.cell(product_class(structure.stage))
    ring = parts_along(core, Dim.SEQUENCE)
    samples = (
        count(indices(core.way(Dim.BATCH), structure.stage.samples))
        if core is not None
        else structure.stage.samples
    )
    sizes = {"mbs": max(samples, 1), "ring": ring, "positions": -(-structure.length // ring)}
    return {name: np.array([value], dtype=np.int64) for name, value in sizes.items()}


def network_unit(problem: Problem) -> int:
    """Number of devices after which the network's structure repeats; 0 if it never repeats."""
    return repetition_devices(plan_units(problem))


@lru_cache(maxsize=4096)
def _row_on_device(
    keyed_problem: Same[Problem],
    keyed_block: Same[Block],
    cells: StageCells,
    keeps: tuple[Keep, ...],
    place: tuple[int, int],
    cut: tuple[int, ...] | None,
) -> tuple[BlockTable, int, tuple[int, ...]]:
    """Table row of a block on a device, overlap buffer bytes, and devices to wait for (cached).

    Devices are counted from the stage's first.

    Equal blocks of a stage, and of stages that are alike, are priced once.

    Args:
        place: the device, counted from the stage's first, and that one's place in the network.
    """
    problem, block, (local, base) = keyed_problem.value, keyed_block.value, place
    problem_of_kind = kind_problem(problem, base + local)
    context = block_context(problem_of_kind, block)
    if cut is not None:
        context = replace(context, tokens=cut[-1], before=cut[:-1])
    structure, first_device = on_replica(
        cells, local, length=context.tokens, island=problem_of_kind.cluster.tiers()[0].num_devices
    )
    program = lower_block(block, structure, context)
    local_to = local_sizes(structure)
    joined = {d + first_device for move in program.moves for d in move.group}
    network = network_of_devices(problem, tuple(sorted(d + base for d in joined | {local})))
    number_of_span: dict[Span, int] = {}
    moves = []
    for move in program.moves:
        span = group_span(
            tuple(d + first_device + base for d in move.group) or (local + base,), network
        )
        moves.append(replace(move, group=(number_of_span.setdefault(span, len(number_of_span)),)))
    table = _priced_row(
        Same(problem_of_kind),
        network,
        replace(program, moves=tuple(moves)),
        tuple(number_of_span),
        tuple((k, int(v[0])) for k, v in local_to.items()),
        keeps,
    )
    products = product_class(cells)
    buffers = overlap_buffer_bytes(
        problem_of_kind,
        tokens=np.array(
            [
                structure.tokens(
                    products, cut[-1] if cut is not None else problem_of_kind.job.sequence_length
                ).times
            ],
            dtype=np.int64,
        ),
        stream_cut=np.array(
            [structure.sequence_parallel and parts_along(structure.cell(products), *WIDTHS) > 1]
        ),
    )
    return table, int(buffers[0]), tuple(joined)


@lru_cache(maxsize=4096)
def _priced_row(
    keyed_problem: Same[Problem],
    network: Network,
    program: BlockProgram,
    spans: tuple[Span, ...],
    local: tuple[tuple[str, int], ...],
    keeps: tuple[Keep, ...],
) -> BlockTable:
    """Table row of a block whose moves name their groups by span number (cached).

    Devices that have as much and whose groups lie the same way share the row.
    """
    problem, degrees = (
        keyed_problem.value,
        {name: np.array([value], dtype=np.int64) for name, value in local},
    )
    table = block_table(
        program,
        local=degrees,
        spans=lambda move: (spans[move.group[0]],),
        machine=problem_machine(problem),
        network=network,
        runtime=problem.runtime,
        wait_s=problem.constants.collective_wait_s,
        host_rate=problem.cluster.node.host.pcie.achieved,
    )
    return kept_variant(table, program, keeps, degrees=degrees, problem=problem)
