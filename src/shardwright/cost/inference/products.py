"""Seconds of products with few tokens: weights as they are stored, and of experts those alone that some token visits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shardwright.arrays import FloatArray, IntArray
from shardwright.cost.compute import Machine, gemm_seconds
from shardwright.cost.degree_rows import Rows
from shardwright.job.serving import NumberFormat, OperatorPrecision, Precision
from shardwright.model.ir.operator import Operator, OperatorClass


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Products:
    """The rates that products have in each format, and the formats of each class.

    Args:
        machine: rates in 16 bits. by_format: those of the formats that tokens are cast to.
    """

    machine: Machine
    by_format: dict[NumberFormat, Machine]
    precision: Precision

    def of(self, operator: Operator) -> OperatorPrecision:
        """The formats of an operator's weights and tokens."""
        if operator.klass is OperatorClass.EXPERTS:
            return self.precision.experts
        if operator.klass in (OperatorClass.MLP, OperatorClass.SHARED):
            return self.precision.mlp
        if operator.klass in (OperatorClass.HEAD, OperatorClass.EMBED):
            return self.precision.head
        if operator.klass in (OperatorClass.ATTN, OperatorClass.SSM):
            return self.precision.attention
        return OperatorPrecision()


def product_seconds(products: Products, operator: Operator, *, m: IntArray, n: IntArray, k: IntArray) -> FloatArray:
    """(t,) seconds of (m x k)(k x n) without its launch: weights are read in their own format, whatever they are multiplied in.

    Leaves out what it takes to unpack weights that are stored in fewer bits than they are multiplied in.
    """
    own = products.of(operator)
    machine = products.by_format[own.activations]
    stored = own.weights.bytes - machine.compute.bits / 8
    spent = gemm_seconds(machine, m=m, n=n, k=k, extra_bytes=np.asarray(stored * k * n, dtype=np.float64))
    return np.asarray(spent - machine.gemm.overhead_s)


def reached_experts(experts: int, topk: int, tokens: FloatArray) -> FloatArray:
    """Mean number of experts that some token visits: E (1 - (1 - k / E)^T). 8 tokens on 8 of 256 experts reach 57.4."""
    return np.asarray(experts * -np.expm1(tokens * np.log1p(-topk / experts))) if topk < experts else np.full_like(tokens, float(experts))


def expert_seconds(products: Products, operator: Operator, rows: Rows, *, outputs: IntArray, inputs: IntArray, skew: float) -> FloatArray:
    """(t,) seconds of one product of the busiest device's experts, without its launch.

    Args:
        operator: of routed experts. rows: ``mbs`` tokens of each of ``dp`` ranks. outputs, inputs: sides of an expert's matrix on a device.
        skew: tokens of the busiest device over the mean.
    """
    assert operator.experts is not None
    shape, own = operator.experts, products.of(operator)
    machine = products.by_format[own.activations]
    tokens = np.asarray(rows["mbs"] * rows["dp"], dtype=np.float64)
    share = 1.0 / rows["ep"]
    reached = np.maximum(reached_experts(shape.experts, shape.topk, tokens) * share, 1.0)
    each = np.maximum(tokens * shape.topk * share * skew / reached, 1.0)
    stored = own.weights.bytes - machine.compute.bits / 8
    extra = np.asarray(stored * reached * outputs * inputs, dtype=np.float64)
    spent = gemm_seconds(machine, m=each, n=outputs, k=inputs, groups=reached, extra_bytes=extra)
    return np.asarray(spent - machine.gemm.overhead_s)
