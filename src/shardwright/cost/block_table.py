"""The block table: one structure of a block, priced for all degrees at once.

Every tier of bounds and the simulation compose rows of this table; nobody prices an operator or a collective again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import Any, TypeAlias

import numpy as np

from shardwright.arrays import FloatArray, IntArray
from shardwright.collectives.algorithm import Collective
from shardwright.collectives.span import Span
from shardwright.cost.communication import Network, dispatch_seconds, move_seconds
from shardwright.cost.compute import (
    Machine,
    attention_flops,
    attention_seconds,
    element_seconds,
    gemm_seconds,
    sixteen_bit,
)
from shardwright.cost.degree_rows import Rows
from shardwright.cost.host import HostClock, PairedLayer
from shardwright.cost.host_copies import checkpoint_seconds, host_bytes, waited_for_host
from shardwright.cost.option_memory import dispatch_buffers
from shardwright.cost.overlap import products_yield
from shardwright.cost.quantise import with_casts
from shardwright.cost.redone import moved_again, redone_share
from shardwright.cost.scan import scan_flops, scan_seconds
from shardwright.program.block.block import BlockProgram, BlockWork, Exposure, Kernel, Move, Phase, Recomputable, Saved
from shardwright.program.block.local_size import is_hybrid
from shardwright.program.block.narrow import stays_wide
from shardwright.program.block.rebuilt import rebuilt
from shardwright.program.block.sizes import Degrees, Size, evaluate, evaluate_sum
from shardwright.runtime.runtime import ExpertDispatch, FullRecompute, Runtime, TpOverlap

PARTS = ("gemm", "attention", "element", "launch", "tp", "cp", "ep")
"""What the seconds of a phase are made of: kernels by family, launches, and exposed communication by axis."""
GEMM, ATTENTION, ELEMENT, LAUNCH, TP, CP, EP = range(len(PARTS))
PHASES = ("F", "I", "W", "R_selective", "R_full")
PART_OF_AXIS = {"tp": TP, "etp": EP, "ep": EP, "coset": EP, "ring": CP, "ulysses": CP}
_ACROSS = ("ep", "coset")
"""Axes along which tokens travel to experts."""
MODES = ("none", "selective", "full", "host")
EXPERT_STREAMS = 4
"""Streams that experts' GEMMs are launched on, one launch an expert.

Source: Transformer Engine, multi-stream cuBLAS GEMM (num_streams; from memory).
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockTable:
    """A block's row for each of n degree rows.

    Args:
        seconds: shape (phases, parts, n): F, I, W and what recompute adds, by part.
        saved_bytes: shape (modes, n): what one microbatch keeps on the device from F to backward under none, selective, full recompute,
            and where all of it waits in host memory: nothing.
        transient_bytes: shape (n,): the largest set alive inside one layer's backward after a full recompute.
        flops: shape (n,): FLOPs of forward GEMMs, attention (under the mask) and scans on one device.
        overlappable: shape (n,): seconds of communication that compute hides, forward and backward.
        buffer_bytes: shape (2, n): see `option_memory.dispatch_buffers`.
        input_bytes: shape (n,): the block's input on one device as it crosses a pipeline border.
    """

    block: str
    seconds: FloatArray
    saved_bytes: IntArray
    transient_bytes: IntArray
    flops: FloatArray
    overlappable: FloatArray
    buffer_bytes: IntArray
    input_bytes: IntArray


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
    common: dict[str, Any] = {"machine": machine, "network": network, "wait_s": wait_s, "host_rate": host_rate}
    return block_tables(program, one, local=local, spans=spans, **common)[0]


Variant: TypeAlias = tuple[tuple[Saved, ...], Runtime]
"""What a block saves under a runtime, and the runtime."""


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
) -> tuple[BlockTable, ...]:
    """Price a block for every row under runtimes that differ in the modules that run again in backward (`program.block.rebuilt`).

    Args:
        program: of which the kernels and moves are the same under all.
        local: what its sizes are evaluated with, (n,) each: ``mbs`` samples, ``positions`` and ``ring`` (see `local_degrees`), and the
            degrees of the axes that symbolic sizes name. spans: how the (n,) groups of each move lie, or all ways in which they may: the
            cheapest is priced. wait_s: see `Constants.collective_wait_s`. host_rate: bytes/s between the device and host memory.
    """
    runtime = variants[0][1]
    n = np.shape(local["mbs"])[0]
    seconds = np.zeros((len(PHASES), len(PARTS), n))
    flops = np.zeros(n)
    core = {Phase.F: np.zeros(n), Phase.I: np.zeros(n)}
    by_operator: dict[tuple[str, Phase], FloatArray] = {}
    sixteen, unquantised = sixteen_bit(machine), unquantised_operators(program)
    clock = HostClock(program, local, machine=machine, runtime=runtime)
    pair = PairedLayer(program, rows=n)
    once_more: list[tuple[str, int, FloatArray]] = []
    for work in program.works:
        spent, count = work_seconds(work, local, sixteen if work.operator in unquantised else machine)
        clock.kernel(work, spent)
        pair.kernel(work.operator, work.phase, spent)
        part = {Kernel.ELEMENT: ELEMENT, Kernel.ATTENTION: ATTENTION, Kernel.SCAN: ATTENTION}.get(work.kernel, GEMM)
        seconds[_phase(work.phase), part] += spent
        if work.phase is Phase.F:
            flops += count
            once_more.append((work.operator, part, spent))
            seconds[3, part] += spent * redone_share(program, work, local, runtime)
        if work.attention is not None:
            core[work.phase] += spent
        if work.one_pass:
            # A collective that ran beside the operator's GEMMs is waited for before.
            continue
        key = (work.operator, work.phase)
        by_operator[key] = by_operator.get(key, np.zeros(n)) + spent
    overlappable = np.zeros(n)
    gemms = products(program)
    beside = by_operator if runtime.tp_overlap is not TpOverlap.DGRAD or products_yield(machine.accelerator.name) else {}
    again_moved = moved_again(program, runtime)
    for move in program.moves:
        held = wait_s if _on_own_kernels(move, runtime) else 0.0
        lying = spans(move)
        exposed, hidden = _move_cost(move, held, local, lying, network, by_operator, beside, core)
        overlappable += hidden
        cut = cut_product(move, gemms)
        if cut is not None:
            own = sixteen if cut.operator in unquantised else machine
            seconds[_phase(move.phase), GEMM] += cut_seconds(cut, local, own, pieces=lying[0].size)
            if runtime.tp_overlap is TpOverlap.ASYNC and move.kind is Collective.REDUCE_SCATTER:
                seconds[_phase(move.phase), ELEMENT] += summed_seconds(move, local, machine, pieces=lying[0].size)
        for phase, axis_seconds in exposed:
            seconds[_phase(phase), PART_OF_AXIS[move.axes[0]]] += axis_seconds
            if PART_OF_AXIS[move.axes[0]] == EP:
                pair.move(phase, axis_seconds, behind=move.behind)
            else:
                pair.kernel(move.operator, phase, axis_seconds)
            if move.axes[0] not in _ACROSS or not runtime.expert_overlap:
                clock.move(move, phase, axis_seconds, hidden=hidden)
            if phase is Phase.F and again_moved(move):
                seconds[3, PART_OF_AXIS[move.axes[0]]] += axis_seconds
            if phase is Phase.F:
                once_more.append((move.operator, PART_OF_AXIS[move.axes[0]], axis_seconds))
    overlappable += _wait_for_host(seconds, clock, pair if runtime.expert_overlap else None)
    stops = np.zeros(n)
    if runtime.full_recompute is FullRecompute.STOPS_EARLY:
        last = next((w.operator for w in reversed(program.works) if w.kernel is Kernel.GEMM and w.phase is Phase.F), "")
        stops = by_operator.get((last, Phase.F), stops)
    seconds[3, ELEMENT] += waited_for_host(host_bytes(program, local), rate=host_rate, seconds=seconds)
    parked = checkpoint_seconds(program, local, rate=host_rate)
    island = network.domain
    buffers = dispatch_buffers(program, local, spans=spans, island=island, hybrid=is_hybrid(runtime, island=island))
    tables: list[BlockTable] = []
    volumes: dict[str, tuple[Size, IntArray]] = {}
    for tensors, under in variants:
        saved = _saved_bytes(tensors, local, volumes)
        table = BlockTable(
            block=program.block,
            seconds=_with_modules(seconds, once_more, rebuilt(program.operators, under).again, stops, parked),
            saved_bytes=saved,
            transient_bytes=saved[0],
            flops=flops,
            overlappable=overlappable,
            buffer_bytes=buffers,
            input_bytes=evaluate(program.input_volume, local),
        )
        tables.append(table)
    return tuple(tables)


def _with_modules(
    seconds: FloatArray, forward: list[tuple[str, int, FloatArray]], again: frozenset[str], stops: FloatArray, parked: FloatArray
) -> FloatArray:
    """`seconds` where modules run again in backward, under checkpoints of their own in layers that are not recomputed whole.

    Args:
        forward: (operator, part, seconds) of each kernel and exposed move. again: operators that run again. stops: what a checkpoint of a
            whole layer leaves out. parked: what it waits for its input in host memory.
    """
    found, redone = seconds.copy(), np.zeros(seconds.shape[1:])
    for operator, part, spent in forward:
        if operator in again:
            redone[part] += spent
    found[1] += redone
    found[4] = found[0] - redone
    found[4, GEMM] = found[4, GEMM] - stops
    found[4, ELEMENT] = found[4, ELEMENT] + parked
    return found


def local_degrees(rows: Rows, *, sequence: int) -> dict[str, IntArray]:
    """What the symbolic sizes of a block are evaluated with: degrees, and ``positions``, tokens of a sample on one member of a ring.

    Args:
        sequence: tokens of a sample of the block's sequence (unsplit), for unfused attention's matrices.
    """
    local = rows.degrees()
    local["positions"] = -(-sequence // local["ring"])
    return local


def unquantised_operators(program: BlockProgram) -> frozenset[str]:
    """Operators whose products stay in 16 bits whatever the recipe."""
    return frozenset(o.name for o in program.operators if stays_wide(o))


def _wait_for_host(seconds: FloatArray, clock: HostClock, pair: PairedLayer | None) -> FloatArray:
    """Add what launches are late, and hide expert traffic behind another microbatch's kernels where there is a `pair`; what was hidden."""
    seconds[0, LAUNCH], seconds[1, LAUNCH] = clock.exposed()
    if pair is None:
        return np.zeros(seconds.shape[2])
    moved = seconds[:3, EP].sum(axis=0)
    left = pair.exposed(late=seconds[:2, LAUNCH].sum(axis=0))
    seconds[:3, EP] *= left / np.maximum(moved, 1e-30)
    return np.asarray(moved - left)


def _on_own_kernels(move: Move, runtime: Runtime) -> bool:
    """The move is a collective of the library on its own kernels inside a layer, which all members of a group wait for.

    Tensor parallelism's, and those of all tokens or of every routed copy that no other microbatch's kernels run beside.
    """
    if move.axes[0] in _ACROSS:
        return runtime.expert_dispatch is not ExpertDispatch.DEDUPLICATED and not runtime.expert_overlap
    fused = runtime.tp_overlap in (TpOverlap.FUSED, TpOverlap.ASYNC) and move.exposure is not Exposure.BLOCKING
    return move.axes[0] in ("tp", "ulysses") and not fused


def _phase(phase: Phase) -> int:
    return PHASES.index(phase)


def work_seconds(work: BlockWork, degrees: Degrees, machine: Machine) -> tuple[FloatArray, FloatArray]:
    """Seconds and FLOPs of one kernel."""
    n_rows = np.shape(degrees["mbs"])[0]
    if work.kernel is Kernel.ELEMENT:
        traffic = np.zeros(n_rows)
        for size in (*work.read, *work.written):
            traffic = traffic + evaluate(size, degrees)
        spent = element_seconds(machine, traffic=traffic, native=work.native, one_pass=work.one_pass, by_row=work.by_row)
        spent = spent + work.further * machine.accelerator.launch_s
        if work.apart and work.groups is not None:
            spent = spent + (evaluate(work.groups, degrees) - 1) * machine.accelerator.launch_s
        return spent, np.zeros(n_rows)
    if work.kernel is Kernel.ATTENTION:
        assert work.attention is not None
        assert work.tokens is not None
        assert work.heads is not None
        tokens, heads = evaluate(work.tokens, degrees), evaluate(work.heads, degrees)
        spent = attention_seconds(
            machine,
            work.attention,
            tokens=tokens,
            heads=heads,
            context=work.context,
            parts=degrees["ring"] if work.passed else None,
            backward=work.phase is not Phase.F,
        )
        return spent, attention_flops(work.attention, tokens=tokens, heads=heads, context=work.context)
    if work.kernel is Kernel.SCAN:
        assert work.scan is not None
        assert work.tokens is not None
        assert work.heads is not None
        tokens, heads = evaluate(work.tokens, degrees), evaluate(work.heads, degrees)
        return (
            scan_seconds(machine, work.scan, tokens=tokens, heads=heads, backward=work.phase is not Phase.F),
            scan_flops(work.scan, tokens=tokens, heads=heads),
        )
    return _gemm(work, degrees, machine)


def gemm_shape(
    work: BlockWork, degrees: Degrees
) -> tuple[tuple[IntArray, IntArray, IntArray], IntArray | int, tuple[IntArray, IntArray] | None]:
    """(m, n, k) as the phase computes it, the number of equal GEMMs, and for experts (tokens of one, smaller side of its matrix)."""
    assert work.m is not None
    assert work.k is not None
    m, n, k = evaluate(work.m, degrees), evaluate_sum(work.n, degrees), evaluate(work.k, degrees)
    groups: IntArray | int = evaluate(work.groups, degrees) if work.groups is not None else 1
    experts = (m, np.minimum(n, k)) if work.kernel is Kernel.GROUPED_GEMM else None
    if work.phase is Phase.I and work.attention is None:
        return (m, k, n), groups, experts
    if work.phase is Phase.W:
        return (n, k, m), groups, experts
    return (m, n, k), groups, experts


def _gemm(work: BlockWork, degrees: Degrees, machine: Machine) -> tuple[FloatArray, FloatArray]:
    (m, n, k), groups, experts = gemm_shape(work, degrees)
    flops = np.asarray(2.0 * m * n * k * groups, dtype=np.float64)
    extra = np.asarray(8.0 * m * n * groups, dtype=np.float64) if work.accumulate else 0.0
    launches = -(-groups // EXPERT_STREAMS) if work.apart else 1
    widths = _widths(work, m, n, k)
    spent = gemm_seconds(machine, m=m, n=n, k=k, groups=groups, launches=launches, extra_bytes=extra, experts=experts, widths=widths)
    if machine.compute.bits < machine.half_bits:
        tokens, outputs, inputs = gemm_shape(replace(work, phase=Phase.F), degrees)[0]
        members = degrees[work.gathered[0]] if work.gathered[0] in degrees else work.gathered[1]
        spent = with_casts(machine, spent, phase=work.phase, m=tokens, n=outputs, k=inputs, groups=groups, members=members)
    return spent, flops


def _widths(work: BlockWork, m: IntArray, n: IntArray, k: IntArray) -> tuple[IntArray, IntArray]:
    """The sides of a GEMM that are not its tokens: what all its matrices are contiguous along."""
    return (m, n) if work.phase is Phase.W else (n, k)


def products(program: BlockProgram) -> dict[tuple[str, Phase], BlockWork]:
    """The linear operators' GEMMs by operator and phase."""
    return {(w.operator, w.phase): w for w in program.works if w.kernel is Kernel.GEMM and w.attention is None and not w.adapter}


def cut_product(move: Move, gemms: Mapping[tuple[str, Phase], BlockWork]) -> BlockWork | None:
    """The GEMM that is cut into pieces to meet `move`; None if none is."""
    return gemms.get((move.beside or move.operator, move.phase)) if move.exposure is Exposure.BESIDE_GEMM else None


def cut_seconds(work: BlockWork, degrees: Degrees, machine: Machine, *, pieces: IntArray) -> FloatArray:
    """What a GEMM takes longer in pieces along its tokens, one for each member of the group: slower products, and launches.

    Quantised once for all pieces: the others cost a 16-bit product's launch.
    """
    (m, n, k), groups, experts = gemm_shape(work, degrees)
    widths = _widths(work, m, n, k)
    whole = gemm_seconds(machine, m=m, n=n, k=k, groups=groups, experts=experts, widths=widths)
    part = gemm_seconds(machine, m=-(-m // pieces), n=n, k=k, groups=groups, experts=experts, widths=widths)
    slower = pieces * (part - machine.gemm.overhead_s) - (whole - machine.gemm.overhead_s)
    return np.asarray(np.maximum(slower, 0.0) + (pieces - 1) * machine.half.overhead_s, dtype=np.float64)


def summed_seconds(move: Move, degrees: Degrees, machine: Machine, *, pieces: IntArray) -> FloatArray:
    """The kernel that sums the pieces which a copying reduce_scatter laid side by side: reads them all, writes one; 0 for one piece."""
    volume = np.asarray(sum(evaluate(size, degrees) for size in move.volume), dtype=np.float64)
    spent = element_seconds(machine, traffic=volume * (1.0 + 1.0 / pieces), one_pass=True)
    return np.where(pieces > 1, spent, 0.0)


def one_move_seconds(move: Move, degrees: Degrees, span: Span, network: Network) -> FloatArray:
    """Seconds of a move over the groups of `span`, once, whether hidden or not."""
    volume = np.zeros(len(span.size))
    for size in move.volume:
        volume = volume + evaluate(size, degrees)
    if move.copies:
        return dispatch_seconds(volume=volume, copies=move.copies, span=span, groups=move.groups)
    return move_seconds(move.kind, volume=volume, span=span, network=network)


def _move_cost(
    move: Move,
    wait_s: float,
    degrees: Degrees,
    spans: tuple[Span, ...],
    network: Network,
    by_operator: dict[tuple[str, Phase], FloatArray],
    yielding: dict[tuple[str, Phase], FloatArray],
    core: dict[Phase, FloatArray],
) -> tuple[list[tuple[Phase, FloatArray]], FloatArray]:
    """(phase, exposed seconds) of a move, and its hidden seconds.

    Args:
        wait_s: what a collective between a step's kernels takes beyond a test of its own, for each doubling of members.
        by_operator: seconds of kernels that are cut into pieces for it; yielding: of those that only leave it multiprocessors.
    """
    size = spans[0].size
    seconds = one_move_seconds(move, degrees, spans[0], network)
    for span in spans[1:]:
        seconds = np.minimum(seconds, one_move_seconds(move, degrees, span, network))
    if not move.copies:
        seconds = seconds + wait_s * np.log2(size)
    if move.hops:
        hops = size - 1
        beside = core[move.phase] / np.maximum(hops + 1, 1)
        exposed = hops * np.maximum(seconds - beside, 0.0)
        return [(move.phase, np.asarray(exposed, dtype=np.float64))], hops * seconds - exposed
    if move.exposure is Exposure.BLOCKING:
        return [(move.phase, np.asarray(seconds, dtype=np.float64))], np.zeros_like(seconds)
    if move.exposure in (Exposure.BESIDE_WEIGHT_GRADIENT, Exposure.BESIDE_INPUT_GRADIENT):
        other = Phase.W if move.exposure is Exposure.BESIDE_WEIGHT_GRADIENT else Phase.I
        beside = yielding.get((move.beside or move.operator, other), np.zeros_like(seconds))
        exposed = np.maximum(seconds - beside, 0.0)
    else:
        beside = by_operator.get((move.beside or move.operator, move.phase), np.zeros_like(seconds))
        pieces = np.maximum(size, 1)
        # A member's own part of a gathered tensor is there at once; the last part that is reduced has no product beside it.
        least = 0.0 if move.kind is Collective.ALL_GATHER else seconds / pieces
        exposed = np.maximum(least, seconds - beside)
    shown: FloatArray = np.minimum(exposed, seconds)
    return [(move.phase, shown)], seconds - shown


def _saved_bytes(tensors: tuple[Saved, ...], degrees: Degrees, volumes: dict[str, tuple[Size, IntArray]]) -> IntArray:
    """(modes, n) bytes; `volumes` holds what was evaluated by now."""
    n = np.shape(degrees["mbs"])[0]
    result = np.zeros((len(MODES), n), dtype=np.int64)
    for saved in tensors:
        size, volume = volumes.get(saved.tensor, (None, None))
        if volume is None or size != saved.volume:
            volume = evaluate(saved.volume, degrees)
            volumes[saved.tensor] = saved.volume, volume
        if saved.dropped is not Recomputable.NONE_AND_FULL:
            result[0] += volume
        if saved.dropped is not Recomputable.SELECTIVE and not saved.host:
            result[1] += volume
        if saved.dropped is Recomputable.NEVER and saved.parked is None:
            result[2] += volume
    return result
