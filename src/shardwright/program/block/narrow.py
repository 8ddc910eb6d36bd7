"""Which operators, and which of their parameters, a recipe of 8 or 4 bits quantises."""

from __future__ import annotations

from typing import Final

from shardwright.model.ir.operator import Operator, OperatorClass, OperatorKind
from shardwright.model.ir.tensor import Parameter
from shardwright.runtime.runtime import Scaling

_SCALE_BYTES: Final = {Scaling.MX: 1 / 32, Scaling.BLOCKWISE: 4 / 128}
_FP4_SCALE_BYTES: Final = 1 / 16
_PRODUCTS: Final = (OperatorKind.LINEAR, OperatorKind.GROUPED_LINEAR)
_WIDE: Final = (OperatorClass.HEAD, OperatorClass.ROUTER)


def stays_wide(operator: Operator) -> bool:
    """Whether products of `operator`, if it has any, stay in 16 bits whatever the recipe: logits,
    routers, attention scores.

    Source: Transformer Engine's recipes quantise the layers' projections only; torchao's float8
    conversion filters ``output`` (both from memory).
    """
    return operator.klass in _WIDE or operator.attention is not None


def is_scaled_by_block(scaling: Scaling, bits: int) -> bool:
    """Whether scales run along the sum, so that forward's and backward's products need operands
    quantised twice: MX, blockwise, NVFP4.
    """
    return bits == 4 or scaling in _SCALE_BYTES


def scaled_width(scaling: Scaling, bits: int) -> float:
    """Bytes of an element of so many bits with its part of the scales: 4 bytes for each row or
    tensor are left out.
    """
    return 0.5 + _FP4_SCALE_BYTES if bits == 4 else bits / 8 + _SCALE_BYTES.get(scaling, 0.0)


def is_narrow(operator: Operator, parameter: Parameter) -> bool:
    """Whether `parameter` is a matrix that `operator` multiplies with in few bits; biases stay
    wide.
    """
    return operator.kind in _PRODUCTS and not stays_wide(operator) and len(parameter.extents) > 1
