"""2D torus: a ring along the rows and then along the columns of a near-square member grid.

The members of each tier in a grid x * y = m_k.

(x - 1) + (y - 1) steps on tier k, x the largest divisor of m_k up to its root; bytes as in
`tier_nested_cost`. A prime m_k keeps its ring, and so do units that do not divide the group and
tiers of a million members or more. For one tier this is the published algorithm; more tiers nest.
Left out: both directions of the grid busy at the same time (true torus networks).

Source: Mikami et al. 2018 (arXiv:1811.05233), section 2.2 (number from memory): reduce_scatter
along rows, all_reduce along columns, all_gather along rows.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import numpy as np

from shardwright.arrays import FloatArray, IntArray
from shardwright.collectives.algorithm_costs.algorithm_protocol import Collective
from shardwright.collectives.algorithm_costs.alpha_beta_algorithm import Line, LinearAlgorithm
from shardwright.collectives.algorithm_costs.tier_nested_cost import (
    NESTED_KINDS,
    nested_line,
    nested_shares,
)
from shardwright.collectives.groups.span_cost_quantities import SpanQuantities

_LARGEST_GRID: Final = 2**20


@lru_cache(maxsize=4)
def _grid_sides(limit: int) -> IntArray:
    """For each n below `limit`, the largest divisor of n up to sqrt(n): its grid's short side."""
    sides = np.ones(limit, dtype=np.int64)
    for divisor in range(2, int(limit**0.5) + 1):
        sides[divisor * divisor :: divisor] = divisor
    sides.setflags(write=False)
    return sides


def _steps(members: FloatArray) -> FloatArray:
    """Number of consecutive messages on one tier: (x - 1) + (y - 1) of its grid x * y."""
    count = np.where(members == np.floor(members), members, 1.0).astype(np.int64)
    largest = int(count.max(initial=1))
    if largest >= _LARGEST_GRID:
        count = np.where(count < _LARGEST_GRID, count, 1)
        largest = _LARGEST_GRID - 1
    side = _grid_sides(1 << largest.bit_length())[count].astype(np.float64)
    steps: FloatArray = side + members / side - 2.0
    return steps


def _line(kind: Collective, quantities: SpanQuantities) -> Line:
    """Latency and seconds a byte of 2D-torus rings (grid rows, then columns) on every tier."""
    return nested_line(kind, quantities, _steps)


TORUS_2D = LinearAlgorithm(name="torus_2d", kinds=NESTED_KINDS, line=_line, shares=nested_shares)
