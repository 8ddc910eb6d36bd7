"""NVLink SHARP all-reduce: the switch reduces in the island, a double binary tree joins islands.

The island's switch reduces and multicasts; each member is on its own network card.

A member reads its 1/c_0 of the sum through the switch (every member sends V for that in all) and
writes it back once as a multicast: it sends V + V/c_0 and receives as much, against 2 (c_0-1)/c_0 V
of a ring.

    alpha = 14 latency_0 + 2 * sum over tiers above of ceil(log2 m_k) latency_k
    beta  = max((c_0 + 1)/c_0 / (0.8 bandwidth_0),  2 / (c_(k-1) bandwidth_k))

Pipelined; over two islands the second term of beta is half of that.

0.8 of what a ring's links reach: 512 MiB over 8 devices has a bus bandwidth of 445 (H100), 461
(H200), 702 (B200) and 701 GB/s (B300) where the formula without it gives 523, 524, 958 and 960:
0.85, 0.88, 0.73 and 0.73, from the NCCL tables of aiconfigurator-core 0.12.0. 14 hops (those of a
ring of 8) is the latency of the alpha-beta fits of the same tables over 8 devices, 18 us on H100
and 27 us on B200; with both, H100 at 128 MiB comes to 405 GB/s, measured 406.

Legal for all_reduce where the switch can reduce and the group has at least two members an island.
Left out: limits on channels and on the number of groups the switch serves at a time; all_gather and
reduce_scatter by multicast (no fewer bytes in the busier direction).

Sources: Klenk et al. 2020, "An In-Network Architecture for Accelerating Shared-Memory
Multiprocessor Collectives" (ISCA), sections 3 and 4 (from memory); NCCL 2.17 release notes (NVLS,
from memory) and src/graph/tuning.cc (NVLS_TREE: intra + 2 log2(nodes) inter).
"""

from __future__ import annotations

from typing import Final

import numpy as np

from shardwright.arrays import FloatArray
from shardwright.collectives.algorithm_costs.algorithm_protocol import Collective
from shardwright.collectives.algorithm_costs.alpha_beta_algorithm import (
    Line,
    LinearAlgorithm,
    where_legal,
)
from shardwright.collectives.algorithm_costs.double_binary_tree import (
    sent_by_island,
    shares_between_islands,
)
from shardwright.collectives.groups.span_cost_quantities import SpanQuantities, tree_depth

LINK_SHARE: Final = 0.8
START_HOPS: Final = 14.0


def _sent_in_island(quantities: SpanQuantities) -> FloatArray:
    """Bytes that one of m members in an island sends by its switch, a byte of volume: 1 + 1/m."""
    return (1.0 + quantities.inverse[1]) * (quantities.inverse[1] < 1.0)


def _line(kind: Collective, quantities: SpanQuantities) -> Line:
    """Latency, seconds a byte of an all-reduce: NVLink SHARP in islands, a tree between; or inf."""
    latency_s = seconds_per_byte = quantities.zero
    outside = sent_by_island(kind, quantities)
    for level in quantities.levels:
        if level.tier == 0:
            latency_s = latency_s + START_HOPS * level.latency_s * (level.members > 1.0)
            seconds_per_byte = _sent_in_island(quantities) * level.seconds_per_byte / LINK_SHARE
        else:
            latency_s = latency_s + 2.0 * tree_depth(level.members) * level.latency_s
            sent = outside * (level.members > 1.0) * level.fewest_inverse
            seconds_per_byte = np.maximum(seconds_per_byte, sent * level.seconds_per_byte)
    legal = (quantities.inverse[1] < 1.0) & quantities.span.in_network_reduction | (
        quantities.size == 1.0
    )
    return where_legal(Line(latency_s=latency_s, seconds_per_byte=seconds_per_byte), legal)


def _shares(kind: Collective, quantities: SpanQuantities) -> tuple[FloatArray, ...]:
    """Bytes that a member sends over each tier in an NVLink SHARP all-reduce, a byte of volume."""
    return (_sent_in_island(quantities), *shares_between_islands(kind, quantities))


NVLINK_SHARP = LinearAlgorithm(
    name="nvlink_sharp", kinds=frozenset({Collective.ALL_REDUCE}), line=_line, shares=_shares
)
