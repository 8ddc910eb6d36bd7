"""Local sizes of an operator on one device, from which its kernels are made."""

from __future__ import annotations

from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.ir.operator import Operator
from shardwright.program.block.block_program import BlockWork, KernelKind, Phase
from shardwright.program.block.symbolic_sizes import Size


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


def element_kernel(
    o: Operator,
    phase: Phase,
    read: tuple[Size, ...],
    written: tuple[Size, ...],
    times: int,
    *,
    native: bool = False,
) -> BlockWork:
    """An element-wise kernel of `times` bytes an element; `native`: one kernel in any framework."""
    return BlockWork(
        operator=o.name,
        phase=phase,
        kernel=KernelKind.ELEMENT,
        read=tuple(s.scaled(times) for s in read),
        written=tuple(s.scaled(times) for s in written),
        native=native,
    )


def sizes_of_all_tokens(x: Local, parts: tuple[Size, ...]) -> tuple[Size, ...]:
    """Sizes of tensors of all tokens of the device, given their parts a token."""
    return tuple(x.tokens * p for p in parts)
