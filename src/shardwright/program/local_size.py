"""What lowering a block reads beside it, and local sizes of its tensors under a structure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from shardwright.model.block import MEMORY
from shardwright.model.operator import Operator, OperatorClass
from shardwright.model.tensor import Dim, Extent
from shardwright.program.sizes import Factor, Size
from shardwright.program.structure import Structure
from shardwright.runtime.runtime import Runtime

TOKEN_DIMS = (Dim.BATCH, Dim.SEQUENCE, Dim.CONTEXT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What lowering needs beside the block: lengths, number formats, and what the runtime does.

    Args:
        tokens: positions of the block's sequence a sample. memory_tokens: of its memory sequence.
        element, gemm_element: bytes of an activation element, and of a GEMM's operand. runtime: of the problem. dropout: of the job.
        imbalance_percent: tokens of the busiest expert over the mean, in percent.
    """

    tokens: int
    memory_tokens: int
    element: int
    gemm_element: int
    runtime: Runtime
    dropout: bool
    imbalance_percent: int


def local_tokens(klass: OperatorClass, structure: Structure, context: Context) -> Size:
    """Tokens that one device works on in operators of `klass`."""
    axes = tuple(c.axis for c in structure.cuts(klass) if c.dim in TOKEN_DIMS)
    return Size(scale=("mbs",), factors=(Factor(runs=context.tokens, axes=axes),))


def operator_tokens(operator: Operator, structure: Structure, context: Context) -> Size:
    """Tokens that one device works on in `operator`: of the block's memory where it reads that alone (keys of cross-attention)."""
    own = replace(context, tokens=context.memory_tokens) if operator.inputs == (MEMORY,) else context
    return local_tokens(operator.klass, structure, own)


def resolved(cut_dim: Dim, operator: Operator) -> Dim | None:
    """The dim that a cut means for `operator`: its own width, or the dim itself."""
    return operator.width() if cut_dim is Dim.WIDTH else cut_dim


def part(extent: Extent, operator: Operator, structure: Structure) -> Size:
    """Elements of one extent on one device."""
    axes = tuple(c.axis for c in structure.cuts(operator.klass) if resolved(c.dim, operator) is extent.dim)
    return Size(factors=(Factor(runs=extent.runs, quantum=extent.quantum, axes=axes),))


def per_token(extents: tuple[Extent, ...], operator: Operator) -> tuple[Extent, ...]:
    """Extents of one token: an expert's own GEMM sees one expert."""
    return tuple(e for e in extents if e.dim is not Dim.EXPERTS) if is_routed(operator) else extents


def is_routed(operator: Operator) -> bool:
    """The operator works on tokens sent to experts."""
    return operator.klass is OperatorClass.EXPERTS and operator.experts is not None


def dispatched_tokens(operator: Operator, structure: Structure, context: Context) -> Size:
    """Routed tokens on one device in all: topk copies of each token of its expert coset's share."""
    assert operator.experts is not None
    if not structure.routed:
        return local_tokens(operator.klass, structure, context).scaled(operator.experts.topk)
    stream = local_tokens(OperatorClass.STREAM, structure, context)
    return Size(times=operator.experts.topk, scale=("mbs", "etp"), factors=stream.factors)
