"""Ring algorithms: one flat ring through all network tiers, one for each network card.

all_gather, reduce_scatter: (n-1) hops, (n-1)/n V bytes a member; all_reduce: twice that; broadcast:
(n-1) hops, V bytes, in small pieces.

    alpha = hops along the ring, each at the latency of the tier it crosses
    beta  = f / B,  B = min over tiers crossed of c_(k-1) * bandwidth_k

The ring crosses tier k only once for each unit below it; with one ring a member of the unit (one a
network card) the c_(k-1) members' shares add up. Left out: the hop that closes the ring (a piece
that starts behind it crosses it in place of a cheaper one), pipeline fill.

Sources: Patarasu & Yuan 2009 (J. Parallel Distrib. Comput. 69), sections 3 and 4; Thakur,
Rabenseifner & Gropp 2005 (IJHPCA 19), sections 4.1, 4.4 and 4.5 (section numbers from memory);
latency by kind of hop as in NCCL's cost model (src/graph/tuning.cc, ring: the steps inside the node
at its latency, the steps between nodes at the network's).
"""

from __future__ import annotations

from shardwright.arrays import FloatArray
from shardwright.collectives.algorithm_costs.algorithm_protocol import Collective
from shardwright.collectives.algorithm_costs.alpha_beta_algorithm import Line, LinearAlgorithm
from shardwright.collectives.groups.span_cost_quantities import SpanQuantities, along_ring


def _sent(kind: Collective, quantities: SpanQuantities) -> FloatArray:
    """Bytes that a member sends to the next in a ring collective, a byte of volume."""
    if kind is Collective.ALL_REDUCE:
        return 2.0 * quantities.others
    if kind is Collective.BROADCAST:
        return (quantities.size > 1.0).astype(float)
    return quantities.others


def _line(kind: Collective, quantities: SpanQuantities) -> Line:
    """Latency of all steps, seconds a byte at the slowest tier crossed, of a ring collective."""
    latency_s = quantities.line_latency_s
    if kind is Collective.ALL_REDUCE:
        latency_s = latency_s * 2.0
    if kind is Collective.BROADCAST:
        return Line(latency_s=latency_s, seconds_per_byte=quantities.ring_seconds_per_byte)
    return Line(
        latency_s=latency_s,
        seconds_per_byte=_sent(kind, quantities) * quantities.ring_seconds_per_byte,
    )


def _shares(kind: Collective, quantities: SpanQuantities) -> tuple[FloatArray, ...]:
    """Bytes that the busiest member sends over each tier in a ring, a byte of volume."""
    return along_ring(quantities, _sent(kind, quantities))


RING = LinearAlgorithm(
    name="ring",
    kinds=frozenset(
        {
            Collective.ALL_REDUCE,
            Collective.ALL_GATHER,
            Collective.REDUCE_SCATTER,
            Collective.BROADCAST,
        }
    ),
    line=_line,
    shares=_shares,
)
