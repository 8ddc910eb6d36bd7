"""Integer program: replicas of a few pipeline shapes at the least cost, with a fixed node limit."""

from __future__ import annotations

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp

from shardwright.arrays import FloatArray, IntArray

USED = 1e-6
"""Cost of one more shape, so that of equal solutions the one with fewer shapes is taken."""


def whole_replicas(
    costs: FloatArray,
    rows: FloatArray,
    within: tuple[FloatArray, FloatArray],
    *,
    min_replicas: IntArray,
    max_replicas: FloatArray,
    max_others: FloatArray,
    max_shapes: int,
    max_tree_nodes: int,
) -> IntArray | None:
    """(n,) replicas of at most `max_shapes` of n shapes at least cost by integer program; or None.

    None where the program finds no solution.

    Args:
        costs: (n + k,) cost of a replica of each shape, and of one of each of k other whole
            numbers.
        rows: (r, n + k) constraint coefficients of these.
        within: (r,) smallest and largest value of each constraint.
        min_replicas, max_replicas: (n,) fewest and most replicas of each shape that is used.
        max_others: (k,) largest values of the other whole numbers.
        max_shapes: largest number of shapes that are used.
        max_tree_nodes: largest number of nodes of the branch and bound tree; there is no limit in
            seconds, so that every machine finds the same.
    """
    n, k, r = len(max_replicas), len(max_others), len(rows)
    few = np.flatnonzero(min_replicas > 1)
    whole = np.zeros((r + 1 + n + len(few), 2 * n + k))
    # Columns: replicas, whether a shape is used, the others.
    whole[:r, :n], whole[:r, 2 * n :] = rows[:, :n], rows[:, n:]
    whole[r, n : 2 * n] = 1.0
    whole[r + 1 : r + 1 + n, :n], whole[r + 1 : r + 1 + n, n : 2 * n] = (
        np.eye(n),
        -np.diag(max_replicas),
    )
    whole[r + 1 + n :, :n], whole[r + 1 + n :, n : 2 * n] = (
        -np.eye(n)[few],
        np.diag(min_replicas)[few],
    )
    lower = np.concatenate([within[0], [0.0], np.full(n + len(few), -np.inf)])
    solution = milp(
        np.concatenate([costs[:n], np.full(n, USED), costs[n:]]),
        integrality=np.ones(2 * n + k),
        bounds=Bounds(np.zeros(2 * n + k), np.concatenate([max_replicas, np.ones(n), max_others])),
        constraints=LinearConstraint(
            whole, lower, np.concatenate([within[1], [max_shapes], np.zeros(n + len(few))])
        ),
        options={"node_limit": max_tree_nodes, "mip_rel_gap": 1e-3},
    )
    return None if solution.x is None else np.rint(solution.x[:n]).astype(np.int64)
