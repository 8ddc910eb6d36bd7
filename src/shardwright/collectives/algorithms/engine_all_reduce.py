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

from typing import Final

import numpy as np

from shardwright.arrays import BoolArray, FloatArray
from shardwright.collectives.algorithms.algorithm_protocol import Collective
from shardwright.collectives.algorithms.linear_algorithm import Line, LinearAlgorithm, where_legal
from shardwright.collectives.algorithms.nvlink_sharp import LINK_SHARE
from shardwright.collectives.groups.tier_quantities import Level, SpanQuantities

ONE_BARRIER: Final = 3.0
TWO_BARRIERS: Final = 5.0
_KINDS: Final = frozenset({Collective.ALL_REDUCE})


def _in_one_island(quantities: SpanQuantities) -> BoolArray:
    """(groups,) True for groups that have all members in one island."""
    return np.asarray(quantities.inverse[1] <= quantities.inverse[-1], dtype=np.bool_)


def _island(quantities: SpanQuantities) -> Level | None:
    """The level of the island (tier 0) among the levels; None if no group crosses it."""
    return next((level for level in quantities.levels if level.tier == 0), None)


def _shares(quantities: SpanQuantities, share: FloatArray) -> tuple[FloatArray, ...]:
    """Bytes that a member sends over each tier's links: `share` inside the island, else 0.

    A byte of volume.
    """
    return (share * (quantities.size > 1.0), *(quantities.zero for _ in quantities.inverse[2:]))


def _line(quantities: SpanQuantities, *, hops: float, share: FloatArray, legal: BoolArray) -> Line:
    """Latency (`hops` island hops) and seconds a byte of an in-island kernel; inf where illegal."""
    level = _island(quantities)
    has_peers = quantities.size > 1.0
    if level is None:
        return where_legal(
            Line(latency_s=quantities.zero, seconds_per_byte=quantities.zero), ~has_peers
        )
    line = Line(
        latency_s=hops * level.latency_s * has_peers,
        seconds_per_byte=share * level.seconds_per_byte * has_peers,
    )
    return where_legal(line, legal | ~has_peers)


def _one_shot_bytes(quantities: SpanQuantities) -> FloatArray:
    """Bytes that a member reads in a one-shot all-reduce, a byte of volume."""
    return quantities.size - 1.0


def _two_shot_bytes(quantities: SpanQuantities) -> FloatArray:
    """Bytes that a member reads in a two-shot all-reduce, a byte of volume."""
    return 2.0 * quantities.others


def _multimem_bytes(quantities: SpanQuantities) -> FloatArray:
    """Bytes that a member moves in an all-reduce by the switch, a byte of volume."""
    return 1.0 + quantities.inverse[-1]


def _one_shot(kind: Collective, quantities: SpanQuantities) -> Line:
    """Latency and seconds a byte of a one-shot all-reduce."""
    return _line(
        quantities,
        hops=ONE_BARRIER,
        share=_one_shot_bytes(quantities),
        legal=_in_one_island(quantities),
    )


def _two_shot(kind: Collective, quantities: SpanQuantities) -> Line:
    """Latency and seconds a byte of a two-shot all-reduce."""
    return _line(
        quantities,
        hops=TWO_BARRIERS,
        share=_two_shot_bytes(quantities),
        legal=_in_one_island(quantities),
    )


def _multimem(kind: Collective, quantities: SpanQuantities) -> Line:
    """Latency and seconds a byte of an all-reduce by the switch (multimem)."""
    legal = _in_one_island(quantities) & quantities.span.in_network_reduction
    return _line(
        quantities, hops=TWO_BARRIERS, share=_multimem_bytes(quantities) / LINK_SHARE, legal=legal
    )


def _one_shot_shares(kind: Collective, quantities: SpanQuantities) -> tuple[FloatArray, ...]:
    """Bytes that a member sends over each tier in a one-shot all-reduce, a byte of volume."""
    return _shares(quantities, _one_shot_bytes(quantities))


def _two_shot_shares(kind: Collective, quantities: SpanQuantities) -> tuple[FloatArray, ...]:
    """Bytes that a member sends over each tier in a two-shot all-reduce, a byte of volume."""
    return _shares(quantities, _two_shot_bytes(quantities))


def _multimem_shares(kind: Collective, quantities: SpanQuantities) -> tuple[FloatArray, ...]:
    """Bytes that a member sends over each tier in a multimem all-reduce, a byte of volume."""
    return _shares(quantities, _multimem_bytes(quantities))


ONE_SHOT = LinearAlgorithm(name="one_shot", kinds=_KINDS, line=_one_shot, shares=_one_shot_shares)
TWO_SHOT = LinearAlgorithm(name="two_shot", kinds=_KINDS, line=_two_shot, shares=_two_shot_shares)
MULTIMEM = LinearAlgorithm(name="multimem", kinds=_KINDS, line=_multimem, shares=_multimem_shares)
