"""Broadcast, scatter and gather with a root: flat and by a binomial tree.

The root sends (broadcast, scatter) or receives (gather) one message at a time. V is the root's
whole buffer.

flat: the root exchanges with each of the c_k - c_(k-1) members that are reached over tier k at
most:

    broadcast:        sum over tiers of (c_k - c_(k-1)) (latency_k + V / bandwidth_k)
    scatter, gather:  sum over tiers of (c_k - c_(k-1)) (latency_k + V/n / bandwidth_k)

binomial_tree: every member that has the buffer serves another one, farthest units first; ceil(log2
m_k) rounds on tier k:

    broadcast:        sum over tiers of ceil(log2 m_k) (latency_k + V / bandwidth_k)
    scatter, gather:  sum over tiers of ceil(log2 m_k) latency_k + (c_k - c_(k-1)) V/n / bandwidth_k

Left out: pieces in flight (ring and double_binary_tree broadcast large buffers), sending to several
members at once.

Source: Thakur, Rabenseifner & Gropp 2005, section 4.2 (broadcast: binomial tree; scatter: binomial,
log2(n) alpha + (n-1)/n V beta; section number from memory).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from shardwright.arrays import FloatArray
from shardwright.collectives.algorithm_costs.algorithm_protocol import Collective
from shardwright.collectives.algorithm_costs.alpha_beta_algorithm import Line, LinearAlgorithm
from shardwright.collectives.groups.span_cost_quantities import (
    Level,
    SpanQuantities,
    per_tier,
    tree_depth,
)

_KINDS = frozenset({Collective.BROADCAST, Collective.SCATTER, Collective.GATHER})


def _peers(level: Level) -> FloatArray:
    """Most members that a flat root reaches over this tier: c_k - c_(k-1)."""
    peers: FloatArray = (level.members - 1.0) / level.inside_inverse
    return peers


def _flat_sent(kind: Collective, quantities: SpanQuantities, level: Level) -> FloatArray:
    """Bytes that the root sends over a tier in a flat collective, a byte of volume."""
    return _peers(level) if kind is Collective.BROADCAST else _peers(level) * quantities.inverse[-1]


def _binomial_rounds(level: Level) -> FloatArray:
    """Number of rounds of a binomial tree on one tier: log2 of the members, rounded up."""
    return tree_depth(level.members)


def _binomial_sent(kind: Collective, quantities: SpanQuantities, level: Level) -> FloatArray:
    """Bytes that a binomial tree sends over a tier in all its rounds, a byte of volume."""
    return (
        _binomial_rounds(level)
        if kind is Collective.BROADCAST
        else _peers(level) * quantities.inverse[-1]
    )


def _line(
    kind: Collective,
    quantities: SpanQuantities,
    *,
    messages: Callable[[Level], FloatArray],
    sent: Callable[[Collective, SpanQuantities, Level], FloatArray],
) -> Line:
    """Latency and seconds a byte of a broadcast, scatter or gather: the sum over tiers.

    Args:
        messages: number of messages one after another on a tier.
        sent: bytes over a tier, a byte of volume.
    """
    latency_s = seconds_per_byte = quantities.zero
    for level in quantities.levels:
        latency_s = latency_s + messages(level) * level.latency_s
        seconds_per_byte = seconds_per_byte + sent(kind, quantities, level) * level.seconds_per_byte
    return Line(latency_s=latency_s, seconds_per_byte=seconds_per_byte)


def _shares(
    kind: Collective,
    quantities: SpanQuantities,
    *,
    sent: Callable[[Collective, SpanQuantities, Level], FloatArray],
) -> tuple[FloatArray, ...]:
    """Bytes over each tier's links in a broadcast, scatter or gather, a byte of volume."""
    return per_tier(
        quantities, {level.tier: sent(kind, quantities, level) for level in quantities.levels}
    )


FLAT = LinearAlgorithm(
    name="flat",
    kinds=_KINDS,
    line=partial(_line, messages=_peers, sent=_flat_sent),
    shares=partial(_shares, sent=_flat_sent),
)
BINOMIAL = LinearAlgorithm(
    name="binomial_tree",
    kinds=_KINDS,
    line=partial(_line, messages=_binomial_rounds, sent=_binomial_sent),
    shares=partial(_shares, sent=_binomial_sent),
)
