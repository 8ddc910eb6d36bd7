"""Seconds of a block's forward in a serving engine, without attention over the context.

Over any number of tokens at once.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Final

import numpy as np

from shardwright.arrays import FloatArray, IntArray
from shardwright.collectives.algorithm_costs.algorithm_protocol import Collective
from shardwright.cost.inference.engine_collectives import (
    EngineNetworks,
    expert_exchange_seconds,
    tensor_parallel_seconds,
)
from shardwright.cost.inference.engine_gemm_seconds import small_gemm_seconds
from shardwright.cost.inference.gemm_rates_and_number_formats import ServingGemms, formats_of
from shardwright.cost.inference.routed_experts import routed_experts_seconds
from shardwright.cost.kernels.accelerator_rates import Machine
from shardwright.cost.kernels.gemm_element_attention_seconds import element_seconds
from shardwright.cost.network.grid_groups_and_collective_seconds import spans_along
from shardwright.cost.parallel_degree_columns import DegreeRows
from shardwright.job.serving_arrivals_lengths_formats_and_objectives import (
    NumberFormat,
    OperatorPrecision,
)
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.ir.block import Block
from shardwright.model.ir.operator import Operator, OperatorClass, OperatorKind
from shardwright.program.block.block_program import BlockProgram, BlockWork, KernelKind, Move, Phase
from shardwright.program.block.grid_operator_cuts import Structure
from shardwright.program.block.grid_or_plan_cut_protocol import is_routed
from shardwright.program.block.local_token_and_tensor_sizes import LoweringContext, per_token
from shardwright.program.block.lower_block import lower_block
from shardwright.program.block.symbolic_sizes import Degrees, evaluate, evaluate_sum
from shardwright.runtime.serving_engines.runtime_for_forward_kernels_of_engines import FORWARD

PARTS: Final = ("products", "experts", "elements", "sums", "library", "exchange")
"""`sums`: of the engine's own kernels; `library`: those of NCCL, which large ones are."""
_BY_CONTEXT: Final = (KernelKind.ATTENTION, KernelKind.SCAN)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ForwardSeconds:
    """Seconds of a block's captured forward, and the kernels to launch if not captured.

    Args:
        seconds: (parts, t), see `PARTS`.
        kernels: kernels that the host launches, casts of tokens to narrower formats among them.
        opaque: those of them inside operators that a compiler leaves to Python: routed experts.
        compiled: kernels of compiled code, which fuses consecutive element-wise ones; without
            `opaque` and attention cores.
    """

    seconds: FloatArray
    kernels: int
    opaque: int = 0
    compiled: int = 0

    @property
    def total(self) -> FloatArray:
        """(t,) seconds of all parts together, without the attention core and the scan."""
        return np.asarray(self.seconds.sum(axis=0))


@lru_cache(maxsize=256)
def forward_program(block: Block, *, routed: bool) -> BlockProgram:
    """Lower a block for serving (cached): each token a sample of length 1, no sequence parallel.

    Args:
        routed: tokens are sent to their experts; else every device of a stage has them all.
    """
    context = LoweringContext(
        tokens=1,
        memory_tokens=0,
        element=2,
        gemm_element=2,
        compute_bits=16,
        runtime=FORWARD,
        dropout=False,
        imbalance_percent=100,
        permutes_apart=False,
    )
    return lower_block(block, Structure(sequence_parallel=False, routed=routed), context)


def forward_seconds(
    block: Block,
    rows: DegreeRows,
    *,
    products: ServingGemms,
    networks: EngineNetworks,
    skew: float,
    gap_s: float,
) -> ForwardSeconds:
    """Seconds of a block's forward for every row of degrees, without the attention core and scan.

    The norm of a residual stream that was just added to is one kernel with that sum
    (`joined_norms`).

    Args:
        rows: degrees of a worker's stage; ``mbs`` = tokens of a rank.
        skew: see `ServingJob.expert_skew`.
        gap_s: seconds of a small kernel beside its bytes.
    """
    ranks = int(rows["dp"][0])
    program = forward_program(block, routed=ranks > 1)
    operators = {o.name: o for o in program.operators}
    local = rows.degrees()
    works, joined = forward_works(program), joined_norms(program)
    seconds, kernels, opaque, moves = np.zeros((len(PARTS), len(rows))), 0, 0, 0
    for work in works:
        operator = operators[work.operator]
        if work.operator in joined:
            seconds[2] += _element_seconds(replace(work, read=()), local, products.machine)
            continue
        kernels += 1
        if work.kernel is KernelKind.GEMM:
            seconds[0] += _product_seconds(work, operator, local, products)
            kernels += is_cast(formats_of(products.precision, operator))
        elif work.kernel not in _BY_CONTEXT:
            seconds[2] += _element_seconds(work, local, products.machine) + gap_s
    if any(w.kernel is KernelKind.GROUPED_GEMM and w.phase is Phase.F for w in program.works):
        seconds[1] += _experts_seconds(block, rows, products, skew=skew)
        opaque = EXPERT_KERNELS + 2 * is_cast(products.precision.experts)
        kernels += opaque
    for move in _tensor_parallel_moves(program):
        (span, *_), volume = spans_along(move.axes[0], rows, networks.library), _volume(move, local)
        if int(span.size.max()) > 1:
            spent, engine_kernel, fused = tensor_parallel_seconds(
                move.kind, volume=volume, tokens=rows["mbs"], span=span, networks=networks
            )
            seconds[3] += np.where(engine_kernel, spent, 0.0)
            seconds[4] += np.where(engine_kernel, 0.0, spent)
            moves += 1
            if not block.has_head:
                seconds[2] -= np.where(fused, gap_s, 0.0)
    route = next((o for o in block.operators if o.kind is OperatorKind.ROUTE), None)
    if route is not None and ranks > 1:
        seconds[5] += expert_exchange_seconds(
            route, rows, networks=networks, hidden=_token_width(block)
        )
        moves += 2
    compiled = compiled_kernels(works, operators, products) + moves
    return ForwardSeconds(
        seconds=seconds, kernels=kernels + moves, opaque=opaque, compiled=compiled
    )


def forward_works(program: BlockProgram) -> list[BlockWork]:
    """Kernels of a block's forward, without those of routed experts and of the loss.

    Routed experts are one operator in an engine.
    """
    operators = {o.name: o for o in program.operators}
    forward = (w for w in program.works if w.phase is Phase.F)
    return [
        w
        for w in forward
        if operators[w.operator].kind is not OperatorKind.LOSS
        and not is_routed(operators[w.operator])
    ]


def joined_norms(program: BlockProgram) -> frozenset[str]:
    """Names of stream norms whose input is a residual or the block's: fused with that addition.

    Here or in the block before: norms of the stream between blocks.

    Source: vLLM's fused_add_rms_norm (csrc/layernorm_kernels.cu), FlashInfer's fused_add_rmsnorm,
    which SGLang and TensorRT-LLM call.
    """
    residual_outputs = {o.name for o in program.operators if o.kind is OperatorKind.RESIDUAL} | {
        "input"
    }
    norms = (
        o
        for o in program.operators
        if o.kind is OperatorKind.NORM and o.klass is OperatorClass.STREAM
    )
    return frozenset(o.name for o in norms if o.inputs[0] in residual_outputs)


def compiled_kernels(
    works: list[BlockWork], operators: dict[str, Operator], products: ServingGemms
) -> int:
    """Number of compiled kernels of a block: GEMMs, their casts, and runs of element-wise work.

    In a block behind another like it; runs include the casts for GEMMs.
    """
    count, in_run = 0, bool(works) and works[-1].kernel is KernelKind.ELEMENT
    for work in works:
        if work.kernel is KernelKind.ELEMENT:
            count += not in_run
        elif work.kernel is KernelKind.GEMM:
            count += 1 + (
                not in_run and is_cast(formats_of(products.precision, operators[work.operator]))
            )
        in_run = work.kernel is KernelKind.ELEMENT
    return count


EXPERT_KERNELS: Final = 5
"""Sort by expert, two grouped products, the gate between, and the sum."""


def is_cast(formats: OperatorPrecision) -> bool:
    """True if a GEMM's activations are narrower than BF16, and so cast by a separate kernel."""
    return formats.activations.bytes < NumberFormat.BF16.bytes


def _product_seconds(
    work: BlockWork, operator: Operator, local: Degrees, products: ServingGemms
) -> FloatArray:
    """Seconds of a GEMM of a block on one device, in the operator's number formats."""
    assert work.m is not None
    assert work.k is not None
    formats = formats_of(products.precision, operator)
    m, n, k = evaluate(work.m, local), evaluate_sum(work.n, local), evaluate(work.k, local)
    return small_gemm_seconds(
        products.by_format[formats.activations],
        m=m,
        n=n,
        k=k,
        weights=formats.weights,
        library=products.library,
    )


def _experts_seconds(
    block: Block, rows: DegreeRows, products: ServingGemms, *, skew: float
) -> FloatArray:
    """Seconds of a device's routed experts, for the tokens of a stage's data-parallel ranks."""
    operator = next(
        o
        for o in block.operators
        if o.kind is OperatorKind.GROUPED_LINEAR and not o.name.endswith("up")
    )
    assert operator.experts is not None
    formats, shape = formats_of(products.precision, operator), operator.experts
    (width,), (hidden,) = per_token(operator.reads, operator), per_token(operator.writes, operator)
    return routed_experts_seconds(
        products.by_format[formats.activations],
        tokens=stage_tokens(rows),
        experts=shape.experts,
        topk=shape.topk,
        hidden=hidden.size,
        width=width.size,
        local=-(-shape.experts // int(rows["ep"][0])),
        etp=int(rows["etp"][0]),
        weights=formats.weights,
        skew=skew,
        library=products.expert_library or products.library,
    )


def _element_seconds(work: BlockWork, local: Degrees, machine: Machine) -> FloatArray:
    """Seconds of an element-wise kernel without its launch: bytes over achieved bandwidth.

    It is one pass in every engine.
    """
    traffic = np.asarray(
        sum(evaluate(size, local) for size in (*work.read, *work.written)), dtype=np.float64
    )
    spent = element_seconds(
        machine, traffic=traffic, native=work.native, one_pass=True, by_row=work.by_row
    )
    return spent - machine.accelerator.launch_s


def _tensor_parallel_moves(program: BlockProgram) -> list[Move]:
    """Forward collectives over tensor-parallel ranks, in order; the head's is an all-gather.

    All-reduces; an all-gather for the head. Outputs of experts and shared experts are added up
    before, and reduced in one.
    """
    moves = [m for m in program.moves if m.phase is Phase.F and m.axes[0] == "tp"]
    if any(m.operator == "combine" for m in moves):
        moves = [m for m in moves if m.operator != "unpermute"]
    heads = {o.name for o in program.operators if o.kind is OperatorKind.LOSS}
    return [replace(m, kind=Collective.ALL_GATHER) if m.operator in heads else m for m in moves]


def _volume(move: Move, local: Degrees) -> FloatArray:
    """(t,) bytes that a collective moves: the sum of the move's symbolic volumes."""
    return np.asarray(sum(evaluate(size, local) for size in move.volume), dtype=np.float64)


def _token_width(block: Block) -> int:
    """Number of elements of a token between blocks."""
    return int(np.prod([e.size for e in block.operators[-1].writes]))


def stage_tokens(rows: DegreeRows) -> IntArray:
    """(t,) number of tokens of all data-parallel ranks of a stage."""
    return np.asarray(rows["mbs"] * rows["dp"])
