"""Kernels of linear operators: GEMMs, gradient sums and accumulation, and LoRA adapters."""

from __future__ import annotations

from math import prod
from typing import Any

from shardwright.model.ir.operator import Operator
from shardwright.program.block.block_program import BlockWork, KernelKind, Phase
from shardwright.program.block.kernels.local_operator_sizes import (
    Local,
    element_kernel,
    sizes_of_all_tokens,
)
from shardwright.program.block.symbolic_sizes import Size


def gemm_of_each_phase(o: Operator, x: Local, **shape: Any) -> tuple[BlockWork, ...]:
    """GEMM works of a linear operator in F, I and W, all with F's m, n, k; `shape`: their fields.

    All have the forward's `n` and `k`: the input gradient has shape (m, k, n), and the cost formula
    swaps them, because a fused projection's n is a sum and `Size` has no sums.
    """
    return tuple(
        BlockWork(
            operator=o.name,
            phase=phase,
            n=x.writes,
            accumulate=x.fused_accumulate and phase is Phase.W,
            **shape,
        )
        for phase in Phase
    )


def linear_kernels(o: Operator, x: Local) -> tuple[BlockWork, ...]:
    """Kernels of a linear operator: three GEMMs, gradient sums and gradient accumulation."""
    k = prod(x.reads[1:], start=x.reads[0])
    return (
        *gemm_of_each_phase(o, x, kernel=KernelKind.GEMM, m=x.tokens, k=k),
        *(_gradient_sums(o, x, k) if x.own_sums else ()),
        *gradient_addition(o, x, tuple(n * k for n in x.writes)),
    )


def gradient_addition(o: Operator, x: Local, elements: tuple[Size, ...]) -> tuple[BlockWork, ...]:
    """W kernel that adds a weight gradient to the accumulated one; () if no kernel of its own does.

    It reads the weight gradient back, where no GEMM does this in its epilogue.
    """
    if not x.added_bytes:
        return ()
    return (
        BlockWork(
            operator=o.name,
            phase=Phase.W,
            kernel=KernelKind.ELEMENT,
            read=tuple(e.scaled(x.added_bytes + x.element) for e in elements),
            written=tuple(e.scaled(x.added_bytes) for e in elements),
            one_pass=True,
        ),
    )


def _gradient_sums(o: Operator, x: Local, k: Size) -> tuple[BlockWork, ...]:
    """Kernels that sum the gradient of a bias, and of an input with several readers.

    A bias's gradient is read once; an input that several projections read takes a sum, or a join of
    parts, for each but one.
    """
    works = []
    if any(".bias" in p.name for p in o.parameters):
        works.append(
            element_kernel(o, Phase.W, sizes_of_all_tokens(x, x.writes), (), x.element, native=True)
        )
    if len(x.writes) > 1:
        width = x.tokens * k
        works.append(
            element_kernel(
                o, Phase.I, (width, width), (width,), x.element * (len(x.writes) - 1), native=True
            )
        )
    return tuple(works)


def adapter_works(o: Operator, x: Local) -> tuple[BlockWork, ...]:
    """Kernels of a LoRA adapter, y += (x A) B: two GEMMs in each phase, and two sums.

    The sums of outputs and of input gradients.

    The input gradient of B, which the weight gradient of A needs too, is kept between them.
    """
    k = prod(x.reads[1:], start=x.reads[0])
    rank = Size(times=o.rank)
    shape: dict[str, Any] = {"kernel": KernelKind.GEMM, "m": x.tokens}
    if o.experts is not None and x.experts is not None:
        shape = {
            "kernel": KernelKind.GROUPED_GEMM,
            "m": x.expert_tokens,
            "groups": x.experts,
            "apart": True,
        }
    factors: tuple[dict[str, Any], ...] = ({"n": (rank,), "k": k}, {"n": x.writes, "k": rank})
    products = tuple(
        BlockWork(operator=o.name, phase=phase, adapter=True, **shape, **factor)
        for phase in Phase
        for factor in factors
    )
    written, read = sizes_of_all_tokens(x, x.writes), (x.tokens * k,)
    sums = (
        element_kernel(o, Phase.F, written + written, written, x.element, native=True),
        element_kernel(o, Phase.I, read + read, read, x.element, native=True),
    )
    return (*products, *sums)
