"""Kernels that each kind of operator runs in F, I and W, with symbolic local sizes.

Backward GEMMs have their own shapes: input gradient (m, k, n), weight gradient (n, k, m) over
tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from shardwright.model.ir.operator import Operator, OperatorKind
from shardwright.program.block.block_program import BlockWork, KernelKind, Phase
from shardwright.program.block.kernels import eager_kernel_bytes as eager
from shardwright.program.block.kernels.expert_clamp_and_bias_kernels import (
    bias_works,
    clamp_works,
    has_late_bias,
)
from shardwright.program.block.kernels.linear_kernels import (
    gemm_of_each_phase,
    gradient_addition,
    linear_kernels,
)
from shardwright.program.block.kernels.local_operator_sizes import (
    Local,
    element_kernel,
    sizes_of_all_tokens,
)
from shardwright.program.block.symbolic_sizes import Size


def _grouped(o: Operator, x: Local) -> tuple[BlockWork, ...]:
    """Kernels of experts' grouped linear: GEMMs, gradient accumulation, unfused late biases."""
    assert x.experts is not None
    assert x.expert_tokens is not None
    k, g, m = x.reads[0], x.experts, x.expert_tokens
    return (
        *gemm_of_each_phase(o, x, kernel=KernelKind.GROUPED_GEMM, m=m, k=k, groups=g, apart=True),
        *gradient_addition(o, x, tuple(n * k * g for n in x.writes)),
        *(
            bias_works(o, elements=x.tokens * x.writes[0], experts=g, element=x.element)
            if x.apart and has_late_bias(o)
            else ()
        ),
    )


def _eager_kernels(
    o: Operator,
    x: Local,
    *traffic: int,
    width: tuple[Size, ...],
    native: bool = False,
) -> tuple[BlockWork, ...]:
    """One eager kernel for each of `traffic`, in order F, I, W: bytes a 2-byte element of `width`.

    As far as `traffic` goes: bytes for each of `width` elements a token, counted for 2-byte
    activations.
    """
    moved = sizes_of_all_tokens(x, width)
    return tuple(
        element_kernel(o, phase, moved, (), counted * x.element // eager.WIDTH, native=native)
        for phase, counted in zip(Phase, traffic, strict=False)
    )


def _norm(o: Operator, x: Local) -> tuple[BlockWork, ...]:
    """Kernels of a LayerNorm or RMSNorm, fused or in eager PyTorch."""
    width = sizes_of_all_tokens(x, x.reads)
    native = any(p.name.endswith(".bias") for p in o.parameters)  # LayerNorm
    if x.eager and x.fp32_norms:
        traffic = eager.FP32_NORM_FORWARD, eager.FP32_NORM_BACKWARD, eager.FP32_NORM_GAIN
        return _eager_kernels(o, x, *traffic, width=x.reads, native=True)
    native = native or x.fused_chains
    if x.eager and not native:
        traffic = eager.NORM_FORWARD, eager.NORM_BACKWARD, eager.NORM_GAIN
        return _eager_kernels(o, x, *traffic, width=x.reads)
    return (
        element_kernel(o, Phase.F, width, width, x.element, native=native),
        element_kernel(o, Phase.I, width + width, width, x.element, native=native),
        # gradients of gain and bias are a second pass over the same two tensors
        *(
            (element_kernel(o, Phase.W, width + width, (), x.element, native=native),)
            if x.own_sums
            else ()
        ),
    )


def _rotary(o: Operator, x: Local) -> tuple[BlockWork, ...]:
    """Kernels of a rotary embedding, fused or in eager PyTorch."""
    if x.eager and not x.fused_chains:
        return _eager_kernels(o, x, eager.ROTARY, eager.ROTARY, width=x.reads)
    width = sizes_of_all_tokens(x, x.reads)
    return tuple(
        element_kernel(o, phase, width, width, x.element, native=x.fused_chains)
        for phase in (Phase.F, Phase.I)
    )


def _activation(o: Operator, x: Local) -> tuple[BlockWork, ...]:
    """F and I kernels of an activation, gated or not, fused or eager, with clamps where unfused."""
    if x.eager and o.gated and not x.fused_chains:
        return _eager_kernels(o, x, eager.GATE_FORWARD, eager.GATE_BACKWARD, width=x.writes)
    inputs, outputs = sizes_of_all_tokens(x, x.reads), sizes_of_all_tokens(x, x.writes)
    native = x.fused_chains or not o.gated
    return (
        element_kernel(o, Phase.F, inputs, outputs, x.element, native=native),
        element_kernel(o, Phase.I, inputs + outputs, inputs, x.element, native=native),
        *(clamp_works(o, elements=outputs[0], element=x.element) if x.apart and o.clamped else ()),
    )


def _residual(o: Operator, x: Local) -> tuple[BlockWork, ...]:
    """Kernels of a residual addition, with a dropout mask if the job uses dropout."""
    width = sizes_of_all_tokens(x, x.writes)
    forward = element_kernel(o, Phase.F, width + width, width, x.element, native=True)
    if not x.dropout:
        return (forward, element_kernel(o, Phase.I, width + width, width, x.element, native=True))
    mask = element_kernel(o, Phase.F, (), width, 1)
    return (
        forward,
        mask,
        element_kernel(o, Phase.I, width, width, x.element),
        element_kernel(o, Phase.I, width, (), 1),
    )


def _attention(o: Operator, x: Local) -> tuple[BlockWork, ...]:
    """Kernels of an attention core: fused attention, or GEMMs over score matrices."""
    if x.scores_fused:
        return tuple(
            BlockWork(
                operator=o.name,
                phase=phase,
                kernel=KernelKind.ATTENTION,
                tokens=x.tokens,
                context=x.context,
                passed=x.keys_passed,
                heads=x.heads,
                attention=o.attention,
            )
            for phase in (Phase.F, Phase.I)
        )
    return _unfused_attention(o, x)


def _unfused_attention(o: Operator, x: Local) -> tuple[BlockWork, ...]:
    """Kernels of unfused attention: batched GEMMs over score matrices, softmax, dropout."""
    assert o.attention is not None
    assert x.heads is not None
    shape = o.attention
    queries = Size(scale=("positions",))
    groups = Size(scale=("mbs",)) * x.heads
    keys, width, value = (
        Size(times=x.context),
        Size(times=shape.head_dim),
        Size(times=shape.value_dim),
    )
    scores = x.tokens * x.heads * keys

    def batched(phase: Phase, m: Size, n: Size, k: Size) -> BlockWork:
        return BlockWork(
            operator=o.name,
            phase=phase,
            kernel=KernelKind.GROUPED_GEMM,
            m=m,
            n=(n,),
            k=k,
            groups=groups,
        )

    works = [
        batched(Phase.F, queries, keys, width),
        element_kernel(o, Phase.F, (scores,), (scores,), x.element),
        batched(Phase.F, queries, value, keys),
        batched(Phase.I, queries, keys, value),
        batched(Phase.I, keys, value, queries),
        element_kernel(o, Phase.I, (scores, scores), (scores,), x.element),
        batched(Phase.I, queries, width, keys),
        batched(Phase.I, keys, width, queries),
    ]
    if x.dropout:
        works += [
            element_kernel(o, Phase.F, (scores,), (scores,), x.element),
            element_kernel(o, Phase.F, (), (scores,), 1),
            element_kernel(o, Phase.I, (scores,), (scores,), x.element),
            element_kernel(o, Phase.I, (scores,), (), 1),
        ]
    if x.eager:
        # Softmax and dropout are one kernel each in eager PyTorch too; what is not fused is the
        # mask.
        works += [
            element_kernel(o, phase, (scores,), (scores,), x.element)
            for phase in (Phase.F, Phase.I)
        ]
        works = [replace(w, one_pass=True) if w.kernel is KernelKind.ELEMENT else w for w in works]
    return tuple(works)


def _read_and_write_once(o: Operator, x: Local) -> tuple[BlockWork, ...]:
    """A kernel in F and one in I that read their input and write their output once."""
    inputs, outputs = sizes_of_all_tokens(x, x.reads), sizes_of_all_tokens(x, x.writes)
    return (
        element_kernel(o, Phase.F, inputs, outputs, x.element),
        element_kernel(o, Phase.I, outputs, inputs, x.element),
    )


def _route(o: Operator, x: Local) -> tuple[BlockWork, ...]:
    """Kernels of a router: many small ones in forward, one in backward.

    More are not published.
    """
    forward, backward = _read_and_write_once(o, x)
    return (replace(forward, further=max(x.router_kernels - 1, 0)), backward)


def _permute(o: Operator, x: Local) -> tuple[BlockWork, ...]:
    """Kernels of a permutation of tokens for experts, in PyTorch or Triton."""
    if x.indexed and o.experts is not None:
        return _indexed(o, x)
    return tuple(replace(w, by_row=x.by_row) for w in _read_and_write_once(o, x))


def _indexed(o: Operator, x: Local) -> tuple[BlockWork, ...]:
    """PyTorch's permutation kernels: ``index_select`` to experts, ``scatter_add_`` back.

    ``index_select`` gathers rows on their way to experts, ``scatter_add_`` adds them on the way
    back.

    Each is the other's gradient; ``scatter_add_`` reads and writes the sums. They take an element a
    thread, so they are no faster than a Triton kernel of a program a row. Leaves out zeroing the
    sums (a write of 1 / topk) and the map of tokens to experts. Source: Megatron-Core, `permute`
    and `unpermute` of moe_utils.py at 00611e6eeb0b.
    """
    rows = sizes_of_all_tokens(x, x.writes)
    gathered, added = (Phase.I, Phase.F) if o.name.endswith("unpermute") else (Phase.F, Phase.I)
    works = (
        element_kernel(o, gathered, rows, rows, x.element),
        element_kernel(o, added, rows + rows, rows, x.element),
    )
    return tuple(replace(w, by_row=True) for w in works)


def chunk_sort_works(o: Operator, x: Local) -> tuple[BlockWork, ...]:
    """Kernels that lay whole chunks of tokens in another order, forward and backward.

    A copy, not a gather of rows.
    """
    return _read_and_write_once(o, x)


def _embedding(o: Operator, x: Local) -> tuple[BlockWork, ...]:
    """Kernels of an embedding: a lookup in forward, a sum into the table in W."""
    width = sizes_of_all_tokens(x, x.writes)
    return (
        element_kernel(o, Phase.F, width, width, x.element),
        element_kernel(o, Phase.W, width + width, width, x.element),
    )


def _loss(o: Operator, x: Local) -> tuple[BlockWork, ...]:
    """Kernels of the loss: cross-entropy, or the divergence from a teacher's logits."""
    if o.reads_teacher_logits:
        # No framework's own loss reads two logits: it is plain PyTorch in all of them.
        traffic = eager.DIVERGENCE_FORWARD, eager.DIVERGENCE_BACKWARD
        return _eager_kernels(o, x, *traffic, width=x.reads[:1])
    logits = sizes_of_all_tokens(x, x.reads)
    if x.loss_traffic:
        # Softmax and its inputs in forward, the gradient in backward: 3 to 1 where fp32 copies are
        # made and where they are not.
        back = max(x.loss_traffic // 4, 1)
        return (
            replace(
                element_kernel(o, Phase.F, logits, (), x.loss_traffic - back),
                one_pass=True,
                by_row=x.by_row,
            ),
            replace(element_kernel(o, Phase.I, logits, (), back), one_pass=True, by_row=x.by_row),
        )
    if x.eager and not x.native_loss:
        return _eager_kernels(o, x, eager.LOSS_FORWARD, eager.LOSS_BACKWARD, width=x.reads)
    half = max(x.loss_bytes // 4, 1)
    return (
        element_kernel(o, Phase.F, logits, logits, half, native=x.native_loss),
        element_kernel(o, Phase.I, logits, logits, half, native=x.native_loss),
    )


def _scan(o: Operator, x: Local) -> tuple[BlockWork, ...]:
    """Kernels of a chunked scan (Mamba-2, gated delta rule), forward and backward."""
    return tuple(
        BlockWork(
            operator=o.name,
            phase=phase,
            kernel=KernelKind.SCAN,
            tokens=x.tokens,
            context=x.context,
            heads=x.heads,
            scan=o.scan,
        )
        for phase in (Phase.F, Phase.I)
    )


KERNELS_OF: dict[OperatorKind, Callable[[Operator, Local], tuple[BlockWork, ...]]] = {
    OperatorKind.LINEAR: linear_kernels,
    OperatorKind.GROUPED_LINEAR: _grouped,
    OperatorKind.NORM: _norm,
    OperatorKind.ROTARY: _rotary,
    OperatorKind.ACTIVATION: _activation,
    OperatorKind.RESIDUAL: _residual,
    OperatorKind.ATTENTION: _attention,
    OperatorKind.ROUTE: _route,
    OperatorKind.PERMUTE: _permute,
    OperatorKind.EMBEDDING: _embedding,
    OperatorKind.LOSS: _loss,
    OperatorKind.CONV: _read_and_write_once,
    OperatorKind.SCAN: _scan,
    OperatorKind.INDEX: _attention,
}
