"""Local sizes of a block's tensors on one device, and the context that lowering reads."""

from __future__ import annotations

from typing import Final

from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.ir.block import MEMORY, Block
from shardwright.model.ir.operator import Operator, OperatorClass, OperatorKind
from shardwright.model.ir.tensor_dims import Dim, Extent
from shardwright.program.block.grid_or_plan_cut_protocol import Placing, is_routed
from shardwright.program.block.symbolic_sizes import Size
from shardwright.runtime.framework_description import Runtime
from shardwright.runtime.kernel_overlap_recompute_scaling_kinds import Capture, ExpertDispatch

DEEPEP_PEERS: Final = 8
"""Devices that DeepEP reaches over NVLink (NUM_MAX_NVL_PEERS); a larger island is HybridEP's."""
GEMM_KINDS: Final = (OperatorKind.LINEAR, OperatorKind.GROUPED_LINEAR)
"""Kinds of operator whose kernels are GEMMs."""


def is_hybrid(runtime: Runtime, *, island: int) -> bool:
    """True if a deduplicating dispatcher is HybridEP: set so, an island beyond 8, or full graphs.

    In islands of more than `DEEPEP_PEERS` devices, or where the runtime asks for it.

    DeepEP's host waits for the device, so that no CUDA graph holds it (Megatron-Core, fused_a2a.py
    at 02ad939ba9d1: `FusedDispatch`).
    """
    return runtime.hybrid_dispatch or island > DEEPEP_PEERS or runtime.capture is Capture.ITERATION


FUSED_DISPATCH_KERNELS: Final = 14
"""Kernels that prepare a dispatch of every copy, and that a dispatcher that sends a token once has
fused into one of its own.

Source: as of Megatron-Core's `Runtime.router_kernels`, 2.2.1: DeepEP leaves 17 of the 31 kernels of
a fused router.
"""


def router_kernels(runtime: Runtime) -> int:
    """Kernels of a router's forward, less those that a deduplicating dispatcher fuses, if any."""
    sends_once = runtime.expert_dispatch is ExpertDispatch.DEDUPLICATED
    return max(runtime.router_kernels - FUSED_DISPATCH_KERNELS * sends_once, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoweringContext:
    """Sequence lengths, number formats and runtime choices that lowering a block needs.

    Args:
        tokens: positions of the block's sequence a sample.
        memory_tokens: positions of its memory sequence.
        element, gemm_element: bytes of an activation element, and of a GEMM's operand.
        compute_bits: bits of a GEMM's operand.
        runtime: runtime of the problem.
        dropout: the job uses dropout.
        imbalance_percent: tokens of the busiest experts over the mean, in percent.
        permutes_apart: a dispatcher that sends a token once permutes in kernels of its own
            (`is_hybrid`).
        before: tokens of the slices that come before this one of a causal sequence; its queries
            attend to them.
    """

    tokens: int
    memory_tokens: int
    element: int
    gemm_element: int
    compute_bits: int
    runtime: Runtime
    dropout: bool
    imbalance_percent: int
    permutes_apart: bool = False
    before: tuple[int, ...] = ()


def local_tokens(klass: OperatorClass, structure: Placing, context: LoweringContext) -> Size:
    """Tokens of a microbatch of the block's sequence that a device has in operators of `klass`."""
    return structure.tokens(klass, context.tokens)


def operator_tokens(operator: Operator, structure: Placing, context: LoweringContext) -> Size:
    """Tokens of a microbatch that one device works on in `operator`, of the sequence it reads.

    Those of the memory sequence where the operator reads only that (keys of cross-attention).
    """
    return structure.tokens(
        operator.klass, context.memory_tokens if operator.inputs == (MEMORY,) else context.tokens
    )


def part(extent: Extent, operator: Operator, structure: Placing) -> Size:
    """Elements of one extent of an operator on one device."""
    return structure.part(extent, operator)


def per_token(extents: tuple[Extent, ...], operator: Operator) -> tuple[Extent, ...]:
    """Extents without EXPERTS if `operator` is routed (one expert's GEMM); else unchanged.

    A GEMM of one expert sees one expert.
    """
    return tuple(e for e in extents if e.dim is not Dim.EXPERTS) if is_routed(operator) else extents


def dispatched_tokens(operator: Operator, structure: Placing, context: LoweringContext) -> Size:
    """Routed token copies that experts of the busiest device work on, imbalance included.

    topk copies of each token of its share of the expert-parallel group.

    Every device is priced like the one with the busiest experts, as all wait for it.
    """
    return structure.dispatched(operator, context.tokens).uneven(context.imbalance_percent)


def stream_volume(block: Block, structure: Placing, context: LoweringContext) -> Size:
    """Bytes of a microbatch's residual stream that one device holds at the block's border."""
    return local_tokens(OperatorClass.STREAM, structure, context).scaled(
        context.element * _hidden(block)
    )


def output_volume(block: Block, structure: Placing, context: LoweringContext) -> Size:
    """Bytes of the block's output that one device holds, of one microbatch."""
    return local_tokens(OperatorClass.STREAM, structure, context).scaled(
        context.element * block.output_width
    )


def _hidden(block: Block) -> int:
    """Elements of a token in the block's residual stream; 1 if no extent has the hidden dim."""
    return next(
        (
            e.size
            for o in block.operators
            for e in (*o.reads, *o.writes)
            if e.dim is Dim.HIDDEN and e.size > 1
        ),
        1,
    )


def stream_share(block: Block, structure: Placing, context: LoweringContext) -> Size:
    """Bytes of residual stream on a device, divided as heads or FFN; as held if cut by sequence.

    The devices that hold copies share the stream out, like heads or the feed-forward.
    """
    cut = next(
        (o for o in block.operators if o.width() in (Dim.HEADS, Dim.FFN) and not is_routed(o)), None
    )
    width = cut.width() if cut is not None else None
    if cut is None or width is None or structure.sequence_parallel:
        return stream_volume(block, structure, context)
    share = part(Extent(dim=width, size=_hidden(block)), cut, structure)
    return (local_tokens(OperatorClass.STREAM, structure, context) * share).scaled(context.element)


def output_sizes(
    source: Operator, reader: Operator, structure: Placing, context: LoweringContext
) -> dict[str, Size]:
    """Local elements by output (``name``, ``name.1``) of `source`, of tokens `reader` keeps."""
    holder = source
    if (
        not context.runtime.tp_input_regather
        and source.klass is OperatorClass.STREAM
        and reader.kind in GEMM_KINDS
    ):
        holder = reader
    if is_routed(source):
        tokens = dispatched_tokens(source, structure, context)
    elif holder is source:
        tokens = operator_tokens(source, structure, context)
    else:
        tokens = local_tokens(holder.klass, structure, context)
    elements = {}
    for index, extent in enumerate(per_token(source.writes, source)):
        name = f"{source.name}.{index}" if index else source.name
        elements[name] = tokens * part(extent, source, structure)
    return elements
