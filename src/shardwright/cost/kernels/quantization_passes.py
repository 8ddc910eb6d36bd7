"""Device seconds of quantising GEMM operands to 8 or 4 bits, by recipe.

Passes over the operands, copies, scales.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from shardwright.arrays import FloatArray, IntArray
from shardwright.cost.kernels.accelerator_rates import Machine
from shardwright.hardware.catalog.fitted_training_constants import family_of
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.program.block.block_program import Phase
from shardwright.program.block.operators_quantised_by_recipe import is_scaled_by_block, scaled_width
from shardwright.runtime.kernel_overlap_recompute_scaling_kinds import Scaling

WIDE: Final = 2.0
"""Bytes of an element before it is quantised."""
CURRENT_KERNELS: Final = 3
"""Kernels that quantise an operand under one scale a tensor of its own: largest magnitude, scale,
cast with its transpose.

Source: Transformer Engine, pytorch/csrc/quantizer.cpp (`Float8CurrentScalingQuantizer`; from
memory).
"""
NVFP4_KERNELS: Final = 3
"""Magnitudes with those of the Hadamard transform, cast, cast of the transform:
pytorch/csrc/quantizer.cpp (`quantize_impl`, read)."""


COMPILED_TRANSPOSE: Final = 2.2 / 1.4
"""Seconds of a compiler's kernel that casts and writes along the other direction than it reads,
over those of its other casts.

Source: pytorch/pytorch#133242: 1.4 TB/s for the cast and transpose of a linear operator's gradient
on H100, 2.2 for the others.
"""


COMPILED_REDUCTION: Final = 2.1 / 0.65
"""Seconds of a compiler's kernel that finds magnitudes along the other direction and writes, over
those of one along the rows.

Source: pytorch/pytorch#149982: 0.6 to 0.7 TB/s on H100, bytes read and written once, against 2.0 to
2.2.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """Memory traffic of quantising a linear operator's operands, in bytes for each element.

    Args:
        cast: bytes that quantising reads and writes, but for a transposed copy of one form.
        copy, late_copy: further bytes of that copy in the same kernel, and behind a gather (0 =
            none is needed).
        again: of the input before the weight gradient, where it is kept wide.
        gradient_again: of the output's gradient there.
        product: of the outputs of backward's GEMMs.
        kernels: kernels that quantise one operand.
        included: bytes that rates of GEMMs include already, of the left operand: short kernels were
            measured with its cast (docs/kernels.md), and rates without a table follow them.
    """

    cast: float
    copy: float
    late_copy: float
    again: float
    gradient_again: float
    product: float
    kernels: int
    included: float


def quantised_bytes(machine: Machine) -> float:
    """Bytes of a quantised element, with the element's part of the scales."""
    return scaled_width(machine.scaling, machine.compute.bits)


def needs_transposes(machine: Machine) -> bool:
    """True if 8-bit backward GEMMs need transposed operands: on every accelerator but Blackwell.

    They take both operands along the sum only.

    Source: Transformer Engine, pytorch/utils.py (`is_non_tn_fp8_gemm_supported`, read): compute
    capabilities 10 and 11 take any layout. Other vendors' units are taken for Hopper's (assumed).
    """
    return family_of(machine.accelerator.name) != "blackwell"


def quantised_copies(machine: Machine) -> int:
    """Quantised copies of a GEMM operand: 2 if scaled by block or transposes are needed, else 1.

    Two where scales or layouts differ.
    """
    return (
        2
        if is_scaled_by_block(machine.scaling, machine.compute.bits) or needs_transposes(machine)
        else 1
    )


def recipe_passes(machine: Machine) -> Passes:
    """Bytes an element and kernel counts of casts and transposes under a machine's number recipe.

    w: bytes of a quantised element.

    One scale a tensor: one reading, current scaling a second one before; a transposed copy where
    GEMMs need one. MX and blockwise: both forms from one reading. NVFP4: three readings (magnitudes
    of the operand and of its Hadamard transform, cast, cast of the transform along the tokens).
    Rowwise (torchao): a compiled kernel finds a row again in cache, and is slow along the tokens;
    backward's GEMMs are those of one scale a tensor, multiplied by both scales afterwards. Runtimes
    that keep inputs wide quantise them again for the weight gradient.

    Leaves out: quantised weights (once a step; once a pass under ZeRO-3: `weight_bytes`), norms
    that write 8 bits themselves (Transformer Engine under delayed and MX scaling), the layout in
    which the matrix units want scales.

    Source: Transformer Engine, docs/features/low_precision_training at 41f6cbf17263, and
    pytorch/csrc/quantizer.cpp at ad3f651f1dad; torchao, float8/float8_linear.py at 024fe94fd86a
    (`manual_float8_matmul_with_args_in_hp`) and float8/float8_python_api.py
    (`addmm_float8_unwrapped`); all read.
    """
    narrow, keeps_quantised = quantised_bytes(machine), machine.saves_quantised
    slower = 1.0 if keeps_quantised else COMPILED_TRANSPOSE
    fields = {
        "kernels": 1,
        "copy": 0.0,
        "late_copy": 0.0,
        "again": 0.0,
        "gradient_again": 0.0,
        "product": 0.0,
        "included": WIDE + narrow,
    }
    if machine.compute.bits == 4:
        fields |= {"cast": 3 * WIDE + 2 * narrow, "kernels": NVFP4_KERNELS}
    elif machine.scaling is Scaling.ROWWISE:
        along = COMPILED_REDUCTION * (WIDE + narrow)
        fields |= {
            "cast": WIDE + narrow,
            "again": along,
            "gradient_again": along,
            "product": 2 * WIDE,
        }
    elif is_scaled_by_block(machine.scaling, machine.compute.bits):
        fields |= {"cast": WIDE + 2 * narrow}
    else:
        current = machine.scaling is Scaling.CURRENT
        fields |= {
            "cast": WIDE * (1 + current) + narrow,
            "kernels": CURRENT_KERNELS if current else 1,
        }
        if needs_transposes(machine):
            cast_and_copy = slower * (WIDE + 2 * narrow)
            fields |= {"copy": cast_and_copy - (WIDE + narrow), "late_copy": slower * 2 * narrow}
        fields |= {"again": 0.0 if keeps_quantised else WIDE * current + slower * (WIDE + narrow)}
    if not keeps_quantised and not fields["again"]:
        fields["again"] = fields["cast"]
    return Passes(**fields)  # type: ignore[arg-type]


def quantise_kernels(machine: Machine) -> int:
    """Number of kernels that quantise one operand."""
    return recipe_passes(machine).kernels


def joins_operands(machine: Machine) -> bool:
    """True if one kernel quantises all local experts' operands: under 8-bit delayed scaling.

    Under one scale a tensor that is known before.

    Source: Transformer Engine, pytorch/csrc/extensions/cast.cpp (`multi_tensor_quantize_impl`,
    read: "only have fused kernel for FP8 delayed scaling", all others one after another).
    """
    return machine.compute.bits == 8 and machine.scaling is Scaling.DELAYED


def weight_bytes(machine: Machine, *, gathered: float) -> float:
    """Bytes of memory traffic an element to quantise a weight after its all-gather for one pass.

        (r - 1) x 2 + 2 + w behind a gather of 16 bits, w of one of 8 bits

    r readings: two where its largest magnitude is found first (current scaling, 4 bits). A weight
    that arrives in 8 bits is ready for forward; backward's GEMMs need a transposed copy, 2 w, where
    `needs_transposes`: half of that a gather, on average over the two. Compilers' casts are slower
    along the other direction (of backward). Below ZeRO-3 weights are quantised once a step: not
    priced.

    Args:
        gathered: bytes of an element on the wire.

    Leaves out: the second form in a pass that runs a layer again, and the owner's cast of a shard
    that travels in 8 bits.

    Source: Megatron-Core, distributed/fsdp/src/megatron_fsdp (gathers again in backward); torchao,
    float8/float8_linear.py at 024fe94fd86a (`matmul_with_hp_or_float8_args`: backward casts the
    weight again), read.
    """
    if machine.compute.bits > 8:
        return 0.0
    narrow = quantised_bytes(machine)
    if gathered < WIDE:
        return narrow if needs_transposes(machine) else 0.0
    if machine.scaling is Scaling.ROWWISE:
        return (1 + COMPILED_REDUCTION) / 2 * (WIDE + narrow)
    second_reading = (
        WIDE if machine.compute.bits == 4 or machine.scaling is Scaling.CURRENT else 0.0
    )
    copy_ratio = (
        COMPILED_TRANSPOSE if needs_transposes(machine) and not machine.saves_quantised else 1.0
    )
    return second_reading + (1 + copy_ratio) / 2 * (WIDE + narrow)


def seconds_with_casts(
    machine: Machine,
    spent: FloatArray,
    *,
    phase: Phase,
    m: IntArray,
    n: IntArray,
    k: IntArray,
    groups: IntArray | int,
    members: IntArray | int,
    casts: IntArray | int = 1,
) -> FloatArray:
    """Seconds of a GEMM with its own casts in place of the casts in the measured rate.

    m tokens, n outputs and k inputs.

        t = max(spent + (own - included) / (0.8 BW) + (kernels x casts - 1) x launch, floor)

    floor: multiplications at peak, or one pass over both operands and the product, whichever lasts
    longer.

    Args:
        casts: operands that are quantised one after another for it, one a local expert; once where
            one kernel takes all of them.
        members: members that quantised their parts of the operand before they gathered it; a
            transposed copy is then made behind the gather.
    """
    passes, device = recipe_passes(machine), machine.accelerator
    read, output = (np.asarray(m * side * groups, dtype=np.float64) for side in (k, n))
    weight = np.asarray(n * k * groups, dtype=np.float64)
    not_gathered = np.asarray(members) == 1
    operand = passes.cast / members + np.where(not_gathered, passes.copy, passes.late_copy)
    if phase is Phase.F:
        cast_bytes = (
            operand if machine.saves_quantised else passes.cast / members
        ) * read - passes.included * read
    elif phase is Phase.I:
        cast_bytes = operand * output - passes.included * output + passes.product * read
    else:
        input_bytes = np.where(not_gathered, passes.again, passes.late_copy * (passes.again > 0.0))
        cast_bytes = (
            input_bytes * read
            + (passes.gradient_again - passes.included) * output
            + passes.product * weight
        )
    seconds = spent + cast_bytes / (device.element_efficiency * device.memory_bandwidth)
    if phase is not Phase.W:
        seconds = (
            seconds
            + (passes.kernels * (1 if joins_operands(machine) else casts) - 1) * device.launch_s
        )
    width, written = (
        machine.compute.bits / 8,
        {Phase.F: output, Phase.I: read, Phase.W: weight}[phase],
    )
    moved = (read + output + weight - written) * width + written * WIDE
    floor = np.maximum(2.0 * m * n * k * groups / machine.peak, moved / device.memory_bandwidth)
    return np.asarray(np.maximum(seconds, floor), dtype=np.float64)
