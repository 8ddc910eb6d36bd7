"""Seconds of a serving engine's all-reduces and of its exchange of tokens with experts.

The engine's own kernels run small all-reduces, the library the rest.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from shardwright.arrays import BoolArray, FloatArray, IntArray
from shardwright.collectives.algorithm_costs.algorithm_protocol import Collective
from shardwright.collectives.groups.span_members_by_network_tier import Span
from shardwright.cost.inference.measured_kernel_library_of_engine import library_of
from shardwright.cost.inference.token_exchange import TokenExchange, dispatch_and_combine_seconds
from shardwright.cost.network.grid_groups_and_collective_seconds import (
    Network,
    move_seconds,
    network_of,
    spans_along,
)
from shardwright.cost.parallel_degree_columns import DegreeRows
from shardwright.hardware.catalog.compute_capability_by_gpu import generation_of
from shardwright.hardware.cluster import Cluster
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.ir.operator import Operator
from shardwright.runtime.serving_engines.default_rules_by_device import (
    AllReduceKind,
    all_reduce_range,
)
from shardwright.runtime.serving_engines.serving_engine import Engine, ExpertExchange

LOW_LATENCY_TOKENS: Final = 256
"""Most tokens of a rank that DeepEP's kernels for latency take.

Source: SGLang, SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK = 128, raised to 256 in its DeepSeek
scripts; vLLM, VLLM_MOE_DP_CHUNK_SIZE = 256 (from memory).
"""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EngineNetworks:
    """Networks of one cluster under the collective libraries that an engine uses.

    Args:
        library: NCCL alone.
        own: with the engine's kernels.
        engine: its limits say which all-reduces its kernels take, on devices of `generation`.
        exchanging: the network of the library that moves tokens to experts.
    """

    library: Network
    own: Network
    engine: Engine
    generation: int
    exchanging: Network


def engine_networks(cluster: Cluster, engine: Engine) -> EngineNetworks:
    """Networks of an engine on a cluster: NCCL, the engine's kernels, and its token exchange.

    See `engine_on_device`.
    """
    library, name = network_of(cluster), library_of(engine)
    suffix = "-multimem" if engine.multimem and name else ""
    exchange_library = {ExpertExchange.DEEPEP: "deepep", ExpertExchange.ONE_SIDED: "one-sided"}.get(
        engine.exchange
    )
    return EngineNetworks(
        library=library,
        own=network_of(cluster, library=f"{name}{suffix}") if name else library,
        engine=engine,
        generation=generation_of(cluster.node.accelerator),
        exchanging=network_of(cluster, library=exchange_library) if exchange_library else library,
    )


def tensor_parallel_seconds(
    kind: Collective, *, volume: FloatArray, tokens: IntArray, span: Span, networks: EngineNetworks
) -> tuple[FloatArray, BoolArray, BoolArray]:
    """(t,) seconds of a TP collective; where an engine kernel runs it; where that fuses the norm.

    The second array is True where it is a kernel of the engine, the third where the residual and
    the norm behind it are in that kernel.

    An engine's limits say which of its kernels takes an all-reduce; the library takes the others,
    and those that it runs faster.

    Args:
        volume: bytes of a rank's buffer.
        tokens: tokens in it.
    """
    spent = move_seconds(kind, volume=volume, span=span, network=networks.library)
    taken, fused = np.zeros((2, len(volume)), dtype=np.bool_)
    if kind is not Collective.ALL_REDUCE:
        return spent, taken, fused
    by_engine = move_seconds(kind, volume=volume, span=span, network=networks.own)
    engine, ranks = networks.engine, span.size
    for row, (size_bytes, count) in enumerate(zip(volume.tolist(), tokens.tolist(), strict=True)):
        limit = all_reduce_range(
            engine.sums,
            generation=networks.generation,
            ranks=int(ranks[row]),
            tokens=count,
            hidden=round(size_bytes / (2 * count)) if count else 0,
            size_bytes=size_bytes,
            fused=engine.fused_all_reduce,
            multimem=engine.multimem,
        )
        if limit.kind is not AllReduceKind.LIBRARY:
            taken[row] = by_engine[row] < spent[row]
            spent[row] = min(spent[row], by_engine[row])
            fused[row] = limit.fused
    return spent, taken, fused


def expert_exchange_seconds(
    route: Operator, rows: DegreeRows, *, networks: EngineNetworks, hidden: int
) -> FloatArray:
    """(t,) seconds of an MoE layer's dispatch of tokens and combine, by the engine's library.

    Args:
        route: the operator that chooses experts.
        rows: ``mbs`` tokens of each rank.
        hidden: elements of a token.

    Leaves out that a dispatch may send fewer bits than a combine.
    """
    assert route.experts is not None
    tokens = rows["mbs"]
    (span, *_) = spans_along("coset", rows, networks.library)
    shape = route.experts

    def dispatch_and_combine_s(way: TokenExchange) -> FloatArray:
        """(t,) seconds of a dispatch and its combine by the exchange `way`."""
        dispatch_s, combine_s = dispatch_and_combine_seconds(
            way,
            tokens=tokens,
            hidden=hidden,
            topk=shape.topk,
            span=span,
            network=networks.exchanging,
            groups=(shape.groups, shape.of_groups),
        )
        return dispatch_s + combine_s

    if networks.engine.exchange is ExpertExchange.DEEPEP:
        return np.where(
            tokens <= LOW_LATENCY_TOKENS,
            dispatch_and_combine_s(TokenExchange.LOW_LATENCY),
            dispatch_and_combine_s(TokenExchange.NORMAL),
        )
    return dispatch_and_combine_s(_WAYS[networks.engine.exchange])


_WAYS: Final = {
    ExpertExchange.GATHERED: TokenExchange.GATHERED,
    ExpertExchange.ALL_TO_ALL: TokenExchange.ALL_TO_ALL,
    ExpertExchange.ONE_SIDED: TokenExchange.ONE_SIDED,
}
