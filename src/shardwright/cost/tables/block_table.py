"""The block table: one structure of a block, priced for all degrees at once.

Every tier of bounds and the simulation compose rows of this table; nobody prices an operator or a
collective again.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import inf
from typing import Any

import numpy as np

from shardwright.arrays import FloatArray, IntArray
from shardwright.collectives.groups.tier_counts import Span
from shardwright.cost.buffers.activation_offload import (
    checkpoint_seconds,
    host_bytes,
    waited_for_host,
)
from shardwright.cost.buffers.dispatcher_buffers import dispatch_buffers
from shardwright.cost.degree_columns import Rows
from shardwright.cost.kernels.kernel_seconds import Machine
from shardwright.cost.kernels.launch_overhead import HostClock, PairedLayer
from shardwright.cost.network.exposed_communication import lying_seconds, move_cost, on_own_kernels
from shardwright.cost.network.gemm_overlap import products_yield
from shardwright.cost.network.grid_groups import Network
from shardwright.cost.tables.block_compute import BlockSums, Variant, block_sums
from shardwright.cost.tables.selective_recompute import moved_again
from shardwright.cost.time_parts import ACROSS, ELEMENT, EP, GEMM, LAUNCH, PART_OF_AXIS, PHASES
from shardwright.lazy_dataclass import dataclass
from shardwright.program.block.block import BlockProgram, Move, Phase
from shardwright.program.block.local_size import is_hybrid
from shardwright.program.block.sizes import Degrees
from shardwright.runtime.runtime import Runtime, TpOverlap


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockTable:
    """A block's row for each of n degree rows.

    Args:
        seconds: shape (phases, parts, n): F, I, W and what recompute adds, by part.
        saved_bytes: shape (modes, n): what one microbatch keeps on the device from F to backward
            under none, selective, full recompute, and where all of it waits in host memory:
            nothing.
        host_bytes: shape (modes, n): what it keeps in host memory meanwhile.
        transient_bytes: shape (n,): the largest set alive inside one layer's backward after a full
            recompute.
        flops: shape (n,): FLOPs of forward GEMMs, attention (under the mask) and scans on one
            device.
        overlappable: shape (n,): seconds of communication that compute hides, forward and backward.
        buffer_bytes: shape (2, n): see `option_memory.dispatch_buffers`.
        output_bytes: shape (n,): the block's output on one device as it crosses a pipeline border.
    """

    block: str
    seconds: FloatArray
    saved_bytes: IntArray
    host_bytes: IntArray
    transient_bytes: IntArray
    flops: FloatArray
    overlappable: FloatArray
    buffer_bytes: IntArray
    output_bytes: IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockTables:
    """A block's rows under several variants: a `BlockTable` with an axis of v variants before the
    rows where they differ.

    Args:
        seconds: (phases, parts, v, n).
        saved_bytes, host_bytes: (modes, v, n).
        flops, overlappable, output_bytes: (n,).
        buffer_bytes: (2, n).
    """

    seconds: FloatArray
    saved_bytes: IntArray
    host_bytes: IntArray
    flops: FloatArray
    overlappable: FloatArray
    buffer_bytes: IntArray
    output_bytes: IntArray


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
    """Price `program` for every row; see `block_tables`."""
    one = ((program.saved, runtime),)
    common: dict[str, Any] = {
        "machine": machine,
        "network": network,
        "wait_s": wait_s,
        "host_rate": host_rate,
    }
    found = block_tables(program, one, local=local, spans=spans, **common)
    return BlockTable(
        block=program.block,
        seconds=found.seconds[:, :, 0],
        saved_bytes=found.saved_bytes[:, 0],
        host_bytes=found.host_bytes[:, 0],
        transient_bytes=found.saved_bytes[0, 0],
        flops=found.flops,
        overlappable=found.overlappable,
        buffer_bytes=found.buffer_bytes,
        output_bytes=found.output_bytes,
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
) -> BlockTables:
    """Price a block for every row under runtimes that differ in the modules that run again in
    backward (`program.block.rebuilt`).

    Args:
        program: of which the kernels and moves are the same under all.
        local: what its sizes are evaluated with, (n,) each: ``mbs`` samples, ``positions`` and
            ``ring`` (see `local_degrees`), and the degrees of the axes that symbolic sizes name.
        spans: how the (n,) groups of each move lie, or all ways in which they may: the cheapest is
            priced.
        wait_s: see `Constants.collective_wait_s`.
        host_rate: bytes/s between the device and host memory.
        sums: of the kernels, if they are there.
        moved: seconds of a move, as `lying_seconds` has them.
    """
    runtime, n = variants[0][1], np.shape(local["mbs"])[0]
    sums = sums or block_sums(
        program, variants, local, machine=machine, members=lambda move: spans(move)[0].size
    )
    moved = moved or partial(lying_seconds, degrees=local, spans=spans, network=network)
    seconds, again, clock, pair = sums.seconds, sums.again, sums.clock, sums.pair
    overlappable = np.zeros(n)
    beside = (
        sums.by_operator
        if runtime.tp_overlap is not TpOverlap.DGRAD or products_yield(machine.accelerator.name)
        else {}
    )
    again_moved, redone = moved_again(program, runtime), program.has_backward
    for move in program.moves:
        held, size = wait_s if on_own_kernels(move, runtime) else 0.0, spans(move)[0].size
        shown, hidden = move_cost(
            move,
            moved(move),
            size,
            wait_s=held,
            by_operator=sums.by_operator,
            yielding=beside,
            core=sums.core,
        )
        overlappable += hidden
        phase, part = move.phase, PART_OF_AXIS[move.axes[0]]
        seconds[PHASES.index(phase), part] += shown
        if part == EP:
            pair.move(phase, shown, behind=move.behind)
        else:
            pair.kernel(move.operator, phase, shown)
        if move.axes[0] not in ACROSS or not runtime.expert_overlap:
            clock.move(move, phase, shown, hidden=hidden)
        if phase is Phase.F:
            again[part, [move.operator in some for some in sums.names]] += shown
            if redone and again_moved(move):
                seconds[3, part] += shown
    overlappable += _wait_for_host(seconds, clock, pair if runtime.expert_overlap else None)
    seconds[3, ELEMENT] += waited_for_host(
        host_bytes(program, local), rate=host_rate, seconds=seconds
    )
    parked = checkpoint_seconds(program, local, rate=host_rate)
    island = network.domain
    return BlockTables(
        seconds=_with_modules(seconds, again, sums.stops, parked, redone=redone),
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
    seconds: FloatArray, again: FloatArray, stops: FloatArray, parked: FloatArray, *, redone: bool
) -> FloatArray:
    """(phases, parts, v, n) `seconds` where modules run again in backward, under checkpoints of
    their own in layers that are not recomputed whole.

    Args:
        again: (parts, v, n) seconds of kernels and exposed moves of the modules.
        stops: what a checkpoint of a whole layer leaves out.
        parked: what it waits for its input in host memory.
        redone: it has a backward, for which a whole layer could run again.
    """
    found = np.repeat(seconds[:, :, None], again.shape[1], axis=2)
    found[1] += again
    if not redone:
        return found
    found[4] = found[0] - again
    found[4, GEMM] = found[4, GEMM] - stops
    found[4, ELEMENT] = found[4, ELEMENT] + parked
    return found


def local_degrees(rows: Rows, *, sequence: int) -> dict[str, IntArray]:
    """What the symbolic sizes of a block are evaluated with: degrees, and ``positions``, tokens of
    a sample on one member of a ring.

    Args:
        sequence: tokens of a sample of the block's sequence (unsplit), for unfused attention's
            matrices.
    """
    local = rows.degrees()
    local["positions"] = -(-sequence // local["ring"])
    return local


def _wait_for_host(seconds: FloatArray, clock: HostClock, pair: PairedLayer | None) -> FloatArray:
    """Add what launches are late, and hide expert traffic behind another microbatch's kernels where
    there is a `pair`; what was hidden.
    """
    seconds[0, LAUNCH], seconds[1, LAUNCH] = clock.exposed()
    if pair is None:
        return np.zeros(seconds.shape[2])
    moved = seconds[:3, EP].sum(axis=0)
    left = pair.exposed(late=seconds[:2, LAUNCH].sum(axis=0))
    seconds[:3, EP] *= left / np.maximum(moved, 1e-30)
    return np.asarray(moved - left)
