"""Origins of a plan's prices: measured table, fit or assumption behind each share of seconds."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import numpy as np

from shardwright.collectives.groups.span_members_by_network_tier import Span
from shardwright.cost.kernels.accelerator_rates import Machine, sixteen_bit_machine
from shardwright.cost.kernels.kernel_seconds_and_gemm_pieces_for_overlap import (
    cut_seconds,
    gemm_cut_for,
    gemm_shape,
    linear_gemms,
    unquantised_operators,
    work_seconds,
)
from shardwright.cost.kernels.measured_kernel_factors import (
    attention_table_for,
    gemm_grid_for,
    grouped_table_for,
)
from shardwright.cost.kernels.problem_accelerator_rates import problem_machine
from shardwright.cost.lower_model_blocks_under_structure import block_context
from shardwright.cost.network.exposed_and_hidden_seconds_of_block_collective import one_move_seconds
from shardwright.cost.network.grid_groups_and_collective_seconds import Network, measured_groups
from shardwright.cost.network.networks_of_plan_devices import (
    group_span,
    kind_problem,
    network_of_devices,
)
from shardwright.cost.reduce_problem_to_relevant_runtime_fields import block_problem
from shardwright.cost.tables.plan_block_costs import local_sizes
from shardwright.hardware.accelerator import Evidence, Origin
from shardwright.hardware.catalog.measured_gemm_attention_collective_tables import (
    SAME_DIE,
    TABLE_ORIGIN,
    inside_grid,
)
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.ir.block import Block
from shardwright.program.block.block_program import BlockWork, KernelKind, Move, Phase
from shardwright.program.block.lower_block import lower_block
from shardwright.program.block.operator_cuts_on_one_device_of_plan import on_replica
from shardwright.program.block.symbolic_sizes import Degrees
from shardwright.program.identity_cache_keys import Same
from shardwright.program.layout.device_cuts_in_placement_tree import StageCells
from shardwright.program.stages.stage_segments import Segment, StageParts
from shardwright.program.training_problem import Problem

FAMILIES: Final = ("GEMM", "experts' GEMM", "attention", "element-wise", "scan", "collectives")
_FAMILY: Final = {
    KernelKind.GEMM: "GEMM",
    KernelKind.GROUPED_GEMM: "experts' GEMM",
    KernelKind.ATTENTION: "attention",
    KernelKind.ELEMENT: "element-wise",
    KernelKind.SCAN: "scan",
}
_BANDWIDTH: Final = Origin(
    evidence=Evidence.ASSUMED, reference="bytes over a stated share of memory bandwidth"
)
_SCAN: Final = Origin(evidence=Evidence.ASSUMED, reference="a third of the GEMM rate")
_BACKWARD: Final = Origin(
    evidence=Evidence.ASSUMED,
    reference="a stated multiple of the forward kernel, which the tables lack",
)
_EXPERTS_BACKWARD: Final = Origin(
    evidence=Evidence.ASSUMED,
    reference="experts' backward as their forward, which alone was measured",
)
_ALPHA_BETA: Final = Origin(
    evidence=Evidence.FITTED, reference="alpha-beta of the cheapest algorithm"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedSeconds:
    """Seconds of one kernel family in one layer of a block, with one origin.

    F, I and W of one microbatch.

    Args:
        block: name.
        family: one of `FAMILIES`.
        seconds: of kernels, or of collectives, hidden or not.
        layers: number of layers.
    """

    block: str
    family: str
    origin: Origin
    seconds: float
    layers: int


def priced_seconds(
    problem: Problem, stages: tuple[tuple[StageParts, ...], ...]
) -> tuple[PricedSeconds, ...]:
    """Seconds of each device family's first device, by block, kernel family and price's origin.

    Of the first device of every family of `stages`; equal blocks are priced once.

    Their seconds are those of the block table.
    """
    counts: dict[tuple[int, int], list[tuple[Segment, int, int, int]]] = {}
    for stage in (stage for lane in stages for stage in lane):
        for family in stage.families:
            local = family[0] - stage.base
            for segment in stage.segments:
                counts.setdefault((id(segment.cells), id(segment.block)), []).append(
                    (segment, local, stage.base, segment.count)
                )
    records: list[PricedSeconds] = []
    for places in counts.values():
        segment, local, base, _ = places[0]
        problem_of_kind = kind_problem(problem, local + base)
        spent = _seconds_by_origin(
            Same(problem_of_kind), Same(problem), segment.cells, Same(segment.block), local, base
        )
        layers = sum(count for *_, count in places)
        records += [
            PricedSeconds(
                block=segment.block.name,
                family=family,
                origin=origin,
                seconds=seconds,
                layers=layers,
            )
            for (family, origin), seconds in spent.items()
        ]
    return tuple(records)


@lru_cache(maxsize=1024)
def _seconds_by_origin(
    kind: Same[Problem],
    keyed_problem: Same[Problem],
    cells: StageCells,
    keyed_block: Same[Block],
    local: int,
    base: int,
) -> dict[tuple[str, Origin], float]:
    """Seconds of one block on one device by kernel family and origin of the price (cached).

    Args:
        kind: the problem as if all devices were of this one's kind.
    """
    problem_of_kind, problem, block = kind.value, keyed_problem.value, keyed_block.value
    machine = problem_machine(problem_of_kind)
    sixteen, context = (
        sixteen_bit_machine(machine),
        block_context(block_problem(problem_of_kind, block), block),
    )
    structure, first_device = on_replica(
        cells, local, length=context.tokens, island=problem_of_kind.cluster.tiers()[0].num_devices
    )
    program = lower_block(block, structure, context)
    degrees = local_sizes(structure)
    spent: dict[tuple[str, Origin], float] = {}
    unquantised = unquantised_operators(program)
    for work in program.works:
        machine_of_operator = sixteen if work.operator in unquantised else machine
        key = (_FAMILY[work.kernel], _kernel_origin(work, degrees, machine_of_operator))
        spent[key] = spent.get(key, 0.0) + float(
            work_seconds(work, degrees, machine_of_operator)[0][0]
        )
    gemms = linear_gemms(program)
    for move in program.moves:
        group = tuple(d + first_device + base for d in move.group) or (local + base,)
        network = network_of_devices(problem, group)
        span = group_span(group, network)
        cut = gemm_cut_for(move, gemms)
        if cut is not None:
            machine_of_operator = sixteen if cut.operator in unquantised else machine
            key = (_FAMILY[cut.kernel], _kernel_origin(cut, degrees, machine_of_operator))
            spent[key] = spent.get(key, 0.0) + float(
                cut_seconds(cut, degrees, machine_of_operator, pieces=span.size)[0]
            )
        if int(span.size[0]) > 1:
            times = int(span.size[0]) - 1 if move.hops else 1
            key = ("collectives", _move_origin(move, span, network))
            spent[key] = spent.get(key, 0.0) + times * float(
                one_move_seconds(move, degrees, span, network)[0]
            )
    return spent


def _kernel_origin(work: BlockWork, degrees: Degrees, machine: Machine) -> Origin:
    """Origin of a kernel's price: measured table, fitted rates or an assumption."""
    if work.kernel is KernelKind.ELEMENT:
        return _BANDWIDTH
    if work.kernel is KernelKind.SCAN:
        return _SCAN
    if work.kernel is KernelKind.ATTENTION:
        return _attention_origin(work, machine)
    device, rates = machine.accelerator, machine.gemm
    (m, n, k), groups, experts = gemm_shape(work, degrees)
    if experts is not None:
        table = grouped_table_for(device, machine.compute, rates)
        if table is None or np.log2(float(experts[0][0])) > table.tokens[-1]:
            return rates.origin
        return _table_origin(device.name) if work.phase is Phase.F else _EXPERTS_BACKWARD
    grid = gemm_grid_for(device, machine.compute, rates)
    if grid is None or not isinstance(groups, int):
        return rates.origin
    inside = inside_grid(
        grid, m=m.astype(np.float64), n=n.astype(np.float64), k=k.astype(np.float64)
    )
    return _table_origin(device.name) if bool(inside[0]) else rates.origin


def _attention_origin(work: BlockWork, machine: Machine) -> Origin:
    """Origin of an attention kernel's price: measured table, fitted curve or an assumption."""
    assert work.attention is not None
    table = attention_table_for(machine.accelerator, machine.attention, work.attention)
    if table is None:
        return machine.attention.origin
    if work.phase is not Phase.F:
        return _BACKWARD
    if table.generation == machine.attention.generation:
        return _table_origin(machine.accelerator.name)
    reference = f"{machine.attention.generation} as {table.generation}, {TABLE_ORIGIN.reference}"
    return Origin(evidence=Evidence.ASSUMED, reference=reference)


def _table_origin(name: str) -> Origin:
    """Origin of the shipped tables for an accelerator.

    Those of another part of the same die are taken over, not measured.
    """
    if name in SAME_DIE:
        return Origin(
            evidence=Evidence.ASSUMED,
            reference=f"as {SAME_DIE[name]}, the same die; {TABLE_ORIGIN.reference}",
        )
    return TABLE_ORIGIN


def _move_origin(move: Move, span: Span, network: Network) -> Origin:
    """Origin of a collective's price: its measured curve, else the alpha-beta formula."""
    for curve in network.curves:
        if (
            curve.collective == move.kind.value
            and not move.copies
            and bool(measured_groups(span, curve)[0])
        ):
            return network.curve_origin
    return _ALPHA_BETA


@dataclass(frozen=True, slots=True, kw_only=True)
class OriginShares:
    """Share of one family's seconds that each origin gave, the largest first.

    Over all layers of the model.
    """

    family: str
    parts: tuple[tuple[float, Origin], ...]


def shares_by_origin(records: tuple[PricedSeconds, ...]) -> tuple[OriginShares, ...]:
    """Shares of each kernel family's seconds by origin of the price.

    Families without seconds are left out.
    """
    shares_of_families = []
    for family in FAMILIES:
        spent: dict[Origin, float] = {}
        for record in records:
            if record.family == family:
                spent[record.origin] = (
                    spent.get(record.origin, 0.0) + record.seconds * record.layers
                )
        total = sum(spent.values())
        if total > 0.0:
            parts = sorted(
                ((seconds / total, origin) for origin, seconds in spent.items()),
                key=lambda p: -p[0],
            )
            shares_of_families.append(OriginShares(family=family, parts=tuple(parts)))
    return tuple(shares_of_families)
