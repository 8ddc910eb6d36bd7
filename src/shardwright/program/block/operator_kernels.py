"""Kernels that each kind of operator runs in F, I and W, with symbolic local sizes.

Backward GEMMs have their own shapes: input gradient (m, k, n), weight gradient (n, k, m) over
tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any

from shardwright.lazy_dataclass import dataclass
from shardwright.model.ir.operator import Operator, OperatorKind
from shardwright.program.block import eager_kernel_bytes as eager
from shardwright.program.block.block_program import BlockWork, KernelKind, Phase
from shardwright.program.block.symbolic_sizes import Size
from shardwright.program.block.unfused_expert_kernels import bias_works, clamp_works, has_late_bias


@dataclass(frozen=True, slots=True, kw_only=True)
class Local:
    """Local sizes of an operator on one device, and the runtime choices that decide its kernels.

    Args:
        tokens: query tokens.
        reads, writes: elements a token of each extent.
        context: tokens of the whole sequence of keys.
        element: bytes of an activation element.
        scores_fused: attention never writes its scores.
        keys_passed: keys come round a ring.
        dropout: dropout masks are drawn.
        experts: local experts (GROUPED_LINEAR).
        expert_tokens: tokens of one local expert.
        heads: local query heads (or scan heads).
        own_sums: gradients of biases and of inputs with several readers are summed by kernels of
            their own.
        fused_accumulate: weight gradients add into fp32 copies in the GEMM.
        loss_bytes: traffic of the loss, bytes an element.
        native_loss: the loss is one kernel.
        added_bytes: bytes an element of the accumulated gradients that a kernel of its own adds to;
            0 = no such kernel runs.
        eager: element-wise kernels are those of eager PyTorch.
        fused_chains: norms, rotary embeddings and gated activations are one kernel each, also under
            `eager`.
        fp32_norms: a norm reads a copy in fp32.
        by_row: permutations and the loss are Triton kernels, one program a row.
        indexed: permutations are PyTorch's own kernels.
        apart: clamps and biases of experts are kernels of their own (`apart`).
        router_kernels: kernels of a forward of the router; 0 = not counted.
        loss_traffic: exact traffic of the loss, bytes an element; 0 = `loss_bytes` times the passes
            of element-wise kernels.
    """

    tokens: Size
    reads: tuple[Size, ...]
    writes: tuple[Size, ...]
    context: int
    element: int
    scores_fused: bool
    keys_passed: bool
    dropout: bool
    fused_accumulate: bool
    loss_bytes: int
    own_sums: bool = False
    native_loss: bool = True
    added_bytes: int = 0
    loss_traffic: int = 0
    eager: bool = False
    fused_chains: bool = False
    fp32_norms: bool = False
    by_row: bool = False
    indexed: bool = False
    apart: bool = False
    router_kernels: int = 0
    heads: Size | None = None
    experts: Size | None = None
    expert_tokens: Size | None = None


def _gemms(o: Operator, x: Local, **shape: Any) -> tuple[BlockWork, ...]:
    """The three GEMMs of a linear operator, one in each of F, I and W.

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


def _linear(o: Operator, x: Local) -> tuple[BlockWork, ...]:
    """Kernels of a linear operator: three GEMMs, gradient sums and gradient accumulation."""
    k = prod(x.reads[1:], start=x.reads[0])
    return (
        *_gemms(o, x, kernel=KernelKind.GEMM, m=x.tokens, k=k),
        *(_gradient_sums(o, x, k) if x.own_sums else ()),
        *_gradient_addition(o, x, tuple(n * k for n in x.writes)),
    )


def _gradient_addition(o: Operator, x: Local, elements: tuple[Size, ...]) -> tuple[BlockWork, ...]:
    """The kernel that adds a weight gradient to the accumulated gradient, if not in the GEMM.

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
        works.append(_element(o, Phase.W, _per_token(x, x.writes), (), x.element, native=True))
    if len(x.writes) > 1:
        width = x.tokens * k
        works.append(
            _element(
                o, Phase.I, (width, width), (width,), x.element * (len(x.writes) - 1), native=True
            )
        )
    return tuple(works)


def _grouped(o: Operator, x: Local) -> tuple[BlockWork, ...]:
    """Kernels of experts' grouped linear operator: grouped GEMMs, accumulation and biases."""
    assert x.experts is not None
    assert x.expert_tokens is not None
    k, g, m = x.reads[0], x.experts, x.expert_tokens
    return (
        *_gemms(o, x, kernel=KernelKind.GROUPED_GEMM, m=m, k=k, groups=g, apart=True),
        *_gradient_addition(o, x, tuple(n * k * g for n in x.writes)),
        *(
            bias_works(o, elements=x.tokens * x.writes[0], experts=g, element=x.element)
            if x.apart and has_late_bias(o)
            else ()
        ),
    )


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
    written, read = _per_token(x, x.writes), (x.tokens * k,)
    sums = (
        _element(o, Phase.F, written + written, written, x.element, native=True),
        _element(o, Phase.I, read + read, read, x.element, native=True),
    )
    return (*products, *sums)


def _element(
    o: Operator,
    phase: Phase,
    read: tuple[Size, ...],
    written: tuple[Size, ...],
    times: int,
    *,
    native: bool = False,
) -> BlockWork:
    """An element-wise kernel that reads and writes tensors of `times` bytes an element."""
    return BlockWork(
        operator=o.name,
        phase=phase,
        kernel=KernelKind.ELEMENT,
        read=tuple(s.scaled(times) for s in read),
        written=tuple(s.scaled(times) for s in written),
        native=native,
    )


def _eager_kernels(
    o: Operator,
    x: Local,
    *traffic: int,
    width: tuple[Size, ...],
    native: bool = False,
) -> tuple[BlockWork, ...]:
    """Chains of eager PyTorch's kernels in F, I and W, by counted bytes an element.

    As far as `traffic` goes: bytes for each of `width` elements a token, counted for 2-byte
    activations.
    """
    moved = _per_token(x, width)
    return tuple(
        _element(o, phase, moved, (), counted * x.element // eager.WIDTH, native=native)
        for phase, counted in zip(Phase, traffic, strict=False)
    )


def _per_token(x: Local, parts: tuple[Size, ...]) -> tuple[Size, ...]:
    """Sizes of tensors of all tokens of the device, given their parts a token."""
    return tuple(x.tokens * p for p in parts)


def _norm(o: Operator, x: Local) -> tuple[BlockWork, ...]:
    """Kernels of a LayerNorm or RMSNorm, fused or in eager PyTorch."""
    width = _per_token(x, x.reads)
    native = any(p.name.endswith(".bias") for p in o.parameters)  # LayerNorm
    if x.eager and x.fp32_norms:
        traffic = eager.FP32_NORM_FORWARD, eager.FP32_NORM_BACKWARD, eager.FP32_NORM_GAIN
        return _eager_kernels(o, x, *traffic, width=x.reads, native=True)
    native = native or x.fused_chains
    if x.eager and not native:
        traffic = eager.NORM_FORWARD, eager.NORM_BACKWARD, eager.NORM_GAIN
        return _eager_kernels(o, x, *traffic, width=x.reads)
    return (
        _element(o, Phase.F, width, width, x.element, native=native),
        _element(o, Phase.I, width + width, width, x.element, native=native),
        # gradients of gain and bias are a second pass over the same two tensors
        *(
            (_element(o, Phase.W, width + width, (), x.element, native=native),)
            if x.own_sums
            else ()
        ),
    )


def _rotary(o: Operator, x: Local) -> tuple[BlockWork, ...]:
    """Kernels of a rotary embedding, fused or in eager PyTorch."""
    if x.eager and not x.fused_chains:
        return _eager_kernels(o, x, eager.ROTARY, eager.ROTARY, width=x.reads)
    width = _per_token(x, x.reads)
    return tuple(
        _element(o, phase, width, width, x.element, native=x.fused_chains)
        for phase in (Phase.F, Phase.I)
    )


def _activation(o: Operator, x: Local) -> tuple[BlockWork, ...]:
    """Kernels of an activation, gated or not, fused or in eager PyTorch."""
    if x.eager and o.gated and not x.fused_chains:
        return _eager_kernels(o, x, eager.GATE_FORWARD, eager.GATE_BACKWARD, width=x.writes)
    inputs, outputs = _per_token(x, x.reads), _per_token(x, x.writes)
    native = x.fused_chains or not o.gated
    return (
        _element(o, Phase.F, inputs, outputs, x.element, native=native),
        _element(o, Phase.I, inputs + outputs, inputs, x.element, native=native),
        *(clamp_works(o, elements=outputs[0], element=x.element) if x.apart and o.clamped else ()),
    )


def _residual(o: Operator, x: Local) -> tuple[BlockWork, ...]:
    """Kernels of a residual addition, with a dropout mask if the job uses dropout."""
    width = _per_token(x, x.writes)
    forward = _element(o, Phase.F, width + width, width, x.element, native=True)
    if not x.dropout:
        return (forward, _element(o, Phase.I, width + width, width, x.element, native=True))
    mask = _element(o, Phase.F, (), width, 1)
    return (
        forward,
        mask,
        _element(o, Phase.I, width, width, x.element),
        _element(o, Phase.I, width, (), 1),
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
        _element(o, Phase.F, (scores,), (scores,), x.element),
        batched(Phase.F, queries, value, keys),
        batched(Phase.I, queries, keys, value),
        batched(Phase.I, keys, value, queries),
        _element(o, Phase.I, (scores, scores), (scores,), x.element),
        batched(Phase.I, queries, width, keys),
        batched(Phase.I, keys, width, queries),
    ]
    if x.dropout:
        works += [
            _element(o, Phase.F, (scores,), (scores,), x.element),
            _element(o, Phase.F, (), (scores,), 1),
            _element(o, Phase.I, (scores,), (scores,), x.element),
            _element(o, Phase.I, (scores,), (), 1),
        ]
    if x.eager:
        # Softmax and dropout are one kernel each in eager PyTorch too; what is not fused is the
        # mask.
        works += [
            _element(o, phase, (scores,), (scores,), x.element) for phase in (Phase.F, Phase.I)
        ]
        works = [replace(w, one_pass=True) if w.kernel is KernelKind.ELEMENT else w for w in works]
    return tuple(works)


def _read_and_write_once(o: Operator, x: Local) -> tuple[BlockWork, ...]:
    """A kernel in F and one in I that read their input and write their output once."""
    inputs, outputs = _per_token(x, x.reads), _per_token(x, x.writes)
    return (
        _element(o, Phase.F, inputs, outputs, x.element),
        _element(o, Phase.I, outputs, inputs, x.element),
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
    rows = _per_token(x, x.writes)
    gathered, added = (Phase.I, Phase.F) if o.name.endswith("unpermute") else (Phase.F, Phase.I)
    works = (
        _element(o, gathered, rows, rows, x.element),
        _element(o, added, rows + rows, rows, x.element),
    )
    return tuple(replace(w, by_row=True) for w in works)


def chunk_sort_works(o: Operator, x: Local) -> tuple[BlockWork, ...]:
    """Kernels that lay whole chunks of tokens in another order, forward and backward.

    A copy, not a gather of rows.
    """
    return _read_and_write_once(o, x)


def _embedding(o: Operator, x: Local) -> tuple[BlockWork, ...]:
    """Kernels of an embedding: a lookup in forward, a sum into the table in W."""
    width = _per_token(x, x.writes)
    return (
        _element(o, Phase.F, width, width, x.element),
        _element(o, Phase.W, width + width, width, x.element),
    )


def _loss(o: Operator, x: Local) -> tuple[BlockWork, ...]:
    """Kernels of the loss: cross-entropy, or the divergence from a teacher's logits."""
    if o.reads_teacher_logits:
        # No framework's own loss reads two logits: it is plain PyTorch in all of them.
        traffic = eager.DIVERGENCE_FORWARD, eager.DIVERGENCE_BACKWARD
        return _eager_kernels(o, x, *traffic, width=x.reads[:1])
    logits = _per_token(x, x.reads)
    if x.loss_traffic:
        # Softmax and its inputs in forward, the gradient in backward: 3 to 1 where fp32 copies are
        # made and where they are not.
        back = max(x.loss_traffic // 4, 1)
        return (
            replace(
                _element(o, Phase.F, logits, (), x.loss_traffic - back),
                one_pass=True,
                by_row=x.by_row,
            ),
            replace(_element(o, Phase.I, logits, (), back), one_pass=True, by_row=x.by_row),
        )
    if x.eager and not x.native_loss:
        return _eager_kernels(o, x, eager.LOSS_FORWARD, eager.LOSS_BACKWARD, width=x.reads)
    half = max(x.loss_bytes // 4, 1)
    return (
        _element(o, Phase.F, logits, logits, half, native=x.native_loss),
        _element(o, Phase.I, logits, logits, half, native=x.native_loss),
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
    OperatorKind.LINEAR: _linear,
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
