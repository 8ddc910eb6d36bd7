"""All-to-all of serving engines' token exchange, by direct writes to the experts' devices.

Every member writes straight into the others' buffers, all at the same time.

low_latency (DeepEP): a copy for each expert, over NVLink inside a node and over each member's own
card between nodes; no copy is passed on.

    alpha = 9 latency_0 + 2 latency_k, k the outermost network tier crossed
    beta  = max((c_0 - 1)/n / (0.75 bandwidth_0),  (n - c_(k-1))/n / bandwidth_k)

one_sided (TensorRT-LLM): the same inside an island, in one kernel behind a barrier:

    alpha = 9 latency_0,   beta = (n - 1)/n / (0.75 bandwidth_0)

Volumes are the bytes of all copies of one member's tokens. Nine hops and three quarters of a ring's
bandwidth are read off the tables of aiconfigurator-core 0.12.0: one token takes 12 to 13 us over 8
H200 (a hop is 1.3 us), 22 over 8 B200 (1.96), 17 over 4 GB200; copies move at 0.64 to 1.0 of the
ring's rate, dispatch and combine of 7168 elements. Left out: the difference between dispatch and
combine, headers, the layout of buffers, the receiver's work on tokens; the measured curves include
it.

Sources: DeepSeek-AI, DeepEP (low-latency kernels, README); TensorRT-LLM,
cpp/tensorrt_llm/kernels/communicationKernels (moeAlltoAll), from memory.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from shardwright.collectives.algorithm_costs.algorithm_protocol import Collective
from shardwright.collectives.algorithm_costs.all_to_all_pairwise_hierarchical import (
    pairwise_shares,
)
from shardwright.collectives.algorithm_costs.alpha_beta_algorithm import (
    Line,
    LinearAlgorithm,
    where_legal,
)
from shardwright.collectives.groups.span_cost_quantities import SpanQuantities

ISLAND_HOPS: Final = 9.0
NETWORK_HOPS: Final = 2.0
LINK_SHARE: Final = 0.75
_KINDS: Final = frozenset({Collective.ALL_TO_ALL})


def _low_latency(kind: Collective, quantities: SpanQuantities) -> Line:
    """Latency and seconds a byte of DeepEP's low-latency all-to-all."""
    outermost = seconds_per_byte = quantities.zero
    start = ISLAND_HOPS * quantities.prepared.latency_s[0] * (quantities.size > 1.0)
    size_inverse = quantities.inverse[-1]
    for level in quantities.levels:
        inside = 1.0 / level.inside_inverse
        crossed = level.members > 1.0
        if level.tier == 0:
            sent = (level.members - 1.0) * size_inverse / LINK_SHARE
        else:
            sent = (1.0 - inside * size_inverse) * crossed
            outermost = np.where(crossed, NETWORK_HOPS * level.latency_s, outermost)
        seconds_per_byte = np.maximum(seconds_per_byte, sent * level.seconds_per_byte)
    return Line(latency_s=start + outermost, seconds_per_byte=seconds_per_byte)


def _one_sided(kind: Collective, quantities: SpanQuantities) -> Line:
    """Latency and seconds a byte of TensorRT-LLM's one-sided all-to-all; inf outside an island."""
    return where_legal(
        _low_latency(kind, quantities), quantities.inverse[1] <= quantities.inverse[-1]
    )


LOW_LATENCY = LinearAlgorithm(
    name="low_latency", kinds=_KINDS, line=_low_latency, shares=pairwise_shares
)
ONE_SIDED = LinearAlgorithm(name="one_sided", kinds=_KINDS, line=_one_sided, shares=pairwise_shares)
