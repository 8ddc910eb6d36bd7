"""Kernels that a framework with fused element-wise kernels still runs apart: clamps of a gate's
halves, and biases of experts' products.

Counted in Megatron-Core for 2-byte activations, each kernel reading its inputs and writing its
output once; nothing fitted. A compiler makes none of them; a kernel that joins the experts'
products with what lies between takes both in (Transformer Engine's fuser).

Clamps: core/fusions/fused_bias_geglu.py (`weighted_bias_quick_geglu_impl`): the two halves are
clamped, each by a kernel, and joined again before the one fused kernel, which keeps the joined copy
beside what the clamps keep; the gradient passes both masks and the two halves' gradients are
joined. Biases: core/transformer/moe/experts.py (`TEGroupedMLP._apply_bias`): behind the second
product, for each local expert, bias x probability and its sum with the expert's rows, then a join
of all; backward has both factors' gradients, each a product and a sum an expert, and joins the
rows' gradients. The first product adds its bias in its own epilogue.
"""

from __future__ import annotations

from typing import Final

from shardwright.model.ir.operator import Operator, OperatorKind
from shardwright.model.ir.tensor import Dim
from shardwright.program.block.block import BlockWork, Kernel, Phase
from shardwright.program.block.sizes import Size

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
    """What the clamps of a gate add; `elements`: of its output. `element`: bytes of one."""
    return tuple(
        _moved(o, phase, elements, traffic, element)
        for phase, each in CLAMPS.items()
        for traffic in each
    )


def bias_works(
    o: Operator, *, elements: Size, experts: Size, element: int
) -> tuple[BlockWork, ...]:
    """What the biases of local `experts` add behind their second product; `elements`: of its
    output.
    """
    works = [
        _moved(o, phase, elements, traffic, element, experts)
        for phase, each in BIAS.items()
        for traffic in each
    ]
    return (*works, *(_moved(o, phase, elements, JOIN, element) for phase in BIAS))


def has_late_bias(o: Operator) -> bool:
    """Experts' second product, with a bias: what it writes is as wide as the stream."""
    grouped = o.kind is OperatorKind.GROUPED_LINEAR and any(".bias" in p.name for p in o.parameters)
    return grouped and all(extent.dim is Dim.HIDDEN for extent in o.writes)


def _moved(
    o: Operator,
    phase: Phase,
    elements: Size,
    traffic: int,
    element: int,
    groups: Size | None = None,
) -> BlockWork:
    return BlockWork(
        operator=o.name,
        phase=phase,
        kernel=Kernel.ELEMENT,
        read=(elements.scaled(traffic * element // WIDTH),),
        one_pass=True,
        groups=groups,
        apart=groups is not None,
    )
