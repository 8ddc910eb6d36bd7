"""Kernels of experts that fused frameworks launch on their own: clamps of gates, and biases.

Counted in Megatron-Core for 2-byte activations, each kernel reading its inputs and writing its
output once; nothing fitted. A compiler makes none of them. A kernel that joins the experts'
products with the work between them includes both (Transformer Engine's fuser).

Clamps: core/fusions/fused_bias_geglu.py (`weighted_bias_quick_geglu_impl`). One kernel clamps each
half, and a third joins the halves before the one fused kernel, which keeps the joined copy beside
the tensors that the clamps keep. The gradient passes both masks, and the gradients of the two
halves are joined.

Biases: core/transformer/moe/experts.py (`TEGroupedMLP._apply_bias`). Behind the second product, for
each local expert: bias x probability, its sum with the expert's rows, then one join of all experts.
Backward has the gradients of both factors, each a product and a sum an expert, and joins the
gradients of the rows. The first product adds its bias in its own epilogue.
"""

from __future__ import annotations

from typing import Final

from shardwright.model.ir.operator import Operator, OperatorKind
from shardwright.model.ir.tensor_dims import Dim
from shardwright.program.block.block_program import BlockWork, KernelKind, Phase
from shardwright.program.block.symbolic_sizes import Size

WIDTH: Final = 2
"""Bytes of the element that the counts hold for."""
CLAMPS: Final = {Phase.F: (2 * (2 + 2), 2 * (2 + 2)), Phase.I: (2 * (2 + 2 + 2), 2 * (2 + 2))}
"""Clamped halves and their join, an element of the gate's output: 16 forward, 20 backward."""
BIAS: Final = {Phase.F: (2, (2 + 2) + 2), Phase.I: ((2 + 2), 2, (2 + 2), 2)}
"""Kernels of each expert, an element of its output: product and sum; for each of two factors a
product and its sum."""
JOIN: Final = 2 + 2
"""All experts' rows into one tensor, or their gradients."""


def clamp_works(o: Operator, *, elements: Size, element: int) -> tuple[BlockWork, ...]:
    """Kernels in F and I that clamp both halves of a gate and join them; `elements`: gate outputs.

    In forward and backward.

    Args:
        elements: elements of the gate's output.
        element: bytes of one element.
    """
    return tuple(
        _element_wise_kernel(o, phase, elements, traffic, element)
        for phase, kernel_bytes in CLAMPS.items()
        for traffic in kernel_bytes
    )


def bias_works(
    o: Operator, *, elements: Size, experts: Size, element: int
) -> tuple[BlockWork, ...]:
    """Bias kernels (F, I) after experts' second GEMM, launched once a local expert, and a join.

    In forward and backward.

    Args:
        elements: elements of the product's output.
        experts: number of local experts.
        element: bytes of one element.
    """
    works = [
        _element_wise_kernel(o, phase, elements, traffic, element, experts)
        for phase, kernel_bytes in BIAS.items()
        for traffic in kernel_bytes
    ]
    return (*works, *(_element_wise_kernel(o, phase, elements, JOIN, element) for phase in BIAS))


def has_late_bias(o: Operator) -> bool:
    """True for the second grouped GEMM of experts, whose output is hidden-wide, if it has a bias.

    Its output is as wide as the residual stream.
    """
    grouped = o.kind is OperatorKind.GROUPED_LINEAR and any(".bias" in p.name for p in o.parameters)
    return grouped and all(extent.dim is Dim.HIDDEN for extent in o.writes)


def _element_wise_kernel(
    o: Operator,
    phase: Phase,
    elements: Size,
    traffic: int,
    element: int,
    groups: Size | None = None,
) -> BlockWork:
    """An element-wise kernel of `traffic` bytes a 2-byte element; one launch, or one a group."""
    return BlockWork(
        operator=o.name,
        phase=phase,
        kernel=KernelKind.ELEMENT,
        read=(elements.scaled(traffic * element // WIDTH),),
        one_pass=True,
        groups=groups,
        apart=groups is not None,
    )
