"""Rates and number formats of a serving job's GEMMs, by class of operators."""

from __future__ import annotations

from shardwright.cost.kernels.accelerator_rates import Machine
from shardwright.job.serving_arrivals_lengths_formats_and_objectives import (
    NumberFormat,
    OperatorPrecision,
    Precision,
)
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.ir.operator import Operator, OperatorClass


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ServingGemms:
    """GEMM rates of a machine in each format, and the number formats of each operator class.

    Args:
        machine: rates in 16 bits.
        by_format: rates of the formats that tokens are cast to.
        library: engine whose measured kernels are used first.
        expert_library: the same, or with the name of its kernel for experts behind a stroke.
    """

    machine: Machine
    by_format: dict[NumberFormat, Machine]
    precision: Precision
    library: str = ""
    expert_library: str = ""


def formats_of(precision: Precision, operator: Operator) -> OperatorPrecision:
    """Weight and activation formats of an operator in serving, by class; BF16 for other classes.

    Norms, routers and operators of no class stay in 16 bits.
    """
    if operator.klass is OperatorClass.EXPERTS:
        return precision.experts
    if operator.klass in (OperatorClass.MLP, OperatorClass.SHARED):
        return precision.mlp
    if operator.klass in (OperatorClass.HEAD, OperatorClass.EMBED):
        return precision.head
    if operator.klass in (OperatorClass.ATTN, OperatorClass.SSM):
        return (
            precision.output or precision.attention
            if operator.name == "proj"
            else precision.attention
        )
    return OperatorPrecision()
