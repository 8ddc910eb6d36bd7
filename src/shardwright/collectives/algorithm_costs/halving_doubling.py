"""Recursive halving and doubling: reduce-scatter, all-gather, and both for all-reduce.

log2(m_k) steps on tier k.

Legal where the group's size is a power of two. Partners are nearest in the step that moves most, so
bytes are as in `tier_nested_cost`: V/2, V/4, ... from the island outward. Left out: the fold that
other sizes need.

Source: Thakur, Rabenseifner & Gropp 2005 (IJHPCA 19), sections 4.1 (recursive doubling), 4.4
(recursive halving) and 4.5 (Rabenseifner's all_reduce); section numbers from memory.
"""

from __future__ import annotations

import numpy as np

from shardwright.collectives.algorithm_costs.algorithm_protocol import Collective
from shardwright.collectives.algorithm_costs.alpha_beta_algorithm import (
    Line,
    LinearAlgorithm,
    where_legal,
)
from shardwright.collectives.algorithm_costs.tier_nested_cost import (
    NESTED_KINDS,
    nested_line,
    nested_shares,
)
from shardwright.collectives.groups.span_cost_quantities import SpanQuantities, tree_depth


def _line(kind: Collective, quantities: SpanQuantities) -> Line:
    """Latency and seconds a byte of halving-doubling; inf where the group is no power of two."""
    # A product is a power of two only if each factor is: one test on the size does for all tiers.
    return where_legal(
        nested_line(kind, quantities, tree_depth), np.frexp(quantities.size)[0] == 0.5
    )


HALVING_DOUBLING = LinearAlgorithm(
    name="halving_doubling", kinds=NESTED_KINDS, line=_line, shares=nested_shares
)
