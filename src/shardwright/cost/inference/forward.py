"""Seconds of a block's forward over any number of tokens at once, but for what depends on contexts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

import numpy as np

from shardwright.arrays import FloatArray, IntArray
from shardwright.collectives.algorithm import Collective
from shardwright.cost.communication import Network, move_seconds, spans_along
from shardwright.cost.compute import element_seconds
from shardwright.cost.degree_rows import Rows
from shardwright.cost.inference.exchange import exchange_seconds
from shardwright.cost.inference.products import Products, expert_seconds, product_seconds
from shardwright.model.ir.block import Block
from shardwright.model.ir.operator import Operator, OperatorClass, OperatorKind
from shardwright.program.block.block import BlockProgram, BlockWork, Kernel, Move, Phase
from shardwright.program.block.grid_structure import Structure
from shardwright.program.block.local_size import Context
from shardwright.program.block.lower_block import lower_block
from shardwright.program.block.placement import is_routed
from shardwright.program.block.sizes import Degrees, evaluate, evaluate_sum
from shardwright.runtime.engines.engine import ExpertExchange
from shardwright.runtime.engines.forward import FORWARD

PARTS: Final = ("products", "experts", "elements", "sums", "exchange")
_BY_CONTEXT: Final = (Kernel.ATTENTION, Kernel.SCAN)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ForwardSeconds:
    """Of a block, (parts, t): see `PARTS`; without the launches of its kernels, of which there are so many."""

    seconds: FloatArray
    kernels: int

    @property
    def total(self) -> FloatArray:
        """(t,) of all parts."""
        return np.asarray(self.seconds.sum(axis=0))


@lru_cache(maxsize=256)
def forward_program(block: Block, *, routed: bool) -> BlockProgram:
    """The block lowered for one position of as many samples as there are tokens.

    Args:
        routed: tokens are sent to their experts; else every device of a stage has them all.
    """
    context = Context(
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
    rows: Rows,
    *,
    products: Products,
    network: Network,
    exchange: ExpertExchange,
    skew: float,
    fused_sums: bool,
) -> ForwardSeconds:
    """Price the forward of a block for every row.

    Args:
        rows: degrees of a worker's stage; ``mbs`` = tokens of a rank. skew: see `ServingJob.expert_skew`.
        fused_sums: a sum over ranks, the residual and the norm behind it are one kernel.
    """
    ranks = int(rows["dp"][0])
    program = forward_program(block, routed=ranks > 1)
    operators = {o.name: o for o in program.operators}
    local = rows.degrees()
    found, kernels = np.zeros((len(PARTS), len(rows))), 0
    for work in (w for w in program.works if w.phase is Phase.F and w.kernel not in _BY_CONTEXT):
        operator = operators[work.operator]
        if operator.kind is OperatorKind.LOSS or _is_gathered(operator):
            continue
        part, spent = _work_seconds(work, operator, rows, local, products, skew=skew)
        found[part] += spent
        kernels += 1
    kernels += sum(w.kernel in _BY_CONTEXT for w in program.works if w.phase is Phase.F)
    for move in _sums(program):
        (span, *_), volume = spans_along(move.axes[0], rows, network), _volume(move, local)
        if int(span.size.max()) > 1:
            found[3] += move_seconds(move.kind, volume=volume, span=span, network=network)
            kernels += 1
            if fused_sums and move.kind is Collective.ALL_REDUCE:
                kernels -= 2
    experts = next((o for o in block.operators if o.kind is OperatorKind.ROUTE), None)
    if experts is not None and ranks > 1:
        found[4] += exchange_seconds(exchange, experts, rows, network=network, hidden=_width(block))
        kernels += 2
    return ForwardSeconds(seconds=found, kernels=max(kernels, 0))


def _work_seconds(
    work: BlockWork, operator: Operator, rows: Rows, local: Degrees, products: Products, *, skew: float
) -> tuple[int, FloatArray]:
    """Part and seconds of a kernel that no context enters."""
    machine = products.machine
    if work.kernel is Kernel.GROUPED_GEMM:
        own = {**local, "tp": local["etp"]}
        assert work.k is not None
        sizes = evaluate_sum(work.n, own), evaluate(work.k, own)
        return 1, expert_seconds(products, operator, rows, outputs=sizes[0], inputs=sizes[1], skew=skew)
    if work.kernel is Kernel.GEMM:
        assert work.m is not None
        assert work.k is not None
        m, n, k = evaluate(work.m, local), evaluate_sum(work.n, local), evaluate(work.k, local)
        return 0, product_seconds(products, operator, m=m, n=n, k=k)
    traffic = np.zeros(len(rows))
    for size in (*work.read, *work.written):
        traffic = traffic + evaluate(size, local)
    if is_routed(operator):
        # Routed copies are those of one rank's tokens; a device works on the copies of its own experts.
        traffic = traffic * (rows["dp"] / np.maximum(rows["ep"], 1))
    return 2, element_seconds(
        machine, traffic=traffic, native=work.native, one_pass=True, by_row=work.by_row
    ) - machine.accelerator.launch_s


def _is_gathered(operator: Operator) -> bool:
    """Copies of tokens are no kernel's own: those of experts read their rows where the tokens lie (vLLM's fused_moe, FlashInfer's fused
    MoE).
    """
    return operator.kind is OperatorKind.PERMUTE and not operator.name.endswith("unpermute")


def _sums(program: BlockProgram) -> list[Move]:
    """Sums over tensor parallel ranks in the order of the operators. What experts and shared experts make is added up before, in one."""
    moves = [m for m in program.moves if m.phase is Phase.F and m.axes[0] == "tp"]
    if any(m.operator == "combine" for m in moves):
        moves = [m for m in moves if m.operator != "unpermute"]
    heads = {o.name for o in program.operators if o.kind is OperatorKind.LOSS}
    return [replace(m, kind=Collective.ALL_GATHER) if m.operator in heads else m for m in moves]


def _volume(move: Move, local: Degrees) -> FloatArray:
    return np.asarray(sum(evaluate(size, local) for size in move.volume), dtype=np.float64)


def _width(block: Block) -> int:
    """Elements of a token between blocks."""
    return int(np.prod([e.size for e in block.operators[-1].writes]))


def is_head(block: Block) -> bool:
    """The block makes logits, of the tokens alone that are sampled from."""
    return any(o.klass is OperatorClass.HEAD for o in block.operators)


def stage_tokens(rows: Rows) -> IntArray:
    """(t,) tokens of all ranks of a stage."""
    return np.asarray(rows["mbs"] * rows["dp"])
