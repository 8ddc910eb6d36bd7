"""Time and bytes of algorithms nested by network tiers (reduce-scatter in, all-gather out).

reduce_scatter inside, all_reduce across, all_gather inside, each member on its own network card.

After the reduce_scatter below tier k a member holds V / c_(k-1); an exchange with its m_k peers on
tier k moves (m_k - 1)/m_k of that:

    V * (1/c_(k-1)) * (m_k - 1)/m_k = V * (1/c_(k-1) - 1/c_k)

which sums to (n-1)/n V over the tiers. Altogether:

    alpha = f * sum over tiers of steps(m_k) latency_k
    beta  = f * sum over tiers of (1/c_(k-1) - 1/c_k) / bandwidth_k,   f = 2 for all_reduce, else 1

The members of the family differ in steps(m_k). Left out: overlap of one tier's phase with the next
one's, copies between phases.

Source: Cho et al. 2019, "BlueConnect" (MLSys), section 3 (from memory): any factorisation of n, one
reduce_scatter and all_gather a factor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from shardwright.arrays import FloatArray
from shardwright.collectives.algorithm_costs.algorithm_protocol import Collective
from shardwright.collectives.algorithm_costs.alpha_beta_algorithm import Line
from shardwright.collectives.groups.span_cost_quantities import SpanQuantities, per_tier

NESTED_KINDS: Final = frozenset(
    {Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.REDUCE_SCATTER}
)


def nested_line(
    kind: Collective, quantities: SpanQuantities, steps: Callable[[FloatArray], FloatArray]
) -> Line:
    """Latency and seconds a byte of a collective that runs tier after tier (`steps` messages each).

    Args:
        steps: maps m_k to the number of consecutive messages on tier k, 0 for one member.
    """
    latency_s = quantities.zero
    for level in quantities.levels:
        latency_s = latency_s + steps(level.members) * level.latency_s
    if kind is Collective.ALL_REDUCE:
        return Line(
            latency_s=latency_s * 2.0, seconds_per_byte=quantities.nested_seconds_per_byte * 2.0
        )
    return Line(latency_s=latency_s, seconds_per_byte=quantities.nested_seconds_per_byte)


def nested_shares(kind: Collective, quantities: SpanQuantities) -> tuple[FloatArray, ...]:
    """Bytes that a member sends over each tier in a tier-by-tier collective, a byte of volume."""
    times = 2.0 if kind is Collective.ALL_REDUCE else 1.0
    return per_tier(quantities, {level.tier: level.moved * times for level in quantities.levels})
