"""A message from the first member of a group to the last.

So over the outermost tier that the group crosses.

    seconds = latency_k + V / bandwidth_k

One member sends on its own share of the links. Left out: striping one message over the network
cards of other members.

Source: the alpha-beta model (Hockney 1994, Parallel Computing 20).
"""

from __future__ import annotations

import numpy as np

from shardwright.arrays import FloatArray
from shardwright.collectives.algorithm_costs.algorithm_protocol import Collective
from shardwright.collectives.algorithm_costs.alpha_beta_algorithm import Line, LinearAlgorithm
from shardwright.collectives.groups.span_cost_quantities import SpanQuantities, crosses


def _line(kind: Collective, quantities: SpanQuantities) -> Line:
    """Latency and seconds a byte of one message over the outermost tier that the group crosses."""
    latency_s = seconds_per_byte = quantities.zero
    for level in quantities.levels:
        crossed = level.members > 1.0
        latency_s = np.where(crossed, level.latency_s, latency_s)
        seconds_per_byte = np.where(crossed, level.seconds_per_byte, seconds_per_byte)
    return Line(latency_s=latency_s, seconds_per_byte=seconds_per_byte)


def _shares(kind: Collective, quantities: SpanQuantities) -> tuple[FloatArray, ...]:
    """Bytes by tier, a byte of volume: 1 inside an island, or on each network tier crossed."""
    tiers = len(quantities.inverse) - 1
    above = tuple(crosses(quantities, tier).astype(np.float64) for tier in range(1, tiers))
    inside = (quantities.size > 1.0).astype(np.float64) - quantities.leaves_island
    return (inside, *above)


SEND = LinearAlgorithm(name="send", kinds=frozenset({Collective.SEND}), line=_line, shares=_shares)
