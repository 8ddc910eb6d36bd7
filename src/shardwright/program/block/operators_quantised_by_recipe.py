"""Operators and parameters that a recipe of 8 or 4 bits quantises."""

from __future__ import annotations

from typing import Final

from shardwright.model.ir.operator import Operator, OperatorClass, OperatorKind
from shardwright.model.ir.tensor_dims import Parameter
from shardwright.runtime.kernel_overlap_recompute_scaling_kinds import Scaling

_SCALE_BYTES: Final = {Scaling.MX: 1 / 32, Scaling.BLOCKWISE: 4 / 128}
_FP4_SCALE_BYTES: Final = 1 / 16
_PRODUCTS: Final = (OperatorKind.LINEAR, OperatorKind.GROUPED_LINEAR)
_WIDE: Final = (OperatorClass.HEAD, OperatorClass.ROUTER)


def stays_wide(operator: Operator) -> bool:
    """True if no recipe quantises the operator's GEMMs: logits, routers and attention scores.

    Source: Transformer Engine's recipes quantise the layers' projections only; torchao's float8
    conversion filters ``output`` (both from memory).
    """
    return operator.klass in _WIDE or operator.attention is not None


def is_scaled_by_block(scaling: Scaling, bits: int) -> bool:
    """True if scales run along blocks of the summed dim: MX, blockwise, NVFP4.

    The GEMMs of forward and backward then need operands quantised twice.
    """
    return bits == 4 or scaling in _SCALE_BYTES


def scaled_width(scaling: Scaling, bits: int) -> float:
    """Bytes of an element of `bits` bits with its part of the block scales.

    4 bytes for each row or tensor are left out.
    """
    return 0.5 + _FP4_SCALE_BYTES if bits == 4 else bits / 8 + _SCALE_BYTES.get(scaling, 0.0)


def is_narrow(operator: Operator, parameter: Parameter) -> bool:
    """True if 8- and 4-bit recipes quantise `parameter`: a matrix of a GEMM not kept in 16 bits.

    Biases stay wide.
    """
    return operator.kind in _PRODUCTS and not stays_wide(operator) and len(parameter.extents) > 1
