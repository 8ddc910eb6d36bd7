"""All-reduces of serving engines' own kernels inside an island: one-shot, two-shot, multimem.

One launch, no channels to start.

one_shot: every member reads the whole buffers of all others and adds them up itself, between two
barriers of flags:

    alpha = 3 latency_0,   beta = (n - 1) / bandwidth_0

two_shot: every member sums its 1/n of the buffer, then all read the sums:

    alpha = 5 latency_0,   beta = 2 (n - 1)/n / bandwidth_0

multimem: the switch sums; a member reads its 1/n of the sum and writes it back to all in one kernel
(see `nvlink_sharp` for the bytes):

    alpha = 5 latency_0,   beta = (n + 1)/n / (0.8 bandwidth_0)

Legal for groups inside one island; multimem where its switch reduces. Latencies in hops of a ring
are read off the tables of graphs that replay vLLM's, SGLang's and TensorRT-LLM's sums
(aiconfigurator-core 0.12.0): 2.6 to 4.7 us at 256 bytes over 8 H200, whose hop is 1.3 us, and 28 us
at 4 MiB, of which the bytes take 22. Left out: the size up to which an engine uses them (a fact of
the engine), buffers that must be registered, and the residual and norm that some kernels do on the
way.

Sources: vLLM, csrc/custom_all_reduce.cuh (one and two shots); TensorRT-LLM,
cpp/tensorrt_llm/kernels/customAllReduceKernels.cu; PyTorch, symmetric memory's multimem_all_reduce;
all from memory.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from shardwright.arrays import FloatArray
from shardwright.collectives.algorithm_costs.algorithm_protocol import Collective
from shardwright.collectives.algorithm_costs.alpha_beta_algorithm import (
    Line,
    LinearAlgorithm,
    where_legal,
)
from shardwright.collectives.algorithm_costs.nvlink_sharp_all_reduce import LINK_SHARE
from shardwright.collectives.groups.span_cost_quantities import SpanQuantities

ONE_BARRIER: Final = 3.0
TWO_BARRIERS: Final = 5.0
_KINDS: Final = frozenset({Collective.ALL_REDUCE})


def _one_shot_bytes(quantities: SpanQuantities) -> FloatArray:
    """Bytes that a member reads in a one-shot all-reduce, a byte of volume: members - 1."""
    return quantities.size - 1.0


def _two_shot_bytes(quantities: SpanQuantities) -> FloatArray:
    """Bytes that a member reads in a two-shot all-reduce, a byte of volume: 2 (1 - 1 / members)."""
    return 2.0 * quantities.others


def _multimem_bytes(quantities: SpanQuantities) -> FloatArray:
    """Bytes that a member moves in a switch's all-reduce, a byte of volume: 1 + 1 / members."""
    return 1.0 + quantities.inverse[-1]


def _line(
    kind: Collective,
    quantities: SpanQuantities,
    *,
    hops: float,
    moved: Callable[[SpanQuantities], FloatArray],
    link_share: float = 1.0,
    by_switch: bool = False,
) -> Line:
    """Latency and seconds a byte of a one-kernel all-reduce; inf for groups outside one island.

    Args:
        hops: start, in latencies of the island's links.
        moved: bytes that a member moves, a byte of volume.
        link_share: part of a ring's bandwidth that the kernel reaches.
        by_switch: the island's switch sums.
    """
    level = next((level for level in quantities.levels if level.tier == 0), None)
    has_peers = quantities.size > 1.0
    latency_s = seconds_per_byte = quantities.zero
    legal = ~has_peers
    if level is not None:
        latency_s = hops * level.latency_s * has_peers
        seconds_per_byte = moved(quantities) / link_share * level.seconds_per_byte * has_peers
        in_one_island = quantities.inverse[1] <= quantities.inverse[-1]
        legal |= in_one_island & (quantities.span.in_network_reduction or not by_switch)
    return where_legal(Line(latency_s=latency_s, seconds_per_byte=seconds_per_byte), legal)


def _shares(
    kind: Collective, quantities: SpanQuantities, *, moved: Callable[[SpanQuantities], FloatArray]
) -> tuple[FloatArray, ...]:
    """Bytes that a one-kernel all-reduce's member sends by tier, a byte of volume: island only."""
    inside = moved(quantities) * (quantities.size > 1.0)
    return (inside, *(quantities.zero for _ in quantities.inverse[2:]))


ONE_SHOT = LinearAlgorithm(
    name="one_shot",
    kinds=_KINDS,
    line=partial(_line, hops=ONE_BARRIER, moved=_one_shot_bytes),
    shares=partial(_shares, moved=_one_shot_bytes),
)
TWO_SHOT = LinearAlgorithm(
    name="two_shot",
    kinds=_KINDS,
    line=partial(_line, hops=TWO_BARRIERS, moved=_two_shot_bytes),
    shares=partial(_shares, moved=_two_shot_bytes),
)
MULTIMEM = LinearAlgorithm(
    name="multimem",
    kinds=_KINDS,
    line=partial(
        _line, hops=TWO_BARRIERS, moved=_multimem_bytes, link_share=LINK_SHARE, by_switch=True
    ),
    shares=partial(_shares, moved=_multimem_bytes),
)
