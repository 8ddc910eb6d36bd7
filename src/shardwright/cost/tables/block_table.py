"""Block table: seconds and bytes of one structure of a block, for all degrees at once.

Every tier of bounds and the simulation compose rows of this table; no other module prices an
operator or a collective.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import inf
from typing import Any

import numpy as np

from shardwright.arrays import FloatArray, IntArray
from shardwright.collectives.groups.span_members_by_network_tier import Span
from shardwright.cost.buffers.activation_offload_bytes_and_waits import (
    checkpoint_seconds,
    host_bytes,
    waited_for_host,
)
from shardwright.cost.buffers.dispatcher_buffers import dispatch_buffers
from shardwright.cost.kernels.accelerator_rates import Machine
from shardwright.cost.kernels.launch_overhead import HostClock, PairedLayer
from shardwright.cost.network.exposed_and_hidden_seconds_of_block_collective import (
    gemms_yield_multiprocessors,
    least_move_seconds,
    move_cost,
    on_own_kernels,
)
from shardwright.cost.network.grid_groups_and_collective_seconds import Network
from shardwright.cost.parallel_degree_columns import DegreeRows
from shardwright.cost.part_phase_recompute_keys import (
    ACROSS,
    ELEMENT,
    EP,
    GEMM,
    LAUNCH,
    PART_OF_AXIS,
    PARTS,
    PHASES,
)
from shardwright.cost.tables.block_kernel_sums import BlockSums, Variant, block_sums
from shardwright.cost.tables.block_layer_mesh_table_classes import BlockTable, BlockVariantTable
from shardwright.cost.tables.share_of_block_work_rerun_by_selective_recompute import repeats_move
from shardwright.program.block.block_program import BlockProgram, Move, Phase
from shardwright.program.block.local_token_and_tensor_sizes import is_hybrid
from shardwright.program.block.symbolic_sizes import Degrees
from shardwright.runtime.framework_description import Runtime
from shardwright.runtime.kernel_overlap_recompute_scaling_kinds import TpOverlap


def block_table(
    program: BlockProgram,
    *,
    local: Degrees,
    spans: Callable[[Move], tuple[Span, ...]],
    machine: Machine,
    network: Network,
    runtime: Runtime,
    wait_s: float = 0.0,
    host_rate: float = inf,
) -> BlockTable:
    """Seconds and bytes of one lowered block for every row of degrees, under one runtime."""
    single_variant = ((program.saved, runtime),)
    common: dict[str, Any] = {
        "machine": machine,
        "network": network,
        "wait_s": wait_s,
        "host_rate": host_rate,
    }
    tables = block_tables(program, single_variant, local=local, spans=spans, **common)
    return BlockTable(
        block=program.block,
        seconds=tables.seconds[:, :, 0],
        saved_bytes=tables.saved_bytes[:, 0],
        host_bytes=tables.host_bytes[:, 0],
        transient_bytes=tables.saved_bytes[0, 0],
        flops=tables.flops,
        overlappable=tables.overlappable,
        buffer_bytes=tables.buffer_bytes,
        output_bytes=tables.output_bytes,
    )


def block_tables(
    program: BlockProgram,
    variants: tuple[Variant, ...],
    *,
    local: Degrees,
    spans: Callable[[Move], tuple[Span, ...]],
    machine: Machine,
    network: Network,
    wait_s: float = 0.0,
    host_rate: float = inf,
    sums: BlockSums | None = None,
    moved: Callable[[Move], FloatArray] | None = None,
) -> BlockVariantTable:
    """Seconds and bytes of a block for every row, under each variant of recomputed modules.

    Runtimes differ in the modules that run again in backward (`recomputed_operators`).

    Args:
        program: its kernels and moves are the same under all variants.
        local: values with which its sizes are evaluated, (n,) each: ``mbs`` samples, ``positions``
            and ``ring`` (see `local_degrees`), and the degrees of the axes that symbolic sizes
            name.
        spans: how the (n,) groups of each move lie, or all ways in which they may: the cheapest is
            priced.
        wait_s: see `Constants.collective_wait_s`.
        host_rate: bytes/s between the device and host memory.
        sums: of the kernels, if they are known.
        moved: seconds of a move, as `least_move_seconds` has them.
    """
    runtime, n = variants[0][1], np.shape(local["mbs"])[0]
    sums = sums or block_sums(
        program, variants, local, machine=machine, members=lambda move: spans(move)[0].size
    )
    moved = moved or partial(least_move_seconds, degrees=local, spans=spans, network=network)
    seconds, run_again, clock, pair = sums.seconds, sums.again, sums.clock, sums.pair
    overlappable = np.zeros(n)
    yielding_kernels = (
        sums.by_operator
        if runtime.tp_overlap is not TpOverlap.DGRAD
        or gemms_yield_multiprocessors(machine.accelerator.name)
        else {}
    )
    moves_again, recomputes = repeats_move(program, runtime), program.has_backward
    for move in program.moves:
        phase, part = move.phase, PART_OF_AXIS[move.axes[0]]
        free, size = PARTS[part] in machine.free_parts, spans(move)[0].size
        wait = wait_s if on_own_kernels(move, runtime) and not free else 0.0
        exposed, hidden = move_cost(
            move,
            np.zeros(n) if free else moved(move),
            size,
            wait_s=wait,
            by_operator=sums.by_operator,
            yielding=yielding_kernels,
            core=sums.core,
        )
        overlappable += hidden
        seconds[PHASES.index(phase), part] += exposed
        if part == EP:
            pair.move(phase, exposed, behind=move.behind)
        else:
            pair.kernel(move.operator, phase, exposed)
        if move.axes[0] not in ACROSS or not runtime.expert_overlap:
            clock.move(move, phase, exposed, hidden=hidden)
        if phase is Phase.F:
            run_again[part, [move.operator in names for names in sums.names]] += exposed
            if recomputes and moves_again(move):
                seconds[3, part] += exposed
    overlappable += _wait_for_host(
        seconds,
        clock,
        pair if runtime.expert_overlap else None,
        launches_free=PARTS[LAUNCH] in machine.free_parts,
    )
    seconds[3, ELEMENT] += waited_for_host(
        host_bytes(program, local), rate=host_rate, seconds=seconds
    )
    parked = checkpoint_seconds(program, local, rate=host_rate)
    island = network.domain
    seconds = _with_modules(seconds, run_again, sums.stops, parked, recomputes=recomputes)
    if "recompute" in machine.free_parts:
        seconds[[PHASES.index("R_selective"), PHASES.index("R_full")]] = 0.0
    return BlockVariantTable(
        seconds=seconds,
        saved_bytes=sums.saved_bytes,
        host_bytes=sums.host_bytes,
        flops=sums.flops,
        overlappable=overlappable,
        buffer_bytes=dispatch_buffers(
            program, local, spans=spans, island=island, hybrid=is_hybrid(runtime, island=island)
        ),
        output_bytes=sums.output_bytes,
    )


def _with_modules(
    seconds: FloatArray,
    run_again: FloatArray,
    stops: FloatArray,
    parked: FloatArray,
    *,
    recomputes: bool,
) -> FloatArray:
    """(phases, parts, v, n) `seconds` plus each variant's recomputed modules, and full recompute.

    Modules run again under checkpoints of their own in layers that are not recomputed whole.

    `run_again`: (parts, v, n) seconds of kernels and exposed moves of the modules. `stops`: seconds
    that a checkpoint of a whole layer leaves out. `parked`: seconds that the layer waits for its
    input in host memory. `recomputes`: the block has a backward, for which a whole layer could run
    again.
    """
    seconds_of_variants = np.repeat(seconds[:, :, None], run_again.shape[1], axis=2)
    seconds_of_variants[1] += run_again
    if not recomputes:
        return seconds_of_variants
    seconds_of_variants[4] = seconds_of_variants[0] - run_again
    seconds_of_variants[4, GEMM] = seconds_of_variants[4, GEMM] - stops
    seconds_of_variants[4, ELEMENT] = seconds_of_variants[4, ELEMENT] + parked
    return seconds_of_variants


def local_degrees(rows: DegreeRows, *, sequence: int) -> dict[str, IntArray]:
    """Columns of sizes that a block's symbolic sizes name: degrees, `mbs`, and `positions`.

    Degrees, and ``positions``, tokens of a sample on one member of a ring.

    Args:
        sequence: tokens of a sample of the block's sequence (unsplit), for unfused attention's
            matrices.
    """
    local = rows.degrees()
    local["positions"] = -(-sequence // local["ring"])
    return local


def _wait_for_host(
    seconds: FloatArray, clock: HostClock, pair: PairedLayer | None, *, launches_free: bool
) -> FloatArray:
    """Set launch waits and hide a pair's expert traffic in `seconds`; return hidden seconds."""
    if not launches_free:
        seconds[0, LAUNCH], seconds[1, LAUNCH] = clock.exposed()
    if pair is None:
        return np.zeros(seconds.shape[2])
    moved = seconds[:3, EP].sum(axis=0)
    exposed_s = pair.exposed(late=seconds[:2, LAUNCH].sum(axis=0))
    seconds[:3, EP] *= exposed_s / np.maximum(moved, 1e-30)
    return np.asarray(moved - exposed_s)
