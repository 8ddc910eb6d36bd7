"""Seconds of one kernel of a block, and of GEMMs cut into pieces to overlap communication."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from shardwright.arrays import FloatArray, IntArray
from shardwright.cost.kernels.accelerator_rates import Machine
from shardwright.cost.kernels.gemm_element_attention_seconds import (
    attention_flops,
    attention_seconds,
    element_seconds,
    gemm_seconds,
)
from shardwright.cost.kernels.quantization_passes import seconds_with_casts
from shardwright.cost.kernels.state_space_scan import scan_flops, scan_seconds
from shardwright.cost.part_phase_recompute_keys import ATTENTION, ELEMENT, GEMM, PARTS
from shardwright.program.block.block_program import (
    BlockProgram,
    BlockWork,
    Exposure,
    KernelKind,
    Move,
    Phase,
)
from shardwright.program.block.operators_quantised_by_recipe import stays_wide
from shardwright.program.block.symbolic_sizes import Degrees, evaluate, evaluate_sum

PART_OF_KERNEL: Final = {
    KernelKind.GEMM: GEMM,
    KernelKind.GROUPED_GEMM: GEMM,
    KernelKind.ELEMENT: ELEMENT,
    KernelKind.ATTENTION: ATTENTION,
    KernelKind.SCAN: ATTENTION,
}
"""Number of the part of the step's seconds to which a kernel belongs."""
EXPERT_STREAMS = 4
"""Streams that experts' GEMMs are launched on, one launch an expert.

Source: Transformer Engine, multi-stream cuBLAS GEMM (num_streams; from memory).
"""


def unquantised_operators(program: BlockProgram) -> frozenset[str]:
    """Names of operators whose GEMMs stay in 16 bits under every recipe."""
    return frozenset(o.name for o in program.operators if stays_wide(o))


def work_seconds(
    work: BlockWork, degrees: Degrees, machine: Machine
) -> tuple[FloatArray, FloatArray]:
    """(n,) seconds and FLOPs of one kernel of a block on one device; 0 s of a part that is free."""
    n_rows = np.shape(degrees["mbs"])[0]
    if work.kernel is KernelKind.ELEMENT:
        traffic = np.zeros(n_rows)
        for size in (*work.read, *work.written):
            traffic = traffic + evaluate(size, degrees)
        spent = element_seconds(
            machine, traffic=traffic, native=work.native, one_pass=work.one_pass, by_row=work.by_row
        )
        spent = spent + work.further * machine.accelerator.launch_s
        if work.apart and work.groups is not None:
            spent = spent + (evaluate(work.groups, degrees) - 1) * machine.accelerator.launch_s
        seconds, flops = spent, np.zeros(n_rows)
    elif work.kernel is KernelKind.ATTENTION:
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
        seconds = spent
        flops = attention_flops(work.attention, tokens=tokens, heads=heads, context=work.context)
    elif work.kernel is KernelKind.SCAN:
        assert work.scan is not None
        assert work.tokens is not None
        assert work.heads is not None
        tokens, heads = evaluate(work.tokens, degrees), evaluate(work.heads, degrees)
        seconds = scan_seconds(
            machine, work.scan, tokens=tokens, heads=heads, backward=work.phase is not Phase.F
        )
        flops = scan_flops(work.scan, tokens=tokens, heads=heads)
    else:
        seconds, flops = _gemm(work, degrees, machine)
    if machine.free_parts and PARTS[PART_OF_KERNEL[work.kernel]] in machine.free_parts:
        seconds = np.zeros_like(seconds)
    return seconds, flops


def gemm_shape(
    work: BlockWork, degrees: Degrees
) -> tuple[tuple[IntArray, IntArray, IntArray], IntArray | int, tuple[IntArray, IntArray] | None]:
    """(m, n, k) of a GEMM in its phase, number of equal GEMMs, (tokens, side) of experts or None.

    Expert extents: (tokens of one expert, smaller side of its matrix); None for other GEMMs.
    """
    assert work.m is not None
    assert work.k is not None
    m, n, k = evaluate(work.m, degrees), evaluate_sum(work.n, degrees), evaluate(work.k, degrees)
    groups: IntArray | int = evaluate(work.groups, degrees) if work.groups is not None else 1
    experts = (m, np.minimum(n, k)) if work.kernel is KernelKind.GROUPED_GEMM else None
    if work.phase is Phase.I and work.attention is None:
        return (m, k, n), groups, experts
    if work.phase is Phase.W:
        return (n, k, m), groups, experts
    return (m, n, k), groups, experts


def _gemm(work: BlockWork, degrees: Degrees, machine: Machine) -> tuple[FloatArray, FloatArray]:
    """(n,) seconds and FLOPs of one GEMM of a block, with the casts of its recipe."""
    (m, n, k), groups, experts = gemm_shape(work, degrees)
    flops = np.asarray(2.0 * m * n * k * groups, dtype=np.float64)
    extra = np.asarray(8.0 * m * n * groups, dtype=np.float64) if work.accumulate else 0.0
    launches = -(-groups // EXPERT_STREAMS) if work.apart else 1
    widths = _contiguous_sides(work, m, n, k)
    spent = gemm_seconds(
        machine,
        m=m,
        n=n,
        k=k,
        groups=groups,
        launches=launches,
        extra_bytes=extra,
        experts=experts,
        widths=widths,
    )
    if machine.compute.bits < machine.half_bits:
        tokens, outputs, inputs = gemm_shape(replace(work, phase=Phase.F), degrees)[0]
        members = degrees[work.gathered[0]] if work.gathered[0] in degrees else work.gathered[1]
        casts = groups if work.apart else 1
        spent = seconds_with_casts(
            machine,
            spent,
            phase=work.phase,
            m=tokens,
            n=outputs,
            k=inputs,
            groups=groups,
            members=members,
            casts=casts,
        )
    return spent, flops


def _contiguous_sides(
    work: BlockWork, m: IntArray, n: IntArray, k: IntArray
) -> tuple[IntArray, IntArray]:
    """The two of a GEMM's extents m, n, k in its phase that are not its number of tokens.

    All its matrices are contiguous along them.
    """
    return (m, n) if work.phase is Phase.W else (n, k)


def linear_gemms(program: BlockProgram) -> dict[tuple[str, Phase], BlockWork]:
    """GEMMs of a block's linear operators, without adapters', by (operator, phase)."""
    return {
        (w.operator, w.phase): w
        for w in program.works
        if w.kernel is KernelKind.GEMM and w.attention is None and not w.adapter
    }


def gemm_cut_for(move: Move, gemms: Mapping[tuple[str, Phase], BlockWork]) -> BlockWork | None:
    """The GEMM that is cut into pieces to overlap `move`; None if no GEMM is."""
    return (
        gemms.get((move.beside or move.operator, move.phase))
        if move.exposure is Exposure.BESIDE_GEMM
        else None
    )


def cut_seconds(
    work: BlockWork, degrees: Degrees, machine: Machine, *, pieces: IntArray
) -> FloatArray:
    """Seconds added to a GEMM by cutting its tokens into `pieces`: slower GEMMs and launches.

    Quantised once for all pieces: the others cost a 16-bit GEMM's launch.
    """
    (m, n, k), groups, experts = gemm_shape(work, degrees)
    if PARTS[GEMM] in machine.free_parts:
        return np.zeros(np.shape(m))
    widths = _contiguous_sides(work, m, n, k)
    uncut_s = gemm_seconds(machine, m=m, n=n, k=k, groups=groups, experts=experts, widths=widths)
    piece_s = gemm_seconds(
        machine, m=-(-m // pieces), n=n, k=k, groups=groups, experts=experts, widths=widths
    )
    more_s = pieces * (piece_s - machine.gemm.overhead_s) - (uncut_s - machine.gemm.overhead_s)
    return np.asarray(
        np.maximum(more_s, 0.0) + (pieces - 1) * machine.half.overhead_s, dtype=np.float64
    )


def piece_sum_seconds(
    move: Move, degrees: Degrees, machine: Machine, *, pieces: IntArray
) -> FloatArray:
    """Seconds of the kernel that sums a reduce-scatter's `pieces` side by side; 0 for one."""
    volume = np.asarray(sum(evaluate(size, degrees) for size in move.volume), dtype=np.float64)
    if PARTS[ELEMENT] in machine.free_parts:
        return np.zeros_like(volume)
    spent = element_seconds(machine, traffic=volume * (1.0 + 1.0 / pieces), one_pass=True)
    return np.where(pieces > 1, spent, 0.0)
