"""All-to-all by pairwise exchange, flat and nested by tiers.

Each member holds V bytes, 1/n of them for every member.

pairwise: every member sends straight to each of the n - 1 others. c_k - c_(k-1) of them are reached
over tier k at most; island and network work at the same time, and a network card carries all that
leaves the island:

    alpha = sum over tiers of (c_k - c_(k-1)) latency_k
    beta  = max((c_0 - 1)/n / bandwidth_0,  (n - c_(k-1))/n / bandwidth_k)

hierarchical_all_to_all: one exchange a tier among the m_k members of equal place, which pass on the
data for units beyond:

    alpha = sum over tiers of (m_k - 1) latency_k
    beta  = sum over tiers of (m_k - 1)/m_k / bandwidth_k

Fewer and larger messages, more bytes inside the island ((c_0-1)/c_0 V, not (c_0-1)/n V). Left out:
uneven volumes (the caller scales the volume to the busiest member), overlap of phases, permutation
of the buffer between phases.

Sources: Thakur, Rabenseifner & Gropp 2005, section 4.3 (pairwise exchange); Nie et al. 2022,
"HetuMoE" (arXiv:2203.14685), section 3 (hierarchical all-to-all); section numbers from memory.
"""

from __future__ import annotations

import numpy as np

from shardwright.arrays import FloatArray
from shardwright.collectives.algorithm_costs.algorithm_protocol import Collective
from shardwright.collectives.algorithm_costs.alpha_beta_algorithm import Line, LinearAlgorithm
from shardwright.collectives.groups.span_cost_quantities import SpanQuantities, per_tier

_KINDS = frozenset({Collective.ALL_TO_ALL})


def _pairwise(kind: Collective, quantities: SpanQuantities) -> Line:
    """Latency summed over peers and seconds a byte at the slowest tier of a pairwise all-to-all."""
    latency_s = seconds_per_byte = quantities.zero
    size_inverse = quantities.inverse[-1]
    for level in quantities.levels:
        inside = 1.0 / level.inside_inverse
        peers = inside * (level.members - 1.0)
        latency_s = latency_s + peers * level.latency_s
        sent = (
            peers * size_inverse
            if level.tier == 0
            else (1.0 - inside * size_inverse) * (level.members > 1.0)
        )
        seconds_per_byte = np.maximum(seconds_per_byte, sent * level.seconds_per_byte)
    return Line(latency_s=latency_s, seconds_per_byte=seconds_per_byte)


def pairwise_shares(kind: Collective, quantities: SpanQuantities) -> tuple[FloatArray, ...]:
    """Bytes that a member sends over each tier in a pairwise all-to-all, a byte of volume."""
    size_inverse = quantities.inverse[-1]
    return per_tier(
        quantities,
        {
            level.tier: (level.members - 1.0) / level.inside_inverse * size_inverse
            for level in quantities.levels
        },
    )


def _hierarchical(kind: Collective, quantities: SpanQuantities) -> Line:
    """Latency and seconds a byte of an all-to-all nested by tiers, both summed over the tiers."""
    latency_s = seconds_per_byte = quantities.zero
    for level in quantities.levels:
        latency_s = latency_s + (level.members - 1.0) * level.latency_s
        seconds_per_byte = seconds_per_byte + (1.0 - 1.0 / level.members) * level.seconds_per_byte
    return Line(latency_s=latency_s, seconds_per_byte=seconds_per_byte)


def _hierarchical_shares(kind: Collective, quantities: SpanQuantities) -> tuple[FloatArray, ...]:
    """Bytes that a member sends over each tier in a nested all-to-all, a byte of volume."""
    return per_tier(
        quantities, {level.tier: 1.0 - 1.0 / level.members for level in quantities.levels}
    )


PAIRWISE = LinearAlgorithm(name="pairwise", kinds=_KINDS, line=_pairwise, shares=pairwise_shares)
HIERARCHICAL = LinearAlgorithm(
    name="hierarchical_all_to_all", kinds=_KINDS, line=_hierarchical, shares=_hierarchical_shares
)
