"""Seconds and FLOPs of one GEMM, element-wise or attention kernel from its local shape.

Arrays in, arrays out.

Rates come from the accelerator (measured or fitted tables, or stated defaults); nothing here is
fitted.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from shardwright.arrays import FloatArray, IntArray
from shardwright.cost.kernels.accelerator_rates import Machine
from shardwright.cost.kernels.measured_kernel_factors import (
    attention_table_for,
    gemm_grid_for,
    grouped_table_for,
    head_factor,
    roofline_seconds,
    tile_padding,
)
from shardwright.cost.kernels.tile_quantization import unaligned, wave_padding
from shardwright.hardware.accelerator import Evidence
from shardwright.hardware.catalog.measured_gemm_attention_collective_tables import (
    attention_fraction,
    gemm_correction,
    grouped_correction,
)
from shardwright.hardware.catalog.multiprocessors_and_gemm_tiles import MULTIPROCESSORS
from shardwright.model.ir.operator import AttentionShape, Mask

ROW_KERNEL_RATE = 3.0e12
"""Bytes/s of Triton kernels that run one program a row, at most: they issue too few loads to fill a
faster memory.

Source: Transformer Engine's cross-entropy on B200, 0.2795 of 8 TB (binary) a second at 8 bytes a
logit, for 16 to 128 thousand logits a row (MooreThreads/SimuMax,
configs/system/b200_bf16_ceperm.json, ce_fusion): 2.40e12 x 10 / 8 for the 10 bytes that its code
moves. The same file's permute and unpermute (permute_fwd) take 0.37 to 0.49 ms together for 4096
tokens of 5120 on 6 experts each; by this rate 0.45. Leaves out how it grows with the number and
clock of multiprocessors; slower memories than this are the limit themselves.
"""

BACKWARD_FLOPS = 2.5
"""FLOPs of fused attention's backward over its forward: five products of the scores' size instead
of two."""


def gemm_seconds(
    machine: Machine,
    *,
    m: IntArray,
    n: IntArray,
    k: IntArray,
    groups: IntArray | int = 1,
    launches: IntArray | int = 1,
    extra_bytes: FloatArray | float = 0.0,
    experts: tuple[IntArray, IntArray] | None = None,
    widths: tuple[IntArray, IntArray] | None = None,
) -> FloatArray:
    """(r,) seconds of `groups` equal GEMMs: a roofline with launches, corrected by measurements.

    (roofline x sustained + launches x t0) x c; c = measured over roofline seconds, 1 without a
    table.

        roofline = ((2mnk p / (ec P))^q + (bytes / (em BW))^q)^(1/q)

    p: multiplications that there is time for over those needed: whole tiles (`tile_padding`), and
    waves of them where neither a table nor a fit, which has their mean, is of this device
    (`tile_quantization.wave_padding`); more for unaligned operands (`tile_quantization.unaligned`).
    c is read in the measured grid for one GEMM; for experts in their own table, without the
    launches; not for other batched GEMMs.

    Args:
        m, n, k: elements, shape (r,).
        launches: number of times the overhead is paid, one after another.
        extra_bytes: read-modify-write of an fp32 accumulator in the epilogue (8 bytes an element).
        experts: (tokens of an expert, smaller side of its matrix) where the groups are experts.
        widths: the sides that the matrices are contiguous along; None = n and k.

    Bytes are one pass over both inputs and the output in the compute dtype (16-bit output). The
    sustained clock multiplies the bytes' share too, which it should not: short GEMMs of serving are
    priced without that (`cost.inference.engine_gemm_seconds.fitted_seconds`). Under the constants
    as fitted, multiplying the FLOPs alone takes 912 published rows from a mean error of 7.3 to 7.4
    % (T4 8.8 to 9.3, SimuMax's B200 4.0 to 4.5), so it waits for constants fitted under it. Source:
    four-number roofline and grids from public kernel tables, see docs/kernels.md; the q-norm joins
    epilogue traffic to the GEMM.
    """
    rates = machine.gemm
    fm, fn, fk = m.astype(np.float64), n.astype(np.float64), k.astype(np.float64)
    bytes_per_element = machine.compute.bits / 8
    joined = roofline_seconds(
        rates,
        peak=machine.peak,
        bandwidth=machine.accelerator.memory_bandwidth,
        width=bytes_per_element,
        m=fm,
        n=fn,
        k=fk,
        groups=groups,
        extra_bytes=extra_bytes,
        padding=_padding(machine, m=fm, n=fn, k=fk, groups=groups)
        * unaligned(machine.accelerator.name, widths or (n, k), element_bytes=bytes_per_element),
    )
    start = launches * rates.overhead_s
    if experts is not None:
        table = grouped_table_for(machine.accelerator, machine.compute, rates)
        if table is not None:
            tokens, width = (side.astype(np.float64) for side in experts)
            joined = joined * grouped_correction(table, tokens=tokens, width=width)
        return joined * rates.sustained + start
    grid = (
        gemm_grid_for(machine.accelerator, machine.compute, rates)
        if isinstance(groups, int) and groups == 1
        else None
    )
    seconds = joined * rates.sustained + start
    return seconds if grid is None else seconds * gemm_correction(grid, m=fm, n=fn, k=fk)


_KNOWN_ON_AVERAGE: Final = (Evidence.MEASURED, Evidence.FITTED)


def _padding(
    machine: Machine, *, m: FloatArray, n: FloatArray, k: FloatArray, groups: IntArray | int
) -> FloatArray:
    """Multiplications that whole tiles (or waves of tiles) do, as a ratio to those needed."""
    device, rates = machine.accelerator, machine.gemm
    parts = MULTIPROCESSORS.get(device.name)
    if (
        parts is None
        or not parts.waves
        or rates.origin.evidence in _KNOWN_ON_AVERAGE
        or gemm_grid_for(device, machine.compute, rates) is not None
    ):
        return tile_padding(m=m, n=n, k=k)
    intensity = (
        machine.peak
        * rates.compute_efficiency
        / (2.0 * device.memory_bandwidth * rates.memory_efficiency)
    )
    return wave_padding(
        parts,
        m=m,
        n=n,
        k=k,
        groups=np.asarray(groups, dtype=np.float64),
        element_bytes=machine.compute.bits / 8,
        intensity=intensity,
    )


def element_seconds(
    machine: Machine,
    *,
    traffic: FloatArray,
    native: bool = False,
    one_pass: bool = False,
    by_row: bool = False,
) -> FloatArray:
    """Seconds of an element-wise kernel: `traffic` bytes x passes / achieved bandwidth, + launch.

    traffic x passes / (achieved bandwidth) + launch.

    Args:
        native: every framework has one kernel for it, eager or not.
        one_pass: it is one kernel that moves exactly these bytes: passes = 1.
        by_row: it is a Triton kernel of one program a row: at most `ROW_KERNEL_RATE`.
    """
    device = machine.accelerator
    passes = 1.0 if one_pass else machine.native_passes if native else machine.passes
    rate = device.element_efficiency * device.memory_bandwidth
    return traffic * passes / (min(rate, ROW_KERNEL_RATE) if by_row else rate) + device.launch_s


def visible_keys(shape: AttentionShape, context: int) -> float:
    """Mean number of keys that a query attends to under the mask, window and selection.

    (context + 1) / 2 under a causal mask, at most the window.
    """
    if shape.mask is Mask.FULL or shape.cross:
        keys = float(context)
    else:
        keys = (context + 1) / 2
    if shape.window and shape.window < context:
        w = shape.window
        keys = (
            min(keys, w - w * (w - 1) / (2 * context))
            if shape.mask is Mask.CAUSAL
            else float(min(w, context))
        )
    if shape.selected and shape.selected < context:
        s = shape.selected
        keys = min(keys, s - s * (s - 1) / (2 * context))
    return keys


def attention_flops(
    shape: AttentionShape, *, tokens: IntArray, heads: IntArray, context: int, causal: bool = True
) -> FloatArray:
    """Forward FLOPs of attention's core under the mask, or of the full square if not `causal`.

    2 x tokens x heads x keys x (head_dim + value_dim).
    """
    keys = visible_keys(shape, context) if causal else float(context)
    return np.asarray(
        2.0 * tokens * heads * keys * (shape.head_dim + shape.value_dim), dtype=np.float64
    )


def attention_seconds(
    machine: Machine,
    shape: AttentionShape,
    *,
    tokens: IntArray,
    heads: IntArray,
    context: int,
    parts: IntArray | None = None,
    backward: bool,
) -> FloatArray:
    """Seconds of a layer's attention pass, its context in `parts` kernels (None: 1), with launch.

    FLOPs under the mask / (fraction x peak) x clock + launch a part; backward is `backward_ratio`
    times the forward.

    The fraction is read at the length of the keys that a query sees at most in one kernel: in the
    device's measured table of the kernel's generation, by head dims and by heads x sequences; else
    on the generation's curve, scaled for head dims (`head_factor`).

        clock = max(1, sustained (fraction / reach / ec)^(1/3))

    a kernel that keeps the matrix units as busy as a large GEMM (fraction = ec of its 16-bit rates)
    runs at the GEMM's sustained clock; dynamic power grows with the busy share and the cube of the
    clock, so one that keeps them less busy lowers its clock less.

    Args:
        parts: members of a ring that pass keys round, one kernel for each part; None = all keys in
            one kernel.

    A kernel whose rates hold in long runs has clock 1; one whose backward was measured for the head
    dims takes 2.5 FLOPs / (that x peak).

    Leaves out: joining the partial outputs of a ring; backward of other head dims, elsewhere than
    measured (its ratio is one number).
    """
    flops = attention_flops(shape, tokens=tokens, heads=heads, context=context)
    kernels = np.ones_like(tokens) if parts is None else parts
    length = np.minimum(
        -(-context // kernels), min(shape.window or context, shape.selected or context)
    )
    parallel = np.asarray(heads * np.maximum(tokens / length, 1.0), dtype=np.float64)
    fraction = _attention_fraction(machine, shape, length=length.astype(np.float64), heads=parallel)
    busy = fraction / machine.attention.reach
    clock = np.maximum(
        machine.half.sustained * np.cbrt(busy / machine.half.compute_efficiency), 1.0
    )
    if machine.attention.long_run:
        clock = np.ones_like(fraction)
    seconds = flops / (fraction * machine.attention_peak) * clock * machine.attention_seconds
    if backward:
        measured = next(
            (
                f
                for d, v, f in machine.attention.backward
                if (d, v) == (shape.head_dim, shape.value_dim)
            ),
            0.0,
        )
        ratio = machine.attention.backward_ratio
        seconds = (
            BACKWARD_FLOPS * flops / (measured * machine.attention_peak)
            if measured
            else seconds * ratio
        )
    return np.asarray(seconds + kernels * machine.accelerator.launch_s, dtype=np.float64)


def _attention_fraction(
    machine: Machine, shape: AttentionShape, *, length: FloatArray, heads: FloatArray
) -> FloatArray:
    """(n,) fraction of peak that fused attention reaches, measured or on a generation's curve."""
    table = attention_table_for(machine.accelerator, machine.attention, shape)
    if table is not None:
        return attention_fraction(table, length=length, heads=heads)
    points = machine.attention.forward
    curve = np.interp(
        np.log2(np.maximum(length, 1)), [np.log2(p[0]) for p in points], [p[1] for p in points]
    )
    return np.minimum(
        curve * head_factor(machine.accelerator, shape, length=length, heads=heads), 1.0
    )
