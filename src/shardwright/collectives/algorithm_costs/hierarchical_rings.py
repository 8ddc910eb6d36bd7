"""Hierarchical all-reduce, all-gather and reduce-scatter: a ring on each network tier.

m_k - 1 steps; bytes as in `tier_nested_cost`.

Source: Cho et al. 2019, "BlueConnect" (MLSys), section 3 (from memory).
"""

from __future__ import annotations

from shardwright.arrays import FloatArray
from shardwright.collectives.algorithm_costs.algorithm_protocol import Collective
from shardwright.collectives.algorithm_costs.alpha_beta_algorithm import Line, LinearAlgorithm
from shardwright.collectives.algorithm_costs.tier_nested_cost import (
    NESTED_KINDS,
    nested_line,
    nested_shares,
)
from shardwright.collectives.groups.span_cost_quantities import SpanQuantities


def _steps(members: FloatArray) -> FloatArray:
    """Consecutive messages of a ring of `members` on one tier: members - 1."""
    return members - 1.0


def _line(kind: Collective, quantities: SpanQuantities) -> Line:
    """Latency and seconds a byte of nested rings: one ring inside every unit of each tier."""
    return nested_line(kind, quantities, _steps)


HIERARCHICAL = LinearAlgorithm(
    name="hierarchical", kinds=NESTED_KINDS, line=_line, shares=nested_shares
)
