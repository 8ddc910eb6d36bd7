"""What an engine's collectives run on: its own kernels for small sums, the library's for the rest, and who moves tokens to experts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from shardwright.arrays import FloatArray
from shardwright.collectives.algorithm import Collective
from shardwright.collectives.span import Span
from shardwright.cost.communication import Network, move_seconds, network_of, spans_along
from shardwright.cost.degree_rows import Rows
from shardwright.cost.inference.token_exchange import TokenExchange, exchange_ways
from shardwright.hardware.cluster import Cluster
from shardwright.model.ir.operator import Operator
from shardwright.runtime.engines.engine import Engine, ExpertExchange

LIBRARY_OF: Final = {"vllm": "vllm", "sglang": "sglang", "tensorrt-llm": "trtllm"}
"""Names that measured kernels have by engine."""
LOW_LATENCY_TOKENS: Final = 256
"""Most tokens of a rank that DeepEP's kernels for latency take.

Source: SGLang, SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK = 128, raised to 256 in its DeepSeek scripts; vLLM, VLLM_MOE_DP_CHUNK_SIZE =
256 (from memory).
"""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EngineNetworks:
    """Networks of one cluster as an engine uses them.

    Args:
        library: NCCL alone. own: with the engine's kernels, which take buffers of at most `own_bytes`. exchange: who moves tokens to
            experts;
            exchanging: that library's network. fused_sums: a sum over ranks, the residual and the norm behind it are one kernel.
    """

    library: Network
    own: Network
    own_bytes: int
    exchange: ExpertExchange
    exchanging: Network
    fused_sums: bool


def engine_networks(cluster: Cluster, engine: Engine) -> EngineNetworks:
    """Those of an engine on its devices (`runtime.engines.devices.on_device`)."""
    library = network_of(cluster)
    name = LIBRARY_OF.get(engine.engine, "nccl")
    suffix = "-multimem" if engine.multimem and name != "nccl" else ""
    moved = {ExpertExchange.DEEPEP: "deepep", ExpertExchange.ONE_SIDED: "one-sided"}.get(engine.exchange)
    return EngineNetworks(
        library=library,
        own=network_of(cluster, library=f"{name}{suffix}"),
        own_bytes=engine.custom_all_reduce_bytes,
        exchange=engine.exchange,
        exchanging=network_of(cluster, library=moved) if moved else library,
        fused_sums=engine.fused_all_reduce,
    )


def sum_seconds(kind: Collective, *, volume: FloatArray, span: Span, networks: EngineNetworks) -> FloatArray:
    """(t,) seconds of a collective over tensor parallel ranks: by the engine's kernels up to their largest buffer, no slower than that
    beyond.
    """
    spent = move_seconds(kind, volume=volume, span=span, network=networks.library)
    small = volume <= networks.own_bytes
    if kind is not Collective.ALL_REDUCE or not small.any():
        return spent
    own = move_seconds(kind, volume=volume, span=span, network=networks.own)
    return np.asarray(np.where(small, np.minimum(own, spent), spent), dtype=np.float64)


def exchange_seconds(route: Operator, rows: Rows, *, networks: EngineNetworks, hidden: int) -> FloatArray:
    """(t,) seconds that tokens take to their experts and back.

    Args:
        route: the operator that chooses experts. rows: ``mbs`` tokens of each rank. hidden: elements of a token.

    Leaves out that a dispatch may send fewer bits than a combine.
    """
    assert route.experts is not None
    tokens = rows["mbs"]
    (span, *_) = spans_along("coset", rows, networks.library)
    shape = route.experts

    def both(way: TokenExchange) -> FloatArray:
        there, back = exchange_ways(
            way,
            tokens=tokens,
            hidden=hidden,
            topk=shape.topk,
            span=span,
            network=networks.exchanging,
            groups=(shape.groups, shape.of_groups),
        )
        return there + back

    if networks.exchange is ExpertExchange.DEEPEP:
        return np.where(tokens <= LOW_LATENCY_TOKENS, both(TokenExchange.LOW_LATENCY), both(TokenExchange.NORMAL))
    return both(_WAYS[networks.exchange])


_WAYS: Final = {
    ExpertExchange.GATHERED: TokenExchange.GATHERED,
    ExpertExchange.ALL_TO_ALL: TokenExchange.ALL_TO_ALL,
    ExpertExchange.ONE_SIDED: TokenExchange.ONE_SIDED,
}
