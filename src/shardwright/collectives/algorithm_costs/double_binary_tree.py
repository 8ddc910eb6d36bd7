"""Double binary tree all-reduce and broadcast: two trees over the islands, each for half of V.

V is the buffer; inner nodes of one tree are leaves of the other.

Inside an island the members form a chain, with as many chains as members (one a network card), as
NCCL builds them. N islands:

    alpha = r * ((c_0 - 1) latency_0 + sum over tiers above of ceil(log2 m_k) latency_k)
    beta  = max(2 (c_0 - 1)/c_0 / bandwidth_0,  2 / (c_(k-1) bandwidth_k))      all_reduce
    beta  = max(1 / bandwidth_0,  1 / (c_(k-1) bandwidth_k))                    broadcast

with r = 2 for all_reduce, 1 for broadcast; the second term of an all_reduce's beta is halved for
N = 2.

An inner node with two children sends V/2 up and 2 * V/2 down in its own tree and V/2 up in the
other: 2V in all, whatever the number of islands. A broadcast's root starts all chains of its
island: V. Left out: pipeline fill (one piece a level).

Sources: Sanders, Speck & Traeff 2009 (Parallel Computing 35), sections 2 and 3 (from memory);
Jeaugey 2019, "Massively Scale Your Deep Learning Training with NCCL 2.4" (NVIDIA blog); chain
inside the node as in NCCL's src/graph/tuning.cc.
"""

from __future__ import annotations

import numpy as np

from shardwright.arrays import FloatArray
from shardwright.collectives.algorithm_costs.algorithm_protocol import Collective
from shardwright.collectives.algorithm_costs.alpha_beta_algorithm import Line, LinearAlgorithm
from shardwright.collectives.groups.span_cost_quantities import SpanQuantities, crosses, tree_depth


def _sent_in_island(kind: Collective, quantities: SpanQuantities) -> FloatArray:
    """Bytes that an island's busiest of m sends in its chain, a byte of volume: 2 - 2/m, or 1."""
    if kind is Collective.ALL_REDUCE:
        return 2.0 * (1.0 - quantities.inverse[1])
    return (quantities.inverse[1] < 1.0).astype(np.float64)


def sent_by_island(kind: Collective, quantities: SpanQuantities) -> FloatArray:
    """Bytes that a double binary tree's busiest island sends, a byte of volume: 0, 1 or 2.

    0 for groups inside one island.
    """
    if kind is Collective.ALL_REDUCE:
        return quantities.leaves_island * (1.0 + (quantities.islands > 2.0))
    return quantities.leaves_island


def shares_between_islands(kind: Collective, quantities: SpanQuantities) -> tuple[FloatArray, ...]:
    """Bytes that a smallest unit's member sends by network tier in a tree, a byte of volume.

    The traffic between islands is shared by the members of an island.
    """
    outside = sent_by_island(kind, quantities)
    return tuple(
        outside * quantities.fewest_inverse[tier] * crosses(quantities, tier)
        for tier in range(1, len(quantities.inverse) - 1)
    )


def _line(kind: Collective, quantities: SpanQuantities) -> Line:
    """Latency and seconds a byte of an all-reduce or broadcast along NCCL's double binary tree."""
    latency_s = seconds_per_byte = quantities.zero
    outside = sent_by_island(kind, quantities)
    for level in quantities.levels:
        if level.tier == 0:
            latency_s = latency_s + (level.members - 1.0) * level.latency_s
            seconds_per_byte = _sent_in_island(kind, quantities) * level.seconds_per_byte
        else:
            latency_s = latency_s + tree_depth(level.members) * level.latency_s
            sent = outside * (level.members > 1.0) * level.fewest_inverse
            seconds_per_byte = np.maximum(seconds_per_byte, sent * level.seconds_per_byte)
    if kind is Collective.ALL_REDUCE:
        latency_s = latency_s * 2.0
    return Line(latency_s=latency_s, seconds_per_byte=seconds_per_byte)


def _shares(kind: Collective, quantities: SpanQuantities) -> tuple[FloatArray, ...]:
    """Bytes that a member sends over each tier in a double binary tree, a byte of volume."""
    return (_sent_in_island(kind, quantities), *shares_between_islands(kind, quantities))


DOUBLE_BINARY_TREE = LinearAlgorithm(
    name="double_binary_tree",
    kinds=frozenset({Collective.ALL_REDUCE, Collective.BROADCAST}),
    line=_line,
    shares=_shares,
)
